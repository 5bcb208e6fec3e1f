"""Hosts of very many queues are made and closed in parts, while the queues appear, or go, at once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from amqp_server.broker.in_parts.host_parts import ComingHost, HostParts
from amqp_server.turn import Turn
from tests.amqp_server.connection.node import exchange_parts
from tests.amqp_server.streams.node import StreamNode
from tests.amqp_server.streams.test_super_streams import declare, delete, opened, publish, read

PARTITIONS = 5


@pytest.fixture
def hurried() -> StreamNode:
    """A node whose turns have time for one host each."""
    node = StreamNode(super_stream_partitions_max=PARTITIONS)
    exchange_parts(node.broker, host_parts=HostParts(cast(Turn, Hurried(node.turn))))
    return node


class Hurried:
    def __init__(self, turn: Turn) -> None:
        self.contain = turn.contain
        self.left: dict[Any, Any] = {}

    def overdue(self) -> bool:
        return True

    def later(self, unit: Any, call: Any) -> None:
        self.left.setdefault(unit, call)

    def go_on(self) -> bool:
        """Go on with the work that was left; return whether there was any."""
        left, self.left = self.left, {}
        for call in left.values():
            call()
        return bool(left)


def turn_of(node: StreamNode) -> Hurried:
    turn: Any = node.broker.host_parts._turn
    return turn  # type: ignore[no-any-return]


def coming(node: StreamNode) -> list[str]:
    return [queue.name for queue in node.broker.all_queues() if isinstance(queue.host, ComingHost)]


def test_hosts_come_one_after_the_other(hurried: StreamNode) -> None:
    declare(opened(hurried), partitions=PARTITIONS)
    assert len(list(hurried.broker.all_queues())) == PARTITIONS
    counts = [len(coming(hurried))]
    while turn_of(hurried).go_on():
        counts.append(len(coming(hurried)))
    assert counts == [5, 4, 3, 2, 1, 0] and not hurried.broker.host_parts.left


def test_who_wants_one_need_not_wait(hurried: StreamNode) -> None:
    peer = opened(hurried)
    declare(peer, partitions=PARTITIONS)
    publish(peer, *[(f"key {number}", b"%d" % number) for number in range(40)])
    found = [body for number in range(PARTITIONS) for body in read(hurried, f"s-{number}")]
    assert sorted(found) == sorted(b"%d" % number for number in range(40))
    assert coming(hurried) == []


def test_deleted_queues_are_closed_later_and_those_to_come_are_never_made(hurried: StreamNode) -> None:
    peer = opened(hurried)
    declare(peer, partitions=PARTITIONS)
    publish(peer, *[(f"key {number}", b"x") for number in range(40)])
    hurried.work()
    assert hurried.files.now
    delete(peer)
    assert not list(hurried.broker.all_queues()) and hurried.broker.host_parts.left
    while turn_of(hurried).go_on():
        pass
    hurried.work()
    assert not hurried.files.now and not hurried.broker.host_parts.left
    declare(peer, partitions=PARTITIONS)
    delete(peer)
    while turn_of(hurried).go_on():
        pass
    hurried.work()
    assert not hurried.broker.host_parts.left and not hurried.files.now


def test_a_restart_in_between_makes_all_of_them(hurried: StreamNode) -> None:
    peer = opened(hurried)
    declare(peer, partitions=PARTITIONS)
    turn_of(hurried).go_on()
    hurried.work()
    hurried.restart()
    assert len(list(hurried.broker.all_queues())) == PARTITIONS and coming(hurried) == []
    peer = opened(hurried)
    publish(peer, ("key", b"x"))
    assert sum([read(hurried, f"s-{number}") == [b"x"] for number in range(PARTITIONS)]) == 1


def test_with_time_they_are_made_at_once() -> None:
    node = StreamNode(super_stream_partitions_max=PARTITIONS)
    declare(opened(node), partitions=PARTITIONS)
    assert coming(node) == [] and not node.broker.host_parts.left
