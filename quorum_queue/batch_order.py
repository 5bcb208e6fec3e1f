"""Which batches of commands a replica has taken of each node: the rule that all replicated logs share.

A node numbers its batches from 1 on, anew in each start (incarnation). A batch may be in the log twice,
because it was sent again to the next leader, and that of an earlier start may come behind one of a later
start. After an entry that no member can read, the next batch of each node is taken although earlier ones are
missing: those were in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: Returned for a batch that is not the next one.
NOT_NEXT: Final = -1


class BatchOrder:
    """Pure: it depends only on the log."""

    __slots__ = ("gap", "last")

    def __init__(self, last: Iterable[tuple[str, int, int]] = (), gap: Iterable[str] | None = None) -> None:
        """The arguments are what `rows` and `heard` have returned."""
        #: Incarnation and number of the last batch taken, by node.
        self.last: dict[str, tuple[int, int]] = {
            node: (incarnation, number) for node, incarnation, number in last
        }
        #: After an entry was given up: the nodes with a batch taken since.
        self.gap: dict[str, None] | None = None if gap is None else dict.fromkeys(gap)

    def rows(self) -> list[tuple[str, int, int]]:
        """Return node, incarnation and number of the last batches, by node."""
        return [(node, last[0], last[1]) for node, last in sorted(self.last.items())]

    def heard(self) -> list[str] | None:
        """Return the nodes with a batch taken since an entry was given up; None if none was."""
        return None if self.gap is None else sorted(self.gap)

    def passed_over(self) -> None:
        """An entry is lost on all members."""
        self.gap = {}

    def begins(self, node: str, incarnation: int) -> bool:
        """True if nothing was taken of this start of the node, nor of a later one."""
        return incarnation > self.last.get(node, (0, 0))[0]

    def number_of(self, node: str, incarnation: int) -> int:
        """Return the number of the last batch of this start, 0 if it is not the latest one."""
        latest, number = self.last.get(node, (0, 0))
        return number if latest == incarnation else 0

    def take(self, node: str, incarnation: int, number: int) -> int:
        """Note a batch. Return the number of the one before it in its start, 0 for none, and NOT_NEXT if it
        must be left out, which notes nothing.
        """
        latest, last = self.last.get(node, (0, 0))
        if incarnation != latest:
            last = 0
        if incarnation < latest or number <= last:
            return NOT_NEXT
        gap = self.gap
        if number > last + 1 and (gap is None or node in gap):
            return NOT_NEXT
        self.last[node] = incarnation, number
        if gap is not None:
            gap[node] = None
        return last
