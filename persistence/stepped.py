"""Commits one at a time, in steps: the caller decides how long the disk takes.

For simulations, which have no Trio, and for `flush`:

    disk = SteppedCommit(store)
    groups.append(…); disk.request(done)
    if disk.begin():            # the oldest layer is under way, later submissions gather in the next one
        at(now + delay, disk.end)   # durable now: done() is called
    …
    store.crash()               # in between: the layer is gone, and so are those behind it;
    disk = SteppedCommit(store) # the new process, with a new Groups and Journal, starts from what is durable
"""

from collections.abc import Callable

from persistence.holds import Holds
from persistence.layer import Layer, Lone
from persistence.ports import Store, Transaction, record_of


class SteppedCommit:
    """Replaces commit.Commit where only `request` is needed."""

    def __init__(self, store: Store, *, logs: bool = False) -> None:
        """`logs`: small layers go to the write-ahead log first, as with commit.Commit."""
        self._store = store
        self._logs = logs
        self._pending = store.pending
        self._holds = Holds(store.pending)
        self._running: tuple[Layer, Transaction] | None = None
        #: The layer that is being written to the log, and its job.
        self._logging: tuple[Layer, Callable[[], None]] | None = None

    @property
    def running(self) -> bool:
        return self._running is not None or self._logging is not None

    def request(
        self, done: Callable[[], None] | None = None, *, to_store: bool = False, alone: Lone | None = None
    ) -> None:
        if done is not None:
            self._pending.open.when_durable(done, alone)
        if to_store:
            self._pending.open.to_store = True

    def hold(self, granted: Callable[[], None]) -> None:
        """Let several turns submit changes that reach the disk at once; see persistence.holds."""
        self._holds.hold(granted)

    def release(self) -> None:
        self._holds.release(self.request)

    @property
    def unsynced(self) -> bool:
        """True if a submission is not durable yet."""
        return self._pending.unsynced

    def turn_begins(self) -> None: ...

    def turn_ends(self) -> None:
        """Does nothing: the caller of `begin` decides when a commit begins."""

    def waits(self) -> bool:
        """Return whether there is a commit to begin."""
        pending = self._pending
        return not pending.is_held_back and bool(
            pending.unsynced
            or pending.open.told()
            or pending.logged is not None
            or self._store.has_erasures()
        )

    def begin(self) -> bool:
        """Fill a transaction, or a record of the log, with the oldest layer.

        False if one runs already or there is nothing to do.

        Raises StorageFull; then the layer is still there, for another try.
        """
        if self.running or not self.waits():
            return False
        if self._logs and self._pending.unsynced:
            layer = self._pending.take()
            record = record_of(self._store, layer)
            if record is not None:
                self._logging = layer, record
                return True
        layer = self._pending.take_all()
        transaction = self._store.transaction(layer)
        try:
            for _ in transaction.apply():
                pass
        except BaseException:
            transaction.abort()
            raise
        self._running = layer, transaction
        return True

    def end(self) -> None:
        """Make the transaction durable. Raises StorageFull, as `begin`, or CommitFailed."""
        if self._logging is not None:
            self._end_logging(*self._logging)
            return
        assert self._running is not None
        layer, transaction = self._running
        self._running = None
        try:
            transaction.commit()
        except BaseException:
            transaction.abort()
            raise
        transaction.finish()
        self._pending.remove(layer)
        for done in layer.told():
            done()

    def _end_logging(self, layer: Layer, write: Callable[[], None]) -> None:
        self._logging = None
        write()
        waiting = layer.told()
        self._pending.note_logged(layer)
        for done in waiting:
            done()
