"""`mqd-backup`: a copy of a node under load has all confirmed messages, and the node goes on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pika
import pytest

from amqp_server.backup import CLUSTER_TABLE
from amqp_server.cluster.membership import membership
from conformance_tests import programs
from conformance_tests.patience import PATIENCE_S, open_connection
from persistence import copying
from persistence.copying import CannotCopy, copy_directory
from tests.reliability.node import Node, command, wait_until

COPIES = 4
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Load:
    """Publishes numbers with confirms, and takes every other one from the queue again, so that LMDB reuses
    its pages.
    """

    def __init__(self, port: int) -> None:
        self._url = f"amqp://guest:guest@127.0.0.1:{port}/"
        self.confirmed = 0
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._publish), threading.Thread(target=self._churn)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _publish(self) -> None:
        connection = open_connection(self._url)
        channel = connection.channel()
        channel.queue_declare("kept", durable=True)
        channel.confirm_delivery()
        while not self._end.is_set():
            channel.basic_publish(
                "", "kept", b"%d " % self.confirmed + bytes(2000), PERSISTENT, mandatory=True
            )
            self.confirmed += 1
        connection.close()

    def _churn(self) -> None:
        connection = open_connection(self._url)
        channel = connection.channel()
        channel.queue_declare("churned", durable=True)
        channel.confirm_delivery()
        while not self._end.is_set():
            for _ in range(20):
                channel.basic_publish("", "churned", bytes(5000), PERSISTENT)
            channel.queue_purge("churned")
        connection.close()


def numbers(port: int, queue: str = "kept") -> list[int]:
    connection = open_connection(f"amqp://guest:guest@127.0.0.1:{port}/")
    channel = connection.channel()
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        assert got[2] is not None
        found.append(int(got[2].split()[0]))
    connection.close()
    return found


def backup(source: Path, target: Path, *options: str) -> subprocess.CompletedProcess[str]:
    arguments = [command("mqd-backup"), *options, str(source), str(target)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_copies_of_a_node_under_load(tmp_path: Path) -> None:
    before = []
    with Node(tmp_path) as node, Load(node.port) as load:
        for number in range(COPIES):
            least = load.confirmed + 50
            wait_until("it takes messages", lambda least=least: load.confirmed >= least)
            before.append(load.confirmed)
            done = backup(node.data, tmp_path / f"copy{number}" / "data", "--freeze-max", "30")
            assert done.returncode == 0, done.stderr
            assert re.search(rf"the node \(process {node.pid}\) was paused for \d+\.\d+ s$", done.stdout)
        least = load.confirmed + 50
        wait_until("it goes on", lambda: load.confirmed >= least)
    for number, confirmed in enumerate(before):
        with Node(tmp_path / f"copy{number}") as restored:
            found = numbers(restored.port)
        assert found == list(range(len(found))) and len(found) >= confirmed
        assert not (tmp_path / f"copy{number}" / "data" / "main" / "data.mdb").stat().st_mode & 0o077


def test_a_copy_of_a_node_that_does_not_run(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        connection = open_connection(f"amqp://guest:guest@127.0.0.1:{node.port}/")
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        channel.basic_publish("", "kept", b"0", PERSISTENT, mandatory=True)
        connection.close()
    done = backup(node.data, tmp_path / "copy" / "data")
    assert done.returncode == 0 and "no node was running" in done.stdout, done.stderr
    with Node(tmp_path / "copy") as restored:
        assert numbers(restored.port) == [0]
    # The backup never overwrites existing files.
    again = backup(node.data, tmp_path / "copy" / "data")
    assert (again.returncode, again.stderr) == (
        1,
        f"mqd-backup: {tmp_path}/copy/data exists already: give the name of a new directory\n",
    )
    assert "is not a data directory of mqd" in backup(tmp_path / "copy", tmp_path / "third").stderr


def test_a_node_stands_still_no_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Node(tmp_path) as node:

        def slowly(source: Path, target: Path) -> None:
            deadline = time.monotonic() + PATIENCE_S
            assert not running(node.pid)
            while not running(node.pid):
                assert time.monotonic() < deadline
                time.sleep(0.01)

        monkeypatch.setattr(copying, "_copy_files", slowly)
        with pytest.raises(CannotCopy, match=r"copying takes longer than 0\.3 s"):
            copy_directory(node.data, tmp_path / "copy", freeze_s_max=0.3, cluster_table=CLUSTER_TABLE)
        assert not (tmp_path / "copy").exists()
        assert running(node.pid)
        open_connection(f"amqp://guest:guest@127.0.0.1:{node.port}/").close()


def test_a_node_that_another_program_resumes_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a process that runs again may not belong together."""
    with Node(tmp_path) as node:
        monkeypatch.setattr(copying, "_copy_files", lambda source, target: os.kill(node.pid, signal.SIGCONT))
        with pytest.raises(CannotCopy, match=rf"another program resumed process {node.pid} .*: try again"):
            copy_directory(node.data, tmp_path / "copy", freeze_s_max=5.0, cluster_table=CLUSTER_TABLE)
        assert not (tmp_path / "copy").exists()


def running(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "T"


def test_the_process_is_the_one_that_has_the_lock_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a container counts processes for itself, another process may have the same number."""
    with Node(tmp_path) as node:
        (node.data / "lock").write_text(f"{os.getppid()}\n")
        copied = copy_directory(node.data, tmp_path / "copy", freeze_s_max=5.0, cluster_table=CLUSTER_TABLE)
        assert copied.pid == node.pid and running(node.pid) and running(os.getppid())
        # Or no visible process has the file open.
        monkeypatch.setattr(copying, "_has_open", lambda number, file: False)
        with pytest.raises(CannotCopy, match="a process that is not visible here"):
            copy_directory(node.data, tmp_path / "other", freeze_s_max=5.0, cluster_table=CLUSTER_TABLE)
        assert not (tmp_path / "other").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may make a namespace for processes")
def test_a_node_that_is_the_first_process_of_a_container(tmp_path: Path) -> None:
    data, tools = tmp_path / "data", programs.directory()
    container = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    mqd = [str(tools / "mqd"), "--data-dir", str(data), "--amqp", "127.0.0.1:0", "--http", ""]
    with subprocess.Popen([*container, *mqd], stdout=subprocess.PIPE, text=True) as running_there:
        try:
            assert running_there.stdout is not None and running_there.stdout.readline().startswith(
                "mqd ready"
            )
            assert (data / "lock").read_text() == "1\n"
            (inside,) = (
                Path(f"/proc/{running_there.pid}/task/{running_there.pid}/children").read_text().split()
            )
            enter = ["nsenter", "--target", inside, "--pid", "--mount", str(tools / "mqd-backup"), str(data)]
            told = subprocess.run(
                [*enter, str(tmp_path / "a")], capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
            assert told.returncode == 1 and "the first process of its container" in told.stderr
            outside = backup(data, tmp_path / "b", "--freeze-max", "10")
            assert outside.returncode == 0 and f"(process {inside}) was paused" in outside.stdout, (
                outside.stderr
            )
        finally:
            running_there.kill()


def test_a_damaged_file_makes_no_copy(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        pass
    data = tmp_path / "damaged"
    shutil.copytree(node.data, data)
    file = data / "main" / "data.mdb"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(CannotCopy, match="the copy cannot be read: .* cut off"):
        copy_directory(data, tmp_path / "copy", freeze_s_max=1.0, cluster_table=CLUSTER_TABLE)
    assert not (tmp_path / "copy").exists()


def test_the_table_of_a_cluster_is_its_own() -> None:
    assert membership.TABLE == CLUSTER_TABLE
