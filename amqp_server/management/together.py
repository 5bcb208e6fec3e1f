"""Many things declared at a time, as by clients: by several connections of management's own.

In a cluster each method waits for a round of its nodes. Connections that are free take the next ones, many in
one turn: a turn for each of 10,000 queues would flush the links, and look for all else that a turn looks for,
10,000 times.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import trio
from pamqp import base

from amqp_server.management.answer import Refusal
from amqp_server.management.direct import Direct
from amqp_server.turn import Turn

#: Connections, and methods that wait for their answer.
AT_ONCE = 128
#: Methods of one turn: what they change is one turn's work for every node.
OF_A_TURN = 16

#: Called between two short steps.
Rest = Callable[[], Awaitable[None]]


class Asked(NamedTuple):
    """What is asked of the broker."""

    vhost: str
    method: base.Frame
    #: What is refused within it becomes a Refusal.
    naming: AbstractContextManager[None]


class Together:
    """Use as a context: leaving it closes the connections."""

    def __init__(self, turn: Turn, connect: Callable[[str], Direct]) -> None:
        """`connect` returns a connection to a vhost, which is not open yet."""
        self._turn = turn
        self._connect = connect
        #: Connections that wait for nothing, by their vhost.
        self._free: dict[str, list[Direct]] = {}
        self._open: dict[Direct, None] = {}
        self._waiting: dict[Direct, Asked] = {}
        #: Those that have heard from the broker since their answers were taken.
        self._heard: dict[Direct, None] = {}
        self._answered = trio.Event()
        self._refusals: list[Refusal] = []
        #: There is more to ask.
        self._more = True

    def __enter__(self) -> Together:
        return self

    def __exit__(self, *error: Any) -> None:
        for direct in self._open:
            direct.close()

    async def ask(self, asked: Iterator[Asked | None], rest: Rest) -> None:
        """Ask all of this, in this order; None is an item that needs nothing. What is refused is raised once
        those before it have their answers.
        """
        self._more = True
        while self._more or self._waiting:
            await rest()
            self._answered = trio.Event()
            if self._more and len(self._waiting) < AT_ONCE:
                self._turn.run(self._hand_out, asked)
            elif not self._heard:
                await self._answered.wait()
            self._take_answers()
        if self._refusals:
            raise self._refusals[0]

    def _hand_out(self, asked: Iterator[Asked | None]) -> None:
        for _ in range(min(OF_A_TURN, AT_ONCE - len(self._waiting))):
            try:
                each = next(asked)
                if each is not None:
                    self._tell(each)
            except StopIteration:
                self._more = False
            except Refusal as refusal:
                self._refuse(refusal)
            if not self._more or self._turn.overdue():
                return

    def _tell(self, asked: Asked) -> None:
        direct = self._free_one(asked.vhost)
        with asked.naming:
            direct.tell(asked.method)
        self._waiting[direct] = asked

    def _refuse(self, refusal: Refusal) -> None:
        """Nothing is asked after what was refused."""
        self._refusals.append(refusal)
        self._more = False

    def _free_one(self, vhost: str) -> Direct:
        free = self._free.get(vhost)
        if free:
            return free.pop()
        if len(self._open) >= AT_ONCE:
            self._close_one()
        direct = self._connect(vhost)
        direct.open(self._hear)
        self._open[direct] = None
        return direct

    def _close_one(self) -> None:
        """Of another vhost: not all of them wait."""
        direct = next(free for free in self._free.values() if free).pop()
        del self._open[direct]
        direct.close()

    def _hear(self, direct: Direct) -> None:
        self._heard[direct] = None
        self._answered.set()

    def _take_answers(self) -> None:
        heard, self._heard = self._heard, {}
        for direct in heard:
            if direct.waits or direct not in self._waiting:
                continue
            asked = self._waiting.pop(direct)
            self._free.setdefault(asked.vhost, []).append(direct)
            try:
                with asked.naming:
                    direct.answers()
            except Refusal as refusal:
                self._refuse(refusal)
