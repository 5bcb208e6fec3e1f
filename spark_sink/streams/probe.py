"""A driver's questions about streams: their partitions, and the offsets of each.

mqd counts the messages from an offset on in the answer to a passive declare (capability stream_offsets), and
refuses an offset that does not exist with a text that has the existing ones; so one question is enough to
learn how far a query may read and whether retention was faster. With a time (capability stream_timestamps) it
counts the messages before that time. RabbitMQ's count of a stream is seldom right.
There a consumer finds out: from `first`, and from `last` on until nothing more comes.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from pika import spec

from spark_sink.client.connection import Connection
from spark_sink.client.errors import AmqpError, ChannelClosed, LoginRefused
from spark_sink.option_values import BadOption
from spark_sink.options import SourceOptions
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
from spark_sink.streams.listing import matching
from spark_sink.streams.offsets import Offsets, Partition
from spark_sink.streams.placed import OFFSET, offset_at

#: The capability of a broker that counts the messages of a stream from an offset on.
CAPABILITY = "stream_offsets"
#: The capability of a broker that tells when it took a message, and counts up to a time.
TIMES_CAPABILITY = "stream_timestamps"
UNTIL = "x-stream-until"
COUNT_MAX = 2**32 - 1
#: How often to check whether a super stream has more partitions.
DISCOVERY_S = 5.0
#: How often to ask for all names, which may be many, if a pattern chooses the streams.
LISTING_S = 30.0
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


def count_from(connection: Connection, queue: str, offset: int, until_ms: int | None = None) -> int | Bounds:
    """Number of messages that consumers can get from an offset on, with a time of those before it; the
    existing offsets if this one does not exist. Raises AmqpError.
    """
    arguments = {OFFSET: offset} if until_ms is None else {OFFSET: offset, UNTIL: until_ms}
    declare = spec.Queue.Declare(queue=queue, passive=True, arguments=arguments)
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

    def __init__(self, options: SourceOptions, name: str) -> None:
        self._options = options
        self._login = options.login
        self._name = name
        self._connection: Connection | None = None
        self._partitions: dict[Partition, str] = {}
        #: Those and all that were deleted since.
        self._queues: dict[Partition, str] = {}
        #: Streams that are no super streams: they get no more partitions.
        self._singles: set[str] = set()
        #: All streams that were there once.
        self._seen: set[str] = set()
        self._discovered_at: float | None = None
        #: The streams that match the pattern, and when they were asked for.
        self._names_listed: list[str] = []
        self._listed_at: float | None = None
        self._answered = False

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def counts(self) -> bool:
        """Whether the broker counts from offsets on."""
        return self._can(CAPABILITY)

    def _can(self, capability: str) -> bool:
        return bool(self._patiently(lambda connection: connection.capabilities.get(capability)))

    def partitions(self) -> Mapping[Partition, str]:
        """The queues to read, by partition; new ones are found after a while."""
        now = time.monotonic()
        if self._discovered_at is None or (now - self._discovered_at > DISCOVERY_S and self._may_grow):
            self._discover()
            self._discovered_at = now
        return self._partitions

    def queue(self, partition: Partition) -> str:
        """The name of the queue of a partition, also of one that was deleted since."""
        return self._queues[partition]

    @property
    def _may_grow(self) -> bool:
        options = self._options
        return options.streams_pattern is not None or (
            options.assign is None and not self._singles.issuperset(options.streams)
        )

    def may_read(self, partition: Partition) -> bool:
        """Whether the options name this partition, or its stream."""
        options, (stream, number) = self._options, partition
        if options.streams_pattern is not None:
            return re.fullmatch(options.streams_pattern, stream) is not None
        if options.assign is not None:
            return number in options.assign.get(stream, ())
        return stream in options.streams

    def bounds(self) -> tuple[Offsets, Offsets]:
        """The first and the next offset of each partition."""
        if self.counts:
            found = {each: self._behind(queue, 0) for each, queue in self.partitions().items()}
        else:
            found = self._seen_bounds()
        first = {each: bounds.first for each, bounds in found.items()}
        return first, {each: bounds.next for each, bounds in found.items()}

    def behind(self, offsets: Offsets) -> dict[Partition, Bounds]:
        """Count from offsets that were given out before: `first` is the offset itself unless it is gone.
        Partitions that were deleted meanwhile are missing in the answer.
        """
        if not self.counts:
            ends = self._patiently(self._seen_ends)
            return {each: Bounds(offset, max(ends.get(each, 0), offset)) for each, offset in offsets.items()}
        found: dict[Partition, Bounds] = {}
        for each, offset in offsets.items():
            try:
                found[each] = self._behind(self._queues[each], offset)
            except ChannelClosed as error:
                if error.code != NOT_FOUND:
                    raise
                self._forget(each)
        return found

    def at(
        self, moments: Mapping[Partition, int], first: Offsets, following: Offsets, *, whole: bool
    ) -> dict[Partition, int | None]:
        """The first offset of each partition that is not older than its time, ms since 1970; None if all
        messages are older.

        Other brokers only know whole seconds: there the offset may be a little too early, or with `whole` a
        little too late.
        """
        if self._can(TIMES_CAPABILITY):
            return {
                each: self._at(self._queues[each], first[each], following[each], moment)
                for each, moment in moments.items()
            }
        begun = {each: self._queues[each] for each in moments if first[each] < following[each]}
        starts = {
            each: datetime.fromtimestamp(-(-moments[each] // 1_000) if whole else moments[each] // 1_000, UTC)
            for each in begun
        }

        def look(connection: Connection) -> dict[Partition, list[int]]:
            return self._look(connection, begun, starts, 1, MOMENT_MAX_S, once=True)

        found = self._patiently(look) if begun else {}
        places = {each: min(found.get(each) or [following[each]]) for each in moments}
        return {each: place if place < following[each] else None for each, place in places.items()}

    # mqd.

    def _at(self, queue: str, first: int, following: int, moment: int) -> int | None:
        at = first
        while at < following:
            found = self._patiently(lambda connection: count_from(connection, queue, at, moment))  # noqa: B023
            if isinstance(found, Bounds):
                # Retention was faster.
                at = found.first
            elif found < COUNT_MAX:
                # All messages before `following` were there before the question; so one of them that was not
                # counted is not older.
                at += found
                return at if at < following else None
            else:
                at += found
        return None

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

    def _seen_bounds(self) -> dict[Partition, Bounds]:
        partitions = dict(self.partitions())
        ends = self._patiently(self._seen_ends)
        begun = {each: queue for each, queue in partitions.items() if each in ends}

        def look(connection: Connection) -> dict[Partition, list[int]]:
            return self._look(connection, begun, dict.fromkeys(begun, "first"), 1, FIRST_MAX_S, once=True)

        first = self._patiently(look) if begun else {}
        if missing := begun.keys() - first.keys():
            raise AmqpError(f"stream '{partitions[min(missing)]}' delivers nothing, and it is not empty")
        return {
            each: Bounds(min(first[each]), ends[each]) if each in ends else Bounds(0, 0)
            for each in partitions
        }

    def _seen_ends(self, connection: Connection) -> Offsets:
        partitions = self.partitions()
        found = self._look(
            connection, partitions, dict.fromkeys(partitions, "last"), PREFETCH_MAX, LOOK_MAX_S
        )
        return {each: max(offsets) + 1 for each, offsets in found.items()}

    def _look(
        self,
        connection: Connection,
        partitions: Mapping[Partition, str],
        starts: Mapping[Partition, object],
        prefetch: int,
        limit_s: float,
        *,
        once: bool = False,
    ) -> dict[Partition, list[int]]:
        """Consume all partitions at once; with `once` until each has brought something, else until nothing
        comes.
        """
        seen = _Seen()
        connection.set_intake(seen)
        numbered = list(partitions)
        try:
            connection.call(spec.Basic.Qos(prefetch_count=prefetch), spec.Basic.QosOk)
            for number, each in enumerate(numbered):
                queue, arguments = partitions[each], {OFFSET: starts[each]}
                consume = spec.Basic.Consume(queue=queue, consumer_tag=str(number), arguments=arguments)
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
            return {numbered[number]: offsets for number, offsets in seen.offsets.items()}
        finally:
            # Closing it releases its messages.
            self.close()

    # All.

    def _discover(self) -> None:
        names = self._names()
        for name in names:
            if name in self._singles:
                continue
            known = {each.number: queue for each, queue in self._partitions.items() if each.stream == name}
            try:
                found, single = self._patiently(lambda connection: discovered(connection, name, known))  # noqa: B023
            except QueueRefused:
                if name not in self._seen:
                    raise
                # It was deleted since; whether that is an error is decided elsewhere.
                continue
            self._seen.add(name)
            if single:
                self._singles.add(name)
            self._partitions |= {
                Partition(name, number): found[number] for number in self._wanted(name, found)
            }
        if self._options.streams_pattern is not None:
            for each in [each for each in self._partitions if each.stream not in names]:
                self._forget(each)
        self._queues |= self._partitions

    def _forget(self, partition: Partition) -> None:
        self._partitions.pop(partition, None)
        self._singles.discard(partition.stream)

    def _wanted(self, stream: str, found: Mapping[int, str]) -> Iterable[int]:
        if self._options.assign is None:
            return found
        wanted = self._options.assign[stream]
        for number in wanted:
            if number not in found:
                raise BadOption(
                    f"option 'assign': stream '{stream}' has no partition {number}; it has {len(found)}, counted from 0"
                )
        return wanted

    def _names(self) -> Sequence[str]:
        options = self._options
        if options.streams_pattern is None:
            return options.streams
        now = time.monotonic()
        if self._listed_at is not None and now - self._listed_at < LISTING_S:
            return self._names_listed
        try:
            self._names_listed = matching(options, options.streams_pattern)
        except AmqpError as error:
            if self._listed_at is None:
                raise
            log.warning("new streams are not looked for: %s", error)
        else:
            if not self._names_listed:
                log.warning("no stream matches '%s' (option 'streamsPattern')", options.streams_pattern)
        self._listed_at = now
        return self._names_listed

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
                log.warning("asking about streams again: %s", error)
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
