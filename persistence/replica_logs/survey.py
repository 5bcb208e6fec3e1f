"""Reconstructs the state of one group from the heads of its entries at a start."""

from persistence.replica_logs.record import RecoveredGroup


class Survey:
    """Gets each entry on disk, from the lowest on.

    A damaged head is at its old place, but its key may be the damaged part. In the log the earlier entries
    tell which one it was; below the snapshot no one asks for an entry that is not needed.
    """

    __slots__ = ("_kinds", "_lost", "_tail", "_terms", "snapshot", "snapshot_term", "stored")

    def __init__(self, snapshot: int, snapshot_term: int) -> None:
        self.snapshot = snapshot
        self.snapshot_term = snapshot_term
        self.stored: list[range] = []
        self._terms: list[tuple[int, int]] = []  # of all entries
        self._kinds: dict[int, list[int]] = {}  # of the log
        self._lost: list[int] = []
        self._tail = 0  # damaged entries of the log after the last good one

    def sound(self, index: int, term: int, kind: int) -> None:
        self._tail = 0
        if not self._terms or self._terms[-1][1] != term:
            self._terms.append((index, term))
        if kind and index > self.snapshot:
            self._kinds.setdefault(kind, []).append(index)
        if self.stored and self.stored[-1].stop == index:
            self.stored[-1] = range(self.stored[-1].start, index + 1)
        else:
            self.stored.append(range(index, index + 1))

    def damaged(self, index: int) -> None:
        last = self._last()
        if index > self.snapshot or last >= self.snapshot:
            self._tail += 1
        elif index > last:
            self._lost.append(index)

    def recovered(
        self,
        group: int,
        term: int,
        vote: str,
        snapshot: tuple[int, int] | None,
        hard_lost: bool = False,
        snapshot_lost: bool = False,
    ) -> RecoveredGroup:
        if snapshot_lost:
            self._forget_snapshot()
        return RecoveredGroup(
            group=group,
            term=term,
            vote=vote,
            snapshot=snapshot,
            first_index=self.snapshot + 1,
            last_index=self.last_index(),
            terms=self._log_terms(),
            stored=self.stored,
            kinds=self._kinds,
            lost=self._all_lost(),
            hard_lost=hard_lost,
            snapshot_lost=snapshot_lost,
        )

    def last_index(self) -> int:
        return max(self._last(), self.snapshot) + self._tail

    def is_empty(self) -> bool:
        return not (self.stored or self._lost or self._tail)

    def _forget_snapshot(self) -> None:
        """The start of the log is unknown: assume that it begins with the last entries without a gap."""
        self.snapshot = self.stored[-1].start - 1 if self.stored else 0
        self._kinds = {
            kind: [index for index in indexes if index > self.snapshot]
            for kind, indexes in self._kinds.items()
        }

    def _log_terms(self) -> list[tuple[int, int]]:
        first = self.snapshot + 1
        if self.last_index() < first:
            return []
        terms = [(index, term) for index, term in self._terms if index > first]
        if not terms or terms[0][0] > first:
            before = [term for index, term in self._terms if index <= first]
            terms.insert(0, (first, max([*before, self.snapshot_term])))
            if len(terms) > 1 and terms[1][1] == terms[0][1]:
                del terms[1]
        return terms

    def _all_lost(self) -> list[int]:
        """The lost entries in order, the gaps of the log included."""
        lost = {*self._lost}
        expected = self.snapshot + 1
        for span in self.stored:
            lost.update(range(expected, span.start))
            expected = max(expected, span.stop)
        lost.update(range(expected, self.last_index() + 1))
        return sorted(lost)

    def _last(self) -> int:
        stored = self.stored[-1].stop - 1 if self.stored else 0
        return max(stored, self._lost[-1] if self._lost else 0)
