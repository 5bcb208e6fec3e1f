"""Lets tasks wait for sockets of strangers, and resumes only a few at a time.

Trio resumes all tasks with ready sockets in one pass of its loop. If the clients of a thousand handshakes
close their sockets at once, all these tasks end in the same pass, which takes 40 ms, and no other task runs
meanwhile. So these sockets are in a separate epoll set, which returns a few of them for each pass.
"""

from __future__ import annotations

import select
from typing import Final

import trio

#: Tasks that resume in one pass: each may end a connection, which takes 50 to 100 µs.
MOST: Final = 16


class SocketWaits:
    """See quorum_queue.links.wire.Waits. `run` must be running."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._waiting: dict[int, trio.lowlevel.Task] = {}

    async def run(self) -> None:
        """Resume tasks until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self._wake_some()
                # The resumed tasks, and all other tasks, run before the next ones are resumed.
                await trio.lowlevel.checkpoint()
        finally:
            trio.lowlevel.notify_closing(self._epoll.fileno())
            self._epoll.close()

    def _wake_some(self) -> None:
        for fileno, _ in self._epoll.poll(0, MOST):
            self._epoll.unregister(fileno)
            trio.lowlevel.reschedule(self._waiting.pop(fileno))

    async def readable(self, fileno: int) -> None:
        await self._wait(fileno, select.EPOLLIN)

    async def writable(self, fileno: int) -> None:
        await self._wait(fileno, select.EPOLLOUT)

    async def _wait(self, fileno: int, events: int) -> None:
        def abort(_: object) -> trio.lowlevel.Abort:
            del self._waiting[fileno]
            if not self._epoll.closed:
                self._epoll.unregister(fileno)
            return trio.lowlevel.Abort.SUCCEEDED

        if fileno < 0:
            raise trio.ClosedResourceError
        if self._epoll.closed:
            # The node stops, and cancels this task as well.
            await trio.sleep_forever()
        self._epoll.register(fileno, events)
        self._waiting[fileno] = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)


__all__ = ["MOST", "SocketWaits"]
