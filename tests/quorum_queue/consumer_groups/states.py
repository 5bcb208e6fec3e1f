"""Snapshots of a consumer group as msgspec encodes and decodes them at once: the bytes of all versions."""

from __future__ import annotations

from typing import cast

import msgspec

from quorum_queue.consumer_groups.group import Member
from quorum_queue.consumer_groups.partition import Partition
from quorum_queue.consumer_groups.parts import GroupPart
from quorum_queue.consumer_groups.replica import GroupReplica
from quorum_queue.machine.parts import TransactionId

VERSION = 1


class PartitionState(msgspec.Struct, array_like=True, frozen=True):
    stream_id: int
    name: str
    number: int
    cursor: int
    generation: int
    #: From, to, number of returns; for dead messages also the reason, and the number of the first death.
    returned: list[tuple[int, int, int]]
    dead: list[tuple[int, int, int, str, int]]
    #: Index of its owner among the members; below zero if there is none.
    owner: int
    #: The member that got deliveries of it last, as long as a member holds any.
    holder: tuple[str | int | bool | None, ...]


class MemberState(msgspec.Struct, array_like=True, frozen=True):
    key: tuple[str | int | bool | None, ...]
    prefetch: int
    next_id: int
    sent: int
    #: First id, stream, from, to, number of returns, time of delivery.
    portions: list[tuple[int, int, int, int, int, int]]


class PartState(msgspec.Struct, array_like=True, frozen=True):
    """A part of a transaction. From versions.TRANSACTIONS on."""

    transaction: TransactionId
    came: int
    late: bool
    prepared: bool
    participants: list[int]
    held: list[tuple[str, MemberState]]


class GroupState(msgspec.Struct, array_like=True, frozen=True):
    """The whole state of a replica."""

    version: int
    applied: int
    now_ms: int
    known: bool
    generation: int
    partitions: list[PartitionState]
    members: list[MemberState]
    leaving: list[MemberState]
    getters: list[MemberState]
    #: Getters of single messages, with the next delivery id and the number of wanted messages.
    getting: list[tuple[tuple[str | int | bool | None, ...], int, int]]
    #: Node, incarnation and number of the last batch.
    batches: list[tuple[str, int, int]]
    gap: list[str] | None = None
    #: The number of the next death.
    deaths: int = 0
    #: True if the group will be deleted. From versions.SEALS on.
    sealed: bool = False
    parts: list[PartState] = []


def encode_state(state: GroupState) -> bytes:
    if not state.parts:
        # The format of earlier versions.
        fields = msgspec.structs.astuple(state)[:-1]
        return msgspec.msgpack.encode(fields if state.sealed else fields[:-1])
    return msgspec.msgpack.encode(state)


decode_state = msgspec.msgpack.Decoder(GroupState).decode


def state_of(replica: GroupReplica) -> GroupState:
    group = replica.group
    places = {key: place for place, key in enumerate(group.members)}
    dying: dict[Partition, list[tuple[int, int, int, str, int]]] = {}
    for dead in replica.dead:
        dying.setdefault(dead.partition, []).append((*dead.span, dead.reason, dead.first))
    partitions = [
        PartitionState(
            each.stream_id,
            each.name,
            each.number,
            each.cursor,
            each.generation,
            # There may be very many: as they are, these are tuples.
            cast(list[tuple[int, int, int]], each.returned.all()),
            dying.get(each, []),
            -1 if each.owner is None else places[each.owner.key],
            () if each.holder is None else each.holder.key,
        )
        for each in group.partitions.values()
    ]
    return GroupState(
        VERSION,
        replica.applied,
        replica.now_ms,
        replica.known,
        group.generation,
        partitions,
        [_state_of(each) for each in group.members.values()],
        [_state_of(each) for each in group.leaving.values()],
        [_state_of(each) for each in group.getters.values()],
        [(key, *wanted) for key, wanted in replica.getting.items()],
        replica.order.rows(),
        replica.order.heard(),
        replica.deaths,
        replica.sealed,
        [_state_of_part(each) for each in replica.parts.all()],
    )


def _state_of(member: Member) -> MemberState:
    portions = [
        (first, each.partition.stream_id, each.low, each.stop, each.attempts, each.at_ms)
        for first, each in member.portions()
    ]
    return MemberState(member.key, member.prefetch, member.next_id, member.sent, portions)


def _state_of_part(part: GroupPart) -> PartState:
    return PartState(
        part.transaction,
        part.came,
        part.late,
        part.prepared,
        part.participants,
        [(verb, _state_of(holder)) for verb, holder in part.held],
    )


__all__ = ["decode_state", "encode_state", "state_of"]
