"""The keys of messages in a stream, for its compaction: the routing key, or a header. Called in a thread.

Consecutive messages are usually alike, and their keys repeat. So the routing or the properties are cut out of
each message, and only new values are parsed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain
from typing import Final

from amqp_server.streams.layout.layouts import OFFSET
from amqp_server.wire import content
from exchanges.field import token
from persistence.streams.batch import Batch, Shape

#: Longer keys are represented by their hash.
KEY_BYTES_MAX: Final = 24
HEADER: Final = "header:"
ROUTING_KEY: Final = "key"
#: Class, weight and size of the body come before the property flags.
_PROPERTIES_AT: Final = 12
_MARK: Final = OFFSET + b"l"
_flatten = chain.from_iterable


def keys_of(compaction: str) -> RoutingKeys | HeaderKeys:
    """Return the object that finds keys for a value of x-stream-compaction."""
    if compaction.startswith(HEADER):
        return HeaderKeys(compaction.removeprefix(HEADER))
    return RoutingKeys()


def _bounded(key: bytes) -> bytes:
    if len(key) <= KEY_BYTES_MAX:
        return b"\x00" + key
    return b"\x01" + blake2b(key, digest_size=KEY_BYTES_MAX).digest()


def _cut(batch: Batch, shape: Shape, at: int, start: int, size: int) -> list[bytes]:
    """Return these bytes of all messages of a shape, whose first one is at `at`. The loop runs in C."""
    items = memoryview(batch.items)[at : at + shape.count * shape.size]
    return list(_flatten(struct.iter_unpack(f"{start}x{size}s{shape.size - start - size}x", items)))


def _is_tombstone(shape: Shape) -> bool:
    """Return whether messages of this shape have no body frames; see encode.py."""
    return shape.third == 0


class RoutingKeys:
    def keys(self, batch: Batch) -> Sequence[bytes | None]:
        found: list[bytes | None] = []
        known: dict[bytes, bytes | None] = {}
        at = 0
        for shape in batch.shapes:
            heads = _cut(batch, shape, at, 1, shape.first)
            for head in set(heads).difference(known):
                # Exchange and routing key, each after its length.
                known[head] = _bounded(head[head[0] + 2 :])
            found += map(known.__getitem__, heads)
            at += shape.count * shape.size
        return found

    def is_tombstone(self, shape: Shape) -> bool:
        return _is_tombstone(shape)


class HeaderKeys:
    def __init__(self, name: str) -> None:
        self._name = name

    def keys(self, batch: Batch) -> Sequence[bytes | None]:
        found: list[bytes | None] = []
        known: dict[bytes, bytes | None] = {}
        at = 0
        for shape in batch.shapes:
            # Flag, routing, end of the method frame, and the head of the frame with the properties.
            for payload in _cut(batch, shape, at, 1 + shape.first + 1 + 7, shape.second):
                front = payload[_PROPERTIES_AT : payload.rfind(_MARK)]
                if front not in known:
                    known[front] = self._key(payload)
                found.append(known[front])
            at += shape.count * shape.size
        return found

    def _key(self, payload: bytes) -> bytes | None:
        value = (content.Properties.parse(payload, checked=True).headers or {}).get(self._name)
        if value is None:
            return None
        if isinstance(value, str):
            return _bounded(b"s" + value.encode(errors="surrogateescape"))
        return _bounded(b"v" + repr(token(value)).encode(errors="surrogateescape"))

    def is_tombstone(self, shape: Shape) -> bool:
        return _is_tombstone(shape)


__all__ = ["HeaderKeys", "RoutingKeys", "keys_of"]
