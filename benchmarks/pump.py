"""One loop over all sockets of a run: publishers send blocks while their window allows, consumers count
bytes.

A delivery of a known message on a known channel has a known size, so a consumer knows how many it has
received from the number of bytes alone. This is verified outside of the measured time, in `streams`: the size
is taken from a decoded delivery before the run, and a decoded delivery after it must have the delivery tag
that the count predicts.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from .blocks import Block
from .client import Refused
from .frames import acks
from .settled import Settled

STALL_S = 20.0
READ_BYTES = 1 << 20
# The client is one thread, so all its consumers may read into one buffer that is never read.
_scratch = memoryview(bytearray(READ_BYTES))


class Stalled(Exception):
    """No message moved for too long."""


class End(Protocol):
    sock: socket.socket

    def wants_to_send(self) -> bool: ...
    def send(self) -> None: ...
    def receive(self) -> None: ...


class Consumer:
    """Counts deliveries; with acknowledgements, acks each one by one as soon as it is complete."""

    def __init__(self, sock: socket.socket, delivery_bytes: int, acks_from: int | None = None) -> None:
        self.sock = sock
        self.bytes = 0
        self._size = delivery_bytes
        self._next_ack = acks_from
        self._acked = 0
        self._pending = memoryview(b"")

    @property
    def count(self) -> int:
        return self.bytes // self._size

    def receive(self) -> None:
        n = self.sock.recv_into(_scratch)
        if not n:
            raise Refused("the broker hung up on a consumer")
        self.bytes += n
        if self._next_ack is not None and not self._pending:
            self._ack(self._next_ack)

    def _ack(self, first: int) -> None:
        fresh = self.count - self._acked
        if fresh:
            self._pending = memoryview(acks(first, first + fresh - 1).tobytes())
            self._acked += fresh
            self._next_ack = first + fresh
            self.send()

    def wants_to_send(self) -> bool:
        return bool(self._pending)

    def send(self) -> None:
        try:
            self._pending = self._pending[self.sock.send(self._pending) :]
        except BlockingIOError:
            return
        if not self._pending and self._next_ack is not None:
            self._ack(self._next_ack)

    def idle(self) -> bool:
        return not self._pending and (self._next_ack is None or self._acked == self.count)


class Counting(Protocol):
    """What a publisher waits for: a consumer, or several that share a queue."""

    @property
    def count(self) -> int:
        """Messages so far."""


class Publisher:
    """Sends blocks, at most a window ahead of the slowest consumer and, with confirms, of the confirms."""

    def __init__(
        self,
        sock: socket.socket,
        blocks: Iterator[Block],
        consumers: Sequence[Counting],
        window: int,
        messages_max: int,
        settled: Settled | None = None,
        confirm_window: int = 0,
    ) -> None:
        self.sock = sock
        self.sent = 0
        self.settled = settled
        self._blocks = blocks
        self._block = next(blocks)
        self._pending = memoryview(b"")
        self._consumers = consumers
        self._window = window
        self._confirm_window = confirm_window
        self._left = messages_max

    def wants_to_send(self) -> bool:
        return bool(self._pending) or self._may_go_on()

    def _may_go_on(self) -> bool:
        if self._block.messages > self._left:
            return False
        after = self.sent + self._block.messages
        if self.settled is not None and after - self.settled.count > self._confirm_window:
            return False
        return after - min(consumer.count for consumer in self._consumers) <= self._window

    def send(self) -> None:
        """Send as much as the socket takes and the window allows."""
        while self._pending or self._may_go_on():
            if not self._pending:
                self._pending = self._block.data
                self.sent += self._block.messages
                self._left -= self._block.messages
                self._block = next(self._blocks)
            try:
                n = self.sock.send(self._pending)
            except BlockingIOError:
                return
            self._pending = self._pending[n:]
            if self._pending:
                return

    def receive(self) -> None:
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise Refused("the broker hung up on a publisher")
        if self.settled is None:
            raise Refused(f"the broker sent a publisher without confirms {data[:300]!r}")
        self.settled.feed(data)

    def stop(self) -> None:
        self._left = 0

    def idle(self) -> bool:
        return not self._pending and (self.settled is None or self.settled.count == self.sent)


@dataclass(frozen=True, slots=True)
class Stream:
    """One publisher and the consumers that each get every one of its messages."""

    publisher: Publisher
    consumers: Sequence[Consumer]

    def idle(self) -> bool:
        sent = self.publisher.sent
        return self.publisher.idle() and all(c.idle() and c.count == sent for c in self.consumers)

    @property
    def delivered(self) -> int:
        return sum(consumer.count for consumer in self.consumers)


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a run takes. The broker warms up before the measurement."""

    warm_s: float
    run_s: float
    #: Fraction of the full numbers of queues and messages.
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Run:
    deliveries: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.deliveries / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.deliveries * 1e6


def pump(streams: Sequence[Stream], pace: Pace, cpu_s: Callable[[], float]) -> Run:
    """Measure from the end of the warm-up until the last message is received, confirmed and acknowledged."""
    ends: dict[int, End] = {}
    for stream in streams:
        members: list[End] = [stream.publisher, *stream.consumers]
        for end in members:
            end.sock.setblocking(False)
            ends[end.sock.fileno()] = end
    start = time.perf_counter()
    _turn_until(start + pace.warm_s, ends, streams)
    marked, delivered, cpu = time.perf_counter(), _delivered(streams), cpu_s()
    _turn_until(marked + pace.run_s, ends, streams)
    for stream in streams:
        stream.publisher.stop()
    _turn_until(None, ends, streams)
    return Run(_delivered(streams) - delivered, time.perf_counter() - marked, cpu_s() - cpu)


def _delivered(streams: Sequence[Stream]) -> int:
    return sum(stream.delivered for stream in streams)


def _turn_until(deadline: float | None, ends: dict[int, End], streams: Sequence[Stream]) -> None:
    """Run the loop until a moment, or until everything is settled, whichever comes first."""
    poll = select.poll()
    masks = dict.fromkeys(ends, 0)
    for fd in ends:
        poll.register(fd, 0)
    moved = time.perf_counter()
    while True:
        for fd, end in ends.items():
            mask = select.POLLIN | select.POLLOUT if end.wants_to_send() else select.POLLIN
            if mask != masks[fd]:
                masks[fd] = mask
                poll.modify(fd, mask)
        events = poll.poll(100)
        now = time.perf_counter()
        for fd, event in events:
            end = ends[fd]
            if event & ~select.POLLOUT:
                end.receive()
            if event & select.POLLOUT:
                end.send()
        if events:
            moved = now
        elif now - moved > STALL_S:
            raise Stalled(_stalled(streams))
        if all(stream.idle() for stream in streams) and (deadline is None or _exhausted(streams)):
            return
        if deadline is not None and now >= deadline:
            return


def _exhausted(streams: Sequence[Stream]) -> bool:
    return not any(stream.publisher.wants_to_send() for stream in streams)


def _stalled(streams: Sequence[Stream]) -> str:
    sent = sum(stream.publisher.sent for stream in streams)
    confirmed = sum(s.publisher.settled.count for s in streams if s.publisher.settled is not None)
    return f"nothing moved for {STALL_S:.0f} s: sent {sent}, confirmed {confirmed}, delivered {_delivered(streams)}"
