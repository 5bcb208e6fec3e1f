"""One node dies at each step of a large transaction: nothing of it is there afterwards, or all of it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pika import BasicProperties
from pika.exceptions import AMQPError

from conformance_tests.patience import open_connection
from tests.reliability.dying_mqd import PROGRAM, VARIABLE
from tests.reliability.node import Node, wait_until

SOURCE = "source"
TARGETS: dict[str, dict[str, Any]] = {"classic": {}, "quorum": {"x-queue-type": "quorum"}}
#: Messages of the transaction in each queue, which take turns.
COUNT, TAKEN = 1_000, 20
#: So large that it is committed in several turns.
BODY_BYTES = 2_000
DURABLE = BasicProperties(delivery_mode=2)


def url(node: Node) -> str:
    return f"amqp://guest:guest@127.0.0.1:{node.port}/%2F"


def committed(node: Node) -> bool:
    """Take and publish in one transaction; return whether commit-ok came."""
    with suppress(AMQPError), open_connection(url(node)) as connection:
        channel = connection.channel()
        channel.tx_select()
        for _ in range(TAKEN):
            tag = channel.basic_get(SOURCE)[0].delivery_tag
        channel.basic_ack(tag, multiple=True)
        for number in range(COUNT):
            for queue in TARGETS:
                channel.basic_publish("", queue, b"%d".ljust(BODY_BYTES) % number, DURABLE)
        channel.tx_commit()
        return True
    return False


def counts(node: Node) -> dict[str, int]:
    with open_connection(url(node)) as connection:
        channel = connection.channel()
        return {
            queue: channel.queue_declare(queue, passive=True).method.message_count
            for queue in (SOURCE, *TARGETS)
        }


#: Where it dies, and whether the transaction has happened then.
STEPS = {
    "handed over 1": False,
    "handed over 4": False,
    "handed over 8": False,
    "not stored 1": False,
    "stored 1": True,
}


@pytest.mark.parametrize("dies", STEPS)
def test_it_has_happened_or_not(tmp_path: Path, dies: str) -> None:
    node = Node(tmp_path)
    with node:
        with open_connection(url(node)) as connection:
            channel = connection.channel()
            for queue, arguments in {SOURCE: {}, **TARGETS}.items():
                channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.confirm_delivery()
            for _ in range(TAKEN):
                channel.basic_publish("", SOURCE, b"", DURABLE)
        assert node.stop() == 0
        usual, node.program = node.program, list(PROGRAM)
        node.environment = {VARIABLE: dies}
        node.start()
        assert not committed(node)
        wait_until("it is dead", lambda: not node.running)
        node.kill()
        node.program, node.environment = usual, {}
        node.start()
        whole = {SOURCE: 0, "classic": COUNT, "quorum": COUNT}
        assert counts(node) == (whole if STEPS[dies] else {SOURCE: TAKEN, "classic": 0, "quorum": 0})
