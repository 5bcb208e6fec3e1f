"""Questions of one node's management API to the others, over the links: an answer comes in parts, or not at
all.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from typing import Protocol

import trio

from quorum_queue.cluster import frames

log = logging.getLogger("mqd.management")

#: Maximum number of questions of one node that are answered at a time, and bytes that may wait for the link
#: to it before the next part is made.
QUESTIONS_MAX = 64
WAITING_BYTES = 1 << 20
LOOK_S = 0.005

Answerer = Callable[[bytes], AsyncGenerator[bytes, None]]


class Links(Protocol):
    def send(self, peer: str, parts: list[bytes]) -> bool: ...

    def pending_bytes(self, peer: str) -> int: ...

    def connected(self) -> Collection[str]: ...

    def features_of(self, peer: str) -> Collection[str]: ...


class Unanswered(Exception):
    """The node cannot be reached, does not know such questions, or took too long."""


class _Waiting:
    def __init__(self, peer: str, bytes_max: int) -> None:
        self.peer = peer
        self.parts: list[bytes] = []
        self.left_bytes = bytes_max
        self.done = trio.Event()
        self.failed = False


class Questions:
    """Runs on the loop's thread. This node answers while `run` runs."""

    def __init__(self, links: Links, *, timeout_s: float, bytes_max: int) -> None:
        self._links = links
        self._timeout_s = timeout_s
        self._bytes_max = bytes_max
        self._number = 0
        self._waiting: dict[int, _Waiting] = {}
        #: Number of questions that are being answered, by node.
        self._answering: dict[str, int] = {}
        self._nursery: trio.Nursery | None = None
        self._answerer: Answerer | None = None
        #: Questions that wait for `run`; None if they are answered with "cannot answer" until then.
        self._held: list[tuple[str, int, bytes]] | None = None

    # -- asking ----------------------------------------------------------------------------------------------

    async def ask(self, peer: str, question: bytes) -> list[bytes]:
        """Return the parts of a node's answer. Raises Unanswered."""
        if frames.MANAGEMENT_FEATURE not in self._links.features_of(peer):
            raise Unanswered
        self._number += 1
        number = self._number
        waiting = self._waiting[number] = _Waiting(peer, self._bytes_max)
        try:
            if not self._links.send(peer, frames.ask(number, question)):
                raise Unanswered
            with trio.move_on_after(self._timeout_s) as scope:
                await waiting.done.wait()
        finally:
            del self._waiting[number]
        if scope.cancelled_caught or waiting.failed or not waiting.parts[-1]:
            raise Unanswered
        return waiting.parts

    def answered(self, peer: str, number: int, *, last: bool, part: bytes) -> None:
        """A part of an answer has arrived."""
        waiting = self._waiting.get(number)
        if waiting is None or waiting.peer != peer:
            return
        waiting.left_bytes -= len(part)
        waiting.parts.append(part)
        if waiting.left_bytes < 0:
            waiting.failed = last = True
        if last:
            waiting.done.set()

    def link_down(self, peer: str) -> None:
        for waiting in self._waiting.values():
            if waiting.peer == peer:
                waiting.failed = True
                waiting.done.set()

    # -- answering -------------------------------------------------------------------------------------------

    async def run(self, answerer: Answerer) -> None:
        """Answer the questions of others until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery, self._answerer = nursery, answerer
            held, self._held = self._held or [], None
            for asked in held:
                nursery.start_soon(self._answer, *asked)
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = self._answerer = None

    def answers_soon(self) -> None:
        """Questions wait from now on, because `run` begins in a moment."""
        self._held = []

    def asked(self, peer: str, number: int, question: bytes) -> None:
        """Answer a node's question. An empty answer means that this node cannot answer."""
        unable = self._nursery is None and self._held is None
        if unable or self._answering.get(peer, 0) >= QUESTIONS_MAX:
            self._links.send(peer, frames.answer(number, b"", last_part=True))
            return
        self._answering[peer] = self._answering.get(peer, 0) + 1
        if self._nursery is not None:
            self._nursery.start_soon(self._answer, peer, number, question)
        elif self._held is not None:
            self._held.append((peer, number, question))

    async def _answer(self, peer: str, number: int, question: bytes) -> None:
        assert self._answerer is not None
        try:
            with trio.move_on_after(self._timeout_s):
                async with aclosing(self._answerer(question)) as parts:
                    last = b""
                    first = True
                    async for part in parts:
                        if not first:
                            await self._send(peer, frames.answer(number, last, last_part=False))
                        last, first = part, False
                    await self._send(peer, frames.answer(number, last, last_part=True))
        except Exception:
            log.exception("a request from node %s could not be answered", peer)
        finally:
            self._answering[peer] -= 1

    async def _send(self, peer: str, parts: list[bytes]) -> None:
        while self._links.pending_bytes(peer) > WAITING_BYTES:
            await trio.sleep(LOOK_S)
        self._links.send(peer, parts)
