"""Threads that run one job after the other, and report each finished job to the loop.

`trio.to_thread.run_sync` takes 107 µs and, with the task that waits for it, three steps of the loop. A commit
of a few messages needs less than that for everything else, and there are as many commits as round trips
between nodes.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

from outcome import Outcome, capture

#: Makes a call on the loop, from any thread, and raises nothing: see persistence.loop_calls, and `report` of
#: the node's poller, which makes it part of a turn.
Report = Callable[[Callable[[], None]], object]


T = TypeVar("T")


class Worker(Generic[T]):
    def __init__(self, names: Sequence[str], report: Report, done: Callable[[Outcome[T]], None]) -> None:
        """Start a thread for each of these names. They share the jobs: a free thread does the next one, so
        that no job waits behind one that takes long. `done` is called on the loop, between two tasks, with
        the outcome of a job. It must not raise.
        """
        self._jobs: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._names = names
        self._report = report
        self._done = done
        for name in names:
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def give(self, job: Callable[[], T]) -> None:
        self._jobs.put(job)

    def stop(self) -> None:
        """Stop after the last job."""
        for _ in self._names:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._report(partial(self._done, capture(job)))
            # A waiting thread must not keep the last job alive.
            del job
