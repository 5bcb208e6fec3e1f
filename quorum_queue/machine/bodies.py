"""The outline of an entry, and its bodies: enough to read messages by their ordinals.

See quorum_queue.machine.entries for the whole format.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from itertools import accumulate
from typing import Any, Final

from quorum_queue.machine.arrays import unpacked
from quorum_queue.machine.codec import CodecError

VERSION: Final = 1

#: version, now_ms
ENTRY: Final = struct.Struct(">BQ")
#: incarnation, number, bytes of node, keys, commands; messages; bytes of bodies
BATCH: Final = struct.Struct(">QQHIIIQ")


class Bodies:
    """The bodies of an entry, by ordinal."""

    __slots__ = ("_data", "_ends", "_sections", "_starts", "count")

    def __init__(self, data: bytes | memoryview) -> None:
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

    def contents(self, ordinals: range) -> list[bytes]:
        """Return the bodies of these messages. Raises CodecError for missing ones."""
        if not ordinals:
            return []
        if ordinals.step < 1 or ordinals[0] < 0 or ordinals[-1] >= self.count:
            raise CodecError(f"an entry of {self.count} messages has no messages {ordinals}")
        data, starts = self._data, self._starts
        found: list[Any] = []
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
        return found if isinstance(data, bytes) else list(map(bytes, found))

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


def contents_of(data: bytes | memoryview, ordinals: range) -> list[bytes]:
    """Return the bodies of these messages of an entry. Raises CodecError."""
    return bodies_of(data).contents(ordinals)


#: incarnation, number, node, keys, commands, sizes
Section = tuple[int, int, bytes, bytes, bytes, "array[int]"]


def sections(data: bytes | memoryview) -> tuple[int, list[Section], Bodies]:
    """Cut an entry into its batches."""
    version, now_ms = ENTRY.unpack_from(data)
    if version != VERSION:
        raise CodecError(f"an entry has version {version}, this mqd reads version {VERSION}")
    bodies = Bodies(data)
    found: list[Section] = []
    offset, end = ENTRY.size, len(data)
    while offset < end:
        incarnation, number, name, keys, commands, messages, body_bytes = BATCH.unpack_from(data, offset)
        at_name = offset + BATCH.size
        at_keys = at_name + name
        at_commands = at_keys + keys
        at_sizes = at_commands + commands
        at_bodies = at_sizes + 4 * messages
        offset = at_bodies + body_bytes
        if offset > end:
            raise CodecError("an entry ends inside a batch")
        sizes = unpacked("I", data[at_sizes:at_bodies])
        if sum(sizes) != body_bytes:
            raise CodecError(f"a batch has {body_bytes} bytes of messages, its sizes say {sum(sizes)}")
        bodies.add(sizes, at_bodies)
        node, keyed = bytes(data[at_name:at_keys]), bytes(data[at_keys:at_commands])
        found.append((incarnation, number, node, keyed, bytes(data[at_commands:at_sizes]), sizes))
    return now_ms, found, bodies
