"""Heads that a proxy and the broker may read differently are refused, and nothing behind them is served."""

from __future__ import annotations

import pytest

from amqp_server.management.parts import ManagedParts
from amqp_server.management.serving.heads import problem

from .test_server import serving

#: Served if the broker goes on behind the refused request.
NEXT = b"GET /health HTTP/1.1\r\nhost: broker\r\n\r\n"
CHUNKS = b"0\r\n\r\n"


def head(*lines: bytes, first: bytes = b"PUT /health HTTP/1.1", host: bytes = b"host: broker") -> bytes:
    return b"\r\n".join([first, *([host] if host else []), *lines, b"", b""])


BAD = {
    "length and coding": head(b"content-length: 5", b"transfer-encoding: chunked") + CHUNKS,
    "coding and length": head(b"Transfer-Encoding: chunked", b"Content-Length: 5") + CHUNKS,
    "two lengths": head(b"content-length: 5", b"content-length: 6") + b"abcdef",
    "the same length twice": head(b"content-length: 0", b"Content-Length: 0"),
    "a list of lengths": head(b"content-length: 5, 6") + b"abcdef",
    "a length with a sign": head(b"content-length: +5") + b"abcde",
    "a negative length": head(b"content-length: -5"),
    "a length in hexadecimal": head(b"content-length: 0x5") + b"abcde",
    "an unknown coding": head(b"transfer-encoding: gzip") + CHUNKS,
    "two codings": head(b"transfer-encoding: chunked", b"transfer-encoding: identity") + CHUNKS,
    "chunked twice": head(b"transfer-encoding: chunked, chunked") + CHUNKS,
    "a coding before 1.1": head(b"transfer-encoding: chunked", first=b"PUT /health HTTP/1.0") + CHUNKS,
    "a folded header": head(b"x-reason: one", b" two"),
    "a folded header, by tab": head(b"x-reason: one", b"\ttwo"),
    "a folded length": head(b"content-length:", b" 5") + b"abcde",
    "a fold first": head(host=b" host: broker"),
    "NUL in a value": head(b"x-reason: o\0ne"),
    "CR in a value": head(b"x-reason: o\rne"),
    "a blank before the colon": head(b"content-length : 5") + b"abcde",
    "no colon": head(b"content-length"),
    "NUL in a name": head(b"x-rea\0son: one"),
    "no host": head(host=b""),
    "two hosts": head(b"host: broker"),
    "two names in a host": head(host=b"host: one two"),
    "a path in a host": head(host=b"host: broker/path"),
    "a user in a host": head(host=b"host: guest@broker"),
    "a port that is none": head(host=b"host: broker:http"),
    "a comma's host": head(host=b"host: <script>"),
    "an absolute target": head(first=b"GET http://broker/health HTTP/1.1"),
    "another host's target": head(first=b"GET http://other/health HTTP/1.1"),
    "an authority as target": head(first=b"CONNECT broker:80 HTTP/1.1"),
    "a target without a slash": head(first=b"GET health HTTP/1.1"),
    "two blanks": head(first=b"GET  /health HTTP/1.1"),
    "no version": head(first=b"GET /health"),
    "another version": head(first=b"GET /health HTTP/3.7"),
}
GOOD = {
    "plain": head(first=b"GET /health HTTP/1.1"),
    "a length": head(b"content-length: 3") + b"abc",
    "chunks": head(b"transfer-encoding: chunked") + b"3\r\nabc\r\n" + CHUNKS,
    "chunks with a trailer": head(b"transfer-encoding: chunked") + b"0\r\nhost: one two\r\nx: y\r\n\r\n",
    "an empty host": head(host=b"host:", first=b"GET /health HTTP/1.1"),
    "a port": head(host=b"host: broker:15672", first=b"GET /health HTTP/1.1"),
    "an IPv6 address": head(host=b"host: [::1]:15672", first=b"GET /health HTTP/1.1"),
    "a name in other letters": head(host=b"host: b%C3%BCro_1.example", first=b"GET /health HTTP/1.1"),
    "all of the server": head(first=b"OPTIONS * HTTP/1.1"),
}


@pytest.mark.trio
@pytest.mark.parametrize("size", [0, 1], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("what", BAD)
async def test_refused(parts: ManagedParts, what: str, size: int) -> None:
    async with serving(parts) as dial:
        client = await dial()
        sent = BAD[what] + NEXT
        try:
            for start in range(0, len(sent), size or len(sent)):
                await client.stream.send_all(sent[start : start + (size or len(sent))])
        except OSError:
            # Refused before all of it was sent.
            pass
        assert await client.status() in (400, 501)
        await client.ends()
        assert b"HTTP/1.1" not in client.left


@pytest.mark.trio
@pytest.mark.parametrize("what", GOOD)
async def test_served(parts: ManagedParts, what: str) -> None:
    async with serving(parts) as dial:
        client = await dial()
        await client.stream.send_all(GOOD[what] + NEXT)
        assert await client.status() in (200, 404, 405)
        assert await client.status() == 200


def test_what_it_says() -> None:
    assert problem([b"GET / HTTP/1.1", b"a: b", b" c"]) == "a header must not continue on another line"
    assert problem([b"GET / HTTP/1.1", b"host: a", b"content-length: 1"]) is None
