"""Deliveries of batches as they are stored, to consumers that decode them themselves (x-stream-batches).

A delivery is one batch: its body is head, meta and items as the stream has them, in memory or in a segment
(persistence.streams.batch), so nothing is decoded, decompressed or copied for it. The headers say which
offsets the batch stands for, and how many of its messages come before the one at which the consumer
continues. ADR 62.
"""

from __future__ import annotations

from typing import Final

from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.layouts import OFFSET
from amqp_server.wire import frames
from amqp_server.wire.deliver import LARGE_BYTES, DeliverTemplate
from amqp_server.wire.frames import short_string
from persistence.streams.batch import StoredBatch

#: Headers: the offset behind the batch, the number of its messages, how many of them the consumer skips, and
#: the compression of the items.
NEXT_OFFSET: Final = b"x-stream-next-offset"
COUNT: Final = b"x-stream-count"
SKIP: Final = b"x-stream-skip"
CODEC: Final = b"x-stream-codec"
CONTENT_TYPE: Final = b"application/x-mqd-batch"
#: Flags of the properties: content type and headers.
_FLAGS: Final = b"\xa0\x00"
_BASIC: Final = (60).to_bytes(2, "big")


class StoredReader(BatchReader):
    """One consumer's position in a batch that it gets whole."""

    __slots__ = ("_routing", "_stored", "skipped")

    def __init__(self, batch: StoredBatch, stream: str) -> None:
        """`stream` is the name of the stream, which is the routing key of the delivery."""
        super().__init__(batch)
        self._stored = batch
        self._routing = b"\x00" + short_string(stream)
        #: Number of the messages before the one at which the consumer continues.
        self.skipped = 0

    def skip_to(self, offset: int) -> None:
        """Skip messages before this offset; the delivery says how many. Without a later message there is no
        delivery.
        """
        self.skipped = self._stored.begin(offset)
        if self.skipped >= self._stored.messages:
            self.skip(self.left)

    def take(self, count: int, template: DeliverTemplate, tag: int, out: list[bytes | memoryview]) -> None:
        """Put the delivery of the batch into `out`; there is only one."""
        batch, channel, most = self._stored, template.channel, template.frame_max - frames.OVERHEAD
        payload = b"".join((_BASIC, b"\x00\x00", batch.size.to_bytes(8, "big"), _FLAGS, self._properties()))
        front = b"".join(
            (
                template.prefix(len(self._routing)),
                tag.to_bytes(8, "big"),
                b"\x00",
                self._routing,
                b"\xce",
                frames.prefix.pack(frames.HEADER, channel, len(payload)),
                payload,
            )
        )
        parts: list[bytes | memoryview] = []
        #: Bytes that have no frame yet, and those that the last frame still takes.
        left, room = batch.size, 0
        for part in (memoryview(batch.front), memoryview(batch.items)):
            at = 0
            while at < len(part):
                if not room:
                    room = min(most, left)
                    left -= room
                    parts.append(front + b"\xce" + frames.prefix.pack(frames.BODY, channel, room))
                    front = b""
                stop = min(at + room, len(part))
                parts.append(part[at:stop])
                room -= stop - at
                at = stop
        parts.append(b"\xce")
        if batch.size < LARGE_BYTES:
            out.append(b"".join(parts))
        else:
            out += parts
        self.skip(count)

    def _properties(self) -> bytes:
        batch = self._stored
        fields = b"".join(
            (
                _number(COUNT, batch.messages),
                _number(SKIP, self.skipped),
                _number(NEXT_OFFSET, batch.stop),
                short_string(CODEC),
                b"S",
                len(batch.codec).to_bytes(4, "big"),
                batch.codec.encode(),
                _number(OFFSET, batch.base),
            )
        )
        return short_string(CONTENT_TYPE) + len(fields).to_bytes(4, "big") + fields


def _number(name: bytes, value: int) -> bytes:
    return short_string(name) + b"l" + value.to_bytes(8, "big")


__all__ = ["StoredReader"]
