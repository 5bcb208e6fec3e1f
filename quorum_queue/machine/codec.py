"""Runs as bytes, for the journal and for spilled bodies.

    u8 version | u32 bytes of all run heads | run heads | bodies, one after the other

A run head is fixed fields, then its routing, then the size of each message, so a node that starts reads heads only
and never touches the pages that hold bodies.
"""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate

from quorum_queue.machine.run import Attributes, Run

VERSION = 1
_PREFIX = struct.Struct(">BI")
#: messages, mixed heads?, persistent?, priority, ttl_ms (-1 none), channel, frame_bytes, expires_at (-1 none), bytes of heads
_RUN = struct.Struct(">I??BqHIqI")


class CodecError(Exception):
    """The bytes are not runs of a version known here."""


def encode(runs: list[Run]) -> list[bytes]:
    """Return the parts whose concatenation is the encoding. All bodies must be in memory."""
    heads: list[bytes] = []
    bodies: list[bytes] = []
    for run in runs:
        assert run.contents is not None
        attributes = run.attributes
        routing = run.head if run.heads is None else b"".join(_framed(head) for head in run.heads)
        heads.append(
            _RUN.pack(
                len(run.seqs),
                run.heads is not None,
                attributes.persistent,
                attributes.priority,
                -1 if attributes.ttl_ms is None else attributes.ttl_ms,
                attributes.channel,
                attributes.frame_bytes,
                -1 if run.expires_at is None else run.expires_at,
                len(routing),
            )
        )
        heads.append(routing)
        sizes = array("I", map(len, run.contents))
        heads.append(sizes.tobytes())
        bodies += run.contents
    head = b"".join(heads)
    return [_PREFIX.pack(VERSION, len(head)), head, *bodies]


def decode_heads(payload: bytes | memoryview, first_seq: int) -> list[Run]:
    """Return the runs without their bodies; `first_seq` numbers the first message."""
    head, _ = _head(payload)
    runs: list[Run] = []
    offset, seq = 0, first_seq
    while offset < len(head):
        count, mixed, persistent, priority, ttl_ms, channel, frame_bytes, expires_at, size = _RUN.unpack_from(head, offset)
        offset += _RUN.size
        routing = head[offset : offset + size]
        offset += size
        sizes = array("I", head[offset : offset + 4 * count])
        offset += 4 * count
        attributes = Attributes(persistent, priority, None if ttl_ms < 0 else ttl_ms, channel, frame_bytes)
        run = Run(range(seq, seq + count), None, b"", attributes, None if expires_at < 0 else expires_at, sum(sizes))
        run.sizes = sizes
        if mixed:
            run.heads = _unframed(routing)
        else:
            run.head = routing
        runs.append(run)
        seq += count
    return runs


def decode_contents(payload: bytes | memoryview) -> list[bytes]:
    """Return the bodies of all messages, in order."""
    head, offset = _head(payload)
    sizes: list[int] = []
    position = 0
    while position < len(head):
        fields = _RUN.unpack_from(head, position)
        position += _RUN.size + fields[8]
        sizes += array("I", head[position : position + 4 * fields[0]])
        position += 4 * fields[0]
    ends = list(accumulate(sizes, initial=offset))
    return [bytes(payload[start:end]) for start, end in zip(ends, ends[1:], strict=False)]


def _head(payload: bytes | memoryview) -> tuple[bytes, int]:
    try:
        version, size = _PREFIX.unpack_from(payload)
    except struct.error as error:
        raise CodecError(f"a batch of {len(payload)} bytes is too short") from error
    if version != VERSION:
        raise CodecError(f"a batch has version {version}, this mqd reads version {VERSION}")
    end = _PREFIX.size + size
    if end > len(payload):
        raise CodecError("a batch ends inside its head")
    return bytes(payload[_PREFIX.size : end]), end


def _framed(head: bytes) -> bytes:
    return len(head).to_bytes(4, "big") + head


def _unframed(routing: bytes) -> list[bytes]:
    heads: list[bytes] = []
    offset = 0
    while offset < len(routing):
        end = offset + 4 + int.from_bytes(routing[offset : offset + 4], "big")
        heads.append(routing[offset + 4 : end])
        offset = end
    return heads
