"""A driver's questions about a stream: its partitions, and the offsets of each.

mqd counts the messages from an offset on in the answer to a passive declare (capability stream_offsets), and
refuses an offset that does not exist with a text that has the existing ones; so one question is enough to
learn how far a query may read and whether retention was faster. RabbitMQ's count of a stream is seldom right.
There a consumer finds out: from `first`, and from `last` on until nothing more comes.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from pika import spec

from spark_sink.client.connection import Connection
from spark_sink.client.errors import AmqpError, ChannelClosed, LoginRefused
from spark_sink.client.login import Login
from spark_sink.source.consumer import (
    ACCESS_REFUSED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    PREFETCH_MAX,
    RECONNECT_MAX_S,
    RECONNECT_PAUSE_MAX_S,
    RECONNECT_PAUSE_S,
    QueueRefused,
    log,
)
from spark_sink.source.deliveries import BASIC_DELIVER, HEAD_BYTES, Run
from spark_sink.source.intake import RunIntake
from spark_sink.streams.offsets import Offsets
from spark_sink.streams.placed import OFFSET, offset_at

#: The capability of a broker that counts the messages of a stream from an offset on.
CAPABILITY = "stream_offsets"
COUNT_MAX = 2**32 - 1
#: How often to check whether a super stream has more partitions.
DISCOVERY_S = 5.0
#: For a broker without the capability: a chunk is complete when nothing has come for so long; and the time
#: limit of one check.
QUIET_S, LOOK_MAX_S = 0.3, 2.0
#: How long a first message, or one for a time, may take to come from a slow disk.
FIRST_MAX_S, MOMENT_MAX_S = 30.0, 10.0

_NOT_THERE = re.compile(r"its first is (\d+) and its next is (\d+)")
_NOT_KNOWN = "are not known on this node now"

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first existing offset, and the next offset that will be assigned."""

    first: int
    next: int


class NotKnown(AmqpError):
    """A node cannot answer now, but will be able to later."""


def refusal(error: ChannelClosed, queue: str) -> AmqpError:
    """The error text: the broker's words and ours."""
    if error.code == NOT_FOUND:
        hint = "create it first (nothing is declared here), or correct the options stream and vhost"
        return QueueRefused(f"stream '{queue}' is missing: {error}. To read from it, {hint}")
    if error.code == ACCESS_REFUSED:
        return QueueRefused(
            f"stream '{queue}' may not be read by this user: {error}. It needs the permission to read"
        )
    if error.code == PRECONDITION_FAILED and OFFSET in str(error):
        return QueueRefused(f"'{queue}' is not a stream: {error}. To read a queue, set option 'queue'")
    return error


def count_from(connection: Connection, queue: str, offset: int) -> int | Bounds:
    """Number of messages that consumers can get from an offset on; the existing offsets if this one does not
    exist. Raises AmqpError.
    """
    declare = spec.Queue.Declare(queue=queue, passive=True, arguments={OFFSET: offset})
    try:
        return int(connection.call(declare, spec.Queue.DeclareOk).message_count)
    except ChannelClosed as error:
        connection.open_channel()
        if (found := _NOT_THERE.search(str(error))) is not None:
            return Bounds(int(found[1]), int(found[2]))
        if _NOT_KNOWN in str(error):
            raise NotKnown(str(error)) from None
        raise


def discovered(connection: Connection, stream: str, known: Mapping[int, str]) -> tuple[dict[int, str], bool]:
    """Return a stream's partitions by number, and whether it is a single stream. Raises AmqpError."""
    # As long as nothing is known, a stream with exactly that name takes precedence.
    if not known and _is_there(connection, stream):
        return {0: stream}, True
    found = dict(known)
    while _is_there(connection, f"{stream}-{len(found)}"):
        found[len(found)] = f"{stream}-{len(found)}"
    if not found:
        raise QueueRefused(
            f"stream '{stream}' is missing: there is neither a queue of that name nor '{stream}-0', as the first "
            "partition of a super stream has it. Create it first (nothing is declared here), or correct the options "
            "stream and vhost"
        )
    return found, False


def _is_there(connection: Connection, queue: str) -> bool:
    try:
        if connection.capabilities.get(CAPABILITY):
            count_from(connection, queue, 0)
        else:
            connection.call(spec.Queue.Declare(queue=queue, passive=True), spec.Queue.DeclareOk)
    except ChannelClosed as error:
        if isinstance(connection.error, ChannelClosed):
            connection.open_channel()
        if error.code == NOT_FOUND:
            return False
        raise refusal(error, queue) from None
    return True


class Probe:
    """All methods raise AmqpError. A lost connection is opened again."""

    def __init__(self, login: Login, stream: str, name: str) -> None:
        self._login = login
        self._stream = stream
        self._name = name
        self._connection: Connection | None = None
        self._partitions: dict[int, str] = {}
        self._single = False
        self._discovered_at = 0.0
        self._answered = False

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def counts(self) -> bool:
        """Whether the broker counts from offsets on."""
        return bool(self._patiently(lambda connection: connection.capabilities.get(CAPABILITY)))

    def partitions(self) -> Mapping[int, str]:
        """The streams to read, by number; new ones are found after a while."""
        due = time.monotonic() - self._discovered_at > DISCOVERY_S
        if not self._partitions or (due and not self._single):
            self._patiently(self._discover)
            self._discovered_at = time.monotonic()
        return self._partitions

    def bounds(self) -> tuple[Offsets, Offsets]:
        """The first and the next offset of each partition."""
        if self.counts:
            found = {number: self._bounds_of(queue) for number, queue in self.partitions().items()}
        else:
            found = self._seen_bounds()
        first = {number: bounds.first for number, bounds in found.items()}
        return first, {number: bounds.next for number, bounds in found.items()}

    def behind(self, offsets: Offsets) -> dict[int, Bounds]:
        """Count from offsets that were given out before: `first` is the offset itself unless it is gone."""
        if not self.counts:
            ends = self._patiently(self._seen_ends)
            return {
                number: Bounds(offset, max(ends.get(number, 0), offset)) for number, offset in offsets.items()
            }
        return {number: self._behind(self._partitions[number], offset) for number, offset in offsets.items()}

    def at(self, moment_ms: int) -> Offsets:
        """The first offset of each partition that is not older; the next one if all are."""
        first, following = self.bounds()
        begun = {
            number: queue for number, queue in self.partitions().items() if first[number] < following[number]
        }
        # AMQP has whole seconds: this may be some messages too early, and never too late.
        start = datetime.fromtimestamp(moment_ms // 1_000, UTC)

        def look(connection: Connection) -> dict[int, list[int]]:
            return self._look(connection, begun, start, 1, MOMENT_MAX_S, once=True)

        found = self._patiently(look) if begun else {}
        return {number: min(found.get(number) or [following[number]]) for number in first}

    # mqd.

    def _bounds_of(self, queue: str) -> Bounds:
        return self._behind(queue, 0)

    def _behind(self, queue: str, offset: int) -> Bounds:
        at = offset
        while True:
            found = self._patiently(lambda connection: count_from(connection, queue, at))  # noqa: B023
            if isinstance(found, Bounds):
                # Offsets beyond the end are reported like offsets before the beginning.
                return found
            at += found
            if found < COUNT_MAX:
                return Bounds(offset, at)

    # Other brokers.

    def _seen_bounds(self) -> dict[int, Bounds]:
        partitions = dict(self.partitions())
        ends = self._patiently(self._seen_ends)
        begun = {number: queue for number, queue in partitions.items() if number in ends}

        def look(connection: Connection) -> dict[int, list[int]]:
            return self._look(connection, begun, "first", 1, FIRST_MAX_S, once=True)

        first = self._patiently(look) if begun else {}
        if missing := begun.keys() - first.keys():
            raise AmqpError(f"stream '{partitions[min(missing)]}' delivers nothing, and it is not empty")
        return {
            number: Bounds(min(first[number]), ends[number]) if number in ends else Bounds(0, 0)
            for number in partitions
        }

    def _seen_ends(self, connection: Connection) -> Offsets:
        found = self._look(connection, self.partitions(), "last", PREFETCH_MAX, LOOK_MAX_S)
        return {number: max(offsets) + 1 for number, offsets in found.items()}

    def _look(
        self,
        connection: Connection,
        partitions: Mapping[int, str],
        start: object,
        prefetch: int,
        limit_s: float,
        *,
        once: bool = False,
    ) -> dict[int, list[int]]:
        """Consume all partitions at once; with `once` until each has brought something, else until nothing
        comes.
        """
        seen = _Seen()
        connection.set_intake(seen)
        try:
            connection.call(spec.Basic.Qos(prefetch_count=prefetch), spec.Basic.QosOk)
            for number, queue in partitions.items():
                consume = spec.Basic.Consume(queue=queue, consumer_tag=str(number), arguments={OFFSET: start})
                try:
                    connection.call(consume, spec.Basic.ConsumeOk)
                except ChannelClosed as error:
                    raise refusal(error, queue) from None
            deadline = time.monotonic() + limit_s
            with seen.changed:
                while connection.error is None and time.monotonic() < deadline:
                    if once and len(seen.offsets) == len(partitions):
                        break
                    if not seen.changed.wait(QUIET_S) and not once:
                        break
            if connection.error is not None:
                raise connection.error
            return seen.offsets
        finally:
            # Closing it releases its messages.
            self.close()

    # All.

    def _discover(self, connection: Connection) -> None:
        self._partitions, self._single = discovered(connection, self._stream, self._partitions)

    def _patiently(self, ask: Callable[[Connection], Found]) -> Found:
        """Ask, again at the next host when the connection is lost."""
        deadline = time.monotonic() + RECONNECT_MAX_S
        pause_s = RECONNECT_PAUSE_S
        while True:
            try:
                if self._connection is None or self._connection.error is not None:
                    self.close()
                    self._connection = Connection.open(self._login, self._name)
                    self._answered = True
                return ask(self._connection)
            except (LoginRefused, QueueRefused, ChannelClosed):
                raise
            except AmqpError as error:
                if not isinstance(error, NotKnown):
                    self.close()
                # If no broker has ever answered, the options are probably wrong.
                if not self._answered or time.monotonic() > deadline:
                    raise
                log.warning("stream '%s': asking again: %s", self._stream, error)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, RECONNECT_PAUSE_MAX_S)


class _Seen(RunIntake):
    """Notes which offsets came, by the number of the partition, which is the consumer's tag."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()
        self.offsets: dict[int, list[int]] = {}

    def arrived(self, runs: list[Run]) -> None:
        with self.changed:
            for run in runs:
                for index in range(len(run)):
                    self.offsets.setdefault(_tag(run, index), []).append(offset_at(run, index))
            self.changed.notify_all()

    def ended(self) -> None:
        with self.changed:
            self.changed.notify_all()


def _tag(run: Run, index: int) -> int:
    at = run.starts[index] + HEAD_BYTES + len(BASIC_DELIVER)
    return int(run.data[at + 1 : at + 1 + run.data[at]])
