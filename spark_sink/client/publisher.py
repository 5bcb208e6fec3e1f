"""Publishes messages with a window of confirms; if the connection is lost, sends unconfirmed messages again
over another one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pika import spec

from spark_sink.client.connection import Connection
from spark_sink.client.errors import (
    AmqpError,
    ChannelClosed,
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    LoginRefused,
    MessagesRefused,
    NoAnswer,
)
from spark_sink.client.login import Login
from spark_sink.client.window import Returned, Window

#: Messages that are joined and sent at once: long enough that a call to the kernel costs little for each.
CHUNK = 500
#: Limit of the bodies that wait for their confirms: they are kept, to be sent again.
IN_FLIGHT_BYTES_MAX = 64 << 20
#: Bytes that may wait for the kernel, if no confirms limit them.
UNSENT_BYTES_MAX = 8 << 20
UNSENT_POLL_S = 0.002
PAUSE_MIN_S, PAUSE_MAX_S = 0.05, 1.0
#: Reply codes after which another attempt may succeed: the node shuts down, or had an internal error.
PASSING_CLOSES = ("320 ", "541 ")
#: The beginning of a broker's text about a body that is too long.
PRECONDITION_FAILED, MESSAGE_SIZE = 406, "message size"


@dataclass(frozen=True, slots=True)
class Terms:
    in_flight_max: int
    timeout_ms: int
    confirms: bool = True


@dataclass(slots=True)
class _Sent:
    """Messages that went out together, kept until all are settled."""

    first_tag: int
    first_row: int
    messages: Sequence[bytes]
    size_bytes: int

    @property
    def last_tag(self) -> int:
        return self.first_tag + len(self.messages) - 1


def connect(login: Login, name: str, timeout_ms: int, first: int = 0) -> Connection:
    """Try until the timeout; a refused login is not tried again. Raises ConnectFailed."""
    deadline = time.monotonic() + timeout_ms / 1000
    pause_s = PAUSE_MIN_S
    while True:
        try:
            return Connection.open(login, name, first)
        except LoginRefused:
            raise
        except ConnectFailed:
            if time.monotonic() + pause_s > deadline:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


class Publisher:
    def __init__(self, login: Login, name: str, terms: Terms, connection: Connection | None = None) -> None:
        self._login = login
        self._name = name
        self._terms = terms
        self._sent: deque[_Sent] = deque()
        self._sent_bytes = 0
        self._next_tag = 1
        self._nacked_rows: list[int] = []
        self.connection = connection or connect(login, name, terms.timeout_ms)
        self.window = self._begin()

    def _begin(self) -> Window:
        window = Window(self.connection.changed)
        self.connection.set_intake(window)
        if self._terms.confirms:
            self.connection.call(spec.Confirm.Select(), spec.Confirm.SelectOk)
        return window

    def send(self, messages: Sequence[bytes], first_row: int) -> None:
        """Returns when all messages are sent and at most a window of them is unconfirmed. Raises AmqpError;
        Refused names the first.
        """
        chunk = min(CHUNK, self._terms.in_flight_max)
        for start in range(0, len(messages), chunk):
            self._send_chunk(messages[start : start + chunk], first_row + start)

    def _send_chunk(self, messages: Sequence[bytes], first_row: int) -> None:
        data = b"".join(messages)
        if not self._terms.confirms:
            self._send_unconfirmed(data)
            return
        room = self._terms.in_flight_max - len(messages)
        self._wait(
            lambda: (
                self.in_flight <= room
                and (not self._sent or self._in_flight_bytes() + len(data) <= IN_FLIGHT_BYTES_MAX)
            )
        )
        self._sent.append(_Sent(self._next_tag, first_row, messages, len(data)))
        self._sent_bytes += len(data)
        self._next_tag += len(messages)
        try:
            self.connection.send(data)
        except ConnectionLost as error:
            # It is among the unconfirmed messages, and is sent again with them.
            self._reconnect(error)

    @property
    def in_flight(self) -> int:
        return self._next_tag - 1 - self.window.settled

    def _in_flight_bytes(self) -> int:
        low = self.window.low
        if self.window.nacked:
            return self._sent_bytes  # their rows are still to be named
        while self._sent and self._sent[0].last_tag <= low:
            self._sent_bytes -= self._sent.popleft().size_bytes
        return self._sent_bytes

    def _send_unconfirmed(self, data: bytes) -> None:
        deadline = time.monotonic() + self._terms.timeout_ms / 1000
        before = self.connection.unsent_bytes
        while (unsent := self.connection.unsent_bytes) > UNSENT_BYTES_MAX:
            if self.connection.error is not None:
                raise self._explained(self.connection.error)
            if unsent < before:
                before, deadline = unsent, time.monotonic() + self._terms.timeout_ms / 1000
            elif time.monotonic() > deadline:
                raise self._stuck()
            time.sleep(UNSENT_POLL_S)
        try:
            self.connection.send(data)
        except AmqpError as error:
            raise self._explained(error) from None

    def flush(self) -> None:
        """Wait until all messages are settled. Raises AmqpError."""
        if self._terms.confirms:
            self._wait(lambda: self.in_flight == 0)
            self._in_flight_bytes()
        else:
            # The answer to any method means that the broker has taken everything before it, and returned
            # messages come before the answer.
            try:
                self.connection.call(
                    spec.Basic.Qos(prefetch_count=1),
                    spec.Basic.QosOk,
                    timeout_s=self._terms.timeout_ms / 1000,
                )
            except NoAnswer:
                raise self._stuck() from None
            except AmqpError as error:
                raise self._explained(error) from None
        self.check_refused()

    def settle(self) -> None:
        """Wait until all messages are settled, with any outcome. Raises AmqpError, but not Refused."""
        self._wait(lambda: self.in_flight == 0, refusals=False)

    def check_refused(self) -> None:
        if self.window.returned or self.window.nacked or self._nacked_rows:
            raise MessagesRefused(self._refusal())

    def _refusal(self) -> str:
        if self.window.returned:
            return returned_text(self.window.returned)
        rows = self.nacked_rows()
        count = f"{len(rows)} messages, the first of them row {rows[0]}" if rows else "messages"
        return f"the broker nacked {count}: a queue is full and rejects publishes (x-overflow), or has lost its majority"

    def nacked_rows(self) -> list[int]:
        """Return the rows whose messages were nacked."""
        nacked = self.window.nacked
        return self._nacked_rows + [
            sent.first_row + tag - sent.first_tag
            for sent in self._sent
            for tag in range(sent.first_tag, sent.last_tag + 1)
            if tag in nacked
        ]

    def _wait(self, holds: Callable[[], bool], refusals: bool = True) -> None:
        window = self.window
        if not (window.nacked or window.returned) and self.connection.error is None and holds():
            return
        began = time.monotonic()
        while True:
            error = None
            with self.connection.changed:
                if refusals:
                    self.check_refused()
                error = self.connection.error
                if error is None:
                    if holds():
                        return
                    last = max(began, self.window.progress_at)
                    left_s = last + self._terms.timeout_ms / 1000 - time.monotonic()
                    if left_s <= 0:
                        raise self._stuck()
                    self.connection.changed.wait(left_s)
            if error is not None:
                self._reconnect(error)

    def _stuck(self) -> AmqpError:
        unconfirmed = f"; {self.in_flight} messages are unconfirmed" if self._terms.confirms else ""
        return self.connection.stuck(
            f"confirmed nothing for {self._terms.timeout_ms} ms (option confirmTimeoutMs){unconfirmed}"
        )

    def _reconnect(self, error: AmqpError) -> None:
        """Send the unconfirmed messages over a new connection, in order. Raises an error that makes another
        attempt useless.
        """
        deadline = time.monotonic() + self._terms.timeout_ms / 1000
        while True:
            if not _passing(error):
                raise self._explained(error)
            self.connection.close()
            left_ms = int((deadline - time.monotonic()) * 1000)
            if left_ms <= 0:
                raise self._explained(error)
            hosts = self._login.hosts
            following = hosts.index(self.connection.host) + 1
            self.connection = connect(self._login, self._name, left_ms, following % len(hosts))
            try:
                self._resend()
                return
            except (ConnectionLost, NoAnswer) as again:
                error = again

    def _resend(self) -> None:
        old = self.window
        self._nacked_rows = self.nacked_rows()
        old.nacked.clear()
        self.window = self._begin()
        self.window.returned += old.returned
        unsettled: list[tuple[int, bytes]] = []
        for sent in self._sent:
            for offset, message in enumerate(sent.messages):
                if not old.is_settled(sent.first_tag + offset):
                    unsettled.append((sent.first_row + offset, message))
        # Number them again before sending anything: if this connection is lost too, all of them are still
        # unconfirmed.
        self._sent = deque(
            _Sent(tag, row, (message,), len(message)) for tag, (row, message) in enumerate(unsettled, 1)
        )
        self._sent_bytes = sum(each.size_bytes for each in self._sent)
        self._next_tag = len(unsettled) + 1
        for start in range(0, len(unsettled), CHUNK):
            self.connection.send(b"".join(message for _, message in unsettled[start : start + CHUNK]))

    def _explained(self, error: AmqpError) -> AmqpError:
        if not isinstance(error, ChannelClosed):
            return error
        if error.code == PRECONDITION_FAILED and MESSAGE_SIZE in str(error):
            where = "the column value: its bytes are more than the broker takes; option maxMessageBytes finds them first"
        else:
            where = "the options and columns exchange, routing_key and user_id"
        return ChannelClosed(f"the broker closed the channel: {error} (see {where})", error.code)

    def close(self) -> None:
        self.connection.close()


def _passing(error: AmqpError) -> bool:
    if isinstance(error, ConnectionClosed):
        return any(code in str(error) for code in PASSING_CLOSES)
    return isinstance(error, (ConnectionLost, NoAnswer))


def returned_text(returned: Sequence[Returned]) -> str:
    first = returned[0]
    where = f"exchange '{first.exchange}' with routing key '{first.routing_key}'"
    which = f"message '{first.message_id}'" if first.message_id else "a message"
    others = f" (and {len(returned) - 1} more)" if len(returned) > 1 else ""
    return (
        f"{which} came back from {where}{others}: {first.code} {first.text}. No queue takes it: "
        "bind one, correct the routing key, or set option 'mandatory' to false to drop such messages"
    )
