"""Tests with examples, with random examples instead of the same in every run: `make fuzz`, for a minute.

    python -m tests.fuzz [--seconds 60] [--seed N] [arguments of pytest]

Tests run in random order, but those that failed the last time come first; round after round, each with a seed
of its own, until the time is up or a test fails. A failing example is kept in `.hypothesis`, and the next
`make fuzz` begins with it; `make test` does not look there.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import pytest

#: The profile of conformance_tests/examples.py, which must not be imported before pytest is set up.
FUZZ = "fuzz"
ROOT = Path(__file__).parents[1]
PACKAGES = ("tests", "conformance_tests")


def files() -> list[str]:
    """Test files that use hypothesis: the others need not even be imported."""
    tests = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("test_*.py")))
    return [str(path) for path in tests if "from hypothesis" in path.read_text()]


class Clock:
    """Runs from the first test on, because importing all the tests takes time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began: float | None = None

    def start(self) -> None:
        if self._began is None:
            self._began = time.monotonic()

    @property
    def up(self) -> bool:
        return self._began is not None and time.monotonic() - self._began >= self._seconds


class Round:
    """Runs all tests with examples once, shuffled; ends after the test in which the time is up."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self._seed, self._clock = seed, clock
        self.ran: set[str] = set()
        self.total = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        fuzzed = [item for item in items if item.get_closest_marker("hypothesis")]
        config.hook.pytest_deselected(items=[item for item in items if item not in fuzzed])
        random.Random(self._seed).shuffle(fuzzed)
        items[:] = fuzzed
        self.total = len(items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if self._clock.up:
            return True  # handled: the test does not run
        self._clock.start()
        self.ran.add(item.nodeid)
        return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (%(default)g)")
    parser.add_argument("--seed", type=int, help="of the first round; one of chance")
    options, rest = parser.parse_known_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    clock = Clock(options.seconds)
    while True:
        this = Round(seed, clock)
        arguments = [
            "-q",
            "-x",
            "--failed-first",
            f"--hypothesis-profile={FUZZ}",
            f"--hypothesis-seed={seed}",
        ]
        paths = [] if any(Path(each.partition("::")[0]).exists() for each in rest) else files()
        code = pytest.main([*arguments, *paths, *rest], plugins=[this])
        print(f"seed {seed}: {len(this.ran)} of {this.total} tests with random examples", flush=True)
        if code:
            return int(code)
        if clock.up:
            return 0
        seed += 1


if __name__ == "__main__":
    sys.exit(main())
