"""Commits in steps: the caller decides how long the disk takes.

For simulations, which have no Trio, and for `flush`:

    disk = SteppedCommit(store)
    groups.append(…); disk.request(done)
    if disk.begin():            # the oldest layer is under way, later submissions gather in the next one
        at(now + delay, disk.end)   # durable now: done() is called
    …
    disk.die(written=False)     # in between: the layer is gone, and so are those behind it;
    store.crash()
    disk = SteppedCommit(store) # the new process, with a new Groups and Journal, starts from what is durable

All decisions are those of a node (persistence/commits/committing.py), a record of the log under way beside a
transaction included; only the threads are replaced.
"""

from collections.abc import Callable

from outcome import capture

from persistence.commits.committing import Committing, Pause, never_full
from persistence.commits.layer import Lone
from persistence.ports import Job, Store


class SteppedJobs:
    """Replaces a thread: its job is done when the caller says so."""

    def __init__(self) -> None:
        self.job: Job | None = None

    def give(self, job: Job) -> None:
        assert self.job is None
        self.job = job

    def take(self) -> Job:
        job, self.job = self.job, None
        assert job is not None
        return job


class SteppedCommit:
    """Replaces commit.Commit where only `request` is needed."""

    def __init__(
        self, store: Store, *, logs: bool = False, on_full: Callable[[bool], None] | None = None
    ) -> None:
        """`logs`: small layers go to the write-ahead log first, as with commit.Commit. Without `on_full`,
        StorageFull is raised.
        """
        self._raises = on_full is None
        self._commits = commits = Committing(store, logs=logs, on_full=on_full or never_full)
        # The caller makes the turns.
        commits.in_turn = lambda call, *arguments: call(*arguments)
        self._log = commits.log_jobs = SteppedJobs()
        self._store = commits.store_jobs = SteppedJobs()
        self.hold, self.release = commits.hold, commits.release

    @property
    def running(self) -> bool:
        """True if a record or a transaction is on its way to the disk."""
        return self._commits.working

    @property
    def running_both(self) -> bool:
        return self._log.job is not None and self._store.job is not None

    def request(
        self, done: Callable[[], None] | None = None, *, to_store: bool = False, alone: Lone | None = None
    ) -> None:
        self._commits.request(done, to_store=to_store, alone=alone)

    @property
    def unsynced(self) -> bool:
        """True if a submission is not durable yet."""
        return self._commits.unsynced

    def turn_begins(self) -> None: ...

    def turn_ends(self) -> None:
        """Does nothing: the caller of `begin` decides when a commit begins."""

    def waits(self) -> bool:
        """Return whether there is anything to begin."""
        commits, pending = self._commits, self._commits.pending
        if commits.paused is not None:
            return True
        behind = pending.logged is not None or commits.store.has_erasures()
        if pending.storing is None and behind:
            return True
        return not (self.running or pending.is_held_back) and (pending.unsynced or bool(pending.open.told()))

    def begin(self, *, to_store: bool = True) -> bool:
        """Begin what can begin: a record of the log, and, with `to_store`, a transaction with what only the
        log has. A transaction that did not fit is tried again.

        False if nothing began. Raises StorageFull without `on_full`; then the layer is still there, for
        another try.
        """
        commits = self._commits
        before = self._log.job, self._store.job
        if commits.paused is not None:
            commits.go_on()
        waiting = commits.pending.open
        asked = bool(waiting.told())
        commits.wanted = commits.wanted or commits.unsynced or asked
        commits.proceed(to_store=to_store)
        self._fill()
        self._check()
        # Who waits for nothing is told at once.
        answered = asked and waiting is commits.pending.open and not waiting.told()
        return answered or (self._log.job, self._store.job) != before

    def end(self, *, log: bool | None = None) -> None:
        """The record of the log, or the transaction, is on the disk; the transaction if `log` does not say
        which and both are under way.

        Raises StorageFull, as `begin`, or CommitFailed.
        """
        if not self.running:
            # It was answered at once.
            return
        if log is None:
            log = self._store.job is None
        if log:
            self._commits.log_done(capture(self._log.take()))
        else:
            self._commits.store_done(capture(self._store.take()))
            self._fill()
        self._check()

    def die(self, *, logged: bool, stored: bool) -> None:
        """The process dies, and nobody is told anything any more. The record that is under way may have
        reached the disk, and the transaction as well.
        """
        commits = self._commits
        commits.ending = True
        if logged and self._log.job is not None:
            commits.log_done(capture(self._log.take()))
        if stored and self._store.job is not None:
            commits.store_done(capture(self._store.take()))

    def close(self) -> None:
        """Undo the transaction that waits for room."""
        self._commits.end_transaction()

    def _fill(self) -> None:
        """Fill the transaction, if one is begun, until it only has to be written."""
        commits = self._commits
        while not commits.syncing:
            if self._store.job is not None:
                commits.store_done(capture(self._store.take()))
            elif commits.paused is Pause.MOMENT:
                commits.go_on()
            else:
                return

    def _check(self) -> None:
        commits = self._commits
        if commits.failure is not None:
            raise commits.failure
        if self._raises and commits.paused is Pause.RETRY:
            assert commits.no_room is not None
            raise commits.no_room
