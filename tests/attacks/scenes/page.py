"""Attacks on the page and its logins."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator

from ..scene import ELSEWHERE, Scene, Target

SECONDS = 8.0
#: Sockets that are held open at a time.
HELD = 100


def _connect(target: Target, source: str = ELSEWHERE) -> socket.socket:
    return socket.create_connection(("127.0.0.1", target.node.http), 10, (source, 0))


def _talk(sock: socket.socket, request: bytes) -> bytes:
    """Return the head and the body of the answer to a request that ends the connection."""
    sock.sendall(request)
    parts = []
    while data := sock.recv(65_536):
        parts.append(data)
    return b"".join(parts)


def log_in(name: str, password: str) -> bytes:
    body = json.dumps({"name": name, "password": password}).encode()
    head = (
        "POST /api/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _file(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


@contextlib.contextmanager
def _threads(target: Target, count: int, attack: Callable[[int], None]) -> Iterator[list[threading.Thread]]:
    """Call `attack` again and again, for as long as an attack takes."""
    until = time.monotonic() + SECONDS * max(target.size, 0.25)
    wrong: list[AssertionError] = []

    def run(number: int) -> None:
        while time.monotonic() < until:
            try:
                attack(number)
            except AssertionError as error:
                wrong.append(error)
            except OSError:
                pass

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        for thread in threads:
            thread.join()
    assert not wrong, wrong[0]


@contextlib.contextmanager
def _held(target: Target, sent: bytes) -> Iterator[None]:
    """Sockets that stop after sending this."""
    with contextlib.ExitStack() as sockets:
        for _ in range(HELD):
            sock = sockets.enter_context(_connect(target))
            with contextlib.suppress(OSError):
                sock.sendall(sent)
        yield


def page_guesses(target: Target) -> None:
    """30 threads guess the administrator's password, and 100 others never finish sending theirs."""

    def guess(number: int) -> None:
        with _connect(target) as sock:
            answer = _talk(sock, log_in("guest", f"{number}-{time.monotonic()}"))
        assert b"set-cookie" not in answer.lower()

    with _threads(target, 30, guess) as threads, _held(target, log_in("guest", "guest")[:-1]):
        while any(thread.is_alive() for thread in threads):
            # The administrator comes from another address.
            with _connect(target, "127.0.0.1") as sock:
                answer = _talk(sock, log_in("guest", "guest"))
            assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
            time.sleep(0.2)


def page_sessions(target: Target) -> None:
    """Logins with the right password, one after the other."""

    def begin(number: int) -> None:
        with _connect(target, "127.0.0.1") as sock:
            answer = _talk(sock, log_in("guest", "guest"))
        assert b"set-cookie" in answer.lower()

    with _threads(target, 4, begin):
        pass


def page_loads(target: Target) -> None:
    """20 browsers load all files again and again, and 100 request them and read nothing."""
    with _connect(target) as sock:
        index = _talk(sock, _file("/")).decode()
    paths = [f"/{path}" for path in re.findall(r'(?:href|src)="(page/[^"]+)"', index)]
    assert len(paths) > 5

    def load(number: int) -> None:
        for path in paths:
            with _connect(target) as sock:
                answer = _talk(sock, _file(path))
            assert answer.startswith(b"HTTP/1.1 200"), answer[:200]

    unread = b"GET /page/style.css HTTP/1.1\r\nHost: x\r\n\r\n" * 100
    with _held(target, unread), _threads(target, 20, load):
        pass


SCENES = (
    Scene(
        "page-guesses", "30 threads that guess at the page's login, 100 that never end theirs", page_guesses
    ),
    Scene("page-sessions", "logins to the page without end", page_sessions),
    Scene(
        "page-loads", "20 browsers that load the page without a pause, 100 that read none of it", page_loads
    ),
)
