"""Logs, votes and snapshots of the node's Raft groups.

They share the node's one transaction with the journal and the metadata: submissions go into the open layer
and are durable with the next commit. Indexes above the snapshot are the group's log; entries at and below it
remain only because they hold live messages. Only `read…` and `recover` touch the disk, and, once for each
group, the first call that has to know where its log ends.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from persistence.errors import EntryLost
from persistence.ports import Store
from persistence.record import Payload, size_of
from persistence.replica_logs.changes import GroupChanges
from persistence.replica_logs.record import ENTRY_BYTES_MAX, INDEX_MAX, EntryLike, RecoveredGroup, StoredEntry

# Indexes of a range that are looked up in the waiting layers before the disk is asked.
LOOKUPS_MAX: Final = 64


class Bounds:
    """The begin and end of a group's log, as submitted."""

    __slots__ = ("last", "snapshot")

    def __init__(self, snapshot: int, last: int) -> None:
        self.snapshot = snapshot
        self.last = last


class Groups:
    """One object for each store. All calls on the loop's thread; submitted
    data must not change afterwards.
    """

    def __init__(self, store: Store) -> None:
        self._store = store.groups
        self._pending = store.pending
        self._bounds: dict[int, Bounds] = {}

    @property
    def pending_bytes(self) -> int:
        """Bytes submitted and not yet durable, including the journal's."""
        return self._pending.bytes

    def last_index(self, group: int) -> int:
        """Last index of the log, as submitted; the snapshot's index if the log is empty."""
        bounds = self._bounds.get(group)
        return (self._submitted_bounds(group) if bounds is None else bounds).last

    # --- submitting

    def append(self, group: int, entries: Sequence[EntryLike]) -> None:
        """Consecutive entries, the first at most one after the end of the log.

        They replace the log from the first one's index on.
        """
        if not entries:
            return
        bounds = self._bounds_of(group)
        first = entries[0][0]
        if not bounds.snapshot < first <= bounds.last + 1:
            raise ValueError(
                f"append from {first} on to group {group}, which has a snapshot of {bounds.snapshot} "
                f"and ends with {bounds.last}"
            )
        for at, entry in enumerate(entries, first):
            if entry[0] != at:
                raise ValueError(f"the entries for group {group} from {first} on are not consecutive")
        size = _size_of(entries)
        changes = self._pending.open.group(group)
        if first <= bounds.last:
            changes.truncate(first, bounds.last)
        for entry in entries:
            changes.entries[entry[0]] = entry
        bounds.last = entries[-1][0]
        self._pending.count(size)

    def truncate(self, group: int, index: int) -> None:
        """Cut the log off before index.

        Needed before installing a snapshot: entries that were never committed must go.
        """
        bounds = self._bounds_of(group)
        if index <= bounds.snapshot:
            raise ValueError(
                f"the log of group {group} can't end before {index}, its snapshot is at {bounds.snapshot}"
            )
        if index <= bounds.last:
            self._pending.open.group(group).truncate(index, bounds.last)
            bounds.last = index - 1

    def hard(self, group: int, term: int, vote: str) -> None:
        self._pending.open.group(group).hard = term, vote

    def snapshot(self, group: int, index: int, term: int, state: Payload) -> None:
        """Replace the snapshot. Entries up to index leave the log, and stay until dropped.

        Before a snapshot that another node sent: `truncate(group, commit + 1)`. Entries up to the commit are
        the same everywhere; those after it may be others than the ones that the snapshot covers.
        """
        bounds = self._bounds_of(group)
        if not bounds.snapshot <= index <= INDEX_MAX:
            raise ValueError(f"a snapshot of group {group} at {index} after one at {bounds.snapshot}")
        self._pending.open.group(group).snapshot = index, term, state
        bounds.snapshot = index
        bounds.last = max(bounds.last, index)
        self._pending.count(size_of(state))

    def keep(self, group: int, entries: Sequence[EntryLike]) -> None:
        """Put these entries in their places, without truncating.

        Bodies below the snapshot, or entries of the log that were lost and fetched from a peer.
        """
        if not entries:
            return
        bounds = self._bounds_of(group)
        if not all(0 < entry[0] <= bounds.last for entry in entries):
            raise ValueError(f"entries to keep beyond the end of group {group}, {bounds.last}")
        size = _size_of(entries)
        changes = self._pending.open.group(group)
        changes.kept = True
        for entry in entries:
            changes.entries[entry[0]] = entry
        self._pending.count(size)

    def drop_entries(self, group: int, spans: Iterable[range]) -> None:
        """Drop entries whose messages are all gone. They must be at or below the snapshot: the log needs its
        own.
        """
        bounds = self._bounds_of(group)
        found = [(min(span), max(span) + 1, abs(span.step)) for span in spans if span]
        for start, stop, _ in found:
            if start < 0 or stop > bounds.snapshot + 1:
                raise ValueError(
                    f"entries {start} to {stop - 1} of group {group} are not all below its snapshot "
                    f"at {bounds.snapshot}"
                )
        if not found:
            return
        changes = self._pending.open.group(group)
        for start, stop, step in found:
            if step == 1:
                changes.erase(start, stop)
            else:
                for index in range(start, stop, step):
                    changes.erase(index, index + 1)

    def drop(self, group: int) -> None:
        """Drop the group, its vote included."""
        self._pending.open.group(group).drop()
        # Few groups begin anew under their number; until the drop is in the store, the layers show it.
        self._bounds.pop(group, None)

    # --- reading

    def read(self, group: int, low: int, high: int, max_bytes: int) -> list[StoredEntry]:
        """The entries low … high as submitted, but no more than max_bytes of them, and at least one.

        Raises EntryLost if one that is to be returned is missing or damaged.
        """
        layers = self._changes_of(group)
        if not layers:
            return self._store.entries(group, low, high, max_bytes)
        found: list[StoredEntry] = []
        size = 0
        index = low
        while index <= high and not (found and size >= max_bytes):
            entry = _submitted(layers, group, index)
            if entry is not None:
                part = [entry]
            else:
                stop = index + 1
                while stop <= min(high, index + LOOKUPS_MAX) and _lies_below(layers, stop):
                    stop += 1
                part = self._store.entries(group, index, stop - 1, max_bytes - size)
            for entry in part:
                size += len(entry.data)
                if found and size > max_bytes:
                    return found
                found.append(entry)
            index += len(part)
        return found

    def warm(self, group: int, spans: list[tuple[int, int]], done: Callable[[], None]) -> bool:
        """True if `read` of these entries does not wait for the disk; spans are first and last index.

        If not, `done` is called once, in a turn, when they can be read.
        """
        return self._store.warm(group, spans, done)

    def warm_group(self, group: int, done: Callable[[], None]) -> bool:
        """The same for `recover_one` and `read_state`."""
        return self._store.warm_group(group, done)

    def read_one(self, group: int, index: int) -> StoredEntry:
        return self.read(group, index, index, 0)[0]

    def read_state(self, group: int) -> tuple[int, int, bytes] | None:
        """Index, term and state of the snapshot as submitted. Raises CorruptSnapshot."""
        for changes in self._changes_of(group):
            if changes.snapshot is not None:
                index, term, state = changes.snapshot
                return index, term, state if isinstance(state, bytes) else b"".join(state)
            if changes.dropped:
                return None
        return self._store.state(group)

    def recover(self) -> Iterator[RecoveredGroup]:
        """All groups that have anything on disk, by number. At start, before anything is submitted."""
        for found in self._store.recover():
            self._note_bounds(found)
            yield found

    def recover_one(self, group: int) -> RecoveredGroup | None:
        """The stored data of one group.

        It must have no pending changes: request a commit `to_store` first.
        """
        if any(group in layer.groups for layer in self._pending):
            raise RuntimeError(f"the store lacks changes of group {group}")
        found = self._store.recover_one(group)
        if found is not None:
            self._note_bounds(found)
        return found

    def _note_bounds(self, found: RecoveredGroup) -> None:
        if self._changes_of(found.group):
            # It may have been dropped since.
            return
        if not found.snapshot_lost and found.group not in self._bounds:
            # All changes are submitted here, so the end of the log need not be looked up again.
            self._bounds[found.group] = Bounds(found.first_index - 1, found.last_index)

    def _changes_of(self, group: int) -> list[GroupChanges]:
        """Newest first."""
        return [layer.groups[group] for layer in reversed(self._pending.layers) if group in layer.groups]

    def _bounds_of(self, group: int) -> Bounds:
        bounds = self._bounds.get(group)
        if bounds is None:
            bounds = self._bounds[group] = self._submitted_bounds(group)
        return bounds

    def _submitted_bounds(self, group: int) -> Bounds:
        """Return the bounds of a group that has none in memory: nothing was added to it since its drop, or
        since the start.
        """
        if any(changes.dropped for changes in self._changes_of(group)):
            return Bounds(0, 0)
        return Bounds(*self._store.bounds(group))


def _size_of(entries: Sequence[EntryLike]) -> int:
    size = 0
    for entry in entries:
        if len(entry[3]) > ENTRY_BYTES_MAX:
            raise ValueError(f"an entry of {len(entry[3])} bytes, the limit is {ENTRY_BYTES_MAX}")
        size += len(entry[3])
    return size


def _submitted(layers: list[GroupChanges], group: int, index: int) -> StoredEntry | None:
    """The entry if it is in a waiting layer; None if it is on disk or does not exist."""
    for changes in layers:
        entry = changes.entries.get(index)
        if entry is not None:
            return StoredEntry._make(entry)
        if changes.hides(index):
            raise EntryLost(group, index)
    return None


def _lies_below(layers: list[GroupChanges], index: int) -> bool:
    return not any(index in changes.entries or changes.hides(index) for changes in layers)
