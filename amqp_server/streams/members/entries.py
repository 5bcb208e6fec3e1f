"""The entries in the log of a stream's group: messages without offsets, and the steps that give them offsets.
Pure.

    entry   u8 version | u64 now_ms | batches of nodes, each with its length before it
    batch   of one node, in msgpack: the node, and the messages

The publisher's node encodes messages without their offsets, which depend on the order of the log. A member
that applies an entry gives the messages the next offsets and the entry's time. So batches have the same bytes
on all members.

Messages may be compressed on the links and in the log. A member puts offsets into them, so it has to
decompress them; the thread that writes its segments compresses them again.
"""
# ruff: noqa: B905  # Compiled code makes a loop only of a zip without `strict`.

from __future__ import annotations

import struct
import sys
from array import array
from zlib import crc32

import msgspec

from amqp_server.streams.layout.columns import joined, offset_columns
from amqp_server.streams.layout.encode import Encoded
from amqp_server.streams.layout.large import LARGE_CONTENT_BYTES
from persistence.streams import batch as batches
from persistence.streams import checksum, compression
from persistence.streams.batch import Damaged, Shape
from persistence.streams.compression import NONE
from persistence.streams.remote.manifest import Range
from quorum_queue.machine import dedup
from quorum_queue.machine.dedup import Names
from quorum_queue.machine.parts import TransactionId

#: Format version of entries.
VERSION = 1
_ENTRY = struct.Struct(">BQ")
_LENGTH = struct.Struct(">I")
#: Stands for the offset of a name that has none yet, and of a consumer that takes a name.
NO_OFFSET = -1
#: From this number of consecutive items on, offsets are written with slices.
_MANY = 8


class CodecError(Exception):
    """This version cannot decode the bytes."""


class NamedMessages(msgspec.Struct, array_like=True, frozen=True):
    """Consecutive messages with their names: a sequence as first name and length, others one by one."""

    start: int
    count: int
    first: bytes
    names: list[bytes | None] = []


class Append(msgspec.Struct, array_like=True, frozen=True):
    """Messages without their offsets: the parts of a batch, and the positions of the offsets in the items."""

    head: bytes
    meta: bytes
    #: In an entry that was read, a part of that entry, without a copy.
    items: memoryview
    #: Number of consecutive items, size of each, and position of the offset in the item.
    stamps: list[tuple[int, int, int]]
    #: Names of messages that may be duplicates. From versions.SUPER_STREAMS on.
    named: list[NamedMessages] = []
    #: Compression of the items, and their uncompressed size in bytes. From versions.SUPER_STREAMS on.
    codec: str = NONE
    size: int = 0


#: What a note of a new name does if the stream has as many names as it may keep: the name takes the place of
#: the one used longest ago, or the note has no effect. From versions.NAMES_REFUSED on, nodes write only notes
#: of the second kind.
EVICTS, REFUSES = 0, 1
#: The note deletes the name, if `instead` still owns it. From versions.NAMES_REFUSED on.
DELETES = 2


class Note(msgspec.Struct, array_like=True, frozen=True):
    """A note from a consumer with a name: it takes the name, or has acked up to an offset without a gap. Or a
    note from an operator, who deletes a name.
    """

    name: str
    #: The consumer.
    owner: str
    offset: int = NO_OFFSET
    #: Maximum number of names, for new ones.
    most: int = 1
    #: The owner that it takes the name from, "" if there was none. A late note takes the name from no other
    #: owner.
    instead: str = ""
    #: EVICTS, REFUSES or DELETES; earlier versions know only the first kind, and ignore this field.
    kind: int = EVICTS


#: Steps of a part of a transaction; see quorum_queue.machine.parts.
PEND, PREPARE, COMMIT, ABORT = range(4)


class PartStep(msgspec.Struct, array_like=True, frozen=True):
    """A step of a transaction's part in the stream. From versions.TRANSACTIONS on."""

    kind: int
    transaction: TransactionId
    #: Of PEND.
    appends: list[Append] = []
    #: Of PREPARE: a number that its node understands, the number of steps before, and the ids of all queues
    #: of the transaction.
    token: int = 0
    count: int = 0
    queues: list[int] = []


class RemoteStep(msgspec.Struct, array_like=True, frozen=True):
    """The manifest of what an object store has begins, or gets a range, whose object is complete. Only the
    leader writes it. From versions.STREAM_REMOTES on.
    """

    #: Of a manifest that begins: the stream's name in the store, and the store's name in the configuration.
    identity: str
    remote: str
    #: The range, and the end of the manifest that its uploader knew.
    added: Range | None = None
    after: int = 0


class NodeBatch(msgspec.Struct, array_like=True, frozen=True):
    """The messages and notes of one node from one of its turns."""

    node: str
    #: Identifies the start of the node.
    incarnation: int
    #: Consecutive from 1 within an incarnation.
    number: int
    appends: list[Append] = []
    #: Messages below this offset are deleted; only the leader sets it.
    first: int = 0
    #: From versions.STREAM_NAMES on.
    notes: list[Note] = []
    #: Token and condition; see quorum_queue.machine.seal. From versions.SEALS on.
    seals: list[tuple[int, int]] = []
    #: From versions.TRANSACTIONS on.
    steps: list[PartStep] = []
    #: From versions.STREAM_REMOTES on.
    remote: RemoteStep | None = None


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
    seals: list[tuple[int, int]] | None = None,
    step: PartStep | None = None,
    remote: RemoteStep | None = None,
) -> bytes:
    """Encode a node's batch for the leader; messages are compressed by `codec`. They belong to the `step` if
    there is one.
    """
    appends: list[Append] = []
    for each in encoded:
        head, meta, items = each.parts
        named = [_named_messages(start, names) for start, names in each.named]
        packed = None
        if len(items) > LARGE_CONTENT_BYTES:
            packed = each.packed if codec == compression.ZSTD else None
        elif codec != NONE and not batches.decode_head(head).flags & batches.DENSE:
            packed = compression.compress(codec, items)
        if packed is None:
            appends.append(Append(head, meta, memoryview(items), each.stamps or [], named))
        else:
            view = memoryview(packed)
            appends.append(Append(head, meta, view, each.stamps or [], named, codec, len(items)))
    if remote is not None:
        return msgspec.msgpack.encode(
            NodeBatch(node, incarnation, number, appends, first, notes or [], seals or [], [], remote)
        )
    if step is not None:
        step = msgspec.structs.replace(step, appends=appends)
        return msgspec.msgpack.encode(
            NodeBatch(node, incarnation, number, [], first, notes or [], seals or [], [step])
        )
    # Without the last fields it has the format of earlier versions.
    if seals is not None:
        return msgspec.msgpack.encode(
            NodeBatch(node, incarnation, number, appends, first, notes or [], seals)
        )
    if notes is None:
        return msgspec.msgpack.encode((node, incarnation, number, appends, first))
    return msgspec.msgpack.encode((node, incarnation, number, appends, first, notes))


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
    if len(items) > LARGE_CONTENT_BYTES and len(stamps) == 1 and stamps[0][0] == 1:
        # This way needs only one copy.
        at = stamps[0][2]
        view = memoryview(items)
        return b"".join((view[:at], base.to_bytes(8, "big"), view[at + 8 :]))
    if sum([count for count, _, _ in stamps]) < _MANY * len(stamps):
        return _stamped_singly(bytes(items), stamps, base)
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
            # The encoded offsets, which begin at 0, have zeros in their upper halves.
            for byte in range(4 if offset + count <= 1 << 32 else 0, 8):
                out[place + byte : stop : size] = raw[byte::8]
        offset += count
        start = stop
    return bytes(out)


def _stamped_singly(items: bytes, stamps: list[tuple[int, int, int]], base: int) -> bytes:
    """Like `stamped`, for few consecutive items of one size: everything between the offsets is cut out, and
    joined with them. All loops are short, and compiled.
    """
    places: list[int] = []
    start = 0
    for count, size, at in stamps:
        for _ in range(count):
            places.append(start + at)
            start += size
    starts = [0]
    starts += [place + 8 for place in places]
    columns = [
        [items[start:place] for start, place in zip(starts, places)],
        *offset_columns(b"", base, len(places)),
    ]
    return joined(columns, 0, len(places)) + items[starts[-1] :]


def placed(append: Append, base: int, time_ms: int) -> Encoded:
    """Return the batch of these messages at this offset. Raises CodecError."""
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
    """Return the checksum of these items; `before` is their checksum without the offsets."""
    if len(items) <= LARGE_CONTENT_BYTES or len(append.stamps) != 1 or append.stamps[0][0] != 1:
        return crc32(items)
    # Of a large message only the bytes up to its offset are checked: the publisher's node has checked the
    # rest.
    stop = append.stamps[0][2] + 8
    changed = crc32(append.items[:stop]) ^ crc32(items[:stop])
    return checksum.joined(changed, before, len(items) - stop)


def names_of(named: NamedMessages) -> Names:
    """Decode names. Raises CodecError."""
    if not named.first:
        if len(named.names) != named.count:
            raise CodecError(f"{len(named.names)} names of {named.count} messages")
        return named.names
    try:
        return dedup.Sequence.from_first(named.first, named.count)
    except ValueError as error:
        raise CodecError(f"names of messages: {error}") from error


def without(append: Append, kept: list[range]) -> Append:
    """Return these messages of an append, by their numbers, as a separate append. Raises CodecError."""
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
    """Return the append with uncompressed items. Raises CodecError."""
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
    """Return which of `count` messages from `number` on are kept, numbered from there."""
    found: list[range] = []
    for each in kept:
        low, stop = max(each.start, number), min(each.stop, number + count)
        if low < stop:
            found.append(range(low - number, stop - number))
    return found


def kept(append: Append) -> Append:
    """Return an append of its own bytes, which does not keep its entry in memory."""
    return msgspec.structs.replace(append, items=memoryview(bytes(append.items)))


__all__ = [
    "ABORT",
    "COMMIT",
    "DELETES",
    "EVICTS",
    "NO_OFFSET",
    "PEND",
    "PREPARE",
    "REFUSES",
    "Append",
    "CodecError",
    "NamedMessages",
    "NodeBatch",
    "Note",
    "PartStep",
    "RemoteStep",
    "decode_entry",
    "encode_batch",
    "encode_entry",
    "kept",
    "names_of",
    "placed",
    "stamped",
    "unpacked",
    "without",
]
