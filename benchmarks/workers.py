"""What workers cost, and what they bring: the CPU of all processes for one message, by the number of workers.

    python -m benchmarks.workers [--rounds N] [--seconds S] [--clients N]

Each client has a message of its own under way: it publishes the next one when the last one was delivered to
it and confirmed. The queues are declared before by other clients, so that without affinity a client is with
its queue by luck only. The variants alternate within a round; each figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack
from typing import NamedTuple

from .brokers import Mqd
from .client import Connection
from .pump import Pace
from .scenarios.closed_loop import ClosedLoop
from .scenarios.scenario import CPU_US, Figures

SETTLE_S = 1.0


class Variant(NamedTuple):
    workers: int
    affinity: bool

    def __str__(self) -> str:
        return f"{self.workers}" if self.affinity else f"{self.workers}, without affinity"


VARIANTS = (Variant(1, True), *(Variant(count, each) for count in (2, 4, 8) for each in (True, False)))
KINDS = "transient", "durable"


class Workers(Mqd):
    """A node with workers."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self._variant = variant

    def _command(self) -> tuple[list[str], dict[str, str]]:
        command, environment = super()._command()
        command += ["--workers", str(self._variant.workers)]
        return [*command, *(() if self._variant.affinity else ("--no-worker-affinity",))], environment

    def pids(self) -> list[int]:
        # A worker may have been started after the others.
        self._pids = self.found()
        return self._pids


class Loop(ClosedLoop):
    """Its queues are there already, on the workers of other clients."""

    def declared(self, port: int, names: list[str]) -> None:
        with ExitStack() as opened:
            for name in names:
                connection = opened.enter_context(Connection(port))
                connection.queue(name, durable=self.durable)


def measured(variant: Variant, kind: str, clients: int, pace: Pace) -> Figures:
    broker, loop = Workers(variant), Loop(clients, kind)
    broker.start()
    try:
        loop.declared(broker.port, loop.queues)
        broker.settle(SETTLE_S)
        return loop.run(broker, pace)
    finally:
        broker.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--clients", type=int, default=64)
    asked = parser.parse_args()
    pace = Pace(warm_s=1.0, run_s=asked.seconds)
    print("| clients and queues | workers | loops/s | broker CPU µs a loop | of one worker's |")
    print("| --- | --- | ---: | ---: | ---: |")
    for kind in KINDS:
        found: dict[Variant, list[Figures]] = {variant: [] for variant in VARIANTS}
        for _ in range(asked.rounds):
            for variant in VARIANTS:
                found[variant].append(measured(variant, kind, asked.clients, pace))
        one = statistics.median(each[CPU_US] for each in found[VARIANTS[0]])
        for variant, figures in found.items():
            cpu = statistics.median(each[CPU_US] for each in figures)
            rate = statistics.median(each["rate"] for each in figures)
            print(
                f"| {asked.clients} {kind} | {variant} | {rate:,.0f} | {cpu:.1f} | {cpu / one:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
