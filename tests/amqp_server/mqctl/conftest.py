"""A running mqd, one for all tests of mqctl, and `mqctl` called within the test's own process."""

import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from amqp_server.mqctl.main import main
from conformance_tests.patience import PATIENCE_S


class Addresses(NamedTuple):
    amqp: str
    http: str


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]


@pytest.fixture(scope="session")
def mqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    home: Path = tmp_path_factory.mktemp("mqd")
    command = [sys.executable, "-m", "amqp_server.main", "--data-dir", str(home / "data")]
    command += ["--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        readable, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        line = process.stdout.readline() if readable else ""
        ready = re.match(r"mqd ready node=n1 amqp=(\S+) http=(\S+) \((?:pure|compiled), ", line)
        assert ready, (home / "log").read_text()
        yield Addresses(ready[1], ready[2])
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert "Traceback" not in (home / "log").read_text()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


Mqctl = Callable[..., Outcome]


@pytest.fixture
def mqctl(mqd: Addresses, capsys: pytest.CaptureFixture[str]) -> Mqctl:
    def call(*args: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["--url", f"http://{mqd.http}", *args])
        code = ended.value.code
        assert isinstance(code, int)
        out, err = capsys.readouterr()
        assert err.count("\n") <= 1, err
        return Outcome(code, out, err)

    return call
