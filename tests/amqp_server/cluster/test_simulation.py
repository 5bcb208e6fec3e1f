"""A fixed set of seeds of whole nodes, and checks that they exercise what they are made for."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests import seeds
from tests.amqp_server.cluster.simulation import simulation
from tests.amqp_server.cluster.simulation.cluster import by_hand
from tests.amqp_server.cluster.simulation.simulation import Simulation

pytestmark = pytest.mark.usefixtures("quiet")

SEEDS = 64


def test_seeds_and_what_they_reach() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        with seeds.told_how(f"make sim KIND=topology SEED={seed}"):
            run = simulation.run(seed)
        seen.update(run.ledger.count)
        seen["entries"] += run.ledger.index
        seen["snapshots taken over"] += sum(node.restored for node in run.nodes.values())
    least = {
        "entries": 1500, "DeclareQueue": 250, "DeleteQueue": 120, "Bind": 20, "Unbind": 5, "DeclareExchange": 80,
        "DeleteExchange": 10, "PutUser": 50, "DeleteUser": 20, "SetPermission": 50, "PutVhost": 50, "DeleteVhost": 10,
        "NodeDown": 200, "SetMembers": 150, "RemoveNode": 5, "exclusive queues gone": 40, "queues gone": 60,
        "leases over": 3, "confirmed": 500, "received": 250, "redelivered": 100, "purge answered": 20,
        "join done": 10, "leave done": 5, "forget done": 1, "grow done": 20, "shrink done": 20, "rebalance done": 20,
        "crashes": 100, "partitions": 40, "links break": 40, "stands still": 10, "the disk is full": 20,
        "disks are lost": 3, "snapshots taken over": 5, "batches skipped": 30, "links are dead for long": 50,
        "clients go on with a dead link": 5, "everything but a link is mended": 15, "clocks are set": 50,
        "starts again with a higher number": 3, "committed": 150, "rollback answered": 10, "alarms": 60,
        "snapshots made while more was applied": 5, "queues fail": 10, "nodes are upgraded": 40, "the last node is upgraded": 12,
        "steps with nodes of two versions": 2500, "PauseQueue": 150, "ProtectQueue": 40,
    }  # fmt: skip
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}, seen


def test_a_seed_is_a_run() -> None:
    traces: list[list[str]] = []
    for _ in range(2):
        trace: list[str] = []
        with by_hand():
            run = Simulation(11, trace=trace.append)
        run.run()
        traces.append(trace)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 1000


def test_what_is_picked_out_of_queues_is_there_once() -> None:
    seen: Counter[str] = Counter()
    for seed in range(20, 46):
        with seeds.told_how(f"seed {seed}, with picks"):
            with by_hand():
                run = Simulation(seed)
            run.picks = Random(f"picks {seed}")
            run.run()
        seen.update(run.ledger.count)
    least = {"picked": 50, "crashes": 30, "confirmed": 100}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}, seen
