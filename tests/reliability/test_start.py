"""Starting and stopping: the process reports any error in one clear line, with an exit code that is not 0."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance_tests.patience import PATIENCE_S
from tests.reliability.bodies import body, number
from tests.reliability.client import Address, Client, Gone
from tests.reliability.node import Node, command, run_once

ROOT = Path(__file__).parents[2]
ANY_PORTS = ("--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0")


def refused(arguments: list[str], *said: str, environment: dict[str, str] | None = None) -> int:
    code, out, err = run_once(arguments, environment)
    assert code != 0
    assert out == "", "it said that it was ready"
    lines = [line for line in err.splitlines() if not re.match(r"\d{4}-\d\d-\d\d .* INFO ", line)]
    assert len(lines) == 1, err
    assert lines[0].startswith("mqd: ")
    for words in said:
        assert words in lines[0], lines[0]
    return code


def test_second_node_on_one_data_directory_is_refused_and_the_first_unharmed(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        client = Client(node.port)
        client.declare("q")
        client.send(Address("", "q").message(body(1, 100)))
        code = refused(
            ["--data-dir", str(node.data), *ANY_PORTS], str(node.data), f"in use by process {node.pid}"
        )
        assert code == 1
        client.consume("q", 0)
        assert number(client.deliveries(1)[0].body) == 1
        client.close()
        # The lock does not outlive its process, not even after kill -9.
        node.kill()
        node.start()


def test_data_directory_that_is_a_file(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("in the way")
    assert refused(["--data-dir", str(place), *ANY_PORTS], str(place), "--data-dir") == 1


def test_data_directory_without_permission(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # Root may write anywhere, except where a file system can't make directories.
        place = Path("/proc/mqd-data")
    else:
        (tmp_path / "closed").mkdir(mode=0o500)
        place = tmp_path / "closed" / "data"
    assert refused(["--data-dir", str(place), *ANY_PORTS], str(place), "--data-dir") == 1


@pytest.mark.parametrize("which", ["--amqp", "--http"])
def test_port_in_use(tmp_path: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused(
            ["--data-dir", str(tmp_path / "data"), *ANY_PORTS, which, address],
            address,
            "Address already in use",
        )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("heartbeat_s = [", "mqd.toml"),
        ("hartbeat_s = 5", "hartbeat_s"),
        ("heartbeat_s = -1", "heartbeat"),
        ("amqps = 'nonsense'", "nonsense"),
        ("\0\xff", "mqd.toml"),
    ],
)
def test_corrupt_config(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mqd.toml"
    file.write_text(text, encoding="latin-1")
    refused(["--config", str(file), "--data-dir", str(tmp_path / "data"), *ANY_PORTS], said)


def test_missing_config(tmp_path: Path) -> None:
    refused(["--config", str(tmp_path / "none.toml")], "none.toml")


def test_wrong_option_in_the_environment(tmp_path: Path) -> None:
    arguments = ["--data-dir", str(tmp_path / "data"), *ANY_PORTS]
    refused(arguments, "MQD_HEARTBEAT_S", environment={"MQD_HEARTBEAT_S": "soon"})


def test_ctrl_c_stops_in_order(tmp_path: Path) -> None:
    """SIGINT as SIGTERM: connections are closed with 320, exit code 0, no traceback."""
    with Node(tmp_path) as node:
        client = Client(node.port)
        assert node.stop(signal.SIGINT) == 0
        with pytest.raises(Gone, match="320 CONNECTION_FORCED"):
            list(client.receive())
        client.close()
        assert "Traceback" not in node.log()


def test_ctrl_c_during_the_start(tmp_path: Path) -> None:
    """Whenever the signal comes, the process soon ends and leaves a directory that the next one can use."""
    for delay_s in (0.05, 0.15, 0.25, 0.4):
        process = subprocess.Popen(
            [command("mqd"), "--data-dir", str(tmp_path / "data"), *ANY_PORTS],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(delay_s)
            process.send_signal(signal.SIGINT)
            # The exit is in order, or by the signal itself, or (1) by the signal within the start of the
            # interpreter; an error of mqd gives another code.
            assert process.wait(PATIENCE_S) in (0, -signal.SIGINT, 1), delay_s
        finally:
            process.kill()
            process.wait()
    with Node(tmp_path) as node:
        client = Client(node.port)
        client.declare("q")
        client.close()


#: Ctrl-C comes in a callback of the import system, where Python prints an exception and goes on.
INTERRUPTED = """
import signal, sys, weakref
from amqp_server.main import main

class Import:
    def find_spec(self, name, path=None, target=None):
        if name == "amqp_server.app":
            lock = Import()
            callback = weakref.ref(lock, lambda _: signal.raise_signal(signal.SIGINT))
            del lock

sys.meta_path.insert(0, Import())
sys.argv[0] = "mqd"
main()
"""


def test_ctrl_c_is_not_lost_in_a_callback_during_the_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "--data-dir", str(tmp_path / "data"), *ANY_PORTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
