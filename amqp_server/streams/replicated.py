"""The replica of a stream on each member of its group: what the entries of the log do to it. Pure.

    entry   u8 version | u64 now_ms | batches of nodes, each with its length before it
    batch   of one node, in msgpack: whose it is, and the messages

The node of the publisher makes messages ready, but for what only the order of the log can tell: their offsets. A member
that applies an entry gives the messages the next offsets and the entry's time. So batches have the same bytes on all members.
A batch of a node is taken once and in order, however often it comes (see quorum_queue.machine.replicated).
"""

from __future__ import annotations

import struct
import sys
from array import array
from zlib import crc32

import msgspec

from amqp_server.streams.encode import Encoded
from persistence.streams import batch as batches
from persistence.streams.batch import Damaged

#: Of entries and of states.
VERSION = 1
_ENTRY = struct.Struct(">BQ")
_LENGTH = struct.Struct(">I")
#: From so many neighbours on offsets are written by slices.
_MANY = 8


class CodecError(Exception):
    """The bytes are nothing that this version knows."""


class Append(msgspec.Struct, array_like=True, frozen=True):
    """Messages without their offsets: the parts of a batch, and where the offsets stand in the items."""

    head: bytes
    meta: bytes
    items: bytes
    #: Neighbours, the size of each, and the place in it.
    stamps: list[tuple[int, int, int]]


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


class State(msgspec.Struct, array_like=True, frozen=True):
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


class Applied:
    """What an entry means for this node."""

    __slots__ = ("batches", "missed", "numbers", "trimmed")

    def __init__(self) -> None:
        self.batches: list[Encoded] = []
        #: Own batches that were applied, and own ones in an entry that no member can read any more.
        self.numbers: list[int] = []
        self.missed = range(0)
        self.trimmed = False


_batch_decoder = msgspec.msgpack.Decoder(NodeBatch)
_state_decoder = msgspec.msgpack.Decoder(State)


def encode_batch(node: str, incarnation: int, number: int, encoded: list[Encoded], first: int = 0) -> bytes:
    """Return what a node sends to the leader."""
    appends = [Append(each.parts[0], each.parts[1], each.parts[2], each.stamps or []) for each in encoded]
    return msgspec.msgpack.encode(NodeBatch(node, incarnation, number, appends, first))


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


class Replica:
    """One member's copy of a stream, but for the messages themselves."""

    __slots__ = ("applied", "batches", "first_offset", "gap", "last_ms", "next_offset", "now_ms")

    def __init__(self) -> None:
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
                encoded = placed(append, self.next_offset, self.last_ms)
                self.next_offset = encoded.batch.stop
                applied.batches.append(encoded)
            if batch.first > self.first_offset:
                self.first_offset = min(batch.first, self.next_offset)
                applied.trimmed = True
        return applied

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

    def snapshot(self) -> bytes:
        """Return everything but the messages."""
        return msgspec.msgpack.encode(
            State(
                VERSION,
                self.applied,
                self.now_ms,
                self.last_ms,
                self.first_offset,
                self.next_offset,
                [(node, *last) for node, last in sorted(self.batches.items())],
                None if self.gap is None else sorted(self.gap),
            )
        )

    @classmethod
    def restore(cls, data: bytes) -> Replica:
        """Build a replica from what `snapshot` returned. Raises CodecError."""
        state = decode_state(data)
        replica = cls()
        replica.applied, replica.now_ms, replica.last_ms = state.applied, state.now_ms, state.last_ms
        replica.first_offset, replica.next_offset = state.first_offset, state.next_offset
        replica.batches = {node: (incarnation, number) for node, incarnation, number in state.batches}
        replica.gap = None if state.gap is None else dict.fromkeys(state.gap)
        return replica

    def digest(self) -> str:
        """The same on replicas that applied the same entries."""
        return f"{crc32(self.snapshot()):08x}"


def decode_state(data: bytes) -> State:
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
    "CodecError",
    "NodeBatch",
    "Replica",
    "State",
    "decode_entry",
    "decode_state",
    "encode_batch",
    "encode_entry",
    "placed",
    "stamped",
]
