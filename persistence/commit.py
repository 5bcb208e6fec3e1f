"""Commits: all waiting changes go in one transaction, with one sync.

The transaction is filled on the loop's thread and synced in a worker thread; meanwhile the next layer fills.
Nothing is called durable before the sync has returned.

A small layer is written to the write-ahead log (persistence/wal.py) and called durable. LMDB gets it later,
with others: when the log is half full, after a second, or with a layer that is too large for the log.

The end of a turn begins a commit if none is under way (`turn_begins`, `turn_ends`), and the end of that
commit begins the next: no task is woken in between. The commit task does the longer work: large layers, which
it fills in small steps, long deletions, a full disk, housekeeping.

When the map or the disk is full nothing is lost: the layer stays, publishers must be stopped (`on_full`),
and it is tried again every second. Only settles free space, and they are in layers after the one that does
not fit. Settles of turns that only settled are therefore committed ahead. The submissions of one turn, from
one await to the next, stay together, because a dead-lettered message is an append here and a settle there.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import trio
from outcome import Error, Outcome, Value, capture

from persistence.anticipation import Anticipation
from persistence.errors import StorageFull
from persistence.holds import Holds
from persistence.layer import Layer, Lone
from persistence.marks import DeliveredMarks
from persistence.ports import Job, Store, Transaction, record_of
from persistence.worker import Report, Worker

RETRY_SECONDS = 1.0
TEND_SECONDS = 1.0
#: Time after which a layer in the log is written to the store, s.
STORE_SECONDS = 1.0


class Begun(NamedTuple):
    """The commit of the oldest layer."""

    layer: Layer
    #: The transaction; None if it could not be begun: then the steps raise the reason.
    transaction: Transaction | None
    #: The steps left before the sync.
    steps: Iterator[Job | None]


#: Bounds of the histogram of sync times, s.
SYNC_BOUNDS_S = (0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Syncs:
    """Number of commits to a disk, and their durations."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        #: How many took at most each bound, and longer than the bound before it.
        self.by_bound = [0] * (len(SYNC_BOUNDS_S) + 1)

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.by_bound[bisect_left(SYNC_BOUNDS_S, seconds)] += 1


class Commit:
    def __init__(
        self,
        store: Store,
        marks: DeliveredMarks | None = None,
        *,
        on_full: Callable[[bool], None] = lambda full: None,
        ack_wait_s: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ack_wait_s` is the time for which a commit may wait for acks that make it needless, by the clock
        `now`.
        """
        self._on_full = on_full
        self._anticipation = Anticipation(ack_wait_s, now)
        #: True if the poller looks for acks after this turn, and calls `begin_put_off` then.
        self.may_wait = False
        #: True while the requested commit waits for acks.
        self.put_off = False
        #: True if not only commits of messages that came alone were requested.
        self._urgent = False
        #: Runs its first argument as one turn of the node, with all its consequences.
        self._in_turn: Callable[..., None] = self._own_turn
        self._store = store
        self._pending = store.pending
        self._holds = Holds(store.pending)
        self._marks = marks
        self._loop: trio.lowlevel.TrioToken | None = None
        self._worker: Worker[None] | None = None
        self._wake = trio.Event()
        self._wanted = False
        self._stopping = False
        self._full = False
        self._tended = self._stored = time.monotonic()
        #: True within a turn: its end begins a commit.
        self._turning = False
        #: True while the commit task makes the commits itself.
        self._by_task = False
        #: The commit that the end of a turn began: the worker has it, or it is left for the task.
        self._begun: Begun | None = None
        #: The layer that the worker is writing to the log.
        self._logging: Layer | None = None
        #: True if the worker has a job, and if that is a sync.
        self._working = self._syncing = False
        #: For the task: set when the worker is done; and its outcome.
        self._worked = trio.Event()
        self._outcome: Outcome[None] = Value(None)
        self.syncs = Syncs()
        self._sync_began = 0.0

    def request(
        self, done: Callable[[], None] | None = None, *, to_store: bool = False, alone: Lone | None = None
    ) -> None:
        """Commit all submissions so far.

        `done` is called when they are durable; with `to_store`, when they are in the store, for readers that
        do not see the log. `alone` is the one message that was submitted, which is with a consumer: see
        Anticipation, and `Journal.withdraw`.
        """
        if done is not None:
            self._pending.open.when_durable(done, alone)
        self._urgent = self._urgent or alone is None
        if to_store:
            self._pending.open.to_store = True
        self._wanted = True
        if self._turning:
            return
        self._wake.set()
        if self._loop is not None and (self._full or self._pending.is_large):
            # Not at once: a turn requests a commit several times, and may submit more. The loop calls this
            # when the present task reaches an await, which ends its turn.
            self._loop.run_sync_soon(self._pending.close_layer, idempotent=True)

    def hold(self, granted: Callable[[], None]) -> None:
        """Let several turns submit changes that reach the disk at once; see persistence.holds."""
        self._holds.hold(granted)

    def release(self) -> None:
        self._holds.release(self.request)
        if self._stopping:
            self._wake.set()

    @property
    def unsynced(self) -> bool:
        """True if a submission is not on the disk yet."""
        return self._pending.unsynced

    def turn_begins(self) -> None:
        """Commits requested from now on begin when the turn ends."""
        self._turning = True

    def turn_ends(self) -> None:
        """Begin the requested commit, if none is under way."""
        self._turning = False
        if not self._wanted or self._loop is None:
            return
        if self._is_busy:
            if self._full or self._pending.is_large:
                self._pending.close_layer()
        elif self._is_put_off():
            self.put_off = True
        else:
            self._begin_wanted()

    def _is_put_off(self) -> bool:
        """True if acks may make the commit needless, and the poller looks for them (`begin_put_off`)."""
        if self._urgent:
            return False
        if self._pending.open.alone:
            return self.may_wait and self._anticipation.worth_it()
        if self._pending.unsynced:
            return False
        # All messages were acked.
        self._wanted = False
        self._anticipation.over(in_vain=False)
        return True

    def put_off_s(self) -> float:
        """Time to look for acks before `begin_put_off`, in seconds; 0 or less if it is over."""
        return self._anticipation.left_s() if self.put_off and self._wanted else 0.0

    def begin_put_off(self) -> None:
        """Begin the commit that was put off, unless it became needless. Between turns only."""
        self.put_off = False
        if self._wanted and self._loop is not None and not self._is_busy:
            self._begin_wanted()

    @property
    def _is_busy(self) -> bool:
        """True if a commit is under way."""
        return self._by_task or self._begun is not None or self._logging is not None

    def _own_turn(self, call: Callable[..., object], *arguments: Any) -> None:
        self.turn_begins()
        try:
            call(*arguments)
        finally:
            self.turn_ends()

    async def barrier(self) -> None:
        """Wait until all earlier submissions are durable."""
        durable = trio.Event()
        self.request(durable.set)
        await durable.wait()

    def stop(self) -> None:
        """Let `run` return after a last commit."""
        self._stopping = True
        self._wake.set()

    # --- at the end of a turn

    def _begin_wanted(self) -> None:
        if self._pending.is_held_back:
            # Its holder will request the commit.
            self._wanted = False
        elif self._pending.oldest:
            self._begin_oldest()
        else:
            self._wake.set()

    def _begin_oldest(self) -> None:
        layer = self._pending.take()
        # The layers before the open one come first.
        self._wanted = self._pending.waiting > 1 or bool(self._pending.open)
        self._urgent = self._urgent and self._wanted
        self._anticipation.over(in_vain=bool(layer.alone))
        made = capture(record_of, self._store, layer)
        if isinstance(made, Error):
            self._leave(Begun(layer, None, iter(())), made)
        elif record := made.unwrap():
            self._logging = layer
            self._give(record)
        else:
            self._begin_stored()

    def _begin_stored(self) -> None:
        self._stored = time.monotonic()
        begun = self._begun = self._fill(self._pending.take_all())
        filled: Outcome[Job | Begun | None] = capture(next, begun.steps, begun)
        if isinstance(filled, Error):
            self._leave(begun, filled)
            return
        step = filled.unwrap()
        if isinstance(step, Begun):
            self._sync(begun)
            return
        # The commit takes longer than a moment.
        if step is not None:
            self._begun = begun._replace(steps=chain([step], begun.steps))
        self._wake.set()

    def _fill(self, layer: Layer) -> Begun:
        made = capture(self._store.transaction, layer)
        if isinstance(made, Error):
            return Begun(layer, None, _failed(made))
        transaction = made.unwrap()
        return Begun(layer, transaction, transaction.apply())

    def _leave(self, begun: Begun, failure: Error) -> None:
        """Leave a failure to the task."""
        if begun.transaction is not None:
            begun.transaction.abort()
        self._begun = Begun(begun.layer, None, _failed(failure))
        self._wake.set()

    def _sync(self, begun: Begun) -> None:
        assert begun.transaction is not None
        self._give(begun.transaction.commit)

    def _give(self, job: Job) -> None:
        assert self._worker is not None
        self._working = self._syncing = True
        self._sync_began = time.perf_counter()
        self._worker.give(job)

    def _synced(self, outcome: Outcome[None]) -> None:
        """The worker is done. The loop calls this, so it must not raise."""
        self._working = False
        if self._syncing:
            self._syncing = False
            self.syncs.add(time.perf_counter() - self._sync_began)
        begun, logging = self._begun, self._logging
        if self._by_task or (begun is None and logging is None):
            self._outcome = outcome
            self._worked.set()
        elif logging is not None:
            self._logging = None
            if isinstance(outcome, Error):
                finished: Outcome[None] = capture(self._not_logged, logging, outcome)
            else:
                finished = capture(self._logged, logging)
            if isinstance(finished, Error):
                self._leave(Begun(Layer(), None, iter(())), finished)
        elif begun is None:
            pass
        elif isinstance(outcome, Error):
            self._leave(begun, outcome)
        else:
            self._begun = None
            finished = capture(self._finish, begun)
            if isinstance(finished, Error):
                self._leave(Begun(Layer(), None, iter(())), finished)

    def _finish(self, begun: Begun) -> None:
        assert begun.transaction is not None
        begun.transaction.finish()
        self._durable(begun.layer)
        if self._store.has_erasures():
            self._wake.set()

    def _logged(self, layer: Layer) -> None:
        """The log has the layer now."""
        waiting = layer.told()
        self._pending.note_logged(layer)
        self._in_turn(_tell, waiting)

    def _not_logged(self, layer: Layer, failure: Error) -> None:
        try:
            failure.unwrap()
        except StorageFull:
            # The log still has room, so the store can wait.
            layer.to_store = True
            self._wanted = True
            self._wake.set()

    def _durable(self, layer: Layer) -> None:
        self._pending.remove(layer)
        self._in_turn(_tell, layer.told())

    # --- the commit task

    async def run(self, in_turn: Callable[..., None] | None = None, report: Report | None = None) -> None:
        """Commit until `stop`; all done()s of a transaction are called in one turn. Raises CommitFailed."""
        self._in_turn = in_turn or self._own_turn
        self._loop = trio.lowlevel.current_trio_token()
        self._worker = Worker(["commit"], report or self._loop.run_sync_soon, self._synced)
        try:
            await self._run()
        finally:
            self._loop = None
            self._by_task = True
            await self._let_go()
            self._worker.stop()

    async def _run(self) -> None:
        while True:
            await self._called()
            stopping = self._stopping and not self._pending.held
            self._by_task = True
            await self._commit_all()
            await self._tend()
            self._by_task = False
            if stopping and not self._wanted:
                if self._marks is not None:
                    await trio.to_thread.run_sync(self._marks.flush)
                return
            if self._wanted and self._pending.oldest and not self._pending.is_held_back:
                # Later layers go to the log again, if they are small.
                self._begin_oldest()

    async def _called(self) -> None:
        held = self._pending.held
        due = not self._pending.is_held_back and (self._wanted or self._store.has_erasures())
        # A commit that the end of a turn left to this task.
        due = due or (self._begun is not None and not self._working)
        if not (due or (self._stopping and not held)):
            self._wake = trio.Event()
            # Marks are flushed and pages given back within a second, even if nobody commits.
            with trio.move_on_after(TEND_SECONDS):
                await self._wake.wait()

    async def _let_go(self) -> None:
        """Finish or abort the begun commit: no task waits for it any more."""
        begun, self._begun = self._begun, None
        if self._logging is not None:
            await self._work_done()
        if begun is None or begun.transaction is None:
            return
        if self._working:
            await self._work_done()
            if isinstance(self._outcome, Value):
                begun.transaction.finish()
                return
        begun.transaction.abort()

    async def _tend(self) -> None:
        now = time.monotonic()
        if now - self._tended >= TEND_SECONDS:
            self._tended = now
            slow = self._store.tend()
            if slow is not None:
                await trio.to_thread.run_sync(slow)
            if self._marks is not None and self._marks.changed:
                await trio.to_thread.run_sync(self._marks.flush)

    async def _commit_all(self) -> None:
        """Commit the present layers to the store; later ones wait for the next round."""
        self._wanted = self._urgent = False
        pending = self._pending
        last = pending.open
        self._anticipation.over(in_vain=bool(last.alone))
        if self._logging is not None:
            layer, self._logging = self._logging, None
            await self._work_done()
            if isinstance(self._outcome, Error):
                self._not_logged(layer, self._outcome)
            else:
                self._logged(layer)
        if self._begun is not None:
            begun, self._begun = self._begun, None
            await self._see_through(begun)
        now = time.monotonic()
        # Even if nothing waits: go on with unfinished erasures, and store layers that only the log has.
        more = self._store.has_erasures()
        if pending.logged is not None and (self._stopping or now - self._stored >= STORE_SECONDS):
            more = True
        while (
            last in pending.layers
            and not pending.is_held_back
            and (last or last.told() or pending.unsynced or more)
        ):
            if not (pending.oldest or more or self._store.has_erasures()):
                self._durable(pending.take())
                continue
            more = False
            self._stored = now
            layer = pending.take_all()
            await self._see_through(self._fill(layer))

    async def _see_through(self, begun: Begun) -> None:
        layer = begun.layer
        try:
            await self._write(begun)
        except StorageFull:
            self._full = True
            self._on_full(True)
            layer = await self._commit_when_it_fits()
            self._full = False
            self._on_full(False)
        self._durable(layer)

    async def _write(self, begun: Begun) -> None:
        transaction = begun.transaction
        try:
            for job in begun.steps:
                if job is None:
                    await trio.lowlevel.checkpoint()
                else:
                    await self._do(job)
            assert transaction is not None
            if not self._working:
                self._sync(begun)
            await self._work_done()
            self._outcome.unwrap()
        except BaseException:
            if transaction is not None:
                transaction.abort()
            raise
        transaction.finish()

    async def _do(self, job: Job) -> None:
        assert self._worker is not None
        self._working = True
        self._worker.give(job)
        await self._work_done()
        self._outcome.unwrap()

    async def _work_done(self) -> None:
        """Wait for the worker. Neither the wait nor the worker's job can be cancelled."""
        while self._working:
            self._worked = trio.Event()
            with trio.CancelScope(shield=True):
                await self._worked.wait()

    async def _commit_when_it_fits(self) -> Layer:
        while True:
            await trio.sleep(RETRY_SECONDS)
            behind = self._pending.behind()
            await self._commit_erasing(behind)
            layer = self._pending.merge(behind)
            with suppress(StorageFull):
                await self._write(self._fill(layer))
                return layer

    async def _commit_erasing(self, layers: list[Layer]) -> None:
        """Commit the layers that only erase, ahead of the oldest layer.

        The erasures also stay in their layers: settling twice is the same as once, and batches that are not
        written yet need it.
        """
        erasing = self._pending.erasures(layers, self._store.groups.snapshot_index)
        # An empty transaction follows, so that LMDB can use the freed pages.
        turns = 2
        while turns or self._store.has_erasures():
            try:
                await self._write(self._fill(erasing))
            except StorageFull:
                if not self._store.enlarge():
                    return
            else:
                erasing = Layer()
                turns = max(turns - 1, 0)


def _tell(waiting: list[Callable[[], None]]) -> None:
    for done in waiting:
        done()


def _failed(failure: Error) -> Iterator[Job | None]:
    """The steps of a commit that could not be begun."""
    failure.unwrap()
    yield
