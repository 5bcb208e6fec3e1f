"""Reads objects through a cache of a bounded size, and reads ahead where a reader goes from front to back.

All streams of a node share one cache. A block is a part of an object; the least recently used one goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final

from persistence.streams.remote.objects import Objects

#: Bytes of a block, the unit of reads, and blocks that one request reads at most.
BLOCK_BYTES: Final = 256 * 1024
AHEAD_MAX: Final = 16


class ObjectCache:
    """Several threads may read at the same time."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = Lock()
        #: By key and number of the block.
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        #: Where a reader is expected to go on, and the number of blocks that the next request reads.
        self._expected: OrderedDict[tuple[str, int], int] = OrderedDict()
        self.bytes = 0
        self.hits = self.misses = 0

    def read(self, objects: Objects, key: str, position: int, size: int, end: int) -> bytes:
        """Return these bytes of an object; fewer only at `end`, where it ends. Raises Unavailable."""
        stop = min(position + size, end)
        if position >= stop:
            return b""
        number = position // BLOCK_BYTES
        last = (stop - 1) // BLOCK_BYTES
        parts: list[bytes] = []
        while number <= last:
            block = self._cached(key, number)
            found = [block] if block is not None else self._fetch(objects, key, number, last, end)
            parts += found
            number += len(found)
        start = position % BLOCK_BYTES
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return data[start : start + stop - position]

    def _cached(self, key: str, number: int) -> bytes | None:
        with self._lock:
            block = self._blocks.get((key, number))
            if block is None:
                self.misses += 1
            else:
                self.hits += 1
                self._blocks.move_to_end((key, number))
            return block

    def _fetch(self, objects: Objects, key: str, number: int, last: int, end: int) -> list[bytes]:
        """Read the blocks from this one to the last one, and more if a reader goes on where one has ended."""
        with self._lock:
            ahead = self._expected.pop((key, number), 1)
        # One reader must not push out its own blocks before it has read them.
        most = max(min(AHEAD_MAX, self._bytes_max // (4 * BLOCK_BYTES)), 1)
        count = min(max(last - number + 1, ahead), most)
        start = number * BLOCK_BYTES
        wanted = min(start + count * BLOCK_BYTES, end) - start
        data = objects.read(key, start, wanted)
        blocks = [data[at : at + BLOCK_BYTES] for at in range(0, max(len(data), 1), BLOCK_BYTES)]
        with self._lock:
            self._expected[key, number + len(blocks)] = min(2 * count, most)
            while len(self._expected) > 256:
                self._expected.popitem(last=False)
            if len(data) == wanted:
                for each, block in enumerate(blocks, number):
                    self._keep((key, each), block)
        return blocks

    def _keep(self, place: tuple[str, int], block: bytes) -> None:
        self.bytes += len(block) - len(self._blocks.pop(place, b""))
        self._blocks[place] = block
        while self.bytes > self._bytes_max and self._blocks:
            self.bytes -= len(self._blocks.popitem(last=False)[1])

    def forget(self, key: str) -> None:
        """The store may have returned wrong bytes of this object, or it is deleted."""
        with self._lock:
            for place in [place for place in self._blocks if place[0] == key]:
                self.bytes -= len(self._blocks.pop(place))


__all__ = ["ObjectCache"]
