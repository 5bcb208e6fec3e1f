"""Latency on an open schedule: each message has a fixed time, whatever happened to earlier messages, and its
latency counts from that time, so a broker that stalls pays for all messages that had to wait (no coordinated
omission).

Most wake-ups bring one message, and for one message plain Python is faster than numpy: the time of the client
itself is part of every latency.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy

from .client import Connection, Refused
from .frames import BASIC_ACK, FRAME_OVERHEAD, SETTLEMENT, message
from .pump import READ_BYTES, Stalled
from .streams import properties

BODY_BYTES = 128
MARK = b"01234567"
QUEUE = "bench-0"
WIRE = message("", QUEUE, MARK + b"b" * (BODY_BYTES - len(MARK)), properties())
BURST_MAX = 256
DRAIN_MAX_S = 20.0
PERCENTILES = (("p50", 50.0), ("p99", 99.0), ("p999", 99.9))

DUE = struct.Struct(">q")
# Frame head without its size is skipped; method, delivery tag, bits.
CONFIRM = struct.Struct(f">{FRAME_OVERHEAD - 1}xIQBx")


def percentiles(what: str, samples_ns: Sequence[int]) -> dict[str, float]:
    return {f"{what}_{key}_ms": float(numpy.percentile(samples_ns, p)) / 1e6 for key, p in PERCENTILES}


class Clock:
    """One thread that sends due messages and reads received ones. Nanoseconds since an epoch of its own."""

    def __init__(
        self,
        out: socket.socket,
        back: socket.socket,
        delivery_bytes: int,
        rate: int,
        total: int,
        wire: bytes = WIRE,
    ) -> None:
        self._out, self._back = out, back
        self._before, self._after = wire.split(MARK)
        # The body is at the end of a delivery, before the last frame's end octet.
        place = delivery_bytes - 1 - BODY_BYTES
        self._delivery = struct.Struct(f">{place}xq{BODY_BYTES - DUE.size + 1}x")
        self._rate = rate
        self._total = total
        self._sent = self._confirms = self._floor = 0
        self._unsent = self._rest = self._confirms_rest = b""
        self.lag: list[int] = []
        self.delivered: list[int] = []
        self.confirmed: list[int] = [-1] * total

    def _now(self) -> int:
        return time.monotonic_ns() - self._epoch

    def _due(self, i: int) -> int:
        return i * 1_000_000_000 // self._rate

    def run(self) -> None:
        self._out.setblocking(False)
        self._back.setblocking(False)
        self._epoch = time.monotonic_ns() + 10_000_000
        give_up = self._due(self._total) + int(DRAIN_MAX_S * 1e9)
        while len(self.delivered) < self._total or self._confirms < self._total:
            self._send_due()
            self._wait()
            if self._now() > give_up:
                got, confirmed = len(self.delivered), self._confirms
                raise Stalled(f"{got} delivered and {confirmed} confirmed of {self._total}")
        self._out.settimeout(20)
        self._back.settimeout(20)

    def _send_due(self) -> None:
        if self._unsent:
            self._push()
            return
        now = self._now()
        parts: list[bytes] = []
        while self._sent < self._total and len(parts) < BURST_MAX and (due := self._due(self._sent)) <= now:
            parts.append(self._before + DUE.pack(due) + self._after)
            self.lag.append(now - due)
            self._sent += 1
        if parts:
            self._unsent = b"".join(parts)
            self._push()

    def _push(self) -> None:
        try:
            self._unsent = self._unsent[self._out.send(self._unsent) :]
        except BlockingIOError:
            return

    def _wait(self) -> None:
        """Sleep until a message is due or something arrives. `select`, because `poll` rounds up to
        milliseconds.
        """
        pause = 1.0
        if self._sent < self._total and not self._unsent:
            pause = max(0, self._due(self._sent) - self._now()) / 1e9
        writers = [self._out] if self._unsent else []
        readable, _, _ = select.select([self._back, self._out], writers, [], pause)
        for sock in readable:
            data = sock.recv(READ_BYTES)
            if not data:
                raise Refused("the broker hung up")
            if sock is self._back:
                self._take(data)
            else:
                self._confirm(data)

    def _take(self, data: bytes) -> None:
        now = self._now()
        data = self._rest + data
        whole = len(data) // self._delivery.size * self._delivery.size
        self._rest = data[whole:]
        for (due,) in self._delivery.iter_unpack(data[:whole]):
            # One queue, one publisher: deliveries come in the order of the schedule, or the broker is wrong.
            if due != self._due(len(self.delivered)):
                raise Refused("deliveries are out of order, or not what was published")
            self.delivered.append(now - due)

    def _confirm(self, data: bytes) -> None:
        now = self._now()
        data = self._confirms_rest + data
        whole = len(data) // SETTLEMENT.itemsize * SETTLEMENT.itemsize
        self._confirms_rest = data[whole:]
        for method, tag, bits in CONFIRM.iter_unpack(data[:whole]):
            if method != BASIC_ACK:
                raise Refused(f"something other than basic.ack came to the publisher: {data[:300]!r}")
            for settled in range(self._floor + 1 if bits & 1 else tag, tag + 1):
                if self.confirmed[settled - 1] < 0:
                    self.confirmed[settled - 1] = now - self._due(settled - 1)
                    self._confirms += 1
            if bits & 1:
                self._floor = max(self._floor, tag)


@contextmanager
def clock_between(
    publisher_port: int,
    consumer_port: int,
    rate: int,
    total: int,
    *,
    prefetch: int | None = None,
    wire: bytes = WIRE,
    make: Callable[..., Clock] = Clock,
) -> Iterator[Clock]:
    """Connect the clients of QUEUE, and yield the clock that sends them so many messages. Auto-ack unless
    there is a prefetch.
    """
    with Connection(publisher_port) as publisher, Connection(consumer_port) as consumer:
        consumer.consume(QUEUE, prefetch)
        publisher.sock.sendall(wire)
        delivery_bytes = consumer.delivery().wire_bytes
        publisher.confirms()
        yield make(publisher.sock, consumer.sock, delivery_bytes, rate, total, wire)
