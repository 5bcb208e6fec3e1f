"""Random requests to every path of the management API, on brokers of its own: `make fuzz-api`, in four
minutes.

    python -m tests.fuzz_api [--seconds 200] [--nodes 1 3] [--seed N] [arguments of schemathesis]

schemathesis makes them from docs/openapi.json, valid and invalid ones; every other name is that of an
existing object. The requests come from a user of each tag in turn, and from a user without one; in a cluster
each node gets them, with all nodes up, with one killed, and with one suspended. A defect is an answer with
500, one whose status, headers or body are not as described, success where the tag is missing, an answer that
does not come, a request that ends the node or fills its memory, and a traceback in its log. A finding ends
with a curl command that repeats it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from amqp_server.broker.access.users import ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER
from tests.fuzz_api.described import described
from tests.fuzz_api.nodes import Nodes, running
from tests.fuzz_api.prepared import HOST, PASSWORD, prepare, user_of
from tests.reliability.node import MemoryWatch

ROOT = Path(__file__).parents[2]
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
PROGRAM = ROOT / "build" / "fuzz-api" / "bin" / "schemathesis"
#: Seconds beyond its given time in which it ends the requests that it has begun.
GRACE_S = 240
#: A node at rest has about 70 MiB, and a body may be some MiB.
MEMORY_MAX_MIB = 400
MARKS = ("Traceback", " CRITICAL ")


@dataclass(frozen=True)
class Round:
    """The requests of one user to one node."""

    tag: str
    #: This round's share of the time.
    share: float
    asked: str = "n1"
    killed: str = ""
    frozen: str = ""

    def __str__(self) -> str:
        state = "".join(
            f", {name} {how}" for name, how in ((self.killed, "killed"), (self.frozen, "frozen")) if name
        )
        return f"{self.tag or 'no tag'} at {self.asked}{state}"


ROUNDS = {
    1: (
        Round(ADMINISTRATOR, 0.4),
        Round(POLICYMAKER, 0.15),
        Round(MONITORING, 0.15),
        Round(MANAGEMENT, 0.2),
        Round("", 0.1),
    ),
    3: (
        Round(ADMINISTRATOR, 0.25, "n2"),
        Round(ADMINISTRATOR, 0.25, "n1", killed="n3"),
        Round(MANAGEMENT, 0.15, "n3", killed="n1"),
        Round(ADMINISTRATOR, 0.15, "n3", frozen="n2"),
        Round(MONITORING, 0.1, "n1", frozen="n2"),
        Round(POLICYMAKER, 0.1, "n2", killed="n1"),
    ),
}


class Run:
    def __init__(self, nodes: Nodes, directory: Path, seed: int, rest: list[str]) -> None:
        self._nodes = nodes
        self._alone = len(nodes.each()) == 1
        self._directory = directory
        self._seed = seed
        self._rest = rest
        self.failures: list[str] = []

    def round(self, one: Round, seconds: int) -> None:
        self._nodes.formed()
        prepare(self._nodes.node(one.asked).http)
        if one.killed:
            self._nodes.kill(one.killed)
        if one.frozen:
            self._nodes.freeze(one.frozen)
        asked = self._nodes.node(one.asked)
        print(f"\n== {one}, {seconds} s", flush=True)
        with MemoryWatch(asked.pid) as watch:
            code = self._requests(one, asked.http, seconds)
            alive = asked.running
        if not alive:
            self._fail(f"{one}: the node has ended")
        elif code:
            self._fail(f"{one}: see above")
        resident = watch.peak.resident >> 20
        print(f"memory: {resident} MiB")
        if resident > MEMORY_MAX_MIB:
            self._fail(f"{one}: the node took {resident} MiB")
        if one.frozen:
            self._nodes.thaw(one.frozen)

    def _requests(self, one: Round, port: int, seconds: int) -> int:
        description = self._directory / "openapi.json"
        description.write_text(json.dumps(described(one.tag, self._seed, alone=self._alone)))
        command = [str(PROGRAM), "--config-file", str(CONFIGURATION), "run", str(description)]
        command += ["--url", f"http://{HOST}:{port}", "--auth", f"{user_of(one.tag)}:{PASSWORD}"]
        command += ["--max-time", str(seconds), "--seed", str(self._seed), "--phases", "coverage,fuzzing"]
        command += self._rest
        try:
            return subprocess.run(
                command, cwd=self._directory, timeout=seconds + GRACE_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            print(f"not done after {seconds + GRACE_S} s")
            return 1

    def end(self) -> None:
        """Stop the nodes, and read their logs."""
        self._nodes.formed()
        for node in self._nodes.each():
            if node.stop() != 0:
                self._fail("a node did not stop as it should")
        for node in self._nodes.each():
            log = node.log()
            if any(mark in log for mark in MARKS):
                lines = [line for line in log.splitlines() if "access denied" not in line]
                self._fail("\n".join(lines)[-20_000:])

    def _fail(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        self.failures.append(text)


def run(count: int, seconds: int, seed: int, rest: list[str]) -> int:
    """Return the number of defects found on this many nodes."""
    with tempfile.TemporaryDirectory() as directory, running(count, Path(directory)) as nodes:
        done = Run(nodes, Path(directory), seed, rest)
        for one in ROUNDS[count]:
            done.round(one, max(1, round(one.share * seconds)))
        done.end()
        return len(done.failures)


def main() -> int:
    parser = argparse.ArgumentParser(description="Requests by chance to the management API.")
    parser.add_argument("--seconds", type=int, default=200, help="for so long, all in all (%(default)d)")
    parser.add_argument("--nodes", type=int, nargs="+", choices=sorted(ROUNDS), default=sorted(ROUNDS))
    parser.add_argument("--seed", type=int, default=None, help="the same requests again")
    options, rest = parser.parse_known_args()
    seed = random.randrange(1 << 31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    share = options.seconds // len(options.nodes)
    found = sum(run(count, share, seed, rest) for count in options.nodes)
    print(f"seed {seed}: {found} defects" if found else f"seed {seed}: nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
