"""One session with one peer: writes queued frames to the wire, and passes frames from the wire to the mesh."""

from __future__ import annotations

import logging
import ssl
from collections import deque
from collections.abc import Callable
from itertools import islice

import trio

from quorum_queue.links.framing import KEEP_ALIVE, FrameError, FrameReader, encode
from quorum_queue.links.handshake import Hello
from quorum_queue.links.ports import LinkOptions
from quorum_queue.links.steady_clock import SteadyClock
from quorum_queue.links.wire import Wire

logger = logging.getLogger("mqd.links")

#: Chunks given to the kernel at once (IOV_MAX is 1,024), and bytes, as it takes no more than fit in the
#: socket.
GATHER_MAX = 512
GATHER_BYTES = 2 << 20

#: Ordinary ends of a connection.
LOST = (OSError, ssl.SSLError, trio.BrokenResourceError, trio.ClosedResourceError)


class LinkSession:
    """A session lasts from its agreed beginning until one side ends it."""

    def __init__(
        self,
        wire: Wire,
        hello: Hello,
        adopted_as: int,
        options: LinkOptions,
        reader: FrameReader,
        clock: SteadyClock,
    ) -> None:
        self.peer = hello.name
        self.hello = hello
        #: Its number among the sessions of the node that adopted it; see choice.
        self.adopted_as = adopted_as
        self._wire = wire
        self._reader = reader
        self._clock = clock
        self._frame_bytes_max = options.frame_bytes_max
        self._queue_bytes_max = options.queue_bytes_max
        self._queue: deque[bytes | memoryview] = deque()
        self._queued_bytes = 0
        #: The socket is full: `_drain` continues when it has room.
        self._blocked = False
        self._wake_drain = trio.Event()
        self._scope = trio.CancelScope()
        #: The session takes and passes on no more frames.
        self.closed = False
        #: Why our side ended it, if it did.
        self.reason = ""
        self._sent_since_tick = True
        self.began = self.heard_at = clock.at(trio.current_time())

    @property
    def pending_bytes(self) -> int:
        return self._queued_bytes + self._wire.pending_bytes

    def send(self, parts: list[bytes]) -> bool:
        """Queue one frame; `flush` sends it."""
        size = sum(map(len, parts))
        if not 0 < size <= self._frame_bytes_max:
            raise ValueError(f"a frame of {size} bytes; it has to be from 1 to {self._frame_bytes_max}")
        if self._queued_bytes + size > self._queue_bytes_max:
            self.close(f"takes too little: {self._queued_bytes} bytes wait for it")
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
                    self._blocked = True
                    self._wake_drain.set()
                    return
            if self._wire.pending_bytes:
                self._blocked = True
                self._wake_drain.set()
        except LOST as error:
            self.close(str(error))

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

    async def _drain(self) -> None:
        try:
            while True:
                await self._wake_drain.wait()
                self._wake_drain = trio.Event()
                while self._queue or self._wire.pending_bytes:
                    await self._wire.writable()
                    if self._queue:
                        self._send_some()
                self._blocked = False
        except LOST as error:
            self.close(str(error))

    async def run(self, received: Callable[[LinkSession, list[memoryview]], None]) -> None:
        """Pass on frames until the session ends.

        Raises what `received` raises: that is the node's fault, not the peer's.
        """
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._drain)
                try:
                    await self._read(received)
                    self.close("closed by the peer")
                except LOST as error:
                    self.close(str(error))
                except FrameError as error:
                    self.close(f"it sent what is no frame: {error}")

    async def _read(self, received: Callable[[LinkSession, list[memoryview]], None]) -> None:
        wire, reader, clock = self._wire, self._reader, self._clock
        while not self.closed:
            await wire.readable()
            count = wire.receive(reader.buffers())
            if count is None:
                continue
            if not count:
                return
            self.heard_at = clock.at(trio.current_time())
            frames = reader.received(count)
            if frames and not self.closed:
                received(self, frames)

    def keep_alive(self) -> None:
        """Send a keep-alive if nothing was sent since the last call."""
        if not self._sent_since_tick and not self._queue and not self._wire.pending_bytes:
            self._queue.append(KEEP_ALIVE)
            self._queued_bytes += len(KEEP_ALIVE)
            self.flush()
        self._sent_since_tick = False

    def close(self, reason: str = "") -> None:
        """End the session: it takes nothing more; `run` returns soon."""
        if not self.closed:
            self.closed = True
            self.reason = reason
            self._queue.clear()
            self._queued_bytes = 0
            self._scope.cancel()
