"""The task that waits for all sockets at once.

It waits as a task of Trio's does (`serve`), or, where the node has the process to itself, in the poller's own
set (`serve_directly`): Trio's set is a part of that one then. A turn that concerns no task costs no step of
Trio's loop, which is a third of all that a message costs that comes alone.
"""

from __future__ import annotations

import select
from time import monotonic

import trio

from amqp_server.connection.poller import Poller
from persistence.reports import to_this_loop


async def serve(poller: Poller) -> None:
    """Serve the sockets of the poller until cancelled."""
    try:
        while True:
            await trio.lowlevel.wait_readable(poller.fileno())
            while poller.serve():
                # Let other tasks run first.
                await trio.lowlevel.checkpoint()
    finally:
        trio.lowlevel.notify_closing(poller.fileno())
        poller.close(to_this_loop())


async def serve_directly(poller: Poller) -> None:
    """The same, with Trio's clock and without another node in this Trio loop: while nothing is ready, no task
    has a step.

    A turn may do all that wakes a task: set events, cancel tasks that wait, call `run_sync_soon`. What
    concerns no task yet is seen after the next wake only: a turn must not move the deadline of a scope, nor
    cancel this task alone.
    """
    trio_fd = _trio_fd()
    if trio_fd is None:
        await serve(poller)
        return
    scheduled = Scheduled()
    trio.lowlevel.add_instrument(scheduled)
    try:
        poller.include(trio_fd)
        # Those that were scheduled before it was noted have their steps with this task's next one, and maybe
        # after it.
        await trio.lowlevel.checkpoint()
        while True:
            # All others have a step.
            await trio.lowlevel.checkpoint()
            left_s = trio.lowlevel.current_statistics().seconds_to_next_deadline
            poller.serve_until(monotonic() + left_s, scheduled.tasks)
    finally:
        trio.lowlevel.remove_instrument(scheduled)
        poller.close(to_this_loop())


class Scheduled(trio.abc.Instrument):
    """The tasks that wait for their next step."""

    def __init__(self) -> None:
        self.tasks: set[trio.lowlevel.Task] = set()

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self.tasks.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.tasks.discard(task)


def _trio_fd() -> int | None:
    """Return the descriptor of the epoll set that Trio waits for. It is not public: a version of Trio may
    have none.
    """
    core = getattr(trio, "_core", None)
    runner = getattr(getattr(getattr(core, "_run", None), "GLOBAL_RUN_CONTEXT", None), "runner", None)
    found = getattr(getattr(runner, "io_manager", None), "_epoll", None)
    return found.fileno() if isinstance(found, select.epoll) else None
