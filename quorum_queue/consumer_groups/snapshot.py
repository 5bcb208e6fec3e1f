"""Snapshots of a consumer group, made and read in steps: its partitions and members may have hundreds of
thousands of runs of messages that were returned or are not acked. Pure.

A snapshot is an array in msgpack. Its last fields are there only if they are needed, so that earlier versions
of mqd read what they know:

    version, applied, now_ms, known, generation
    partitions  [stream, name, number, cursor, generation, [returned run], [dead run], owner, holder]
    members, members that have left, getters of single messages:
                [key, prefetch, next id, sent, [portion]]
    getting     [key, next id, wanted messages]
    batches     [node, incarnation, number]
    gap, deaths
    sealed      from versions.SEALS on
    parts       from versions.TRANSACTIONS on:
                [transaction, came, late, prepared, queues, [settle | return | discard, a getter]]

A returned run is (from, to, number of returns); a dead one also has the reason, and the number of the first
death. A portion is (first id, stream, from, to, number of returns, time of delivery). An owner is a place
among the members, below zero if there is none; the holder is the key of the member that got deliveries last,
as long as a member holds any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from typing import Any, Generic, TypeVar, cast

import msgspec

from quorum_queue.batch_order import BatchOrder
from quorum_queue.consumer_groups.entries import CodecError, Key
from quorum_queue.consumer_groups.group import Member, Portion
from quorum_queue.consumer_groups.packed import ROWS_MAX, Unpacker, elements, head
from quorum_queue.consumer_groups.partition import Partition, Span, Spans
from quorum_queue.consumer_groups.parts import GroupPart
from quorum_queue.consumer_groups.state import Death, ReplicaState, new_member
from quorum_queue.machine.effects import Reason
from quorum_queue.machine.parts import TransactionId

VERSION = 1
_Key = tuple[str | int | bool | None, ...]

# -- making --------------------------------------------------------------------------------------------------


class _MemberView:
    """A member at the moment of the snapshot. Lists are copied; portions are never changed."""

    __slots__ = ("_head", "_portions", "_starts")

    def __init__(self, member: Member) -> None:
        self._head = (member.key, member.prefetch, member.next_id, member.sent)
        self._starts, self._portions = member.columns()

    def encode(self, pieces: list[bytes]) -> Iterator[None]:
        pieces += (head(5), elements(self._head), head(len(self._starts)))
        for start in range(0, len(self._starts), ROWS_MAX):
            ids = self._starts[start : start + ROWS_MAX]
            portions = self._portions[start : start + ROWS_MAX]
            pieces.append(
                elements(
                    [
                        (first, each.partition.stream_id, each.low, each.stop, each.attempts, each.at_ms)
                        for first, each in zip(ids, portions, strict=True)
                    ]
                )
            )
            yield


class _PartitionView:
    __slots__ = ("_head", "_owner", "_returned", "partition")

    def __init__(self, partition: Partition, owner: int) -> None:
        self.partition = partition
        self._head = (
            partition.stream_id,
            partition.name,
            partition.number,
            partition.cursor,
            partition.generation,
        )
        self._returned = partition.returned.all()
        self._owner = owner, () if partition.holder is None else partition.holder.key

    def encode(self, pieces: list[bytes], dead: list[tuple[Any, ...]]) -> Iterator[None]:
        pieces += (head(9), elements(self._head))
        yield from _rows(self._returned, pieces)
        yield from _rows(dead, pieces)
        pieces.append(elements(self._owner))
        yield


class _PartView:
    __slots__ = ("_head", "_held")

    def __init__(self, part: GroupPart) -> None:
        self._head = (part.transaction, part.came, part.late, part.prepared, part.participants)
        self._held = [(verb, _MemberView(holder)) for verb, holder in part.held]

    def encode(self, pieces: list[bytes]) -> Iterator[None]:
        pieces += (head(6), elements(self._head), head(len(self._held)))
        for verb, holder in self._held:
            pieces += (head(2), elements([verb]))
            yield from holder.encode(pieces)
        yield


def _rows(rows: Sequence[tuple[Any, ...]], pieces: list[bytes]) -> Iterator[None]:
    pieces.append(head(len(rows)))
    for start in range(0, len(rows), ROWS_MAX):
        pieces.append(elements(rows[start : start + ROWS_MAX]))
        yield


class View:
    """A replica at one moment, which is encoded while the replica goes on."""

    def __init__(self, replica: ReplicaState) -> None:
        group = replica.group
        places = {key: place for place, key in enumerate(group.members)}
        self._head = (VERSION, replica.applied, replica.now_ms, replica.known, group.generation)
        self._partitions = [
            _PartitionView(each, -1 if each.owner is None else places[each.owner.key])
            for each in group.partitions.values()
        ]
        self._dead = list(replica.dead)
        self._members = [
            [_MemberView(each) for each in members.values()]
            for members in (group.members, group.leaving, group.getters)
        ]
        self._getting = [(key, *wanted) for key, wanted in replica.getting.items()]
        self._batches, self._gap = replica.order.rows(), replica.order.heard()
        self._deaths, self._sealed = replica.deaths, replica.sealed
        self._parts = [_PartView(each) for each in replica.parts.all()]
        self._pieces: list[bytes] = []
        self._steps = self._encode()

    def go_on(self) -> bool:
        """Encode some more; return whether there is more to do."""
        return next(self._steps, False) is None

    def state(self) -> bytes:
        """Return the snapshot. Nothing must be left to do."""
        return b"".join(self._pieces)

    def _encode(self) -> Iterator[None]:
        pieces, parts = self._pieces, self._parts
        pieces += (head(15 if parts else 14 if self._sealed else 13), elements(self._head))
        dying: dict[Partition, list[tuple[Any, ...]]] = {}
        for place, dead in enumerate(self._dead, 1):
            dying.setdefault(dead.partition, []).append((*dead.span, dead.reason, dead.first))
            if not place % ROWS_MAX:
                yield
        pieces.append(head(len(self._partitions)))
        for partition in self._partitions:
            yield from partition.encode(pieces, dying.get(partition.partition, []))
        for members in self._members:
            pieces.append(head(len(members)))
            for member in members:
                yield from member.encode(pieces)
                yield
        yield from _rows(self._getting, pieces)
        pieces.append(elements((self._batches, self._gap, self._deaths)))
        if parts or self._sealed:
            pieces.append(elements([self._sealed]))
        if parts:
            pieces.append(head(len(parts)))
            for part in parts:
                yield from part.encode(pieces)


def encode(replica: ReplicaState) -> bytes:
    """Encode a snapshot at once."""
    view = View(replica)
    while view.go_on():
        pass
    return view.state()


# -- reading -------------------------------------------------------------------------------------------------

_decode_head = msgspec.msgpack.Decoder(tuple[int, int, int, bool, int]).decode
_decode_partition = msgspec.msgpack.Decoder(tuple[int, str, int, int, int]).decode
_decode_returned = msgspec.msgpack.Decoder(list[tuple[int, int, int]]).decode
_decode_dead = msgspec.msgpack.Decoder(list[tuple[int, int, int, str, int]]).decode
_decode_owner = msgspec.msgpack.Decoder(tuple[int, _Key]).decode
_decode_member = msgspec.msgpack.Decoder(tuple[_Key, int, int, int]).decode
_decode_portions = msgspec.msgpack.Decoder(list[tuple[int, int, int, int, int, int]]).decode
_decode_getting = msgspec.msgpack.Decoder(list[tuple[_Key, int, int]]).decode
_decode_batches = msgspec.msgpack.Decoder(tuple[list[tuple[str, int, int]]]).decode
_decode_gap = msgspec.msgpack.Decoder(tuple[list[str] | None]).decode
_decode_number = msgspec.msgpack.Decoder(tuple[int]).decode
_decode_sealed = msgspec.msgpack.Decoder(tuple[bool]).decode
_decode_part = msgspec.msgpack.Decoder(tuple[TransactionId, int, bool, bool, list[int]]).decode
_decode_verb = msgspec.msgpack.Decoder(tuple[str]).decode

T = TypeVar("T", Span, tuple[int, Death])


class _InOrder(Generic[T]):
    """Puts many items into their order without a step that sorts them all."""

    def __init__(self) -> None:
        self._sorted: list[list[T]] = []
        self._latest: list[T] = []

    def add(self, item: T) -> None:
        self._latest.append(item)
        if len(self._latest) == ROWS_MAX:
            self._cut()

    def _cut(self) -> None:
        self._latest.sort(key=_first)
        self._sorted.append(self._latest)
        self._latest = []

    def all(self) -> Iterator[T]:
        self._cut()
        return merge(*self._sorted, key=_first)


def _first(item: tuple[Any, ...]) -> int:
    first: int = item[0]
    return first


class Reading:
    """A snapshot that is read."""

    def __init__(self, data: bytes | memoryview, replica: ReplicaState) -> None:
        """`replica` is new, and gets the state."""
        self._replica = replica
        self._unpacker = Unpacker(bytes(data))
        #: Runs of messages that come in any order, and where they belong.
        self._unordered: list[tuple[Spans, _InOrder[Span]]] = []
        self._held: dict[Partition, _InOrder[Span]] = {}
        self._steps = self._read()

    def go_on(self) -> bool:
        """Read some more; return whether there is more to do. Raises CodecError."""
        try:
            return next(self._steps, False) is None
        except (msgspec.MsgspecError, LookupError, ValueError) as error:
            raise CodecError(f"no snapshot of a group: {error}") from error

    def _read(self) -> Iterator[None]:
        unpacker, replica = self._unpacker, self._replica
        group = replica.group
        fields = unpacker.array(11, 15)
        version, replica.applied, replica.now_ms, replica.known, generation = _decode_head(unpacker.take(5))
        if version != VERSION:
            raise CodecError(f"a snapshot has version {version}, this mqd reads version {VERSION}")
        deaths = _InOrder[tuple[int, Death]]()
        owned: list[tuple[Partition, int, Key]] = []
        for _ in range(unpacker.array()):
            yield from self._partition(deaths, owned)
        for members, limited in ((group.members, True), (group.leaving, True), (group.getters, False)):
            for _ in range(unpacker.array()):
                member = self._member(limited=limited)
                members[member.key] = member
                yield from self._portions(member)
                yield
        for rows in unpacker.rows():
            for key, next_id, wanted in _decode_getting(rows):
                replica.getting[key] = next_id, wanted
            yield
        (batches,) = _decode_batches(unpacker.take(1))
        # Earlier versions ended here.
        (gap,) = _decode_gap(unpacker.take(1)) if fields > 11 else (None,)
        replica.order = BatchOrder(batches, gap)
        if fields > 12:
            (replica.deaths,) = _decode_number(unpacker.take(1))
        if fields > 13:
            (replica.sealed,) = _decode_sealed(unpacker.take(1))
        for _ in range(unpacker.array() if fields > 14 else 0):
            yield from self._part()
        unpacker.end()
        for spans, found in self._unordered:
            for place, span in enumerate(found.all(), 1):
                spans.add(span)
                if not place % ROWS_MAX:
                    yield
            yield
        for place, (_, death) in enumerate(deaths.all(), 1):
            replica.dead.append(death)
            if not place % ROWS_MAX:
                yield
        owners = list(group.members.values())
        for partition, place, holder in owned:
            if holder:
                # Another consumer of its channel may hold the rest.
                partition.holder = group.find(holder) or new_member(holder, 0, 0, 0)
            if place >= 0:
                partition.owner = owner = owners[place]
                owner.owned[partition] = None
            yield
        group.generation = generation
        group.settled_down()

    def _partition(
        self, deaths: _InOrder[tuple[int, Death]], owned: list[tuple[Partition, int, Key]]
    ) -> Iterator[None]:
        unpacker = self._unpacker
        unpacker.array(9)
        stream_id, name, number, cursor, generation = _decode_partition(unpacker.take(5))
        partition = Partition(stream_id, name, number)
        partition.cursor, partition.generation = cursor, generation
        for rows in unpacker.rows():
            partition.returned.extend([Span(*row) for row in _decode_returned(rows)])
            yield
        dying = _InOrder[Span]()
        self._unordered.append((partition.dying, dying))
        for rows in unpacker.rows():
            for low, stop, attempts, reason, first in _decode_dead(rows):
                span = Span(low, stop, attempts)
                dying.add(span)
                deaths.add((first, Death(partition, span, cast(Reason, reason), first)))
            yield
        owned.append((partition, *_decode_owner(unpacker.take(2))))
        self._replica.group.add(partition)
        yield

    def _member(self, *, limited: bool) -> Member:
        """Read a member up to its portions."""
        unpacker = self._unpacker
        unpacker.array(5)
        key, prefetch, next_id, sent = _decode_member(unpacker.take(4))
        return new_member(key, prefetch, next_id, sent, limited=limited)

    def _portions(self, member: Member) -> Iterator[None]:
        partitions = self._replica.group.partitions
        for rows in self._unpacker.rows():
            for first, stream_id, low, stop, attempts, at_ms in _decode_portions(rows):
                partition = partitions[stream_id]
                held = self._held.get(partition)
                if held is None:
                    held = self._held[partition] = _InOrder[Span]()
                    self._unordered.append((partition.held, held))
                held.add(Span(low, stop, attempts))
                member.put(first, Portion(partition, range(low, stop), stop, attempts, at_ms))
            yield

    def _part(self) -> Iterator[None]:
        unpacker, replica = self._unpacker, self._replica
        unpacker.array(6)
        transaction, came, late, prepared, participants = _decode_part(unpacker.take(5))
        part = GroupPart(transaction)
        part.came, part.late, part.prepared, part.participants = came, late, prepared, participants
        for _ in range(unpacker.array()):
            unpacker.array(2)
            (verb,) = _decode_verb(unpacker.take(1))
            holder = self._member(limited=False)
            part.held.append((verb, holder))
            replica.group.parked[holder.key] = holder
            yield from self._portions(holder)
        replica.parts.by_id[transaction] = part
        yield


__all__ = ["Reading", "View", "encode"]
