"""Commits of a node: the decisions of persistence/commits/committing.py, with two threads and a task.

One thread writes to the log, the other one to the store, so that a record of the log never waits for a
transaction. The end of a turn begins a commit if none is under way (`turn_begins`, `turn_ends`), and the
end of that commit begins the next: no task is woken in between. Longer work is left for the commit task
(persistence/commits/commit_task.py).
"""

import time
from collections.abc import Callable

from persistence.commits.commit_task import CommitTask
from persistence.commits.committing import Committing, never_full
from persistence.delivered_marks import DeliveredMarks
from persistence.ports import Store


class Commit(Committing):
    def __init__(
        self,
        store: Store,
        marks: DeliveredMarks | None = None,
        *,
        on_full: Callable[[bool], None] = never_full,
        ack_wait_s: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(store, on_full=on_full, ack_wait_s=ack_wait_s, now=now)
        task = CommitTask(self, marks)
        self.wake = task.wake
        #: See CommitTask.
        self.run = task.run
        self.barrier = task.barrier

    def stop(self) -> None:
        """Let `run` return after a last commit."""
        self.stopping = True
        self.wake()
