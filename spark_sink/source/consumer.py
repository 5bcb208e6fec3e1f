"""The consumer that a query holds on its queue: one connection at a time, opened again at the next host when
it is lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from pika import spec

from spark_sink.client.connection import Connection
from spark_sink.client.errors import AmqpError, ChannelClosed, ConnectionLost, LoginRefused
from spark_sink.client.frames import method_frame
from spark_sink.options import SourceOptions
from spark_sink.source.deliveries import Run
from spark_sink.source.intake import RunIntake
from spark_sink.source.window import Settlement, Window

CONSUMER_TAG = "spark"
PREFETCH_MAX = 65_535
#: Maximum number of bytes received and not yet handed to Spark; beyond it the socket is not read.
BUFFER_BYTES_MAX = 256 << 20
#: How long one receive is delayed then. Less than a quarter of a heartbeat, so that heartbeats continue.
HOLD_BACK_S = 0.2
#: How long a broker may be unreachable, or a queue without a leader, before the query fails.
RECONNECT_MAX_S = 120.0
RECONNECT_PAUSE_S = 0.25
RECONNECT_PAUSE_MAX_S = 2.0
#: How long the consumer of a killed driver may remain until the broker has noticed.
TAKEOVER_MAX_S = 30.0
ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED = 403, 404, 405, 406
#: Streams add this to each message as a header, and accept it as an argument of a consumer. Reading a stream
#: removes nothing.
STREAM_OFFSET = "x-stream-offset"
#: How long to wait for messages that may be on their way already.
PROBE_S = 0.3

log = logging.getLogger("spark_sink.source.consumer")


class QueueRefused(AmqpError):
    """The queue cannot be read from. The text says why, and what to do."""


def refusal(error: ChannelClosed, queue: str) -> QueueRefused:
    """The error text: the broker's words and ours."""
    text = str(error)
    if error.code == NOT_FOUND:
        hint = "create the queue first (nothing is declared here), or correct the options queue and vhost"
        return QueueRefused(f"queue '{queue}' is missing: {text}. To read from it, {hint}")
    if error.code == RESOURCE_LOCKED:
        return QueueRefused(f"queue '{queue}' is exclusive to the connection that declared it: {text}")
    if error.code == ACCESS_REFUSED and "exclusive" in text:
        hint = "stop them, or set option exclusive=false and give up that a replay finds the same messages"
        return QueueRefused(
            f"queue '{queue}' has other consumers, and a query wants to be its only one: {text}. Either {hint}"
        )
    if error.code == ACCESS_REFUSED:
        return QueueRefused(
            f"queue '{queue}' may not be read by this user: {text}. It needs the permission to read"
        )
    return QueueRefused(f"queue '{queue}' cannot be read from: {text}")


def not_a_stream(queue: str) -> QueueRefused:
    return QueueRefused(
        f"queue '{queue}' is a stream, and option 'queue' reads classic and quorum queues: name it by option "
        "'stream' instead"
    )


class _Intake(RunIntake):
    def __init__(self, consumer: Consumer) -> None:
        super().__init__()
        self._consumer: Consumer | None = consumer

    def arrived(self, runs: list[Run]) -> None:
        if self._consumer is not None:
            self._consumer.arrived(runs)

    def answered(self) -> None:
        if self._consumer is not None:
            self._consumer.answered()

    def ended(self) -> None:
        if self._consumer is not None:
            self._consumer.wake()

    def detach(self) -> None:
        self._consumer = None


class Consumer:
    """All methods but `arrived`, `answered` and `wake` are called by one thread. They raise AmqpError."""

    def __init__(self, options: SourceOptions, name: str, prefetch: int) -> None:
        self.window = Window()
        self.changed = threading.Condition()
        #: Messages that were in the queue when the consumer began.
        self.found = 0
        self.arrived_at = 0.0
        #: Messages that had arrived and were not passed on when the broker's last answer came.
        self._answered = 0
        self._options = options
        self._name = name
        self.prefetch = prefetch
        self._connection: Connection | None = None
        self._intake: _Intake | None = None
        self._host = 0
        self._stream = False
        self._probed = False

    # The connection's thread.

    def arrived(self, runs: list[Run]) -> None:
        with self.changed:
            # Each message of a stream has the header, so checking one message of a receive is enough.
            if STREAM_OFFSET.encode() in runs[0].properties(0):
                self._stream = True
            for run in runs:
                self.window.add(run)
            self.arrived_at = time.monotonic()
            self.changed.notify_all()
            if self.window.buffered_bytes > BUFFER_BYTES_MAX:
                self.changed.wait_for(lambda: self.window.buffered_bytes <= BUFFER_BYTES_MAX, HOLD_BACK_S)

    def answered(self) -> None:
        # The caller waits for the answer, so no other thread changes the window.
        self._answered = self.window.buffered

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    # The caller.

    @property
    def alive(self) -> bool:
        return self._connection is not None and self._connection.error is None

    def open(self) -> None:
        """Begin to consume. Waits for the consumer of a killed driver to go, and for nothing else."""
        deadline = time.monotonic() + TAKEOVER_MAX_S
        while True:
            try:
                return self._consume()
            except ChannelClosed as error:
                self._drop()
                refused = refusal(error, self._options.queue)
                if (
                    error.code != ACCESS_REFUSED
                    or "exclusive" not in str(error)
                    or time.monotonic() > deadline
                ):
                    raise refused from error
            time.sleep(RECONNECT_PAUSE_S)

    def look(self) -> int:
        """How many messages are ready, without consuming any."""
        try:
            self._connection = Connection.open(self._options.login, self._name)
            return self.ready()
        except ChannelClosed as error:
            raise refusal(error, self._options.queue) from error

    def failure(self) -> AmqpError:
        """Why the connection ended."""
        error = self._connection.error if self._connection is not None else None
        if isinstance(error, ChannelClosed):
            return refusal(error, self._options.queue)
        return error or ConnectionLost("the connection was lost")

    def widen(self, prefetch: int) -> None:
        """Allow so many unacked messages. Buffered messages come again."""
        if prefetch > self.prefetch:
            self.prefetch = prefetch
            self._drop()

    def ensure(self) -> None:
        """Reconnect if the connection is lost."""
        if self.alive:
            return
        deadline = time.monotonic() + RECONNECT_MAX_S
        pause_s = RECONNECT_PAUSE_S
        why = self._connection.error if self._connection is not None else None
        if why is not None:
            log.warning("queue '%s': reconnecting: %s", self._options.queue, why)
        self._drop()
        while True:
            try:
                return self._consume()
            except LoginRefused:
                raise
            except AmqpError as error:
                self._drop()
                if time.monotonic() > deadline:
                    raise (
                        refusal(error, self._options.queue) if isinstance(error, ChannelClosed) else error
                    ) from why
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, RECONNECT_PAUSE_MAX_S)

    def _consume(self) -> None:
        connection = Connection.open(self._options.login, self._name, self._host)
        self._connection = connection
        hosts = self._options.login.hosts
        # The next attempt begins with the host after this one.
        self._host = (hosts.index(connection.host) + 1) % len(hosts)
        before = self._found_before()
        connection.call(spec.Basic.Qos(prefetch_count=self.prefetch), spec.Basic.QosOk)
        self._intake = _Intake(self)
        connection.set_intake(self._intake)
        if self._probed:
            connection.call(self._consume_method(), spec.Basic.ConsumeOk)
        else:
            self._probe(connection)
        # Messages that come after the answer are among those that it counts as ready.
        found = self.ready() + self._answered
        if not self._options.exclusive and not before and not found:
            # Messages that another consumer has just returned may already be delivered again, and come after
            # the answer.
            self.wait(lambda: self.window.buffered > 0, PROBE_S)
            found = self.window.buffered
        self.found = max(before, found)

    def _found_before(self) -> int:
        """Messages in the queue.

        Asked before consuming, because nothing counts deliveries that have not arrived; and, if there must be
        no other consumer, when there is none: the messages that it held are back in the same moment.
        """
        deadline = time.monotonic() + TAKEOVER_MAX_S
        while True:
            declared = self._declared()
            if (
                not self._options.exclusive
                or not declared.consumer_count
                # The broker refuses in its own words.
                or time.monotonic() > deadline
            ):
                return int(declared.message_count)
            time.sleep(RECONNECT_PAUSE_S)

    def _consume_method(self, **arguments: str) -> spec.Basic.Consume:
        return spec.Basic.Consume(
            queue=self._options.queue,
            consumer_tag=CONSUMER_TAG,
            no_ack=False,
            exclusive=self._options.exclusive,
            arguments=arguments,
        )

    def _probe(self, connection: Connection) -> None:
        """Only consuming distinguishes a stream from a queue: RabbitMQ accepts a stream's argument for no
        other type, and a stream then delivers from its beginning.

        Without the argument, a stream would deliver no existing messages.
        """
        try:
            connection.call(self._consume_method(**{STREAM_OFFSET: "first"}), spec.Basic.ConsumeOk)
        except ChannelClosed as error:
            if error.code != PRECONDITION_FAILED or STREAM_OFFSET not in str(error):
                raise
            connection.open_channel()
            connection.call(spec.Basic.Qos(prefetch_count=self.prefetch), spec.Basic.QosOk)
            connection.call(self._consume_method(), spec.Basic.ConsumeOk)
        else:
            self.wait(lambda: self.window.buffered > 0, PROBE_S)
        self._probed = True

    def _declared(self) -> Any:
        """The broker's counts. All deliveries that it sent before the answer are there."""
        assert self._connection is not None
        declare = spec.Queue.Declare(queue=self._options.queue, passive=True)
        return self._connection.call(declare, spec.Queue.DeclareOk)

    def ready(self) -> int:
        """Messages that stay in the queue for now."""
        return int(self._declared().message_count)

    def counts(self) -> tuple[int, int]:
        """The number of messages that stay in the queue for now, and the number of its consumers."""
        declared = self._declared()
        return int(declared.message_count), int(declared.consumer_count)

    @property
    def full(self) -> bool:
        """Whether the broker may send no more before something is acked."""
        with self.changed:
            return 0 < self.prefetch <= self.window.unacked

    def wait(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `holds`, or the connection is lost."""
        with self.changed:
            self.changed.wait_for(lambda: holds() or not self.alive, timeout_s)
            if self._stream:
                raise not_a_stream(self._options.queue)
            return holds()

    def settle(self, settlement: Settlement) -> None:
        """Ack, and wait until the broker has taken the acks: if the process is killed, sent bytes may still
        be lost.
        """
        if not settlement or self._connection is None:
            return
        frames = [method_frame(1, spec.Basic.Ack(tag)) for tag in settlement.tags]
        if settlement.through is not None:
            frames.append(method_frame(1, spec.Basic.Ack(settlement.through, multiple=True)))
        self._connection.send(b"".join(frames))
        self._declared()
        with self.changed:
            self.window.confirmed()

    def close(self) -> None:
        self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if self._intake is not None:
            self._intake.detach()
            self._intake = None
        if connection is not None:
            connection.close()
        with self.changed:
            self.window.lost()
            self.changed.notify_all()
