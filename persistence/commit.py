"""Commits: all waiting changes go in one transaction, with one sync.

The transaction is filled on the loop's thread and synced in a worker thread; meanwhile the next layer fills.
Nothing is called durable before the sync has returned.

A small layer is written to the write-ahead log (persistence/wal.py) and called durable. LMDB gets it later,
with others: when the log is half full, after a second, or with a layer that is too large for the log.

The end of a turn begins a commit if none is under way (`turn_begins`, `turn_ends`), and the end of that
commit begins the next: no task is woken in between. Longer work is left for the commit task
(persistence/commit_task.py).
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from outcome import Error, Outcome

from persistence.anticipation import Anticipation
from persistence.commit_task import CommitTask
from persistence.errors import StorageFull
from persistence.holds import Holds
from persistence.layer import Layer, Lone
from persistence.marks import DeliveredMarks
from persistence.ports import Job, Store, Transaction, record_of
from persistence.worker import Worker


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


def _never_full(full: bool) -> None: ...


class Commit:
    def __init__(
        self,
        store: Store,
        marks: DeliveredMarks | None = None,
        *,
        on_full: Callable[[bool], None] = _never_full,
        ack_wait_s: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ack_wait_s` is the time for which a commit may wait for acks that make it needless, by the clock
        `now`.
        """
        self.anticipation = Anticipation(ack_wait_s, now)
        #: True if the poller looks for acks after this turn, and calls `begin_put_off` then.
        self.may_wait = False
        #: True while the requested commit waits for acks.
        self.put_off = False
        #: True if not only commits of messages that came alone were requested.
        self.urgent = False
        #: Runs its first argument as one turn of the node, with all its consequences.
        self.in_turn: Callable[..., None] = self.own_turn
        self.store = store
        self.pending = store.pending
        self._holds = Holds(store.pending)
        #: The thread that syncs; None while the commit task does not run.
        self.worker: Worker[None] | None = None
        self.wanted = False
        self.stopping = False
        #: True while the disk has no room: the commit task tries again and again.
        self.full = False
        #: Time when the store last got the layers that waited for it.
        self.stored = time.monotonic()
        #: True within a turn: its end begins a commit.
        self._turning = False
        #: True while the commit task makes the commits itself.
        self.by_task = False
        #: The commit that the end of a turn began: the worker has it, or it is left for the task.
        self.begun: Begun | None = None
        #: The layer that the worker is writing to the log.
        self.logging: Layer | None = None
        #: True if the worker has a job, and if that is a sync.
        self.working = self._syncing = False
        self.syncs = Syncs()
        self._sync_began = 0.0
        self._task = CommitTask(self, marks, on_full)
        #: See CommitTask.
        self.run = self._task.run
        self.barrier = self._task.barrier

    def request(
        self, done: Callable[[], None] | None = None, *, to_store: bool = False, alone: Lone | None = None
    ) -> None:
        """Commit all submissions so far.

        `done` is called when they are durable; with `to_store`, when they are in the store, for readers that
        do not see the log. `alone` is the one message that was submitted, which is with a consumer: see
        Anticipation, and `Journal.withdraw`.
        """
        if done is not None:
            self.pending.open.when_durable(done, alone)
        self.urgent = self.urgent or alone is None
        if to_store:
            self.pending.open.to_store = True
        self.wanted = True
        if self._turning:
            return
        self._task.wake()
        if self.worker is not None and (self.full or self.pending.is_large):
            # Not at once: a turn requests a commit several times, and may submit more.
            self._task.when_the_turn_is_over(self.pending.close_layer)

    def hold(self, granted: Callable[[], None]) -> None:
        """Let several turns submit changes that reach the disk at once; see persistence.holds."""
        self._holds.hold(granted)

    def release(self) -> None:
        self._holds.release(self.request)
        if self.stopping:
            self._task.wake()

    @property
    def unsynced(self) -> bool:
        """True if a submission is not on the disk yet."""
        return self.pending.unsynced

    def turn_begins(self) -> None:
        """Commits requested from now on begin when the turn ends."""
        self._turning = True

    def turn_ends(self) -> None:
        """Begin the requested commit, if none is under way."""
        self._turning = False
        if not self.wanted or self.worker is None:
            return
        if self._is_busy():
            if self.full or self.pending.is_large:
                self.pending.close_layer()
        elif self._is_put_off():
            self.put_off = True
        else:
            self._begin_wanted()

    def _is_put_off(self) -> bool:
        """True if acks may make the commit needless, and the poller looks for them (`begin_put_off`)."""
        if self.urgent:
            return False
        if self.pending.open.alone:
            return self.may_wait and self.anticipation.worth_it()
        if self.pending.unsynced:
            return False
        # All messages were acked.
        self.wanted = False
        self.anticipation.over(in_vain=False)
        return True

    def put_off_s(self) -> float:
        """Time to look for acks before `begin_put_off`, in seconds; 0 or less if it is over."""
        return self.anticipation.left_s() if self.put_off and self.wanted else 0.0

    def begin_put_off(self) -> None:
        """Begin the commit that was put off, unless it became needless. Between turns only."""
        self.put_off = False
        if self.wanted and self.worker is not None and not self._is_busy():
            self._begin_wanted()

    def _is_busy(self) -> bool:
        """True if a commit is under way."""
        return self.by_task or self.begun is not None or self.logging is not None

    def own_turn(self, call: Callable[..., object], *arguments: Any) -> None:
        """Make a call as a turn of its own, for programs without turns."""
        self.turn_begins()
        try:
            call(*arguments)
        finally:
            self.turn_ends()

    def stop(self) -> None:
        """Let `run` return after a last commit."""
        self.stopping = True
        self._task.wake()

    # --- at the end of a turn

    def _begin_wanted(self) -> None:
        if self.pending.is_held_back:
            # Its holder will request the commit.
            self.wanted = False
        elif self.pending.oldest:
            self.begin_oldest()
        else:
            self._task.wake()

    def begin_oldest(self) -> None:
        pending = self.pending
        layer = pending.take()
        # The layers before the open one come first.
        self.wanted = pending.waiting > 1 or bool(pending.open)
        self.urgent = self.urgent and self.wanted
        self.anticipation.over(in_vain=bool(layer.alone))
        try:
            record = record_of(self.store, layer)
        except BaseException as error:  # noqa: BLE001 - the task raises it
            self._leave(Begun(layer, None, iter(())), error)
            return
        if record is not None:
            self.logging = layer
            self._sync(record)
        else:
            self._begin_stored()

    def _begin_stored(self) -> None:
        self.stored = time.monotonic()
        begun = self.begun = self.fill(self.pending.take_all())
        try:
            step = next(begun.steps, begun)
        except BaseException as error:  # noqa: BLE001 - the task raises it
            self._leave(begun, error)
            return
        if isinstance(step, Begun):
            self.sync(begun)
            return
        # The commit takes longer than a moment.
        if step is not None:
            self.begun = begun._replace(steps=chain([step], begun.steps))
        self._task.wake()

    def fill(self, layer: Layer) -> Begun:
        """Begin a transaction that brings this layer to the store."""
        try:
            transaction = self.store.transaction(layer)
        except BaseException as error:  # noqa: BLE001 - the steps raise it
            return Begun(layer, None, _failed(Error(error)))
        return Begun(layer, transaction, transaction.apply())

    def _leave(self, begun: Begun, error: BaseException) -> None:
        """Leave a failure to the task."""
        if begun.transaction is not None:
            begun.transaction.abort()
        self.begun = Begun(begun.layer, None, _failed(Error(error)))
        self._task.wake()

    def sync(self, begun: Begun) -> None:
        """Have the worker commit a transaction that is filled."""
        assert begun.transaction is not None
        self._sync(begun.transaction.commit)

    def _sync(self, job: Job) -> None:
        self._syncing = True
        self._sync_began = time.perf_counter()
        self.give(job)

    def give(self, job: Job) -> None:
        """Have the worker do this; `synced` is called when it is done."""
        assert self.worker is not None
        self.working = True
        self.worker.give(job)

    def synced(self, outcome: Outcome[None]) -> None:
        """The worker is done. The loop calls this, so it must not raise."""
        self.working = False
        if self._syncing:
            self._syncing = False
            self.syncs.add(time.perf_counter() - self._sync_began)
        begun, logging = self.begun, self.logging
        if self.by_task or (begun is None and logging is None):
            self._task.work_is_done(outcome)
            return
        try:
            if logging is not None:
                self.logging = None
                if isinstance(outcome, Error):
                    self.not_logged(logging, outcome)
                else:
                    self.logged(logging)
            elif begun is not None and isinstance(outcome, Error):
                self._leave(begun, outcome.error)
            elif begun is not None:
                self.begun = None
                self._finish(begun)
        except BaseException as error:  # noqa: BLE001 - the task raises it
            self._leave(Begun(Layer(), None, iter(())), error)

    def _finish(self, begun: Begun) -> None:
        assert begun.transaction is not None
        begun.transaction.finish()
        self.durable(begun.layer)
        if self.store.has_erasures():
            self._task.wake()

    def logged(self, layer: Layer) -> None:
        """The log has the layer now."""
        waiting = layer.told()
        self.pending.note_logged(layer)
        self.in_turn(_tell, waiting)

    def not_logged(self, layer: Layer, failure: Error) -> None:
        """The log could not take the layer. Raises CommitFailed."""
        try:
            failure.unwrap()
        except StorageFull:
            # The log still has room, so the store can wait.
            layer.to_store = True
            self.wanted = True
            self._task.wake()

    def durable(self, layer: Layer) -> None:
        """The store has the layer now."""
        self.pending.remove(layer)
        self.in_turn(_tell, layer.told())


def _tell(waiting: list[Callable[[], None]]) -> None:
    for done in waiting:
        done()


def _failed(failure: Error) -> Iterator[Job | None]:
    """Steps of a commit that could not be begun: they raise the reason."""
    failure.unwrap()
    yield None
