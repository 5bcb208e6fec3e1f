"""What an attack is, and how its result is judged."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.reliability.client import Client, Gone
from tests.reliability.node import MemoryWatch, Node, memory

from . import steps
from .bystander import Seen

MIB = 1 << 20
MEMORY_LIMIT = 600 * MIB
#: How much the bystander's p99 may grow, in ms: a turn takes a few, and the attacker has a core of its own.
P99_MAX_MS = 20.0
#: CPU time in ms that a step of the event loop may take, where steps are watched. It includes neither other
#: load on the machine nor the time that others waited in a row of short steps.
STEP_MAX_MS = 25.0
#: Memory that an attack may leave behind: allocator, caches, threads. The allocator may keep more, and uses
#: it again: then a second attack must not add as much.
KEPT_MAX_BYTES = 100 * MIB
#: Largest resident set: the limit, mapped pages of the store and the interpreter itself.
RESIDENT_MAX_BYTES = MEMORY_LIMIT + 150 * MIB
#: Time for the broker to notice that the attacker has gone, and to give back memory that it does not use.
AFTER_S, GIVEN_BACK_S = 1.5, 20.0
CALM_S = 1.0
#: The address of attackers on another machine.
ELSEWHERE = "127.0.0.2"


@dataclass
class Target:
    """A running node, and the size of the attack: 1 is the full size."""

    node: Node
    size: float
    #: See Scene.beside.
    beside: Any = None

    def many(self, count: int) -> int:
        return max(1, round(count * self.size))

    @contextlib.contextmanager
    def client(self, **options: Any) -> Iterator[Client]:
        """A client that logs in as the bystander does. The broker may close its connection: that is a good
        answer.
        """
        client = Client(self.node.port, **options)
        try:
            with contextlib.suppress(Gone):
                yield client
        finally:
            client.close()


@dataclass(frozen=True)
class Scene:
    """An attack by its name."""

    name: str
    #: The attack as the table describes it.
    title: str
    run: Callable[[Target], None]
    #: True if the attack fills the memory, so that publishers wait by design.
    alarms: bool = False
    #: Options of the node.
    options: tuple[str, ...] = ()
    #: Something that runs beside the node, such as a server that the node asks. It gives more options for the
    #: node, and an object for the attacker. It is made in the node's directory.
    beside: Callable[[Path], AbstractContextManager[tuple[Any, Sequence[str]]]] | None = None
    #: The node's limit of open files; 0: that of the attacker.
    files: int = 0

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Verdict:
    """The measurements of a run."""

    scene: Scene
    seconds: float
    calm_p99_ms: float
    p99_ms: float
    #: CPU time of the loop while one message was under way: the worst case.
    loop_ms: float
    worst_ms: float
    login_ms: float
    probe_ms: float
    grown_bytes: int
    kept_bytes: int
    #: Memory that a second attack left in addition, if there was one.
    added_bytes: int
    resident_bytes: int
    failures: Sequence[str]
    #: The longest steps of the event loop, if they were watched.
    steps: Sequence[steps.Step] = ()

    def late(self, slack: float, *, cpu: bool = False) -> list[str]:
        """Return the latencies that are too long, if they may be `slack` times as long as on a quiet machine.
        With `cpu`, only those count that the CPU time of the node's loop explains.
        """
        found = []
        most = P99_MAX_MS * slack + self.calm_p99_ms
        if not self.scene.alarms and self.loop_ms > P99_MAX_MS:
            found.append(
                f"a bystander waited for {self.loop_ms:.0f} ms of the loop's CPU, at most {P99_MAX_MS:.0f}"
            )
        if not self.scene.alarms and not cpu and self.p99_ms > most:
            found.append(f"p99 of a bystander {self.p99_ms:.0f} ms, at most {most:.0f}")
        if self.steps and self.steps[0].ms > STEP_MAX_MS:
            found.append(f"{self.steps[0].ms:.0f} ms of CPU in one step, at most {STEP_MAX_MS:.0f}")
        return found

    def broken(self) -> list[str]:
        """Return all other broken limits."""
        found = list(self.failures)
        if self.resident_bytes > RESIDENT_MAX_BYTES:
            found.append(f"{self.resident_bytes // MIB} MiB resident, at most {RESIDENT_MAX_BYTES // MIB}")
        if self.added_bytes > KEPT_MAX_BYTES / 2:
            found.append(
                f"{self.kept_bytes // MIB} MiB kept, and {self.added_bytes // MIB} more the second time"
            )
        return found


def attacked(
    scene: Scene, directory: Path, size: float, options: Sequence[str] = (), *, watched: bool = False
) -> Verdict:
    """Run a scene on a node of its own; `watched`: with a watch on the steps of its event loop."""
    with contextlib.ExitStack() as stack:
        beside: Any = None
        if scene.beside is not None:
            beside, more = stack.enter_context(scene.beside(directory))
            options = [*options, *more]
        return _attacked(scene, directory, size, options, beside, watched=watched)


def _attacked(
    scene: Scene, directory: Path, size: float, options: Sequence[str], beside: Any, *, watched: bool
) -> Verdict:
    node = Node(directory, "--memory-limit", str(MEMORY_LIMIT), *scene.options, *options)
    target = Target(node, size, beside)
    report = directory / "steps.json"
    if watched:
        node.program = steps.program(report)
    if scene.files:
        node.program = ["bash", "-c", f'ulimit -n {scene.files}; exec "$0" "$@"', *node.program]
    with node:
        status = Path(f"/proc/{node.pid}/status")
        calm = _watched(node, lambda: time.sleep(CALM_S))
        before = memory(status)["RssAnon"]
        if watched:
            steps.forget(node.pid)
        began = time.monotonic()
        failures: list[str] = []
        with MemoryWatch(node.pid) as watch:
            seen = _watched(node, lambda: _run(scene, target, failures))
            seconds = time.monotonic() - began
            if node.running:
                time.sleep(AFTER_S)
        after = (
            _watched(node, lambda: time.sleep(CALM_S)) if node.running else Seen(failures=["the node ended"])
        )
        left = _what_is_left(status, before) if node.running else 0
        added = 0
        if left - before > KEPT_MAX_BYTES:
            _run(scene, target, failures)
            time.sleep(AFTER_S)
            added = _what_is_left(status, before) - left
        failures += seen.failures if not scene.alarms else []
        failures += [f"afterwards, {failure}" for failure in after.failures]
        return Verdict(
            scene,
            seconds,
            _p99(calm.messages),
            _p99(seen.messages),
            max(seen.loop, default=math.inf),
            max(seen.messages, default=math.inf),
            max(seen.logins, default=math.inf),
            max(seen.probes, default=math.inf),
            max(0, watch.peak.anonymous - before),
            max(0, left - before),
            max(0, added),
            watch.peak.resident,
            failures,
            steps.read(report),
        )


def _what_is_left(status: Path, before: int) -> int:
    """Return the memory that stays, in bytes: the broker gives back unused memory within some seconds."""
    deadline = time.monotonic() + GIVEN_BACK_S
    while True:
        left = memory(status)["RssAnon"]
        if left - before <= KEPT_MAX_BYTES or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def _run(scene: Scene, target: Target, failures: list[str]) -> None:
    try:
        scene.run(target)
    except (OSError, AssertionError) as error:
        failures.append(f"the attack ended with {error!r}")


def _watched(node: Node, while_: Callable[[], None]) -> Seen:
    """Return what a bystander measures meanwhile."""
    command = [sys.executable, "-m", "tests.attacks.bystander", str(node.port), str(node.http), str(node.pid)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            return Seen(failures=["a bystander could not connect"])
        while_()
        said, _ = process.communicate(timeout=120)
        return Seen(**json.loads(said))
    finally:
        process.kill()
        process.wait()


def _p99(latencies: Sequence[float]) -> float:
    return sorted(latencies)[int(len(latencies) * 0.99)] if latencies else math.inf
