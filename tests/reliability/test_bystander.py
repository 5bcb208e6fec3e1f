"""The judge of the attacks measures only the time that the broker takes."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.attacks import bystander
from tests.attacks.bystander import Bystander
from tests.reliability.client import Delivery


class LateBroker:
    """Stands in for a client: it delivers nothing before this many messages are under way. Then it closes
    `ends`.
    """

    many = 5

    def __init__(self, ends: int) -> None:
        self.sock, self._far = socket.socketpair()
        self._ends = ends
        self._bodies: list[bytes] = []

    def declare(self, *_: Any, **__: Any) -> None: ...

    def call(self, *_: Any) -> None: ...

    def send(self, data: bytes) -> None:
        self._bodies.append(data[-9:-1])
        if len(self._bodies) == self.many:
            self._far.send(b".")

    def receive(self, wait_s: float) -> Iterator[Delivery]:
        self.sock.settimeout(wait_s)
        try:
            self.sock.recv(1)
        except (BlockingIOError, TimeoutError):
            return
        os.close(self._ends)
        bodies, self._bodies = self._bodies, []
        for tag, body in enumerate(bodies, 1):
            yield Delivery(tag, False, body)

    def close(self) -> None:
        self.sock.close()
        self._far.close()


def test_a_bystander_publishes_though_earlier_messages_have_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a broker that takes a little longer than a period would look worse and worse, because the
    client would queue messages itself.
    """
    reads, ends = os.pipe()
    broker = LateBroker(ends)
    monkeypatch.setattr(bystander, "Client", lambda *_, **__: broker)
    monkeypatch.setattr(bystander, "PATIENCE_S", 5.0)
    monkeypatch.setattr(Bystander, "_seldom", lambda _: None)
    with os.fdopen(reads) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        one = Bystander(0, 0, os.getpid())
        one.run()
    broker.close()
    assert len(one.seen.messages) == len(one.seen.loop) == LateBroker.many
