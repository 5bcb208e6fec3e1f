"""From the protocol header to connection.open-ok (spec 2.2.4), as RabbitMQ does it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pamqp import commands

from amqp_server.config import VERSION
from amqp_server.connection import log
from amqp_server.connection.login import sasl
from amqp_server.errors import NotAllowed
from amqp_server.wire.frames import FRAME_BYTES_MIN

if TYPE_CHECKING:
    from amqp_server.connection.served import Served

#: Objects for longer texts of clients, and for larger sets of capabilities, are not shared between clients.
SHARED_LENGTH_MAX = 64
SHARED_CAPABILITIES_MAX = 32
#: RabbitMQ's capabilities that this broker has, and five of its own.
CAPABILITIES: dict[str, object] = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
    "publisher_deduplication": True,
    "stream_offsets": True,
    "stream_timestamps": True,
    "stream_batches": True,
    "confirm_levels": True,
}


def server_properties(session: Served) -> dict[str, object]:
    config = session.config
    return {
        "capabilities": dict(CAPABILITIES),
        "cluster_name": session.broker.runtime.parameters.cluster_name or f"mqd@{config.node}",
        "copyright": "The mqd authors",
        "information": "An AMQP 0-9-1 broker in Python",
        "platform": f"Python {platform.python_version()}",
        "product": config.announce_product,
        "version": config.announce_version,
        "mqd_version": VERSION,
    }


def start(session: Served) -> None:
    """Answer the protocol header."""
    mechanisms: tuple[str, ...] = sasl.MECHANISMS
    if session.client.certificate_name is not None:
        mechanisms += (sasl.EXTERNAL,)
    session.send(
        commands.Connection.Start(0, 9, server_properties(session), " ".join(mechanisms), "en_US")  # type: ignore[arg-type]
    )


def start_ok(session: Served, method: commands.Connection.StartOk, response: bytes) -> sasl.Credentials:
    """Return the client's credentials. Raises CommandInvalid, SyntaxError_."""
    properties = method.client_properties or {}
    session.client.properties = _shared(properties)
    capabilities = properties.get("capabilities")
    if isinstance(capabilities, dict):
        announced = tuple([(name, bool(value)) for name, value in capabilities.items()])
        session.client.capabilities = (
            _capabilities(announced) if len(announced) <= SHARED_CAPABILITIES_MAX else dict(announced)
        )
    session.client.mechanism = method.mechanism
    log.named(session)
    name = session.client.certificate_name
    if method.mechanism == sasl.EXTERNAL and name is not None:
        return sasl.Credentials(name, "")
    config = session.config
    token_bytes_max = config.oauth_token_bytes_max if config.oauth_resource_server_id else 0
    return sasl.parse_response(method.mechanism, response, token_bytes_max)


@lru_cache(maxsize=64)
def _capabilities(announced: tuple[tuple[str, bool], ...]) -> dict[str, bool]:
    """Return the announced capabilities as one shared object for all clients with the same ones. Do not
    change it.
    """
    return dict(announced)


def _shared(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with shared objects for names and short texts, which are the same for thousands of
    clients.
    """
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            value = _shared(value)
        elif isinstance(value, str) and len(value) <= SHARED_LENGTH_MAX:
            value = sys.intern(value)
        found[sys.intern(name)] = value
    return found


def tune(session: Served) -> None:
    config = session.config
    session.send(commands.Connection.Tune(config.channel_max, config.frame_max_bytes, config.heartbeat_s))


def tune_ok(session: Served, method: commands.Connection.TuneOk) -> None:
    """Take the agreed limits. Raises NotAllowed for limits above those offered."""
    config = session.config
    _check("frame_max", method.frame_max, FRAME_BYTES_MIN, config.frame_max_bytes)
    _check("channel_max", method.channel_max, 1, config.channel_max)
    session.tuned(
        method.frame_max or config.frame_max_bytes,
        method.channel_max or config.channel_max,
        method.heartbeat,
    )


def _check(field: str, value: int, least: int, most: int) -> None:
    if value and value < least:
        raise NotAllowed(f"negotiated {field} = {value} is lower than the minimum allowed value ({least})")
    if most and (not value or value > most):
        raise NotAllowed(f"negotiated {field} = {value} is higher than the maximum allowed value ({most})")


def open_vhost(session: Served, method: commands.Connection.Open) -> None:
    """Open a vhost. Raises NotAllowed if it does not exist or if the user may not open it."""
    broker = session.broker
    broker.vhost_records.check_open(method.virtual_host)
    client = session.client
    broker.runtime.limits.check_connection(client.username, client.identity, method.virtual_host)
    broker.access.permissions.check_open(session.client.access, method.virtual_host)
    session.vhost = broker.vhost(method.virtual_host)
    broker.sessions.opened(session)
    session.send(commands.Connection.OpenOk())
