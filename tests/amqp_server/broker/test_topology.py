"""The topology as a state machine: the same operations make the same records on every node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_server.broker.access.permissions import Permission
from amqp_server.broker.access.users import User
from amqp_server.broker.broker import Broker
from amqp_server.broker.declared import operations
from amqp_server.broker.declared.operations import Operation, decode, encode
from amqp_server.broker.declared.records import BindingRecord, ExchangeRecord, QueueRecord, encoded
from amqp_server.broker.declared.vhosts import VhostRecord
from amqp_server.broker.recovery import recovery
from amqp_server.broker.topology.replication import Done
from amqp_server.broker.topology.topology import Topology
from amqp_server.broker.topology.topology_snapshot import UnreadableSnapshot
from amqp_server.config import Config
from persistence.journal import Journal
from tests.clocks import ManualClock
from tests.stores.memory import MemoryEnvironment

from ..connection.node import Commits, make_broker


class Replication:
    """A cluster's log in a list. It applies nothing before the test says so."""

    clustered = True
    incarnation = 1

    def __init__(self, node: str) -> None:
        self.node = node
        self.proposed: list[tuple[Operation, Done | None]] = []

    def propose(self, operation: Operation, done: Done | None = None) -> None:
        self.proposed.append((operation, done))


class Member:
    """A node of a cluster: a broker whose changes come from a log."""

    def __init__(self, node: str, environment: MemoryEnvironment | None = None) -> None:
        self.environment = environment or MemoryEnvironment()
        self.replication = Replication(node)
        self.broker = make_broker(
            Config(node=node),
            self.environment,
            ManualClock(),
            Commits(self.environment),
            replication=self.replication,
        )

    @property
    def topology(self) -> Topology:
        return self.broker.topology

    def restarted(self) -> Member:
        """Return the node after a restart, with what was on its disk."""
        self.environment.flush()
        member = Member(self.replication.node, self.environment)
        recovery.recover(member.broker, Journal(self.environment))
        return member


VHOSTS = ("/", "v")
NAMES = ("a", "b", "c")
NODES = ("n1", "n2", "n3")
ARGUMENTS: tuple[dict[str, Any], ...] = ({}, {"x-max-length": 5}, {"x": [1, 2.5, None, b"\xff", {"y": True}]})

vhosts, names, nodes = st.sampled_from(VHOSTS), st.sampled_from(NAMES), st.sampled_from(NODES)
arguments = st.sampled_from(ARGUMENTS).map(encoded)
ids = st.integers(1, 60)
members = st.lists(nodes, unique=True, max_size=3).map(tuple)
bindings = st.builds(
    BindingRecord,
    vhosts,
    st.sampled_from((*NAMES, "amq.topic", "amq.fanout")),
    names,
    st.sampled_from(("queue", "exchange")),
    st.sampled_from(("", "k", "#.x")),
    arguments,
)


@st.composite
def queues(draw: st.DrawFn) -> QueueRecord:
    durable, exclusive = draw(st.sampled_from([(True, False), (False, False), (False, True)]))
    kind = draw(st.sampled_from(("classic", "quorum"))) if durable else "classic"
    return QueueRecord(
        draw(vhosts),
        draw(names),
        0,
        kind == "classic" and draw(st.booleans()),
        encoded(draw(st.sampled_from(ARGUMENTS))),
        durable=durable,
        exclusive=exclusive,
        owner=draw(ids) if exclusive else 0,
        type=kind,
        node="" if kind == "quorum" else draw(nodes),
        incarnation=0 if durable else draw(st.integers(1, 3)),
        members=draw(members) if kind == "quorum" else (),
    )


@st.composite
def exchanges(draw: st.DrawFn) -> ExchangeRecord:
    durable = draw(st.booleans())
    return ExchangeRecord(
        draw(vhosts),
        draw(names),
        draw(st.sampled_from(("direct", "topic", "fanout", "headers", "x-consistent-hash", "nonsense"))),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(
            st.sampled_from(
                (encoded({}), encoded({"alternate-exchange": "b"}), encoded({"alternate-exchange": 5}))
            )
        ),
        durable,
        *(("", 0) if durable else (draw(nodes), draw(st.integers(1, 3)))),
    )


operations_ = st.one_of(
    st.builds(operations.PutVhost, st.builds(VhostRecord, vhosts, st.sampled_from(("", "text")))),
    st.builds(operations.DeleteVhost, st.just("v")),
    st.builds(operations.DeclareExchange, exchanges()),
    st.builds(operations.DeclareExchange, exchanges()),
    st.builds(operations.DeleteExchange, vhosts, names, st.booleans()),
    st.builds(operations.Bind, bindings),
    st.builds(operations.Bind, bindings),
    st.builds(operations.Bind, bindings),
    st.builds(operations.Unbind, bindings),
    st.builds(operations.DeclareQueue, queues()),
    st.builds(operations.DeclareQueue, queues()),
    st.builds(operations.DeclareQueue, queues()),
    st.builds(operations.DeleteQueue, vhosts, names, ids),
    st.builds(operations.SetMembers, vhosts, names, ids, members),
    st.builds(operations.PutUser, st.builds(User, names, st.just("hash"))),
    st.builds(operations.DeleteUser, names),
    st.builds(
        operations.SetPermission,
        st.builds(Permission, names, vhosts, st.just(".*"), st.just(""), st.just("a")),
    ),
    st.builds(operations.ClearPermission, names, vhosts),
    st.builds(operations.NodeDown, nodes, st.integers(1, 3)),
)
logs = st.lists(operations_, max_size=40).map(
    lambda log: [operations.PutVhost(VhostRecord("/")), operations.PutVhost(VhostRecord("v")), *log]
)


def counts(broker: Broker) -> tuple[int, int, int]:
    routers = [vhost.router for vhost in broker.vhosts.values()]
    found = [exchange for router in routers for exchange in router.exchanges() if not exchange.predeclared]
    return len(list(broker.all_queues())), len(found), sum(len(router.bindings()) for router in routers)


def aimed(broker: Broker, index: int, operation: Operation) -> Operation:
    """Aim most changes and deletions at something that is there."""
    queues = sorted((queue.queue_id, queue.vhost.name, queue.name) for queue in broker.all_queues())
    if isinstance(operation, operations.DeleteQueue | operations.SetMembers) and queues and index % 4:
        queue_id, vhost, name = queues[operation.queue_id % len(queues)]
        if isinstance(operation, operations.DeleteQueue):
            return operations.DeleteQueue(vhost, name, queue_id)
        return operations.SetMembers(vhost, name, queue_id, operation.members)
    if isinstance(operation, operations.Unbind) and index % 4:
        records = [record for vhost in broker.vhosts.values() for record in vhost.binding_records()]
        records.sort(key=lambda record: record.key)
        return operations.Unbind(records[index % len(records)]) if records else operation
    return operation


@settings(max_examples=150, deadline=None)
@given(logs, st.data())
def test_the_same_log_makes_the_same_records(log: list[Operation], data: st.DataObject) -> None:
    first, second, behind = Member("n1"), Member("n2"), Member("n3")
    asleep = data.draw(st.integers(0, len(log)), "operations that the third node has seen")
    for index, drawn in enumerate(log, 1):
        operation = log[index - 1] = aimed(first.broker, index, drawn)
        result = first.topology.apply(index, operation)
        assert second.topology.apply(index, decode(encode(operation))) == result
        if index <= asleep:
            behind.topology.apply(index, operation)
        snapshot = first.topology.snapshot()
        assert second.topology.snapshot() == snapshot
        fresh = Member("n4")
        fresh.topology.restore(snapshot)
        assert fresh.topology.snapshot() == snapshot
    behind.topology.restore(snapshot)
    assert behind.topology.snapshot() == snapshot
    for member in (first, behind):
        broker = member.broker
        assert (broker.counts.queues, broker.counts.exchanges, broker.counts.bindings) == counts(broker)
        again = member.restarted()
        assert again.topology.snapshot() == snapshot
        assert counts(again.broker) == counts(broker)
    for index, operation in enumerate(log, len(log) + 1):
        results = [member.topology.apply(index, operation) for member in (first, behind)]
        assert results[0] == results[1]
    assert behind.topology.snapshot() == first.topology.snapshot()


# -- one by one


@pytest.fixture
def member() -> Iterator[Member]:
    found = Member("n1")
    found.topology.apply(1, operations.PutVhost(VhostRecord("/")))
    yield found


def queue(name: str = "q", **fields: Any) -> QueueRecord:
    return QueueRecord("/", name, 0, False, encoded({}), **({"node": "n1"} | fields))


def test_a_queue_has_the_index_as_its_id(member: Member) -> None:
    assert member.topology.apply(7, operations.DeclareQueue(queue())).changed
    assert member.broker.vhost("/").queues["q"].queue_id == 7
    assert not member.topology.apply(8, operations.DeclareQueue(queue())).changed
    assert member.broker.vhost("/").queues["q"].queue_id == 7


def test_only_the_queue_that_was_meant_is_deleted(member: Member) -> None:
    member.topology.apply(7, operations.DeclareQueue(queue()))
    assert not member.topology.apply(8, operations.DeleteQueue("/", "q", 6)).changed
    assert not member.topology.apply(9, operations.DeleteQueue("v", "q", 7)).changed
    assert member.topology.apply(10, operations.DeleteQueue("/", "q", 7)).changed
    assert not member.broker.vhost("/").queues


def test_an_exchange_in_use_is_not_deleted(member: Member) -> None:
    topology = member.topology
    topology.apply(
        2, operations.DeclareExchange(ExchangeRecord("/", "x", "direct", False, False, encoded({})))
    )
    topology.apply(3, operations.DeclareQueue(queue()))
    binding = BindingRecord("/", "x", "q", "queue", "k", encoded({}))
    assert topology.apply(4, operations.Bind(binding)).changed
    assert not topology.apply(5, operations.DeleteExchange("/", "x", True)).changed
    assert topology.apply(6, operations.Unbind(binding)).changed
    assert topology.apply(7, operations.DeleteExchange("/", "x", True)).changed


def test_what_is_wrong_is_told(member: Member) -> None:
    record = ExchangeRecord("/", "x", "direct", False, False, encoded({"alternate-exchange": 5}))
    result = member.topology.apply(2, operations.DeclareExchange(record))
    assert not result.changed
    assert "invalid type 'signedint' for arg 'alternate-exchange'" in result.error
    binding = BindingRecord("/", "amq.topic", "q", "queue", ".".join("#" * 65), encoded({}))
    member.topology.apply(3, operations.DeclareQueue(queue()))
    assert "65 '#' words" in member.topology.apply(4, operations.Bind(binding)).error


def test_what_goes_with_a_node_goes_with_its_incarnation(member: Member) -> None:
    apply = member.topology.apply
    transient = {"durable": False, "node": "n2"}
    apply(2, operations.DeclareQueue(queue("old", incarnation=1, **transient)))
    apply(3, operations.DeclareQueue(queue("new", incarnation=2, **transient)))
    apply(4, operations.DeclareQueue(queue("own", incarnation=2, exclusive=True, owner=3, **transient)))
    apply(5, operations.DeclareQueue(queue("other", durable=False, incarnation=1)))
    apply(6, operations.DeclareQueue(queue("durable", node="n2")))
    exchange = ExchangeRecord("/", "x", "direct", False, False, encoded({}), False, "n2", 1)
    apply(7, operations.DeclareExchange(exchange))
    found = member.broker.vhost("/")
    apply(8, operations.NodeDown("n2", 1))
    assert list(found.queues) == ["new", "own", "other", "durable"]
    assert found.router.get("x") is None
    apply(9, operations.NodeDown("n2", 2))
    assert list(found.queues) == ["other", "durable"]


def test_restore_keeps_the_hosts_of_what_stays(member: Member) -> None:
    topology = member.topology
    topology.apply(2, operations.DeclareQueue(queue("stays")))
    topology.apply(3, operations.DeclareQueue(queue("goes")))
    stays, goes = (member.broker.vhost("/").queues[name].host for name in ("stays", "goes"))
    other = Member("n2")
    other.topology.restore(topology.snapshot())
    other.topology.apply(4, operations.DeleteQueue("/", "goes", 3))
    other.topology.apply(5, operations.DeclareQueue(queue("goes")))
    topology.restore(other.topology.snapshot())
    found = member.broker.vhost("/").queues
    assert found["stays"].host is stays and not stays.ended
    assert found["goes"].host is not goes and goes.ended
    assert topology.applied == 5


def exchange(name: str, *, auto_delete: bool) -> operations.DeclareExchange:
    return operations.DeclareExchange(ExchangeRecord("/", name, "fanout", auto_delete, False, encoded({})))


def test_restore_leaves_what_an_unbind_would_delete(member: Member) -> None:
    """An auto-delete exchange goes with its last binding; the snapshot may have it anew, without bindings
    yet.
    """
    topology = member.topology
    topology.apply(2, operations.DeclareQueue(queue()))
    topology.apply(3, exchange("x", auto_delete=True))
    topology.apply(4, exchange("y", auto_delete=False))
    bound = operations.Bind(BindingRecord("/", "x", "q", "queue", "", encoded({})))
    topology.apply(5, bound)
    topology.apply(6, operations.Bind(BindingRecord("/", "y", "x", "exchange", "", encoded({}))))
    other = Member("n2")
    other.topology.restore(topology.snapshot())
    assert other.broker.counts.bindings == 2
    assert other.topology.apply(7, operations.Unbind(bound.record)).changed
    assert other.broker.vhost("/").router.get("x") is None
    assert (other.broker.counts.exchanges, other.broker.counts.bindings) == (1, 0)
    other.topology.apply(8, exchange("x", auto_delete=True))
    topology.restore(other.topology.snapshot())
    assert topology.snapshot() == other.topology.snapshot()
    assert (member.broker.counts.exchanges, member.broker.counts.bindings) == (2, 0)


def test_records_that_go_back_to_a_snapshot_say_so_on_disk(member: Member) -> None:
    """A node with a damaged log may get an older snapshot than its own state; it reads the rest again."""
    topology = member.topology
    topology.apply(2, operations.DeclareQueue(queue()))
    earlier = topology.snapshot()
    topology.apply(3, exchange("x", auto_delete=False))
    topology.restore(earlier)
    again = member.restarted().topology
    assert again.snapshot() == earlier
    assert again.apply(3, exchange("x", auto_delete=False)).changed


@pytest.mark.pure
def test_hosts_are_told_of_other_members(member: Member) -> None:
    moved: list[tuple[str, ...]] = []
    member.broker.hosts.changed = lambda queue: moved.append(queue.members)  # type: ignore[method-assign]
    member.topology.apply(2, operations.DeclareQueue(queue(type="quorum", members=("n1", "n2"))))
    other = Member("n2")
    other.topology.restore(member.topology.snapshot())
    other.topology.apply(3, operations.SetMembers("/", "q", 2, ("n2", "n3"), "n3"))
    member.topology.restore(other.topology.snapshot())
    assert moved == [("n2", "n3")]
    assert member.broker.vhost("/").queues["q"].record.leader == "n3"
    assert member.restarted().topology.snapshot() == other.topology.snapshot()


def test_an_exclusive_queue_whose_session_is_gone_goes(member: Member) -> None:
    record = queue(durable=False, exclusive=True, owner=99, incarnation=1)
    member.topology.apply(2, operations.DeclareQueue(record))
    assert member.replication.proposed == [(operations.DeleteQueue("/", "q", 2), None)]
    elsewhere = Member("n2")
    elsewhere.topology.restore(member.topology.snapshot())
    assert elsewhere.replication.proposed == []


def test_marks_move_out_of_the_records_of_queues(member: Member) -> None:
    """Earlier versions stored a queue's marks in its record."""
    member.topology.apply(2, operations.DeclareQueue(queue()))
    marks = member.broker.vhost("/").queues["q"].marks
    assert marks
    (stored,) = [stored for stored, _ in member.environment.items("queues")]
    old = {
        "vhost": "/",
        "name": "q",
        "queue_id": 2,
        "auto_delete": False,
        "arguments": "AAAAAA==",
        "marks": marks,
    }
    member.environment.put("queues", stored, b"\x01" + msgspec.json.encode(old))
    member.environment.delete("marks", "2")
    again = member.restarted()
    assert again.broker.vhost("/").queues["q"].marks == marks
    third = again.restarted()
    assert third.broker.vhost("/").queues["q"].marks == marks
    third.topology.apply(3, operations.DeleteQueue("/", "q", 2))
    assert list(third.environment.items("marks")) == []


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x01", b"\x01\x90"])
def test_foreign_snapshots_are_refused(member: Member, data: bytes) -> None:
    before = member.topology.snapshot()
    with pytest.raises(UnreadableSnapshot):
        member.topology.restore(data)
    assert member.topology.snapshot() == before
