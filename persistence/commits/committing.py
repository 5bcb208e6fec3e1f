"""Which changes go where, when, and who is told: the decisions of all commits, without threads and loops.

All waiting changes go together. A small layer is written to the write-ahead log (wal.py) and called durable.
The store gets it later, in a transaction with others: after a second, when the log is half full, or with a
layer that cannot go to the log. There is at most one record under way, and at most one transaction:

- While the store gets what the log has, later layers go to the log and are called durable. So a restart finds
  all that was called durable, whatever of the two has reached the disk.
- While the store gets a layer that the log does not have, later layers wait: after a crash they could not be
  there without it.
- If the log has no room for a layer, or must not have it, it waits for the transaction and is in the next.

Whoever drives this does the jobs, in one thread for the log and one for the store, and says when they are
done (`log_done`, `store_done`). A node does that with its loop and two threads (commit.py), a simulation step
by step (stepped.py).

A transaction is filled on the loop's thread in short steps. Between two of them `paused` is set, and the
driver calls `go_on`. When the map or the disk is full nothing is lost: the layer stays, publishers must be
stopped (`on_full`), and it is tried again and again. Only settles free space, and they are in layers after
the one that does not fit. Settles of turns that only settled are therefore committed ahead. The submissions
of one turn, from one await to the next, stay together, because a dead-lettered message is an append here and
a settle there.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Generator
from enum import Enum
from typing import Any, Final, Protocol

from outcome import Error, Outcome

from persistence.commits.ack_wait import Anticipation
from persistence.commits.holds import Holds
from persistence.commits.layer import Layer, Lone
from persistence.errors import StorageFull
from persistence.ports import Job, Store

#: Bounds of the histogram of sync times, s.
SYNC_BOUNDS_S: Final = (0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


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


class Pause(Enum):
    """Why a transaction waits for `go_on`."""

    #: It has used the loop for long enough.
    MOMENT = "moment"
    #: It did not fit: it is tried again after a while.
    RETRY = "retry"


class Jobs(Protocol):
    """A thread that does one job after the other."""

    def give(self, job: Job, /) -> None: ...


Steps = Generator[Job | Pause, None, None]


def _nothing() -> None: ...


def never_full(full: bool) -> None: ...


class Committing:
    def __init__(
        self,
        store: Store,
        *,
        logs: bool = True,
        on_full: Callable[[bool], None] = never_full,
        ack_wait_s: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`logs`: small layers may go to the log. `ack_wait_s` is the time for which a commit may wait for
        acks that make it needless, by the clock `now`.
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
        #: Lets the driver look for work.
        self.wake: Callable[[], None] = _nothing
        #: Calls its argument once when the turn is over, for requests outside of turns; None while nothing
        #: drives.
        self.after_turn: Callable[[Callable[[], None]], None] | None = None
        #: The threads; None while nothing drives.
        self.log_jobs: Jobs | None = None
        self.store_jobs: Jobs | None = None
        self.store = store
        self.pending = store.pending
        self._holds = Holds(store.pending)
        self._logs = logs
        self._on_full = on_full
        self.wanted = False
        self.stopping = False
        #: Set when nobody must be told any more: the driver ends.
        self.ending = False
        #: What ends the node; the driver raises it.
        self.failure: BaseException | None = None
        #: True while the disk has no room for a transaction.
        self.full = False
        #: Why it had none the last time.
        self.no_room: StorageFull | None = None
        #: Time when the store last got what the log had.
        self.stored = time.monotonic()
        #: True within a turn: its end begins a commit.
        self._turning = False
        #: The layer that is being written to the log, since then.
        self.logging: Layer | None = None
        self._log_began = 0.0
        #: The transaction that runs; why it does not go on by itself; and whether its commit is on its way to
        #: the disk.
        self._steps: Steps | None = None
        self.paused: Pause | None = None
        self.syncing = False
        #: True while a job for the store is under way.
        self.storing = False
        #: True if the oldest layer waits for the transaction that runs.
        self._after_it = False
        self.syncs = Syncs()

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
        self.wake()
        if self.after_turn is not None and (self.full or self.pending.is_large):
            # Not at once: a turn requests a commit several times, and may submit more.
            self.after_turn(self.pending.close_layer)

    def hold(self, granted: Callable[[], None]) -> None:
        """Let several turns submit changes that reach the disk at once; see persistence.commits.holds."""
        self._holds.hold(granted)

    def release(self) -> None:
        self._holds.release(self.request)
        if self.stopping:
            self.wake()

    @property
    def unsynced(self) -> bool:
        """True if a submission is not on the disk yet."""
        return self.pending.unsynced

    @property
    def working(self) -> bool:
        """True while a thread has a job."""
        return self.logging is not None or self.storing

    @property
    def is_idle(self) -> bool:
        """True if the store has all submissions, and nobody waits."""
        pending = self.pending
        return not (pending.unsynced or pending.open.told() or pending.is_behind)

    def turn_begins(self) -> None:
        """Commits requested from now on begin when the turn ends."""
        self._turning = True

    def turn_ends(self) -> None:
        """Begin the requested commit, if none is under way."""
        self._turning = False
        if not self.wanted or self.log_jobs is None:
            return
        if self._is_busy():
            if self.full or self.pending.is_large:
                self.pending.close_layer()
        elif self._is_put_off():
            self.put_off = True
        elif self._has_oldest():
            self._begin_oldest()
        else:
            # Not within this turn: who waits is told in a turn.
            self.wake()

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
        if self.wanted and self.log_jobs is not None and not self._is_busy():
            self._begin_wanted()

    def own_turn(self, call: Callable[..., object], *arguments: Any) -> None:
        """Make a call as a turn of its own, for programs without turns."""
        self.turn_begins()
        try:
            call(*arguments)
        finally:
            self.turn_ends()

    def proceed(self, *, to_store: bool) -> None:
        """Begin what can begin; with `to_store`, bring what only the log has to the store as well. Between
        turns only.
        """
        if self.log_jobs is None or self._has_failed():
            return
        if self.wanted and not self._is_busy() and (self.stopping or not self.put_off):
            self._begin_wanted()
        if self._steps is not None or self._has_failed():
            return
        if self.store.has_erasures() or (self.pending.logged is not None and (to_store or self.stopping)):
            self._begin_transaction(oldest=False)

    # --- what begins

    def _has_failed(self) -> bool:
        # A call, and not the attribute: compiled code takes it for None between two looks at it.
        return self.failure is not None

    def _is_busy(self) -> bool:
        """True if the oldest layer has to wait."""
        storing = self.pending.storing
        return (
            self.logging is not None
            or self._after_it
            or self.full
            or (storing is not None and not storing.durable)
            or self.failure is not None
        )

    def _has_oldest(self) -> bool:
        """True if there is anything to commit: submissions, or earlier ones that the store lacks and someone
        wants to read there.
        """
        pending = self.pending
        oldest = pending.oldest
        return (
            pending.held
            or oldest is not pending.open
            or bool(oldest)
            or (oldest.to_store and pending.is_behind)
        )

    def _begin_wanted(self) -> None:
        if self._has_oldest():
            self._begin_oldest()
            return
        # Nothing was submitted, and everything earlier is durable.
        layer = self.pending.open
        waiting = layer.told()
        layer.done, layer.alone, layer.to_store = [], {}, False
        self.wanted = self.urgent = False
        self.anticipation.over(in_vain=False)
        if waiting:
            self._tell(waiting)

    def _begin_oldest(self) -> None:
        pending = self.pending
        if pending.is_held_back:
            # Its holder will request the commit.
            self.wanted = False
            return
        layer = pending.oldest
        try:
            record = self._record_of(layer)
        except BaseException as error:  # noqa: BLE001 - the driver raises it
            self.fail(error)
            return
        if record is not None:
            self.logging = pending.take()
            self._taken(layer)
            self._log_began = time.perf_counter()
            assert self.log_jobs is not None
            self.log_jobs.give(record)
            if self._steps is None and pending.logged is not None and self.store.log_is_half_full:
                self._begin_transaction(oldest=False)
        elif self._steps is not None:
            self._after_it = True
            if pending.is_large:
                pending.close_layer()
        else:
            self._begin_transaction(oldest=True)

    def _record_of(self, layer: Layer) -> Job | None:
        """The job that writes the layer to the log; None if it goes into the store at once."""
        # A layer that has a record already could not be written to the log.
        if not self._logs or layer.to_store or layer.sequence or self.stopping:
            return None
        return self.store.log_record(layer)

    def _taken(self, layer: Layer) -> None:
        """The layer is under way; the others wait."""
        pending = self.pending
        waiting = pending.waiting if self.logging is None else pending.waiting - 1
        self.wanted = waiting > 0 or bool(pending.open) or bool(pending.open.told())
        self.urgent = self.urgent and self.wanted
        self.anticipation.over(in_vain=bool(layer.alone))

    def _begin_transaction(self, *, oldest: bool) -> None:
        """Bring to the store what only the log has, and the oldest layer as well."""
        pending = self.pending
        self.stored = time.monotonic()
        taken = pending.oldest
        layer = pending.take_for_store(oldest=oldest)
        if oldest:
            self._taken(taken)
        self._steps = self._transaction(layer)
        self.go_on()

    # --- the log

    def log_done(self, outcome: Outcome[None]) -> None:
        """The record is written. The loop calls this, so it must not raise."""
        layer, self.logging = self.logging, None
        assert layer is not None
        self.syncs.add(time.perf_counter() - self._log_began)
        if not isinstance(outcome, Error):
            waiting = layer.told()
            self.pending.note_logged(layer)
            self._tell(waiting)
        elif isinstance(outcome.error, StorageFull):
            # It goes into the store, which has its record's number then: the next record may follow.
            layer.to_store = True
            self.wanted = True
            self.wake()
        else:
            self.fail(outcome.error)
        if self.stopping or self.ending:
            self.wake()

    # --- the store

    def store_done(self, outcome: Outcome[None]) -> None:
        """The job for the store is done. The loop calls this, so it must not raise."""
        self.storing = False
        self._resume(outcome.error if isinstance(outcome, Error) else None)
        if self.ending:
            self.wake()

    def go_on(self) -> None:
        """Continue the transaction that is paused until it has to wait."""
        self._resume(None)

    def _resume(self, error: BaseException | None) -> None:
        steps = self._steps
        assert steps is not None
        self.paused = None
        try:
            step = next(steps) if error is None else steps.throw(error)
        except StopIteration:
            self._is_stored()
        except BaseException as failure:  # noqa: BLE001 - the driver raises it
            self._steps = None
            self.fail(failure)
        else:
            if isinstance(step, Pause):
                self.paused = step
                self.wake()
            else:
                assert self.store_jobs is not None
                self.storing = True
                self.store_jobs.give(step)

    def _is_stored(self) -> None:
        """The store has the layer that was in the transaction."""
        layer = self.pending.storing
        assert layer is not None
        self._steps = None
        self._after_it = False
        self.pending.remove(layer)
        self._tell(layer.told())
        if self.stopping or self.store.has_erasures():
            self.wake()

    def end_transaction(self) -> None:
        """Undo the transaction that runs, if any. No job may be under way."""
        steps, self._steps = self._steps, None
        self.paused = None
        if steps is not None:
            steps.close()
            self.pending.give_back()

    def _transaction(self, layer: Layer) -> Steps:
        try:
            yield from self._write(layer)
        except StorageFull as error:
            self.no_room = error
            # Not within the turn whose end began this: who listens acts in a turn.
            yield Pause.MOMENT
            self.full = True
            self._on_full(True)
            yield from self._write_when_it_fits()
            self.full = False
            self._on_full(False)

    def _write(self, layer: Layer) -> Steps:
        transaction = self.store.transaction(layer)
        try:
            for job in transaction.apply():
                yield Pause.MOMENT if job is None else job
            began = time.perf_counter()
            self.syncing = True
            try:
                yield transaction.commit
            finally:
                self.syncing = False
                self.syncs.add(time.perf_counter() - began)
        except BaseException:
            transaction.abort()
            raise
        transaction.finish()

    def _write_when_it_fits(self) -> Steps:
        """Write the first layer together with all later ones, when they fit."""
        while True:
            yield Pause.RETRY
            if self.logging is not None:
                continue
            behind = self.pending.behind()
            yield from self._write_erasing(behind)
            layer = self.pending.merge(behind)
            try:
                yield from self._write(layer)
            except StorageFull as error:
                self.no_room = error
                continue
            return

    def _write_erasing(self, layers: list[Layer]) -> Steps:
        """Commit the layers that only erase, ahead of the first layer.

        The erasures also stay in their layers: settling twice is the same as once, and batches that are not
        written yet need it.
        """
        erasing = self.pending.erasures(layers, self.store.groups.snapshot_index)
        # An empty transaction follows, so that LMDB can use the freed pages.
        turns = 2
        while turns or self.store.has_erasures():
            try:
                yield from self._write(erasing)
            except StorageFull:
                if not self.store.enlarge():
                    return
            else:
                erasing = Layer()
                turns = max(turns - 1, 0)

    # --- the end

    def _tell(self, waiting: list[Callable[[], None]]) -> None:
        if self.ending or not (waiting or self.wanted):
            return
        try:
            self.in_turn(_call, waiting)
        except BaseException as error:  # noqa: BLE001 - the driver raises it
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Let the driver raise this, which ends the node."""
        if self.failure is None:
            self.failure = error
        self.wake()


def _call(waiting: list[Callable[[], None]]) -> None:
    for done in waiting:
        done()
