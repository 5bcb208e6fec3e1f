"""How much a link reads at a time: less while many small frames take long, so that others on this node need
not wait.
"""

from __future__ import annotations

from typing import Any, cast

from quorum_queue.links.framing import FrameReader, encode
from quorum_queue.links.handshake import Hello
from quorum_queue.links.ports import LinkOptions, Poll
from quorum_queue.links.session import READ_BYTES_MIN, LinkSession
from quorum_queue.links.steady_clock import SteadyClock

READ_BYTES = 1 << 20
SMALL, LARGE = [b"small"] * 100, [b"x" * 10_000]


class Node:
    """A session whose peer has always sent these frames, and the time that it takes to handle them."""

    more, pending_bytes = False, 0

    def __init__(self) -> None:
        self.frames = SMALL
        self.takes_s = self.time_s = 0.0
        self.asked_bytes = 0
        options = LinkOptions(read_bytes=READ_BYTES, read_s=0.004)
        self.session = LinkSession(
            cast(Any, self),
            Hello("n2", 1, "disk of n2"),
            1,
            options,
            FrameReader(memoryview(bytearray(READ_BYTES)), options.frame_bytes_max),
            SteadyClock(0.0, 1.0),
            lambda: self.time_s,
            cast(Poll, None),
            self.received,
            lambda: None,
        )

    def fileno(self) -> int:
        return 0

    def receive(self, buffers: list[memoryview]) -> int:
        self.asked_bytes = sum(map(len, buffers))
        data = b"".join(b"".join(encode([frame], len(frame))) for frame in self.frames)
        buffers[0][: len(data)] = data
        return len(data)

    def received(self, peer: str, frames: list[memoryview]) -> None:
        assert len(frames) == len(self.frames)
        self.time_s += self.takes_s

    def asks(self, frames: list[bytes], takes_s: float) -> int:
        """Have the session read these frames; return how many bytes the next read asks for."""
        self.frames, self.takes_s = frames, takes_s
        self.session.read()
        self.session.read()
        return self.asked_bytes


def test_small_frames_that_take_long_are_read_a_few_at_a_time() -> None:
    node = Node()
    assert node.asks(SMALL, 0.001) == READ_BYTES
    sizes = [node.asks(SMALL, 0.02) for _ in range(10)]
    assert sizes[0] == READ_BYTES // 2 and sizes[-1] == READ_BYTES_MIN
    # A time near the target changes nothing.
    assert node.asks(SMALL, 0.003) == READ_BYTES_MIN
    sizes = [node.asks(SMALL, 0.0001) for _ in range(10)]
    assert sizes[0] > READ_BYTES_MIN and sizes[-1] == READ_BYTES


def test_one_large_frame_is_read_as_fast_as_it_comes() -> None:
    node = Node()
    assert [node.asks(LARGE, 0.02) for _ in range(3)] == 3 * [READ_BYTES]
