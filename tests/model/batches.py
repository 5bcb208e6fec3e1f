"""Deliveries of whole batches of a stream (`x-stream-batches`), decoded as docs/streams.md says."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from lz4 import block
from pamqp.header import ContentHeader
from zstandard import ZstdDecompressor

from tests.model.spec.promises import Broken

CONTENT_TYPE = "application/x-mqd-batch"
_HEAD, _SHAPE = struct.Struct(">4sBBHQIQIIIII"), struct.Struct(">IIHII")
_ZSTD, _LZ4, _SPARSE = 4, 8, 32


@dataclass(frozen=True)
class Stored:
    """A message of a batch."""

    offset: int
    number: int


def decoded(batch: bytes) -> list[Stored]:
    """Return the messages of a batch. Raises Broken if it is not as the docs say."""
    magic, version, flags, shapes, first, span, _, meta_bytes, item_bytes, *sums = _HEAD.unpack_from(batch)
    meta, items = batch[48 : 48 + meta_bytes], batch[48 + meta_bytes :]
    if (magic, version, len(items)) != (b"mqdS", 1, item_bytes):
        raise Broken(f"a batch has a head that is wrong: {batch[:48]!r}, of {len(batch)} bytes")
    if sums != [zlib.crc32(meta), zlib.crc32(items), zlib.crc32(batch[:44])]:
        raise Broken(f"a batch has wrong checksums: {batch[:48]!r}")
    table = [_SHAPE.unpack_from(meta, 18 * at) for at in range(shapes)]
    size = sum(count * bytes_each for count, bytes_each, *_ in table)
    if flags & _ZSTD:
        items = ZstdDecompressor().decompress(items, max_output_size=size)
    elif flags & _LZ4:
        items = block.decompress(items, uncompressed_size=size)
    numbers = list(_numbers(table, items))
    count = len(numbers)
    offsets = list(
        struct.unpack_from(f">{count}I", meta, meta_bytes - 4 * count) if flags & _SPARSE else range(count)
    )
    if len(items) != size or sorted(set(offsets)) != offsets or (offsets and offsets[-1] >= span):
        raise Broken(f"a batch has {len(items)} bytes of items and the offsets {offsets} of {span}")
    return [Stored(first + offset, number) for offset, number in zip(offsets, numbers, strict=True)]


def _numbers(table: list[tuple[int, ...]], items: bytes) -> Iterator[int]:
    at = 0
    for count, size, routing, properties, _ in table:
        for _ in range(count):
            header = ContentHeader()
            begin = at + 1 + routing + 1 + 7
            header.unmarshal(items[begin : begin + properties])
            yield int(header.properties.message_id or -1)
            at += size
