"""Frames of a link: a length of four bytes, and so many bytes. A frame of length 0 is only a keep-alive.

The reader returns the buffers for the next bytes, and finds the frames in them. Frames that are complete in
the shared buffer are passed on as views of it. An incomplete frame gets a buffer of its own, into which its
rest is read directly from the socket. So no byte is copied more than once before the node sees it, for any
frame size.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

HEAD: Final = struct.Struct(">I")
KEEP_ALIVE = HEAD.pack(0)

#: Frames up to this size are joined into one piece when queued: cheaper than giving the kernel the pieces.
JOIN_BYTES_MAX: Final = 4096

#: Two buffers up to this size are kept for the next frames of a session: fresh memory costs a page fault each
#: 4 KiB.
SPARE_BYTES_MAX: Final = 2 << 20


class FrameError(Exception):
    """The peer sent bytes that are no frame; its session ends."""


def encode(parts: Sequence[bytes], size: int) -> list[bytes]:
    """Return the chunks that make one frame of the parts, `size` bytes together; big ones are not copied."""
    head = HEAD.pack(size)
    if size <= JOIN_BYTES_MAX:
        return [b"".join((head, *parts))]
    return [head, *parts]


class FrameReader:
    """Frames of one session. Call `buffers` and `received` without a wait
    in between: the buffer is shared.
    """

    __slots__ = ("_filled", "_frame", "_head", "_limit", "_other_spare", "_shared", "_spare")

    def __init__(self, shared: memoryview, frame_bytes_max: int) -> None:
        self._shared = shared
        self._limit = frame_bytes_max
        #: First bytes of an incomplete length.
        self._head = b""
        #: An incomplete frame, and the number of its received bytes.
        self._frame: memoryview | None = None
        self._filled = 0
        #: Buffers, used in turn, for frames that are incomplete in the shared buffer.
        self._spare = self._other_spare = memoryview(b"")

    @property
    def arrived_bytes(self) -> int:
        """Return how much of an incomplete frame has arrived."""
        return 0 if self._frame is None else self._filled

    def buffers(self, most: int) -> list[memoryview]:
        """Return the buffers for the next bytes, in order. `most`: limit for bytes of many small frames."""
        if self._frame is not None:
            return [self._frame[self._filled :], self._shared[:most]]
        return [self._shared[len(self._head) : most]]

    def received(self, count: int) -> list[memoryview]:
        """Return the frames that so many more bytes complete. Raises FrameError.

        The views are valid until the next wait.
        """
        frames: list[memoryview] = []
        frame = self._frame
        if frame is not None:
            missing = len(frame) - self._filled
            if count < missing:
                self._filled += count
                return frames
            frames.append(frame)
            self._frame = None
            self._walk(count - missing, frames)
        else:
            head = self._head
            if head:
                self._shared[: len(head)] = head
                self._head = b""
            self._walk(len(head) + count, frames)
        return frames

    def _walk(self, end: int, frames: list[memoryview]) -> None:
        shared, limit = self._shared, self._limit
        at, unpack = 0, HEAD.unpack_from
        while end - at >= 4:
            head: tuple[int] = unpack(shared, at)
            size = head[0]
            at += 4
            if size > limit:
                raise FrameError(f"a frame of {size} bytes; the limit is {limit}")
            stop = at + size
            if stop > end:
                self._begin(size, shared[at:end])
                return
            if size:
                frames.append(shared[at:stop])
            at = stop
        self._head = bytes(shared[at:end])

    def _begin(self, size: int, came: memoryview) -> None:
        # Not the buffer of the frame that was completed by the same read: the node has not seen it yet.
        self._spare, spare = self._other_spare, self._spare
        if size > len(spare):
            # Zeroed memory of this size costs address space only, until bytes arrive for it.
            frame = memoryview(bytearray(size))
            if size <= SPARE_BYTES_MAX:
                spare = frame
        else:
            frame = spare[:size]
        self._other_spare = spare
        frame[: len(came)] = came
        self._frame = frame
        self._filled = len(came)
