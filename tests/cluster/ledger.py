"""What the broker told the clients of a cluster, what they saw, and whether the two agree.

A message is `stream << 32 | number`: a stream is one connection of one publisher, and numbers rise within it.
So each body that comes out of a queue shows its place. The rules, each counted separately:

- lost: confirmed, and never delivered although the queue was drained;
- strange: delivered, and never published to this queue;
- unflagged: delivered twice without `redelivered`, or twice at all when nothing had been done to the cluster;
- order: among the messages that one consumer's connection gets for the first time, the numbers of a stream
  fall;
- returned: delivered after its ack was certain to have been taken.

An ack is certain in two ways. A broker never has more than `prefetch` messages out with a consumer, so when
the consumer has received D messages, the first D − prefetch of its acks are settled. And where a broker's
answers vouch for earlier frames on the channel, an answer makes the acks before it certain.

A frozen node that wakes, and one that is cut off, may still hand out messages that it held when the others
gave it up. No broker can call these back. Such a delivery counts as late, but only from a node that was in
that state. In the same way, the messages of its consumers went to others, so their acks come too late, and
its answers say nothing about them.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import count

STREAM_BITS = 32
RULES = ("lost", "strange", "unflagged", "order", "returned")
#: For each rule, this many cases are reported in full.
TOLD_MAX = 10


class Reader:
    """One connection of one consumer."""

    def __init__(self, node: str, prefetch: int) -> None:
        self.node = node
        self.prefetch = prefetch
        self.received = 0
        #: In the order of sending; the first `settled` of them are certain.
        self.acks: list[int] = []
        self.settled = 0
        #: By stream, the highest number delivered for the first time.
        self.highest: dict[int, int] = {}


class Ledger:
    """One queue. All methods may be called from any thread."""

    def __init__(
        self, queue: str, excused: Callable[[str], bool], *, nacked_may_be_late: bool = False
    ) -> None:
        self.queue = queue
        self._nacked_may_be_late = nacked_may_be_late
        self._excused = excused
        self._lock = threading.Lock()
        self._published: set[int] = set()
        self.confirmed: set[int] = set()
        self.nacked: set[int] = set()
        #: Deliveries of each message without the flag.
        self._first: dict[int, int] = {}
        #: Messages whose acks were taken, and how the ledger knows it.
        self._certain: dict[int, str] = {}
        self.broken: dict[str, list[str]] = defaultdict(list)
        self.counts: dict[str, int] = dict.fromkeys(RULES, 0)
        self.deliveries = self.redelivered = self.late = 0
        #: Set by the first fault.
        self.disturbed = False

    def publish(self, messages: Iterable[int]) -> None:
        with self._lock:
            self._published.update(messages)

    def confirm(self, messages: Iterable[int]) -> None:
        with self._lock:
            self.confirmed.update(messages)

    def nack(self, messages: Iterable[int]) -> None:
        with self._lock:
            self.nacked.update(messages)

    def deliver(self, reader: Reader, message: int, redelivered: bool) -> None:
        with self._lock:
            self.deliveries += 1
            self.redelivered += redelivered
            reader.received += 1
            if message not in self._published:
                self._break("strange", reader, message, redelivered)
            if message in self._certain:
                if self._excused(reader.node):
                    self.late += 1
                else:
                    self._break("returned", reader, message, redelivered)
            self._check_flag(reader, message, redelivered)
            if not redelivered:
                stream = message >> STREAM_BITS
                if message <= reader.highest.get(stream, -1):
                    if not (self._nacked_may_be_late and message in self.nacked):
                        self._break("order", reader, message, redelivered)
                else:
                    reader.highest[stream] = message
            self._settle(reader, reader.received - reader.prefetch, "credit")

    def _check_flag(self, reader: Reader, message: int, redelivered: bool) -> None:
        before = self._first.get(message)
        if redelivered:
            self._first.setdefault(message, 0)
            wrong = not self.disturbed
        else:
            self._first[message] = (before or 0) + 1
            wrong = bool(before)
        if wrong:
            self._break("unflagged", reader, message, redelivered)

    def ack(self, reader: Reader, messages: Iterable[int]) -> None:
        """The consumer is about to send these acks."""
        with self._lock:
            reader.acks.extend(messages)

    def vouch(self, reader: Reader, acks: int) -> None:
        """The broker answered a request that was sent after this many acks."""
        with self._lock:
            self._settle(reader, acks, "answer")

    def _settle(self, reader: Reader, how_many: int, by: str) -> None:
        how_many = min(how_many, len(reader.acks))
        if how_many > reader.settled:
            if not self._excused(reader.node):
                how = f"settled by {by} at {reader.node}"
                self._certain.update((message, how) for message in reader.acks[reader.settled : how_many])
            reader.settled = how_many

    def _break(self, rule: str, reader: Reader, message: int, redelivered: bool) -> None:
        self.counts[rule] += 1
        if len(self.broken[rule]) < TOLD_MAX:
            flag = " redelivered" if redelivered else ""
            place = f"{message >> STREAM_BITS}/{message & ((1 << STREAM_BITS) - 1)}"
            how = f", {self._certain[message]}" if message in self._certain else ""
            self.broken[rule].append(f"{self.queue}: {rule}: {place}{flag} at {reader.node}{how}")

    def waiting(self) -> int:
        """Return the number of messages that are confirmed, and that no consumer has seen yet."""
        with self._lock:
            return len(self.confirmed - self._first.keys())

    def some_waiting(self, part: int = 2) -> int:
        """Return one of these, from the middle, or after another part of them."""
        with self._lock:
            waiting = sorted(self.confirmed - self._first.keys())
            return waiting[len(waiting) // part]

    def close(self) -> None:
        """The queue was drained: messages that have not come will not come."""
        with self._lock:
            lost = sorted(self.confirmed - self._first.keys())
            self.counts["lost"] = len(lost)
            if lost:
                places = [f"{m >> STREAM_BITS}/{m & ((1 << STREAM_BITS) - 1)}" for m in lost[:TOLD_MAX]]
                self.broken["lost"] = [f"{self.queue}: lost: {', '.join(places)}"]

    def faults(self) -> list[str]:
        with self._lock:
            return [line for rule in RULES for line in self.broken[rule]]


class Streams:
    """Numbers for streams, unique within a run."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            return next(self._numbers) << STREAM_BITS
