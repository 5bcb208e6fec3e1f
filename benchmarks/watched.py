"""What others feel of a broker that is looked at: `python -m benchmarks.watched`.

1,000 queues and 1,000 connections with a consumer each. A client publishes 5,000 transient messages a second,
and gets each back; rounds in which nobody looks take turns with rounds in which another process asks for the
overview, a page of queues and a scrape once a second; how long each of these takes by itself is said, too.
Then two such brokers stand still, one that takes samples as by default and one that does not: what the one
needs more of the CPU is what statistics cost.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from pamqp import commands

from conformance_tests.wire import RawClient

from .client import Connection
from .clock import QUEUE, WIRE, Clock, percentiles
from .management import REQUESTS, Mqd, ask
from .processes import cpu_seconds
from .streams import Topology

RATE = 5_000
LOOKS = ("overview", "a page of queues", "scrape")
KEYS = [f"{what}_{key}_ms" for what in ("delivery", "confirm") for key in ("p50", "p99")]
#: The longest possible interval.
NO_SAMPLES = ("--statistics-interval-ms", "600000")
SETTLES_S = 12
#: Number of measurements of each single answer.
TIMES = 20


def fill(mqd: Mqd, objects: int) -> list[RawClient]:
    clients = []
    for number in range(objects):
        client, queue = mqd.client(), f"queue-{number:05}"
        client.call(commands.Queue.Declare(queue=queue), commands.Queue.DeclareOk)
        client.publish(b"body", routing_key=queue)
        client.call(commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
        client.call(commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)
        clients.append(client)
    return clients


def flow(port: int, seconds: float) -> dict[str, float]:
    """Return the latencies of a client at 5,000 messages a second."""
    total = int(RATE * seconds)
    with Topology(port) as topology:
        topology.queue(QUEUE)
        with Connection(port) as publisher, Connection(port) as consumer:
            consumer.consume(QUEUE, None)
            publisher.sock.sendall(WIRE)
            delivery_bytes = consumer.delivery().wire_bytes
            publisher.confirms()
            clock = Clock(publisher.sock, consumer.sock, delivery_bytes, RATE, total)
            clock.run()
    warm = RATE // 2
    return percentiles("delivery", clock.delivered[warm:]) | percentiles("confirm", clock.confirmed[warm:])


def flow_beside(port: int, seconds: float) -> dict[str, float]:
    """The same in a separate process: `select` takes no more than 1,024 descriptors."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.watched", "--flow", str(port), "--seconds", str(seconds)],
        check=True,
        stdout=subprocess.PIPE,
    )
    told: dict[str, float] = json.loads(done.stdout)
    return told


def look(http: int, metrics: int, looks: Sequence[str]) -> None:
    """Send the requests once a second until the process is ended."""
    while True:
        began = time.monotonic()
        for name in looks:
            path = REQUESTS[name][0]
            ask(metrics if path.startswith("/metrics") else http, path)
        time.sleep(max(0.0, 1 - (time.monotonic() - began)))


Round = dict[str, float]


def rounds(
    mqd: Mqd, count: int, seconds: float, looks: Sequence[str]
) -> tuple[list[Round], list[Round], float]:
    """Return a client's latencies in each round without monitoring, and in the neighbouring round with
    monitoring; and the CPU seconds of the broker for each second of the flow without monitoring.
    """
    alone, watched, cpu = list[Round](), list[Round](), 0.0
    for number in range(count):
        # Alternate the order, so that other work of the machine does not always fall into the same one of the
        # two.
        for looked_at in (False, True) if number % 2 == 0 else (True, False):
            if looked_at:
                watched.append(watched_flow(mqd, seconds, looks))
                continue
            before = cpu_seconds([mqd.process.pid])
            alone.append(flow_beside(mqd.amqp, seconds))
            cpu += cpu_seconds([mqd.process.pid]) - before
    return alone, watched, cpu / (count * seconds)


def watched_flow(mqd: Mqd, seconds: float, looks: Sequence[str]) -> Round:
    looking = subprocess.Popen(
        [
            *(sys.executable, "-m", "benchmarks.watched"),
            *("--look", str(mqd.http), str(mqd.metrics), "--looks", *looks),
        ]
    )
    try:
        found = flow_beside(mqd.amqp, seconds)
        assert looking.poll() is None, "what looks has ended"
        return found
    finally:
        looking.kill()
        looking.wait()


def added(alone: Sequence[Round], watched: Sequence[Round]) -> dict[str, float]:
    """Return by how much each latency is higher with monitoring: the median over the pairs of rounds."""
    return {
        key: statistics.median(
            with_[key] - without[key] for without, with_ in zip(alone, watched, strict=True)
        )
        for key in KEYS
    }


def at_rest(brokers: list[Mqd], seconds: float) -> list[float]:
    """Return the CPU seconds of each idle broker in a second."""
    time.sleep(SETTLES_S)
    before = [cpu_seconds([mqd.process.pid]) for mqd in brokers]
    time.sleep(seconds)
    return [
        (cpu_seconds([mqd.process.pid]) - was) / seconds for mqd, was in zip(brokers, before, strict=True)
    ]


def look_times(mqd: Mqd, looks: Sequence[str], times: int) -> dict[str, float]:
    """Return the median time in milliseconds of each of these answers without other requests."""
    found: dict[str, float] = {}
    for name in looks:
        path = REQUESTS[name][0]
        # The first one may log in, and import.
        mqd.ask(path)
        found[name] = statistics.median(mqd.ask(path)[0] for _ in range(times))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round")
    parser.add_argument("--rest-seconds", type=float, default=30.0)
    parser.add_argument("--looks", nargs="+", choices=list(REQUESTS), default=LOOKS, help="what is asked for")
    parser.add_argument("--flow", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--look", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.look:
        http, metrics = options.look
        look(http, metrics, options.looks)
    if options.flow:
        print(json.dumps(flow(options.flow, options.seconds)))
        return
    brokers = [Mqd(), Mqd(*NO_SAMPLES)]
    try:
        clients = [fill(mqd, options.objects) for mqd in brokers]
        alone, watched, busy = rounds(brokers[0], options.rounds, options.seconds, options.looks)
        print(f"{'ms, medians of rounds':24}" + "".join(f"{key.removesuffix('_ms'):>15}" for key in KEYS))
        medians = (
            {key: statistics.median(each[key] for each in told) for key in KEYS} for told in (alone, watched)
        )
        for title, row in zip(("not", "looked at", "more"), (*medians, added(alone, watched)), strict=True):
            print(f"{title:24}" + "".join(f"{row[key]:15.2f}" for key in KEYS), flush=True)
        for name, took_ms in look_times(brokers[0], options.looks, TIMES).items():
            wanted = REQUESTS[name][1]
            print(f"{name:24}{took_ms:15.2f}" + (f" (wanted: {wanted})" if wanted else ""), flush=True)
        sampled, not_sampled = at_rest(brokers, options.rest_seconds)
        cost = sampled - not_sampled
        print(
            f"at rest {100 * sampled:.2f} % of a core with samples, {100 * not_sampled:.2f} % without; at {RATE:,} "
            f"msg/s {100 * busy:.1f} %, of which samples are {100 * cost / busy:.2f} %"
        )
        del clients
    finally:
        for mqd in brokers:
            mqd.stop()


if __name__ == "__main__":
    main()
