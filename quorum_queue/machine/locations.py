"""Locations of bodies: maps positions in the queue to (entry of the log, ordinal of the message within it).

A span is a range of positions whose bodies follow one another in one entry. Spans are numbers in columns,
found by bisection: a queue of a million messages in entries of a hundred has ten thousand spans. The
unsettled messages are counted for each entry, so one old unacked message pins its own entry and no other.

Spans are kept in blocks of some hundreds. All blocks but the last are closed: the numbers in their columns
are small, because they count from the block's first position and entry, and take as few bytes as they need.
A message that came alone takes five to seven. What concerns very many messages, such as a purge, is done
block by block.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

import msgspec

from quorum_queue.machine.arrays import packed, unpacked
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.positions import Positions, Seqs, seqs_of
from quorum_queue.machine.snapshots.states import LocationsState

#: A block is closed with the first entry after this number of spans.
BLOCK_SPANS = 512
#: Spans of released entries are removed from the last block when there are this many.
SWEEP_SPANS_MIN = 64
#: Blocks that are made smaller at once.
SWEEP_BLOCKS_MAX: Final = 4
#: Positions up to this number are forgotten span by span.
FEW = 4096


class Block:
    """The spans of some entries. All spans of an entry are in one block."""

    __slots__ = (
        "counts",
        "entries",
        "entry",
        "first",
        "firsts",
        "gone",
        "left",
        "live",
        "newest",
        "open",
        "ordinals",
        "thin",
    )

    def __init__(self) -> None:
        #: What `firsts` and `entries` count from.
        self.first = self.entry = 0
        self.firsts: array[int] | range = array("q")
        self.counts = array("q")
        self.entries: array[int] | range = array("q")
        self.ordinals = array("q")
        #: Unsettled messages of each entry, at the place of its first span; 0 at the others.
        self.live = array("q")
        #: Place of the first span of the newest entry.
        self.newest = 0
        #: Unsettled messages.
        self.left = 0
        #: Spans of released entries.
        self.gone = 0
        self.open = True
        #: True if it is to be made smaller.
        self.thin = False

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def low(self) -> int:
        """The first position."""
        return self.first + self.firsts[0]

    @property
    def stop(self) -> int:
        """The position after the last one."""
        return self.first + self.firsts[-1] + self.counts[-1]

    @property
    def low_entry(self) -> int:
        return self.entry + self.entries[0]

    @property
    def last_entry(self) -> int:
        return self.entry + self.entries[-1]

    def place_of(self, entry: int) -> int:
        """Return the place of an entry's first span, or -1."""
        at = bisect_left(self.entries, entry - self.entry)
        return at if at < len(self.entries) and self.entries[at] == entry - self.entry else -1

    def append(self, first: int, count: int, entry: int, ordinal: int) -> None:
        """Append a span to an open block; `live` is the caller's."""
        firsts, entries = self.firsts, self.entries
        assert isinstance(firsts, array) and isinstance(entries, array)
        firsts.append(first)
        self.counts.append(count)
        entries.append(entry)
        self.ordinals.append(ordinal)

    def close(self) -> None:
        """Take less memory; nothing will be appended."""
        self.open = False
        first, entry = self.firsts[0], self.entries[0]
        self.first, self.entry = self.first + first, self.entry + entry
        count = len(self.firsts)
        # Mostly messages come alone, one after the other, in entries that follow each other.
        rises = self.firsts[-1] - first == count - 1
        self.firsts = range(count) if rises else _narrow([number - first for number in self.firsts])
        rises = self.entries[-1] - entry == count - 1 and 0 not in self.live
        self.entries = range(count) if rises else _narrow([number - entry for number in self.entries])
        self.counts, self.ordinals = _narrow(self.counts), _narrow(self.ordinals)
        self.live = _narrow(self.live)

    def copy(self) -> Block:
        """Return this block as it is now: a later change does not show in the copy."""
        block = Block()
        block.first, block.entry = self.first, self.entry
        if self.open:
            block.firsts, block.counts = self.firsts[:], self.counts[:]
            block.entries, block.ordinals = self.entries[:], self.ordinals[:]
        else:
            block.firsts, block.counts = self.firsts, self.counts
            block.entries, block.ordinals = self.entries, self.ordinals
        block.live = self.live[:]
        block.left, block.gone, block.open = self.left, self.gone, self.open
        return block

    def kept(self) -> list[int]:
        """Return the places of the spans of entries that are not released."""
        if not self.gone:
            return list(range(len(self.firsts)))
        kept: list[int] = []
        live, entries = self.live, self.entries
        pinned, entry = False, -1
        for at in range(len(live)):
            if entries[at] != entry:
                entry, pinned = entries[at], live[at] > 0
            if pinned:
                kept.append(at)
        return kept

    def pinned(self) -> Iterator[range]:
        """Yield the entries with unsettled messages."""
        entries, entry = self.entries, self.entry
        if entries[-1] - entries[0] + 1 == len(entries) and 0 not in self.live:
            yield range(self.low_entry, self.last_entry + 1)
            return
        low = stop = -1
        for at, left in enumerate(self.live):
            if left:
                if entries[at] != stop:
                    if stop >= 0:
                        yield range(entry + low, entry + stop)
                    low = entries[at]
                stop = entries[at] + 1
        if stop >= 0:
            yield range(entry + low, entry + stop)


def _narrow(numbers: list[int] | array[int]) -> array[int]:
    """Return an array with elements as small as possible."""
    most = max(numbers)
    return array("B" if most < 1 << 8 else "H" if most < 1 << 16 else "I" if most < 1 << 32 else "q", numbers)


#: The blocks of a queue that has never held a message; thousands may share them. Never written to.
_NONE: Final[list[Block]] = []


class Locations:
    """Spans in the order of positions."""

    __slots__ = ("_blocks", "_empty", "_lows", "_released", "_thin")

    def __init__(self) -> None:
        self._blocks: list[Block] = _NONE
        #: The first position of each block.
        self._lows: list[int] = []
        #: True if some blocks hold nothing any more. What is released stays readable until the next `add`.
        self._empty = False
        #: Blocks of which half is released.
        self._thin: list[Block] | tuple[()] = ()
        self._released: list[range] | tuple[()] = ()

    def __len__(self) -> int:
        return sum(len(block) - block.gone for block in self._blocks)

    def add(self, first_seq: int, count: int, entry: int, ordinal: int) -> None:
        """These positions, higher than all before, lie in `entry` from `ordinal` on."""
        if self._empty or self._thin:
            self._sweep()
        blocks = self._blocks
        block = blocks[-1] if blocks else None
        if block is not None and block.open:
            last = len(block.firsts) - 1
            if block.entries[last] == entry:
                block.live[block.newest] += count
                block.left += count
                end = block.firsts[last] + block.counts[last]
                if end == first_seq and block.ordinals[last] + block.counts[last] == ordinal:
                    block.counts[last] += count
                    return
                block.live.append(0)
                block.append(first_seq, count, entry, ordinal)
                return
            if last + 1 >= BLOCK_SPANS:
                block.close()
                block = None
        else:
            block = None
        if block is None:
            block = Block()
            if blocks is _NONE:
                self._blocks = blocks = []
                self._lows = []
            blocks.append(block)
            self._lows.append(first_seq)
        block.newest = len(block.firsts)
        block.live.append(count)
        block.left += count
        block.append(first_seq, count, entry, ordinal)

    def find(self, seqs: Seqs) -> list[tuple[int, Seqs]]:
        """Return the entries of these positions, in order, each with the ordinals within it. Raises KeyError.

        Also finds positions that were forgotten since the last `add`.
        """
        return [(block.entry + block.entries[at], ordinals) for block, at, ordinals in self._pieces(seqs)]

    def _pieces(self, seqs: Seqs) -> list[tuple[Block, int, Seqs]]:
        """The spans of these positions, each with ordinals."""
        if isinstance(seqs, Positions):
            return self._scattered(list(seqs))
        step, left = seqs.step, len(seqs)
        if step < 1:
            raise KeyError(f"positions {seqs} run backwards")
        pieces: list[tuple[Block, int, Seqs]] = []
        seq = seqs.start
        number = bisect_right(self._lows, seq) - 1
        while left:
            if number < 0:
                raise KeyError(f"position {seq} is in no entry")
            block = self._blocks[number]
            firsts, counts, first = block.firsts, block.counts, block.first
            at = bisect_right(firsts, seq - first) - 1
            while left:
                start = first + firsts[at]
                end = start + counts[at]
                if seq < start or seq >= end:
                    raise KeyError(f"position {seq} is in no entry")
                length = min(left, (end - seq + step - 1) // step)
                ordinal = block.ordinals[at] + seq - start
                pieces.append((block, at, range(ordinal, ordinal + (length - 1) * step + 1, step)))
                left -= length
                seq += length * step
                at += 1
                if at == len(firsts):
                    break
                if step > 1 and seq >= first + firsts[at] + counts[at]:
                    if seq >= block.stop:
                        break
                    at = bisect_right(firsts, seq - first) - 1
            number += 1
            if left and number < len(self._lows) and step > 1:
                number = bisect_right(self._lows, seq) - 1
            elif left and number >= len(self._lows):
                raise KeyError(f"position {seq} is in no entry")
        return pieces

    def _scattered(self, numbers: list[int]) -> list[tuple[Block, int, Seqs]]:
        """The spans of positions that ascend, each with the ordinals of those in it."""
        pieces: list[tuple[Block, int, Seqs]] = []
        done, count = 0, len(numbers)
        while done < count:
            seq = numbers[done]
            number = bisect_right(self._lows, seq) - 1
            if number < 0:
                raise KeyError(f"position {seq} is in no entry")
            block = self._blocks[number]
            at = bisect_right(block.firsts, seq - block.first) - 1
            start = block.first + block.firsts[at]
            end = start + block.counts[at]
            if seq < start or seq >= end:
                raise KeyError(f"position {seq} is in no entry")
            stop = bisect_left(numbers, end, done)
            by = block.ordinals[at] - start
            pieces.append((block, at, seqs_of([each + by for each in numbers[done:stop]])))
            done = stop
        return pieces

    def forget(self, seqs: Seqs) -> None:
        """Forget messages that are settled. Each is forgotten once."""
        if isinstance(seqs, range) and len(seqs) > FEW and seqs.step == 1:
            self._forget_many(seqs)
            return
        for block, at, ordinals in self._pieces(seqs):
            self._forget_in(block, at, len(ordinals))

    def _forget_in(self, block: Block, at: int, count: int) -> None:
        block.left -= count
        entries, live = block.entries, block.live
        if not live[at]:
            # Or the entry has more than one span.
            at = bisect_left(entries, entries[at])
        left = live[at] - count
        live[at] = left
        if left:
            return
        entry = block.entry + entries[at]
        spans = 1 if at + 1 == len(entries) else bisect_right(entries, entries[at]) - at
        block.gone += spans
        self._release(range(entry, entry + 1))
        if not block.left and (not block.open or block.gone >= SWEEP_SPANS_MIN):
            self._empty = True
        elif not block.thin and 2 * block.gone >= len(block.firsts) and block.gone >= SWEEP_SPANS_MIN:
            block.thin = True
            self._thin = [*self._thin, block]

    def _forget_many(self, seqs: range) -> None:
        """Forget whole blocks where possible. Raises KeyError."""
        seq, stop = seqs.start, seqs.stop
        number = bisect_right(self._lows, seq) - 1
        while seq < stop:
            if not 0 <= number < len(self._blocks):
                raise KeyError(f"position {seq} is in no entry")
            block = self._blocks[number]
            end = min(stop, block.stop)
            if end <= seq:
                raise KeyError(f"position {seq} is in no entry")
            if seq == block.low and end == block.stop and block.left == end - seq:
                block.left, block.gone = 0, len(block.firsts)
                block.live = array(block.live.typecode, bytes(block.live.itemsize)) * len(block.live)
                self._empty = True
                self._release(range(block.low_entry, block.last_entry + 1))
            else:
                for each, at, ordinals in self._pieces(range(seq, end)):
                    self._forget_in(each, at, len(ordinals))
            seq = end
            number += 1

    def _release(self, entries: range) -> None:
        released = self._released
        if not isinstance(released, list):
            self._released = [entries]
        elif released[-1].stop == entries.start:
            released[-1] = range(released[-1].start, entries.stop)
        else:
            released.append(entries)

    def released(self) -> list[range]:
        """Return the entries whose messages were all settled since the last call. Between them may be some
        that were released before, or never had any.
        """
        released, self._released = self._released, ()
        return list(released)

    def pinned(self) -> list[int]:
        """Return the entries that hold messages which are not settled, in order."""
        return [entry for entries in self.pinned_from(0) for entry in entries]

    def pinned_from(self, entry: int) -> Iterator[range]:
        """Yield the entries, from this one on, that hold messages which are not settled."""
        before = range(0)
        for block in self._blocks:
            if not block.left or block.last_entry < entry:
                continue
            for entries in block.pinned():
                if entries.stop <= entry:
                    continue
                if entries.start < entry:
                    entries = range(entry, entries.stop)
                if before and before.stop == entries.start:
                    before = range(before.start, entries.stop)
                    continue
                if before:
                    yield before
                before = entries
        if before:
            yield before

    def _block_of(self, entry: int) -> Block | None:
        at = bisect_right(self._blocks, entry, key=_low_entry) - 1
        return self._blocks[at] if at >= 0 else None

    def holds(self, entry: int) -> bool:
        """Return whether this entry has messages that are not settled."""
        return self.count_of(entry) > 0

    def positions(self, entry: int) -> list[range]:
        """Return the positions of this entry's messages, settled ones included."""
        block = self._block_of(entry)
        at = -1 if block is None else block.place_of(entry)
        found: list[range] = []
        while block is not None and 0 <= at < len(block) and block.entry + block.entries[at] == entry:
            first = block.first + block.firsts[at]
            found.append(range(first, first + block.counts[at]))
            at += 1
        return found

    def count_of(self, entry: int) -> int:
        """Return the number of unsettled messages of this entry."""
        block = self._block_of(entry)
        at = -1 if block is None else block.place_of(entry)
        return block.live[at] if block is not None and at >= 0 else 0

    def _sweep(self) -> None:
        """Remove empty blocks, and the spans of released entries from some others."""
        if self._empty:
            self._empty = False
            self._blocks = [block for block in self._blocks if block.left or _keeps(block)]
            self._lows = [block.low for block in self._blocks]
        if not self._thin:
            return
        thin, self._thin = self._thin[:SWEEP_BLOCKS_MAX], self._thin[SWEEP_BLOCKS_MAX:] or ()
        for block in thin:
            if block.left:
                self._make_smaller(block)

    def _make_smaller(self, block: Block) -> None:
        """Remove the spans of released entries from a block, and join it with the one before if both are
        small.
        """
        at = bisect_right(self._lows, block.low) - 1
        if at < 0 or self._blocks[at] is not block:
            return
        smaller = _joined([block])
        if not block.open:
            before = self._blocks[at - 1] if at else None
            if before is not None and not before.open and len(before) + len(smaller) <= BLOCK_SPANS // 2:
                smaller = _joined([before, smaller])
                at -= 1
                del self._blocks[at], self._lows[at]
            smaller.close()
        self._blocks[at], self._lows[at] = smaller, smaller.low

    # -- the whole state -------------------------------------------------------------------------------------

    def blocks(self) -> list[Block]:
        """Return copies of the blocks: what is settled later does not show in them."""
        return [block.copy() for block in self._blocks if block.left]

    def put(self, block: Block) -> None:
        """Append a block of a snapshot, which comes after all others. Raises ValueError."""
        if self._blocks is _NONE:
            self._blocks = []
            self._lows = []
        elif self._blocks[-1].stop > block.low or self._blocks[-1].last_entry >= block.low_entry:
            raise ValueError("blocks are not in order")
        self._blocks.append(block)
        self._lows.append(block.low)

    def snapshot(self) -> bytes:
        """Return the spans of unsettled messages, the same on every replica."""
        columns: list[list[bytes]] = [[] for _ in range(6)]
        for block in self._blocks:
            if block.left:
                for column, part in zip(columns, flat(block), strict=True):
                    column.append(part)
        return msgspec.msgpack.encode(LocationsState(*map(b"".join, columns)))

    @classmethod
    def restore(cls, data: bytes | memoryview) -> Locations:
        """Raises CodecError."""
        restoring = Restoring(data)
        while restoring.go_on():
            pass
        return restoring.locations


class Restoring:
    """Reads what `Locations.snapshot` returned, in parts."""

    __slots__ = ("_at", "_columns", "_pin", "locations")

    def __init__(self, data: bytes | memoryview) -> None:
        """Raises CodecError."""
        self.locations = Locations()
        self._at = self._pin = 0
        try:
            state = msgspec.msgpack.decode(data, type=LocationsState)
            names = ("firsts", "counts", "entries", "ordinals", "pinned", "live")
            self._columns = [unpacked("q", getattr(state, name)) for name in names]
        except (msgspec.MsgspecError, ValueError) as error:
            raise CodecError(f"no locations: {error}") from error
        if len({len(column) for column in self._columns[:4]}) > 1:
            raise CodecError("no locations: columns of different lengths")
        if len(self._columns[4]) != len(self._columns[5]):
            raise CodecError("no locations: entries without a number of messages")

    def go_on(self) -> bool:
        """Make a block; return whether there are more. Raises CodecError."""
        firsts, counts, entries, ordinals, pinned, live = self._columns
        at, pin = self._at, self._pin
        block = Block()
        while at < len(firsts):
            entry = entries[at]
            if len(block) >= BLOCK_SPANS:
                break
            if pin >= len(pinned) or pinned[pin] != entry:
                raise CodecError("no locations: spans of entries that hold nothing")
            block.live.append(live[pin])
            block.left += live[pin]
            block.newest = len(block)
            while at < len(firsts) and entries[at] == entry:
                block.append(firsts[at], counts[at], entry, ordinals[at])
                at += 1
            block.live.extend([0] * (len(block) - len(block.live)))
            pin += 1
        self._at, self._pin = at, pin
        try:
            if len(block):
                block.close()
                check(block)
                self.locations.put(block)
        except (ValueError, OverflowError) as error:
            raise CodecError(f"no locations: {error}") from error
        if at < len(firsts):
            return True
        if pin < len(pinned):
            raise CodecError("no locations: entries without spans")
        return False


def _keeps(block: Block) -> bool:
    """Return whether an empty block is to be used on."""
    return block.open and block.gone < SWEEP_SPANS_MIN


def _low_entry(block: Block) -> int:
    return block.low_entry


def _joined(blocks: list[Block]) -> Block:
    """Return an open block with the spans of entries that are not released."""
    joined = Block()
    for block in blocks:
        for at in block.kept():
            entry = block.entry + block.entries[at]
            if not joined.entries or joined.entries[-1] != entry:
                joined.newest = len(joined)
            joined.append(block.first + block.firsts[at], block.counts[at], entry, block.ordinals[at])
            joined.live.append(block.live[at])
        joined.left += block.left
    return joined


def closed(block: Block) -> Block:
    """Return a closed block with the spans of entries that are not released."""
    if block.open or block.gone:
        block = _joined([block])
        block.close()
    return block


def flat(block: Block) -> list[bytes]:
    """Return a block as parts of the columns of `LocationsState`."""
    kept = block.kept()
    first, entry, live = block.first, block.entry, block.live
    entries = block.entries
    columns: list[list[int]] = [
        [first + block.firsts[at] for at in kept],
        [block.counts[at] for at in kept],
        [entry + entries[at] for at in kept],
        [block.ordinals[at] for at in kept],
        [entry + entries[at] for at in kept if live[at]],
        [live[at] for at in kept if live[at]],
    ]
    return [packed(array("q", column)) for column in columns]


def check(block: Block) -> None:
    """Check a block of a snapshot. Raises ValueError."""
    if len({len(block.firsts), len(block.counts), len(block.entries), len(block.ordinals)}) > 1:
        raise ValueError("columns of different lengths")
    stop, entry, left = block.low, -1, 0
    for at in range(len(block)):
        if block.firsts[at] + block.first < stop or block.counts[at] < 1 or block.entries[at] < entry:
            raise ValueError("spans are not in order")
        if (block.entries[at] == entry) is (block.live[at] > 0):
            raise ValueError("spans of entries that hold nothing")
        stop, entry = block.first + block.firsts[at] + block.counts[at], block.entries[at]
        left += block.live[at]
    if left != block.left or block.low < 1 or block.low_entry < 0:
        raise ValueError("numbers do not fit together")


__all__ = ["Block", "Locations", "Restoring", "check", "closed", "flat"]
