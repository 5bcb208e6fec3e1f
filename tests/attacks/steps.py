"""python -m tests.attacks.steps REPORT OPTIONS…: mqd with a watch on its event loop.

The longest steps between two waits of a task go to REPORT as JSON, each with its CPU time and its stacks. It
uses CPU time because a busy machine stretches the wall clock. `forget` begins anew, so that an attack can be
judged separately. Compiled functions take no part in the stacks: a run in pure Python tells more.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import trio

from conformance_tests import programs

ROOT = Path(__file__).parents[2]
_HERE = f"{ROOT}{os.sep}"
#: The tree comes last in the path: if mqd is installed compiled, that is the one to watch.
_START = f"import sys; sys.path.append({str(ROOT)!r}); from tests.attacks.steps import main; main()"
#: CPU seconds from which on a step is sampled, and the interval of samples.
LONG_S, SAMPLE_S = 0.004, 0.002
#: Steps that are kept, stacks of each, and frames of each stack.
KEPT, STACKS, FRAMES = 5, 4, 14


@dataclass
class Step:
    """One step of a task, in ms of CPU time; `collected_ms` is the garbage collector's part."""

    task: str
    ms: float
    collected_ms: float
    #: Stacks, innermost frame last, with how often each was met.
    stacks: list[tuple[int, list[str]]] = field(default_factory=list)

    def text(self) -> str:
        lines = [
            f"{self.ms:.1f} ms of CPU in {self.task}, {self.collected_ms:.1f} of them garbage collection"
        ]
        for count, stack in self.stacks:
            lines.append(f"  {count} times in")
            lines += [f"    {frame}" for frame in stack]
        return "\n".join(lines)


class Watch(trio.abc.Instrument):
    """Measures each step of each task."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._steps: list[Step] = []
        self._began = self._collection_began = self._collected = 0.0
        self._samples: Counter[tuple[str, ...]] = Counter()
        gc.callbacks.append(self._collects)

    def _collects(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.thread_time()
        else:
            self._collected += time.thread_time() - self._collection_began

    def sample(self, _: int, frame: FrameType | None) -> None:
        """The handler of SIGPROF, which comes after each SAMPLE_S of CPU time."""
        if self._began and time.thread_time() - self._began > LONG_S:
            self._samples[_stack(frame)] += 1

    def forget(self, *_: Any) -> None:
        """Begin anew."""
        self._steps.clear()
        self._write()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._samples.clear()
        self._collected = 0.0
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        seconds = time.thread_time() - self._began
        self._began = 0.0
        if seconds < LONG_S or (len(self._steps) == KEPT and self._steps[-1].ms > seconds * 1e3):
            return
        stacks = [(count, list(stack)) for stack, count in self._samples.most_common(STACKS)]
        self._steps.append(Step(task.name, seconds * 1e3, self._collected * 1e3, stacks))
        self._steps.sort(key=lambda step: -step.ms)
        del self._steps[KEPT:]
        self._write()

    def _write(self) -> None:
        self._report.with_suffix(".new").write_text(json.dumps([asdict(step) for step in self._steps]))
        self._report.with_suffix(".new").replace(self._report)


def _stack(frame: FrameType | None) -> tuple[str, ...]:
    found: list[str] = []
    while frame is not None and len(found) < FRAMES:
        code = frame.f_code
        if "/trio/" in code.co_filename:
            break
        found.append(f"{code.co_filename.removeprefix(_HERE)}:{frame.f_lineno} {code.co_qualname}")
        frame = frame.f_back
    return tuple(reversed(found))


def read(report: Path) -> list[Step]:
    """Return the longest steps since the last `forget`, the longest one first."""
    return [Step(**one) for one in json.loads(report.read_text())] if report.exists() else []


def program(report: Path) -> list[str]:
    """The command to run instead of `mqd`."""
    return [programs.python(), "-P", "-c", _START, str(report)]


def forget(pid: int) -> None:
    """Ask a watched mqd to begin anew."""
    os.kill(pid, signal.SIGUSR2)


def main() -> None:
    from amqp_server import main as start
    from amqp_server.connection.sockets import poll_task

    # The node waits with Trio, so that each turn of clients is a step of its own.
    poll_task._trio_fd = lambda: None
    watch = Watch(Path(sys.argv[1]))
    del sys.argv[1]
    trio.run = partial(trio.run, instruments=[watch])  # type: ignore[assignment]
    signal.signal(signal.SIGPROF, watch.sample)
    signal.signal(signal.SIGUSR2, watch.forget)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)
    start.main()


if __name__ == "__main__":
    main()
