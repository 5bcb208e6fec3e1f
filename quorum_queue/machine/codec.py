"""Runs as bytes, for the journal and for spilled bodies.

    u8 version | u32 bytes of all run heads | run heads | bodies, one after the other

A run head is fixed fields, then its routing, then the size of each message, so a node that starts reads heads
only and never touches the pages that hold bodies. Before the routing come, of runs that have them: the time
until which the messages wait, the attributes of each message, the deadline of each. Batches with such runs
have versions of their own.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

from quorum_queue.machine.arrays import packed, unpacked
from quorum_queue.machine.attributes import ATTRIBUTES, MAJORITY, PRIORITY_ZERO
from quorum_queue.machine.run import KINDS_MAX, Attributes, Run

VERSION: Final = 2
#: With runs that wait.
VERSION_WAITS: Final = 3
#: With runs whose messages have attributes or deadlines of their own.
VERSION_COLUMNS: Final = 4
#: Number of the first parts returned by `encode` that `decode_heads` needs.
HEAD_PARTS: Final = 2
_PREFIX: Final = struct.Struct(">BI")
#: messages, mixed heads?, flags, priority, ttl_ms (-1 none), channel, frame_bytes, overhead, expires_at
#: (-1 none), bytes of heads
_RUN: Final = struct.Struct(">I?BBqHIIqI")
#: Flags; the second one: the message has a priority, and it is 0.
_PERSISTENT, _PRIORITY_ZERO, _WAITS, _KINDS, _DEADLINES = 1, 2, 4, 8, 16
#: ms
_TIME: Final = struct.Struct(">Q")
#: priority, ttl_ms (-1 none), channel, frame_bytes, overhead
_KIND: Final = struct.Struct(">hqHII")


class CodecError(Exception):
    """The bytes are not runs of a version known here."""


def encode(runs: list[Run]) -> list[bytes]:
    """Return the parts whose concatenation is the encoding. All bodies must be in memory."""
    heads: list[bytes] = []
    bodies: list[bytes] = []
    version = VERSION
    for run in runs:
        assert run.contents is not None
        attributes = run.attributes
        routing = run.head if run.heads is None else b"".join(framed(head) for head in run.heads)
        flags = _PERSISTENT if attributes.persistent else 0
        if attributes.priority < 0:
            flags |= _PRIORITY_ZERO
        if run.deadlines is not None:
            version, flags = VERSION_COLUMNS, flags | _DEADLINES
            routing = packed(run.deadlines) + routing
        if run.kinds is not None and run.table is not None:
            version, flags = VERSION_COLUMNS, flags | _KINDS
            routing = encode_kinds(run.kinds, run.table) + routing
        if run.waits_until:
            version, flags = max(version, VERSION_WAITS), flags | _WAITS
            routing = _TIME.pack(run.waits_until) + routing
        heads.append(
            _RUN.pack(
                len(run.seqs),
                run.heads is not None,
                flags,
                max(attributes.priority, 0),
                -1 if attributes.ttl_ms is None else attributes.ttl_ms,
                attributes.channel,
                attributes.frame_bytes,
                attributes.overhead,
                -1 if run.expires_at is None else run.expires_at,
                len(routing),
            )
        )
        heads.append(routing)
        sizes = array("I", map(len, run.contents))
        heads.append(sizes.tobytes())
        bodies += run.contents
    head = b"".join(heads)
    return [_PREFIX.pack(version, len(head)), head, *bodies]


def size(run: Run) -> int:
    """Return how many bytes a run takes in a batch."""
    count = len(run.seqs)
    routing = len(run.head) if run.heads is None else sum(map(len, run.heads)) + 4 * count
    found = _RUN.size + routing + 4 * count + run.size
    if run.kinds is not None and run.table is not None:
        found += 1 + _KIND.size * len(run.table) + count
    if run.deadlines is not None:
        found += _TIME.size * count
    return found


def head_size(run: Run, index: int) -> int:
    """Return the bytes of one message in a batch beside its body."""
    return 4 if run.heads is None else 8 + len(run.heads[index])


def decode_heads(payload: bytes | memoryview, first_seq: int) -> list[Run]:
    """Return the runs without their bodies; `first_seq` numbers the first message. Raises CodecError."""
    head, _ = _head(payload)
    runs: list[Run] = []
    seq = first_seq
    for fields, routing, sizes in _runs(head):
        count, mixed, flags, priority, ttl_ms, channel, frame_bytes, overhead, expires_at, _ = fields
        ttl = None if ttl_ms < 0 else ttl_ms
        if flags & _PRIORITY_ZERO:
            priority = PRIORITY_ZERO
        attributes = Attributes(bool(flags & _PERSISTENT), priority, ttl, channel, frame_bytes, overhead)
        run = Run(
            range(seq, seq + count), None, b"", attributes, None if expires_at < 0 else expires_at, sum(sizes)
        )
        run.sizes = sizes
        if flags & _WAITS:
            if len(routing) < _TIME.size:
                raise CodecError("a run that waits does not say until when")
            (run.waits_until,) = _TIME.unpack_from(routing)
            routing = routing[_TIME.size :]
        if flags & _KINDS:
            run.kinds, run.table, routing = decode_kinds(routing, count, persistent=bool(flags & _PERSISTENT))
        if flags & _DEADLINES:
            if len(routing) < _TIME.size * count:
                raise CodecError("a run has not as many deadlines as messages")
            run.deadlines = unpacked("q", routing[: _TIME.size * count])
            run.expires_at = min(run.deadlines)
            routing = routing[_TIME.size * count :]
        if mixed:
            run.heads = unframed(routing, count)
        else:
            run.head = routing
        runs.append(run)
        seq += count
    return runs


def decode_contents(payload: bytes | memoryview) -> list[bytes]:
    """Return the bodies of all messages, in order. Raises CodecError."""
    head, offset = _head(payload)
    sizes: list[int] = []
    for _, _, more in _runs(head):
        sizes += more
    ends = list(accumulate(sizes, initial=offset))
    if ends[-1] != len(payload):
        raise CodecError(f"a batch of {len(payload)} bytes should have {ends[-1]}")
    return [bytes(payload[start:end]) for start, end in zip(ends, ends[1:], strict=False)]


def _runs(head: bytes) -> Iterator[tuple[tuple[Any, ...], bytes, array[int]]]:
    """The fields, the routing and the sizes of each run."""
    offset = 0
    while offset < len(head):
        routing_at = offset + _RUN.size
        if routing_at > len(head):
            raise CodecError("a batch ends inside the head of a run")
        fields = _RUN.unpack_from(head, offset)
        sizes_at = routing_at + fields[-1]
        offset = sizes_at + 4 * fields[0]
        if offset > len(head):
            raise CodecError("a batch ends inside the head of a run")
        yield fields, head[routing_at:sizes_at], array("I", head[sizes_at:offset])


def _head(payload: bytes | memoryview) -> tuple[bytes, int]:
    try:
        version, size = _PREFIX.unpack_from(payload)
    except struct.error as error:
        raise CodecError(f"a batch of {len(payload)} bytes is too short") from error
    if not VERSION <= version <= VERSION_COLUMNS:
        raise CodecError(
            f"a batch has version {version}, this mqd reads versions {VERSION} to {VERSION_COLUMNS}"
        )
    end = _PREFIX.size + size
    if end > len(payload):
        raise CodecError("a batch ends inside its head")
    return bytes(payload[_PREFIX.size : end]), end


def encode_kinds(kinds: bytearray, table: list[Attributes]) -> bytes:
    """Return which attributes each message has: u8 number of different ones | these | u8 of each message.

    Messages of one run are all persistent, or none is.
    """
    return b"".join(
        (
            bytes((len(table),)),
            *[
                _KIND.pack(
                    attributes.priority,
                    -1 if attributes.ttl_ms is None else attributes.ttl_ms,
                    attributes.channel,
                    attributes.frame_bytes,
                    attributes.overhead,
                )
                for attributes in table
            ],
            kinds,
        )
    )


def decode_kinds(
    block: bytes, count: int, *, persistent: bool, level: int = MAJORITY
) -> tuple[bytearray, list[Attributes], bytes]:
    """Return the attributes of `count` messages, as places in a table, the table, and what is behind them.
    Raises CodecError.
    """
    different = block[0] if block else 0
    kinds_at = 1 + different * _KIND.size
    kinds = bytearray(block[kinds_at : kinds_at + count])
    if not count or not different or different > KINDS_MAX:
        raise CodecError("a run has attributes for none of its messages, or too many different ones")
    if len(kinds) < count or max(kinds) >= different:
        raise CodecError("the attributes of a run's messages do not fit together")
    table = [
        ATTRIBUTES[level](
            persistent, max(priority, PRIORITY_ZERO), None if ttl_ms < 0 else ttl_ms, channel, size, overhead
        )
        for priority, ttl_ms, channel, size, overhead in _KIND.iter_unpack(block[1:kinds_at])
    ]
    return kinds, table, block[kinds_at + count :]


def framed(part: bytes) -> bytes:
    """Return a part, such as the routing of one message, with its length before it."""
    return len(part).to_bytes(4, "big") + part


def unframed(block: bytes, count: int | None = None) -> list[bytes]:
    """Return the parts of a sequence of framed parts; `count` is their number if known. Raises CodecError."""
    found: list[bytes] = []
    offset = 0
    while offset < len(block):
        end = offset + 4 + int.from_bytes(block[offset : offset + 4], "big")
        found.append(block[offset + 4 : end])
        offset = end
    if offset != len(block) or (count is not None and len(found) != count):
        raise CodecError(f"{len(block)} bytes hold {len(found)} parts, not {count}")
    return found
