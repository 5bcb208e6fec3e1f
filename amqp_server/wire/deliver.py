"""Deliveries as bytes: the third hot loop.

A delivery is a template (frame header, class and method, consumer tag), the delivery tag, the routing, and
the content as received. For a run of messages only the last byte of the tag changes, so the whole run is one
`join` over iterators that C drives: about 0.1 µs a message.
"""

from __future__ import annotations

import struct
from itertools import chain, repeat
from typing import Final

from amqp_server.wire import content
from amqp_server.wire.frames import short_string
from quorum_queue.machine.run import Run

_PREFIX: Final = struct.Struct(">BHIHH")
#: Contents from this size on, in bytes, are sent without being copied.
LARGE_BYTES: Final = 8192
#: Prefixes that a consumer caches, by length; there may be thousands of consumers.
PREFIXES_MAX: Final = 16
_LOW = [bytes((value,)) for value in range(256)]
_flatten = chain.from_iterable


class DeliverTemplate:
    """The parts that all deliveries of one consumer share."""

    __slots__ = ("_prefixes", "channel", "frame_max", "_tag")

    def __init__(self, channel: int, consumer_tag: str, frame_max: int) -> None:
        self.channel = channel
        self.frame_max = frame_max
        self._tag = short_string(consumer_tag)
        #: Prefixes by the length of the routing.
        self._prefixes: dict[int, bytes] = {}

    def prefix(self, head_bytes: int) -> bytes:
        """Return the bytes in front of the delivery tag, for a routing of this length."""
        prefix = self._prefixes.get(head_bytes)
        if prefix is None:
            if len(self._prefixes) >= PREFIXES_MAX:
                self._prefixes.clear()
            size = 4 + len(self._tag) + 8 + 1 + head_bytes
            prefix = self._prefixes[head_bytes] = _PREFIX.pack(1, self.channel, size, 60, 60) + self._tag
        return prefix

    def parts(self, tag: int, run: Run) -> list[bytes | memoryview]:
        """Encode a run's deliveries like `encode`, but leave the contents, which are large, uncopied."""
        flag = b"\x01" if run.redelivered else b"\x00"
        assert run.contents is not None
        parts: list[bytes | memoryview] = []
        for index, item in enumerate(run.contents):
            attributes = run.attributes_of(index)
            fits = attributes.channel == self.channel and attributes.frame_bytes <= self.frame_max
            head = run.head_of(index)
            parts.append(b"".join((self.prefix(len(head)), tag.to_bytes(8, "big"), flag, head, b"\xce")))
            if fits:
                parts.append(item)
            else:
                parts += content.reframed(item, self.channel, self.frame_max)
            tag += 1
        return parts

    def _stamped(self, run: Run) -> list[bytes]:
        """Return the contents in frames for this consumer's channel."""
        contents = run.contents
        assert contents is not None
        attributes = run.attributes
        if run.kinds is not None:
            return [stamped for part in run.uniform() for stamped in self._stamped(part)]
        if attributes.frame_bytes > self.frame_max:
            return [content.restamp(item, self.channel, self.frame_max) for item in contents]
        if attributes.channel != self.channel:
            return content.restamp_all(contents, self.channel)
        return contents

    def encode(self, tag: int, run: Run) -> bytes:
        """Encode a run's deliveries, tagged from `tag` on."""
        contents = self._stamped(run)
        flag = b"\x01" if run.redelivered else b"\x00"
        if run.heads is not None:
            return self._encode_mixed(tag, run.heads, contents, flag)
        prefix = self.prefix(len(run.head))
        suffix = flag + run.head + b"\xce"
        count = len(contents)
        if count == 1:
            return b"".join((prefix, tag.to_bytes(8, "big"), suffix, contents[0]))
        parts: list[bytes] = []
        done = 0
        while done < count:
            low = tag & 255
            part = min(256 - low, count - done)
            start = prefix + (tag >> 8).to_bytes(7, "big")
            batch = contents if part == count else contents[done : done + part]
            parts.append(
                b"".join(_flatten(zip(repeat(start), _LOW[low : low + part], repeat(suffix), batch)))
            )
            tag += part
            done += part
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _encode_mixed(self, tag: int, heads: list[bytes], contents: list[bytes], flag: bytes) -> bytes:
        prefix = self.prefix
        parts: list[bytes] = []
        for head, item in zip(heads, contents, strict=True):
            parts += (prefix(len(head)), tag.to_bytes(8, "big"), flag, head, b"\xce", item)
            tag += 1
        return b"".join(parts)
