"""The client's side of one AMQP 0-9-1 connection with one channel: bytes in, events out, without I/O.

Received data is not trusted. A frame may not be larger than agreed, a message has at most `body_bytes_max`,
and invalid data raises PeerError. Contents keep their bytes: a message is sent with the properties that it
arrived with.
"""

from __future__ import annotations

from typing import NamedTuple

from pamqp import base, commands

from amqp_server.errors import AMQPError
from amqp_server.shovels.errors import ChannelClosed, ClosedByPeer, PeerError
from amqp_server.wire import frames, methods

CHANNEL = 1
#: Maximum depth of tables from a broker, such as its properties.
TABLE_DEPTH = 16
#: Maximum frame size before the peers have agreed on one.
HANDSHAKE_FRAME_BYTES_MAX = 64 * 1024
_BASIC = 60
_ACK, _NACK, _DELIVER = b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78", b"\x00\x3c\x00\x3c"
_CAPABILITIES = dict.fromkeys(
    (
        "authentication_failure_close",
        "basic.nack",
        "connection.blocked",
        "consumer_cancel_notify",
        "publisher_confirms",
    ),
    True,
)


class Opened(NamedTuple):
    """The channel was opened."""


class Answer(NamedTuple):
    """The other side's answer to `ask`."""

    method: base.Frame


class Delivery(NamedTuple):
    tag: int
    exchange: bytes
    routing_key: bytes
    #: Payload of the content header.
    header: bytes
    #: Payloads of the body's frames.
    body: list[bytes]


class Settled(NamedTuple):
    """The other side has taken a message, or has refused it."""

    tag: int
    multiple: bool
    taken: bool


class Returned(NamedTuple):
    """A message was returned because it reached no queue."""

    text: str


class BlockedChanged(NamedTuple):
    """The other side's alarm was raised or cleared."""

    blocked: bool


class Cancelled(NamedTuple):
    """The queue of the consumer was deleted."""


Event = Opened | Answer | Delivery | Settled | Returned | BlockedChanged | Cancelled


class Outbox:
    """Bytes to be sent."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.bytes = 0
        #: Bytes that were sent since the beginning.
        self.sent_bytes = 0

    def put(self, data: bytes) -> None:
        self._chunks.append(data)
        self.bytes += len(data)

    def take(self, most: int) -> bytes:
        """Remove and return chunks of about this many bytes; they count until `sent`."""
        size = at = 0
        for at, chunk in enumerate(self._chunks, 1):  # noqa: B007
            size += len(chunk)
            if size >= most:
                break
        taken, self._chunks = self._chunks[:at], self._chunks[at:]
        return b"".join(taken)

    def sent(self, count: int) -> None:
        self.bytes -= count
        self.sent_bytes += count

    @property
    def waiting(self) -> bool:
        return bool(self._chunks)


class _Content:
    """A delivery or a returned message whose last frames have not arrived."""

    def __init__(self, method: bytes | str) -> None:
        #: Payload of basic.deliver, or the text of a return.
        self.method = method
        self.header = b""
        self.body: list[bytes] = []
        self.size = 0
        self.left = -1


class ClientSession:
    def __init__(
        self,
        *,
        mechanism: str,
        response: bytes,
        vhost: str,
        name: str,
        heartbeat_s: int,
        frame_bytes_max: int,
        body_bytes_max: int,
    ) -> None:
        self._mechanism = mechanism
        self._response = response
        self._vhost = vhost
        self._name = name
        self._body_bytes_max = body_bytes_max
        #: The agreed values, from `Opened` on.
        self.heartbeat_s = heartbeat_s
        self.frame_bytes_max = frame_bytes_max
        self.outbox = Outbox()
        self.outbox.put(frames.PROTOCOL_HEADER)
        self.blocked = False
        #: True if close-ok has arrived.
        self.closed = False
        self._closing = False
        self._frame_bytes_max = HANDSHAKE_FRAME_BYTES_MAX
        self._expected: type[base.Frame] | None = commands.Connection.Start
        self._opened = False
        self._buffer = b""
        self._at = 0
        self._content: _Content | None = None

    # -- out -------------------------------------------------------------------------------------------------

    def send(self, method: base.Frame, channel: int = CHANNEL) -> None:
        self.outbox.put(frames.method_frame(channel, method))

    def heartbeat(self) -> None:
        self.outbox.put(frames.HEARTBEAT_FRAME)

    def publish(self, method: bytes, header: bytes, body: list[bytes]) -> None:
        """`method` is the payload of basic.publish."""
        put, most = self.outbox.put, self.frame_bytes_max - frames.OVERHEAD
        put(
            frames.raw_frame(frames.METHOD, CHANNEL, method)
            + frames.raw_frame(frames.HEADER, CHANNEL, header)
        )
        for chunk in body:
            for start in range(0, len(chunk), most):
                put(frames.raw_frame(frames.BODY, CHANNEL, chunk[start : start + most]))

    def settle(self, tag: int, *, multiple: bool = False) -> None:
        self.send(methods.make(commands.Basic.Ack, delivery_tag=tag, multiple=multiple))

    def requeue(self, tag: int) -> None:
        self.send(methods.make(commands.Basic.Nack, delivery_tag=tag, multiple=False, requeue=True))

    def reopen(self) -> None:
        """The channel was closed: open another one."""
        self._content = None
        self._opened = False
        self.send(methods.make(commands.Channel.Open))

    def close(self) -> None:
        """Begin to close in order; `closed` is True when the other side has answered."""
        if not self._closing:
            self._closing = True
            self.send(methods.make(commands.Connection.Close, reply_code=200, reply_text="Goodbye"), 0)

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of a message whose end has not arrived."""
        return 0 if self._content is None else self._content.size

    # -- in --------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take received bytes; `next_event` returns their events."""
        self._buffer = self._buffer[self._at :] + data if self._at < len(self._buffer) else data
        self._at = 0

    def next_event(self) -> Event | None:
        """Return the next event, None if there is none. Raises PeerError, ClosedByPeer, ChannelClosed."""
        buffer = self._buffer
        while len(buffer) - self._at >= 7:
            kind, channel, size = frames.prefix.unpack_from(buffer, self._at)
            if kind == 0x41:  # A
                raise PeerError("the other side does not speak AMQP 0-9-1")
            if kind not in (frames.METHOD, frames.HEADER, frames.BODY, frames.HEARTBEAT) or channel > CHANNEL:
                raise PeerError("the other side has sent data that is not an AMQP frame")
            if size + frames.OVERHEAD > self._frame_bytes_max:
                raise PeerError(
                    f"the other side has sent a frame of {size + frames.OVERHEAD} bytes; the limit is "
                    f"{self._frame_bytes_max}"
                )
            start, end = self._at + 7, self._at + 7 + size
            if end >= len(buffer):
                return None
            if buffer[end] != frames.END:
                raise PeerError("the other side has sent a frame without an end")
            self._at = end + 1
            event = self._frame(kind, channel, buffer[start:end])
            if event is not None:
                return event
        return None

    def _frame(self, kind: int, channel: int, payload: bytes) -> Event | None:
        if kind == frames.HEARTBEAT:
            return None
        content = self._content
        if kind == frames.METHOD:
            if content is not None and channel == CHANNEL:
                raise PeerError("the other side has sent a method within a message")
            return self._method(channel, payload)
        if content is None or channel != CHANNEL:
            raise PeerError("the other side has sent a part of a message that has not begun")
        if kind == frames.HEADER:
            if content.header or len(payload) < 14 or payload[:2] != b"\x00\x3c":
                raise PeerError("the other side has sent a malformed message")
            content.header, content.left = payload, int.from_bytes(payload[4:12], "big")
            if content.left > self._body_bytes_max:
                raise PeerError(
                    f"a message has {content.left} bytes; the limit is {self._body_bytes_max} (message_bytes_max)"
                )
        else:
            content.left -= len(payload)
            if not content.header or content.left < 0 or not payload:
                raise PeerError("the other side has sent a malformed message")
            content.body.append(payload)
            content.size += len(payload)
        return self._whole(content) if content.left == 0 else None

    def _whole(self, content: _Content) -> Event:
        self._content = None
        method = content.method
        if isinstance(method, str):
            return Returned(method)
        try:
            tag_at = 5 + method[4]
            tag = int.from_bytes(method[tag_at : tag_at + 8], "big")
            exchange_at = tag_at + 9
            key_at = exchange_at + 1 + method[exchange_at]
            end = key_at + 1 + method[key_at]
        except IndexError:
            end = -1
        if end != len(method):
            raise PeerError("the other side has sent a malformed delivery")
        return Delivery(
            tag, method[exchange_at + 1 : key_at], method[key_at + 1 : end], content.header, content.body
        )

    def _method(self, channel: int, payload: bytes) -> Event | None:
        kind = payload[:4]
        if channel == CHANNEL and self._opened:
            if kind == _DELIVER and len(payload) > 4:
                self._content = _Content(payload)
                return None
            if kind in (_ACK, _NACK) and len(payload) == 13:
                tag, bits = int.from_bytes(payload[4:12], "big"), payload[12]
                return Settled(tag, bool(bits & 1), kind == _ACK)
        try:
            method = methods.decode(payload, TABLE_DEPTH)
        except AMQPError:
            raise PeerError("the other side has sent a method that is malformed or unknown") from None
        if channel == 0:
            return self._connection_method(method)
        return self._channel_method(method)

    def _connection_method(self, method: base.Frame) -> Event | None:
        match method:
            case commands.Connection.Close():
                self.send(methods.make(commands.Connection.CloseOk), 0)
                raise ClosedByPeer(f"the other side has closed the connection: {_text(method.reply_text)}")
            case commands.Connection.CloseOk() if self._closing:
                self.closed = True
                return None
            case commands.Connection.Blocked():
                self.blocked = True
                return BlockedChanged(True)
            case commands.Connection.Unblocked():
                self.blocked = False
                return BlockedChanged(False)
        if self._expected is None or type(method) is not self._expected:
            raise PeerError(f"the other side has sent {method.name} out of turn")
        if isinstance(method, commands.Connection.Start):
            self._start(method)
        elif isinstance(method, commands.Connection.Tune):
            self._tune(method)
        else:
            self._expected = None
            self.send(methods.make(commands.Channel.Open))
        return None

    def _start(self, start: commands.Connection.Start) -> None:
        offered = _text(start.mechanisms).split()
        if self._mechanism not in offered:
            raise PeerError(
                f"the other side does not accept logins with {self._mechanism}, only with: "
                f"{' '.join(offered)[:80]}"
            )
        properties = {
            "product": "mqd shovel",
            "capabilities": _CAPABILITIES,
            "connection_name": self._name,
        }
        self.send(
            methods.make(
                commands.Connection.StartOk,
                client_properties=properties,
                mechanism=self._mechanism,
                response=self._response,
                locale="en_US",
            ),
            0,
        )
        self._expected = commands.Connection.Tune

    def _tune(self, tune: commands.Connection.Tune) -> None:
        theirs = tune.frame_max or self.frame_bytes_max
        if theirs < frames.FRAME_BYTES_MIN:
            raise PeerError(f"the other side allows frames of {theirs} bytes only")
        self.frame_bytes_max = self._frame_bytes_max = min(self.frame_bytes_max, theirs)
        asked = (self.heartbeat_s, tune.heartbeat or 0)
        self.heartbeat_s = min(asked) or max(asked)
        self.send(
            methods.make(
                commands.Connection.TuneOk,
                channel_max=tune.channel_max or 0,
                frame_max=self.frame_bytes_max,
                heartbeat=self.heartbeat_s,
            ),
            0,
        )
        self.send(methods.make(commands.Connection.Open, virtual_host=self._vhost), 0)
        self._expected = commands.Connection.OpenOk

    def _channel_method(self, method: base.Frame) -> Event | None:
        if self._expected is not None:
            raise PeerError(f"the other side has sent {method.name} out of turn")
        match method:
            case commands.Channel.OpenOk() if not self._opened:
                self._opened = True
                return Opened()
            case commands.Channel.Close():
                self.send(methods.make(commands.Channel.CloseOk))
                text = f"the other side has closed the channel: {_text(method.reply_text)}"
                raise ChannelClosed(method.reply_code or 0, text)
            case commands.Basic.Return():
                self._content = _Content(f"{method.reply_code} {_text(method.reply_text)}")
                return None
            case commands.Basic.Cancel():
                return Cancelled()
        if not self._opened or method.synchronous or method.index >> 16 == _BASIC and not _is_answer(method):
            raise PeerError(f"the other side has sent {method.name} out of turn")
        return Answer(method)


def _is_answer(method: base.Frame) -> bool:
    return isinstance(method, (commands.Basic.QosOk, commands.Basic.ConsumeOk))


def _text(value: object) -> str:
    """Return a text from the other side in a form that is safe in a log line."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
    return "".join(char if char.isprintable() else "?" for char in text[:255])
