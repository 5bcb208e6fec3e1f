"""Message content: properties as raw bytes, and content frames split and joined.

A message travels through the broker as the frames that its publisher sent: one header frame and its body
frames. Only necessary changes are made, so header fields keep the types that the publisher gave them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, Protocol

from amqp_server.errors import FrameError
from amqp_server.wire import frames, tables
from quorum_queue.machine.run import Run

#: Property names in the order of their flag bits, from 0x8000 down (spec, class basic).
PROPERTIES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
_HEADER: Final = struct.Struct(">HHQH")
_END = bytes((frames.END,))
_FIXED_SIZES = {"delivery_mode": 1, "priority": 1, "timestamp": 8}


class Properties:
    """The properties of one message, each as its encoded bytes (lengths included)."""

    __slots__ = ("raw",)

    def __init__(self, raw: dict[str, bytes] | None = None) -> None:
        self.raw: dict[str, bytes] = raw or {}

    @classmethod
    def parse(cls, payload: bytes, depth: int = tables.DEPTH_MAX, *, checked: bool = False) -> Properties:
        """Parse a content header's payload, with headers of at most this depth. Raises FrameError if it is
        malformed.

        `checked`: the headers were checked already.
        """
        if len(payload) < _HEADER.size:
            raise FrameError(f"content header of {len(payload)} bytes is too short")
        flags: int = _HEADER.unpack_from(payload)[3]
        if flags & 0x0003:
            raise FrameError(f"content header has unknown property flags {flags:#06x}")
        offset, end = _HEADER.size, len(payload)
        raw: dict[str, bytes] = {}
        for bit, name in enumerate(PROPERTIES):
            if not flags & (0x8000 >> bit):
                continue
            if checked and name == "headers":
                after = offset + 4 + int.from_bytes(payload[offset : offset + 4], "big")
            else:
                after = _after(payload, offset, end, name, depth)
            raw[name] = payload[offset:after]
            offset = after
        if offset != end:
            raise FrameError("content header has bytes after its last property")
        return cls(raw)

    def encode(self, body_size: int) -> bytes:
        """Return the content header's payload."""
        flags = 0
        parts = [b""]
        for bit, name in enumerate(PROPERTIES):
            value = self.raw.get(name)
            if value is not None:
                flags |= 0x8000 >> bit
                parts.append(value)
        parts[0] = _HEADER.pack(60, 0, body_size, flags)
        return b"".join(parts)

    def text(self, name: str) -> str | None:
        """Return a short-string property."""
        value = self.raw.get(name)
        return None if value is None else value[1:].decode(errors="replace")

    @property
    def timestamp(self) -> int | None:
        """Seconds since 1970, as set by the publisher."""
        value = self.raw.get("timestamp")
        return None if value is None else int.from_bytes(value, "big")

    def octet(self, name: str) -> int | None:
        value = self.raw.get(name)
        return None if value is None else value[0]

    def set_text(self, name: str, text: str) -> None:
        self.raw[name] = frames.short_string(text)

    @property
    def headers(self) -> dict[str, object] | None:
        """The headers table decoded, None without one."""
        value = self.raw.get("headers")
        return None if value is None else tables.decode_checked(value)

    @property
    def persistent(self) -> bool:
        return self.raw.get("delivery_mode") == b"\x02"


def _after(payload: bytes, offset: int, end: int, name: str, depth: int) -> int:
    """Return the offset after the property at `offset`."""
    if name == "headers":
        try:
            return tables.check(payload, offset, end, depth)
        except (tables.TableError, IndexError) as error:
            raise FrameError(f"malformed headers table: {error}") from error
    size = _FIXED_SIZES.get(name)
    if size is None:
        size = 1 + payload[offset] if offset < end else 1
    if offset + size > end:
        raise FrameError(f"property {name} ends outside its content header")
    return offset + size


def split(content: bytes) -> tuple[bytes, bytes]:
    """Return a content's header payload and its body."""
    _, _, size = frames.prefix.unpack_from(content)
    offset = 7 + size + 1
    header = content[7 : offset - 1]
    bodies: list[bytes] = []
    while offset < len(content):
        _, _, size = frames.prefix.unpack_from(content, offset)
        bodies.append(content[offset + 7 : offset + 7 + size])
        offset += size + 8
    return header, bodies[0] if len(bodies) == 1 else b"".join(bodies)


def header_of(content: bytes) -> bytes:
    """Return a content's header payload alone: bodies are large."""
    _, _, size = frames.prefix.unpack_from(content)
    return content[7 : 7 + size]


def body_bytes(content: bytes) -> int:
    """Return the size of a content's body, from its header."""
    return int.from_bytes(content[11:19], "big")


class Taker(Protocol):
    """What a host says about the runs that it takes; see quorum_queue.ports.Recipient."""

    @property
    def counts_bytes(self) -> bool: ...

    @property
    def takes_kinds(self) -> bool: ...


def as_taken(run: Run, host: Taker) -> Iterable[Run]:
    """Return a run of new messages in parts that a queue takes: if it counts the bytes of bodies, all frames
    of a part have the same overhead, and the same attributes; these also if it takes no others.
    """
    if host.counts_bytes:
        return [part for alike in run.uniform() for part in by_overhead(alike)]
    return (run,) if host.takes_kinds else run.uniform()


def by_overhead(run: Run) -> list[Run]:
    """Split a run of new messages with the same attributes wherever the overhead around the body changes;
    each part gets its own overhead.
    """
    contents = run.contents
    assert contents is not None
    parts: list[Run] = []
    overheads = [len(content) - body_bytes(content) for content in contents]
    left: Run = run
    start = 0
    for index in range(1, len(contents)):
        if overheads[index] != overheads[start]:
            parts.append(left.take(index - start))
            start = index
    parts.append(left)
    start = 0
    for part in parts:
        part.attributes = part.attributes._replace(overhead=overheads[start])
        start += len(part.seqs)
    return parts


def build(header: bytes, body: bytes, channel: int, frame_max: int) -> bytes:
    """Frame a header payload and a body."""
    parts = [frames.raw_frame(frames.HEADER, channel, header)]
    size = frame_max - frames.OVERHEAD
    for start in range(0, len(body), size):
        parts.append(frames.raw_frame(frames.BODY, channel, body[start : start + size]))
    return b"".join(parts)


def with_header(content: bytes, header: bytes, channel: int) -> bytes:
    """Give a content another header payload; its body frames are of this channel already."""
    return b"".join(
        (frames.raw_frame(frames.HEADER, channel, header), memoryview(content)[body_at(content) :])
    )


def body_at(content: bytes) -> int:
    """Return the offset of the first body frame."""
    return int.from_bytes(content[3:7], "big") + frames.OVERHEAD


def restamp(content: bytes, channel: int, frame_max: int) -> bytes:
    """Make new frames for a content, for another channel number or a smaller frame_max."""
    header, body = split(content)
    return build(header, body, channel, frame_max)


def reframed(content: bytes, channel: int, frame_max: int) -> list[bytes | memoryview]:
    """Return the same as `restamp` in chunks, and without a copy of the body, which may be large.

    Body frames that are too large are split; small ones are not joined.
    """
    _, _, size = frames.prefix.unpack_from(content)
    offset = 7 + size + 1
    stamp = channel.to_bytes(2, "big")
    #: The bytes between two pieces of the body: the end of a frame and the beginning of the next one.
    between = b"\x02" + stamp + content[3:offset]
    chunks: list[bytes | memoryview] = []
    view = memoryview(content)
    most = frame_max - frames.OVERHEAD
    while offset < len(content):
        _, _, size = frames.prefix.unpack_from(content, offset)
        for start in range(offset + 7, offset + 7 + size, most):
            stop = min(start + most, offset + 7 + size)
            chunks += (between + frames.prefix.pack(frames.BODY, channel, stop - start), view[start:stop])
            between = _END
        offset += size + 8
    chunks.append(between)
    return chunks


def restamp_all(contents: list[bytes], channel: int) -> list[bytes]:
    """Give contents with frames of at most two (one header, one body) another channel number."""
    stamp = channel.to_bytes(2, "big")
    header, body = b"\x02" + stamp, b"\x03" + stamp
    restamped: list[bytes] = []
    for content in contents:
        # 8 bytes around the header's payload, whose length is in bytes 3 to 7.
        at = (
            8 + (content[5] << 8 | content[6])
            if not content[3] and not content[4]
            else 8 + int.from_bytes(content[3:7])
        )
        if at == len(content):
            restamped.append(header + content[3:])
        elif at + 8 + int.from_bytes(content[at + 3 : at + 7]) == len(content):
            restamped.append(header + content[3:at] + body + content[at + 3 :])
        else:
            payload, text = split(content)
            restamped.append(build(payload, text, channel, _frame_size(content)))
    return restamped


def _frame_size(content: bytes) -> int:
    """Return the frame_max that this content's body frames were cut for: its first body frame is full."""
    at = 8 + int.from_bytes(content[3:7])
    return max(frames.FRAME_BYTES_MIN, int.from_bytes(content[at + 3 : at + 7]) + 8)
