"""Parts of transactions that nobody completes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from amqp_server.cluster.coordinator.decisions import Decisions
from amqp_server.cluster.coordinator.transactions import LOOK_MS, Transactions
from quorum_queue.machine.parts import Part, Parts
from tests.clocks import ManualClock

DECISION_MS = 10_000
PART = ("c", 1, 1)


class Host:
    queue_id = 7
    ended = ""

    def __init__(self) -> None:
        self.parts = Parts()
        self.submitted: list[Any] = []

    def submit(self, command: Any) -> None:
        self.submitted.append(command)


class Looked:
    """A queue that this node leads, with a part that begins to come, and the node's view of it."""

    def __init__(self, *, up: bool = True) -> None:
        self.host = Host()
        self.submitted = self.host.submitted
        self.part = Part(PART, 0)
        self.part.came = 1
        self.host.parts.put(self.part)
        hosts: Any = SimpleNamespace(leads=lambda queue_id: self.host, exists=lambda queue_id: True)
        log: Any = SimpleNamespace(version=1, leads=True, submit=lambda proposal: 1)
        nodes: Any = SimpleNamespace(nodes={"c": ""}, incarnation_of=lambda node: 1)
        self.clock = ManualClock(0, 0)
        self.transactions = Transactions(
            "a", 1, decisions=Decisions(), log=log, hosts=hosts, nodes=nodes, is_up=lambda node: up,
            turn=SimpleNamespace(schedule=lambda host: None), clock=self.clock, timeout_ms=1_000,
            decision_ms=DECISION_MS, producers_max=10,
        )  # fmt: skip
        self.transactions.has_parts(self.host)

    def let_pass(self, ms: int) -> None:
        for _ in range(0, ms, LOOK_MS):
            self.clock.now_ms += LOOK_MS
            self.transactions.tick(self.clock.now_ms)


def test_a_part_that_stands_still_is_dropped() -> None:
    looked = Looked()
    looked.let_pass(DECISION_MS)
    assert not looked.submitted
    looked.let_pass(LOOK_MS)
    assert looked.submitted == [("resolve", PART, False)]


def test_a_part_that_still_comes_is_kept_however_long_that_takes() -> None:
    looked = Looked()
    for _ in range(10):
        looked.let_pass(DECISION_MS - LOOK_MS)
        looked.part.came += 1
    assert not looked.submitted
    looked.let_pass(DECISION_MS + 2 * LOOK_MS)
    assert looked.submitted[0] == ("resolve", PART, False)


def test_a_part_of_a_node_that_is_down_is_dropped_soon() -> None:
    looked = Looked(up=False)
    looked.let_pass(2 * LOOK_MS)
    assert looked.submitted == [("resolve", PART, False)]


@pytest.mark.parametrize("came", [1, 2])
def test_a_complete_part_is_decided_about_by_all(came: int) -> None:
    """Its age counts from when it was first seen."""
    looked = Looked()
    looked.let_pass(DECISION_MS - LOOK_MS)
    looked.part.came, looked.part.prepared = came, True
    looked.let_pass(2 * LOOK_MS)
    assert not looked.submitted
    (decision,) = looked.transactions._to_decide
    assert (decision.transaction, decision.committed) == (PART, False)
