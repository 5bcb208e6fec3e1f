"""Bytes from the broker, cut into whole messages by offset and otherwise left as they are.

The reader on the driver sees every message of a query, so it decodes none: it finds where each begins and
ends, and the tasks decode in parallel (`columns`). A message here is its basic.deliver frame, its header
frame and its body frames, one after the other in one `Run`.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

HEADER, BODY, HEARTBEAT = 2, 3, 8
METHOD_OCTET, BODY_OCTET = b"\x01", b"\x03"
#: Number of messages that are checked together, at first and at most.
LIKE_MIN, LIKE_MAX = 8, 4_096
FRAME_END = 0xCE
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"
#: Type, channel, size before a payload; the end octet after it.
HEAD_BYTES = 7
OVERHEAD_BYTES = HEAD_BYTES + 1
BASIC_DELIVER = b"\x00\x3c\x00\x3c"
#: In a header payload: class, weight, body size, then flags.
BODY_SIZE_AT, FLAGS_AT = 4, 12
#: Flags of properties, in the octet that holds them.
HEADERS_BIT, MESSAGE_ID_BIT = 0x20, 0x80
DIGEST_BYTES, FINGERPRINT_BYTES = 16, 8

U32 = struct.Struct(">I")
U64 = struct.Struct(">Q")


class Garbled(Exception):
    """The received bytes are not AMQP 0-9-1."""


class Run:
    """Consecutive messages in one piece of memory."""

    __slots__ = ("data", "heads", "starts")

    def __init__(self, data: bytes, starts: list[int], heads: list[int]) -> None:
        #: Ends with the last message.
        self.data = data
        #: Where each message begins.
        self.starts = starts
        #: Where its content header's payload begins.
        self.heads = heads

    def __len__(self) -> int:
        return len(self.starts)

    def split(self, count: int) -> tuple[Run, Run]:
        """Cut after `count` messages; neither part may be empty."""
        cut = self.starts[count]
        rest = Run(
            self.data[cut:], [at - cut for at in self.starts[count:]], [at - cut for at in self.heads[count:]]
        )
        return Run(self.data[:cut], self.starts[:count], self.heads[:count]), rest

    def one(self, index: int) -> Run:
        start = self.starts[index]
        end = self.starts[index + 1] if index + 1 < len(self.starts) else len(self.data)
        return Run(self.data[start:end], [0], [self.heads[index] - start])

    @classmethod
    def joined(cls, runs: Sequence[Run]) -> Run:
        """One run from consecutive runs."""
        if len(runs) == 1:
            return runs[0]
        starts: list[int] = []
        heads: list[int] = []
        base = 0
        for run in runs:
            starts += [base + at for at in run.starts]
            heads += [base + at for at in run.heads]
            base += len(run.data)
        return cls(b"".join(run.data for run in runs), starts, heads)

    def count_within(self, size: int) -> int:
        """How many of the first messages have at most `size` bytes together."""
        return len(self) if len(self.data) <= size else max(0, bisect_right(self.starts, size) - 1)

    def tag(self, index: int) -> int:
        at = self.starts[index] + HEAD_BYTES + len(BASIC_DELIVER)
        return int(U64.unpack_from(self.data, at + 1 + self.data[at])[0])

    def redelivered(self, index: int) -> bool:
        at = self.starts[index] + HEAD_BYTES + len(BASIC_DELIVER)
        return bool(self.data[at + 1 + self.data[at] + 8])

    def properties(self, index: int) -> bytes:
        """Flags and properties, as received."""
        head = self.heads[index]
        (size,) = U32.unpack_from(self.data, head - 4)
        return self.data[head + FLAGS_AT : head + size]

    def identified(self) -> bool:
        """Whether each message has a message_id."""
        data = self.data
        return all(data[head + FLAGS_AT + 1] & MESSAGE_ID_BIT for head in self.heads)

    def contents(self) -> Iterator[bytes]:
        """The parts that are the same in every delivery of a message: without the tag, `redelivered` and the
        headers, because a quorum queue counts deliveries in one of them.
        """
        data, skip = self.data, 0
        if self.starts:
            at = HEAD_BYTES + len(BASIC_DELIVER)
            skip = at + 1 + data[self.starts[0] + at] + 9
        ends = [*self.starts[1:], len(data)]
        for start, head, end in zip(self.starts, self.heads, ends, strict=True):
            if data[head + FLAGS_AT] & HEADERS_BIT:
                yield _without_headers(data, start + skip, head, end)
            else:
                yield data[start + skip : end]


def _without_headers(data: bytes, start: int, head: int, end: int) -> bytes:
    """The bytes that the message would have if it had been published without headers."""
    (size,) = U32.unpack_from(data, head - 4)
    flags = data[head + FLAGS_AT]
    at = head + FLAGS_AT + 2
    for bit in (0x80, 0x40):  # content_type and content_encoding come before
        if flags & bit:
            at += 1 + data[at]
    (table,) = U32.unpack_from(data, at)
    after = at + 4 + table
    if after > head + size:
        raise Garbled("a table of headers is longer than its frame")
    return b"".join(
        (
            data[start : head - 4],
            U32.pack(size - 4 - table),
            data[head : head + FLAGS_AT],
            bytes((flags & ~HEADERS_BIT,)),
            data[head + FLAGS_AT + 1 : at],
            data[after:end],
        )
    )


def digest(runs: Iterable[Run]) -> str:
    """A digest that is equal for the same messages in the same order, independent of the deliverer and the
    number of deliveries.
    """
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for run in runs:
        found.update(b"".join(run.contents()))
    return found.hexdigest()


def fingerprint(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=FINGERPRINT_BYTES).hexdigest()


def _like(data: bytes, at: int, head: int, size: int, most: int) -> int:
    """How many messages after the one at `at` have its shape: frames of the same types and sizes at the same
    positions.

    Checking one octet of all of them at once costs less than checking each message. Bodies in several frames
    are left to the code that walks message by message.
    """
    body = head + U32.unpack_from(data, at + head - 4)[0] + 1
    if data[at + body : at + body + 1] != BODY_OCTET or body + OVERHEAD_BYTES + U32.unpack_from(
        data, at + body + 3
    )[0] != (size):
        return 0
    places = (
        *range(head + BODY_SIZE_AT, head + FLAGS_AT),
        *range(head - HEAD_BYTES, head),
        *range(HEAD_BYTES + len(BASIC_DELIVER)),
        *range(body, body + HEAD_BYTES),
        size - 1,
    )
    count = min(most, LIKE_MIN)
    found = 0
    while count:
        begin = at + (found + 1) * size
        for place in places:
            if data[begin + place : begin + count * size : size] != data[at + place : at + place + 1] * count:
                return found
        found += count
        count = min(most - found, 4 * count)
    return found


class Splitter:
    """Takes deliveries out of a stream of bytes; `runs` holds those that are whole.

    The beginning of a message is kept here until its end has come, so that no message is decoded in two ways.
    """

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._held: list[bytes] = []
        self._held_bytes = 0
        #: No message is complete before so many bytes are here: so a large message is not walked at each
        #: receive.
        self._needed = 0

    def take(self, data: bytes, start: int, end: int) -> int:
        """Return the position of the first frame that is no part of a delivery, or `end`. Raises Garbled."""
        if not self._held:
            return self._walk(data, start, end)
        self._held.append(data[start:end])
        self._held_bytes += end - start
        if self._held_bytes < self._needed:
            return end
        whole = b"".join(self._held)
        self._held = []
        return end - len(whole) + self._walk(whole, 0, len(whole))

    def _walk(self, data: bytes, at: int, length: int) -> int:
        begin, removed = at, 0
        starts: list[int] = []
        heads: list[int] = []
        u32, u64 = U32.unpack_from, U64.unpack_from
        stop = usual = -1
        while data[at : at + 1] == METHOD_OCTET and data[at + 7 : at + 11] == BASIC_DELIVER and at < length:
            end = at + u32(data, at + 3)[0] + OVERHEAD_BYTES
            head, remaining, due = end + HEAD_BYTES, -1, HEADER
            while remaining:
                if end + HEAD_BYTES + (FLAGS_AT if due == HEADER else 0) > length:
                    break
                if data[end] != due:
                    # Frames of channel 0 may come between those of a message (spec 4.2.6).
                    if data[end : end + len(HEARTBEAT_FRAME)] != HEARTBEAT_FRAME:
                        raise Garbled(f"a frame of type {data[end]} came where one of type {due} was due")
                    data = data[:end] + data[end + len(HEARTBEAT_FRAME) :]
                    length -= len(HEARTBEAT_FRAME)
                    removed += len(HEARTBEAT_FRAME)
                    continue
                size = u32(data, end + 3)[0]
                if due == HEADER:
                    remaining, due = u64(data, head + BODY_SIZE_AT)[0], BODY
                else:
                    remaining -= size
                    if remaining < 0:
                        raise Garbled("a body is longer than its header says")
                end += size + OVERHEAD_BYTES
            if remaining or end > length:
                # The bytes that are known to be missing: one byte, the rest of a frame, or the rest of the
                # body and its frame.
                known = end + remaining + OVERHEAD_BYTES if remaining > 0 else end
                self._needed = max(known, length + 1) - at
                self._held, self._held_bytes = [data[at:length]], length - at
                stop = length
                break
            if data[end - 1] != FRAME_END:
                raise Garbled("a frame does not end where it should")
            starts.append(at - begin)
            heads.append(head - begin)
            size = end - at
            if size == usual:
                more = _like(data, at, head - at, size, min((length - end) // size, LIKE_MAX))
                if more:
                    starts += range(end - begin, end - begin + more * size, size)
                    heads += range(head + size - begin, head + size - begin + more * size, size)
                    end += more * size
            usual = size
            at = end
        if starts:
            whole = begin == 0 and at == len(data)
            self.runs.append(Run(data if whole else data[begin:at], starts, heads))
        return (at if stop < 0 else stop) + removed
