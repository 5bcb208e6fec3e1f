"""A fixed set of seeds, and proof that they exercise what they are there for."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.quorum_queue.cluster import simulation
from tests.quorum_queue.cluster.simulation import Simulation

SEEDS = 60
PART = 10
#: Of which so many are looked at closely.
COUNTED = 30


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nodes have much to say of what is done to them here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run(seed: int) -> Simulation:
    try:
        return simulation.run(seed)
    except Exception as error:
        error.add_note(f"make sim KIND=queues SEED={seed}")
        raise


@pytest.mark.parametrize("first", range(COUNTED, SEEDS, PART))
def test_seeds(first: int) -> None:
    for seed in range(first, first + PART):
        run(seed)


def test_a_seed_is_a_run() -> None:
    traces: list[list[str]] = []
    for _ in range(2):
        trace: list[str] = []
        Simulation(11, trace=trace.append).run()
        traces.append(trace)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 300


def test_the_seeds_reach_the_rare_things() -> None:
    seen: Counter[str] = Counter()
    for seed in range(COUNTED):
        found = run(seed)
        seen.update(found.count)
        for event in found.events:
            if event.there:
                seen.update(event.declared.ledger.count)
                seen["entries"] += event.declared.ledger.index
        seen["snapshots taken over"] += sum(node.restored for node in found.running)
    least = {
        "entries": 1500, "confirmed": 1500, "received": 2500, "redelivered": 700, "refused": 40,
        "batches skipped": 100, "nodes down": 20, "crashes": 30, "links break": 20, "partitions": 20,
        "leaders hand over": 10, "members change": 10, "queues are declared anew": 20, "the disk is full": 10, "disks are lost": 3,
        "bits flip": 10, "logs are torn": 1, "snapshots taken over": 10, "dead letters, expired": 20,
        "dead letters, maxlen": 20, "dead letters, rejected": 5, "links are dead for long": 40,
        "clients go on with a dead link": 10, "everything but a link is mended": 15, "clocks are set": 20,
        "confirmed by the leader": 300, "confirmed by all": 300, "lost with the leader that confirmed it": 1,
    }  # fmt: skip
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}, seen
