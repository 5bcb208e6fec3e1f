"""A connection and its thread: the thread reads, answers heartbeats, and hands each frame to its receiver.

The caller's methods block until the broker has answered. Frames that come in large numbers (confirms,
deliveries) never become objects here: an *intake* gets the received bytes first and takes the frames that it
knows by offset.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from pika import spec
from pika.amqp_object import Method

from spark_sink.client.errors import (
    AmqpError,
    Blocked,
    ChannelClosed,
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    LoginRefused,
    NoAnswer,
)
from spark_sink.client.frames import (
    BODY,
    FRAME_END,
    FRAME_MAX,
    HEAD,
    HEAD_BYTES,
    HEADER,
    HEARTBEAT_FRAME,
    METHOD,
    OVERHEAD,
    decode_method,
    decode_properties,
    method_frame,
)
from spark_sink.client.handshake import Opened, connect
from spark_sink.client.login import Host, Login
from spark_sink.client.transport import Transport

ANSWER_MAX_S = 60.0
CLOSE_MAX_S = 5.0

Reply = TypeVar("Reply", bound=Method)


class Intake(Protocol):
    """All methods run on the connection's thread, and must not block."""

    def take(self, data: bytes, start: int, end: int) -> int:
        """Take whole frames from `start` on, and return the position of the first frame that is not for this
        intake.
        """

    def content(self, method: Any, properties: Any, body: bytes) -> None:
        """Handle a message that `take` has left: a return, or a delivery. Answers to basic.get are not among
        them.
        """

    def answered(self) -> None:
        """An answer has come: the broker has sent exactly the frames taken until now before it."""

    def ended(self) -> None:
        """The connection or the channel is closed."""


class Connection:
    def __init__(self, opened: Opened, host: Host) -> None:
        self.host = host
        self.server_properties: Mapping[str, Any] = opened.server_properties
        self.frame_max = opened.frame_max
        #: Why the connection or the channel ended.
        self.error: AmqpError | None = None
        #: The broker's reason for blocking publishers, while it does.
        self.blocked: str | None = None
        self.changed = threading.Condition()
        self._intake: Intake | None = None
        self._transport = Transport(opened.sock)
        self._heartbeat_s = opened.heartbeat_s
        self._sent_at = self._received_at = time.monotonic()
        self._answers: deque[Any] = deque()
        self._pending: list[Any] = []
        self._rest = b""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"amqp {host}", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, login: Login, name: str, first: int = 0) -> Connection:
        """Try the hosts in turn, beginning with the one of number `first`. Channel 1 is open then. Raises
        ConnectFailed.
        """
        failures: list[ConnectFailed] = []
        for turn in range(len(login.hosts)):
            host = login.hosts[(first + turn) % len(login.hosts)]
            try:
                connection = cls(connect(host, login, name), host)
            except ConnectFailed as failure:
                failures.append(failure)
                continue
            try:
                connection.open_channel()
            except AmqpError as failure:
                connection.close()
                failures.append(ConnectFailed(f"{host}: {failure}"))
                continue
            return connection
        refusal = next((failure for failure in failures if isinstance(failure, LoginRefused)), None)
        texts = "; ".join(map(str, failures))
        if refusal is not None:
            raise LoginRefused(f"cannot connect: {texts}")
        raise ConnectFailed(f"cannot connect to the broker (see the option url, or host and port): {texts}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def capabilities(self) -> Mapping[str, Any]:
        found = self.server_properties.get("capabilities")
        return found if isinstance(found, Mapping) else {}

    @property
    def unsent_bytes(self) -> int:
        return self._transport.unsent_bytes

    def set_intake(self, intake: Intake | None) -> None:
        with self.changed:
            self._intake = intake

    def open_channel(self) -> None:
        """Open channel 1, again if the broker has closed it."""
        with self.changed:
            if isinstance(self.error, ChannelClosed):
                self.error = None
        self.call(spec.Channel.Open(), spec.Channel.OpenOk)

    def send(self, data: bytes) -> None:
        """Never blocks: the thread sends the bytes that the kernel does not take at once. Raises the error
        that ended the connection.
        """
        if self.error is not None:
            raise self.error
        self._sent_at = time.monotonic()
        try:
            self._transport.send(data)
        except OSError as error:
            self._end(ConnectionLost(f"the connection to {self.host} was lost: {error}"))
            raise self._ending() from error

    def call(self, method: Method, *replies: type[Reply], timeout_s: float = ANSWER_MAX_S) -> Reply:
        """Send a method, and wait for its answer. Raises AmqpError."""
        reply, _, _ = self.call_for_content(method, *replies, timeout_s=timeout_s)
        return reply

    def call_for_content(
        self, method: Method, *replies: type[Reply], timeout_s: float = ANSWER_MAX_S
    ) -> tuple[Reply, Any, bytes]:
        """As `call`, with the properties and the body that follow a basic.get-ok."""
        self.send(method_frame(1, method))
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while True:
                if self._answers:
                    reply, properties, body = self._answers.popleft()
                    if isinstance(reply, replies):
                        return reply, properties, body
                    continue
                if self.error is not None:
                    raise self.error
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise self.stuck(f"did not answer {method.NAME} within {timeout_s:g} s")
                self.changed.wait(left_s)

    def stuck(self, what: str) -> AmqpError:
        """Return the error for a broker that does not answer in time: it may have said why."""
        if self.blocked is None:
            return NoAnswer(f"{self.host} {what}")
        return Blocked(
            f"{self.host} blocks publishers and {what}: {self.blocked}. Free its memory or disk, or let consumers catch up"
        )

    def close(self) -> None:
        """Close the connection, with connection.close if it is still open. Never raises."""
        if not self._closing:
            self._closing = True
            if self.error is None or isinstance(self.error, ChannelClosed):
                self.error = None
                self._say_goodbye()
        self._transport.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_MAX_S)

    def _say_goodbye(self) -> None:
        try:
            self._transport.send(method_frame(0, spec.Connection.Close(200, "goodbye", 0, 0)))
        except OSError:
            return
        with self.changed:
            self.changed.wait_for(lambda: self.error is not None, CLOSE_MAX_S)

    # The connection's own thread.

    def _run(self) -> None:
        try:
            while self.error is None or isinstance(self.error, ChannelClosed):
                data = self._transport.receive(self._heartbeat_s / 4)
                self._beat(data is not None)
                if data is not None:
                    self._feed(data)
        except OSError as error:
            self._end(ConnectionLost(f"the connection to {self.host} was lost: {error}"))
        except Exception as error:  # noqa: BLE001 - whoever waits for this connection must be told
            self._end(ConnectionLost(f"the connection to {self.host} was given up: {error!r}"))
        finally:
            self._transport.release()

    def _beat(self, received: bool) -> None:
        now = time.monotonic()
        if received:
            self._received_at = now
        elif now - self._received_at > 2 * self._heartbeat_s:
            raise OSError(f"it has been silent for two heartbeats of {self._heartbeat_s} s")
        if now - self._sent_at >= self._heartbeat_s / 2:
            self._sent_at = now
            self._transport.send(HEARTBEAT_FRAME)

    def _feed(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        position, end = 0, len(data)
        while True:
            intake = self._intake
            if intake is not None and not self._pending:
                position = intake.take(data, position, end)
            if end - position < OVERHEAD:
                break
            kind, channel, size = HEAD.unpack_from(data, position)
            if size > FRAME_MAX:
                raise ValueError(f"a frame of {size} bytes")
            after = position + OVERHEAD + size
            if after > end:
                break
            if data[after - 1] != FRAME_END:
                raise ValueError("a frame without its end")
            payload = data[position + HEAD_BYTES : after - 1]
            if channel == 0:
                if kind == METHOD:
                    self._control(decode_method(payload))
            else:
                self._frame(kind, payload)
            position = after
        self._rest = data[position:]

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == METHOD:
            method = decode_method(payload)
            if isinstance(method, (spec.Basic.Return, spec.Basic.Deliver, spec.Basic.GetOk)):
                self._pending = [method, None, 0, []]
            elif isinstance(method, spec.Channel.Close):
                self._transport.send(method_frame(1, spec.Channel.CloseOk()))
                self._end(ChannelClosed(f"{method.reply_code} {method.reply_text}", method.reply_code))
            elif isinstance(method, spec.Basic.Cancel):
                self._end(
                    ChannelClosed(
                        "the broker cancelled the consumer: the queue was deleted, or its leader was lost"
                    )
                )
            else:
                self._answer(method, None, b"")
        elif kind == HEADER:
            self._pending[2], self._pending[1] = decode_properties(payload)
        elif kind == BODY:
            self._pending[3].append(payload)
            self._pending[2] -= len(payload)
        if self._pending and self._pending[1] is not None and self._pending[2] <= 0:
            self._content()

    def _content(self) -> None:
        method, properties, _, pieces = self._pending
        self._pending = []
        body = b"".join(pieces)
        if isinstance(method, spec.Basic.GetOk):
            self._answer(method, properties, body)
        elif self._intake is not None:
            self._intake.content(method, properties, body)

    def _answer(self, method: Any, properties: Any, body: bytes) -> None:
        if self._intake is not None:
            self._intake.answered()
        with self.changed:
            self._answers.append((method, properties, body))
            self.changed.notify_all()

    def _control(self, method: Any) -> None:
        if isinstance(method, spec.Connection.Close):
            self._transport.send(method_frame(0, spec.Connection.CloseOk()))
            self._end(
                ConnectionClosed(
                    f"{self.host} closed the connection: {method.reply_code} {method.reply_text}"
                )
            )
        elif isinstance(method, spec.Connection.CloseOk):
            self._end(ConnectionLost("closed"))
        elif isinstance(method, spec.Connection.Blocked):
            with self.changed:
                self.blocked = method.reason or "no reason given"
        elif isinstance(method, spec.Connection.Unblocked):
            with self.changed:
                self.blocked = None
                self.changed.notify_all()

    def _end(self, error: AmqpError) -> None:
        """The first reason is kept, but a lost connection replaces a closed channel."""
        with self.changed:
            if self.error is None or isinstance(self.error, ChannelClosed):
                self.error = error
            self.changed.notify_all()
        if self._intake is not None:
            self._intake.ended()

    def _ending(self) -> AmqpError:
        return self.error or ConnectionLost(f"the connection to {self.host} was lost")
