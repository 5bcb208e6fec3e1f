"""A client with plain sockets: it sends whatever a test wants, also frames that the protocol forbids.

Frames go out as they are given; `read` gives back the next frame, method frames decoded by pamqp.
Nothing is answered on its own, except heartbeats (skipped unless asked for) and what `handshake` does.
"""

import contextlib
import re
import socket
import struct
import time
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import unquote, urlsplit

import pamqp.base
import pamqp.frame
from pamqp import commands, decode, header

from conformance_tests.patience import wait_s

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = b"\xce"
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"

M = TypeVar("M", bound=pamqp.base.Frame)

# The client properties, unless a test sets others.
CAPABILITIES: dict[str, Any] = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}


class ClosedByPeer(Exception):
    """The broker closed the socket (with the bytes that were left unread, if it cut a frame)."""


class Frame(NamedTuple):
    type: int
    channel: int
    payload: bytes

    @property
    def method(self) -> pamqp.base.Frame:
        assert self.type == METHOD, self
        _, _, method = pamqp.frame.unmarshal(frame_bytes(*self))
        assert isinstance(method, pamqp.base.Frame)
        return method

    @property
    def method_id(self) -> tuple[int, int]:
        assert self.type == METHOD, self
        class_id, method_id = struct.unpack(">HH", self.payload[:4])
        return class_id, method_id


class Content(NamedTuple):
    """A message that the broker sent: its method, its header frame's bytes,
    its body, the frames it came in.
    """

    method: pamqp.base.Frame
    header: bytes
    body: bytes
    body_frames: int

    @property
    def delivery_tag(self) -> int:
        assert isinstance(self.method, commands.Basic.Deliver | commands.Basic.GetOk)
        assert self.method.delivery_tag is not None
        return self.method.delivery_tag

    @property
    def redelivered(self) -> bool:
        assert isinstance(self.method, commands.Basic.Deliver | commands.Basic.GetOk)
        return bool(self.method.redelivered)

    @property
    def properties(self) -> commands.Basic.Properties:
        return decode_header(self.header).properties


def frame_bytes(frame_type: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", frame_type, channel, len(payload)) + payload + FRAME_END


def method_bytes(method: pamqp.base.Frame, channel: int) -> bytes:
    return pamqp.frame.marshal(method, channel)


def raw_method(class_id: int, method_id: int, arguments: bytes, channel: int = 1) -> bytes:
    return frame_bytes(METHOD, channel, struct.pack(">HH", class_id, method_id) + arguments)


def header_payload(body_size: int, class_id: int = 60, weight: int = 0, properties: bytes = b"\0\0") -> bytes:
    return struct.pack(">HHQ", class_id, weight, body_size) + properties


def headers_property(table: bytes) -> bytes:
    """The property part of a content header that has only `headers`, its table already encoded."""
    return struct.pack(">HI", 1 << 13, len(table)) + table


def decode_header(payload: bytes) -> header.ContentHeader:
    content_header = header.ContentHeader()
    content_header.unmarshal(payload)
    return content_header


def short_string(value: bytes) -> bytes:
    return bytes([len(value)]) + value


def long_string(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


class Address(NamedTuple):
    host: str
    port: int
    user: str
    password: str
    vhost: str

    @classmethod
    def of(cls, url: str) -> Self:
        parts = urlsplit(url)
        assert parts.scheme == "amqp" and parts.hostname, url
        path = parts.path[1:]
        return cls(
            parts.hostname,
            parts.port or 5672,
            unquote(parts.username or "guest"),
            unquote(parts.password or "guest"),
            # An empty path and "/" both mean the default vhost, as most clients read it.
            unquote(path) if path else "/",
        )


class RawClient:
    """One connection. `RawClient(url)` connects the socket; `handshake()`
    and `open_channel()` do the rest.
    """

    def __init__(
        self, url: str, *, read_s: float | None = None, receive_buffer_bytes: int | None = None
    ) -> None:
        self.address = Address.of(url)
        self.read_s = read_s or wait_s()
        self.buffer = b""
        self.start: commands.Connection.Start | None = None
        self.tune: commands.Connection.Tune | None = None
        self.frame_max = 131072
        self.channel_max = 0
        self.running = False
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(wait_s())
        self.socket.connect((self.address.host, self.address.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # -- out

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_method(self, method: pamqp.base.Frame, channel: int = 1) -> None:
        self.send(method_bytes(method, channel))

    def send_frame(self, frame_type: int, channel: int, payload: bytes) -> None:
        self.send(frame_bytes(frame_type, channel, payload))

    def publish_bytes(
        self,
        body: bytes = b"",
        *,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        properties: bytes | commands.Basic.Properties = b"\0\0",
        channel: int = 1,
    ) -> bytes:
        method = commands.Basic.Publish(
            exchange=exchange, routing_key=routing_key, mandatory=mandatory, immediate=immediate
        )
        if isinstance(properties, commands.Basic.Properties):
            properties = properties.marshal()
        out = [
            method_bytes(method, channel),
            frame_bytes(HEADER, channel, header_payload(len(body), properties=properties)),
        ]
        step = (self.frame_max or 131072) - 8
        out += [frame_bytes(BODY, channel, body[i : i + step]) for i in range(0, len(body), step)]
        return b"".join(out)

    def publish(self, body: bytes = b"", **kw: Any) -> None:
        self.send(self.publish_bytes(body, **kw))

    # -- in

    def _fill(self, count: int, deadline: float) -> None:
        while len(self.buffer) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no frame; {self.buffer[:64]!r} in hand")
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(262144)
            except ConnectionError as error:
                raise ClosedByPeer(f"{error}; {self.buffer[:64]!r} in hand") from error
            if not data:
                raise ClosedByPeer(f"{self.buffer[:64]!r} in hand")
            self.buffer += data

    def read_bytes(self, count: int, timeout_s: float | None = None) -> bytes:
        self._fill(count, time.monotonic() + (timeout_s or self.read_s))
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def read_frame(self, timeout_s: float | None = None, *, heartbeats: bool = False) -> Frame:
        deadline = time.monotonic() + (timeout_s or self.read_s)
        while True:
            self._fill(7, deadline)
            frame_type, channel, size = struct.unpack(">BHI", self.buffer[:7])
            assert frame_type in (METHOD, HEADER, BODY, HEARTBEAT), self.buffer[:64]
            self._fill(size + 8, deadline)
            payload, end = self.buffer[7 : size + 7], self.buffer[size + 7 : size + 8]
            assert end == FRAME_END, self.buffer[: size + 8]
            self.buffer = self.buffer[size + 8 :]
            if frame_type == HEARTBEAT:
                assert (channel, size) == (0, 0), (channel, size)
                if not heartbeats:
                    continue
            return Frame(frame_type, channel, payload)

    def read(self, expected: type[M], channel: int | None = 1, timeout_s: float | None = None) -> M:
        """The next frame, which must be this method on this channel."""
        frame = self.read_frame(timeout_s)
        method = frame.method
        assert isinstance(method, expected), f"{describe(method)} instead of {expected.name}"
        if channel is not None:
            assert frame.channel == channel, frame
        return method

    def read_content(
        self, expected: type[pamqp.base.Frame] = commands.Basic.Deliver, channel: int = 1
    ) -> Content:
        method = self.read(expected, channel)
        frame = self.read_frame()
        assert (frame.type, frame.channel) == (HEADER, channel), frame
        (size,) = struct.unpack(">Q", frame.payload[4:12])
        parts: list[bytes] = []
        while sum(map(len, parts)) < size:
            part = self.read_frame()
            assert (part.type, part.channel) == (BODY, channel), part
            assert len(part.payload) + 8 <= self.frame_max, len(part.payload)
            parts.append(part.payload)
        body = b"".join(parts)
        assert len(body) == size
        return Content(method, frame.payload, body, len(parts))

    def call(self, method: pamqp.base.Frame, expected: type[M], channel: int = 1) -> M:
        self.send_method(method, channel)
        return self.read(expected, channel)

    def declare(self, queue: str = "", channel: int = 1) -> str:
        """Declare a queue that is deleted with this connection; return its name."""
        method = commands.Queue.Declare(queue=queue, exclusive=True)
        return str(self.call(method, commands.Queue.DeclareOk, channel).queue)

    def expect_silence(self, seconds: float = 0.2) -> None:
        """No frame (except heartbeats) comes in this time, and the connection stays open."""
        try:
            frame = self.read_frame(seconds)
        except TimeoutError:
            return
        raise AssertionError(f"unexpected {describe(frame.method) if frame.type == METHOD else frame}")

    def expect_answer_first(self, channel: int = 1) -> None:
        """No frame comes before the answer to a method sent now: no earlier answer, no returned message."""
        self.send_method(commands.Exchange.Declare(exchange="amq.direct", passive=True), channel)
        self.read(commands.Exchange.DeclareOk, channel)

    def expect_eof(self, timeout_s: float | None = None) -> None:
        """The broker closes the socket without sending anything more."""
        self.running = False
        try:
            frame = self.read_frame(timeout_s, heartbeats=False)
        except ClosedByPeer as closed:
            assert "b'' in hand" in str(closed), closed
            return
        raise AssertionError(f"unexpected {frame}")

    def expect_nothing_more(self, seconds: float = 0.2) -> None:
        """No more frames come, whether the broker closes the socket or leaves that to us."""
        self.running = False
        with contextlib.suppress(ClosedByPeer):
            self.expect_silence(seconds)

    def expect_end(self, timeout_s: float | None = None) -> None:
        """The broker ends the connection, with or without a word: connection.close is all that may come.

        Before it is running, a connection is often dropped in silence (RabbitMQ waits three seconds to do
        so).
        """
        self.running = False
        deadline = time.monotonic() + (timeout_s or self.read_s)
        try:
            frame = self.read_frame(timeout_s)
            assert frame.type == METHOD and frame.method_id == (10, 50), f"unexpected {frame}"
            assert "Traceback" not in str(frame.payload)
            with contextlib.suppress(ConnectionError):
                self.send_method(commands.Connection.CloseOk(), 0)
            self.expect_eof(max(0.1, deadline - time.monotonic()))
        except ClosedByPeer as closed:
            assert "b'' in hand" in str(closed), closed

    def expect_channel_close(
        self,
        code: int,
        text_regex: str,
        channel: int = 1,
        method_id: tuple[int, int] | None = None,
        *,
        answer: bool = True,
    ) -> commands.Channel.Close:
        """Channel.close is next, with this code, text and (if given) failing method; it is answered."""
        close = self.read(commands.Channel.Close, channel)
        assert (close.reply_code, bool(re.search(text_regex, close.reply_text))) == (code, True), describe(
            close
        )
        if method_id is not None:
            assert (close.class_id, close.method_id) == method_id, describe(close)
        if answer:
            self.send_method(commands.Channel.CloseOk(), channel)
        return close

    def expect_connection_close(
        self,
        code: int,
        text_regex: str,
        method_id: tuple[int, int] | None = None,
        *,
        skip: bool = False,
        answer: bool = True,
        end: bool = False,
    ) -> commands.Connection.Close:
        """Connection.close is next (with `skip`: comes, whatever is before it); it is answered.

        With `end` the socket must end thereafter; RabbitMQ takes three seconds for that after a broken frame.
        """
        while True:
            frame = self.read_frame()
            if frame.channel == 0 and frame.type == METHOD and frame.method_id == (10, 50):
                break
            assert skip, f"unexpected {describe(frame.method) if frame.type == METHOD else frame}"
        close = frame.method
        assert isinstance(close, commands.Connection.Close)
        assert (close.reply_code, bool(re.search(text_regex, close.reply_text, re.DOTALL))) == (
            code,
            True,
        ), describe(close)
        assert len(close.reply_text.encode()) <= 255
        if method_id is not None:
            assert (close.class_id, close.method_id) == method_id, describe(close)
        self.running = False
        if answer:
            with contextlib.suppress(ConnectionError):
                self.send_method(commands.Connection.CloseOk(), 0)
        if end:
            self.expect_eof()
        return close

    # -- the handshake

    def read_start(self) -> commands.Connection.Start:
        self.send(PROTOCOL_HEADER)
        self.start = self.read(commands.Connection.Start, 0)
        return self.start

    def send_start_ok(
        self,
        *,
        mechanism: str = "PLAIN",
        response: bytes | None = None,
        user: str | None = None,
        password: str | None = None,
        capabilities: dict[str, Any] | None = None,
        client_properties: dict[str, Any] | None = None,
        locale: str = "en_US",
    ) -> None:
        user = self.address.user if user is None else user
        password = self.address.password if password is None else password
        if response is None:
            response = sasl_response(mechanism, user, password)
        properties: dict[str, Any] = {
            "product": "conformance_tests",
            "capabilities": CAPABILITIES if capabilities is None else capabilities,
        }
        arguments = table_bytes(properties | (client_properties or {}))
        arguments += short_string(mechanism.encode()) + long_string(response) + short_string(locale.encode())
        self.send(raw_method(10, 11, arguments, 0))

    def send_tune_ok(
        self, *, channel_max: int | None = None, frame_max: int | None = None, heartbeat: int = 0
    ) -> None:
        """Missing values are taken from the broker's tune."""
        assert self.tune is not None
        self.channel_max = self.tune.channel_max if channel_max is None else channel_max
        self.frame_max = self.tune.frame_max if frame_max is None else frame_max
        self.send_method(commands.Connection.TuneOk(self.channel_max, self.frame_max, heartbeat), 0)

    def handshake(
        self,
        *,
        vhost: str | None = None,
        channel_max: int | None = None,
        frame_max: int | None = None,
        heartbeat: int = 0,
        **start_ok: Any,
    ) -> Self:
        self.read_start()
        self.send_start_ok(**start_ok)
        self.tune = self.read(commands.Connection.Tune, 0)
        self.send_tune_ok(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)
        # pamqp refuses vhost names that RabbitMQ allows, so the bytes are made here.
        self.send_open(self.address.vhost if vhost is None else vhost)
        self.read(commands.Connection.OpenOk, 0)
        self.running = True
        return self

    def send_open(self, vhost: str) -> None:
        self.send(raw_method(10, 40, short_string(vhost.encode()) + short_string(b"") + b"\0", 0))

    def open_channel(self, channel: int = 1) -> Self:
        self.call(commands.Channel.Open(), commands.Channel.OpenOk, channel)
        return self

    def close(self) -> None:
        """Ends the connection in order if it is running and the broker plays along, else just the socket."""
        if not self.running:
            self.abort()
            return
        with contextlib.suppress(OSError, ClosedByPeer, AssertionError, TimeoutError):
            self.send_method(commands.Connection.Close(200, "bye", 0, 0), 0)
            deadline = time.monotonic() + 2
            while True:
                frame = self.read_frame(max(0.01, deadline - time.monotonic()))
                if frame.type == METHOD and frame.method_id == (10, 51):
                    break
        self.abort()

    def abort(self) -> None:
        self.running = False
        self.socket.close()


def sasl_response(mechanism: str, user: str, password: str) -> bytes:
    if mechanism == "AMQPLAIN":
        return table_bytes({"LOGIN": user, "PASSWORD": password})[4:]
    return f"\0{user}\0{password}".encode()


def table_bytes(table: dict[str, Any]) -> bytes:
    """A field table with its length; strings, booleans, tables and 32-bit integers are all that is needed."""
    out = b""
    for key, value in table.items():
        out += short_string(key.encode())
        if isinstance(value, bool):
            out += b"t" + bytes([value])
        elif isinstance(value, int):
            out += b"I" + struct.pack(">i", value)
        elif isinstance(value, dict):
            out += b"F" + table_bytes(value)
        elif isinstance(value, bytes):
            out += value  # already a typed value
        else:
            out += b"S" + long_string(str(value).encode())
    return long_string(out)


def decode_table(data: bytes) -> dict[str, Any]:
    _, table = decode.field_table(data)
    return dict(table)


def describe(method: pamqp.base.Frame) -> str:
    return f"{method.name}({', '.join(f'{k}={v!r}' for k, v in method)})"
