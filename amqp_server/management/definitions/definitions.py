"""Definitions: everything that was declared and set, in RabbitMQ's format, to move it to another broker."""

from __future__ import annotations

import email.parser
import email.policy
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from amqp_server.broker.access.password import to_rabbitmq
from amqp_server.broker.access.users import User
from amqp_server.broker.declared.parameters import GLOBAL, POLICY, ParameterRecord
from amqp_server.broker.declared.queue_types import CLASSIC, QUEUE_TYPES, QueueType
from amqp_server.broker.declared.vhosts import VhostRecord
from amqp_server.broker.topology.super_streams import PARTITIONS, partitions_of
from amqp_server.config import VERSION
from amqp_server.management.definitions.definitions_file import decoded
from amqp_server.management.definitions.for_rabbitmq import ForRabbitMQ
from amqp_server.management.definitions.importing import Import
from amqp_server.management.request.answer import NO_CONTENT, Answer, encode, plain
from amqp_server.management.request.call import Call
from amqp_server.management.request.identity import cluster_name
from amqp_server.management.resources import parameters, policies
from amqp_server.management.resources.bindings import BindingView, bindings_of
from amqp_server.management.resources.exchanges import Seen, exchanges_of
from amqp_server.management.resources.parameters import vhost_to_set
from amqp_server.management.resources.queues import queues_of
from amqp_server.management.resources.vhosts import metadata_of

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.topology.queue import Queue

T = TypeVar("T")
Row = dict[str, Any]


async def definitions(call: Call) -> Answer:
    """Definitions of the whole broker or of the path's vhost. Definitions of a vhost have no users and
    similar sections, and their objects do not name the vhost.

    `for-rabbitmq`: RabbitMQ imports them whole; the list `left_out` has what it could not read.
    """
    config, broker = call.parts.config, call.broker
    access, records = broker.access, broker.runtime.parameters
    rabbitmq = ForRabbitMQ() if call.flag("for-rabbitmq") else None
    own = [call.vhost()] if "vhost" in call.path else [vhost.name for vhost in broker.vhost_records]
    told: Row = {
        "rabbit_version": config.announce_version,
        "rabbitmq_version": config.announce_version,
        "product_name": config.announce_product,
        "product_version": VERSION,
    }
    if "vhost" in call.path:
        record = broker.vhost_records.require(own[0])
        told |= {
            "rabbitmq_definition_format": "single_virtual_host",
            "original_vhost_name": record.name,
            "description": record.description,
            "metadata": metadata_of(record),
        }
    else:
        told |= {
            "rabbitmq_definition_format": "cluster",
            "original_cluster_name": cluster_name(call.parts),
            "users": await _rows(
                call, access.users, _only(rabbitmq, ForRabbitMQ.user, lambda user: _user(call, user))
            ),
            "vhosts": await _rows(call, broker.vhost_records, _vhost),
            "permissions": await _rows(
                call, access.permissions.all(), _only(rabbitmq, ForRabbitMQ.of_user, msgspec.structs.asdict)
            ),
            "topic_permissions": await _rows(
                call,
                access.permissions.topics(),
                _only(rabbitmq, ForRabbitMQ.of_user, msgspec.structs.asdict),
            ),
            "global_parameters": await _rows(call, records.of(GLOBAL, GLOBAL), parameters.shown_global),
        }
    told |= {
        "parameters": await _rows(call, _parameters(call, own), parameters.shown),
        "policies": await _rows(
            call,
            (each for vhost in own for each in records.of(vhost, POLICY)),
            _only(rabbitmq, ForRabbitMQ.policy, policies.shown),
        ),
        "queues": [],
        "exchanges": [],
        "bindings": [],
    }
    # Objects of the path's vhost do not name it.
    short = "vhost" in call.path
    for vhost in own:
        default = QUEUE_TYPES.get(broker.vhost(vhost).default_queue_type, CLASSIC)
        names: set[str] = set()
        told["queues"] += await _rows(
            call,
            queues_of(broker, [vhost]),
            _only(rabbitmq, ForRabbitMQ.queue, partial(_queue, default, names)),
            short=short,
        )
        told["exchanges"] += await _rows(
            call,
            exchanges_of(broker, [vhost]),
            _only(rabbitmq, ForRabbitMQ.exchange, partial(_exchange, broker)),
            short=short,
        )
        bindings = (
            binding
            for binding in bindings_of(broker, vhost)
            if binding.source and (binding.destination_type != "queue" or binding.destination in names)
        )
        told["bindings"] += await _rows(
            call, bindings, _only(rabbitmq, ForRabbitMQ.binding, _binding), short=short
        )
    if rabbitmq is not None:
        told["left_out"] = rabbitmq.left_out
    return Answer(200, told, tagged=True)


def _only(
    rabbitmq: ForRabbitMQ | None,
    check: Callable[[ForRabbitMQ, Row], Row | None],
    shown: Callable[[T], Row | None],
) -> Callable[[T], Row | None]:
    """Return `shown`, for RabbitMQ with this check of each row."""
    if rabbitmq is None:
        return shown

    def checked(item: T) -> Row | None:
        row = shown(item)
        return None if row is None else check(rabbitmq, row)

    return checked


async def _rows(
    call: Call, items: Iterable[T], shown: Callable[[T], Row | None], *, short: bool = False
) -> list[msgspec.Raw]:
    """Return the rows, each encoded in its own step: encoding all at once would block the loop."""
    rows: list[msgspec.Raw] = []
    for item in items:
        await call.slices.rest()
        row = shown(item)
        if row is not None:
            if short:
                del row["vhost"]
            rows.append(msgspec.Raw(encode(row)))
    return rows


def _parameters(call: Call, vhosts: list[str]) -> list[ParameterRecord]:
    return [
        record
        for record in call.broker.runtime.parameters
        if record.vhost in vhosts and record.component != POLICY
    ]


def _user(call: Call, user: User) -> Row:
    algorithm, encoded = to_rabbitmq(user.password_hash)
    return {
        "name": user.name,
        "password_hash": encoded,
        "hashing_algorithm": algorithm,
        "tags": list(user.tags),
        "limits": call.broker.runtime.limits.of_user(user.name),
    }


def _vhost(vhost: VhostRecord) -> Row:
    metadata = metadata_of(vhost)
    return {"name": vhost.name, **metadata, "metadata": metadata}


def _queue(default: QueueType, names: set[str], queue: Queue) -> Row | None:
    """Return the row of a queue, with its type where another broker could assume a different one. Add its
    name to `names`.
    """
    if queue.exclusive:
        return None
    names.add(queue.name)
    arguments = plain(dict(queue.arguments))
    assumed = default if queue.durable and not queue.auto_delete else CLASSIC
    if "x-queue-type" not in arguments and not (queue.type is CLASSIC and assumed is CLASSIC):
        arguments = {**arguments, "x-queue-type": queue.type.name}
    row: Row = {
        "name": queue.name,
        "vhost": queue.vhost.name,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": arguments,
    }
    if queue.record.protected_from_deletion:
        row["protected_from_deletion"] = True
    return row


def _exchange(broker: Broker, seen: Seen) -> Row | None:
    vhost, exchange = seen
    if not exchange.name or exchange.name.startswith("amq."):
        return None
    arguments, partitions = plain(dict(exchange.arguments)), partitions_of(broker.vhost(vhost), exchange)
    if PARTITIONS in arguments and partitions:
        # A super stream may have got more partitions since it was declared.
        arguments = {**arguments, PARTITIONS: len(partitions)}
    return {
        "name": exchange.name,
        "vhost": vhost,
        "type": exchange.type,
        "durable": exchange.durable or exchange.predeclared,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": arguments,
    }


def _binding(binding: BindingView) -> Row:
    return {
        "source": binding.source,
        "vhost": binding.vhost,
        "destination": binding.destination,
        "destination_type": binding.destination_type,
        "routing_key": binding.routing_key,
        "arguments": plain(binding.arguments),
    }


# -- the way in ---------------------------------------------------------------------------------


async def put_definitions(call: Call) -> Answer:
    """204 if everything was imported; else 200, with the objects that have no counterpart here."""
    vhost = vhost_to_set(call) if "vhost" in call.path else None
    importing, config = Import(call.parts, call.slices.rest), call.parts.config
    told = await decoded(
        _file(call.body), call.slices.rest, config.http_definitions_max, config.http_definition_bytes_max
    )
    await importing.run(told, vhost)
    if not importing.skipped:
        return NO_CONTENT
    return Answer(200, {"skipped": importing.skipped})


def _file(body: bytes) -> bytes:
    """Return the definitions: a form of a page has them in its part `file`."""
    if not body.startswith(b"--"):
        return body
    boundary = body.partition(b"\r\n")[0][2:]
    head = b'Content-Type: multipart/form-data; boundary="' + boundary + b'"\r\n\r\n'
    form = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    for part in form.walk():
        if part.get_param("name", header="content-disposition") == "file":
            content = part.get_payload(decode=True)
            return content if isinstance(content, bytes) else b""
    return b""
