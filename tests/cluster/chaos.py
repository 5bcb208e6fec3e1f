"""A cluster under faults, fault by fault: `python -m tests.cluster.chaos [--broker rabbitmq] [--faults "kill
leader" …]`.

Prints a table as it goes; the exit code says whether all checks held. Packet filters cut the links to
RabbitMQ's nodes. For these this program moves into a network namespace of its own, so it must run as root
there.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.cluster.disks import SlowDisks
from tests.cluster.faults import FAULTS
from tests.cluster.ledger import RULES
from tests.cluster.links import Unsupported, enter_private_network
from tests.cluster.logs import OPTIONS
from tests.cluster.mqd import MqdCluster
from tests.cluster.nodes import Cluster
from tests.cluster.rabbitmq import RabbitMQCluster
from tests.cluster.scene import Outcome, run

NODES = ("n1", "n2", "n3")
ALONE = "mqd alone"
BROKERS: dict[str, Callable[[], Cluster]] = {
    "mqd": lambda: MqdCluster(NODES, *OPTIONS),
    ALONE: lambda: MqdCluster(NODES[:1], *OPTIONS),
    "rabbitmq": RabbitMQCluster,
}
HEADINGS = (
    *("confirmed", "lost", "strange", "unflagged", "order", "returned", "late", "nacked", "redeliv."),
    *("silent s", "after s", "hit s", "starved s", "agree s"),
)
LEGEND = (
    "Longest time without a confirm: `silent` and `after`, before and since the heal, at nodes left alone; `hit`, at the others. "
    "`starved`: longest time without a delivery before the heal, at nodes left alone. "
    "`agree`: from the heal until three replicas agree. `late`: handed out by a node that had been away, unknown to the others."
)
NAME_WIDTH = 20


def heading() -> str:
    return " ".join([" " * NAME_WIDTH, *(f"{name:>9}" for name in HEADINGS)])


def row(outcome: Outcome) -> str:
    counts = [outcome.counts[rule] for rule in RULES]
    numbers = [outcome.confirmed, *counts, outcome.late, outcome.nacked, outcome.redelivered]
    seconds = [outcome.silent_s, outcome.silent_after_s, outcome.silent_hit_s]
    seconds += [outcome.starved_s, outcome.agreed_s]
    cells = [f"{number:>9,}" for number in numbers]
    cells += [f"{'-' if one is None else f'{one:.2f}':>9}" for one in seconds]
    return " ".join([f"{outcome.fault:<{NAME_WIDTH}}", *cells])


class Series:
    """Fault after fault on one cluster, or on a new one if the last did not recover well."""

    def __init__(self, broker: str, directory: Path, seed: int, logs: Path | None) -> None:
        self._broker = broker
        self._logs = logs
        self._seed = seed
        self._slow_disks: SlowDisks | None = None
        try:
            self._slow_disks = SlowDisks(directory)
        except Unsupported as why:
            print(why)
        self._cluster: Cluster | None = None

    def _ready(self) -> Cluster:
        if self._cluster is None:
            cluster = self._cluster = BROKERS[self._broker]()
            if self._slow_disks is not None:
                self._slow_disks.install(cluster)
            cluster.start()
        return self._cluster

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _keep_logs(self, fault: str) -> None:
        if self._logs is not None and self._cluster is not None:
            place = self._logs / f"{self._broker}-{self._seed}-{fault.replace(' ', '-')}"
            place.mkdir(parents=True, exist_ok=True)
            for node in self._cluster.names:
                (place / f"{node}.log").write_text(self._cluster.log(node))
            print(f"    logs: {place}", flush=True)

    def run(self, name: str) -> bool:
        """Return True if all checks held, or if the fault is not for this broker or machine."""
        began = time.monotonic()
        try:
            outcome = run(self._ready(), name, FAULTS[name], seed=self._seed, slow_disks=self._slow_disks)
        except Unsupported as why:
            print(f"{name:<{NAME_WIDTH}} not run: {why}", flush=True)
            self.close()
            return True
        except Exception as error:  # noqa: BLE001  a fault that breaks the harness must not hide the other faults
            print(f"{name:<{NAME_WIDTH}} BROKE: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()
            self._keep_logs(name)
            self.close()
            return False
        print(f"{row(outcome)}  ({time.monotonic() - began:.0f} s)", flush=True)
        if outcome.log_confirmed:
            told = ", ".join(f"{rule} {count}" for rule, count in outcome.log_counts.items())
            print(f"    streams: confirmed {outcome.log_confirmed:,}, {told}", flush=True)
        if (asked := outcome.questions) is not None:
            print(
                f"    declares answered within {asked.longest_declare_s:.2f} s; "
                f"readiness differed for {asked.differed_s:.2f} s",
                flush=True,
            )
        for text in outcome.failures:
            print(f"    {text}", flush=True)
        if not outcome.held:
            self._keep_logs(name)
        if not outcome.held or self._ready().tainted:
            self.close()
        return outcome.held


def cluster_faults(broker: str, names: Iterable[str], seeds: Iterable[int], logs: Path | None = None) -> bool:
    """Print the table; return whether all checks held."""
    held, seeds = True, list(seeds)
    if seeds:
        nodes = "a cluster of one" if broker == ALONE else "three nodes"
        print(f"{broker}, {nodes}. {LEGEND}\n{heading()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-cluster-") as directory:
        for seed in seeds:
            series = Series(broker, Path(directory), seed, logs)
            try:
                for name in names:
                    held = series.run(name) and held
            finally:
                series.close()
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=list(BROKERS), default="mqd")
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), metavar="FAULT", default=list(FAULTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--logs", type=Path, help="where to keep the nodes' logs after a fault that did not hold"
    )
    chosen = parser.parse_args()
    # The nodes end with this program, however it ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if chosen.broker == "rabbitmq":
        enter_private_network()
    return 0 if cluster_faults(chosen.broker, chosen.faults, chosen.seeds, chosen.logs) else 1


if __name__ == "__main__":
    sys.exit(main())
