"""Shares of the descriptors, and the alarm when clients have used up theirs."""

import errno
import logging
import mmap
import os
import socket
from functools import partial
from pathlib import Path

import pytest
import trio

from amqp_server import descriptors
from amqp_server.broker.alarms import Alarms
from amqp_server.config import Config
from amqp_server.descriptors import ALARM, Descriptors
from conformance_tests.patience import PATIENCE_S
from persistence import own_process
from persistence.own_process import ProcFile, open_files, resident_bytes
from quorum_queue.links import accept
from quorum_queue.links.accept import accept_all


@pytest.mark.parametrize("limit", [64, 256, 1_024, 4_096, 65_536])
@pytest.mark.parametrize("peers", [(), ("n1=h:1", "n2=h:2")])
def test_shares_leave_something_to_the_node(
    limit: int, peers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "open_files", lambda: 20)
    config = Config(metrics="127.0.0.1:1", peers=peers, cluster_secret_file="file")
    shares = Descriptors(config, Alarms(), limit)
    assert shares.clients_max + 2 * shares.http_max + shares.reserved <= limit
    assert shares.clients_max > 0 and shares.http_max >= 2
    assert shares.reserved >= min(20 + descriptors.MORE_OF_ITS_OWN, limit // 2)
    assert shares.connections_max == min(shares.clients_max, 20_000)


def test_the_limit_in_force_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Descriptors(Config(connections_max=100), Alarms(), 1_024).tell()
    Descriptors(Config(), Alarms(), 1_024).tell()
    quiet, loud = caplog.records
    assert quiet.levelno == logging.INFO and "1024 descriptors: 100 connections" in quiet.getMessage()
    assert loud.levelno == logging.WARNING
    assert "connections_max is 784 in force, not 20000" in loud.getMessage()


def test_the_alarm_is_set_logged_and_cleared(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = 30
    monkeypatch.setattr(descriptors, "open_files", lambda: used)
    alarms = Alarms()
    shares = Descriptors(Config(), alarms, 256)
    for _ in range(shares.clients_max):
        assert shares.take()
    shares.look()
    assert alarms.names() == []
    assert not shares.take()
    assert alarms.names() == [ALARM]
    # It blocks no publisher.
    assert not alarms.active and not alarms.reason
    shares.look()
    assert alarms.names() == [ALARM]
    for _ in range(shares.clients_max // descriptors.FREE_SHARE):
        shares.give()
    shares.look()
    assert alarms.names() == []
    used = 250
    shares.look()
    assert alarms.names() == [ALARM]
    used = 30
    shares.look()
    shares.failed(OSError(errno.EPERM, ""))
    assert alarms.names() == []
    shares.failed(OSError(errno.ENFILE, ""))
    assert alarms.names() == [ALARM]
    said = [record.getMessage().partition(":")[0] for record in caplog.records]
    told = ["file descriptor limit alarm set", "file descriptor limit alarm cleared"]
    assert said == told * 2 + told[:1]


def test_files_of_proc_stay_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With no descriptor left, the node still knows its memory."""
    before, _ = resident_bytes()
    kept = ProcFile("/proc/self/maps")
    assert b"[stack]" in kept.read()

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "planted")

    monkeypatch.setattr(os, "open", full)
    monkeypatch.setattr(os, "listdir", full)
    # A mapping of its own: the heap of a process that has run other tests may have room for it.
    held = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(held), 1 << 12):
        held[at] = 1
    assert resident_bytes()[0] > before + (32 << 20)
    assert b"[stack]" in kept.read()
    assert open_files() > 0
    monkeypatch.setattr(os, "stat", full)
    assert open_files() == own_process.files_limit()


@pytest.mark.trio
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EPERM])
async def test_what_cannot_be_accepted_waits(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "PAUSE_S", 0.001)
    failures: list[int | None] = []
    planted = 3

    class Listening(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            if len(failures) < planted:
                raise OSError(number, "planted")
            return super().accept()

    with Listening() as listening, socket.socket() as client:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        client.connect(listening.getsockname())
        found = trio.Event()

        def accepted(sock: socket.socket, _: object) -> None:
            sock.close()
            found.set()

        async with trio.open_nursery() as nursery:
            failed = partial(lambda error: failures.append(error.errno))
            nursery.start_soon(accept_all, listening, 8, accepted, failed)
            with trio.fail_after(PATIENCE_S):
                await found.wait()
            nursery.cancel_scope.cancel()
    assert failures == [number] * planted
