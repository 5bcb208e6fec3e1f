"""python -m benchmarks: mqd and RabbitMQ side by side, mqd and Kafka, or two builds of mqd."""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from . import report
from .brokers import BROKERS, Before, Broker, BrokerFailed, Mqd, RabbitMQ, name_of
from .ceiling import Ceiling, ceilings
from .clusters import CLUSTERS, RabbitMQCluster
from .installation import HERE, Installation
from .kafka import Kafka
from .plot import write_plot
from .publish import OF_README
from .pump import Pace
from .rounds import Outcomes, take_turns
from .scenarios import KAFKA_SCENARIOS, SCENARIOS
from .scenarios.scenario import Scenario

FULL, QUICK = Pace(warm_s=0.7, run_s=3.0), Pace(warm_s=0.4, run_s=1.0, share=0.05)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [scenario.name for scenario in (*SCENARIOS, *KAFKA_SCENARIOS)]
    parser.add_argument(
        "--quick", action="store_true", help="a subset, one short round each, under two minutes"
    )
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--of-readme", action="store_true", help="what the README's table has")
    parser.add_argument("--rounds", type=int, help="rounds per broker and scenario, at most (3; quick: 1)")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results"), help="for the JSON and the plot"
    )
    parser.add_argument(
        "--brokers",
        default="mqd,rabbitmq",
        help="comma separated (%(default)s); mqd,kafka has scenarios of its own",
    )
    parser.add_argument(
        "--before", type=Path, metavar="BIN", help="another build's programs, to compare with, not RabbitMQ"
    )
    parser.add_argument(
        "--rabbitmq-root",
        type=Path,
        metavar="DIR",
        help="the root directory of another Debian: its RabbitMQ is measured, too (conformance_tests/README.md)",
    )
    found = parser.parse_args()
    if found.before:
        Before.programs, found.brokers = found.before.resolve(), f"{Mqd.name},{Before.name}"
    return found


def chosen(options: argparse.Namespace) -> Sequence[Scenario]:
    scenarios = KAFKA_SCENARIOS if Kafka.name in options.brokers.split(",") else SCENARIOS
    if options.of_readme:
        return [scenario for scenario in scenarios if scenario.name in OF_README]
    if options.only:
        return [scenario for scenario in scenarios if scenario.name in options.only]
    found = []
    for scenario in scenarios:
        if options.quick and not scenario.quick:
            continue
        if lack := scenario.missing():
            print(f"{scenario.title}: not measured, {lack}", flush=True)
            continue
        found.append(scenario)
    return found


def rounds_of(scenario: Scenario, options: argparse.Namespace) -> int:
    if options.rounds:
        # Some scenarios take so long that they have few.
        return min(int(options.rounds), scenario.rounds or options.rounds)
    return 1 if options.quick else scenario.rounds or 3


Kinds = Mapping[str, Callable[[], Broker]]


def with_another(options: argparse.Namespace) -> tuple[Kinds, Kinds]:
    """The kinds of single nodes and of clusters. Raises BrokerFailed."""
    if not options.rabbitmq_root:
        return BROKERS | {Kafka.name: Kafka}, CLUSTERS
    other = Installation(options.rabbitmq_root.resolve())
    if not other.exists:
        raise BrokerFailed(other.lack)
    name = name_of(other)
    options.brokers += f",{name}"
    return BROKERS | {name: lambda: RabbitMQ(other)}, CLUSTERS | {name: lambda: RabbitMQCluster(other)}


def measured(
    options: argparse.Namespace, kinds: Kinds, scenarios: Sequence[Scenario]
) -> list[tuple[Scenario, Outcomes]]:
    """All brokers run at the same time, and take turns."""
    with ExitStack() as running:
        brokers = [kinds[name]() for name in options.brokers.split(",")]
        for broker in brokers:
            running.callback(broker.close)
            print(f"{broker.name} started in {broker.start():.2f} s", flush=True)
        return run(options, brokers, scenarios)


def run(
    options: argparse.Namespace, brokers: Sequence[Broker], scenarios: Sequence[Scenario]
) -> list[tuple[Scenario, Outcomes]]:
    results = []
    for scenario in scenarios:
        began = time.perf_counter()
        outcomes = take_turns(
            scenario, brokers, rounds_of(scenario, options), QUICK if options.quick else FULL
        )
        results.append((scenario, outcomes))
        print(
            f"\n{scenario.title} ({time.perf_counter() - began:.0f} s)\n{report.table(results[-1:])}",
            flush=True,
        )
    return results


def main() -> int:
    options = arguments()
    # SIGTERM also ends the brokers, through the exit stack.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    began = time.perf_counter()
    found = ceilings(0.5 if options.quick else 1.5)
    print(
        f"The client alone, against a peer that decodes nothing (128 B):\n{report.ceiling_lines(found)}",
        flush=True,
    )
    results = []
    try:
        single, clusters = with_another(options)
        for kinds, scenarios in (
            (single, [one for one in chosen(options) if one.nodes == 1]),
            (clusters, [one for one in chosen(options) if one.nodes > 1]),
        ):
            if scenarios:
                results += measured(options, kinds, scenarios)
    except BrokerFailed as failure:
        print(failure, file=sys.stderr)
        return 2
    return conclude(options, results, found, time.perf_counter() - began)


def conclude(
    options: argparse.Namespace,
    results: Sequence[tuple[Scenario, Outcomes]],
    found: Sequence[Ceiling],
    seconds: float,
) -> int:
    print(f"\nMedians; CPU is the broker's, user and system, a message.\n\n{report.table(results)}\n")
    if warning := report.disturbed(results):
        print(f"{warning}\n")
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {
        "quick": options.quick,
        "of_readme": options.of_readme,
        "rounds": options.rounds,
        "brokers": options.brokers,
        "seconds": seconds,
        "versions": {
            name_of(one): one.version
            for one in (HERE, Installation(options.rabbitmq_root or HERE.root))
            if one.version
        },
    }
    document = report.write_json(options.out / "bench.json", results, found, settings)
    pictured = RabbitMQ.name in options.brokers.split(",") and write_plot(
        options.out / "bench.png", document["figures"]
    )
    print(f"{seconds:.0f} s; written: {options.out / 'bench.json'}", end="")
    print(f" and {options.out / 'bench.png'}" if pictured else "")
    failed = report.failures(results)
    for line in failed:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
