"""Attacks before the login."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from pamqp import commands, header

from tests.reliability.client import Client, Gone

from ..scene import ELSEWHERE, Scene, Target
from . import frames

SECONDS = 8.0


def _wrong_login(port: int, password: str) -> None:
    with socket.create_connection(("127.0.0.1", port), 10, (ELSEWHERE, 0)) as sock:
        sock.sendall(header.ProtocolHeader().marshal())
        sock.recv(65_536)
        answer = commands.Connection.StartOk({}, "PLAIN", f"\0guest\0{password}", "en_US")
        sock.sendall(frames.method(answer, 0))
        while sock.recv(65_536):
            pass


def wrong_logins(target: Target) -> None:
    """60 threads guess passwords, each a new one."""
    until = time.monotonic() + SECONDS * max(target.size, 0.25)

    def guess(number: int) -> None:
        tries = 0
        while time.monotonic() < until:
            tries += 1
            with contextlib.suppress(OSError):
                _wrong_login(target.node.port, f"{number}-{tries}")

    threads = [threading.Thread(target=guess, args=(number,)) for number in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def half_open(target: Target) -> None:
    """1,000 sockets that send nothing, again and again."""
    until = time.monotonic() + SECONDS * max(target.size, 0.25)
    open_sockets: list[socket.socket] = []
    try:
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                open_sockets.append(
                    socket.create_connection(("127.0.0.1", target.node.port), 5, (ELSEWHERE, 0))
                )
            if len(open_sockets) > target.many(1_000):
                open_sockets.pop(0).close()
    finally:
        for sock in open_sockets:
            sock.close()


def connection_churn(target: Target) -> None:
    """Logins with the right password, one after the other; each connection is dropped without
    connection.close.
    """
    until = time.monotonic() + SECONDS * max(target.size, 0.25)
    while time.monotonic() < until:
        with contextlib.suppress(Gone, OSError):
            Client(target.node.port).close()


SCENES = (
    Scene("wrong-logins", "60 threads that guess passwords", wrong_logins),
    Scene("half-open", "1,000 sockets that say nothing", half_open),
    Scene("connection-churn", "connections opened and dropped without a pause", connection_churn),
)
