"""One session with one peer: writes queued frames to the wire, and passes frames from the wire to the node.

It has no task. The poll that waits for all sockets calls it, in a turn, when its own is ready.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from quorum_queue.links.framing import KEEP_ALIVE, FrameError, FrameReader, encode
from quorum_queue.links.handshake import Hello
from quorum_queue.links.ports import LinkOptions, Poll, Wire
from quorum_queue.links.steady_clock import SteadyClock

#: Chunks given to the kernel at once (IOV_MAX is 1,024), and bytes, as it takes no more than fit in the
#: socket.
GATHER_MAX: Final = 512
GATHER_BYTES: Final = 2 << 20
#: Frames that are passed on before the session looks at the time: so many, or those of so many bytes.
FRAMES_AT_ONCE: Final = 16
BYTES_AT_ONCE: Final = 64 << 10


class LinkSession:
    """A session lasts from its agreed beginning until one side ends it."""

    __slots__ = (
        "_blocked",
        "_clock",
        "_ended",
        "_frame_bytes_max",
        "_left",
        "_now_s",
        "_poll",
        "_queue",
        "_queue_bytes_max",
        "_queued_bytes",
        "_read_bytes",
        "_read_s",
        "_reader",
        "_received",
        "_sent_since_tick",
        "_wire",
        "adopted_as",
        "began",
        "closed",
        "fd",
        "heard_at",
        "hello",
        "peer",
        "queued",
        "reason",
        "watched",
    )

    def __init__(
        self,
        wire: Wire,
        hello: Hello,
        adopted_as: int,
        options: LinkOptions,
        reader: FrameReader,
        clock: SteadyClock,
        now_s: Callable[[], float],
        poll: Poll,
        received: Callable[[str, list[memoryview]], None],
        ended: Callable[[], None],
    ) -> None:
        """`received` takes frames that came together. An exception from it is the node's fault, not the
        peer's. `ended` is called once, when the session is closed.
        """
        self.peer = hello.name
        self.hello = hello
        #: Its number in the count of the node that adopted it; see choice.
        self.adopted_as = adopted_as
        self._wire = wire
        self._reader = reader
        self._clock = clock
        self._now_s = now_s
        self._poll = poll
        self._received = received
        self._ended = ended
        self._frame_bytes_max = options.frame_bytes_max
        self._queue_bytes_max = options.queue_bytes_max
        self._read_bytes = options.read_bytes
        self._read_s = options.read_s
        #: Frames of the last read that there was no time for.
        self._left: list[memoryview] = []
        self._queue: deque[bytes | memoryview] = deque()
        self._queued_bytes = 0
        #: True while the socket is full: `writable` continues when it has room.
        self._blocked = False
        #: True if the session takes and passes on no more frames.
        self.closed = False
        #: The reason why this side ended it, if it did.
        self.reason = ""
        self._sent_since_tick = True
        self.began = self.heard_at = clock.at(now_s())
        self.fd = wire.fileno()
        #: For the poll: the events that it waits for, and whether the session is to be read.
        self.watched = 0
        self.queued = False

    @property
    def pending_bytes(self) -> int:
        return self._queued_bytes + self._wire.pending_bytes

    @property
    def arrived_bytes(self) -> int:
        """Bytes of a frame that has not come completely."""
        return self._reader.arrived_bytes

    def begin(self) -> None:
        """Begin to read."""
        if not self.closed:
            self._poll.watch_link(self, writable=self._blocked)
            if self._wire.more:
                self._poll.read_again(self)

    # -- out -------------------------------------------------------------------------------------------------

    def send(self, parts: list[bytes]) -> bool:
        """Queue one frame; `flush` sends it."""
        size = 0
        for part in parts:
            size += len(part)
        if not 0 < size <= self._frame_bytes_max:
            raise ValueError(f"a frame of {size} bytes; it has to be from 1 to {self._frame_bytes_max}")
        if self._queued_bytes > self._queue_bytes_max:
            self.close(f"reads too slowly: {self._queued_bytes} bytes wait for it")
            return False
        self._queue.extend(encode(parts, size))
        self._queued_bytes += size + 4
        return True

    def flush(self) -> None:
        """Send waiting frames, as far as the socket takes them now."""
        if self._blocked or self.closed:
            return
        try:
            while self._queue:
                if not self._send_some():
                    self._wait_for_room()
                    return
            if self._wire.pending_bytes:
                self._wait_for_room()
        except OSError as error:
            self.close(str(error))

    def _wait_for_room(self) -> None:
        self._blocked = True
        self._poll.watch_link(self, writable=True)

    def _send_some(self) -> int:
        queue = self._queue
        mean_bytes = self._queued_bytes // len(queue)
        chunks = list(islice(queue, min(GATHER_MAX, 4 + GATHER_BYTES // (mean_bytes + 1))))
        sent = self._wire.send(chunks)
        if sent:
            self._sent_since_tick = True
            self._queued_bytes -= sent
            left = sent
            while left:
                chunk = queue.popleft()
                left -= len(chunk)
                if left < 0:
                    queue.appendleft(memoryview(chunk)[left:])
                    break
        return sent

    def writable(self) -> None:
        """The socket has room again."""
        if self.closed:
            return
        try:
            self._wire.push()
            if self._queue:
                self._send_some()
        except OSError as error:
            self.close(str(error))
            return
        if not self._queue and not self._wire.pending_bytes:
            self._blocked = False
            self._poll.watch_link(self, writable=False)

    # -- in --------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Pass on frames, as many as there is time for. Exceptions of the node pass through."""
        if self.closed:
            return
        frames, self._left = self._left, []
        if not frames:
            try:
                count = self._wire.receive(self._reader.buffers(self._read_bytes))
                if count is None:
                    return
                if not count:
                    self.close("closed by the peer")
                    return
                frames = self._reader.received(count)
            except OSError as error:
                self.close(str(error))
                return
            except FrameError as error:
                self.close(f"it sent something that is not a frame: {error}")
                return
        self.heard_at = self._clock.at(self._now_s())
        if len(frames) == 1:
            self._received(self.peer, frames)
        elif frames:
            self._pass_on_some(frames)
        if (self._left or self._wire.more) and not self.closed:
            self._poll.read_again(self)

    def _pass_on_some(self, frames: list[memoryview]) -> None:
        """Pass on frames until the time is over: everything else on this node waits meanwhile."""
        ends = self._now_s() + self._read_s
        some: list[memoryview] = []
        size = 0
        for at, frame in enumerate(frames, 1):
            some.append(frame)
            size += len(frame)
            if len(some) < FRAMES_AT_ONCE and size < BYTES_AT_ONCE:
                continue
            self._received(self.peer, some)
            if self.closed:
                return
            some, size = [], 0
            if at < len(frames) and self._now_s() >= ends:
                # The buffer that they are in is shared.
                self._left = [memoryview(bytes(left)) for left in frames[at:]]
                return
        if some:
            self._received(self.peer, some)

    # -- time and the end ------------------------------------------------------------------------------------

    def keep_alive(self) -> None:
        """Send a keep-alive if nothing was sent since the last call."""
        if not self._sent_since_tick and not self._queue and not self._wire.pending_bytes:
            self._queue.append(KEEP_ALIVE)
            self._queued_bytes += len(KEEP_ALIVE)
            self.flush()
        self._sent_since_tick = False

    def close(self, reason: str = "") -> None:
        """End the session: it takes nothing more."""
        if not self.closed:
            self.closed = True
            self.reason = reason
            self._queue.clear()
            self._queued_bytes = 0
            self._left.clear()
            self._poll.forget_link(self)
            self._ended()
