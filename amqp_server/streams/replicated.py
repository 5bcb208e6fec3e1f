"""The replica of a stream on each member of its group: what the entries of the log do to it. Pure.

    entry   u8 version | u64 now_ms | batches of nodes, each with its length before it
    batch   of one node, in msgpack: whose it is, and the messages

The node of the publisher makes messages ready, but for what only the order of the log can tell: their offsets. A member
that applies an entry gives the messages the next offsets and the entry's time. So batches have the same bytes on all members.
A batch of a node is taken once and in order, however often it comes (see quorum_queue.machine.replicated).

Where duplicates are dropped, messages come with their names. The order of the log tells which one was first: the others are
cut out of their batch before it gets its offsets. What was taken is a part of the state, bounded as it is for queues.

Messages may be compressed on their way and in the log. A member puts offsets into them, so it has to decompress them; the
thread that writes its segments compresses them again.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import NamedTuple
from zlib import crc32

import msgspec

from amqp_server.streams.encode import Encoded
from amqp_server.streams.taken import Taken, last_names
from persistence.streams import batch as batches
from persistence.streams import compression
from persistence.streams.batch import Damaged, Shape
from persistence.streams.compression import NONE
from quorum_queue.machine import dedup
from quorum_queue.machine.dedup import Names
from quorum_queue.machine.settings import Settings

#: Of entries and of states.
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
    """Neighbours with their names: those of a sequence by its first one and how many they are, others one by one."""

    start: int
    count: int
    first: bytes
    names: list[bytes | None] = []


class Append(msgspec.Struct, array_like=True, frozen=True):
    """Messages without their offsets: the parts of a batch, and where the offsets stand in the items."""

    head: bytes
    meta: bytes
    items: bytes
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


class Kept(NamedTuple):
    """What is kept of a name."""

    offset: int
    owner: str


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


class StreamState(msgspec.Struct, array_like=True, frozen=True):
    """All that a replica has beside its messages."""

    version: int
    applied: int
    now_ms: int
    last_ms: int
    first_offset: int
    next_offset: int
    #: Node, incarnation and number of the last batch.
    batches: list[tuple[str, int, int]]
    gap: list[str] | None = None
    #: What it has taken, in pieces. From versions.SUPER_STREAMS on, and only where duplicates are dropped.
    taken: list[bytes] | None = None
    #: Name, offset and owner, those that were used longest ago first. From versions.STREAM_NAMES on.
    names: list[tuple[str, int, str]] | None = None


class Applied:
    """What an entry means for this node."""

    __slots__ = ("batches", "missed", "named", "numbers", "trimmed")

    def __init__(self) -> None:
        self.batches: list[Encoded] = []
        #: Own batches that were applied, and own ones in an entry that no member can read any more.
        self.numbers: list[int] = []
        self.missed = range(0)
        self.trimmed = False
        #: Something was said about names.
        self.named = False


_NEW = Kept(NO_OFFSET, "")
_batch_decoder = msgspec.msgpack.Decoder(NodeBatch)
_state_decoder = msgspec.msgpack.Decoder(StreamState)


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
        if codec != NONE and not batches.decode_head(head).flags & batches.DENSE:
            packed = compression.compress(codec, items)
        if packed is None:
            appends.append(Append(head, meta, items, each.stamps or [], named))
        else:
            appends.append(Append(head, meta, packed, each.stamps or [], named, codec, len(items)))
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


def stamped(items: bytes, stamps: list[tuple[int, int, int]], base: int) -> bytes:
    """Return the items with their offsets."""
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
        front = batches.pack_head(head._replace(base=base, time_ms=time_ms, items_crc=crc32(items)))
        parts = [front, append.meta, items]
        return Encoded(batches.trusted(batches.decode_head(front), append.meta, items), parts)
    except (Damaged, ValueError, IndexError, struct.error) as error:
        raise CodecError(f"messages of a stream: {error}") from error


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
    items: list[bytes] = []
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
    dense = bool(head.flags & batches.DENSE)
    parts = batches.encode(0, 0, shapes, b"".join(items), whole.values, filters, dense=dense)
    return Append(parts[0], parts[1], parts[2], stamps)


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
    return Append(append.head, append.meta, items, append.stamps, append.named)


def _within(kept: list[range], number: int, count: int) -> list[range]:
    """Return which of `count` messages from this one on are kept, counted from it."""
    found: list[range] = []
    for each in kept:
        low, stop = max(each.start, number), min(each.stop, number + count)
        if low < stop:
            found.append(range(low - number, stop - number))
    return found


class Replica:
    """One member's copy of a stream, but for the messages themselves."""

    __slots__ = (
        "applied",
        "batches",
        "first_offset",
        "gap",
        "last_ms",
        "names",
        "next_offset",
        "now_ms",
        "taken",
    )

    def __init__(self, settings: Settings | None = None) -> None:
        """`settings` are those of the stream, which do not change."""
        #: Which messages it has taken; None if it takes all.
        self.taken = Taken(settings) if settings is not None and settings.deduplicates else None
        #: Index of the last entry applied.
        self.applied = 0
        #: Time of the last entry, and of the last batch: it never goes back.
        self.now_ms = self.last_ms = 0
        #: Messages below the first one are gone; the next one has the other offset.
        self.first_offset = self.next_offset = 0
        #: Incarnation and number of the last batch applied, by node.
        self.batches: dict[str, tuple[int, int]] = {}
        #: After an entry was given up: the nodes with a batch applied since.
        self.gap: dict[str, None] | None = None
        #: Offsets kept by name, those that were used longest ago first.
        self.names: dict[str, Kept] = {}

    def passed_over(self, index: int) -> None:
        """No member can read the entry with this index any more."""
        self.applied = index
        self.gap = {}

    def apply(self, index: int, now_ms: int, found: list[NodeBatch], own: tuple[str, int]) -> Applied:
        """Apply an entry; return what it means for the node and incarnation `own`. Raises CodecError."""
        if index <= self.applied:
            raise ValueError(f"entry {index} comes after entry {self.applied}")
        self.applied = index
        self.now_ms = max(self.now_ms, now_ms)
        applied = Applied()
        for batch in found:
            before = self.batches.get(batch.node, (0, 0))
            if not self._is_next(batch):
                continue
            if (batch.node, batch.incarnation) == own:
                last = before[1] if before[0] == batch.incarnation else 0
                if batch.number != last + 1:
                    applied.missed = range(last + 1, batch.number)
                applied.numbers.append(batch.number)
            for append in batch.appends:
                self.last_ms = max(self.last_ms, self.now_ms)
                if self.taken is not None:
                    self._append_new(append, self.taken, applied)
                    continue
                encoded = placed(unpacked(append), self.next_offset, self.last_ms)
                self.next_offset = encoded.batch.stop
                applied.batches.append(encoded)
            if batch.first > self.first_offset:
                self.first_offset = min(batch.first, self.next_offset)
                applied.trimmed = True
            for note in batch.notes:
                applied.named = True
                self._note(note)
        return applied

    def _note(self, note: Note) -> None:
        """Somebody takes a name, or who has it has acked more."""
        offset, owner = self.names.get(note.name, _NEW)
        if note.offset == NO_OFFSET:
            if owner not in (note.instead, note.owner):
                return
        elif owner not in ("", note.owner):
            return
        self.names.pop(note.name, None)
        self.names[note.name] = Kept(max(offset, min(note.offset, self.next_offset)), note.owner)
        while len(self.names) > max(note.most, 1):
            del self.names[next(iter(self.names))]

    def _append_new(self, append: Append, taken: Taken, applied: Applied) -> None:
        """Append those messages that are no duplicates."""
        now_ms = self.last_ms
        taken.expire(now_ms)
        kept: list[range] = []
        names: list[bytes] = []
        number = 0
        for named in append.named:
            if named.start > number:
                kept.append(range(number, named.start))
            of_these = names_of(named)
            for new in taken.new_of(of_these, now_ms):
                kept.append(range(named.start + new.start, named.start + new.stop))
                names += last_names(of_these, new.start, new.stop)
            number = named.start + named.count
        count = sum([stamp[0] for stamp in append.stamps])
        if number < count:
            kept.append(range(number, count))
        left = sum(map(len, kept))
        if not left:
            return
        append = unpacked(append)
        encoded = placed(append if left == count else without(append, kept), self.next_offset, now_ms)
        encoded.names = names
        self.next_offset = encoded.batch.stop
        applied.batches.append(encoded)

    def _is_next(self, batch: NodeBatch) -> bool:
        """Return whether this batch is next in order, and note it."""
        incarnation, last = self.batches.get(batch.node, (0, 0))
        may_miss = self.gap is not None and batch.node not in self.gap
        expected = last + 1 if batch.incarnation == incarnation else 1
        if batch.incarnation < incarnation or batch.number < expected:
            return False
        if batch.number > expected and not may_miss:
            return False
        self.batches[batch.node] = (batch.incarnation, batch.number)
        if self.gap is not None:
            self.gap[batch.node] = None
        return True

    def state(self) -> StreamState:
        """Return everything but the messages, and what was taken of them."""
        return StreamState(
            VERSION,
            self.applied,
            self.now_ms,
            self.last_ms,
            self.first_offset,
            self.next_offset,
            [(node, *last) for node, last in sorted(self.batches.items())],
            None if self.gap is None else sorted(self.gap),
            None,
            [(name, *kept) for name, kept in self.names.items()] or None,
        )

    def snapshot(self) -> bytes:
        """Return everything but the messages."""
        return encode_state(self.state(), self.taken)

    @classmethod
    def restore(cls, data: bytes, settings: Settings | None = None) -> Replica:
        """Build a replica from what `snapshot` returned. Raises CodecError."""
        state = decode_state(data)
        replica = cls(settings)
        replica.applied, replica.now_ms, replica.last_ms = state.applied, state.now_ms, state.last_ms
        replica.first_offset, replica.next_offset = state.first_offset, state.next_offset
        replica.batches = {node: (incarnation, number) for node, incarnation, number in state.batches}
        replica.gap = None if state.gap is None else dict.fromkeys(state.gap)
        replica.names = {name: Kept(offset, owner) for name, offset, owner in state.names or ()}
        if replica.taken is not None:
            try:
                replica.taken.restore(state.taken or [])
            except (ValueError, msgspec.MsgspecError) as error:
                raise CodecError(f"what a stream has taken: {error}") from error
        return replica

    def digest(self) -> str:
        """The same on replicas that applied the same entries."""
        return f"{crc32(self.snapshot()):08x}"


def encode_state(state: StreamState, taken: Taken | None) -> bytes:
    """Return a state with what was taken up to it."""
    fields = msgspec.structs.astuple(state)[:-2]
    if taken is not None:
        taken.expire(state.last_ms)
        fields = (*fields, list(taken.pieces()))
    if state.names is not None:
        fields = (*(fields if taken is not None else (*fields, None)), state.names)
    # Without it, these are the bytes that earlier versions write.
    return msgspec.msgpack.encode(fields)


def decode_state(data: bytes) -> StreamState:
    """Raises CodecError."""
    try:
        state = _state_decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise CodecError(f"no state of a stream: {error}") from error
    if state.version != VERSION:
        raise CodecError(f"a state has version {state.version}, this mqd reads version {VERSION}")
    return state


__all__ = [
    "Append",
    "Applied",
    "NO_OFFSET",
    "CodecError",
    "Kept",
    "NamedMessages",
    "NodeBatch",
    "Note",
    "Replica",
    "StreamState",
    "decode_entry",
    "decode_state",
    "encode_batch",
    "encode_entry",
    "encode_state",
    "placed",
    "stamped",
    "unpacked",
    "without",
]
