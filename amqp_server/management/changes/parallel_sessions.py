"""Many declarations at a time, made as clients make them: by several connections of the management API
itself.

In a cluster each method waits for a round of its nodes. Free connections take the next methods, many in one
turn: with a turn for each of 10,000 queues, the node would flush the links, and do all other work of a turn,
10,000 times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import trio
from pamqp import base

from amqp_server.management.changes.internal_session import Direct
from amqp_server.management.request.answer import Refusal
from amqp_server.management.request.time_slices import Rest
from amqp_server.turn import Turn

#: Maximum number of connections, and of methods that wait for their answers.
AT_ONCE = 128
#: Methods of one turn: every node has to make their changes in one turn.
OF_A_TURN = 16


class Asked(NamedTuple):
    """A method for the broker."""

    vhost: str
    method: base.Frame
    #: Errors raised within this context become a Refusal.
    naming: AbstractContextManager[None]


class Together:
    """Use as a context manager: its exit closes the connections."""

    def __init__(self, turn: Turn, connect: Callable[[str], Direct]) -> None:
        """`connect` returns a connection to a vhost that is not open yet."""
        self._turn = turn
        self._connect = connect
        #: Idle connections by vhost.
        self._free: dict[str, list[Direct]] = {}
        self._open: dict[Direct, None] = {}
        self._waiting: dict[Direct, Asked] = {}
        #: Connections that have got data from the broker since their answers were taken.
        self._heard: dict[Direct, None] = {}
        self._answered = trio.Event()
        self._refusals: list[Refusal] = []
        #: True while there are more methods to send.
        self._more = True

    def __enter__(self) -> Together:
        return self

    def __exit__(self, *error: Any) -> None:
        for direct in self._open:
            direct.close()

    async def ask(self, asked: Iterator[Asked | None], rest: Rest) -> None:
        """Send all these methods in this order; None is an item that needs none. A refusal is raised after
        the methods before it have their answers.
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
        """Note the refusal; no further methods are sent."""
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
        """Close an idle connection of another vhost; not all connections are waiting."""
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
