"""Records on disk: keys, values and their checksums.

A record is a batch of messages with consecutive sequence numbers. Its key is (queue, first, chunk, count),
big-endian, so that keys sort by queue and position. The count is in the key and not in the value because a
value larger than half a page lies in overflow pages of its own: a restart and a settle then learn all they
need without touching those pages. Large payloads are cut into chunks, because LMDB needs contiguous free
pages for each value.

Every value begins with a version byte and the CRC-32 of all the rest, the key included: a good value under a
wrong key is corrupt, too.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from persistence.errors import CorruptRecord

RECORD_VERSION = 1
CHUNK_BYTES = 512 * 1024

KEY = struct.Struct(">QQHI")  # queue_id, first_seq, chunk, count
POSITION = struct.Struct(">QQ")  # queue_id, seq
QUEUE = struct.Struct(">Q")
HEADER = struct.Struct(">BII")  # version, crc32, payload bytes of all chunks together
SEALED = struct.Struct(">BI")  # version, crc32
SEQ_MAX = (1 << 64) - 1

Payload = bytes | list[bytes]


class Record(NamedTuple):
    first_seq: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    payload: bytes


class RecoveredRecord:
    """A record found at start. Valid only until the next one is taken from the iterator.

    Nothing of the payload is read before it is asked for: `prefix` and `payload` are views of mapped pages,
    and `corrupt` reads all of it. A record that is cut off or has lost a chunk is corrupt without being
    read.
    """

    __slots__ = ("_chunks", "_keys", "count", "first_seq", "settled")

    def __init__(
        self, first_seq: int, count: int, keys: list[bytes], chunks: list[memoryview], settled: list[range]
    ) -> None:
        self.first_seq = first_seq
        self.count = count
        self.settled = settled
        self._keys = keys
        self._chunks = chunks

    @property
    def prefix(self) -> memoryview:
        """The payload's beginning, at most one chunk, uncopied."""
        return self._chunks[0][HEADER.size :]

    @property
    def payload(self) -> memoryview:
        """The whole payload, unverified. Uncopied unless it has several chunks."""
        if len(self._chunks) == 1:
            return self.prefix
        return memoryview(b"".join([chunk[HEADER.size :] for chunk in self._chunks]))

    @property
    def corrupt(self) -> bool:
        """Does the record fail its checksum? Reads the whole payload."""
        try:
            verify(self._keys, self._chunks)
        except CorruptRecord:
            return True
        return False


@dataclass(slots=True)
class RecoveredQueue:
    queue_id: int
    state: bytes | None
    annotations: dict[int, bytes]
    records: Iterator[RecoveredRecord]


def pack(
    queue_id: int, first_seq: int, count: int, payload: Payload
) -> Iterator[tuple[bytes, bytes | bytearray]]:
    """Keys and values of a record. The payload is copied once, into the value."""
    return pack_chunks(lambda chunk: KEY.pack(queue_id, first_seq, chunk, count), payload)


def pack_chunks(
    key_of: Callable[[int], bytes], payload: Payload
) -> Iterator[tuple[bytes, bytes | bytearray]]:
    """Keys and values of a payload that is cut into chunks. `key_of` makes the key of a chunk."""
    parts = [payload] if isinstance(payload, bytes) else payload
    size = sum(map(len, parts))
    if size <= CHUNK_BYTES:
        yield _pack_chunk(key_of(0), size, parts)
        return
    whole = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
    for chunk, start in enumerate(range(0, size, CHUNK_BYTES)):
        yield _pack_chunk(key_of(chunk), size, [whole[start : start + CHUNK_BYTES]])


def _pack_chunk(key: bytes, size: int, parts: Sequence[bytes | memoryview]) -> tuple[bytes, bytearray]:
    header = HEADER.pack(RECORD_VERSION, 0, size)
    value = bytearray().join([header, *parts])
    with memoryview(value) as view:
        checksum = crc32(view[SEALED.size :], crc32(key))
    SEALED.pack_into(value, 0, RECORD_VERSION, checksum)
    return key, value


def verify(keys: Sequence[bytes], chunks: Sequence[memoryview | bytes]) -> None:
    """Raise CorruptRecord unless these are all the chunks of one record, as they were written."""
    queue_id, first_seq, _, count = KEY.unpack(keys[0])
    fault = find_fault(lambda chunk: KEY.pack(queue_id, first_seq, chunk, count), keys, chunks)
    if fault is not None:
        raise _corrupt(queue_id, first_seq, count, fault)


def find_fault(
    key_of: Callable[[int], bytes], keys: Sequence[bytes], chunks: Sequence[memoryview | bytes]
) -> str | None:
    """What is wrong with these chunks, which should be all of one payload, as they were packed."""
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


def _corrupt(queue_id: int, first_seq: int, count: int, what: str) -> CorruptRecord:
    text = f"the journal record of queue {queue_id}, messages {first_seq} to {first_seq + count - 1}, {what}"
    return CorruptRecord(text, queue_id, first_seq)


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
    if len(value) < SEALED.size:
        raise CorruptRecord(f"{name()} is cut off")
    version, checksum = SEALED.unpack_from(value)
    if version != RECORD_VERSION:
        raise CorruptRecord(f"{name()} has the unknown version {version}")
    content = bytes(value[SEALED.size :])
    if crc32(content, crc32(key)) != checksum:
        raise CorruptRecord(f"{name()} does not match its checksum")
    return content
