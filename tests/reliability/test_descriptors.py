"""Clients use up the descriptors, or the system has none left: the node serves on, and loses nothing."""

from __future__ import annotations

import base64
import json
import resource
import socket
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from conformance_tests.patience import PATIENCE_S
from tests.reliability.client import Address, Client, Confirm
from tests.reliability.node import Node, command, wait_until

LIMIT = 256
GUEST = "Basic " + base64.b64encode(b"guest:guest").decode()
STREAM: dict[str, Any] = {"x-queue-type": "stream"}
ALARM = "file_descriptor_limit"


class Api:
    """A connection to the management API that stays open."""

    def __init__(self, node: Node) -> None:
        self._connection = HTTPConnection("127.0.0.1", node.http, timeout=PATIENCE_S)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body)
        self._connection.request(method, path, data, {"Authorization": GUEST})
        answer = self._connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None


def alarms(node: Node) -> list[str]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{node.http}/api/health/checks/local-alarms", headers={"Authorization": GUEST}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert answer.status == 200
            return []
    except urllib.error.HTTPError as error:
        return [each["resource"] for each in json.load(error)["alarms"]]


def publish(client: Client, queue: str, count: int, already: int) -> None:
    """Publish persistent messages, and wait for their confirms; `already` were published before."""
    address = Address("", queue)
    for number in range(count):
        client.send(address.message(b"%d" % number))
    confirmed = already
    with_in = time.monotonic() + PATIENCE_S
    while confirmed < already + count and time.monotonic() < with_in:
        for event in client.receive(0.1):
            if isinstance(event, Confirm):
                confirmed = event.tag
    assert confirmed == already + count


def limited(directory: Path, limit: int) -> Node:
    node = Node(directory)
    node.program = ["bash", "-c", f'ulimit -n {limit}; exec "$0" "$@"', command("mqd")]
    return node


def test_strangers_use_up_no_descriptor_of_the_node(tmp_path: Path) -> None:
    """Neither connections to AMQP nor those to the management listener, however many."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with limited(tmp_path, LIMIT) as node, ExitStack() as strangers:
        wait_until("the limit in force is told", lambda: "connections_max is " in node.log())
        client = Client(node.port)
        client.declare("q")
        client.declare("s", **STREAM)
        client.confirms()
        for number in range(2 * LIMIT):
            port = node.http if number % 2 else node.port
            with suppress(OSError):
                sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S, ("127.0.0.2", 0))
                strangers.enter_context(sock)
        # An administrator gets in, and sees the alarm.
        wait_until("the alarm is set", lambda: alarms(node) == [ALARM])
        assert f"alarms {ALARM}" in node.mqctl("status")
        # Publishers are not blocked, and the node opens its own files.
        publish(client, "q", 300, 0)
        publish(client, "s", 300, 300)
        wait_until("the stream is in its segment", lambda: any(node.data.glob("streams/*/*.segment")))
        assert node.running
        strangers.close()
        wait_until("the alarm is cleared", lambda: alarms(node) == [])
        assert Client(node.port).count("q") == 300
        log = node.log()
        for line in (
            "file descriptor limit alarm set",
            "file descriptor limit alarm cleared",
            "connection from 127.0.0.2 refused",
        ):
            assert line in log
        assert "Traceback" not in log
        client.close()


def _survives(node: Node, begins: Any, ends: Any) -> None:
    """Use a node while it can open nothing, or only now and then, and afterwards."""
    client, api = Client(node.port), Api(node)
    client.declare("q")
    client.declare("target")
    client.declare("s", **STREAM)
    client.confirms()
    publish(client, "q", 10, 0)
    assert api.ask("GET", "/api/overview")[0] == 200
    begins()
    shovel = {"src-uri": "amqp://", "src-queue": "q", "dest-uri": "amqp://", "dest-queue": "target"}
    assert (
        api.ask("PUT", "/api/parameters/shovel/%2F/move", {"value": shovel | {"reconnect-delay": 1}})[0]
        == 201
    )
    published = 10
    waiting: list[socket.socket] = []
    # Longer than all that the node does now and then: memory twice a second, descriptors, samples, flushes.
    until = time.monotonic() + 7
    while time.monotonic() < until:
        publish(client, "s", 100, published)
        published += 100
        api.ask("GET", "/api/nodes")
        if len(waiting) < 20:
            for port in (node.port, node.http):
                waiting.append(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
        time.sleep(0.2)
    ends()
    for sock in waiting:
        sock.close()
    assert node.running, node.log()[-3000:]
    assert Client(node.port).count("s") == published - 10
    read = api.ask("POST", "/api/queues/%2F/s/read", {"offset": "first", "count": 1000})
    assert read[0] == 200 and len(read[1]) == min(published - 10, 1000)
    wait_until("the shovel has moved all", lambda: Client(node.port).count("target") == 10)
    wait_until("there is no alarm", lambda: alarms(node) == [])
    log = node.log()
    assert "Traceback" not in log, log[-5000:]
    client.close()


def test_nothing_can_be_opened(tmp_path: Path) -> None:
    """The kernel's own refusal: the limit of the running process is set to what it has open."""
    with Node(tmp_path) as node:
        soft, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
        _survives(
            node,
            lambda: resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (8, hard)),
            lambda: resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (soft, hard)),
        )


@pytest.mark.parametrize("every", [1, 2, 3])
def test_calls_that_open_something_fail(tmp_path: Path, every: int) -> None:
    """At every place of the code, the first call, the second one, or the third one of each three."""
    file = tmp_path / "planted"
    node = Node(tmp_path)
    node.program = [sys.executable, "-m", "tests.reliability.short_of_descriptors", str(file), str(every)]
    with node:
        _survives(node, file.touch, file.unlink)
