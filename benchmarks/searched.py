"""What others feel when somebody looks through a long queue: `python -m benchmarks.searched`.

A queue has a million messages. A client publishes 500 messages a second with confirms to another queue of the
same node, and gets each back; rounds beside which nothing happens take turns with rounds beside which mqctl
searches the long queue, prints its messages, exports them, moves or purges those that fulfil a condition, or
redrives them. mqctl has a lower priority on the CPU: an operator's usually runs elsewhere, and it is the
broker that is judged. "cpu" is the CPU time of the node while a message was under way: other load on the
machine does not change it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .brokers import Mqd as Node
from .brokers import free_port
from .client import HOST, Connection
from .clock import BODY_BYTES, MARK, QUEUE, Clock, clock_between
from .clusters import QUORUM, MqdCluster
from .frames import message
from .settled import Settled
from .streams import Topology, properties

RATE = 500
MESSAGES = 1_000_000
LONG, OTHER = "long", "other"
#: Messages with equal numbers are the tenth that one round moves or purges.
TENTHS = 10
FILL_AT_ONCE, FILL_AHEAD = 1_000, 20_000
#: How each round begins: the command runs already when the client's first message is due.
HEAD_START_S = 0.7
KEYS = ("p50", "p99", "max", "cpu_p99", "cpu_max")
LOOKS = ("search", "peek", "export")
TAKES = ("move", "purge", "redrive")


class Kind(NamedTuple):
    """A type of queue, and on how many nodes it is."""

    arguments: Mapping[str, Any]
    nodes: int
    actions: Sequence[str]


KINDS = {
    "classic": Kind({}, 1, LOOKS + TAKES),
    "quorum": Kind(QUORUM, 1, LOOKS + TAKES),
    "quorum, 3 nodes": Kind(QUORUM, 3, LOOKS + TAKES),
    "stream": Kind({"x-queue-type": "stream"}, 1, LOOKS),
}


class One(Node):
    """A node whose management listener has a known port."""

    def __init__(self) -> None:
        super().__init__()
        self.http = free_port()

    def _command(self) -> tuple[list[str], dict[str, str]]:
        command, environment = super()._command()
        command[command.index("--http") + 1] = f"{HOST}:{self.http}"
        return command, environment


class Place(NamedTuple):
    """The node that is asked, and that the client is connected to."""

    amqp: int
    http: int
    pid: int


@contextmanager
def started(nodes: int) -> Iterator[Place]:
    broker: One | MqdCluster = One() if nodes == 1 else MqdCluster()
    try:
        broker.start()
        http = broker.http if isinstance(broker, One) else broker.http_ports[0]
        yield Place(broker.port, http, broker.pids()[0])
    finally:
        broker.close()


def fill(port: int, arguments: Mapping[str, Any], count: int) -> None:
    """Declare the queues, and publish the messages, of which each tenth has a header of its own."""
    with Connection(port) as connection:
        connection.queue(LONG, durable=True, **arguments)
        for tenth in range(TENTHS):
            connection.queue(f"{OTHER}-{tenth}", durable=True)
        connection.confirms()
        data = b"".join(
            message(
                "",
                LONG,
                b"%08d" % number + b"b" * (BODY_BYTES - 8),
                properties(
                    True, headers={"tenth": f"t{number % TENTHS}", "x-first-death-queue": f"{OTHER}-0"}
                ),
            )
            for number in range(FILL_AT_ONCE)
        )
        settled, sent = Settled(count + FILL_AT_ONCE), 0
        while settled.count < count:
            while sent < count and sent - settled.count < FILL_AHEAD:
                connection.sock.sendall(data)
                sent += FILL_AT_ONCE
            settled.feed(connection.sock.recv(1 << 20))


class CpuClock(Clock):
    """Also notes the CPU time of a node from the publish of each message until its delivery, in ms."""

    def __init__(self, pid: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: The clock of the process, as clock_getcpuclockid(3) returns it. Unlike what /proc says, it includes
        #: the time since the last tick of the scheduler.
        self._cpu_clock = ~pid << 3 | 2
        self._began: list[float] = []
        self.cpu: list[float] = []

    def _used_ms(self) -> float:
        return time.clock_gettime_ns(self._cpu_clock) / 1e6

    def _send_due(self) -> None:
        used = self._used_ms()
        super()._send_due()
        self._began += [used] * (self._sent - len(self._began))

    def _take(self, data: bytes) -> None:
        before = len(self.delivered)
        super()._take(data)
        used = self._used_ms()
        self.cpu += [used - self._began[number] for number in range(before, len(self.delivered))]


def flow(port: int, pid: int, seconds: float, *, persistent: bool) -> dict[str, float]:
    """Return the latencies of a small client, in ms."""
    total = int(RATE * seconds)
    wire = message("", QUEUE, MARK + b"b" * (BODY_BYTES - len(MARK)), properties(persistent))
    with Topology(port) as topology:
        topology.queue(QUEUE, durable=persistent)
        with clock_between(port, port, RATE, total, wire=wire, make=partial(CpuClock, pid)) as clock:
            clock.run()
    assert isinstance(clock, CpuClock)
    warm = RATE // 4
    return _percentiles("", [each / 1e6 for each in clock.confirmed[warm:]]) | _percentiles(
        "cpu_", clock.cpu[warm:]
    )


def _percentiles(what: str, samples_ms: Sequence[float]) -> dict[str, float]:
    ordered = sorted(samples_ms)
    places = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100, "max": -1}
    return {what + key: ordered[place] for key, place in places.items()}


def flow_beside(place: Place, seconds: float, *, persistent: bool) -> dict[str, float]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.searched", "--flow", str(place.amqp), str(place.pid)),
            *("--seconds", str(seconds)),
            *(["--persistent"] if persistent else []),
        ],
        check=True,
        stdout=subprocess.PIPE,
    )
    told: dict[str, float] = json.loads(done.stdout)
    return told


def command(action: str, tenth: int, directory: str) -> list[str]:
    """Return mqctl's arguments. Nothing matches a search, so that it goes through the whole queue."""
    match = ["--header", f"tenth=t{tenth % TENTHS}"]
    return {
        "search": ["search", LONG, "--contains", "nothing has this"],
        "peek": ["peek", LONG, "--count", "1000"],
        "export": ["export", LONG, str(Path(directory, f"exported-{tenth}-{time.monotonic_ns()}"))],
        "move": ["move", LONG, f"{OTHER}-{tenth % TENTHS}", *match],
        "purge": ["purge_queue", LONG, *match],
        "redrive": ["redrive", LONG],
    }[action]


class Beside:
    """Runs a command of mqctl again and again until it is stopped."""

    def __init__(self, http: int, action: str, tenth: int) -> None:
        self._http, self._action, self._tenth = http, action, tenth
        self._stopped = False
        self._directory = tempfile.TemporaryDirectory(prefix="bench-searched-")
        self._process: subprocess.Popen[str] | None = None
        self.failure = ""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        program = [str(Node.path().parent / "mqctl"), "--url", f"http://{HOST}:{self._http}"]
        while not self._stopped and not self.failure:
            self._process = subprocess.Popen(
                [*program, *command(self._action, self._tenth, self._directory.name)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=_stand_back,
            )
            _, told = self._process.communicate()
            if self._process.returncode and not self._stopped:
                self.failure = told

    def stop(self) -> None:
        self._stopped = True
        if self._process is not None:
            self._process.kill()
        self._thread.join()
        self._directory.cleanup()
        if self.failure:
            raise RuntimeError(f"mqctl {self._action}: {self.failure}")


def _stand_back() -> None:
    os.nice(10)


Round = dict[str, float]


def rounds(
    place: Place, actions: Sequence[str], count: int, seconds: float, *, persistent: bool
) -> dict[str, tuple[list[Round], list[Round]]]:
    """Return for each action a client's latencies in the rounds without it and in those beside it."""
    found: dict[str, tuple[list[Round], list[Round]]] = {action: ([], []) for action in actions}
    tenths = {"move": 0, "purge": TENTHS // 2}
    for number in range(count):
        for action in actions:
            # Alternate the order, so that other work of the machine does not always fall into the same one.
            for beside in (False, True) if number % 2 == 0 else (True, False):
                if not beside:
                    found[action][0].append(flow_beside(place, seconds, persistent=persistent))
                    continue
                other = Beside(place.http, action, tenths.get(action, 0))
                try:
                    time.sleep(HEAD_START_S)
                    found[action][1].append(flow_beside(place, seconds, persistent=persistent))
                finally:
                    other.stop()
            tenths = {name: tenth + (name == action) for name, tenth in tenths.items()}
    return found


def medians(told: Sequence[Round]) -> Round:
    return {key: statistics.median(each[key] for each in told) for key in told[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="types of queues"
    )
    parser.add_argument("--actions", nargs="+", choices=LOOKS + TAKES, default=LOOKS + TAKES)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--rounds", type=int, default=3, help="at most 5 with move or purge")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round")
    parser.add_argument("--persistent", action="store_true", help="the client's messages are durable")
    parser.add_argument("--flow", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.flow:
        port, pid = options.flow
        print(json.dumps(flow(port, pid, options.seconds, persistent=options.persistent)))
        return
    heads = [f"{where} {key}" for where in ("", "beside") for key in KEYS]
    print(
        f"{'ms, medians of rounds':28}" + "".join(f"{head.strip().replace('_', ' '):>16}" for head in heads)
    )
    for name in options.kinds:
        kind = KINDS[name]
        actions = [action for action in options.actions if action in kind.actions]
        with started(kind.nodes) as place:
            fill(place.amqp, kind.arguments, options.messages)
            time.sleep(2)
            found = rounds(place, actions, options.rounds, options.seconds, persistent=options.persistent)
        for action, (alone, beside) in found.items():
            row = [told[key] for told in (medians(alone), medians(beside)) for key in KEYS]
            print(f"{name + ': ' + action:28}" + "".join(f"{each:16.2f}" for each in row), flush=True)


if __name__ == "__main__":
    main()
