"""Headers of events about exchanges, bindings, queues and parameters, with RabbitMQ's names."""

from __future__ import annotations

from collections.abc import Mapping

from amqp_server.broker.declared.parameters import (
    OPERATOR_POLICY,
    POLICY,
    USER_LIMITS,
    VHOST_LIMITS,
    ParameterRecord,
)
from amqp_server.broker.declared.records import ExchangeRecord, QueueRecord
from amqp_server.wire import tables
from exchanges.binding import Binding


def pid(node: str, connection: int, channel: int = 0) -> str:
    """Return a stand-in for the pid of RabbitMQ's process, unique for each connection and channel."""
    return f"<{node}.{connection}.{channel}>"


def of_exchange(record: ExchangeRecord) -> dict[str, object]:
    return {
        "name": record.name,
        "type": record.type,
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "internal": record.internal,
        "arguments": tables.decode(record.arguments),
    }


def of_binding(binding: Binding) -> dict[str, object]:
    return {
        "source_name": binding.source,
        "source_kind": "exchange",
        "destination_name": binding.destination,
        "destination_kind": binding.kind,
        "routing_key": binding.routing_key,
        "arguments": dict(binding.arguments),
    }


def of_queue(
    record: QueueRecord, type: str, arguments: Mapping[str, object], owner_pid: str
) -> dict[str, object]:
    """`type` is the queue's type, and `arguments` are those of the record."""
    return {
        "name": record.name,
        "type": f"rabbit_{type}_queue",
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "exclusive": record.exclusive,
        "owner_pid": owner_pid,
        "arguments": dict(arguments),
    }


def of_parameter(record: ParameterRecord, what: str) -> list[tuple[str, dict[str, object]]]:
    """Return the keys and headers of the events for a parameter that was `set` or `cleared`. Some parameters
    cause two events, as in RabbitMQ.
    """
    value = record.decoded if what == "set" else None
    parts: dict[str, object] = value if isinstance(value, dict) else {}
    place: dict[str, object] = {"vhost": record.vhost} if record.vhost else {}
    if record.component == POLICY:
        return [(f"policy.{what}", {**parts, "name": record.name, **place})]
    if record.component == USER_LIMITS:
        return [(f"user.limits.{what}", {**parts, "username": record.name, "name": "limits"})]
    told: dict[str, object] = {"name": record.name, "component": record.component or "global", **place}
    if what == "set":
        told["value"] = value
    also: list[tuple[str, dict[str, object]]] = []
    if record.component == VHOST_LIMITS:
        also = [(f"vhost.limits.{what}", {**parts, "name": record.name, **place})]
    elif record.component == OPERATOR_POLICY:
        key = "policy.set" if what == "set" else "operator.policy.cleared"
        also = [(key, {**parts, "name": record.name, **place})]
    return [(f"parameter.{what}", told), *also]
