"""The interface of a store, for the journal, the groups and the commit task. There are two stores: LMDB
(environment) and memory.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from persistence.commits.layer import Layer, Pending
from persistence.record import Record, RecoveredQueue
from persistence.replica_logs.record import RecoveredGroup, StoredEntry

Job = Callable[[], None]


class Transaction(Protocol):
    def apply(self) -> Iterator[Job | None]:
        """Write the layer, a step at a time, on the loop's thread. Raises StorageFull.

        A yielded job should run in a thread before the next step, which otherwise waits for the disk.
        """

    def commit(self) -> None:
        """Make it durable.

        Runs in a worker thread, and touches no object of the loop's thread. Raises StorageFull or
        CommitFailed.
        """

    def finish(self) -> None:
        """After a commit, on the loop's thread."""

    def abort(self) -> None:
        """Undo the transaction; also after a failed commit."""


class GroupStore(Protocol):
    """The durable state of the Raft groups."""

    def entries(self, group: int, low: int, high: int, max_bytes: int) -> list[StoredEntry]:
        """Entries from low on, until max_bytes or high is reached; at least one. Raises EntryLost."""

    def warm(self, group: int, spans: list[tuple[int, int]], done: Callable[[], None]) -> bool:
        """See Store.warm; first and last index of each span."""

    def warm_group(self, group: int, done: Callable[[], None]) -> bool:
        """The same for `recover_one` and `state`."""

    def bounds(self, group: int) -> tuple[int, int]:
        """The index of the snapshot, or 0, and that of the last entry."""

    def snapshot_index(self, group: int) -> int:
        """0 if there is none."""

    def state(self, group: int) -> tuple[int, int, bytes] | None:
        """Index, term and state of the snapshot. Raises CorruptSnapshot."""

    def recover(self) -> Iterator[RecoveredGroup]: ...

    def recover_one(self, group: int) -> RecoveredGroup | None: ...


class Store(Protocol):
    pending: Pending

    @property
    def groups(self) -> GroupStore: ...

    def transaction(self, layer: Layer) -> Transaction: ...

    def log_record(self, layer: Layer) -> Callable[[], None] | None:
        """Return a job for the worker that makes the layer durable in the write-ahead log; the job raises
        CommitFailed. It raises CommitFailed.

        Returns None if there is no log, or no room in it, or the layer is too large for it.
        """

    @property
    def log_is_half_full(self) -> bool: ...

    def has_erasures(self) -> bool:
        """Return whether further transactions, even empty ones, can reclaim room."""

    def enlarge(self) -> bool:
        """Make a little more room for deletions, which need pages before they free any.

        False if that is not possible.
        """

    def records(self, queue_id: int, first_seq: int, last_seq: int) -> list[Record]:
        """The durable records that overlap the range."""

    def warm(self, queue_id: int, spans: list[tuple[int, int]], done: Callable[[], None]) -> bool:
        """True if the records of these positions can be read without a wait for the disk; first and last of
        each span.

        If not, a thread reads them and discards the bytes; `done` is called in a turn when they are in
        memory.
        """

    def warm_queue(self, queue_id: int, bodies_from: int, done: Callable[[], None]) -> bool:
        """The same for `recover_queue`, and the bodies from that position on."""

    def recover(self) -> Iterator[RecoveredQueue]: ...

    def recover_queue(self, queue_id: int) -> RecoveredQueue | None:
        """The durable state of one queue."""

    def tend(self) -> Callable[[], None] | None:
        """Housekeeping between transactions, about once a second.

        Returns the part that may block on the disk, to be called in a worker thread.
        """
