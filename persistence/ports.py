"""What the journal and the commit task need of a store. There are two: LMDB (environment) and memory."""

from collections.abc import Iterator
from typing import Protocol

from persistence.layer import Layer, Pending
from persistence.record import Record, RecoveredQueue


class Transaction(Protocol):
    def apply(self) -> Iterator[None]:
        """Write the layer, a step at a time, on the loop's thread. Raises StorageFull."""

    def commit(self) -> None:
        """Make it durable.

        Runs in a worker thread, touches nothing of the loop's. Raises StorageFull or CommitFailed.
        """

    def finish(self) -> None:
        """After a commit, on the loop's thread."""

    def abort(self) -> None:
        """Undo; also after a commit that failed."""


class Store(Protocol):
    pending: Pending

    def transaction(self, layer: Layer) -> Transaction: ...

    def has_erasures(self) -> bool:
        """Is there room left to reclaim by further transactions, even empty ones?"""

    def enlarge(self) -> bool:
        """Make a little more room for deletions, which need pages before they free any.

        False if that is not possible.
        """

    def records(self, queue_id: int, first_seq: int, last_seq: int) -> list[Record]:
        """The durable records that overlap the range."""

    def recover(self) -> Iterator[RecoveredQueue]: ...

    def tend(self) -> None:
        """Housekeeping between transactions, about once a second."""
