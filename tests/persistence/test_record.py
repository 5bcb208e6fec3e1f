"""Records on disk: a large payload becomes chunks one by one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from persistence.record import (
    BODY_KEY,
    CHUNK_BYTES,
    HEADER,
    count_chunks,
    find_fault,
    join,
    pack,
    pack_chunks,
)


def key_of(chunk: int) -> bytes:
    return BODY_KEY.pack(7, 8, chunk)


@pytest.mark.parametrize(
    "sizes",
    [
        [CHUNK_BYTES + 1],
        [2 * CHUNK_BYTES],
        [100, CHUNK_BYTES - 100, 5],
        [100, 3 * CHUNK_BYTES, 0, 7, CHUNK_BYTES],
        [CHUNK_BYTES // 3] * 10,
    ],
)
def test_chunks_have_what_the_parts_have(sizes: list[int]) -> None:
    parts = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    found = list(pack_chunks(key_of, parts))
    keys, chunks = [key for key, _ in found], [memoryview(value) for _, value in found]
    assert find_fault(key_of, keys, chunks) is None
    assert join(chunks) == b"".join(parts)
    assert len(chunks) == count_chunks(sum(sizes))
    assert {len(chunk) - HEADER.size for chunk in chunks[:-1]} == {CHUNK_BYTES}


def test_a_payload_of_several_parts_is_not_put_together_first() -> None:
    parts = [b"head", b"meta", bytes(16 * CHUNK_BYTES)]
    _, _, chunks = pack(7, 8, 1, parts, 1)
    assert isinstance(chunks, Iterator)
    tracemalloc.start()
    try:
        next(chunks)
        assert tracemalloc.get_traced_memory()[1] < 2 * CHUNK_BYTES
    finally:
        tracemalloc.stop()
