"""A first run on a new machine and a run of CI try the same examples; earlier failures on a machine change
nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance_tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
# Examples are derived from the test's own text, so this text is the same in every run.
TRIES = """
import json
import os
from hypothesis import given, strategies as st

@given(st.integers())
def test_tries(number):
    with open(os.environ["SEEN"], "a") as file:
        file.write(json.dumps(number) + "\\n")
    assert str(number) != os.environ["BAD"]
"""
LONG = """
from hypothesis import given, strategies as st

@given(st.binary(min_size=1).map(lambda data: bytes(20_000) + data))
def test_long(data):
    assert len(data) < 20_000, "the reason"
"""


def run(directory: Path, program: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run one test with this tree's conftest and settings, in a directory of its own."""
    test = directory / "test_it.py"
    test.write_text(program)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    command += ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={directory}", str(test), *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    environment["PYTHONPATH"] = str(ROOT)
    environment["HYPOTHESIS_STORAGE_DIRECTORY"] = str(directory / ".hypothesis")
    return subprocess.run(
        command,
        cwd=directory,
        env=environment | more,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def tried(
    directory: Path, name: str, *arguments: str, bad: int | None = None, ci: bool = False
) -> tuple[int, list[int]]:
    seen = directory / name
    more = {"SEEN": str(seen), "BAD": str(bad)} | ({"CI": "true"} if ci else {})
    done = run(directory, TRIES, *arguments, **more)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode, [json.loads(line) for line in seen.read_text().splitlines()]


def test_a_plain_run_and_ci_try_the_same(tmp_path: Path) -> None:
    plain, again, ci = tried(tmp_path, "1"), tried(tmp_path, "2"), tried(tmp_path, "3", ci=True)
    assert plain == again == ci
    assert len(plain[1]) >= 50
    # And the random examples differ from these.
    assert tried(tmp_path, "4", "--hypothesis-profile=fuzz")[1] != plain[1]


@pytest.mark.long
def test_nothing_is_kept_of_a_failure(tmp_path: Path) -> None:
    _, found = tried(tmp_path, "1")
    bad = found[30]
    code, before = tried(tmp_path, "2", bad=bad)
    assert code == 1 and before[:31] == found[:31]
    # Once repaired, it tries the examples from before the failure. An example that fuzzing has found is the
    # first one of the next fuzzing run.
    assert tried(tmp_path, "3") == (0, found)
    code, before = tried(tmp_path, "4", "--hypothesis-profile=fuzz", "--hypothesis-seed=1", bad=0)
    assert code == 1 and before[-1] == 0
    assert tried(tmp_path, "5") == (0, found)
    assert tried(tmp_path, "6", "--hypothesis-profile=fuzz", "--hypothesis-seed=2")[1][0] == 0


@pytest.mark.parametrize("profile", ["same", "fuzz"])
def test_a_long_example_is_no_failure_of_its_own(tmp_path: Path, profile: str) -> None:
    done = run(tmp_path, LONG, f"--hypothesis-profile={profile}")
    assert done.returncode == 1
    assert "AssertionError: the reason" in done.stdout
    assert not re.search(r"HypothesisWarning|FlakyFailure|BaseExceptionGroup", done.stdout), done.stdout


@pytest.mark.long
def test_fuzzing_runs_tests_with_examples_until_the_time_is_up(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("def test_without_examples():\n    assert False\n")
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(TRIES)
    seen = tmp_path / "seen"
    assert "seed 5: 1 of 2 tests" in fuzz(tmp_path, seen, "--seconds", "0", "--seed", "5")
    first = seen.read_text().splitlines()
    seen.unlink()
    # Round after round, each with other examples.
    assert "seed 6: " in fuzz(tmp_path, seen, "--seconds", "8", "--seed", "5")
    assert len(set(seen.read_text().splitlines())) > 2 * len(first)


def fuzz(directory: Path, seen: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    command += ["-o", f"cache_dir={directory}/.cache", "-p", "tests.conftest", str(directory)]
    environment = os.environ | {"SEEN": str(seen), "BAD": ""}
    environment["HYPOTHESIS_STORAGE_DIRECTORY"] = str(directory / ".hypothesis")
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
