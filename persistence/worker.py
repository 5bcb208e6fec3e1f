"""A thread that runs one job after the other, and reports on Trio's loop when each is done.

`trio.to_thread.run_sync` takes 107 µs and, with the task that waits for it, three steps of the loop. A commit
of a few messages needs less than that for all else, and there are as many commits as round trips between
nodes.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

import trio
from outcome import Outcome, capture

Job = Callable[[], None]


class Worker:
    def __init__(
        self, name: str, loop: trio.lowlevel.TrioToken, done: Callable[[Outcome[None]], None]
    ) -> None:
        """`done` is called on the loop, between two tasks, with the outcome of the job. It must not raise."""
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._loop = loop
        self._done = done
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def give(self, job: Job) -> None:
        self._jobs.put(job)

    def stop(self) -> None:
        """Stop after the last job."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            # A loop that has ended needs no report.
            with suppress(trio.RunFinishedError):
                self._loop.run_sync_soon(self._done, capture(job))
            # A waiting thread must not keep the last job alive.
            del job
