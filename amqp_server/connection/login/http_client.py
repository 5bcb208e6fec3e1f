"""Shared parts of the HTTP clients for the keys of tokens and for the HTTP backend."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    import httpx

#: Maximum depth to which the causes of an error are followed.
CAUSES_MAX = 16


def quiet() -> None:
    """Silence the library's log: it logs URLs, which may contain passwords."""
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)


@cache
def _body_class() -> type[httpx.AsyncByteStream]:
    import httpx

    class Body(httpx.AsyncByteStream):
        """The body of a request, in one piece.

        That of the library is an asynchronous generator. It stands still while the piece is sent, so if that
        fails or is cancelled, the generator is never finished, and Trio warns of it.
        """

        def __init__(self, content: bytes) -> None:
            self._content: bytes | None = content

        def __aiter__(self) -> Body:
            return self

        async def __anext__(self) -> bytes:
            content, self._content = self._content, None
            if content is None:
                raise StopAsyncIteration
            return content

    return Body


@asynccontextmanager
async def streamed(
    client: httpx.AsyncClient, method: str, url: str, headers: Mapping[str, str], content: bytes = b""
) -> AsyncIterator[httpx.Response]:
    """Send a request, and have its answer, whose body can be read, until the end of the block. Raises
    httpx.HTTPError.
    """
    request = client.build_request(method, url, content=content, headers=headers)
    request.stream = _body_class()(content)  # type: ignore[call-arg]
    answer = await client.send(request, stream=True)
    try:
        yield answer
    finally:
        await answer.aclose()


async def body_of(answer: httpx.Response, most: int) -> bytes | None:
    """Return the body of a streamed answer; None if it is longer than allowed. Raises httpx.HTTPError."""
    body = b""
    with trio.CancelScope() as reading:
        async for piece in answer.aiter_raw():
            body += piece
            if len(body) > most:
                # Exhaust the library's generator, so that it ends in order.
                reading.cancel()
    return None if len(body) > most else body


def reason(error: BaseException) -> str:
    """Return the reason why a request failed: the first error of the system or of OpenSSL, which the library
    hides behind its own errors.

    Unlike other texts of the library, it contains nothing of the request.
    """
    found, at = "", error
    for _ in range(CAUSES_MAX):
        if isinstance(at, OSError) and str(at):
            found = str(at)
        behind = at.__cause__ or at.__context__
        if behind is None:
            break
        at = behind
    return found or type(error).__name__
