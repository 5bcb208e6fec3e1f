"""Snapshots of a group are made and read in short steps, and have the bytes that earlier versions know."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from quorum_queue.batch_order import BatchOrder
from quorum_queue.consumer_groups.entries import CodecError
from quorum_queue.consumer_groups.group import Group, Member
from quorum_queue.consumer_groups.packed import ROWS_MAX, Unpacker
from quorum_queue.consumer_groups.partition import Partition, Span
from quorum_queue.consumer_groups.replica import Death, GroupReplica
from quorum_queue.consumer_groups.snapshot import Reading, View
from tests.quorum_queue.consumer_groups.states import decode_state, encode_state, state_of
from tests.work import steps

#: Runs in one of the lists of a large group: its snapshot takes a few steps for each list.
MANY = 20 * ROWS_MAX + 100
#: Instructions of a step, however large the group is.
STEP_MAX = 125_000


def with_partitions(*stream_ids: int) -> GroupReplica:
    replica = GroupReplica(None, dead_letters=True)
    replica.known = True
    for stream_id in stream_ids:
        partition = Partition(stream_id, f"s-{stream_id}", stream_id)
        partition.cursor = 10 * MANY
        replica.group.add(partition)
    return replica


def with_member(replica: GroupReplica, name: str) -> Member:
    key = ("n1", 1, 1, len(replica.group.members), name, 1)
    member = Member(key, channel=key[:-2])
    replica.group.join(member)
    replica.group.rebalance()
    return member


def returned() -> GroupReplica:
    replica = with_partitions(7, 8)
    for partition in replica.group.partitions.values():
        partition.returned.extend([Span(2 * each, 2 * each + 1, 1) for each in range(MANY)])
    replica.group.settled_down()
    return replica


def held() -> GroupReplica:
    replica = with_partitions(7, 8)
    member = with_member(replica, "a")
    for partition in replica.group.partitions.values():
        for each in range(MANY):
            replica.group.hand(partition, member, range(2 * each, 2 * each + 1), 2 * each + 1, 0, each)
    return replica


def held_in_any_order() -> GroupReplica:
    replica, chance = with_partitions(7), random.Random(7)
    member, partition = with_member(replica, "a"), replica.group.partitions[7]
    for each in chance.sample(range(2 * MANY), MANY):
        replica.group.hand(partition, member, range(each, each + 1), each + 1, 0, each)
    return replica


def dead() -> GroupReplica:
    replica = with_partitions(7, 8)
    for number in range(MANY):
        partition = replica.group.partitions[7 + number % 2]
        span = Span(10 * MANY - 3 * number, 10 * MANY - 3 * number + 1, 0)
        partition.dying.add(span)
        replica.dead.append(Death(partition, span, "rejected", number))
    replica.deaths = MANY
    replica.group.settled_down()
    return replica


def many_partitions() -> GroupReplica:
    replica = with_partitions(*range(MANY))
    for partition in replica.group.partitions.values():
        partition.returned.add(Span(1, 2, 1))
    replica.group.settled_down()
    return replica


def many_members() -> GroupReplica:
    replica = with_partitions(7)
    for number in range(MANY):
        key = ("n1", 1, 1, number, "a", 1)
        member = Member(key, channel=key[:-2])
        replica.group.leaving[key] = member
        replica.group.hand(replica.group.partitions[7], member, range(number, number + 1), number + 1, 0, 5)
    return replica


def with_parts() -> GroupReplica:
    replica = held()
    (member,) = replica.group.members.values()
    for number in range(0, MANY, 2):
        replica.parts.pend(("n1", 1, number), "settle", member.key, number, number)
    replica.sealed = True
    replica.getting[("n1", 1, 1, 1, None, False)] = 3, 2
    replica.order = BatchOrder([("n2", 1, 5), ("n1", 2, 7)], ["n2"])
    return replica


LARGE: list[Callable[[], GroupReplica]] = [
    returned,
    held,
    held_in_any_order,
    dead,
    many_partitions,
    many_members,
    with_parts,
]


def restored(data: bytes) -> GroupReplica:
    return GroupReplica.restore(data, None, dead_letters=True)


@pytest.mark.parametrize("make", LARGE)
def test_earlier_versions_read_it_and_are_read(make: Callable[[], GroupReplica]) -> None:
    replica = make()
    data = encode_state(state_of(replica))
    assert replica.snapshot() == data
    assert encode_state(decode_state(data)) == data
    again = restored(data)
    assert again.snapshot() == data
    for stream_id, partition in replica.group.partitions.items():
        copy = again.group.partitions[stream_id]
        assert copy.pending() == partition.pending()
        assert copy.held.all() == partition.held.all() and copy.held.count == partition.held.count
        assert copy.dying.all() == partition.dying.all()
        assert copy.committed == partition.committed
    assert [each[1:] for each in again.dead] == [each[1:] for each in replica.dead]


@pytest.mark.pure
@pytest.mark.parametrize("make", LARGE)
def test_no_step_is_long(make: Callable[[], GroupReplica]) -> None:
    replica = make()
    view, counts = View(replica), list[int]()
    more = True

    def go_on(what: View | Reading) -> None:
        nonlocal more
        more = what.go_on()

    while more:
        counts.append(steps(go_on, view))
    assert len(counts) > MANY // ROWS_MAX and max(counts) < STEP_MAX
    again = GroupReplica(None, dead_letters=True)
    reading, more = Reading(view.state(), again), True
    counts.clear()
    while more:
        counts.append(steps(go_on, reading))
    assert len(counts) > MANY // ROWS_MAX and max(counts) < STEP_MAX


@pytest.mark.parametrize("make", LARGE)
def test_a_snapshot_has_what_was_there_when_it_was_begun(make: Callable[[], GroupReplica]) -> None:
    replica = make()
    expected = replica.snapshot()
    view = View(replica)
    view.go_on()
    change(replica.group)
    replica.dead.clear()
    while view.go_on():
        pass
    assert view.state() == expected != replica.snapshot()


def change(group: Group) -> None:
    """Settle and return some of whatever is there."""
    for partition in list(group.partitions.values()):
        partition.returned.take(0, 5)
        partition.cursor += 3
    for member in [*group.members.values(), *group.leaving.values()]:
        member.next_id += 5
        group.settle(member.key, 2, 4)
        group.give_back(member.key, 7, 9)
        group.leave(member.key, gone=True)
    group.rebalance()


@pytest.mark.parametrize("make", LARGE)
def test_what_is_dropped_leaves_nothing_in_a_cycle(make: Callable[[], GroupReplica]) -> None:
    replica = make()
    members, partitions = replica.group.holders(), list(replica.group.partitions.values())
    for _ in replica.let_go():
        pass
    for member in members:
        assert not member.owned and not member.portions()
    for partition in partitions:
        assert partition.owner is None and partition.holder is None and not partition.pending()


def test_what_is_no_snapshot_is_refused() -> None:
    data = with_parts().snapshot()
    for size in (*range(60), len(data) // 2, len(data) - 1):
        with pytest.raises(CodecError):
            restored(data[:size])
    with pytest.raises(CodecError):
        restored(data + b"\xc0")
    fields: list[Any] = msgspec.msgpack.decode(data)
    for place in range(len(fields)):
        with pytest.raises(CodecError):
            restored(msgspec.msgpack.encode([*fields[:place], b"?", *fields[place + 1 :]]))
    for version in (0, 2):
        with pytest.raises(CodecError):
            restored(msgspec.msgpack.encode([version, *fields[1:]]))
    # A portion of a partition that is not there.
    fields[5] = []
    with pytest.raises(CodecError):
        restored(msgspec.msgpack.encode(fields))


def test_a_snapshot_of_a_version_without_deaths_is_read() -> None:
    fields: list[Any] = msgspec.msgpack.decode(returned().snapshot())
    for count in (11, 12, 13):
        assert restored(msgspec.msgpack.encode(fields[:count])).digest() == returned().digest()


@pytest.mark.parametrize("size", [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536, 70_000])
def test_any_object_is_passed_over(size: int) -> None:
    objects: list[Any] = [
        *("x" * size, b"y" * size, [7] * size, dict.fromkeys(range(min(size, 15)))),
        *(size, -size, 1 << 40, -(1 << 40), 1 << 63, 0.5, None, True, False, [[], [["a"]]]),
    ]
    for each in objects:
        unpacker = Unpacker(msgspec.msgpack.encode([each, "next"]))
        assert unpacker.array() == 2
        assert msgspec.msgpack.decode(unpacker.take(1)) == [each]
        assert msgspec.msgpack.decode(unpacker.take(1)) == ["next"]
        unpacker.end()
