"""The core's view of its group's log.

Bodies are on disk. This holds the terms (run-length encoded: a log has few), how much is durable, and the
recent entries that the disk, the state machine or a reachable follower still needs. An idle group caches
nothing.

Nothing waits for the disk: an entry that is not in memory is requested first (`Ready.reads`), and read when
the host reports that it can be read without a wait (`came`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from quorum_queue.raft.errors import EntryLost
from quorum_queue.raft.messages import Entry

#: Bytes counted for each cached entry beside its data.
ENTRY_OVERHEAD: Final = 100
#: Entries requested from the disk at once.
READ_ENTRIES_MAX: Final = 64
#: Most spans of entries that are noted as readable: one for the state machine, one for each follower.
AT_HAND_MAX: Final = 8
_ENDLESS: Final = 1 << 63


class Storage(Protocol):
    def entries(self, low: int, high: int, max_bytes: int) -> Sequence[Entry]:
        """Return durable entries from low to high, or fewer, but at least one. Raises EntryLost."""


class Log:
    """Entries from snapshot_index + 1 to last_index. The snapshot covers all earlier ones."""

    __slots__ = (
        "_asked",
        "_at_hand",
        "_cache",
        "_cache_bytes",
        "_handed",
        "_storage",
        "_writing",
        "bounded_index",
        "last_index",
        "lost",
        "newly_asked",
        "newly_lost",
        "snapshot_index",
        "snapshot_term",
        "stable_index",
        "term_bound",
        "terms",
        "vague",
    )

    def __init__(
        self,
        storage: Storage,
        *,
        snapshot_index: int = 0,
        snapshot_term: int = 0,
        last_index: int = 0,
        terms: Iterable[tuple[int, int]] = (),
        holes: Iterable[int] = (),
        term_bound: int = 0,
    ) -> None:
        """`terms`: (first index, term) of each run of entries of one term, as found on disk.

        An unreadable entry gets its predecessor's term. `holes` are the unreadable entries. No entry has a
        term above `term_bound`.
        """
        self._storage = storage
        self.snapshot_index = snapshot_index
        self.snapshot_term = snapshot_term
        self.last_index = max(last_index, snapshot_index)
        #: The log is durable on this disk up to this index.
        self.stable_index = self.last_index
        self.terms = tuple((first, term) for first, term in terms if first <= self.last_index)
        self._cut_terms()
        #: Unreadable entries, and those that were not reported yet.
        self.lost: tuple[int, ...] = tuple(sorted(holes))
        self.newly_lost: tuple[int, ...] = self.lost
        #: Unreadable entries whose term is not known, because their neighbours' terms differ or no entry
        #: follows.
        self.vague: tuple[int, ...] = ()
        self.term_bound = term_bound
        #: If the log ends with this entry, it replaces a lost one whose term is still not known.
        self.bounded_index = -1
        #: The last entries of the log, without a gap. There may be thousands of idle logs: all empty
        #: collections share one object.
        self._cache: list[Entry] | tuple[()] = ()
        self._cache_bytes = 0
        #: The last index given to the disk, and the writes that were not reported done yet: (last index, its
        #: term, the index up to which the write still counts after truncations).
        self._handed = self.last_index
        self._writing: tuple[tuple[int, int, int], ...] = ()
        #: Spans (first and last index) that were requested and not read yet; that were not reported to the
        #: host yet; and that the disk has read and the readers have not used up.
        self._asked: tuple[tuple[int, int], ...] = ()
        self.newly_asked: tuple[tuple[int, int], ...] = ()
        self._at_hand: tuple[tuple[int, int], ...] = ()
        if self.lost:
            self._find_vague(self.lost)

    def _find_vague(self, holes: tuple[int, ...]) -> None:
        vague: list[int] = []
        for index in holes:
            anchor = self.anchor(index)
            if anchor > self.last_index or self.term_at(anchor) != self.term_at(index):
                vague.append(index)
        self.vague = tuple(vague)

    def anchor(self, index: int) -> int:
        """Return the first readable entry after this one, or the one after the last."""
        index += 1
        while index in self.lost:
            index += 1
        return index

    # -- terms -----------------------------------------------------------------------------------------------

    @property
    def last_term(self) -> int:
        """The term of the last entry, or the highest that it may have."""
        if self.last_index == self.bounded_index or (self.vague and self.vague[-1] == self.last_index):
            return self.term_bound
        return self.terms[-1][1] if self.terms else self.snapshot_term

    def term_at(self, index: int) -> int:
        """Return the term of an entry, or of the snapshot; -1 if neither is here."""
        if index == self.snapshot_index:
            return self.snapshot_term
        if not self.snapshot_index < index <= self.last_index:
            return -1
        first, term = self.terms[-1]
        if index >= first:
            # Mostly one of the last entries is asked for.
            return term
        return self.terms[bisect_right(self.terms, (index, _ENDLESS)) - 1][1]

    def has(self, index: int, term: int) -> bool:
        """Return whether this log has the entry. An unreadable last one of unknown term counts as none: a
        snapshot up to there has everything that this log may have.
        """
        return self.term_at(index) == term and not (index == self.last_index and index in self.vague)

    def last_before_conflict(self, index: int, term: int) -> int:
        """Return the last index up to this one whose term is not above `term`: the logs agree up to there at
        best.
        """
        index = min(index, self.last_index)
        for first, own in reversed(self.terms):
            if first <= index:
                if own <= term:
                    return index
                index = first - 1
        return index

    # -- appending -------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> None:
        """Append consecutive entries, or replace the end with them."""
        first = entries[0].index
        if first <= self.last_index:
            self.truncate(first)
        assert first == self.last_index + 1
        term = self.terms[-1][1] if self.terms else -1
        for entry in entries:
            if entry.term != term:
                term = entry.term
                self.terms += ((entry.index, term),)
            self._cache_bytes += len(entry.data) + ENTRY_OVERHEAD
        if isinstance(self._cache, list):
            self._cache += entries
        else:
            self._cache = list(entries)
        self.last_index = entries[-1].index

    def truncate(self, index: int) -> None:
        """Cut the log off before this entry."""
        kept = max(0, index - self._cache_first())
        for entry in self._cache[kept:]:
            self._cache_bytes -= len(entry.data) + ENTRY_OVERHEAD
        self._cache = list(self._cache[:kept]) or ()
        self.last_index = index - 1
        if self.bounded_index > self.last_index:
            self.bounded_index = -1
        while self.terms and self.terms[-1][0] >= index:
            self.terms = self.terms[:-1]
        self.stable_index = min(self.stable_index, self.last_index)
        self._handed = min(self._handed, self.last_index)
        # A write that is still under way does not bring back entries that are cut off now, even if the same
        # ones are appended again meanwhile: the disk cuts them off after that write.
        self._writing = tuple((last, term, min(counts, index - 1)) for last, term, counts in self._writing)
        self.lost = tuple(lost for lost in self.lost if lost < index)
        self.newly_lost = tuple(lost for lost in self.newly_lost if lost < index)
        self.vague = tuple(lost for lost in self.vague if lost < index)

    # -- the disk --------------------------------------------------------------------------------------------

    @property
    def unwritten(self) -> bool:
        return self._handed < self.last_index

    def take(self) -> tuple[Entry, ...]:
        """Return the entries that were not given to the disk yet."""
        if self._handed == self.last_index:
            return ()
        entries = tuple(self._cache[self._handed + 1 - self._cache_first() :])
        self._handed = self.last_index
        self._writing += ((self.last_index, entries[-1].term, self.last_index),)
        return entries

    def written(self, index: int, term: int) -> bool:
        """A write is done; return whether more of the log is durable now."""
        for at, (last, last_term, counts) in enumerate(self._writing):
            if last == index and last_term == term:
                self._writing = self._writing[at + 1 :]
                if counts > self.stable_index:
                    self.stable_index = counts
                    return True
                return False
        return False

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, low: int, high: int, max_bytes: int) -> tuple[Entry, ...]:
        """Return entries from `low` up to a lost one or one that needs a wait for the disk; perhaps none."""
        first = self._cache_first()
        if low < first:
            high = self._last_sound(low, min(high, first - 1))
            if low <= high:
                high = self._last_at_hand(low, high)
        return self.read_now(low, high, max_bytes)

    def read_now(self, low: int, high: int, max_bytes: int) -> tuple[Entry, ...]:
        """Return entries from `low` up to a lost one; waits for the disk if necessary."""
        high = self._last_sound(low, high)
        if low > high:
            return ()
        first = self._cache_first()
        found: list[Entry] = []
        if low < first:
            try:
                found += self._storage.entries(low, min(high, first - 1), max_bytes)
            except EntryLost as error:
                # Its term is known: it was read when the log began, or came with the entry.
                self.lost = tuple(sorted((*self.lost, error.index)))
                self.newly_lost += (error.index,)
                return self.read_now(low, error.index - 1, max_bytes)
            if self._at_hand:
                last = found[-1].index
                self._at_hand = tuple(span for span in self._at_hand if span[1] != last)
            return tuple(found)
        size = 0
        for at in range(low - first, high - first + 1):
            entry = self._cache[at]
            size += len(entry.data)
            if found and size > max_bytes:
                break
            found.append(entry)
        return tuple(found)

    def _last_sound(self, low: int, high: int) -> int:
        """Return the last of these entries before the first lost one."""
        for lost in self.lost:
            if lost >= low:
                high = min(high, lost - 1)
        return high

    def _last_at_hand(self, low: int, high: int) -> int:
        """Return the last of these entries that can be read without a wait. If there is none, request the
        first ones.
        """
        for begin, end in self._at_hand:
            if begin <= low <= end:
                return min(high, end)
        if not self.waits(low):
            span = (low, min(high, low + READ_ENTRIES_MAX - 1))
            self._asked += (span,)
            self.newly_asked += (span,)
        return low - 1

    def waits(self, index: int) -> bool:
        """True if this entry was requested from the disk and has not been given."""
        for begin, end in self._asked:  # noqa: SIM110 (a generator would be an object for each call)
            if begin <= index <= end:
                return True
        return False

    def came(self, low: int, high: int) -> None:
        """These entries can be read without a wait now."""
        self._asked = tuple(span for span in self._asked if span != (low, high))
        self._at_hand = (*self._at_hand[1 - AT_HAND_MAX :], (low, high))

    def found(self, index: int, term: int) -> None:
        """A lost entry is on disk again."""
        self.lost = tuple(lost for lost in self.lost if lost != index)
        self.newly_lost = tuple(lost for lost in self.newly_lost if lost != index)
        if index in self.vague:
            self._set_term(index, term)
            self._find_vague(tuple(other for other in self.vague if other != index))

    def _set_term(self, index: int, term: int) -> None:
        """The term of an entry has become known: unreadable ones after it may have it, too."""
        stop = min(self.anchor(index), self.last_index) + 1
        runs = [run for run in self.terms if run[0] < index]
        for at in range(index, stop):
            known = term if at == index or at in self.vague else self.term_at(at)
            if not runs or runs[-1][1] != known:
                runs.append((at, known))
        self.terms = (*runs, *(run for run in self.terms if run[0] >= stop))

    def unreadable_end(self) -> range:
        """Return the unreadable entries at the end of the log."""
        first = self.last_index + 1
        while first - 1 in self.vague:
            first -= 1
        return range(first, self.last_index + 1)

    def is_vague(self, low: int, high: int) -> bool:
        """Return whether the term of one of these entries is not known."""
        return any(low <= index <= high for index in self.vague)

    def trim(self, needed_after: int, bytes_max: int, needed_at_least_after: int) -> None:
        """Drop cached entries up to the first index, or up to the last if the cache is too large."""
        if self._cache_bytes > bytes_max:
            needed_after = needed_at_least_after
        count = min(needed_after, self.stable_index) + 1 - self._cache_first()
        if count > 0:
            cache = self._cache
            for entry in cache[:count]:
                self._cache_bytes -= len(entry.data) + ENTRY_OVERHEAD
            if count < len(cache) and isinstance(cache, list):
                del cache[:count]
            else:
                self._cache = ()

    def _cache_first(self) -> int:
        return self.last_index + 1 - len(self._cache)

    # -- snapshots -------------------------------------------------------------------------------------------

    def compact(self, index: int) -> None:
        """Forget the entries up to this one, which a snapshot covers."""
        self.snapshot_term = self.term_at(index)
        self.snapshot_index = index
        self.stable_index = max(self.stable_index, index)
        self._cut_terms()
        self.lost = tuple(lost for lost in self.lost if lost > index)
        self.newly_lost = tuple(lost for lost in self.newly_lost if lost > index)
        self.vague = tuple(lost for lost in self.vague if lost > index)

    def reset(self, index: int, term: int) -> None:
        """Start after a snapshot that replaces the whole log."""
        self.snapshot_index = self.last_index = self.stable_index = self._handed = index
        self.snapshot_term = term
        self.terms = self._cache = self._writing = ()
        self._cache_bytes = 0
        self.bounded_index = -1
        self.lost = self.newly_lost = self.vague = ()

    def _cut_terms(self) -> None:
        """Let the first run begin right after the snapshot."""
        first = self.snapshot_index + 1
        while len(self.terms) > 1 and self.terms[1][0] <= first:
            self.terms = self.terms[1:]
        if self.last_index < first:
            self.terms = ()
        elif self.terms and self.terms[0][0] < first:
            self.terms = ((first, self.terms[0][1]), *self.terms[1:])
