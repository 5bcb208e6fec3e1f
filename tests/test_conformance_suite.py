"""The conformance suite judges a broker that lacks what RabbitMQ has in plugins, and reports what it did not
judge.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance_tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
LACKS = ("x-consistent-hash", "x-random")
PROGRAM = f"""
from exchanges import registry

for kind in {LACKS}:
    del registry._TYPES[kind]
registry.EXCHANGE_TYPES = tuple(registry._TYPES)
from amqp_server.main import main
main()
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """An mqd without two of its exchange types."""
    command = [sys.executable, "-c", PROGRAM, "--data-dir", str(tmp_path / "data")]
    command += ["--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as mqd:
        try:
            assert mqd.stdout is not None
            ready = re.match(r"mqd ready node=n1 amqp=(\S+) http=", mqd.stdout.readline())
            assert ready is not None
            yield f"amqp://guest:guest@{ready[1]}/"
        finally:
            mqd.terminate()
            assert mqd.wait(PATIENCE_S) == 0


def judge(url: str, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--amqp-url", url, *arguments]
    asked = ["conformance_tests/test_exchange_declare.py", "conformance_tests/test_exchange_routing.py"]
    command += [*asked, "-k", "each_type or consistent_hash_gives or modulus_hash or random_gives"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, done.stdout


def test_what_the_broker_lacks_is_skipped_and_told(url: str) -> None:
    code, told = judge(url)
    assert code == 0, told
    table = told.partition("= not judged =")[2]
    for kind in LACKS:
        assert re.search(
            rf"^ +2  the broker has no exchange type {kind} .*: test_exchange_declare.py, test_exchange_routing.py$",
            table,
            re.MULTILINE,
        ), told
    assert "x-modulus-hash" not in table
    # With --complete, a missing type is a failure.
    code, told = judge(url, "--complete")
    assert code == 1 and "4 failed" in told and "unknown exchange type 'x-random'" in told, told
