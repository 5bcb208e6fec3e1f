"""The longer proofs: `python -m tests.reliability.chaos`.

4 GB of messages through one queue while the whole process stays within 400 MB, durable and transient; then
many rounds of kill -9 under load, each with its own seed; then three nodes under every fault of
`tests.cluster.faults`, and a cluster of one under some of them; then a consumer group on three nodes, whose
members use many client libraries and die, freeze and come back; then deletes on a condition and counts at
nodes that are behind; then Spark jobs whose drivers, executors and brokers are killed. Prints what it saw;
the exit code says whether all checks held.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.chaos import ALONE, cluster_faults
from tests.cluster.decisions import decisions
from tests.cluster.faults import FAULTS, OF_ONE
from tests.cluster.group_storm.storm import storms
from tests.reliability.flow import Row, limited, through
from tests.reliability.large_transactions import large_transactions
from tests.reliability.node import Node
from tests.reliability.test_kill import BUDGET, rounds
from tests.spark_sink.kills import spark_kills

MIB = 1 << 20
LIMIT_BYTES = 400_000_000


def memory(directory: Path, total_bytes: int) -> None:
    """Raises AssertionError unless the resident set stayed below the limit all the time, mapped files
    included.
    """
    print(Row.HEADING)
    for persistent in (True, False):
        name = "durable" if persistent else "transient"
        place = directory / name
        place.mkdir()
        with limited(place, "--memory-limit", str(LIMIT_BYTES)) as (node, watch):
            first = through(node, name, total_bytes, persistent=persistent, watch=watch, backlog_share=0.6)
            print(first.text, flush=True)
            disk = node.disk_bytes()
            again = through(
                node, f"{name}, again", total_bytes, persistent=persistent, watch=watch, backlog_share=0.6
            )
            print(again.text, flush=True)
            assert watch.peak.resident < LIMIT_BYTES, f"{watch.peak.resident:,} bytes resident"
            assert node.disk_bytes() < disk * 1.1, "the space of what was consumed is not used again"


def kills(directory: Path, seeds: int, how_many: int) -> None:
    for seed in range(seeds):
        place = directory / f"seed{seed}"
        place.mkdir()
        began = time.monotonic()
        with Node(place, *BUDGET) as node:
            world = rounds(node, seed, how_many)
            large = large_transactions(node, seed, how_many)
        messages = next(world.numbers) - 1
        print(
            f"seed {seed}: {how_many} kills, {messages:,} messages; {how_many} kills, "
            f"{large.committed} large transactions; {time.monotonic() - began:.1f} s",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=4096, help="size of each flow; 0: none")
    parser.add_argument("--seeds", type=int, default=5, help="data directories; 0: none")
    parser.add_argument("--rounds", type=int, default=12, help="kills on each of them")
    parser.add_argument(
        "--cluster-seeds", type=int, default=1, help="tables of faults on three nodes; 0: none"
    )
    parser.add_argument(
        "--group-seeds",
        type=int,
        default=2,
        help="a minute each with a consumer group on three nodes; 0: none",
    )
    parser.add_argument(
        "--decision-seeds",
        type=int,
        default=1,
        help="rounds each of deletes on a condition on three nodes; 0: none",
    )
    parser.add_argument(
        "--logs", type=Path, help="where to keep the three nodes' logs after a fault that did not hold"
    )
    parser.add_argument(
        "--spark", action=argparse.BooleanOptionalAction, default=True, help="Spark jobs, too"
    )
    parser.add_argument("--directory", type=Path, help="where data goes; default: a temporary directory")
    chosen = parser.parse_args()
    # Nodes end with this program, however it ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="mqd-chaos-", dir=chosen.directory) as directory:
        if chosen.megabytes:
            memory(Path(directory), chosen.megabytes * MIB)
        kills(Path(directory), chosen.seeds, chosen.rounds)
    seeds = range(1, chosen.cluster_seeds + 1)
    held = cluster_faults("mqd", FAULTS, seeds, chosen.logs)
    held = cluster_faults(ALONE, OF_ONE, seeds, chosen.logs) and held
    if chosen.group_seeds:
        held = storms(range(1, chosen.group_seeds + 1)) and held
    if chosen.decision_seeds:
        held = decisions(range(1, chosen.decision_seeds + 1)) and held
    if chosen.spark:
        held = spark_kills() and held
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
