"""Changes of one Raft group within one layer.

The result of any sequence of calls is: the contents below (the older layers and the disk), without the log
from `cut` on, without the erased entries, and with `entries`. So layers can be merged, and a read asks them
from the newest to the oldest.
"""

from persistence import settled
from persistence.record import Payload
from persistence.replica_logs.record import EntryLike


class GroupChanges:
    __slots__ = ("cut", "dropped", "entries", "hard", "kept", "snapshot", "starts", "stops")

    def __init__(self) -> None:
        self.clear()
        self.dropped = False  # the group was dropped, before all other changes here

    def clear(self) -> None:
        self.cut: int | None = None  # all entries below from this index on are gone
        self.entries: dict[int, EntryLike] = {}
        self.kept = False  # true if some of the entries may also lie below
        self.starts: list[int] = []  # erased intervals
        self.stops: list[int] = []
        self.hard: tuple[int, str] | None = None
        self.snapshot: tuple[int, int, Payload] | None = None

    def truncate(self, index: int, last: int) -> None:
        """The log, which ends with last, now ends before index."""
        self._remove(index, last + 1)
        self.cut = index if self.cut is None else min(self.cut, index)

    def erase(self, start: int, stop: int) -> None:
        self._remove(start, stop)
        # Entries are settled roughly in their order, so often only the last interval grows.
        if self.stops and self.stops[-1] == start:
            self.stops[-1] = stop
        else:
            self.starts.append(start)
            self.stops.append(stop)

    def _remove(self, start: int, stop: int) -> None:
        if stop - start <= len(self.entries):
            for index in range(start, stop):
                self.entries.pop(index, None)
        else:
            for index in [index for index in self.entries if start <= index < stop]:
                del self.entries[index]

    def erased(self) -> tuple[list[int], list[int]]:
        """The erased intervals, sorted and disjoint."""
        self.starts, self.stops = settled.merge(self.starts, self.stops)
        return self.starts, self.stops

    def hides(self, index: int) -> bool:
        """Return whether this layer removes an entry with this index from the layers below."""
        if self.dropped or (self.cut is not None and index >= self.cut):
            return True
        return bool(self.starts) and settled.contains(*self.erased(), index)

    def drop(self) -> None:
        self.clear()
        self.dropped = True

    def only_erases(self) -> bool:
        return not self.entries and self.cut is None and self.hard is None and self.snapshot is None

    def absorb(self, later: "GroupChanges") -> None:
        if later.dropped:
            self.drop()
        if later.cut is not None:
            self.truncate(later.cut, max(self.entries, default=0))
        for start, stop in zip(later.starts, later.stops, strict=True):
            self.erase(start, stop)
        self.entries.update(later.entries)
        self.kept = self.kept or later.kept
        self.hard = later.hard or self.hard
        self.snapshot = later.snapshot or self.snapshot
