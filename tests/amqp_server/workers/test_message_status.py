"""What became of messages, asked at each worker of a node, over HTTP and by mqctl: all answer the same."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.status_client import Asker
from tests.amqp_server.workers.test_node import (
    WORKERS,
    channels,
    get,
    homes,
    one_at_each,
    pids,
    until,
    workers,
)
from tests.reliability.node import Node

TIMES_MS = 50
#: A queue by its name: its arguments.
QUEUES: dict[str, dict[str, Any]] = {
    "classic": {"x-queue-type": "classic", "x-max-priority": 9, "x-message-status": True},
    "quorum": {"x-queue-type": "quorum", "x-message-status": True},
    # Its record is turned on later, by a policy.
    "later": {"x-queue-type": "classic", "x-max-priority": 9},
    "later quorum": {"x-queue-type": "quorum"},
}


def publish(channel: BlockingChannel, queue: str, message_id: str, priority: int) -> None:
    properties = BasicProperties(delivery_mode=2, message_id=message_id, priority=priority)
    channel.basic_publish("", queue, message_id.encode(), properties, mandatory=True)


def told(answer: dict[str, Any]) -> Any:
    """What all answers must agree about."""
    (queue,) = answer["queues"]
    # Clocks are read for each answer: the same time may be a millisecond earlier or later.
    messages = [
        (
            each["state"],
            each["reason"],
            each["deliveries"],
            *(pytest.approx(each[name], abs=TIMES_MS, rel=0) for name in ("queued_ms", "changed_ms")),
        )
        for each in queue["messages"]
    ]
    return queue["state"], queue["reason"], messages


def state(node: Node, opened: dict[str, BlockingChannel], queue: str, message_id: str) -> tuple[str, str]:
    """Ask in all ways, and return what all of them say."""
    question = f"messages/%2F/{message_id}?queue={queue.replace(' ', '%20')}"
    found = told(get(node, question))
    for name, channel in opened.items():
        assert told(Asker(channel.connection.channel()).ask(message_id, queue)) == found, name
    if found[0] == "queued":
        printed = node.mqctl("--formatter", "json", "message_status", message_id, "--queue", queue)
        assert told(json.loads(printed)) == found
    return found[0], found[1]


def has(node: Node, queue: str, expected: dict[str, tuple[str, str]]) -> None:
    with one_at_each(node) as opened:
        found = {message_id: state(node, opened, queue, message_id) for message_id in expected}
    assert found == expected


def work(node: Node, publisher: BlockingChannel, queue: str) -> dict[str, tuple[str, str]]:
    """Three messages by falling priorities, though they come by rising ones; the first is acked."""
    for number in range(3):
        publish(publisher, queue, f"m{number}", number)
    with one_at_each(node) as opened:
        *_, consumer = opened.values()
        consumer.basic_qos(prefetch_count=1)
        got, properties, _ = next(consumer.consume(queue, inactivity_timeout=20))
        assert properties.message_id == "m2"
        consumer.basic_ack(got.delivery_tag)
        got, properties, _ = next(consumer.consume(queue, inactivity_timeout=20))
        assert properties.message_id == "m1"
        consumer.basic_reject(got.delivery_tag, requeue=False)
        # Its answer says that the broker has done this.
        consumer.basic_qos(prefetch_count=1)
        consumer.cancel()
    return {"m2": ("acknowledged", ""), "m1": ("dropped", "rejected"), "m0": ("queued", "")}


def test_each_worker_gives_the_same_answers(tmp_path: Path) -> None:
    with workers(tmp_path, WORKERS) as node:
        with one_at_each(node) as opened:
            for channel, (name, arguments) in zip([*opened.values()] * 2, QUEUES.items(), strict=False):
                channel.queue_declare(name, durable=True, arguments=arguments)
            *_, channel = opened.values()
            expected = {name: work(node, channel, name) for name in ("classic", "quorum")}
            for name in ("later", "later quorum"):
                publish(channel, name, "before", 1)
        for name, states in expected.items():
            has(node, name, states)
        # A policy turns the record on: it knows nothing of what is there, and says so.
        node.mqctl("set_policy", "on", "^later", '{"message-status": true}')
        for name in ("later", "later quorum"):
            with channels(node, 1) as (channel,):
                publish(channel, name, "after", 5)
                has(node, name, {"before": ("unknown", ""), "after": ("queued", "")})
                # Both were in the queue, and both leave it: what is not known stays unknown.
                assert channel.queue_purge(name).method.message_count == 2
                has(node, name, {"before": ("unknown", ""), "after": ("dropped", "purged")})
                since = get(node, f"messages/%2F/before?queue={name.replace(' ', '%20')}")
                assert since["queues"][0]["recorded_since_ms"] > 0
        with channels(node, 1) as (channel,):
            for name in expected:
                assert channel.queue_purge(name).method.message_count == 1
                expected[name]["m0"] = "dropped", "purged"
        # The workers with the queues die, and begin again.
        for worker in {homes(node)[name] for name in expected}:
            os.kill(pids(node)[worker], signal.SIGKILL)
        until("all workers answer", lambda: len(pids(node)) == WORKERS and _answers(node, expected))
        for name, states in expected.items():
            has(node, name, states)


def _answers(node: Node, queues: dict[str, Any]) -> bool:
    return all(get(node, f"messages/%2F/m0?queue={name}")["queues"] for name in queues)
