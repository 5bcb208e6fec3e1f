"""What clients of a cluster were told and what they saw, and whether the two agree.

A message is `stream << 32 | number`: a stream is one connection of one publisher, and numbers rise within it.
So any body that comes out of a queue says where its place is. Rules, each counted by itself:

- lost: confirmed, and never delivered although the queue was drained;
- strange: delivered, and never published to this queue;
- unflagged: delivered twice without `redelivered`, or twice at all when nothing had been done to the cluster;
- order: of what one consumer's connection gets for the first time, numbers of a stream fall;
- returned: delivered after its ack was certain to have been taken.

An ack is certain in two ways. A broker never has more than `prefetch` messages out with a consumer, so when
the consumer has received D messages, the first D − prefetch of its acks are settled. And where a broker's
answers vouch for what was sent before them on the channel, an answer does.

A frozen node that wakes, and one that is cut off, may still hand out what it had in its hands when the others
gave it up. No broker can call that back. Such a delivery is counted as late, but only from a node that was in
that state. The same way round: what its consumers held went to others, so their acks come too late, and its
answers say nothing of them.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import count

STREAM_BITS = 32
RULES = ("lost", "strange", "unflagged", "order", "returned")
#: Of each rule this many cases are told in full.
TOLD_MAX = 10


class Reader:
    """One connection of one consumer."""

    def __init__(self, node: str, prefetch: int) -> None:
        self.node = node
        self.prefetch = prefetch
        self.received = 0
        #: In the order in which they were sent; the first `settled` of them are certain.
        self.acks: list[int] = []
        self.settled = 0
        #: Highest first delivery of each stream.
        self.highest: dict[int, int] = {}


class Ledger:
    """One queue. All methods may be called from any thread."""

    def __init__(self, queue: str, excused: Callable[[str], bool]) -> None:
        self.queue = queue
        self._excused = excused
        self._lock = threading.Lock()
        self._published: set[int] = set()
        self.confirmed: set[int] = set()
        self.nacked: set[int] = set()
        #: Deliveries of each message without the flag.
        self._first: dict[int, int] = {}
        #: Messages whose acks were taken, and how that is known.
        self._certain: dict[int, str] = {}
        self.broken: dict[str, list[str]] = defaultdict(list)
        self.counts: dict[str, int] = dict.fromkeys(RULES, 0)
        self.deliveries = self.redelivered = self.late = 0
        #: Set as soon as anything is done to the cluster.
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
        """They are about to be sent."""
        with self._lock:
            reader.acks.extend(messages)

    def vouch(self, reader: Reader, acks: int) -> None:
        """An answer came to a question that was asked after so many acks."""
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
        """Confirmed, and not yet seen by anybody."""
        with self._lock:
            return len(self.confirmed - self._first.keys())

    def some_waiting(self, part: int = 2) -> int:
        """One of these, from the middle, or after another part of them."""
        with self._lock:
            waiting = sorted(self.confirmed - self._first.keys())
            return waiting[len(waiting) // part]

    def close(self) -> None:
        """The queue was drained: what has not come will not come."""
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
