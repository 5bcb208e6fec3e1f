"""Records on disk: keys, values and their checksums.

A record is a batch of messages with consecutive sequence numbers. Its payload is a head, which a restart
reads, and a body, which it does not. The head is stored under (queue, first, count, chunks), big-endian, so
that keys sort by queue and position; the body in so many chunks in a separate table, under (queue, first,
chunk). A small record is completely in the head's value and has no chunks. So a restart and a settle walk the
heads and touch no body: py-lmdb reads every page of a value that a cursor passes. The count and the number of
chunks are in the key, so that a settle needs no value at all. A body is cut into chunks because LMDB needs
contiguous free pages for each value.

Every value begins with a version byte and the CRC-32 of all the rest, the key included: a good value under a
wrong key is corrupt, too.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from zlib import crc32

from persistence.errors import CorruptRecord

RECORD_VERSION: Final = 1
CHUNK_BYTES: Final = 512 * 1024
# Up to this size head and body share a value. A larger limit would save a call for each record but make a
# restart slower: with bodies of 1 KB beside the heads it would read three times as many pages as without.
INLINE_BYTES: Final = 512
# Up to this size copying a chunk once more is cheaper than inserting its checksum afterwards.
COPIED_BYTES_MAX: Final = 8 * 1024

KEY: Final = struct.Struct(">QQIH")  # queue_id, first_seq, count, chunks of the body
BODY_KEY: Final = struct.Struct(">QQH")  # queue_id, first_seq, chunk
POSITION: Final = struct.Struct(">QQ")  # queue_id, seq
SPAN: Final = struct.Struct(">QQQ")  # queue_id, first_seq, count: the key of a note about several messages
QUEUE: Final = struct.Struct(">Q")
HEADER: Final = struct.Struct(">BII")  # version, crc32, payload bytes of all chunks together
SEALED: Final = struct.Struct(">BI")  # version, crc32
SIZE: Final = struct.Struct(">I")  # the rest of a header
SEQ_MAX: Final = (1 << 64) - 1
COUNT_MAX: Final = (1 << 32) - 1
CHUNKS_MAX: Final = (1 << 16) - 1

Payload = bytes | list[bytes]
Values = Iterable[tuple[bytes, bytes | bytearray]]
Fetch = Callable[[bytes], memoryview | None]  # a chunk by its key


def span_of(key: bytes | memoryview) -> tuple[int, int, int]:
    """Return queue, first message and the one after the last that a note is about, from its key."""
    if len(key) == POSITION.size:
        queue_id, seq = POSITION.unpack(key)
        return queue_id, seq, seq + 1
    queue_id, first, count = SPAN.unpack(key)
    return queue_id, first, first + count


def span_key(queue_id: int, start: int, stop: int) -> bytes:
    """Return the key of a note about these messages."""
    one = stop - start == 1
    return POSITION.pack(queue_id, start) if one else SPAN.pack(queue_id, start, stop - start)


def size_of(payload: Payload) -> int:
    return len(payload) if isinstance(payload, bytes) else sum(map(len, payload))


class Record(NamedTuple):
    first_seq: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    payload: bytes  # empty if it is damaged
    fault: str = ""  # what is wrong with it


class RecoveredRecord:
    """A record found at start. Valid only until the next one is taken from the iterator.

    The body is read only when `payload` or `corrupt` is used.
    """

    __slots__ = ("_fetch", "_key", "_value", "count", "first_seq", "settled")

    def __init__(self, key: bytes, value: memoryview, fetch: Fetch, settled: list[range]) -> None:
        _, self.first_seq, self.count, _ = KEY.unpack(key)
        self.settled = settled
        self._key = key
        self._value = value
        self._fetch = fetch

    @property
    def head(self) -> memoryview:
        """The payload's head, uncopied and unverified. Of a small record it is all of the payload."""
        return self._value[SEALED.size :]

    @property
    def payload(self) -> bytes:
        """The whole payload. Raises CorruptRecord."""
        return unpack(self._key, self._value, self._fetch)

    @property
    def head_corrupt(self) -> bool:
        """True if the head fails its checksum."""
        return find_seal_fault(self._key, self._value) is not None

    @property
    def corrupt(self) -> bool:
        """True if any part of the record fails its checksum. Reads all of it."""
        return self.head_corrupt or _read_body(self._key, self._fetch)[1] is not None


@dataclass
class RecoveredQueue:
    queue_id: int
    state: bytes | None
    annotations: dict[int, bytes]
    records: Iterator[RecoveredRecord]


def pack(
    queue_id: int, first_seq: int, count: int, payload: Payload, head_parts: int
) -> tuple[bytes, bytes, Values]:
    """The head's key, the head, and keys and values of the body's chunks."""
    parts = [payload] if isinstance(payload, bytes) else payload
    if sum(map(len, parts)) <= INLINE_BYTES:
        head_parts = len(parts)
    body = parts[head_parts:]
    size = sum(map(len, body))
    key = KEY.pack(queue_id, first_seq, count, count_chunks(size) if size else 0)
    head = seal(key, b"".join(parts[:head_parts]))
    if not size:
        return key, head, ()
    if size <= CHUNK_BYTES:
        return key, head, (_pack_chunk(BODY_KEY.pack(queue_id, first_seq, 0), size, body),)
    return key, head, pack_chunks(lambda chunk: BODY_KEY.pack(queue_id, first_seq, chunk), body)


def unpack(key: bytes, value: memoryview | bytes, fetch: Fetch) -> bytes:
    """The payload of a record, copied once. Raises CorruptRecord."""
    fault = find_seal_fault(key, value)
    chunks: list[memoryview] = []
    if fault is None:
        chunks, fault = _read_body(key, fetch)
    if fault is not None:
        raise _corrupt(key, fault)
    if not chunks:
        return bytes(value[SEALED.size :])
    return b"".join([value[SEALED.size :], *[chunk[HEADER.size :] for chunk in chunks]])


def body_keys(key: bytes) -> list[bytes]:
    """The keys of a record's body."""
    queue_id, first_seq, _, chunks = KEY.unpack(key)
    return [BODY_KEY.pack(queue_id, first_seq, chunk) for chunk in range(chunks)]


def _read_body(key: bytes, fetch: Fetch) -> tuple[list[memoryview], str | None]:
    """The chunks of a record's body, and their damage if any."""
    keys = body_keys(key)
    chunks: list[memoryview] = []
    for at, body_key in enumerate(keys):
        chunk = fetch(body_key)
        if chunk is None:
            return [], f"lacks its chunk {at}"
        chunks.append(chunk)
    return chunks, find_fault(keys.__getitem__, keys, chunks)


def _corrupt(key: bytes, what: str) -> CorruptRecord:
    queue_id, first_seq, count, _ = KEY.unpack(key)
    text = f"the journal record of queue {queue_id}, messages {first_seq} to {first_seq + count - 1}, {what}"
    return CorruptRecord(text, queue_id, first_seq)


def pack_chunks(key_of: Callable[[int], bytes], payload: Payload) -> Values:
    """Keys and values of a payload in chunks. `key_of` makes the key of a chunk."""
    parts = [payload] if isinstance(payload, bytes) else payload
    size = sum(map(len, parts))
    if size <= CHUNK_BYTES:
        yield _pack_chunk(key_of(0), size, parts)
        return
    for chunk, pieces in enumerate(_cut(parts)):
        yield _pack_chunk(key_of(chunk), size, pieces)


def _cut(parts: Sequence[bytes]) -> Iterator[list[memoryview]]:
    """Yield the pieces of each chunk. Joining 16 MiB first would be a step of several ms."""
    pieces: list[memoryview] = []
    room = CHUNK_BYTES
    for part in parts:
        view = memoryview(part)
        while len(view):
            piece = view[:room]
            view = view[len(piece) :]
            pieces.append(piece)
            room -= len(piece)
            if not room:
                yield pieces
                pieces, room = [], CHUNK_BYTES
    if pieces:
        yield pieces


def _pack_chunk(
    key: bytes, size: int, parts: Sequence[bytes | memoryview]
) -> tuple[bytes, bytes | bytearray]:
    if size <= COPIED_BYTES_MAX:
        return key, seal(key, b"".join([SIZE.pack(size), *parts]))
    header = HEADER.pack(RECORD_VERSION, 0, size)
    value = bytearray().join([header, *parts])
    with memoryview(value) as view:
        checksum = crc32(view[SEALED.size :], crc32(key))
    SEALED.pack_into(value, 0, RECORD_VERSION, checksum)
    return key, value


def count_chunks(size: int) -> int:
    return max(-(-size // CHUNK_BYTES), 1)


def find_fault(
    key_of: Callable[[int], bytes], keys: Sequence[bytes], chunks: Sequence[memoryview | bytes]
) -> str | None:
    """Describe the damage of these chunks, which should be one complete payload, as packed."""
    found = size = 0
    for chunk, (key, value) in enumerate(zip(keys, chunks, strict=True)):
        if len(value) < HEADER.size:
            return "is cut off"
        version, checksum, size = HEADER.unpack_from(value)
        if version != RECORD_VERSION:
            return f"has the unknown version {version}"
        if key != key_of(chunk):
            return f"lacks its chunk {chunk}"
        if crc32(memoryview(value)[SEALED.size :], crc32(key)) != checksum:
            return "does not match its checksum"
        found += len(value) - HEADER.size
    return None if found == size else f"has {found} of its {size} bytes"


def join(chunks: Sequence[memoryview]) -> bytes:
    """The payload of verified chunks, copied once."""
    if len(chunks) == 1:
        return bytes(chunks[0][HEADER.size :])
    return b"".join([chunk[HEADER.size :] for chunk in chunks])


def seal(key: bytes, content: bytes) -> bytes:
    """A small value: version, checksum, content."""
    return SEALED.pack(RECORD_VERSION, crc32(content, crc32(key))) + content


def unseal(key: bytes, value: bytes | memoryview, name: Callable[[], str]) -> bytes:
    """The content of a small value. `name` says what it is, for the error."""
    fault = find_seal_fault(key, value)
    if fault is not None:
        raise CorruptRecord(f"{name()} {fault}")
    return bytes(value[SEALED.size :])


def find_seal_fault(key: bytes, value: bytes | memoryview) -> str | None:
    """Describe the damage of a small value."""
    if len(value) < SEALED.size:
        return "is cut off"
    version, checksum = SEALED.unpack_from(value)
    if version != RECORD_VERSION:
        return f"has the unknown version {version}"
    if crc32(value[SEALED.size :], crc32(key)) != checksum:
        return "does not match its checksum"
    return None
