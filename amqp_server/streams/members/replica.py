"""The replica of a stream on each member of its group: the effects of log entries on it. Pure.

An entry has batches of nodes; see entries.py. A batch of a node is taken once and in order, even if it
arrives several times (see quorum_queue.machine.replicated).

Where duplicates are dropped, messages come with their names. The order of the log decides which message was
first: duplicates are cut out of their batch before it gets its offsets. The names that were taken are part of
the state, with the same limits as for queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

import msgspec

from amqp_server.streams.layout.deduplication import Taken, last_names
from amqp_server.streams.layout.encode import Encoded
from amqp_server.streams.members.entries import (
    DELETES,
    EVICTS,
    NO_OFFSET,
    PEND,
    PREPARE,
    Append,
    CodecError,
    NodeBatch,
    Note,
    PartStep,
    RemoteStep,
    names_of,
    placed,
    unpacked,
    without,
)
from amqp_server.streams.members.parts import StreamPart, StreamParts
from persistence.streams.remote.manifest import Manifest, Range
from quorum_queue.batch_order import NOT_NEXT, BatchOrder
from quorum_queue.machine.parts import READY, TransactionId
from quorum_queue.machine.seal import SEALED, Sealed, outcome
from quorum_queue.machine.settings import Settings

#: Format version of states.
VERSION = 1


class Kept(NamedTuple):
    """The state of a name."""

    offset: int
    owner: str


class StreamState(msgspec.Struct, array_like=True, frozen=True):
    """The state of a replica without its messages."""

    version: int
    applied: int
    now_ms: int
    last_ms: int
    first_offset: int
    next_offset: int
    #: Node, incarnation and number of the last batch.
    batches: list[tuple[str, int, int]]
    gap: list[str] | None = None
    #: The names that were taken, in pieces. From versions.SUPER_STREAMS on, and only if duplicates are
    #: dropped.
    taken: list[bytes] | None = None
    #: Name, offset and owner, the least recently used first. From versions.STREAM_NAMES on.
    names: list[tuple[str, int, str]] | None = None
    #: True if the stream will be deleted. From versions.SEALS on.
    sealed: bool = False
    #: Parts of transactions that are not decided. From versions.TRANSACTIONS on.
    parts: list[StreamPart] | None = None
    #: Identity, remote and ranges of the manifest. From versions.STREAM_REMOTES on.
    manifest: tuple[str, str, tuple[Range, ...]] | None = None


class Applied:
    """The effects of an entry on this node."""

    __slots__ = (
        "batches",
        "missed",
        "named",
        "numbers",
        "prepared",
        "remote",
        "removed",
        "resolved",
        "sealed",
        "seals",
        "taken",
        "trimmed",
    )

    def __init__(self) -> None:
        self.batches: list[Encoded] = []
        #: Own batches that were applied, and own batches in an entry that no member can read any more.
        self.numbers: list[int] = []
        self.missed = range(0)
        #: The last own batch whose messages were taken; 0 if there is none.
        self.taken = 0
        #: (token, outcome) of own seals; and True if the stream was sealed, by any node or again.
        self.seals: list[tuple[int, Sealed]] = []
        self.sealed = False
        #: (token, outcome) of own parts of transactions, and transactions whose part is decided.
        self.prepared: list[tuple[int, int]] = []
        self.resolved: list[TransactionId] = []
        self.trimmed = False
        #: True if the entry has a step of the manifest; and the ranges that have left it.
        self.remote = False
        self.removed: tuple[Range, ...] = ()
        #: True if the entry has notes about names.
        self.named = False


_NEW = Kept(NO_OFFSET, "")
#: The place of the names that were taken among the fields of a state.
_TAKEN = StreamState.__struct_fields__.index("taken")
_state_decoder = msgspec.msgpack.Decoder(StreamState)


class StreamReplica:
    """One member's copy of a stream, without the messages themselves."""

    __slots__ = (
        "applied",
        "first_offset",
        "last_ms",
        "manifest",
        "names",
        "next_offset",
        "now_ms",
        "order",
        "parts",
        "sealed",
        "taken",
    )

    def __init__(self, settings: Settings | None = None) -> None:
        """`settings` are the stream's settings, which do not change."""
        #: The names that were taken; None if duplicates are not dropped.
        self.taken = Taken(settings) if settings is not None and settings.deduplicates else None
        #: Index of the last entry applied.
        self.applied = 0
        #: Time of the last entry, and of the last batch: it never goes back.
        self.now_ms = self.last_ms = 0
        #: Messages below `first_offset` are deleted; the next message gets `next_offset`.
        self.first_offset = self.next_offset = 0
        self.order = BatchOrder()
        #: Offsets kept by name, the least recently used first.
        self.names: dict[str, Kept] = {}
        #: True if the stream will be deleted: it takes nothing any more.
        self.sealed = False
        #: Parts of transactions that are not decided.
        self.parts = StreamParts()
        #: What an object store has; None before the first upload.
        self.manifest: Manifest | None = None

    def passed_over(self, index: int) -> None:
        """Skip the entry with this index, which no member can read any more."""
        self.applied = index
        self.order.passed_over()

    def apply(self, index: int, now_ms: int, found: list[NodeBatch], own: tuple[str, int]) -> Applied:
        """Apply an entry; return its effects on the node and incarnation `own`. Raises CodecError."""
        if index <= self.applied:
            raise ValueError(f"entry {index} comes after entry {self.applied}")
        self.applied = index
        self.now_ms = max(self.now_ms, now_ms)
        applied = Applied()
        for batch in found:
            last = self.order.take(batch.node, batch.incarnation, batch.number)
            if last == NOT_NEXT:
                continue
            is_own = (batch.node, batch.incarnation) == own
            if is_own:
                if batch.number != last + 1:
                    applied.missed = range(last + 1, batch.number)
                applied.numbers.append(batch.number)
                if not self.sealed:
                    applied.taken = batch.number
            if not self.sealed:
                for append in batch.appends:
                    self._append(append, applied)
            for step in batch.steps:
                self._take_step(step, applied, is_own=is_own)
            if batch.first > self.first_offset:
                self.first_offset = min(batch.first, self.next_offset)
                applied.trimmed = True
                if self.manifest is not None:
                    self.manifest, removed = self.manifest.without_before(self.first_offset)
                    applied.removed += removed
            for note in batch.notes:
                applied.named = True
                self._note(note)
            for token, condition in batch.seals:
                sealed = self._seal(condition)
                applied.sealed = self.sealed
                if is_own:
                    applied.seals.append((token, sealed))
            if batch.remote is not None:
                applied.remote = True
                self._take_remote(batch.remote)
        return applied

    def _take_remote(self, step: RemoteStep) -> None:
        """Begin the manifest, or add a range to it. A step that comes late has no effect."""
        manifest = self.manifest
        if manifest is None:
            if step.added is None:
                self.manifest = Manifest(step.identity, step.remote)
        elif (
            step.added is not None
            and step.identity == manifest.identity
            and step.added.stop <= self.next_offset
        ):
            self.manifest = manifest.with_range(step.after, step.added, self.first_offset) or manifest

    def _append(self, append: Append, applied: Applied) -> None:
        """Give messages the next offsets."""
        self.last_ms = max(self.last_ms, self.now_ms)
        if self.taken is not None:
            self._append_new(append, self.taken, applied)
            return
        encoded = placed(unpacked(append), self.next_offset, self.last_ms)
        self.next_offset = encoded.batch.stop
        applied.batches.append(encoded)

    def _take_step(self, step: PartStep, applied: Applied, *, is_own: bool) -> None:
        """Take a step of a transaction's part. A sealed stream is deleted, with all that it has."""
        outcome, appends = (READY, []) if self.sealed else self.parts.take(step)
        for append in appends:
            self._append(append, applied)
        if step.kind == PREPARE:
            if is_own:
                applied.prepared.append((step.token, outcome))
        elif step.kind != PEND:
            applied.resolved.append(step.transaction)

    def _seal(self, condition: int) -> Sealed:
        """Seal the stream if it meets the condition; see quorum_queue.machine.seal."""
        count = self.next_offset - self.first_offset
        found = Sealed(SEALED, count)
        if not self.sealed:
            # Consumers of streams are on their nodes, and not in the log.
            found = Sealed(outcome(condition, consumers=0, ready=count + len(self.parts)), count)
        self.sealed = self.sealed or found.outcome == SEALED
        return found

    def _note(self, note: Note) -> None:
        """Apply a note: a consumer takes a name, the owner of a name has acked more, or an operator deletes a
        name.
        """
        kept = self.names.get(note.name)
        offset, owner = kept or _NEW
        if note.kind == DELETES:
            if kept is not None and owner == note.instead:
                del self.names[note.name]
            return
        if note.offset == NO_OFFSET:
            if owner not in (note.instead, note.owner):
                return
        elif owner not in ("", note.owner):
            return
        evicts, most = note.kind == EVICTS, max(note.most, 1)
        if kept is None and len(self.names) >= most and not evicts:
            return
        self.names.pop(note.name, None)
        self.names[note.name] = Kept(max(offset, min(note.offset, self.next_offset)), note.owner)
        while evicts and len(self.names) > most:
            del self.names[next(iter(self.names))]

    def _append_new(self, append: Append, taken: Taken, applied: Applied) -> None:
        """Append the messages that are no duplicates."""
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

    def state(self) -> StreamState:
        """Return the state without the messages and the names that were taken."""
        return StreamState(
            VERSION,
            self.applied,
            self.now_ms,
            self.last_ms,
            self.first_offset,
            self.next_offset,
            self.order.rows(),
            self.order.heard(),
            None,
            [(name, *kept) for name, kept in self.names.items()] or None,
            self.sealed,
            self.parts.state(),
            None
            if self.manifest is None
            else (self.manifest.identity, self.manifest.remote, self.manifest.ranges),
        )

    def snapshot(self) -> bytes:
        """Return the whole state without the messages."""
        return encode_state(self.state(), self.taken)

    @classmethod
    def restore(
        cls, data: bytes, settings: Settings | None = None, taken: Taken | None = None
    ) -> StreamReplica:
        """Build a replica from what `snapshot` returned. `taken`: what it has taken was read already. Raises
        CodecError.
        """
        state = decode_state(data)
        replica = cls(settings)
        replica.applied, replica.now_ms, replica.last_ms = state.applied, state.now_ms, state.last_ms
        replica.first_offset, replica.next_offset = state.first_offset, state.next_offset
        replica.order = BatchOrder(state.batches, state.gap)
        replica.sealed = state.sealed
        replica.parts = StreamParts(state.parts or ())
        replica.manifest = None if state.manifest is None else Manifest(*state.manifest)
        replica.names = {name: Kept(offset, owner) for name, offset, owner in state.names or ()}
        if replica.taken is not None and taken is not None:
            replica.taken = taken
        elif replica.taken is not None:
            for piece in state.taken or ():
                take_piece(replica.taken, piece)
        return replica

    def digest(self) -> str:
        """A digest that is the same on replicas that applied the same entries."""
        return f"{crc32(self.snapshot()):08x}"


def encode_state(state: StreamState, taken: Taken | None) -> bytes:
    """Encode a state with the names that were taken up to it."""
    return encode_with(state, None if taken is None else list(pieces_of(state, taken)))


def take_piece(taken: Taken, piece: bytes) -> None:
    """Put back a piece of what a stream has taken. Raises CodecError."""
    try:
        taken.restore_piece(piece)
    except (ValueError, msgspec.MsgspecError) as error:
        raise CodecError(f"what a stream has taken: {error}") from error


def pieces_of(state: StreamState, taken: Taken) -> Iterator[bytes]:
    """Return the names that were taken up to this state, in pieces; they may change meanwhile."""
    taken.expire(state.last_ms)
    return taken.pieces()


def encode_with(state: StreamState, pieces: list[bytes] | None) -> bytes:
    """Encode a state with these pieces of names."""
    fields = list(msgspec.structs.astuple(state))
    if pieces is not None:
        fields[_TAKEN] = pieces
    # Without the last fields, these are the bytes that earlier versions write.
    for absent in (None, None, False, None, None):
        if fields[-1] is not absent:
            break
        fields.pop()
    return msgspec.msgpack.encode(fields)


def decode_state(data: bytes) -> StreamState:
    """Decode a state. Raises CodecError."""
    try:
        state = _state_decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise CodecError(f"no state of a stream: {error}") from error
    if state.version != VERSION:
        raise CodecError(f"a state has version {state.version}, this mqd reads version {VERSION}")
    return state


__all__ = [
    "Applied",
    "Kept",
    "StreamReplica",
    "StreamState",
    "decode_state",
    "encode_state",
    "encode_with",
    "pieces_of",
    "take_piece",
]
