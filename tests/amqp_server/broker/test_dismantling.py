"""Deletions of very large objects on a node of a cluster: each part is an entry of the topology's log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amqp_server.broker.declared import operations
from amqp_server.broker.declared.operations import Operation
from amqp_server.broker.declared.records import BindingRecord, ExchangeRecord, QueueRecord, encoded
from amqp_server.broker.declared.vhosts import VhostRecord
from amqp_server.broker.in_parts.deletion_in_parts import PROPOSED_MAX
from amqp_server.broker.topology.replication import Result
from quorum_queue.ports import Refused
from tests.amqp_server.broker.test_topology import Member
from tests.work import steps

QUEUES, BINDINGS = 120, 700
#: Instructions of the longest operation, whatever a client deletes.
OPERATION_MAX = 15_000


def filled() -> tuple[Member, int]:
    """Return a node with a vhost "v", and the index of its last operation. The loss of node n2 deletes all of
    it, too.
    """
    member, index = Member("n1"), 0

    def apply(operation: Operation) -> None:
        nonlocal index
        index += 1
        member.topology.apply(index, operation)

    apply(operations.PutVhost(VhostRecord("v")))
    nothing = encoded({})
    apply(operations.DeclareExchange(ExchangeRecord("v", "x", "direct", False, False, nothing, True)))
    for number in range(QUEUES):
        record = QueueRecord(
            "v", f"q{number}", 0, auto_delete=False, arguments=nothing, durable=False, node="n2", incarnation=1
        )  # fmt: skip
        apply(operations.DeclareQueue(record))
    for number in range(BINDINGS):
        apply(operations.Bind(BindingRecord("v", "x", "q0", "queue", f"k{number}", nothing)))
    return member, index


@pytest.mark.parametrize(
    "deletion",
    [
        lambda member: operations.DeleteVhost("v"),
        lambda member: operations.DeleteExchange("v", "x"),
        lambda member: member.broker.vhost("v").queues["q0"].deletion,
        lambda member: operations.NodeDown("n2", 1),
    ],
    ids=["vhost", "exchange", "queue", "node"],
)
def test_what_has_very_much_in_it_is_deleted_in_parts(deletion: Callable[[Member], Operation]) -> None:
    member, index = filled()
    done: list[Result | Refused] = []
    operation = deletion(member)
    member.broker.turn.run(member.broker.propose, operation, done.append)
    proposed = member.replication.proposed
    longest = 0
    while not done:
        assert 0 < len(proposed) <= PROPOSED_MAX
        index += 1
        part, told = proposed.pop(0)
        results: list[Result] = []

        def apply(index: int = index, part: Operation = part, results: list[Result] = results) -> None:
            results.append(member.topology.apply(index, part))

        longest = max(longest, steps(apply))
        if told is not None:
            member.broker.turn.run(told, results[0])
        member.broker.turn.run(member.broker.turn.catch_up)
    assert done == [Result(True)] and not proposed
    assert longest < OPERATION_MAX
    vhost = member.broker.vhosts.get("v")
    if isinstance(operation, operations.DeleteVhost):
        assert vhost is None
    elif isinstance(operation, operations.NodeDown):
        assert vhost is not None and not vhost.queues
    elif isinstance(operation, operations.DeleteExchange):
        assert vhost is not None and vhost.router.get("x") is None and len(vhost.queues) == QUEUES
    else:
        assert vhost is not None and list(vhost.queues) == [f"q{number}" for number in range(1, QUEUES)]


@pytest.mark.parametrize("order", [1, -1], ids=["from the first one", "from the last one"])
@pytest.mark.parametrize("what", ["queue", "exchange", "binding", "vhost", "node"])
def test_a_chain_of_auto_delete_exchanges_goes_in_parts(what: str, order: int) -> None:
    member, index = filled()
    nothing = encoded({})

    def apply(operation: Operation) -> Result:
        nonlocal index
        index += 1
        return member.topology.apply(index, operation)

    length = 600
    for number in range(length + 1)[::order]:
        record = ExchangeRecord("v", f"x{number}", "fanout", True, False, nothing, True)
        apply(operations.DeclareExchange(record))
    for number in range(length):
        apply(operations.Bind(BindingRecord("v", f"x{number}", f"x{number + 1}", "exchange", "", nothing)))
    last = BindingRecord("v", f"x{length}", "q1", "queue", "", nothing)
    apply(operations.Bind(last))
    vhost = member.broker.vhost("v")
    deletions: dict[str, Operation] = {
        "queue": vhost.queues["q1"].deletion,
        "exchange": operations.DeleteExchange("v", f"x{length}"),
        "binding": operations.Unbind(last),
        "vhost": operations.DeleteVhost("v"),
        "node": operations.NodeDown("n2", 1),
    }
    operation = deletions[what]
    done: list[Result | Refused] = []
    member.broker.turn.run(member.broker.propose, operation, done.append)
    proposed = member.replication.proposed
    longest = 0
    while not done:
        assert 0 < len(proposed) <= PROPOSED_MAX
        part, told = proposed.pop(0)
        results: list[Result] = []
        longest = max(longest, steps(lambda part=part, results=results: results.append(apply(part))))
        if told is not None:
            member.broker.turn.run(told, results[0])
        member.broker.turn.run(member.broker.turn.catch_up)
    assert longest < OPERATION_MAX
    assert [name for name in (f"x{number}" for number in range(length)) if vhost.router.get(name)] == []


def test_a_short_chain_goes_at_once() -> None:
    member, index = filled()
    nothing = encoded({})
    for number in range(10):
        record = ExchangeRecord("v", f"x{number}", "fanout", True, False, nothing, True)
        member.topology.apply(index + 2 * number + 1, operations.DeclareExchange(record))
        bound = BindingRecord("v", f"x{number - 1}", f"x{number}", "exchange", "", nothing)
        if number:
            member.topology.apply(index + 2 * number + 2, operations.Bind(bound))
    member.broker.turn.run(member.broker.propose, operations.Unbind(bound), None)
    assert [operation for operation, _ in member.replication.proposed] == [operations.Unbind(bound)]


def test_without_a_majority_who_waits_is_told_so() -> None:
    member, _ = filled()
    done: list[Result | Refused] = []
    member.broker.turn.run(member.broker.propose, operations.DeleteVhost("v"), done.append)
    proposed = list(member.replication.proposed)
    refused = Refused("no majority")
    for _, told in proposed:
        assert told is not None
        member.broker.turn.run(told, refused)
    [(last, told)] = member.replication.proposed[len(proposed) :]
    assert last == operations.DeleteVhost("v") and told is not None
    member.broker.turn.run(told, refused)
    assert done == [refused]
