"""Destination and properties of a message for the shovel's publish. Properties that need no change keep their
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pamqp import commands

from amqp_server.errors import FrameError
from amqp_server.shovels.definition import Definition
from amqp_server.shovels.errors import PeerError
from amqp_server.shovels.session import Delivery
from amqp_server.shovels.transfer import Address
from amqp_server.wire import methods, tables
from amqp_server.wire.content import Properties

SHOVELLED, SHOVELLED_AT = b"x-shovelled", b"x-shovelled-timestamp"


def addressing(definition: Definition, told: Mapping[str, str], now_s: Callable[[], int]) -> Address:
    """`told` are the fields of the forward header for this shovel."""
    queue, exchange, key = (
        definition.destination_queue,
        definition.destination_exchange,
        definition.destination_exchange_key,
    )
    if queue is not None:
        # The messages are mandatory: if the queue is deleted meanwhile, they are returned instead of
        # confirmed and lost.
        exchange, key = "", queue
    fixed = None
    if exchange is not None and key is not None:
        fixed = _publish(exchange, key, mandatory=queue is not None)
    changes = bool(definition.properties or definition.forward_headers or definition.timestamp_header)
    entry = tables.encode_value(dict(told))

    def address(delivery: Delivery) -> tuple[bytes, bytes]:
        method = fixed
        if method is None:
            method = _publish(
                delivery.exchange if exchange is None else exchange,
                delivery.routing_key if key is None else key,
                mandatory=False,
            )
        if not changes:
            return method, delivery.header
        try:
            return method, _changed(delivery.header)
        except (FrameError, tables.TableError):
            raise PeerError("the source has sent a message with malformed properties") from None

    def _changed(header: bytes) -> bytes:
        properties = Properties.parse(header)
        properties.raw.update(definition.properties)
        table = properties.raw.get("headers", b"")
        if definition.forward_headers:
            table = tables.replaced(table, {SHOVELLED: _prepended(table, entry)})
        if definition.timestamp_header:
            table = tables.replaced(table, {SHOVELLED_AT: b"l" + now_s().to_bytes(8, "big")})
        if table:
            properties.raw["headers"] = table
        return properties.encode(int.from_bytes(header[4:12], "big"))

    return address


def _publish(exchange: str | bytes, key: str | bytes, *, mandatory: bool) -> bytes:
    return methods.encode(
        methods.make(commands.Basic.Publish, exchange=exchange, routing_key=key, mandatory=mandatory)
    )


def _prepended(table: bytes, entry: bytes) -> bytes:
    """Return the array of shovels that a message has passed, with one more at the beginning."""
    before = b""
    if table:
        end = tables.check(table, 0, len(table))
        for name, start, after in tables.entries(table, 4, end):
            if name == SHOVELLED and table[start : start + 1] == b"A":
                before = table[start + 5 : after]
    return b"A" + (len(entry) + len(before)).to_bytes(4, "big") + entry + before
