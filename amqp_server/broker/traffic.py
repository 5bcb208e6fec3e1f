"""Counters of messages: increased once for each run of messages, never once for each message.

Each node counts its own clients. When a channel closes, its counts are added to those of its vhost and of the
node, so that totals never fall.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

#: Names of the counters of a Traffic, as in RabbitMQ's management API.
COUNTERS = (
    "publish",
    "return_unroutable",
    "drop_unroutable",
    "confirm",
    "deliver",
    "deliver_no_ack",
    "redeliver",
    "ack",
    "get",
    "get_no_ack",
    "get_empty",
)


class Traffic:
    """Counts of messages of a channel, a queue, a vhost, or a node since its start."""

    __slots__ = (
        "ack",
        "confirm",
        "deliver",
        "deliver_no_ack",
        "drop_unroutable",
        "get",
        "get_empty",
        "get_no_ack",
        "publish",
        "redeliver",
        "return_unroutable",
    )

    def __init__(self) -> None:
        self.publish = 0
        self.return_unroutable = 0
        self.drop_unroutable = 0
        self.confirm = 0
        self.deliver = 0
        self.deliver_no_ack = 0
        self.redeliver = 0
        self.ack = 0
        self.get = 0
        self.get_no_ack = 0
        self.get_empty = 0

    def add(self, other: Traffic) -> None:
        self.publish += other.publish
        self.return_unroutable += other.return_unroutable
        self.drop_unroutable += other.drop_unroutable
        self.confirm += other.confirm
        self.deliver += other.deliver
        self.deliver_no_ack += other.deliver_no_ack
        self.redeliver += other.redeliver
        self.ack += other.ack
        self.get += other.get
        self.get_no_ack += other.get_no_ack
        self.get_empty += other.get_empty

    def values(self) -> tuple[int, ...]:
        """Return the counters in the order of COUNTERS."""
        return (
            self.publish,
            self.return_unroutable,
            self.drop_unroutable,
            self.confirm,
            self.deliver,
            self.deliver_no_ack,
            self.redeliver,
            self.ack,
            self.get,
            self.get_no_ack,
            self.get_empty,
        )

    def resume(self, values: Sequence[int]) -> None:
        """Go on from these values, which are in the order of COUNTERS."""
        for name, value in zip(COUNTERS, values, strict=True):
            setattr(self, name, value)


#: RabbitMQ's upper bounds of the sizes of messages, bytes of the body; the last bucket has no bound.
SIZE_BOUNDS: Final = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)


class MessageSizes:
    """Messages that clients have published, by their size. channel.publish counts them, a batch at a time."""

    __slots__ = ("by_bound", "bytes")

    def __init__(self) -> None:
        self.by_bound = [0] * (len(SIZE_BOUNDS) + 1)
        #: The sum of all sizes.
        self.bytes = 0

    def note_each(self, sizes: list[int]) -> None:
        self.bytes += sum(sizes)
        for size in sizes:
            self.by_bound[bisect_left(SIZE_BOUNDS, size)] += 1


class Logins:
    """Logins by one protocol since the start of the node."""

    __slots__ = ("accepted", "refused")

    def __init__(self) -> None:
        self.accepted = self.refused = 0


class Ended:
    """Counts of closed channels, connections and deleted queues, since the start of the node."""

    __slots__ = (
        "amqp_logins",
        "by_type",
        "channels_closed",
        "channels_created",
        "connections_closed",
        "connections_created",
        "expecting",
        "http_logins",
        "published",
        "queues_created",
        "queues_declared",
        "queues_deleted",
        "received_bytes",
        "received_count",
        "sent_bytes",
        "sent_count",
        "traffic",
    )

    def __init__(self) -> None:
        #: Counts of closed channels.
        self.traffic = Traffic()
        #: Counts of deleted queues, by the names of their types.
        self.by_type: dict[str, Traffic] = {}
        #: Messages that were handed to queues deleted since.
        self.published = 0
        self.received_bytes = self.sent_bytes = 0
        #: Reads and writes of sockets.
        self.received_count = self.sent_count = 0
        #: Messages published in confirm mode.
        self.expecting = 0
        self.amqp_logins, self.http_logins = Logins(), Logins()
        self.connections_created = self.connections_closed = 0
        self.channels_created = self.channels_closed = 0
        self.queues_declared = self.queues_created = self.queues_deleted = 0

    def logins(self) -> dict[str, Logins]:
        """Return the logins by RabbitMQ's names of the protocols."""
        return {"amqp091": self.amqp_logins, "http": self.http_logins}

    def churn(self) -> tuple[int, ...]:
        """Return counts of opened and closed connections and channels, and of queues (declared, created,
        deleted).
        """
        return (
            self.connections_created,
            self.connections_closed,
            self.channels_created,
            self.channels_closed,
            self.queues_declared,
            self.queues_created,
            self.queues_deleted,
        )

    def resume(self, counted: Sequence[int]) -> None:
        """Go on where another process has ended; `counted` is its Counted. Its connections ended with it."""
        self.traffic.resume(counted[: len(COUNTERS)])
        self.connections_created, _, self.channels_created, _, *queues = counted[len(COUNTERS) :]
        self.connections_closed, self.channels_closed = self.connections_created, self.channels_created
        self.queues_declared, self.queues_created, self.queues_deleted = queues


#: Words of a Counted: those of COUNTERS, then those of Ended.churn.
COUNTED: Final = len(COUNTERS) + 7


class Counted:
    """The highest counts of this process that anybody was shown. Who adds up the channels does it in several
    steps, and misses those that close meanwhile: what is shown does not fall by that.
    """

    __slots__ = ("_words",)

    def __init__(self, words: memoryview | None = None) -> None:
        """`words` are kept elsewhere if others need them after the end of this process."""
        self._words: list[int] | memoryview = [0] * COUNTED if words is None else words

    def traffic(self, traffic: Traffic) -> Traffic:
        """Return these counts, or higher ones that were shown before."""
        found = Traffic()
        found.resume(self._risen(0, traffic.values()))
        return found

    def churn(self, ended: Ended) -> tuple[int, ...]:
        return self._risen(len(COUNTERS), ended.churn())

    def _risen(self, start: int, values: Sequence[int]) -> tuple[int, ...]:
        words = self._words
        for place, value in enumerate(values, start):
            if value > words[place]:
                words[place] = value
        return tuple(words[start : start + len(values)])
