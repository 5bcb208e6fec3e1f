"""Shared parts of the HTTP clients for the keys of tokens and for the HTTP backend."""

from __future__ import annotations

import logging
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
