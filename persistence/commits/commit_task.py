"""The task of a node's commits. It does what is too long for the end of a turn, or has its own time: large
layers, which are filled in small steps, long deletions, another try on a full disk, the last commit.

Housekeeping has a task of its own: no commit waits while the marks are flushed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from persistence.commits.committing import Pause
from persistence.delivered_marks import DeliveredMarks
from persistence.loop_calls import to_this_loop
from persistence.worker import Report, Worker

if TYPE_CHECKING:
    from persistence.commits.commit import Commit

RETRY_SECONDS = 1.0
TEND_SECONDS = 1.0
#: Time after which a layer in the log is written to the store, s.
STORE_SECONDS = 1.0


class CommitTask:
    """Drives a Commit."""

    def __init__(self, commit: Commit, marks: DeliveredMarks | None) -> None:
        self._commit = commit
        self._marks = marks
        self._wake = trio.Event()

    def wake(self) -> None:
        """Let `run` look for work."""
        self._wake.set()

    async def barrier(self) -> None:
        """Wait until all earlier submissions are durable."""
        durable = trio.Event()
        self._commit.request(durable.set)
        await durable.wait()

    async def run(self, in_turn: Callable[..., None] | None = None, report: Report | None = None) -> None:
        """Commit until `stop`; one turn calls all done()s of a commit. Raises CommitFailed."""
        commit = self._commit
        commit.in_turn = in_turn or commit.own_turn
        loop = trio.lowlevel.current_trio_token()
        commit.after_turn = lambda call: loop.run_sync_soon(call, idempotent=True)
        report = report or to_this_loop()
        log = commit.log_jobs = Worker(["log"], report, commit.log_done)
        store = commit.store_jobs = Worker(["commit"], report, commit.store_done)
        # There may be requests already.
        self._wake.set()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tend)
                await self._commit_until_stop()
                nursery.cancel_scope.cancel()
        finally:
            commit.ending = True
            commit.log_jobs = commit.after_turn = None
            await self._let_go()
            log.stop()
            store.stop()
        if commit.failure is not None:
            raise commit.failure
        if self._marks is not None:
            await trio.to_thread.run_sync(self._marks.flush)

    async def _commit_until_stop(self) -> None:
        commit = self._commit
        while commit.failure is None:
            # What the log has goes to the store within a second or two, even without commits.
            with trio.move_on_after(TEND_SECONDS):
                await self._wake.wait()
            self._wake = trio.Event()
            if commit.paused is Pause.MOMENT:
                commit.go_on()
            elif commit.paused is Pause.RETRY:
                await trio.sleep(RETRY_SECONDS)
                commit.go_on()
            commit.proceed(to_store=time.monotonic() - commit.stored >= STORE_SECONDS)
            if commit.stopping and not commit.pending.held and commit.is_idle:
                return

    async def _let_go(self) -> None:
        """Wait for the threads, since neither this nor a job can be cancelled. Then undo what is not on the
        disk.
        """
        commit = self._commit
        while commit.working:
            self._wake = trio.Event()
            with trio.CancelScope(shield=True):
                await self._wake.wait()
        commit.end_transaction()

    async def _tend(self) -> None:
        """Flush marks, give pages back, reserve room on the disk."""
        try:
            while True:
                await trio.sleep(TEND_SECONDS)
                slow = self._commit.store.tend()
                if slow is not None:
                    await trio.to_thread.run_sync(slow)
                if self._marks is not None and self._marks.changed:
                    await trio.to_thread.run_sync(self._marks.flush)
        except trio.Cancelled:
            raise
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            self._commit.fail(error)
