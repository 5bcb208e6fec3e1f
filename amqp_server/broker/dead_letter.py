"""Dead letters: what a queue discards goes, with its history in the headers, through the dead-letter exchange.

The headers and the rule for cycles are RabbitMQ's (https://www.rabbitmq.com/docs/dlx): each (queue, reason) has one
x-death entry with a count, the newest first; a message that comes to a queue a second time without having been
rejected in between is dropped.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pamqp import encode

from amqp_server.broker.queue import Queue
from amqp_server.wire import content, tables
from amqp_server.wire.frames import FRAME_BYTES_MIN, short_string
from quorum_queue.machine.effects import Reason
from quorum_queue.machine.run import Attributes, Run

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker


class Outcome:
    """An origin that notes whether every target took the message."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = True

    def confirmed(self, first: int, last: int) -> None:
        """A durable target confirms after its sync, which is the one that deletes the message here."""

    def refused(self, first: int, last: int) -> None:
        self.taken = False


class DeadLetterSender:
    """Sends dead letters on. See quorum_queue.ports.DeadLetters."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def dead_letter(self, queue: Queue, run: Run, reason: Reason) -> bool:
        """Send each message of the run; return whether all found a target that took them."""
        assert run.contents is not None
        taken = True
        for index, item in enumerate(run.contents):
            exchange, routing_key = parse_head(run.head_of(index))
            taken = self._send(queue, item, run.attributes, exchange, routing_key, reason) and taken
        return taken

    def _send(
        self, queue: Queue, item: bytes, attributes: Attributes, exchange: str, routing_key: str, reason: Reason
    ) -> bool:
        parsed = queue.parsed
        vhost = queue.vhost
        target = parsed.dead_letter_exchange
        if target is None or (target and vhost.router.get(target) is None):
            return False
        payload, body = content.split(item)
        properties = content.Properties.parse(payload)
        headers = properties.headers or {}
        deaths = _deaths(headers)
        copies = carbon_copies(headers, "CC")
        keys = [routing_key, *copies] if parsed.dead_letter_routing_key is None else [parsed.dead_letter_routing_key]
        queues = self._broker.route_all(vhost, target, keys, properties)
        queues = [name for name in queues if not _is_cycle(name, deaths, reason)]
        changed = self._headers(queue, properties, deaths, exchange, [routing_key, *copies], reason)
        if parsed.dead_letter_routing_key is not None:
            changed[b"CC"] = None
        properties.raw["headers"] = tables.replaced(properties.raw.get("headers", b""), changed)
        properties.raw.pop("expiration", None)
        frame_max = self._broker.config.frame_max_bytes
        framed = content.build(properties.encode(len(body)), body, 1, frame_max)
        size = max(len(body), 0) + 8
        largest = FRAME_BYTES_MIN if size <= FRAME_BYTES_MIN and len(payload) < 2048 else frame_max
        sent = Attributes(attributes.persistent, attributes.priority, None, 1, largest)
        head = short_string(target) + short_string(keys[0])
        return self._enqueue(queue, [vhost.queues[name] for name in queues], framed, head, sent)

    def _enqueue(self, queue: Queue, targets: list[Queue], framed: bytes, head: bytes, sent: Attributes) -> bool:
        """Hand the message to its targets. Where one is told to hold on to it, the answer counts."""
        certain = queue.host.machine.settings.dead_letter_at_least_once
        outcome = Outcome()
        for target in targets:
            command = ("enqueue", Run(range(1), [framed], head, sent), outcome, 1)
            if certain and target is not queue:
                target.host.submit(command)
            else:
                target.host.pending.append(command)
                self._broker.dirty[target.host] = None
        return bool(targets) and outcome.taken

    def _headers(
        self,
        queue: Queue,
        properties: content.Properties,
        deaths: list[dict[str, Any]],
        exchange: str,
        routing_keys: list[str],
        reason: Reason,
    ) -> dict[bytes, bytes | None]:
        """Return the header fields that change, encoded."""
        changed: dict[bytes, bytes | None] = {}
        entry = next((d for d in deaths if d.get("queue") == queue.name and d.get("reason") == reason), None)
        if entry is None:
            now = datetime.fromtimestamp(self._broker.clock() // 1000, tz=UTC)
            entry = {"count": 1, "reason": reason, "queue": queue.name, "time": now, "exchange": exchange}
            entry["routing-keys"] = routing_keys
            expiration = properties.text("expiration")
            if expiration is not None:
                entry["original-expiration"] = expiration
            deaths = [entry, *deaths]
        else:
            count = entry.get("count")
            entry = {**entry, "count": (count if isinstance(count, int) else 0) + 1}
            rest = [d for d in deaths if not (d.get("queue") == queue.name and d.get("reason") == reason)]
            deaths = [entry, *rest]
        encoded = b"".join(b"F" + _encode_death(death) for death in deaths)
        changed[b"x-death"] = b"A" + len(encoded).to_bytes(4, "big") + encoded
        headers = properties.headers or {}
        if "x-first-death-reason" not in headers:
            changed[b"x-first-death-reason"] = encode.encode_table_value(reason)
            changed[b"x-first-death-queue"] = encode.encode_table_value(queue.name)
            changed[b"x-first-death-exchange"] = encode.encode_table_value(exchange)
        return changed


def _encode_death(death: dict[str, Any]) -> bytes:
    """Encode an entry; the count is a long, as RabbitMQ's, whatever its value."""
    parts: list[bytes] = []
    for name, item in death.items():
        key = short_string(name)
        if name == "count":
            parts.append(key + b"l" + int(item).to_bytes(8, "big", signed=True))
        else:
            parts.append(key + encode.encode_table_value(item))
    body = b"".join(parts)
    return len(body).to_bytes(4, "big") + body


def _deaths(headers: dict[str, object]) -> list[dict[str, Any]]:
    deaths = headers.get("x-death")
    return [death for death in deaths if isinstance(death, dict)] if isinstance(deaths, list) else []


def _is_cycle(queue: str, deaths: list[dict[str, Any]], reason: Reason) -> bool:
    """Was the message in this queue before, and not rejected since?"""
    if reason == "rejected":
        return False
    for death in deaths:
        if death.get("reason") == "rejected":
            return False
        if death.get("queue") == queue:
            return True
    return False


def carbon_copies(headers: dict[str, object] | None, name: str) -> list[str]:
    """Return the routing keys in a CC or BCC header."""
    keys = (headers or {}).get(name)
    return [str(key) for key in keys] if isinstance(keys, list) else []


def parse_head(head: bytes) -> tuple[str, str]:
    """Return exchange and routing key of a run's head."""
    end = 1 + head[0]
    return head[1:end].decode(errors="surrogateescape"), head[end + 1 :].decode(errors="surrogateescape")
