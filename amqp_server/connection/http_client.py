"""What the clients of other servers share: those that have the keys of tokens, and those that say who may log in."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    import httpx

#: Errors behind an error that are looked at.
CAUSES_MAX = 16


def quiet() -> None:
    """The library logs URLs, and passwords may be in them."""
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)


async def body_of(answer: httpx.Response, most: int) -> bytes | None:
    """Return the body of an answer that is read as a stream; None if it has more bytes. Raises httpx.HTTPError."""
    body = b""
    with trio.CancelScope() as reading:
        async for piece in answer.aiter_raw():
            body += piece
            if len(body) > most:
                # The library's generators end only from within.
                reading.cancel()
    return None if len(body) > most else body


def reason(error: BaseException) -> str:
    """Say why a request failed: what the system or OpenSSL said first, which the library keeps behind its own errors.

    No word of the request is in it, unlike in other texts of the library.
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
