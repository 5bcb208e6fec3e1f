"""A node of the present version starts with data that an earlier release has stored, and that would be
refused now.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pamqp import commands

from tests.cluster import releases
from tests.cluster.nodes import wait_for

from .client import Address, Client
from .node import Node

#: Its message expires at once.
MORTAL = Address("", "long", expiration="1")


def test_a_dead_letter_routing_key_that_is_too_long(tmp_path: Path) -> None:
    """That release accepted such a queue, and ended when a message of it expired."""
    node = Node(tmp_path)
    ours, node.program = node.program, releases.program(releases.WHEELS[0])
    arguments: dict[str, Any] = {
        "x-dead-letter-exchange": "amq.fanout",
        "x-dead-letter-routing-key": "k" * 300,
    }
    try:
        node.start()
        client = Client(node.port)
        client.declare("good")
        client.call(commands.Queue.Bind(queue="good", exchange="amq.fanout"), commands.Queue.BindOk)
        client.declare("long", **arguments)
        client.send(MORTAL.message(b"one"))
        wait_for("the release ends", lambda: not node.running)
        client.close()
        node.kill()
        node.program = ours
        for times in (1, 2):
            node.start()
            serves(node, times)
            assert node.stop() == 0
    finally:
        node.kill()


def serves(node: Node, times: int) -> None:
    """Messages expire, and others are kept: one for each start so far."""
    client = Client(node.port)
    client.send(MORTAL.message(b"two") + MORTAL.message(b"three"))
    wait_for("the messages are dead", lambda: client.count("long") == 0)
    client.send(Address("", "good").message(b"good"))
    assert client.count("good") == times
    client.close()
