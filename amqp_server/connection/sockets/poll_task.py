"""The task that waits for all sockets at once.

It waits as a normal Trio task (`serve`), or, if the node has the process for itself, in the poller's own
epoll set (`serve_directly`), which then contains Trio's set. Then a turn that concerns no task needs no step
of Trio's loop; such a step is a third of the cost of a message that comes alone.
"""

from __future__ import annotations

import select
from time import monotonic

import trio

from amqp_server.connection.sockets.poller import Poller
from persistence.loop_calls import to_this_loop


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
    """Serve the sockets without steps of Trio's loop; needs Trio's own clock, and no other node in this Trio
    loop: while nothing is ready, no task has a step.

    A turn may do everything that wakes a task: set events, cancel waiting tasks, call `run_sync_soon`.
    Changes that wake no task are noticed only after the next wake: so a turn must not move the deadline of a
    scope, nor cancel only this task.
    """
    trio_fd = _trio_fd()
    if trio_fd is None:
        await serve(poller)
        return
    scheduled = Scheduled()
    trio.lowlevel.add_instrument(scheduled)
    try:
        poller.include(trio_fd)
        # Tasks that were scheduled before the instrument was added have their steps together with this task's
        # next one, maybe after it.
        await trio.lowlevel.checkpoint()
        while True:
            # All other tasks have a step.
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
    """Return the descriptor of the epoll set that Trio waits for. It is no public API: other versions of Trio
    may lack it.
    """
    core = getattr(trio, "_core", None)
    runner = getattr(getattr(getattr(core, "_run", None), "GLOBAL_RUN_CONTEXT", None), "runner", None)
    found = getattr(getattr(runner, "io_manager", None), "_epoll", None)
    return found.fileno() if isinstance(found, select.epoll) else None
