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

SEEDS = 40


def test_seeds_and_what_they_reach() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        with seeds.told_how(f"make sim KIND=topology SEED={seed}"):
            run = simulation.run(seed)
        seen.update(run.ledger.count)
        seen["entries"] += run.ledger.index
        seen["snapshots taken over"] += sum(node.restored for node in run.nodes.values())
    least = {
        "entries": 900, "DeclareQueue": 150, "DeleteQueue": 72, "Bind": 12, "Unbind": 3, "DeclareExchange": 48,
        "DeleteExchange": 6, "PutUser": 30, "DeleteUser": 12, "SetPermission": 30, "PutVhost": 30, "DeleteVhost": 6,
        "NodeDown": 120, "SetMembers": 90, "RemoveNode": 3, "exclusive queues gone": 24, "queues gone": 36,
        "leases over": 1, "confirmed": 300, "received": 150, "redelivered": 60, "purge answered": 12,
        "join done": 6, "leave done": 3, "forget done": 1, "grow done": 12, "shrink done": 12, "rebalance done": 12,
        "crashes": 60, "partitions": 24, "links break": 24, "stands still": 6, "the disk is full": 12,
        "disks are lost": 1, "snapshots taken over": 3, "batches skipped": 18, "links are dead for long": 30,
        "clients go on with a dead link": 3, "everything but a link is mended": 9, "clocks are set": 30,
        "starts again with a higher number": 1, "committed": 90, "rollback answered": 6, "alarms": 36,
        "snapshots made while more was applied": 3, "queues fail": 6, "nodes are upgraded": 24, "the last node is upgraded": 7,
        "steps with nodes of two versions": 1500, "PauseQueue": 90, "ProtectQueue": 24,
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
