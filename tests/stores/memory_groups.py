"""The Raft groups of the store in memory: plain dictionaries, and damage on demand."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from persistence import settled
from persistence.commits.layer import Layer
from persistence.errors import CorruptSnapshot, EntryLost
from persistence.replica_logs.changes import GroupChanges
from persistence.replica_logs.record import RecoveredGroup, StoredEntry
from persistence.replica_logs.survey import Survey


@dataclass
class MemoryGroup:
    entries: dict[int, StoredEntry] = field(default_factory=dict)
    hard: tuple[int, str] | None = None
    snapshot: tuple[int, int, bytes] | None = None
    damaged: dict[int, str] = field(default_factory=dict)  # index → what is wrong with the entry
    snapshot_damaged: bool = False

    def apply(self, changes: GroupChanges) -> None:
        starts, stops = changes.erased()
        if changes.cut is not None or starts:
            cut = changes.cut
            for index in list(self.entries):
                if (cut is not None and index >= cut) or settled.contains(starts, stops, index):
                    del self.entries[index]
                    self.damaged.pop(index, None)
        for index, entry in changes.entries.items():
            self.entries[index] = StoredEntry._make(entry)
            self.damaged.pop(index, None)
        self.hard = changes.hard or self.hard
        if changes.snapshot is not None:
            index, term, state = changes.snapshot
            self.snapshot = index, term, state if isinstance(state, bytes) else b"".join(state)
            self.snapshot_damaged = False


class MemoryGroups:
    """Implements ports.GroupStore."""

    def __init__(self, random: Random, warm: Callable[[Callable[[], None]], bool]) -> None:
        self.groups: dict[int, MemoryGroup] = {}
        #: Whether any entry was ever damaged.
        self.was_damaged = False
        #: Entries with messages that were read before the disk was asked for them or had them: the loop stood
        #: still.
        self.stood_still: list[tuple[int, int]] = []
        self._given: set[tuple[int, int]] = set()
        self._random = random
        self._warm = warm

    def warm(self, group: int, spans: list[tuple[int, int]], done: Callable[[], None]) -> bool:
        asked = {(group, index) for low, high in spans for index in range(low, high + 1)}

        def given() -> None:
            self._given |= asked
            done()

        at_hand = self._warm(given)
        if at_hand:
            self._given |= asked
        return at_hand

    def warm_group(self, group: int, done: Callable[[], None]) -> bool:
        return self._warm(done)

    def apply(self, layer: Layer) -> None:
        for number, changes in layer.groups.items():
            group = MemoryGroup() if changes.dropped else self.groups.get(number, MemoryGroup())
            group.apply(changes)
            if group.entries or group.hard is not None or group.snapshot is not None:
                self.groups[number] = group
            else:
                self.groups.pop(number, None)

    def crash(self) -> None:
        """The process dies; the next one asks for everything again."""
        self._given.clear()
        self.stood_still.clear()

    # --- faults

    def flip(self, group: int, index: int) -> None:
        """Flip a bit of the stored entry. Does not touch submissions that are not written yet."""
        if index not in self.groups[group].entries:
            raise ValueError(f"group {group} has no entry {index} on disk")
        self.was_damaged = True
        self.groups[group].damaged[index] = "does not match its checksum"

    def flip_any(self, but: "MemoryGroups | None" = None) -> tuple[int, int] | None:
        """Flip a bit of an entry that the seed picks, except those damaged on a certain other disk. Returns
        which.
        """
        there = [
            (number, index)
            for number, group in self.groups.items()
            for index in group.entries
            if but is None or index not in but.groups.get(number, MemoryGroup()).damaged
        ]
        if not there:
            return None
        number, index = self._random.choice(there)
        self.flip(number, index)
        return number, index

    def tear(self, group: int) -> int | None:
        """Cut off the last entry. Returns which."""
        found = self.groups.get(group)
        if found is None or not found.entries:
            return None
        index = max(found.entries)
        self.was_damaged = True
        found.damaged[index] = "is cut off"
        return index

    def flip_snapshot(self, group: int) -> None:
        self.groups[group].snapshot_damaged = self.was_damaged = True

    # --- reading

    def entries(self, group: int, low: int, high: int, max_bytes: int) -> list[StoredEntry]:
        there = self.groups.get(group, MemoryGroup())
        found: list[StoredEntry] = []
        size = 0
        for index in range(low, high + 1):
            if found and size >= max_bytes:
                break
            entry = there.entries.get(index)
            size += len(entry.data) if entry else 0
            if found and size > max_bytes:
                break
            if entry is None:
                raise EntryLost(group, index)
            if index in there.damaged:
                raise EntryLost(group, index, there.damaged[index])
            if not entry.kind and (group, index) not in self._given:
                self.stood_still.append((group, index))
            found.append(entry)
        return found

    def bounds(self, group: int) -> tuple[int, int]:
        snapshot = self.snapshot_index(group)
        there = self.groups.get(group, MemoryGroup())
        return snapshot, max(snapshot, max(there.entries, default=0))

    def snapshot_index(self, group: int) -> int:
        found = self.groups.get(group, MemoryGroup()).snapshot
        return 0 if found is None else found[0]

    def state(self, group: int) -> tuple[int, int, bytes] | None:
        found = self.groups.get(group, MemoryGroup())
        if found.snapshot_damaged:
            raise CorruptSnapshot(group, "does not match its checksum")
        return found.snapshot

    def recover(self) -> Iterator[RecoveredGroup]:
        for number in sorted(self.groups):
            found = self.recover_one(number)
            if found is not None:
                yield found

    def recover_one(self, number: int) -> RecoveredGroup | None:
        group = self.groups.get(number)
        if group is None:
            return None
        snapshot = None if group.snapshot is None else group.snapshot[:2]
        survey = Survey(*(snapshot or (0, 0)))
        for index, entry in sorted(group.entries.items()):
            if index in group.damaged:
                survey.damaged(index)
            else:
                survey.sound(index, entry.term, entry.kind)
        term, vote = group.hard or (0, "")
        return survey.recovered(number, term, vote, snapshot)
