"""When messages of a queue expire, wherever they stand.

No message has an entry of its own: positions are cut into blocks, and each block that has messages with a
deadline has the time before which none of them expires. The messages themselves know the rest. A time may be
too early, because messages leave without a word; then somebody looks at the block in vain, once.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from quorum_queue.machine.positions import Positions
from quorum_queue.machine.run import Run

#: Positions of a block, as a power of two: so many are looked at when one of them expires.
BLOCK_BITS: Final = 8
#: The block of messages that are not in the order of their positions.
OUT_OF_ORDER: Final = -1
#: So many more blocks than necessary are kept before the list is made again.
SPARE_BLOCKS: Final = 64


class Deadlines:
    """The blocks with the times at which somebody has to look at them, ms."""

    __slots__ = ("_due", "_heap", "_most")

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        #: Entries that are not in `_due` any more are passed over.
        self._heap: list[tuple[int, int]] = []
        self._most = SPARE_BLOCKS

    @property
    def next_ms(self) -> int | None:
        """The next time at which somebody has to look, None for never."""
        heap, due = self._heap, self._due
        while heap:
            at_ms, block = heap[0]
            if due.get(block) == at_ms:
                return at_ms
            heappop(heap)
        return None

    @property
    def has_too_many(self) -> bool:
        """True if most blocks may be of messages that have left."""
        return len(self._due) > self._most

    def note(self, run: Run, expires_at: int, *, in_order: bool) -> None:
        """Messages came, none of which expires before this time."""
        if not in_order:
            self.note_block(OUT_OF_ORDER, expires_at)
            return
        seqs = run.seqs
        blocks: Iterable[int] = range(seqs[0] >> BLOCK_BITS, (seqs[-1] >> BLOCK_BITS) + 1)
        if isinstance(seqs, Positions):
            # They may lie far from one another.
            blocks = sorted({seq >> BLOCK_BITS for seq in seqs})
        for block in blocks:
            self.note_block(block, expires_at)

    def note_block(self, block: int, at_ms: int) -> None:
        known = self._due.get(block)
        if known is None or at_ms < known:
            self._due[block] = at_ms
            heappush(self._heap, (at_ms, block))
            if len(self._heap) > 2 * len(self._due) + SPARE_BLOCKS:
                self._heap = [(due_ms, each) for each, due_ms in self._due.items()]
                heapify(self._heap)

    def begin_again(self) -> None:
        """Forget all, to be told what there is; see `end_again`."""
        self._due.clear()
        self._heap.clear()

    def end_again(self) -> None:
        self._most = 2 * len(self._due) + SPARE_BLOCKS

    def take(self, now_ms: int) -> list[tuple[int, int]]:
        """Take the blocks that somebody has to look at, in order, with their times."""
        taken: list[tuple[int, int]] = []
        while (at_ms := self.next_ms) is not None and at_ms <= now_ms:
            block = heappop(self._heap)[1]
            del self._due[block]
            taken.append((block, at_ms))
        # Which blocks are looked at in vain depends on what was here: nothing else may.
        taken.sort()
        return taken


#: Of a queue whose messages have no deadlines.
NO_DEADLINES: Final = Deadlines()

__all__ = ["BLOCK_BITS", "NO_DEADLINES", "OUT_OF_ORDER", "Deadlines"]
