"""The outline of an entry, and its bodies: enough to read messages by their ordinals.

See quorum_queue.machine.entries for the whole format.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import Final

from quorum_queue.machine.arrays import unpacked
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.positions import Positions, Seqs

VERSION: Final = 1

#: version, now_ms
ENTRY: Final = struct.Struct(">BQ")
#: incarnation, number, bytes of node, keys, commands; messages; bytes of bodies
BATCH: Final = struct.Struct(">QQHIIIQ")
ENTRY_BYTES: Final = 9
BATCH_BYTES: Final = 38


class Bodies:
    """The bodies of an entry, by ordinal."""

    __slots__ = ("_data", "_ends", "_sections", "_starts", "count")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._starts: list[int] = []
        #: (sizes, offset of the first body) of each batch that has messages
        self._sections: list[tuple[array[int], int]] = []
        self._ends: list[list[int] | None] = []
        self.count = 0

    def add(self, sizes: array[int], offset: int) -> None:
        if sizes:
            self._starts.append(self.count)
            self._sections.append((sizes, offset))
            self._ends.append(None)
            self.count += len(sizes)

    def contents(self, ordinals: Seqs) -> list[bytes]:
        """Return the bodies of these messages. Raises CodecError for missing ones."""
        if not ordinals:
            return []
        if ordinals.step < 0 or ordinals[0] < 0 or ordinals[-1] >= self.count:
            raise CodecError(f"an entry of {self.count} messages has no messages {ordinals}")
        data, starts = self._data, self._starts
        if len(starts) == 1 and self.count == 1:
            # By far the most common entry has one message.
            sizes, offset = self._sections[0]
            return [data[offset : offset + sizes[0]]]
        if isinstance(ordinals, Positions):
            return self._scattered(list(ordinals))
        found: list[bytes] = []
        while ordinals:
            at = bisect_right(starts, ordinals[0]) - 1
            ends = self._ends[at] or self._ends_of(at)
            first = starts[at]
            count = min(len(ordinals), -(-(first + len(ends) - 1 - ordinals[0]) // ordinals.step))
            low = ordinals[0] - first
            stop = low + (count - 1) * ordinals.step + 1
            begins, stops = ends[low : stop : ordinals.step], ends[low + 1 : stop + 1 : ordinals.step]
            found += [data[begin:end] for begin, end in zip(begins, stops, strict=True)]
            ordinals = ordinals[count:]
        return found

    def _scattered(self, ordinals: list[int]) -> list[bytes]:
        """Return the bodies of messages that are not evenly apart."""
        data, starts = self._data, self._starts
        found: list[bytes] = []
        done, count = 0, len(ordinals)
        while done < count:
            at = bisect_right(starts, ordinals[done]) - 1
            ends, first = self._ends[at] or self._ends_of(at), starts[at]
            stop = bisect_left(ordinals, first + len(ends) - 1, done)
            lows = [ordinal - first for ordinal in ordinals[done:stop]]
            found += [data[ends[low] : ends[low + 1]] for low in lows]
            done = stop
        return found

    def _ends_of(self, at: int) -> list[int]:
        sizes, offset = self._sections[at]
        ends = self._ends[at] = list(accumulate(sizes, initial=offset))
        return ends


def bodies_of(data: bytes | memoryview) -> Bodies:
    """Return the bodies of an entry without decoding its commands. Raises CodecError."""
    try:
        return sections(data)[2]
    except (struct.error, ValueError) as error:
        raise CodecError(f"no entry of a queue: {error}") from error


def contents_of(data: bytes | memoryview, ordinals: Seqs) -> list[bytes]:
    """Return the bodies of these messages of an entry. Raises CodecError."""
    return bodies_of(data).contents(ordinals)


class Section:
    """A batch within an entry."""

    __slots__ = ("commands", "incarnation", "names", "node_bytes", "number", "sizes")

    def __init__(
        self, incarnation: int, number: int, node_bytes: int, names: bytes, commands: bytes, sizes: array[int]
    ) -> None:
        self.incarnation = incarnation
        self.number = number
        #: The node, in so many bytes, and the keys of consumers.
        self.node_bytes = node_bytes
        self.names = names
        self.commands = commands
        #: Of its messages.
        self.sizes = sizes


def sections(entry: bytes | memoryview) -> tuple[int, list[Section], Bodies]:
    """Cut an entry into its batches."""
    data = entry if isinstance(entry, bytes) else bytes(entry)
    head: tuple[int, int] = ENTRY.unpack_from(data)
    version, now_ms = head
    if version != VERSION:
        raise CodecError(f"an entry has version {version}, this mqd reads version {VERSION}")
    bodies = Bodies(data)
    found: list[Section] = []
    offset, end = ENTRY_BYTES, len(data)
    while offset < end:
        batch: tuple[int, int, int, int, int, int, int] = BATCH.unpack_from(data, offset)
        incarnation, number, node_bytes, keys, commands, messages, body_bytes = batch
        at_names = offset + BATCH_BYTES
        at_commands = at_names + node_bytes + keys
        at_sizes = at_commands + commands
        at_bodies = at_sizes + 4 * messages
        offset = at_bodies + body_bytes
        if offset > end:
            raise CodecError("an entry ends inside a batch")
        sizes = unpacked("I", data[at_sizes:at_bodies])
        if sum(sizes) != body_bytes:
            raise CodecError(f"a batch has {body_bytes} bytes of messages, its sizes say {sum(sizes)}")
        bodies.add(sizes, at_bodies)
        names = data[at_names:at_commands]
        found.append(Section(incarnation, number, node_bytes, names, data[at_commands:at_sizes], sizes))
    return now_ms, found, bodies
