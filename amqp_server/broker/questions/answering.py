"""Answers to what clients ask by a message: JSON, as a direct reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from amqp_server.errors import AMQPError
from amqp_server.wire import content
from amqp_server.wire.frames import FRAME_BYTES_MIN, short_string
from quorum_queue.machine.run import Attributes, Run

if TYPE_CHECKING:
    from amqp_server.broker.reply import Replies
    from amqp_server.broker.topology.parts import BrokerParts

#: Largest question, bytes.
QUESTION_BYTES_MAX = 16_384

Answer = dict[str, Any]


def send_answer(
    parts: BrokerParts, replies: Replies, reply_to: str, correlation_id: bytes | None, answer: Answer
) -> None:
    """Send an answer to who waits for it at `reply_to`; drop it if nobody does."""
    target = replies.get(reply_to) or parts.hosts.reply(reply_to)
    if target is None:
        # Direct replies only: whoever asks may not be allowed to publish to other queues.
        return
    raw = {"content_type": short_string("application/json")}
    if correlation_id is not None:
        raw["correlation_id"] = correlation_id
    body = msgspec.json.encode(answer)
    header, frame_max = content.Properties(raw).encode(len(body)), parts.config.frame_max_bytes
    framed = content.build(header, body, 1, frame_max)
    small = len(body) + 8 <= FRAME_BYTES_MIN
    attributes = Attributes(False, 0, None, 1, FRAME_BYTES_MIN if small else frame_max)
    head = short_string("") + short_string(reply_to)
    target.host.submit(("enqueue", Run(range(1), [framed], head, attributes, None, len(framed)), None, 1))


def refusal(error: AMQPError) -> Answer:
    return {"error": error.code, "reason": error.reply_text()}
