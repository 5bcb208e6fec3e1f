"""Clients, queues and megabytes of messages that come and go. `make soak`
does this, and more, for an hour.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from pamqp import commands, frame

from tests.reliability.client import CHANNEL, Address, Client, Delivery, settle
from tests.reliability.node import Node, memory

MIB = 1 << 20
BODY = b"x" * 100_000
#: Messages that a queue has when it is deleted.
MESSAGES = 40
#: Memory that the collector and the heap may keep, however long the run was.
SLACK_BYTES = 24 * MIB
SLACK_DESCRIPTORS = 8
#: The first tenth of the rounds is not judged: objects that are made once and kept are made in it.
WARM_SHARE = 0.1

KINDS: tuple[tuple[bool, bool, bool, dict[str, Any]], ...] = (
    # durable, exclusive, auto_delete, arguments
    (False, False, False, {}),
    (True, False, False, {}),
    (True, False, False, {"x-queue-type": "quorum"}),
    (False, True, False, {"x-message-ttl": 3_600_000, "x-expires": 3_600_000}),
    (False, False, True, {"x-max-priority": 3}),
    (True, False, True, {}),
)


class Used(NamedTuple):
    memory: int
    descriptors: int
    disk: int

    def __str__(self) -> str:
        return f"{self.memory >> 20} MiB of memory, {self.descriptors} descriptors, {self.disk >> 20} MiB of disk"


def used(node: Node) -> Used:
    anonymous = memory(Path(f"/proc/{node.pid}/status"))["RssAnon"]
    return Used(anonymous, len(os.listdir(f"/proc/{node.pid}/fd")), node.disk_bytes())


def one_round(node: Node, number: int) -> None:
    """One client with a queue of a few MB: it holds some of the messages, and gives them back or goes in
    different ways.
    """
    durable, exclusive, auto_delete, arguments = KINDS[number % len(KINDS)]
    name = f"churn-{number}"
    client = Client(node.port)
    client.call(
        commands.Queue.Declare(
            queue=name, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments
        ),
        commands.Queue.DeclareOk,
    )
    client.call(
        commands.Queue.Bind(queue=name, exchange="amq.headers", arguments={"number": number}),
        commands.Queue.BindOk,
    )
    client.confirms()
    to_queue = Address("", name, persistent=durable)
    # Routes that no client uses again, and headers.
    to_headers = Address("amq.headers", f"key-{number}", headers={"number": number, "text": "x" * 2_000})
    client.send(b"".join(to_queue.message(BODY) for _ in range(MESSAGES)) + to_headers.message(b"x"))
    client.sync(5)
    client.call(commands.Basic.Consume(queue=name, consumer_tag="c"), commands.Basic.ConsumeOk)
    last = _deliveries(client, 5)[-1].tag
    client.send(settle(120, last - 2, 3) + settle(80, last, 0))
    client.sync(5)
    if number % 4 == 1:
        client.send(settle(80, 1 << 40, 0))
    elif number % 4 == 2:
        client.send(frame.marshal(commands.Connection.Close(200, "", 0, 0), 0))
    elif number % 4 == 3:
        # The client goes in the middle of a message.
        client.send(to_queue.message(BODY)[:50_000])
    client.sock.close()
    if not exclusive and not auto_delete:
        other = Client(node.port)
        other.method(commands.Queue.Delete(queue=name), CHANNEL)
        other.sync(0)
        other.close()


def _deliveries(client: Client, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count:
        found += [event for event in client.receive() if isinstance(event, Delivery)]
    return found


def churn(node: Node, rounds: int) -> None:
    """Raises AssertionError unless the resources in use at the end are those after a tenth of the rounds."""
    warm = max(1, int(rounds * WARM_SHARE))
    for number in range(warm):
        one_round(node, number)
    early = used(node)
    for number in range(warm, rounds):
        one_round(node, number)
    late = used(node)
    assert late.memory < early.memory + SLACK_BYTES, f"{early}, then {late}"
    assert late.descriptors < early.descriptors + SLACK_DESCRIPTORS, f"{early}, then {late}"
    # The store keeps the size that it has grown to, and uses the room again.
    assert late.disk < 1.5 * early.disk + 16 * MIB, f"{early}, then {late}"
