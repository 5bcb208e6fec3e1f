"""Limits and alarms of a node with workers are those of one node."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import httpx
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingConnection

from conformance_tests.patience import PATIENCE_S

from ...reliability.node import Node
from .test_node import DURABLE, channels, close, connect, get, one_at_each, until, workers

WORKERS = 3
CHANNELS = 150
HALF_OPEN = 6
EVENTS = "amq.rabbitmq.event"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Each of its workers may have some fifty connections."""
    node = Node(
        tmp_path_factory.mktemp("limits"),
        *("--workers", str(WORKERS), "--channels-max", str(CHANNELS), "--half-open-max", str(HALF_OPEN)),
        *("--event-exchange-vhost", "/"),
    )
    node.program = ["prlimit", "--nofile=200:200", *node.program]
    with node:
        yield node


def clients_max(node: Node) -> int:
    told = httpx.get(
        f"http://127.0.0.1:{node.http}/api/health/checks/below-node-connection-limit",
        auth=("guest", "guest"),
        timeout=PATIENCE_S,
    )
    return int(told.json()["limit"])


def test_all_workers_take_clients_until_each_is_full(node: Node) -> None:
    most = clients_max(node)
    assert WORKERS * 40 < most < WORKERS * 60
    with ExitStack() as stack:
        (first,) = stack.enter_context(channels(node, 1))
        first.queue_declare("hot", durable=True)
        # All of them belong to one worker, which has room for a third.
        for _ in range(most - 1):
            (channel,) = stack.enter_context(channels(node, 1))
            channel.basic_publish("", "hot", b"x", DURABLE, mandatory=True)
        found = Counter(row["node"] for row in get(node, "connections"))
        assert (len(found), found.total()) == (WORKERS, most)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.port))
    until("they are gone", lambda: not get(node, "connections"))
    assert "are left for clients" not in node.log()


def test_channels_max_counts_channels_of_all_workers(node: Node) -> None:
    with one_at_each(node, WORKERS) as opened:
        connections = [channel.connection for channel in opened.values()]
        left = CHANNELS - get(node, "overview")["object_totals"]["channels"]
        for number in range(left):
            connections[number % WORKERS].channel()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="opened on node 'n1' has reached"):
            connections[-1].channel()
        # Its channels are free again.
        for _ in range(left // WORKERS):
            connections[0].channel()


def test_half_open_max_counts_half_open_connections_of_all_workers(node: Node) -> None:
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", node.port)))
            for _ in range(WORKERS * HALF_OPEN)
        ]

        def still_open() -> int:
            return sum(_is_open(sock) for sock in silent)

        # One more for each worker that had none of its own to close.
        until("the others are closed", lambda: still_open() <= HALF_OPEN + WORKERS - 1)
        # A connection of the same address gets in, as soon as silent ones have had their time.
        connection = connect(node)
        stack.callback(partial(close, connection))
        assert still_open() >= HALF_OPEN - WORKERS


def _is_open(sock: socket.socket) -> bool:
    try:
        return sock.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_an_alarm_of_the_node_is_one_alarm(node: Node) -> None:
    with channels(node, 1) as (channel,):
        channel.queue_declare("alarms")
        channel.queue_bind("alarms", EVENTS, "alarm.#")
        for limit in ("1000", "3000000000"):
            node.mqctl("set_vm_memory_high_watermark", "absolute", limit)
            raised = limit == "1000"
            until("all workers know it", lambda raised=raised: _in_alarm(node) == [raised] * WORKERS)
            rows = [row["node"] for row in get(node, "alarms") if row["name"] == "memory"]
            assert rows == ["n1"] * raised
        sent: list[tuple[str, str]] = []

        def event() -> bool:
            method, properties, _ = channel.basic_get("alarms", auto_ack=True)
            if method is None:
                return False
            sent.append((method.routing_key, properties.headers["node"]))
            return sent[-1][0] == "alarm.cleared"

        until("the end of the alarm is told", event)
        assert sent == [("alarm.set", "n1"), ("alarm.cleared", "n1")]
    lines = [line for line in node.log().splitlines() if "memory resource limit alarm" in line]
    assert len(lines) == 2, lines


def _in_alarm(node: Node) -> list[bool]:
    return [row["mem_alarm"] for row in get(node, "nodes")]


def test_a_node_that_stops_accepts_no_clients(tmp_path: Path) -> None:
    with workers(tmp_path, 2) as node, channels(node, 1):
        # The client does not answer when its connection is closed, so the node waits for that.
        os.kill(node.pid, signal.SIGTERM)

        def refuses() -> bool:
            with suppress(ConnectionResetError), socket.socket() as sock:
                return sock.connect_ex(("127.0.0.1", node.port)) == errno.ECONNREFUSED
            return False

        until("it listens no more", refuses)
        assert node.running


def test_failed_logins_at_all_workers_slow_down_their_address(tmp_path: Path) -> None:
    options = ("--login-failures-free", "2", "--handshake-timeout-s", "1")
    with workers(tmp_path, WORKERS, *options) as node:
        for number in range(7):
            # An answer for the same password would be remembered.
            wrong = pika.PlainCredentials("guest", f"wrong{number}")
            with pytest.raises(pika.exceptions.ProbableAuthenticationError):
                BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.port, credentials=wrong))
        # The turn of the last one comes in 1.6 s: too late. Each worker alone has seen no more than three.
        until("it was refused unchecked", lambda: "of this address have failed or wait" in node.log())
