"""Attacks through TLS, tokens and cookies, before a login."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pamqp import commands, header

from conformance_tests.ports import free_ports
from tests.amqp_server.connection.authority import make_authority
from tests.amqp_server.connection.test_tokens import Issuer

from ..scene import ELSEWHERE, Scene, Target
from . import frames
from .page import log_in

SECONDS = 8.0
HELD = 500


def _as_options(options: dict[str, Any]) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def _repeated(target: Target, count: int, attack: Callable[[int], None]) -> None:
    """Have this many threads attack again and again; if the broker closes the connection, that is a good
    answer.
    """
    until = time.monotonic() + SECONDS * max(target.size, 0.25)
    wrong: list[AssertionError] = []

    def run(number: int) -> None:
        while time.monotonic() < until and not wrong:
            try:
                attack(number)
            except AssertionError as error:
                wrong.append(error)
            except OSError:
                pass

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


# -- TLS -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _with_tls(directory: Path) -> Iterator[tuple[int, Sequence[str]]]:
    """Start a listener with TLS; give its port."""
    (port,) = free_ports(1)
    yield port, _as_options(make_authority(directory).options | {"amqps": f"127.0.0.1:{port}"})


def _client_hello() -> bytes:
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


def _not_verified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 10, (ELSEWHERE, 0))


def half_handshakes(target: Target) -> None:
    """1,000 sockets that send half of a ClientHello, or send it whole and read nothing, again and again."""
    until = time.monotonic() + SECONDS * max(target.size, 0.25)
    hello = _client_hello()
    held: list[socket.socket] = []
    count = 0
    try:
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                sock = _connect(target.beside)
                held.append(sock)
                sock.sendall(hello[: len(hello) // 2] if count % 2 else hello)
            count += 1
            if len(held) > target.many(1_000):
                held.pop(0).close()
    finally:
        for sock in held:
            sock.close()


def silent_handshakes(target: Target) -> None:
    """20 threads do handshakes as fast as they can, and then send nothing; each keeps 50 such sockets."""
    context = _not_verified()
    held: dict[int, list[ssl.SSLSocket]] = {number: [] for number in range(20)}

    def shake(number: int) -> None:
        mine = held[number]
        mine.append(context.wrap_socket(_connect(target.beside)))
        if len(mine) > 50:
            mine.pop(0).close()

    try:
        _repeated(target, 20, shake)
    finally:
        for sockets in held.values():
            for sock in sockets:
                sock.close()


def bad_records(target: Target) -> None:
    """Empty TLS records, and records that TLS does not know, after a handshake and before."""
    context = _not_verified()

    def send(number: int) -> None:
        sock = _connect(target.beside)
        with contextlib.closing(sock):
            if number % 2:
                sock.sendall(b"\x16\x03\x01\x00\x01\x01" * 20_000)
            else:
                wrapped = context.wrap_socket(sock)
                with contextlib.closing(wrapped):
                    for _ in range(100):
                        wrapped.sendall(b"A")

    _repeated(target, 10, send)


# -- tokens --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _with_issuer(directory: Path) -> Iterator[tuple[Issuer, Sequence[str]]]:
    issuer = Issuer(directory)
    try:
        yield issuer, _as_options(issuer.options)
    finally:
        issuer.close()


def _tell(port: int, token: str) -> bytes:
    """Log in with a token; return the broker's answer."""
    with _connect(port) as sock:
        sock.sendall(header.ProtocolHeader().marshal())
        sock.recv(65_536)
        answer = commands.Connection.StartOk({}, "PLAIN", f"\0\0{token}", "en_US")
        sock.sendall(frames.method(answer, 0))
        return sock.recv(65_536)


def _http_tell(target: Target, token: str) -> bytes:
    with _connect(target.node.http) as sock:
        request = f"GET /api/whoami HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        sock.sendall(request.encode())
        return sock.recv(65_536)


def forged_tokens(target: Target) -> None:
    """30 threads send tokens with wrong signatures, no two alike, of known and of unknown keys."""
    issuer: Issuer = target.beside
    head, body, signature = issuer.token().split(".")

    def show(number: int) -> None:
        if number % 3 == 0:
            claims = issuer.claims(jti=secrets.token_hex(8))
            forged = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
            token = f"{head}.{forged}.{signature}"
        elif number % 3 == 1:
            other = {"alg": "RS256", "kid": secrets.token_hex(8), "typ": "JWT"}
            token = f"{base64.urlsafe_b64encode(json.dumps(other).encode()).rstrip(b'=').decode()}.{body}.{signature}"
        else:
            token = f"{head}.{body}.{secrets.token_urlsafe(256)}"
        if number % 2:
            assert b" 401 " in _http_tell(target, token)[:20] or number
        else:
            _tell(target.node.port, token)

    _repeated(target, 30, show)


def large_tokens(target: Target) -> None:
    """Valid tokens, no two alike, of the largest permitted size: with the largest number of scopes, with
    deeply nested claims, and with lists where there should be a text.
    """
    issuer: Issuer = target.beside
    nested: Any = "x"
    for _ in range(400):
        nested = [nested]
    scopes = [f"mqd.read:vhost{n}/queue{n}" for n in range(80)]

    def show(number: int) -> None:
        kinds: list[dict[str, Any]] = [
            {"scope": scopes},
            {"scope": " ".join(f"mqd.{n}" for n in range(300))},
            {"roles": nested, "sub": ["x"] * 300},
            {"scope": [[each] for each in scopes] * 4, "aud": ["mqd"] * 100},
        ]
        more = kinds[number % 4]
        token = issuer.token(**({"jti": secrets.token_hex(8), "kid": "ec"} | more))
        if number % 2:
            _http_tell(target, token)
        else:
            _tell(target.node.port, token)

    _repeated(target, 12, show)


# -- cookies -------------------------------------------------------------------------------------------------


def forged_cookies(target: Target) -> None:
    """30 threads send cookies that the node never gave out, short ones and long ones, many in one request."""

    with _connect(target.node.http) as sock:
        sock.sendall(log_in("guest", "guest"))
        found = re.search(rb"set-cookie: (mqd-[0-9a-f]+)=", sock.recv(65_536), re.IGNORECASE)
    assert found is not None
    name = found[1].decode()

    def show(number: int) -> None:
        forged = [
            f"{name}={secrets.token_urlsafe(32)}",
            "; ".join(f"{name}={secrets.token_urlsafe(32)}" for _ in range(100)),
            f"{name}={'x' * 6_000}",
        ][number % 3]
        with _connect(target.node.http) as sock:
            sock.sendall(
                f"GET /api/whoami HTTP/1.1\r\nHost: x\r\nCookie: {forged}\r\nConnection: close\r\n\r\n".encode()
            )
            assert not sock.recv(65_536).startswith(b"HTTP/1.1 2")

    _repeated(target, 30, show)


SCENES = (
    Scene(
        "half-handshakes", "1,000 sockets that send half of a ClientHello", half_handshakes, beside=_with_tls
    ),
    Scene(
        "silent-handshakes",
        "20 threads that shake hands and say nothing",
        silent_handshakes,
        beside=_with_tls,
    ),
    Scene(
        "bad-records", "10 threads that send records of TLS that mean nothing", bad_records, beside=_with_tls
    ),
    Scene(
        "forged-tokens",
        "30 threads with tokens whose signatures are wrong",
        forged_tokens,
        beside=_with_issuer,
    ),
    Scene(
        "large-tokens", "12 threads with tokens as large as they may be", large_tokens, beside=_with_issuer
    ),
    Scene("forged-cookies", "30 threads with cookies that nobody was given", forged_cookies),
)
