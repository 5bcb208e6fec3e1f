"""A fixed set of seeds, and checks that they exercise what they are made for."""

from __future__ import annotations

from collections import Counter

import pytest

from quorum_queue.raft.messages import SNAPSHOT, TIMEOUT_NOW, VOTE_ANSWER, Message
from tests import seeds
from tests.quorum_queue.raft import simulation
from tests.quorum_queue.raft.disk import Snapshot
from tests.quorum_queue.raft.simulation import Simulation

SEEDS = 1000
PART = 100


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_the_core_keeps_its_promises_for_every_seed(first: int) -> None:
    for seed in range(first, first + PART):
        with seeds.told_how(f"python -m tests.quorum_queue.raft.simulation --seed {seed}"):
            simulation.run(seed)


def test_a_seed_is_a_run() -> None:
    traces: list[list[str]] = []
    for _ in range(2):
        trace: list[str] = []
        Simulation(11, trace=trace.append).run()
        traces.append(trace)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 100


def test_the_seeds_reach_the_rare_things() -> None:
    counted: Counter[str] = Counter()

    class Counting(Simulation):
        def send(self, message: Message, snapshot: Snapshot | None) -> None:
            counted["granted votes"] += message.kind == VOTE_ANSWER and not message.reject
            counted["snapshots"] += message.kind == SNAPSHOT
            counted["transfers"] += message.kind == TIMEOUT_NOW
            counted["conflicts"] += message.reject and message.hint > 0
            counted["amnesia"] += message.amnesiac > 0
            super().send(message, snapshot)

    for seed in range(40):
        run = Counting(seed)
        run.run()
        counted["committed"] += run.oracle.last_committed
        counted["leaders"] += len(run.oracle.leaders)
        counted["members"] += sum(entry.kind == 1 for entry, _ in run.oracle.committed.values())
        counted["terms replaced"] += sum(
            run.oracle.committed[index][0].term != term
            for index, term in run.oracle.seen
            if index in run.oracle.committed
        )
    least = {
        "granted votes": 100, "snapshots": 10, "transfers": 5, "conflicts": 30, "amnesia": 10, "committed": 400,
        "leaders": 60, "members": 10, "terms replaced": 10,
    }  # fmt: skip
    assert {name: counted[name] for name in least if counted[name] < least[name]} == {}, counted
