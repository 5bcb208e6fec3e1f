"""The task that runs turns without an event of a socket: for work scheduled outside of a turn, for due
timers, and for work that earlier turns had no time for.
"""

from __future__ import annotations

from typing import Protocol

import trio

from amqp_server.broker.timers import Timers
from amqp_server.turn import Turn
from quorum_queue.clock import Clock


class Clients(Protocol):
    """See connection.poller."""

    def serve_light(self) -> None:
        """Serve the connections whose work is short."""


class Driver:
    """Runs these turns. The node makes it first, because timers and the turn wake it."""

    def __init__(self) -> None:
        self._woken = trio.Event()
        self._wanted = True

    def wake(self) -> None:
        """Run a turn soon."""
        self._wanted = True
        self._woken.set()

    def timer_changed(self) -> None:
        """The next timer is due earlier: look it up again."""
        self._woken.set()

    async def run(self, turn: Turn, timers: Timers, clock: Clock, clients: Clients | None = None) -> None:
        """Run turns until cancelled."""
        late = False
        while True:
            if (turn.behind or late) and clients is not None:
                # Light connections have waited for one turn; they must not wait for two.
                clients.serve_light()
            due = timers.next_ms
            now_ms = clock.monotonic_ms()
            if self._wanted or turn.behind or (due is not None and due <= now_ms):
                turn.run(_begin, turn, timers, now_ms)
            # The turn has handled wakes that came while it ran.
            self._wanted = False
            self._woken = trio.Event()
            due = timers.next_ms
            # More timers were due than a turn has time for.
            late = due is not None and due <= now_ms
            if turn.behind or late:
                # Let other connections have their turns first.
                await trio.lowlevel.checkpoint()
                continue
            if due is None:
                await self._woken.wait()
            else:
                with trio.move_on_after(max(0.0, (due - clock.monotonic_ms()) / 1000)):
                    await self._woken.wait()


def _begin(turn: Turn, timers: Timers, now_ms: int) -> None:
    timers.run(now_ms, turn.overdue)
    turn.catch_up()
