"""The groups' store in the form that replication needs.

Lost entries are reported with the Raft core's own exception. Entries that another node sends along with a
snapshot are kept aside, as a separate group: until the snapshot is installed, this node's log is valid, and
may have another entry at the same index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from persistence import errors
from persistence.ports import Store
from persistence.replica_logs.logs import Groups
from persistence.replica_logs.record import EntryLike, RecoveredGroup, StoredEntry
from quorum_queue.raft.errors import EntryLost
from quorum_queue.raft.messages import Entry

#: Bit in the number of the group that holds entries kept aside.
ASIDE = 1 << 63


class GroupStore(Groups):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        #: Index below which entries may be kept aside, by group.
        self._aside: dict[int, int] = {}

    def recovered(self) -> dict[int, RecoveredGroup]:
        """Return stored groups. Only at start, before anything is submitted."""
        found = {group.group: group for group in self.recover()}
        for number, group in found.items():
            if number & ASIDE and group.snapshot is not None:
                self._aside[number & ~ASIDE] = group.snapshot[0]
        return found

    def begin_aside(self, group: int, index: int, term: int) -> None:
        if self._aside.get(group, -1) < index:
            self._aside[group] = index
            self.snapshot(group | ASIDE, index, term, b"")

    def keep_aside(self, group: int, entries: Sequence[EntryLike]) -> None:
        self.keep(group | ASIDE, entries)

    def read(self, group: int, low: int, high: int, max_bytes: int) -> list[StoredEntry]:
        """Read entries of a group. Raises quorum_queue.raft.errors.EntryLost."""
        try:
            return super().read(group, low, high, max_bytes)
        except errors.EntryLost as error:
            if low == high and low <= self._aside.get(group, -1):
                try:
                    return super().read(group | ASIDE, low, low, max_bytes)
                except errors.EntryLost:
                    pass
            raise EntryLost(error.index) from error

    def warm(self, group: int, spans: list[tuple[int, int]], done: Callable[[], None]) -> bool:
        low = [span for span in spans if span[0] <= self._aside.get(group, -1)]

        def then() -> None:
            if Groups.warm(self, group, spans, done):
                done()

        if low and not super().warm(group | ASIDE, low, then):
            return False
        return super().warm(group, spans, done)

    def drop_entries(self, group: int, spans: Iterable[range]) -> None:
        gone = list(spans)
        super().drop_entries(group, gone)
        aside = self._aside.get(group)
        if aside is not None:
            clipped = [range(span.start, min(span.stop, aside + 1), span.step) for span in gone]
            super().drop_entries(group | ASIDE, [span for span in clipped if span])

    def drop(self, group: int) -> None:
        super().drop(group)
        if self._aside.pop(group, None) is not None:
            super().drop(group | ASIDE)


class GroupLog:
    """The entries of one group. See quorum_queue.raft.log.Storage."""

    __slots__ = ("_group", "_store")

    def __init__(self, store: GroupStore, group: int) -> None:
        self._store = store
        self._group = group

    def entries(self, low: int, high: int, max_bytes: int) -> Sequence[Entry]:
        found = self._store.read(self._group, low, high, max_bytes)
        return [Entry(index, term, kind, bytes(data)) for index, term, kind, data in found]
