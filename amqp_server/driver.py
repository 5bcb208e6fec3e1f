"""The task that runs turns without a socket: when work was scheduled outside of a turn, or a timer is due."""

from __future__ import annotations

from collections.abc import Callable

import trio

from amqp_server.broker.timers import Timers
from amqp_server.turn import Turn


class Driver:
    """Made first, because timers and the turn wake it."""

    def __init__(self) -> None:
        self._woken = trio.Event()

    def wake(self) -> None:
        """Run a turn soon, and look again when the next timer is due."""
        self._woken.set()

    async def run(self, turn: Turn, timers: Timers, clock: Callable[[], int]) -> None:
        """Run turns until cancelled."""
        while True:
            turn.run(timers.run, clock())
            # Work that was scheduled within this turn is done.
            self._woken = trio.Event()
            due = timers.next_ms
            if due is None:
                await self._woken.wait()
            else:
                with trio.move_on_after(max(0.0, (due - clock()) / 1000)):
                    await self._woken.wait()
