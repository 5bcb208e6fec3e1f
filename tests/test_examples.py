"""Programs and files that users copy must work: the example configuration, and the program in the README."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest

from amqp_server.config import SECRETS, Config
from amqp_server.example import example
from amqp_server.startup.options import Reread, command_line
from conformance_tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "deploy" / "mqd.example.toml"


def test_the_example_is_current() -> None:
    assert EXAMPLE.read_text() == example(), "python -m amqp_server.example > deploy/mqd.example.toml"


def test_all_of_the_example_uncommented_is_the_defaults(tmp_path: Path) -> None:
    uncommented = re.sub(r"^#(?=\w+ = )", "", EXAMPLE.read_text(), flags=re.MULTILINE)
    names = {declared.name for declared in fields(Config)}
    assert tomllib.loads(uncommented).keys() == names
    file = tmp_path / "mqd.toml"
    file.write_text(uncommented)
    read: list[Config] = []

    def keep(config: Config, reread: Reread) -> int:
        read.append(config)
        return 0

    with pytest.raises(SystemExit) as ended:
        command_line(keep)(["--config", str(file)])
    assert ended.value.code == 0
    default = Config()
    for name in names - SECRETS:
        assert getattr(read[0], name) == getattr(default, name), name


@contextmanager
def running(data_directory: Path, *options: str) -> Iterator[str]:
    """Return the address of an mqd of this environment."""
    with serving(data_directory, *options) as (amqp, _):
        yield amqp


@contextmanager
def serving(data_directory: Path, *options: str) -> Iterator[tuple[str, str]]:
    """Return the addresses of AMQP and of HTTP of an mqd of this environment."""
    command = [str(Path(sys.executable).with_name("mqd")), "--data-dir", str(data_directory)]
    command += ["--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as mqd:
        try:
            assert mqd.stdout is not None
            ready = re.match(r"mqd ready node=n1 amqp=(\S+) http=(\S+)", mqd.stdout.readline())
            assert ready is not None
            yield ready[1], ready[2]
        finally:
            mqd.terminate()
            assert mqd.wait(PATIENCE_S) == 0


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with running(tmp_path / "data") as at:
        yield at


def test_the_program_in_the_readme(address: str) -> None:
    [program] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    # The program in the README is the same as in the file that the README tells users to run.
    assert (ROOT / "examples" / "hello.py").read_text().endswith(f'"""\n\n{program}')
    done = subprocess.run(
        [sys.executable, "-c", program, address.rpartition(":")[2]],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "received: Hello, world!\n"
