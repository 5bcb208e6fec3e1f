"""A real mqd process: started, killed, watched."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from conformance_tests import programs
from conformance_tests.patience import PATIENCE_S

READY = re.compile(r"^mqd ready .*\bamqp=127\.0\.0\.1:(\d+) http=127\.0\.0\.1:(\d+)")


def command(name: str) -> str:
    """Return a program of the mqd under test."""
    return str(programs.directory() / name)


class Node:
    """One data directory, and the successive processes on it."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.data = directory / "data"
        self._errors = directory / "mqd.log"
        self._options = options
        self._more_options: tuple[str, ...] = ()
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None
        #: The program to run.
        self.program = [command("mqd")]
        #: In addition to the test's own environment.
        self.environment: dict[str, str] = {}
        self.port = self.http = 0

    def add_options(self, *options: str) -> None:
        """From the next start on."""
        self._options += options

    def set_more_options(self, *options: str) -> None:
        """Give the next starts these options, in place of earlier ones that were set here."""
        self._more_options = options

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def pids(self) -> list[int]:
        """Return the node's process, and those of its workers."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    def launch(self) -> None:
        """Start a process, and do not wait for it."""
        self._log = self._errors.open("a")
        self._process = subprocess.Popen(
            [
                *(*self.program, "--data-dir", str(self.data)),
                *("--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0", *self._options),
                *self._more_options,
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | self.environment,
        )

    def start(self) -> None:
        self.launch()
        self.ready()

    def ready(self) -> None:
        """Wait until the process says that it serves."""
        process = self._process
        assert process is not None and process.stdout is not None
        # Not `select`: a long test may have more descriptors than it takes, because pika keeps two of each
        # connection that failed.
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        readable = poll.poll(PATIENCE_S * 1000)
        ready = READY.match(process.stdout.readline()) if readable else None
        if ready is None:
            if not readable:
                # The process writes its threads' stacks to its log, and ends.
                process.send_signal(signal.SIGABRT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
            self.kill()
            raise AssertionError(f"mqd did not start:\n{self.log()[-3000:]}")
        self.port, self.http = int(ready[1]), int(ready[2])

    def kill(self) -> None:
        """Send SIGKILL: nothing is logged, nothing is flushed."""
        if self._process is not None:
            self._process.kill()
            self._reap(self._process)

    @contextmanager
    def killed_after(self, seconds: float) -> Iterator[None]:
        """Kill the process while the body runs; afterwards it is dead, and another can start."""
        timer = threading.Timer(seconds, self.kill)
        timer.start()
        try:
            yield
        finally:
            # Until it has ended it may still close what belongs to the next process.
            timer.join()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ask the process to stop; return the exit code."""
        process = self._process
        assert process is not None
        process.send_signal(how)
        try:
            return process.wait(PATIENCE_S)
        finally:
            self.kill()

    def _reap(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        assert process.stdout is not None and self._log is not None
        process.stdout.close()
        self._log.close()
        self._process = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return self._errors.read_text(errors="replace")

    def mqctl(self, *arguments: str) -> str:
        done = subprocess.run(
            [command("mqctl"), "--url", f"http://127.0.0.1:{self.http}", *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def disk_bytes(self) -> int:
        """Return the size of the data directory on the disk."""
        files = [path.stat() for path in self.data.rglob("*") if path.is_file()]
        return sum(file.st_blocks * 512 for file in files)


def run_once(arguments: Sequence[str], environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run an mqd that should end by itself; return exit code, stdout, stderr."""
    done = subprocess.run(
        [command("mqd"), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **(environment or {})},
    )
    return done.returncode, done.stdout, done.stderr


@dataclass
class Peak:
    """The highest figures of a process, in bytes."""

    resident: int = 0
    anonymous: int = 0
    samples: int = 0


class MemoryWatch:
    """Samples a process's memory in a thread of its own."""

    INTERVAL_S = 0.05

    def __init__(self, pid: int) -> None:
        self._path = Path(f"/proc/{pid}/status")
        self.peak = Peak()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._stop.wait(self.INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        now = memory(self._path)
        self.peak.samples += 1
        # VmHWM is the kernel's own high-water mark of the resident set, so no peak between two samples is
        # missed.
        self.peak.resident = max(self.peak.resident, now["VmHWM"])
        self.peak.anonymous = max(self.peak.anonymous, now["RssAnon"])


def memory(path: Path) -> dict[str, int]:
    """Read the sizes in /proc/PID/status, in bytes."""
    found: dict[str, int] = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            found[name] = int(value[:-3]) * 1024
    return found


def wait_until(
    what: str, holds: object, within_s: float = PATIENCE_S, state: Callable[[], str] = lambda: ""
) -> None:
    """Poll a condition of another process, for which there is no event."""
    assert callable(holds)
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}; {state()}"
        time.sleep(0.02)
