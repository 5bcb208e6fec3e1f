"""A thread that runs one job after the other, and has the loop told when each is done.

`trio.to_thread.run_sync` takes 107 µs and, with the task that waits for it, three steps of the loop. A commit
of a few messages needs less than that for all else, and there are as many commits as round trips between
nodes.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

import trio
from outcome import Outcome, capture

from persistence.ports import Job

#: Makes a call on the loop, from any thread: `run_sync_soon` of Trio's token, or `report` of the node's poller, which
#: makes it part of a turn.
Report = Callable[[Callable[[], None]], object]


class Worker:
    def __init__(self, name: str, report: Report, done: Callable[[Outcome[None]], None]) -> None:
        """`done` is called on the loop, between two tasks, with the outcome of the job. It must not raise."""
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._report = report
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
                self._report(partial(self._done, capture(job)))
            # A waiting thread must not keep the last job alive.
            del job
