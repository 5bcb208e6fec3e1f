"""The task that does work too long for the end of a turn: large layers, which it fills in small steps, long
deletions, a full disk, housekeeping.

When the map or the disk is full nothing is lost: the layer stays, publishers must be stopped (`on_full`),
and it is tried again every second. Only settles free space, and they are in layers after the one that does
not fit. Settles of turns that only settled are therefore committed ahead. The submissions of one turn, from
one await to the next, stay together, because a dead-lettered message is an append here and a settle there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import trio
from outcome import Error, Outcome, Value

from persistence.errors import StorageFull
from persistence.layer import Layer
from persistence.marks import DeliveredMarks
from persistence.ports import Job
from persistence.reports import to_this_loop
from persistence.worker import Report, Worker

if TYPE_CHECKING:
    from persistence.commit import Begun, Commit

RETRY_SECONDS = 1.0
TEND_SECONDS = 1.0
#: Time after which a layer in the log is written to the store, s.
STORE_SECONDS = 1.0


class CommitTask:
    """Belongs to a Commit, and shares its state: they never work at the same time."""

    def __init__(self, commit: Commit, marks: DeliveredMarks | None, on_full: Callable[[bool], None]) -> None:
        self._commit = commit
        self._marks = marks
        self._on_full = on_full
        self._loop: trio.lowlevel.TrioToken | None = None
        self._wake = trio.Event()
        self._tended = time.monotonic()
        #: Set when the worker is done; and its outcome.
        self._worked = trio.Event()
        self._outcome: Outcome[None] = Value(None)

    def wake(self) -> None:
        """Let `run` look for work."""
        self._wake.set()

    def when_the_turn_is_over(self, call: Callable[[], None]) -> None:
        """Call once when the present task reaches an await."""
        assert self._loop is not None
        self._loop.run_sync_soon(call, idempotent=True)

    def work_is_done(self, outcome: Outcome[None]) -> None:
        """The worker is done with a job of this task."""
        self._outcome = outcome
        self._worked.set()

    async def barrier(self) -> None:
        """Wait until all earlier submissions are durable."""
        durable = trio.Event()
        self._commit.request(durable.set)
        await durable.wait()

    async def run(self, in_turn: Callable[..., None] | None = None, report: Report | None = None) -> None:
        """Commit until `stop`; one turn calls all done()s of a transaction. Raises CommitFailed."""
        commit = self._commit
        commit.in_turn = in_turn or commit.own_turn
        self._loop = trio.lowlevel.current_trio_token()
        worker = commit.worker = Worker(["commit"], report or to_this_loop(), commit.synced)
        try:
            await self._run()
        finally:
            commit.worker = None
            commit.by_task = True
            await self._let_go()
            worker.stop()

    async def _run(self) -> None:
        commit = self._commit
        while True:
            await self._called()
            stopping = commit.stopping and not commit.pending.held
            commit.by_task = True
            await self._commit_all()
            await self._tend()
            commit.by_task = False
            if stopping and not commit.wanted:
                if self._marks is not None:
                    await trio.to_thread.run_sync(self._marks.flush)
                return
            if commit.wanted and commit.pending.oldest and not commit.pending.is_held_back:
                # Later layers go to the log again, if they are small.
                commit.begin_oldest()

    async def _called(self) -> None:
        commit = self._commit
        held = commit.pending.held
        due = not commit.pending.is_held_back and (commit.wanted or commit.store.has_erasures())
        # A commit that the end of a turn left to this task.
        due = due or (commit.begun is not None and not commit.working)
        if not (due or (commit.stopping and not held)):
            self._wake = trio.Event()
            # Marks are flushed and pages given back within a second, even without commits.
            with trio.move_on_after(TEND_SECONDS):
                await self._wake.wait()

    async def _let_go(self) -> None:
        """Finish or abort the begun commit: no task waits for it any more."""
        commit = self._commit
        begun, commit.begun = commit.begun, None
        if commit.logging is not None:
            await self._work_done()
        if begun is None or begun.transaction is None:
            return
        if commit.working:
            await self._work_done()
            if isinstance(self._outcome, Value):
                begun.transaction.finish()
                return
        begun.transaction.abort()

    async def _tend(self) -> None:
        commit = self._commit
        now = time.monotonic()
        if now - self._tended >= TEND_SECONDS:
            self._tended = now
            slow = commit.store.tend()
            if slow is not None:
                await trio.to_thread.run_sync(slow)
            if self._marks is not None and self._marks.changed:
                await trio.to_thread.run_sync(self._marks.flush)

    async def _commit_all(self) -> None:
        """Commit the present layers to the store; later ones wait for the next round."""
        commit = self._commit
        commit.wanted = commit.urgent = False
        pending = commit.pending
        last = pending.open
        commit.anticipation.over(in_vain=bool(last.alone))
        if commit.logging is not None:
            layer, commit.logging = commit.logging, None
            await self._work_done()
            if isinstance(self._outcome, Error):
                commit.not_logged(layer, self._outcome)
            else:
                commit.logged(layer)
        if commit.begun is not None:
            begun, commit.begun = commit.begun, None
            await self._see_through(begun)
        now = time.monotonic()
        # Even if nothing waits: continue unfinished erasures, and store layers that only the log has.
        more = commit.store.has_erasures()
        if pending.logged is not None and (commit.stopping or now - commit.stored >= STORE_SECONDS):
            more = True
        while (
            last in pending.layers
            and not pending.is_held_back
            and (last or last.told() or pending.unsynced or more)
        ):
            # A layer without changes is in the store when the log has nothing that the store lacks.
            behind = pending.oldest.to_store and pending.logged is not None
            if not (pending.oldest or behind or more or commit.store.has_erasures()):
                commit.durable(pending.take())
                continue
            more = False
            commit.stored = now
            layer = pending.take_all()
            await self._see_through(commit.fill(layer))

    async def _see_through(self, begun: Begun) -> None:
        commit = self._commit
        layer = begun.layer
        try:
            await self._write(begun)
        except StorageFull:
            commit.full = True
            self._on_full(True)
            layer = await self._commit_when_it_fits()
            commit.full = False
            self._on_full(False)
        commit.durable(layer)

    async def _write(self, begun: Begun) -> None:
        commit = self._commit
        transaction = begun.transaction
        try:
            for job in begun.steps:
                if job is None:
                    await trio.lowlevel.checkpoint()
                else:
                    await self._do(job)
            assert transaction is not None
            if not commit.working:
                commit.sync(begun)
            await self._work_done()
            self._outcome.unwrap()
        except BaseException:
            if transaction is not None:
                transaction.abort()
            raise
        transaction.finish()

    async def _do(self, job: Job) -> None:
        self._commit.give(job)
        await self._work_done()
        self._outcome.unwrap()

    async def _work_done(self) -> None:
        """Wait for the worker. Neither the wait nor the worker's job can be cancelled."""
        while self._commit.working:
            self._worked = trio.Event()
            with trio.CancelScope(shield=True):
                await self._worked.wait()

    async def _commit_when_it_fits(self) -> Layer:
        commit = self._commit
        while True:
            await trio.sleep(RETRY_SECONDS)
            behind = commit.pending.behind()
            await self._commit_erasing(behind)
            layer = commit.pending.merge(behind)
            with suppress(StorageFull):
                await self._write(commit.fill(layer))
                return layer

    async def _commit_erasing(self, layers: list[Layer]) -> None:
        """Commit the layers that only erase, ahead of the oldest layer.

        The erasures also stay in their layers: settling twice is the same as once, and batches that are not
        written yet need it.
        """
        commit = self._commit
        erasing = commit.pending.erasures(layers, commit.store.groups.snapshot_index)
        # An empty transaction follows, so that LMDB can use the freed pages.
        turns = 2
        while turns or commit.store.has_erasures():
            try:
                await self._write(commit.fill(erasing))
            except StorageFull:
                if not commit.store.enlarge():
                    return
            else:
                erasing = Layer()
                turns = max(turns - 1, 0)
