"""Compression of batches, with two libraries. Called by threads; both libraries release the interpreter's
lock meanwhile.
"""

from __future__ import annotations

import threading
from typing import Final

NONE: Final = "none"
ZSTD: Final = "zstd"
LZ4: Final = "lz4"
CODECS: Final = (ZSTD, LZ4, NONE)
#: The second-fastest level: the next ones take twice the time and save only some percent.
LEVEL: Final = 1
#: Compression does not pay for fewer bytes, or if it saves less than so many percent.
BYTES_MIN: Final = 256
SAVES_PERCENT_MIN: Final = 10

#: Zstandard keeps memory for reuse, which only one thread at a time may use.
_own = threading.local()


def compress(codec: str, data: bytes) -> bytes | None:
    """Return the data compressed; None if that does not pay."""
    if len(data) < BYTES_MIN:
        return None
    if codec == ZSTD:
        compressor = getattr(_own, "compressor", None)
        if compressor is None:
            from zstandard import ZstdCompressor

            compressor = _own.compressor = ZstdCompressor(
                LEVEL, write_checksum=False, write_content_size=False
            )
        done: bytes = compressor.compress(data)
    else:
        from lz4 import block

        done = block.compress(data, store_size=False)
    return _worth(done, len(data))


class Growing:
    """Compresses data piece by piece, with Zstandard: one piece takes less than a ms, much less than the
    whole.
    """

    def __init__(self) -> None:
        from zstandard import ZstdCompressor

        compressor = ZstdCompressor(LEVEL, write_checksum=False, write_content_size=False)
        self._compress = compressor.compressobj()
        self._done: list[bytes] = []
        self._size = 0

    def add(self, data: bytes | bytearray | memoryview) -> None:
        self._size += len(data)
        self._done.append(self._compress.compress(data))

    def finish(self) -> bytes | None:
        """Return the whole data compressed; None if that does not pay."""
        self._done.append(self._compress.flush())
        return _worth(b"".join(self._done), self._size)


def _worth(done: bytes, size: int) -> bytes | None:
    return done if len(done) * 100 <= size * (100 - SAVES_PERCENT_MIN) else None


def decompress(codec: str, data: bytes | memoryview, size: int) -> bytes:
    """Return the original data, which has this size. Raises ValueError."""
    if codec == ZSTD:
        from zstandard import ZstdDecompressor, ZstdError

        decompressor = getattr(_own, "decompressor", None)
        if decompressor is None:
            decompressor = _own.decompressor = ZstdDecompressor()
        try:
            done: bytes = decompressor.decompress(data, max_output_size=size)
        except ZstdError as error:
            raise ValueError(str(error)) from None
    else:
        from lz4 import block

        try:
            done = block.decompress(data, uncompressed_size=size)
        except block.LZ4BlockError as error:
            raise ValueError(str(error)) from None
    if len(done) != size:
        raise ValueError(f"{len(done)} bytes in place of {size}")
    return done
