"""Publishes out of raw bytes: the first hot loop.

Clients send the same few `basic.publish` frames again and again. The memo maps the exact bytes of such a frame, its
channel number included, to a `Route` that was decoded, checked and routed once. `take` then walks the buffer by offset:
while method frame and content header are those of the message before, a message costs three comparisons and a slice.

Whatever does not look exactly as expected is left where it stands and named SLOW: the slow path decodes it with pamqp
and finds the right error for it. So this file refuses nothing and answers nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from typing import Any

from amqp_server.wire import tables
from quorum_queue.machine.run import Attributes

_HEADER = struct.Struct(">BHIHHQH")
_BODY = struct.Struct(">BHI")
#: Frames up to this size pass to every consumer uncut (spec 4.2.3: frame-min-size).
SMALL_FRAME = 4096

# Property flags (spec, class basic).
CONTENT_TYPE, CONTENT_ENCODING, HEADERS, DELIVERY_MODE = 0x8000, 0x4000, 0x2000, 0x1000
PRIORITY, CORRELATION_ID, REPLY_TO, EXPIRATION = 0x0800, 0x0400, 0x0200, 0x0100
MESSAGE_ID, TIMESTAMP, TYPE, USER_ID, APP_ID, CLUSTER_ID = 0x0080, 0x0040, 0x0020, 0x0010, 0x0008, 0x0004
UNKNOWN_FLAGS = 0x0003
#: Properties behind `priority` that are short strings and mean nothing to the broker.
_PLAIN_TAIL = CORRELATION_ID | MESSAGE_ID | TIMESTAMP | TYPE | APP_ID | CLUSTER_ID


class Outcome(Enum):
    """Why `take` stopped."""

    #: The next frame is not this route's publish.
    OTHER = 0
    #: A message is not complete yet.
    MORE = 1
    #: A message needs the slow path.
    SLOW = 2


class Route:
    """Where the messages of one publish frame go, as of one generation of the topology."""

    __slots__ = ("channel", "exchange", "head", "hosts", "key", "mandatory", "publisher", "resolve", "routing_key")

    def __init__(
        self,
        *,
        key: bytes,
        channel: int,
        publisher: Any,
        exchange: str,
        routing_key: str,
        head: bytes,
        mandatory: bool,
        hosts: tuple[Any, ...] = (),
        resolve: Callable[[bytes], Route] | None = None,
    ) -> None:
        #: The whole method frame.
        self.key = key
        self.channel = channel
        #: The channel object, opaque here.
        self.publisher = publisher
        self.exchange = exchange
        self.routing_key = routing_key
        #: Exchange and routing key as two short strings, as a delivery carries them.
        self.head = head
        self.mandatory = mandatory
        self.hosts = hosts
        #: Where routing depends on the message: from the content header's payload to its own route.
        self.resolve = resolve


class Segment:
    """Consecutive messages of one read that go the same way."""

    __slots__ = ("attributes", "contents", "route")

    def __init__(self, route: Route, attributes: Attributes) -> None:
        self.route = route
        self.attributes = attributes
        self.contents: list[bytes] = []


class Publisher:
    """What the scanner knows of the connection."""

    __slots__ = ("_interned", "frame_max", "message_bytes_max", "username")

    #: Bound on the attribute tuples kept; expirations may all differ.
    INTERNED_MAX = 1024

    def __init__(self, frame_max: int, username: bytes, message_bytes_max: int) -> None:
        self.frame_max = frame_max
        self.username = username
        self.message_bytes_max = message_bytes_max
        self._interned: dict[tuple[Any, ...], Attributes] = {}

    def attributes(
        self, persistent: bool, priority: int, ttl_ms: int | None, channel: int, large: bool
    ) -> Attributes:
        """Return the shared tuple for these values."""
        key = (persistent, priority, ttl_ms, channel, large)
        attributes = self._interned.get(key)
        if attributes is None:
            if len(self._interned) >= self.INTERNED_MAX:
                self._interned.clear()
            frame_bytes = self.frame_max if large else SMALL_FRAME
            attributes = self._interned[key] = Attributes(persistent, priority, ttl_ms, channel, frame_bytes)
        return attributes

    def scan(self, data: bytes, offset: int, end: int, flags: int, channel: int, large: bool) -> Attributes | None:
        """Walk the properties in data[offset:end]; None where the slow path must look."""
        try:
            if flags & CONTENT_TYPE:
                offset += data[offset] + 1
            if flags & CONTENT_ENCODING:
                offset += data[offset] + 1
            if flags & HEADERS:
                start = offset
                offset = tables.check(data, offset, end)
                if data.find(b"CC", start, offset) >= 0:
                    return None
            persistent = False
            if flags & DELIVERY_MODE:
                persistent = data[offset] == 2
                offset += 1
            priority = 0
            if flags & PRIORITY:
                priority = data[offset]
                offset += 1
            ttl_ms: int | None = None
            if flags & (_PLAIN_TAIL | REPLY_TO | EXPIRATION | USER_ID):
                if flags & CORRELATION_ID:
                    offset += data[offset] + 1
                if flags & REPLY_TO:
                    after = offset + data[offset] + 1
                    if data.startswith(b"amq.", offset + 1):
                        return None
                    offset = after
                if flags & EXPIRATION:
                    after = offset + data[offset] + 1
                    digits = data[offset + 1 : after]
                    if not digits.isdigit() or len(digits) > 9:
                        return None
                    ttl_ms = int(digits)
                    offset = after
                if flags & MESSAGE_ID:
                    offset += data[offset] + 1
                if flags & TIMESTAMP:
                    offset += 8
                if flags & TYPE:
                    offset += data[offset] + 1
                if flags & USER_ID:
                    after = offset + data[offset] + 1
                    if data[offset + 1 : after] != self.username:
                        return None
                    offset = after
                if flags & APP_ID:
                    offset += data[offset] + 1
                if flags & CLUSTER_ID:
                    offset += data[offset] + 1
        except (IndexError, tables.TableError):
            return None
        if offset != end or flags & UNKNOWN_FLAGS:
            return None
        return self.attributes(persistent, priority, ttl_ms, channel, large)


def take(
    data: bytes, pos: int, end: int, route: Route, publisher: Publisher, segments: list[Segment]
) -> tuple[int, Outcome]:
    """Take the messages at `pos` that are published with this route's frame into `segments`.

    Returns the offset of the first byte not taken, and why it stopped.
    """
    key = route.key
    key_bytes = len(key)
    channel = route.channel
    startswith = data.startswith
    unpack_header = _HEADER.unpack_from
    body_max = publisher.frame_max - 8
    segment = segments[-1] if segments else None
    if segment is not None and segment.route is not route:
        segment = None
    append: Callable[[bytes], None] = segment.contents.append if segment is not None else _nowhere
    template = b""
    stride = 0
    while True:
        at = pos + key_bytes
        if template and startswith(template, at):
            after = at + stride
            if after > end:
                outcome = Outcome.MORE
                break
            if data[after - 1] != 0xCE:
                outcome = Outcome.SLOW
                break
            append(data[at:after])
            pos = after
            if startswith(key, pos):
                continue
            outcome = Outcome.OTHER
            break
        if at + 22 > end:
            outcome = Outcome.MORE
            break
        kind, stamp, size, class_id, _, body_size, flags = unpack_header(data, at)
        if kind != 2 or stamp != channel or class_id != 60 or size < 14 or size > body_max or body_size > body_max:
            outcome = Outcome.SLOW
            break
        body_at = at + size + 8
        if body_at > end:
            outcome = Outcome.MORE
            break
        if data[body_at - 1] != 0xCE or body_size > publisher.message_bytes_max:
            outcome = Outcome.SLOW
            break
        if body_size:
            after = body_at + 8 + body_size
            if body_at + 7 > end:
                outcome = Outcome.MORE
                break
            if _BODY.unpack_from(data, body_at) != (3, channel, body_size):
                outcome = Outcome.SLOW
                break
            if after > end:
                outcome = Outcome.MORE
                break
            if data[after - 1] != 0xCE:
                outcome = Outcome.SLOW
                break
        else:
            after = body_at
        attributes = publisher.scan(
            data, at + 21, body_at - 1, flags, channel, size > SMALL_FRAME - 8 or body_size > SMALL_FRAME - 8
        )
        if attributes is None:
            outcome = Outcome.SLOW
            break
        target = route
        if route.resolve is not None:
            target = route.resolve(data[at + 7 : body_at - 1])
        if segment is None or segment.attributes is not attributes or segment.route is not target:
            segment = Segment(target, attributes)
            segments.append(segment)
            append = segment.contents.append
        append(data[at:after])
        if route.resolve is None:
            template = data[at : body_at + 7] if body_size else data[at:body_at]
            stride = after - at
        pos = after
        if startswith(key, pos):
            continue
        outcome = Outcome.OTHER
        break
    return pos, outcome


def _nowhere(content: bytes) -> None:
    raise AssertionError("the first message of a segment is appended by the general path")
