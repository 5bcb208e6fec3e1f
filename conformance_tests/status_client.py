"""Asks mqd what became of a message, with pika."""

from __future__ import annotations

import json
from typing import Any

from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.expect import eventually

REPLIES = "amq.rabbitmq.reply-to"
QUESTIONS = "amq.mqd.message-status"


class Asker:
    """One channel that asks, and waits for each answer."""

    def __init__(self, channel: BlockingChannel) -> None:
        self._channel = channel
        self._answers: list[tuple[str, bytes]] = []
        channel.basic_consume(REPLIES, self._answered, auto_ack=True)
        self._asked = 0

    def _answered(self, ch: Any, method: Any, properties: BasicProperties, body: bytes) -> None:
        self._answers.append((str(properties.correlation_id), body))

    def raw(self, question: bytes) -> dict[str, Any]:
        """Return the answer to these bytes."""
        self._asked += 1
        mark = str(self._asked)
        asked = BasicProperties(reply_to=REPLIES, correlation_id=mark)
        self._channel.basic_publish("", QUESTIONS, question, asked)

        def comes() -> bool:
            self._channel.connection.process_data_events(0.02)
            return bool(self._answers) and self._answers[-1][0] == mark

        eventually(comes)
        answer: dict[str, Any] = json.loads(self._answers[-1][1])
        return answer

    def ask(self, message_id: str, queue: str = "", **more: Any) -> dict[str, Any]:
        return self.raw(json.dumps({"message_id": message_id, "queue": queue, **more}).encode())

    def state(self, message_id: str, queue: str) -> tuple[str, str]:
        """Return the state of the newest message of this id in a queue, and its reason."""
        answer = self.ask(message_id, queue)
        assert "error" not in answer, answer
        assert answer["queues"], answer
        (told,) = answer["queues"]
        return told["state"], told["reason"]

    def becomes(self, message_id: str, queue: str, state: str, reason: str = "") -> None:
        eventually(lambda: self.state(message_id, queue) == (state, reason))
