"""The logs of a node's streams, and the threads that write and read them.

One thread writes all logs. It waits for the disk, but nothing waits for it, because its data is in the
journal. Other threads read. The loop hands out jobs, and gets the result of each in a turn. A log has one
writing job at a time.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import trio
from outcome import Error, Outcome, Value, capture

from persistence.environment import STREAMS
from persistence.errors import FULL, CommitFailed
from persistence.loop_calls import to_this_loop
from persistence.own_process import SHORT
from persistence.streams.compaction import Throttle
from persistence.streams.compression import NONE
from persistence.streams.deduplication_file import Keeper
from persistence.streams.files import DiskFiles, Files
from persistence.streams.log import StreamLog
from persistence.worker import Worker

logger = logging.getLogger("mqd.streams")

#: Pause between two tries to write on a full disk.
RETRY_SECONDS = 1.0
#: Time for reporting finished jobs before other tasks run.
STEP_S = 0.004
#: Maximum number of reads for each thread that are handed out and not reported yet, done or not. A busy loop
#: takes the results later than the threads read them, and they stay in memory until then.
UNTOLD_MAX = 8

T = TypeVar("T")


class _Job:
    """A job for a thread; a writing job is reported only when it has a result."""

    __slots__ = ("_call", "counted", "done", "outcome", "writes")

    def __init__(self, call: Callable[[], Any], done: Callable[[Any], None], *, writes: bool) -> None:
        self._call = call
        self.done = done
        self.writes = writes
        #: True for a read that was handed out to a thread.
        self.counted = False
        self.outcome: Outcome[Any] = Value(None)

    def run(self) -> _Job:
        self.outcome = capture(self._call)
        return self


class StreamStore:
    """All calls on the loop's thread. Unless `run` runs, jobs are done at once."""

    def __init__(
        self,
        data_directory: Path,
        *,
        readers: int = 2,
        compaction_bytes_per_s: int = 16 << 20,
        files: Files | None = None,
        on_full: Callable[[bool], None] = lambda full: None,
    ) -> None:
        """`on_full` is called when the disk becomes full, and when it no longer is."""
        self._files = files or DiskFiles()
        self._directory = data_directory / STREAMS
        self._readers_count = readers
        self._compaction_bytes_per_s = compaction_bytes_per_s
        self._compactor: Worker[_Job] | None = None
        self._stopping = threading.Event()
        self._on_full = on_full
        self._writer: Worker[_Job] | None = None
        self._readers: Worker[_Job] | None = None
        #: Reads, in order, that were not handed out to the threads yet.
        self._to_read: deque[_Job] = deque()
        #: Number of reads that were handed out and are not reported yet.
        self._untold = 0
        self._finished: deque[_Job] = deque()
        #: Jobs that found the disk full.
        self._waiting: list[_Job] = []
        #: Jobs that could open no file, because the process has no descriptor left; each with the call that
        #: hands it out again.
        self._short: list[Callable[[], None]] = []
        self._full = False
        self._called = trio.Event()

    def log(
        self, queue_id: int, segment_bytes: int, *, keeper: Keeper | None = None, codec: str = NONE
    ) -> StreamLog:
        """Return a log; the caller has to open it."""
        return StreamLog(
            self._files, self._directory / str(queue_id), segment_bytes, keeper=keeper, codec=codec
        )

    def keep(self, queue_ids: Iterable[int], may_go: Callable[[int], bool] = lambda queue_id: True) -> None:
        """Delete the logs of all other queues that may be deleted. At start."""
        kept = {str(queue_id) for queue_id in queue_ids}
        for name in self._files.names(self._directory):
            if name not in kept and name.isdecimal() and may_go(int(name)):
                self._files.remove_all(self._directory / name)

    def write(self, call: Callable[[], T], done: Callable[[T], None]) -> None:
        """Let the writing thread do this; `done` is called in a turn.

        On a full disk it is tried again until it succeeds. Any other failure of the disk ends the node.
        """
        job = _Job(call, done, writes=True)
        if self._writer is None:
            job.run()
            done(job.outcome.unwrap())
        else:
            self._writer.give(job.run)

    def compact(self, call: Callable[[Throttle], T], done: Callable[[Outcome[T]], None]) -> None:
        """Let the compacting thread do this, one job after the other; `done` is called in a turn."""
        throttle = Throttle(self._compaction_bytes_per_s, self._stopping)
        job = _Job(lambda: call(throttle), done, writes=False)
        if self._compactor is None:
            job.run()
            done(job.outcome)
        else:
            self._compactor.give(job.run)

    def read(self, call: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        """Let a reading thread do this; `done` is called in a turn."""
        job = _Job(call, done, writes=False)
        if self._readers is None:
            job.run()
            done(job.outcome)
        else:
            self._to_read.append(job)
            self._give_reads()

    def _give_reads(self) -> None:
        """Hand out waiting reads to the threads, as far as they may have more."""
        readers = self._readers
        while self._to_read and readers is not None and self._untold < UNTOLD_MAX * self._readers_count:
            job = self._to_read.popleft()
            job.counted = True
            self._untold += 1
            readers.give(job.run)

    async def run(self, in_turn: Callable[..., None]) -> None:
        """Report finished jobs, each in a turn of the node, until cancelled. Raises CommitFailed."""
        report, done = to_this_loop(), self._report
        names = [f"stream-reader-{number}" for number in range(self._readers_count)]
        writer = self._writer = Worker(["streams"], report, done)
        readers = self._readers = Worker(names, report, done)
        compactor = self._compactor = Worker(["stream-compactor"], report, done)
        try:
            while True:
                with trio.move_on_after(RETRY_SECONDS if self._waiting or self._short else float("inf")):
                    await self._called.wait()
                self._called = trio.Event()
                if not self._finished:
                    waiting, self._waiting = self._waiting, []
                    for job in waiting:
                        writer.give(job.run)
                    short, self._short = self._short, []
                    for give in short:
                        give()
                began = trio.current_time()
                while self._finished:
                    self._finish(self._finished.popleft(), in_turn)
                    if trio.current_time() - began > STEP_S:
                        # Let other tasks run in between: many reads may finish at the same time.
                        await trio.lowlevel.checkpoint()
                        began = trio.current_time()
        finally:
            self._writer, self._readers, self._compactor = None, None, None
            self._untold = 0
            self._stopping.set()
            for worker in (writer, readers, compactor):
                worker.stop()

    def _report(self, outcome: Outcome[_Job]) -> None:
        self._finished.append(outcome.unwrap())
        self._called.set()

    def _finish(self, job: _Job, in_turn: Callable[..., None]) -> None:
        outcome = job.outcome
        if job.counted:
            self._untold -= 1
            self._give_reads()
        error = outcome.error if isinstance(outcome, Error) else None
        if isinstance(error, OSError) and error.errno in SHORT:
            self._try_again(job, error)
            return
        if not job.writes:
            in_turn(job.done, outcome)
            return
        try:
            result = outcome.unwrap()
        except OSError as error:
            if error.errno not in FULL:
                raise CommitFailed(f"a stream cannot be written: {error}") from error
            self._waiting.append(job)
            self._tell_full(True)
        else:
            in_turn(job.done, result)
            self._tell_full(bool(self._waiting))

    def _try_again(self, job: _Job, error: OSError) -> None:
        """Hand the job out again after a pause: nothing is wrong with the disk."""
        if not self._short:
            logger.warning("a stream file can't be opened at the moment, the node tries again: %s", error)
        compactor = None if job.counted else self._compactor
        worker = self._writer if job.writes else compactor

        def give() -> None:
            if worker is not None:
                worker.give(job.run)
            else:
                job.counted = False
                self._to_read.append(job)
                self._give_reads()

        self._short.append(give)

    def _tell_full(self, full: bool) -> None:
        if full != self._full:
            self._full = full
            self._on_full(full)
