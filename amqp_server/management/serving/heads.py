"""Heads of requests that two programs may read differently are refused: 400, and the connection is closed.

A proxy in front of the listener decides by the head where a request ends. If the broker decides otherwise,
the rest of one client's request becomes the beginning of another client's request (request smuggling). h11
already refuses lengths that contradict each other, NULs and bare CRs, blanks before a colon, and a missing
or a second Host. It serves what is refused here, as RFC 9112 permits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import h11
from h11._receivebuffer import ReceiveBuffer

#: A name or an address, with or without a port (RFC 9110, 7.2; RFC 3986, 3.2.2); it may be empty.
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]{0,5})?")


def problem(lines: Sequence[bytes | bytearray]) -> str | None:
    """Return why the head with these lines is refused."""
    request = bytes(lines[0]).split(b" ")
    if len(request) == 3 and not request[1].startswith(b"/") and request[1] != b"*":
        # A path that begins with a scheme and a host contradicts the Host header, or repeats it.
        return "the target of a request must be a path"
    if not request[-1].startswith(b"HTTP/1."):
        return "this listener accepts only HTTP/1.1"
    lengths = codings = 0
    for line in lines[1:]:
        if line[:1] in (b" ", b"\t"):
            return "a header must not continue on another line"
        name, _, value = bytes(line).partition(b":")
        name = name.lower()
        if name == b"content-length":
            lengths += 1
        elif name == b"transfer-encoding":
            codings += 1
        elif name == b"host" and not _HOST.fullmatch(value.strip(b" \t")):
            return "invalid Host"
    if lengths > 1:
        return "more than one Content-Length"
    if codings and lengths:
        return "Content-Length together with Transfer-Encoding"
    if codings and request[-1] == b"HTTP/1.0":
        return "Transfer-Encoding before HTTP/1.1"
    return None


class CheckedHeads(ReceiveBuffer):
    """The bytes that h11 has received and not used."""

    def __init__(self, connection: h11.Connection) -> None:
        super().__init__()
        self._connection = connection

    def maybe_extract_lines(self) -> list[bytearray] | None:
        lines = super().maybe_extract_lines()
        # The other lines that end with an empty one are the trailers of a body, which are not used.
        if lines and self._connection.their_state is h11.IDLE:
            refused = problem(lines)
            if refused is not None:
                raise h11.LocalProtocolError(refused, error_status_hint=400)
        return lines


def check_heads(connection: h11.Connection) -> None:
    """Make a new connection check the heads of its requests."""
    connection._receive_buffer = CheckedHeads(connection)


__all__ = ["check_heads", "problem"]
