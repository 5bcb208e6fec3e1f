"""The task that runs the turns which no socket begins: when something was scheduled outside of one, or a timer is due."""

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
            # What woke it within its own turn is done.
            self._woken = trio.Event()
            due = timers.next_ms
            if due is None:
                await self._woken.wait()
            else:
                with trio.move_on_after(max(0.0, (due - clock()) / 1000)):
                    await self._woken.wait()
