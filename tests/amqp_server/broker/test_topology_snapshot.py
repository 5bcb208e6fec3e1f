"""A snapshot of the topology is made in parts, and is exact: it has the state from when it began, and nothing
later.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from amqp_server.broker.access.permissions import Permission, TopicPermission
from amqp_server.broker.access.users import User
from amqp_server.broker.declared import operations
from amqp_server.broker.declared.operations import Operation
from amqp_server.broker.declared.records import BindingRecord, ExchangeRecord, QueueRecord, encoded
from amqp_server.broker.declared.vhosts import VhostRecord
from amqp_server.broker.topology import topology_snapshot
from amqp_server.broker.topology.topology_snapshot import SNAPSHOT_VERSION
from tests.work import steps

from .test_topology import Member

NO_ARGUMENTS = encoded({})


def exchange(name: str, node: str = "") -> ExchangeRecord:
    return ExchangeRecord("/", name, "direct", False, False, NO_ARGUMENTS, not node, node, 1 if node else 0)


def binding(queue: str) -> BindingRecord:
    return BindingRecord("/", "amq.topic", queue, "queue", f"key.{queue}", NO_ARGUMENTS)


def queue(name: str) -> QueueRecord:
    return QueueRecord("/", name, 0, False, NO_ARGUMENTS, type="quorum", members=("n1", "n2"), leader="n1")


def filled(queues: int) -> tuple[Member, Callable[[Operation], None]]:
    """Return a member with this many queues, not in the order of their names; and a call that applies more
    operations to it.
    """
    member = Member("n1")

    def apply(operation: Operation) -> None:
        member.topology.apply(member.topology.applied + 1, operation)

    apply(operations.PutVhost(VhostRecord("/")))
    apply(operations.PutUser(User("ann", "hash")))
    apply(operations.SetPermission(Permission("ann", "/", ".*", ".*", ".*")))
    apply(operations.SetTopicPermission(TopicPermission("ann", "/", "amq.topic", ".*", ".*")))
    apply(operations.DeclareExchange(exchange("moving", "n1")))
    for number in range(queues):
        name = f"q{(number * 7919) % queues}"
        apply(operations.DeclareQueue(queue(name)))
        apply(operations.Bind(binding(name)))
    return member, apply


def changes(member: Member) -> list[Operation]:
    """One change of each kind of record, some at the first entries of a table, some at the last."""
    queues = sorted(member.broker.vhost("/").queues.values(), key=lambda each: each.name)
    first, second, last = queues[0], queues[1], queues[-1]
    return [
        operations.DeleteQueue("/", first.name, first.queue_id),
        operations.SetMembers("/", last.name, last.queue_id, ("n3",), "n3"),
        operations.Unbind(binding(second.name)),
        operations.DeclareQueue(queue("a new one")),
        operations.Bind(binding("a new one")),
        operations.DeleteExchange("/", "moving"),
        operations.DeclareExchange(exchange("moving", "n2")),
        operations.PutUser(User("ann", "another hash")),
        operations.PutUser(User("zoe", "hash")),
        operations.ClearPermission("ann", "/"),
        operations.ClearTopicPermission("ann", "/", "amq.topic"),
        operations.PutVhost(VhostRecord("v")),
        operations.DeleteVhost("/"),
    ]


@pytest.mark.parametrize("after", [0, 1, 5, 9])
def test_what_changes_while_a_snapshot_is_made_is_not_in_it(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology_snapshot, "PART_RECORDS", 16)
    member, apply = filled(50)
    expected = member.topology.snapshot()
    view = member.topology.view()
    parts = view.steps()
    for _ in range(after):
        next(parts)
    for change in changes(member):
        apply(change)
        next(parts)
    assert not view.whole
    assert view.finish() == expected != member.topology.snapshot()


@pytest.mark.parametrize("count", [0, 1, 15, 16, 129, pytest.param(65_536, marks=pytest.mark.long)])
def test_the_bytes_are_those_of_the_sorted_tables(count: int) -> None:
    member, _ = filled(count)
    found = member.topology.snapshot()
    tables = msgspec.msgpack.decode(found[1:])
    assert len(tables[5]) == len(tables[6]) == count
    assert all(table == sorted(table) for table in tables[1:])
    assert found == bytes((SNAPSHOT_VERSION,)) + msgspec.msgpack.encode(tables)


def test_a_part_is_no_more_work_where_there_is_more() -> None:
    def longest(queues: int) -> int:
        view, most = filled(queues)[0].topology.view(), 0
        parts = view.steps()
        while not view.whole:
            most = max(most, steps(next, parts))
        return most

    assert longest(4_000) < 2 * longest(400)


def test_bindings_that_go_with_what_a_snapshot_takes_away_come_back() -> None:
    """An auto-delete exchange goes with its last binding, and takes along the bindings that lead to it. The
    snapshot has both.
    """
    behind, ahead = Member("n1"), Member("n2")
    auto = ExchangeRecord("/", "e", "fanout", True, False, NO_ARGUMENTS)
    to_it = BindingRecord("/", "amq.fanout", "e", "exchange", "", NO_ARGUMENTS)
    first, second = [BindingRecord("/", "e", name, "queue", "", NO_ARGUMENTS) for name in ("one", "two")]
    log: list[Operation] = [
        operations.PutVhost(VhostRecord("/")),
        operations.DeclareExchange(auto),
        operations.DeclareQueue(queue("one")),
        operations.DeclareQueue(queue("two")),
        operations.Bind(to_it),
        operations.Bind(first),
        operations.Bind(second),
        operations.Unbind(first),
    ]
    for index, operation in enumerate(log, 1):
        ahead.topology.apply(index, operation)
        if index <= log.index(operations.Bind(first)) + 1:
            behind.topology.apply(index, operation)
    behind.topology.restore(ahead.topology.snapshot())
    assert behind.topology.snapshot() == ahead.topology.snapshot()
    assert set(behind.broker.vhost("/").binding_records()) == {to_it, second}
