from __future__ import annotations

from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from persistence.streams import checksum


@given(st.binary(), st.binary())
def test_the_checksum_of_two_parts(first: bytes, second: bytes) -> None:
    assert checksum.joined(crc32(first), crc32(second), len(second)) == crc32(first + second)


def test_the_checksum_of_large_parts() -> None:
    second = bytes(range(256)) * 70_001
    assert checksum.joined(crc32(b"front"), crc32(second), len(second)) == crc32(b"front" + second)
