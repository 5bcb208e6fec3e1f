"""What the log of a stream's group has: messages without their offsets, and what is done with them when they
get these. Pure.

    entry   u8 version | u64 now_ms | batches of nodes, each with its length before it
    batch   of one node, in msgpack: whose it is, and the messages

The node of the publisher makes messages ready, but for what only the order of the log can tell: their
offsets. A member that applies an entry gives the messages the next offsets and the entry's time. So batches
have the same bytes on all members.

Messages may be compressed on their way and in the log. A member puts offsets into them, so it has to
decompress them; the thread that writes its segments compresses them again.
"""

from __future__ import annotations

import struct
import sys
from array import array
from zlib import crc32

import msgspec

from amqp_server.streams.encode import Encoded
from amqp_server.streams.large import LARGE_BYTES
from persistence.streams import batch as batches
from persistence.streams import checksum, compression
from persistence.streams.batch import Damaged, Shape
from persistence.streams.compression import NONE
from quorum_queue.machine import dedup
from quorum_queue.machine.dedup import Names

#: Of entries.
VERSION = 1
_ENTRY = struct.Struct(">BQ")
_LENGTH = struct.Struct(">I")
#: In place of an offset: a name that has none yet, or a consumer that takes a name.
NO_OFFSET = -1
#: From so many neighbours on offsets are written by slices.
_MANY = 8


class CodecError(Exception):
    """The bytes are nothing that this version knows."""


class NamedMessages(msgspec.Struct, array_like=True, frozen=True):
    """Neighbours with their names: those of a sequence by its first one and how many they are, others one by
    one.
    """

    start: int
    count: int
    first: bytes
    names: list[bytes | None] = []


class Append(msgspec.Struct, array_like=True, frozen=True):
    """Messages without their offsets: the parts of a batch, and where the offsets stand in the items."""

    head: bytes
    meta: bytes
    #: Of an entry that was read: a part of it, without a copy.
    items: memoryview
    #: Neighbours, the size of each, and the place in it.
    stamps: list[tuple[int, int, int]]
    #: Of messages that may be duplicates. From versions.SUPER_STREAMS on.
    named: list[NamedMessages] = []
    #: How the items are compressed, and their bytes without it. From versions.SUPER_STREAMS on.
    codec: str = NONE
    size: int = 0


class Note(msgspec.Struct, array_like=True, frozen=True):
    """What a consumer with a name says: it takes the name, or has acked up to an offset without a gap."""

    name: str
    #: The consumer.
    owner: str
    offset: int = NO_OFFSET
    #: So many names are kept from now on; those that were used longest ago are forgotten.
    most: int = 1
    #: Whom it takes the name from, "" if nobody had it. A note that comes late takes it from nobody else.
    instead: str = ""


class NodeBatch(msgspec.Struct, array_like=True, frozen=True):
    """What one node has to say in one of its turns."""

    node: str
    #: The start of the node.
    incarnation: int
    #: Consecutive from 1 within an incarnation.
    number: int
    appends: list[Append] = []
    #: Messages below this offset go; only the leader says so.
    first: int = 0
    #: From versions.STREAM_NAMES on.
    notes: list[Note] = []


_batch_decoder = msgspec.msgpack.Decoder(NodeBatch)


def encode_batch(
    node: str,
    incarnation: int,
    number: int,
    encoded: list[Encoded],
    first: int = 0,
    *,
    codec: str = NONE,
    notes: list[Note] | None = None,
) -> bytes:
    """Return what a node sends to the leader; messages are compressed by `codec`."""
    appends: list[Append] = []
    for each in encoded:
        head, meta, items = each.parts
        named = [_named_messages(start, names) for start, names in each.named]
        packed = None
        if len(items) > LARGE_BYTES:
            packed = each.packed if codec == compression.ZSTD else None
        elif codec != NONE and not batches.decode_head(head).flags & batches.DENSE:
            packed = compression.compress(codec, items)
        if packed is None:
            appends.append(Append(head, meta, memoryview(items), each.stamps or [], named))
        else:
            view = memoryview(packed)
            appends.append(Append(head, meta, view, each.stamps or [], named, codec, len(items)))
    if notes is None:
        # As earlier versions write it.
        return msgspec.msgpack.encode((node, incarnation, number, appends, first))
    return msgspec.msgpack.encode(NodeBatch(node, incarnation, number, appends, first, notes))


def _named_messages(start: int, names: Names) -> NamedMessages:
    if isinstance(names, dedup.Sequence):
        return NamedMessages(start, len(names), names.first)
    return NamedMessages(start, len(names), b"", names)


def encode_entry(now_ms: int, found: list[bytes]) -> bytes:
    """Put the batches of nodes into one entry."""
    parts = [_ENTRY.pack(VERSION, now_ms)]
    for each in found:
        parts += (_LENGTH.pack(len(each)), each)
    return b"".join(parts)


def decode_entry(data: bytes | memoryview) -> tuple[int, list[NodeBatch]]:
    """Return time and batches. Raises CodecError."""
    try:
        version, now_ms = _ENTRY.unpack_from(data)
        if version != VERSION:
            raise CodecError(f"an entry has version {version}, this mqd reads version {VERSION}")
        found: list[NodeBatch] = []
        at = _ENTRY.size
        view = memoryview(data)
        while at < len(data):
            (size,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            found.append(_batch_decoder.decode(view[at : at + size]))
            at += size
        return now_ms, found
    except (struct.error, msgspec.MsgspecError) as error:
        raise CodecError(f"no entry of a stream: {error}") from error


def stamped(items: bytes | memoryview, stamps: list[tuple[int, int, int]], base: int) -> bytes:
    """Return the items with their offsets."""
    if len(items) > LARGE_BYTES and len(stamps) == 1 and stamps[0][0] == 1:
        # With one copy.
        at = stamps[0][2]
        view = memoryview(items)
        return b"".join((view[:at], base.to_bytes(8, "big"), view[at + 8 :]))
    out = bytearray(items)
    offset, start = base, 0
    for count, size, at in stamps:
        place, stop = start + at, start + count * size
        if count < _MANY:
            for number in range(count):
                out[place : place + 8] = (offset + number).to_bytes(8, "big")
                place += size
        else:
            numbers = array("Q", range(offset, offset + count))
            if sys.byteorder == "little":
                numbers.byteswap()
            raw = numbers.tobytes()
            # Offsets as they are encoded before, from 0 on, have zeros in their upper halves.
            for byte in range(4 if offset + count <= 1 << 32 else 0, 8):
                out[place + byte : stop : size] = raw[byte::8]
        offset += count
        start = stop
    return bytes(out)


def placed(append: Append, base: int, time_ms: int) -> Encoded:
    """Return the batch that these messages are at this offset. Raises CodecError."""
    try:
        head = batches.decode_head(append.head)
        items = stamped(append.items, append.stamps, base)
        items_crc = _items_crc(head.items_crc, append, items)
        front = batches.pack_head(head._replace(base=base, time_ms=time_ms, items_crc=items_crc))
        parts = [front, append.meta, items]
        return Encoded(batches.trusted(batches.decode_head(front), append.meta, items), parts)
    except (Damaged, ValueError, IndexError, struct.error) as error:
        raise CodecError(f"messages of a stream: {error}") from error


def _items_crc(before: int, append: Append, items: bytes) -> int:
    """Return the checksum of these items; `before` is that of the same ones without their offsets."""
    if len(items) <= LARGE_BYTES or len(append.stamps) != 1 or append.stamps[0][0] != 1:
        return crc32(items)
    # Of a large message only what comes up to its offset is looked at: the rest is as its publisher's node
    # has seen it.
    stop = append.stamps[0][2] + 8
    changed = crc32(append.items[:stop]) ^ crc32(items[:stop])
    return checksum.joined(changed, before, len(items) - stop)


def names_of(named: NamedMessages) -> Names:
    """Raises CodecError."""
    if not named.first:
        if len(named.names) != named.count:
            raise CodecError(f"{len(named.names)} names of {named.count} messages")
        return named.names
    try:
        return dedup.Sequence.from_first(named.first, named.count)
    except ValueError as error:
        raise CodecError(f"names of messages: {error}") from error


def without(append: Append, kept: list[range]) -> Append:
    """Return these messages of an append, by their numbers, as an append of their own. Raises CodecError."""
    try:
        head = batches.decode_head(append.head)
        whole = batches.trusted(head, append.meta, append.items)
    except (Damaged, ValueError, IndexError, struct.error) as error:
        raise CodecError(f"messages of a stream: {error}") from error
    items: list[memoryview] = []
    stamps: list[tuple[int, int, int]] = []
    number = place = 0
    for count, size, at in append.stamps:
        for part in _within(kept, number, count):
            items.append(append.items[place + part.start * size : place + part.stop * size])
            stamps.append((len(part), size, at))
        number += count
        place += count * size
    shapes: list[Shape] = []
    number = 0
    for shape in whole.shapes:
        shapes += [shape._replace(count=len(part)) for part in _within(kept, number, shape.count)]
        number += shape.count
    filters = [whole.filters[each] for part in kept for each in part] if whole.filters else []
    flags = head.flags & (batches.DENSE | batches.ALIKE | batches.KEYED)
    parts = batches.encode(0, 0, shapes, b"".join(items), whole.values, filters, flags=flags)
    return Append(parts[0], parts[1], memoryview(parts[2]), stamps)


def unpacked(append: Append) -> Append:
    """Return it with its items as they are. Raises CodecError."""
    if append.codec == NONE:
        return append
    size = sum([count * each for count, each, _ in append.stamps])
    if size != append.size or append.codec not in compression.CODECS:
        raise CodecError(f"messages of {size} bytes that are {append.size} by {append.codec}")
    try:
        items = compression.decompress(append.codec, append.items, size)
    except ValueError as error:
        raise CodecError(f"messages of a stream cannot be decompressed: {error}") from error
    return Append(append.head, append.meta, memoryview(items), append.stamps, append.named)


def _within(kept: list[range], number: int, count: int) -> list[range]:
    """Return which of `count` messages from this one on are kept, counted from it."""
    found: list[range] = []
    for each in kept:
        low, stop = max(each.start, number), min(each.stop, number + count)
        if low < stop:
            found.append(range(low - number, stop - number))
    return found


__all__ = [
    "NO_OFFSET",
    "Append",
    "CodecError",
    "NamedMessages",
    "NodeBatch",
    "Note",
    "decode_entry",
    "encode_batch",
    "encode_entry",
    "names_of",
    "placed",
    "stamped",
    "unpacked",
    "without",
]
