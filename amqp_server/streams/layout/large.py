"""A large message is encoded for a stream piece by piece, so that others have their turns: copying 16 MiB
with their checksum would be a step of about 15 ms.

The result is the item (see encode.py). Its offset is put in when the stream assigns one; the checksum of the
bytes behind it is known by then.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final
from zlib import crc32

from persistence.streams import checksum
from persistence.streams.compression import Growing

#: Contents with more than this many bytes are encoded separately.
LARGE_CONTENT_BYTES: Final = 1 << 20
#: Maximum number of bytes of a piece, and of frames that begin in it.
PIECE_BYTES: Final = 256 * 1024
PIECE_FRAMES: Final = 4096
_CHANNEL: Final = b"\x00\x01"


class LargeItem:
    """One message for one stream. See quorum_queue.ports.Preparing."""

    __slots__ = (
        "_at",
        "_begin",
        "_content",
        "_crc",
        "_items",
        "_next_frame",
        "_packing",
        "_post",
        "_restamps",
        "largest",
        "packed",
        "payload_bytes",
        "pre",
        "size",
    )

    def __init__(
        self,
        content: bytes,
        at: int,
        pre: bytes,
        post: bytes,
        payload_bytes: int,
        channel: int,
        packing: Growing | None = None,
    ) -> None:
        """The body frames begin at `at`; `pre` and `post` are the bytes in front of them, around the offset.
        `packing` compresses the item with offset 0.
        """
        self._content = content
        self.pre, self._post = pre, post
        #: Position up to which the content is copied, and position of the next frame.
        self._at = self._next_frame = at
        self._restamps = channel != 1
        self._begin = len(pre) + 8 + len(post)
        self.size = self._begin + len(content) - at
        #: Size of the content header's payload, and of the largest body frame.
        self.payload_bytes = payload_bytes
        self.largest = 0
        #: Checksum of the body frames so far.
        self._crc = 0
        self._packing = packing
        #: The compressed item; None if compression does not pay off.
        self.packed: bytes | None = None
        if packing is not None:
            packing.add(b"".join((pre, bytes(8), post)))
        # Pages that were never written take no memory.
        self._items = BytesIO(bytes(self.size))
        self._items.seek(self._begin)

    def go_on(self) -> bool:
        """Copy the next piece; False if that was the last one."""
        content, start, at = self._content, self._at, self._next_frame
        stop = min(start + PIECE_BYTES, len(content))
        frames: list[int] = []
        while at < stop:
            if at + 7 > stop or len(frames) == PIECE_FRAMES:
                # The head of a frame is not split.
                stop = at
                break
            frames.append(at)
            size = int.from_bytes(content[at + 3 : at + 7], "big") + 8
            if size > self.largest:
                self.largest = size
            at += size
        piece: memoryview | bytearray = memoryview(content)[start:stop]
        if self._restamps and frames:
            piece = bytearray(piece)
            for frame in frames:
                piece[frame - start + 1 : frame - start + 3] = _CHANNEL
        # The piece is in the processor's cache now: the checksum takes a third of the time.
        self._items.write(piece)
        self._crc = crc32(piece, self._crc)
        if self._packing is not None:
            self._packing.add(piece)
        self._at, self._next_frame = stop, at
        return stop < len(content)

    def finish(self, offset: int) -> tuple[bytes, int]:
        """Return the item with this offset, and its checksum; the object is used up."""
        while self._at < len(self._content) and self.go_on():
            pass
        if self._packing is not None:
            self.packed = self._packing.finish()
        front = b"".join((self.pre, offset.to_bytes(8, "big"), self._post))
        items = self._items
        items.seek(0)
        items.write(front)
        # This copies nothing, because there is no other reference to the buffer.
        return items.getvalue(), checksum.joined(crc32(front), self._crc, self.size - self._begin)


__all__ = ["LARGE_CONTENT_BYTES", "LargeItem"]
