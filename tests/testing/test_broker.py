"""mqd.testing: brokers that start, stop, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pika
import pytest

from amqp_server.testing import Broker, StartFailed, start
from amqp_server.testing.api import ApiError
from amqp_server.testing.process import RUN, arguments, held_port, port_of
from conformance_tests import programs
from conformance_tests.patience import PATIENCE_S, patient
from tests.reliability.node import wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    surroundings = {"MQD_HEARTBEAT_S": "7", "MQD_AMQP": "127.0.0.1:1", "PYTHONWARNINGS": "error"}
    with (
        mock.patch.dict(os.environ, surroundings),
        start(channel_max=17, loopback_users=["guest"]) as started,
    ):
        yield started


def connect(url: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(patient(pika.URLParameters(url)))


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The parent of the directories of started brokers."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_name_that_programs_import() -> None:
    told = "import mqd.testing, amqp_server.testing as same; assert mqd.testing is same"
    assert (
        subprocess.run([programs.python(), "-P", "-c", told], timeout=PATIENCE_S, check=False).returncode == 0
    )


def test_its_process_imports_nothing_that_is_for_the_tests(tmp_path: Path) -> None:
    command = [programs.python(), "-P", "-X", "importtime", str(RUN), str(tmp_path / "gone"), "--version"]
    # The program ends when its stdin does.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = process.stderr.read()
    imported = {line.rpartition("|")[2].strip() for line in told.splitlines()}
    assert "amqp_server.app" in imported
    assert not [name for name in imported if name.startswith("amqp_server.testing")]


def test_the_password_of_its_user_costs_next_to_nothing(broker: Broker) -> None:
    (user,) = broker.api("GET", "/api/definitions")["users"]
    assert "$m=8,t=1,p=1$" in user["password_hash"]


def test_a_virtual_host_is_empty_and_goes_with_its_connections(broker: Broker) -> None:
    with broker.vhost("a name/with signs") as first:
        connection = connect(first.amqp_url)
        connection.channel().queue_declare("q")
        assert [queue["name"] for queue in first.api("GET", "queues")] == ["q"]
        with broker.vhost() as second, connect(second.amqp_url) as other:
            assert second.api("GET", "queues") == []
            other.channel().queue_declare("q")
    with pytest.raises(pika.exceptions.AMQPError):
        connection.process_data_events(PATIENCE_S)
    assert [vhost["name"] for vhost in broker.api("GET", "/api/vhosts")] == ["/"]
    with pytest.raises(ApiError, match="404") as refused:
        first.api("GET", "queues")
    assert refused.value.status == 404


def test_port_and_messages_stay_over_a_crash(broker: Broker) -> None:
    with broker.vhost() as vhost:
        with connect(vhost.amqp_url) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            channel.basic_publish("", "q", b"kept", pika.BasicProperties(delivery_mode=2))
            port = broker.port
            broker.kill()
            assert not broker.running
            # No other program gets the port while the broker is away.
            with socket.socket() as stranger, pytest.raises(OSError):
                stranger.bind((broker.host, port))
            with pytest.raises(pika.exceptions.AMQPError):
                connection.process_data_events(PATIENCE_S)
        broker.start()
        assert broker.port == port
        with connect(vhost.amqp_url) as connection:
            assert connection.channel().basic_get("q")[2] == b"kept"


def test_options_count_and_the_surroundings_do_not(broker: Broker) -> None:
    with connect(broker.amqp_url) as connection:
        assert connection._impl.params.channel_max == 17
        assert connection._impl.params.heartbeat == 60
    assert "MQD_" not in broker.log()
    assert arguments({"a_b": True, "c": False, "d": ["x", "y"], "e": 1}) == [
        *("--a-b", "--no-c"),
        *("--d", "x,y", "--e", "1"),
    ]


def test_a_start_that_fails_says_why_and_leaves_nothing(homes: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartFailed, match=f"cannot listen on {where}"):
            start(amqp=where)
    assert list(homes.iterdir()) == []


def test_close_leaves_nothing(homes: Path) -> None:
    broker = start()
    pid = broker.api("GET", "/api/nodes")[0]["os_pid"]
    assert running(int(pid)) and len(list(homes.iterdir())) == 1
    broker.pause()
    broker.close()
    assert not running(int(pid)) and list(homes.iterdir()) == []


def test_it_ends_with_a_process_that_is_killed() -> None:
    program = (
        "import mqd.testing; broker = mqd.testing.start();"
        "print(broker.api('GET', '/api/nodes')[0]['os_pid'], broker.process.log_file.parent, flush=True); input()"
    )
    with subprocess.Popen(
        [programs.python(), "-P", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, home = parent.stdout.readline().split()
        assert Path(f"/proc/{pid}").exists() and Path(home).exists()
        os.kill(parent.pid, signal.SIGKILL)
    wait_until("the broker is gone", lambda: not running(int(pid)))
    wait_until("its data is gone", lambda: not Path(home).exists())


def running(pid: int) -> bool:
    """False also for a process that has ended and that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_held_port_can_be_listened_on_and_is_nobody_elses() -> None:
    holder = held_port()
    with holder, socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port_of(holder)))
        listener.listen()
        with socket.create_connection(("127.0.0.1", port_of(holder)), PATIENCE_S):
            listener.accept()[0].close()
        others = [held_port() for _ in range(200)]
        assert port_of(holder) not in {port_of(other) for other in others}
        for other in others:
            other.close()
