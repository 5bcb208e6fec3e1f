"""The parts of a super stream are made ready on every node while its entry is on its way. They are used only
if that entry comes.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from amqp_server.broker.declared import operations
from amqp_server.broker.declared.operations import DeclareSuperStream, PutVhost
from amqp_server.broker.declared.records import ExchangeRecord, QueueRecord
from amqp_server.broker.declared.vhosts import VhostRecord
from amqp_server.broker.topology import partitions
from amqp_server.broker.topology.super_streams import declaration
from amqp_server.cluster.membership.roster import Roster
from amqp_server.cluster.topology_group import Catalog, Change, PutNode, RemoveNode
from amqp_server.wire import tables
from tests.amqp_server.cluster.test_adoption_steps import Deaf, Disk

PARTITIONS = 100


class Node:
    def __init__(self) -> None:
        self.broker = Disk().broker("n1")
        # These tests do not look at the hosts of the partitions.
        self.broker.host_parts.begin = lambda *given: None  # type: ignore[method-assign]
        self.catalog = Catalog("n1", 1, self.broker.topology, Roster(), Deaf())
        self.number = self.index = 0
        self.ready: list[int] = []
        self.apply(self.encoded(PutNode("n1", "here")))
        self.apply(self.encoded(PutNode("n2", "there")))
        self.apply(self.encoded(Change(operations.encode(PutVhost(VhostRecord("/"))))))

    def encoded(self, proposal: Any) -> bytes:
        self.number += 1
        return self.catalog.encode([self.catalog.batch(self.number, proposal)])

    def declaring(self, name: str, count: int = PARTITIONS) -> bytes:
        record = ExchangeRecord(
            "/", name, "x-super-stream", False, False, tables.encode({"x-partitions": count})
        )
        made = declaration(self.broker.vhost("/"), record, {"x-partitions": count}, {})
        records = tuple([placed(each) for each in made.partitions])
        return self.encoded(Change(operations.encode(DeclareSuperStream(made.exchange, 0, records))))

    def foresee(self, data: bytes) -> bool:
        index = self.index + 1
        return self.catalog.foresee(index, data, lambda: self.ready.append(index))

    def apply(self, data: bytes) -> None:
        self.index += 1
        self.catalog.apply(self.index, data)

    def names(self) -> set[tuple[str, tuple[str, ...], int]]:
        return {(each.name, each.record.members, each.queue_id) for each in self.broker.all_queues()}


def placed(record: QueueRecord) -> QueueRecord:
    return msgspec.structs.replace(record, node="", members=("n1", "n2"), leader="n1")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The partitions that were made ready, by name."""
    names: list[str] = []
    make = partitions.Partitions._made

    def counted(self: partitions.Partitions, place: int) -> partitions.Partition:
        found = make(self, place)
        names.append(found.queue.name)
        return found

    monkeypatch.setattr(partitions.Partitions, "_made", counted)
    return names


def test_what_was_foreseen_is_applied_as_it_was_made_ready(made: list[str]) -> None:
    node, other = Node(), Node()
    data = node.declaring("s")
    assert node.foresee(data) and node.ready == [4]
    assert len(made) == PARTITIONS and not node.names()
    node.apply(data)
    assert len(made) == PARTITIONS
    other.apply(data)
    assert node.names() == other.names() and len(node.names()) == PARTITIONS
    assert node.broker.topology.snapshot() == other.broker.topology.snapshot()


def test_another_entry_comes_at_that_place(made: list[str]) -> None:
    """The leader that sent the foreseen entry is gone."""
    node, other = Node(), Node()
    foreseen = node.declaring("s")
    node.number -= 1
    instead = node.declaring("t")
    assert node.foresee(foreseen)
    node.apply(instead)
    other.apply(instead)
    assert {name for name, _, _ in node.names()} == {f"t-{number}" for number in range(PARTITIONS)}
    assert node.broker.topology.snapshot() == other.broker.topology.snapshot()
    # Parts that were made ready for that place are never used for another entry.
    assert made[-PARTITIONS:] == [f"t-{number}" for number in range(PARTITIONS)]
    assert not node.broker.topology._ready and not node.catalog._foreseen


def test_a_node_goes_before_it_is_applied(made: list[str]) -> None:
    """The entry that removes the node stands before the foreseen one: nothing is placed on a node that has
    gone.
    """
    node, other = Node(), Node()
    removal, data = node.encoded(RemoveNode("n2")), node.declaring("s")
    node.index += 1
    assert node.foresee(data)
    node.index -= 1
    for each in (node, other):
        each.apply(removal)
        each.apply(data)
    assert {members for _, members, _ in node.names()} == {("n1",)}
    assert node.broker.topology.snapshot() == other.broker.topology.snapshot()


def test_what_is_small_or_something_else_is_not_foreseen(made: list[str]) -> None:
    node = Node()
    assert not node.foresee(node.declaring("s", 3))
    large = PutVhost(VhostRecord("other", "-" * 10_000))
    assert not node.foresee(node.encoded(Change(operations.encode(large))))
    assert not node.foresee(node.declaring("t")[:-9])
    assert not made and not node.ready
