"""Answers with messages, made while they are sent: a base64 text of 32 MiB, or its JSON, takes tens of ms in
one step, and as much memory again.
"""

from __future__ import annotations

import base64
import codecs
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

import msgspec

from amqp_server.management.request.answer import plain
from amqp_server.management.request.memory_budget import Held
from amqp_server.management.request.time_slices import Slices

#: Bytes of a body that are encoded in one step; no base64 text within a body may need padding.
PIECE_BYTES = 48 * 1024
#: Bytes of rows that are sent together.
CHUNK_BYTES = 64 * 1024


class MessageView(msgspec.Struct, kw_only=True):
    """A message that was got."""

    exchange: str
    routing_key: str
    redelivered: bool
    #: Number of messages left in the queue.
    message_count: int
    #: Returns the properties that are set, under their AMQP names: decoded, they may take many times the
    #: memory of their bytes.
    properties: Callable[[], dict[str, Any]]
    body: bytes | memoryview
    #: Bytes of the message in memory.
    size: int


class Messages:
    """A JSON array of messages. See listing.Rows."""

    def __init__(
        self,
        found: Iterable[tuple[int | None, MessageView]],
        slices: Slices,
        held: Held,
        *,
        encoding: str,
        truncate: int | None,
    ) -> None:
        """`found` has the offset in a stream of each message, if it is from one; `held` counts the messages,
        and each is given back when it was sent.
        """
        self._found = deque(found)
        self._slices = slices
        self._held = held
        self._texts = encoding == "auto"
        self._truncate = truncate

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        chunk = bytearray(b"[")
        comma = b""
        while self._found:
            offset, message = self._found.popleft()
            chunk += comma
            comma = b","
            async for piece in self._row(offset, message):
                await self._slices.rest()
                chunk += piece
                if len(chunk) >= CHUNK_BYTES:
                    yield bytes(chunk)
                    chunk.clear()
            self._held.give(message.size)
        yield bytes(chunk) + b"]"

    async def _row(self, offset: int | None, message: MessageView) -> AsyncGenerator[bytes, None]:
        body = memoryview(message.body)
        if self._truncate is not None:
            body = body[: self._truncate]
        as_text = self._texts and await self._is_text(body)
        row: dict[str, Any] = {
            "payload_bytes": len(message.body),
            "redelivered": message.redelivered,
            "exchange": message.exchange,
            "routing_key": message.routing_key,
        }
        if offset is None:
            row["message_count"] = message.message_count
        row["properties"] = plain(message.properties())
        row["payload_encoding"] = "string" if as_text else "base64"
        if offset is not None:
            row["offset"] = offset
        yield msgspec.json.encode(row)[:-1] + b',"payload":"'
        decoder = codecs.getincrementaldecoder("utf-8")()
        for start in range(0, len(body), PIECE_BYTES):
            piece = body[start : start + PIECE_BYTES]
            if as_text:
                yield msgspec.json.encode(decoder.decode(piece))[1:-1]
            else:
                yield base64.b64encode(piece)
        yield b'"}'

    async def _is_text(self, body: memoryview) -> bool:
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for start in range(0, len(body), PIECE_BYTES):
                decoder.decode(body[start : start + PIECE_BYTES])
                await self._slices.rest()
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
        return True
