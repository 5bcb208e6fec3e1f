"""What a node writes into messages when they arrive, as RabbitMQ's message interceptors do: when, and where.

The names of the headers and their values are RabbitMQ's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from amqp_server.errors import FrameError
from amqp_server.wire import frames, tables
from amqp_server.wire.content import Properties

#: Whether a stamp is written: never, where the publisher has set none, or always.
NEVER, MISSING, ALWAYS = WHEN = ("never", "missing", "always")
#: Headers: ms since 1970, and the node.
TIME: Final = b"timestamp_in_ms"
NODE: Final = b"x-routed-by"


@lru_cache(maxsize=16)
def stamps_of(timestamp: str, routing_node: str, node: str, depth: int) -> Stamps | None:
    """Return the stamps that a node writes, None if it writes none: one object for all connections."""
    if timestamp == routing_node == NEVER:
        return None
    return Stamps(timestamp, routing_node, node, depth)


class Stamps:
    """The stamps that a node writes."""

    def __init__(self, timestamp: str, routing_node: str, node: str, depth: int) -> None:
        """`timestamp` and `routing_node` are words of WHEN; headers are as deep as `depth` at most."""
        self._timestamp = timestamp
        self._routing_node = routing_node
        self._node = b"S" + len(node.encode()).to_bytes(4, "big") + node.encode()
        self._depth = depth

    def on(self, payload: bytes, wall_ms: int, frame_max: int) -> bytes:
        """Return a content header with the stamps. It stays as it is if its frame would be larger than
        `frame_max`, or if it is malformed, which is told when the message is complete.
        """
        try:
            properties = Properties.parse(payload, self._depth)
        except FrameError:
            return payload
        headers = properties.raw.get("headers", b"")
        wanted: dict[bytes, bytes | None] = {}
        if self._timestamp != NEVER:
            wanted[TIME] = b"l" + wall_ms.to_bytes(8, "big")
            if self._timestamp == ALWAYS or "timestamp" not in properties.raw:
                properties.raw["timestamp"] = (wall_ms // 1000).to_bytes(8, "big")
        if self._routing_node != NEVER:
            wanted[NODE] = self._node
        for name, when in ((TIME, self._timestamp), (NODE, self._routing_node)):
            if when == MISSING and headers and tables.has(headers, name):
                del wanted[name]
        if wanted:
            properties.raw["headers"] = tables.replaced(headers, wanted, checked=True)
        stamped = properties.encode(int.from_bytes(payload[4:12], "big"))
        return stamped if len(stamped) + frames.OVERHEAD <= frame_max else payload
