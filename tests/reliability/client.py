"""A fast blocking AMQP client on one channel. It parses frames by hand where there are many of them."""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from pamqp import base, commands, frame, header

from conformance_tests.patience import PATIENCE_S
from tests.reliability.bodies import body

CHANNEL = 1
RECEIVE_BYTES = 1 << 20
FRAME_MAX = 131_072

_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQ")
_SETTLE = struct.Struct(">BHIHHQBB")
_DELIVER = b"\x00\x3c\x00\x3c"
_ACK = b"\x00\x3c\x00\x50"
_NACK = b"\x00\x3c\x00\x78"

Method = TypeVar("Method", bound=base.Frame)


class Gone(Exception):
    """The broker closed the connection, with or without connection.close."""


class ChannelClosed(AssertionError):
    """The broker closed the channel; no test here gives it a reason."""


class Delivery(NamedTuple):
    tag: int
    redelivered: bool
    body: bytes
    consumer: bytes = b""
    #: Payload of the content header.
    head: bytes = b""


class Confirm(NamedTuple):
    tag: int
    multiple: bool
    nack: bool


Event = Delivery | Confirm | base.Frame


@dataclass
class _Content:
    """A delivery with frames that are still to come."""

    tag: int
    redelivered: bool
    consumer: bytes
    size: int = -1
    head: bytes = b""
    body: bytes = b""


class Client:
    """Events come in the order of the wire."""

    def __init__(
        self,
        port: int,
        *,
        heartbeat_s: int = 0,
        timeout_s: float = PATIENCE_S,
        channel_max: int = 10,
        source: str = "",
    ) -> None:
        """Log in and open a channel. `source` is the address to connect from."""
        self.sock = socket.create_connection(("127.0.0.1", port), timeout_s, (source, 0) if source else None)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._content: _Content | None = None
        #: Events received while the client waited for another one.
        self.events: deque[Event] = deque()
        self.blocked: list[str] = []
        self.unblocked = 0
        self.heartbeats = 0
        self._log_in(heartbeat_s, channel_max)

    def _log_in(self, heartbeat_s: int, channel_max: int) -> None:
        self.send(header.ProtocolHeader().marshal())
        self.expect(commands.Connection.Start)
        properties: dict[str, Any] = {"capabilities": {"connection.blocked": True, "basic.nack": True}}
        self.method(commands.Connection.StartOk(properties, "PLAIN", "\0guest\0guest", "en_US"), 0)
        self.expect(commands.Connection.Tune)
        self.method(commands.Connection.TuneOk(channel_max, FRAME_MAX, heartbeat_s), 0)
        self.method(commands.Connection.Open("/"), 0)
        self.expect(commands.Connection.OpenOk)
        self.call(commands.Channel.Open(), commands.Channel.OpenOk)

    def close(self) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise Gone(str(error)) from error

    def send_some(self, data: bytes) -> bytes:
        """Send as much as goes without a wait; return the rest. A broker that stops reading says so on the
        same connection.
        """
        self.sock.settimeout(0)
        try:
            return data[self.sock.send(data) :]
        except BlockingIOError:
            return data
        except OSError as error:
            raise Gone(str(error)) from error
        finally:
            self.sock.settimeout(PATIENCE_S)

    def method(self, method: base.Frame, channel: int = CHANNEL) -> None:
        self.send(frame.marshal(method, channel))

    def call(self, method: base.Frame, answer: type[Method]) -> Method:
        self.method(method)
        return self.expect(answer)

    def expect(self, kind: type[Method]) -> Method:
        """Wait for one method; all other events that come meanwhile go to `events`."""
        kept: list[Event] = []
        while True:
            for event in self.receive():
                if isinstance(event, kind):
                    # Events behind the answer are in `events` already.
                    self.events.extendleft(reversed(kept))
                    return event
                kept.append(event)

    def receive(self, wait_s: float | None = None) -> Iterable[Event]:
        """Return the events that have come, at least one, or none if none comes within `wait_s`."""
        deadline = time.monotonic() + (PATIENCE_S if wait_s is None else wait_s)
        while not self.events:
            left = deadline - time.monotonic()
            if left <= 0 and wait_s is not None:
                if not self._read(0.0):
                    return
                continue
            if left <= 0:
                said = f", blocked {self.blocked}, unblocked {self.unblocked} times" if self.blocked else ""
                raise TimeoutError(f"nothing came for {PATIENCE_S} s{said}")
            self._read(left)
        while self.events:
            yield self.events.popleft()

    def _read(self, wait_s: float) -> bool:
        self.sock.settimeout(wait_s)
        try:
            data = self.sock.recv(RECEIVE_BYTES)
        except (BlockingIOError, TimeoutError):
            return False
        except OSError as error:
            raise Gone(str(error)) from error
        finally:
            self.sock.settimeout(PATIENCE_S)
        if not data:
            raise Gone("end of stream")
        self._rest = self._take(self._rest + data if self._rest else data)
        return True

    def _take(self, data: bytes) -> bytes:
        """Turn whole frames into events; return the remaining bytes."""
        at, end = 0, len(data)
        while end - at >= 7:
            kind, _, size = _FRAME.unpack_from(data, at)
            after = at + size + 8
            if after > end:
                break
            if kind == 1:
                self._method_frame(data, at, after)
            elif kind == 8:
                self.heartbeats += 1
            else:
                self._content_frame(kind, data[at + 7 : after - 1])
            at = after
        return data[at:]

    def _method_frame(self, data: bytes, at: int, after: int) -> None:
        name = data[at + 7 : at + 11]
        if name == _DELIVER:
            tag_at = at + 12 + data[at + 11]
            (tag,) = struct.unpack_from(">Q", data, tag_at)
            self._content = _Content(tag, bool(data[tag_at + 8]), data[at + 12 : tag_at])
            return
        if name in (_ACK, _NACK):
            _, _, _, _, _, tag, bits, _ = _SETTLE.unpack_from(data, at)
            self.events.append(Confirm(tag, bool(bits & 1), name == _NACK))
            return
        method = frame.unmarshal(data[at:after])[2]
        if isinstance(method, commands.Connection.Blocked):
            self.blocked.append(method.reason)
        elif isinstance(method, commands.Connection.Unblocked):
            self.unblocked += 1
        elif isinstance(method, commands.Connection.Close):
            self.method(commands.Connection.CloseOk(), 0)
            raise Gone(f"{method.reply_code} {method.reply_text}")
        elif isinstance(method, commands.Channel.Close):
            raise ChannelClosed(f"channel closed: {method.reply_code} {method.reply_text}")
        else:
            assert isinstance(method, base.Frame)
            self.events.append(method)

    def _content_frame(self, kind: int, payload: bytes) -> None:
        content = self._content
        assert content is not None
        if kind == 2:
            content.size = _CONTENT.unpack_from(payload)[2]
            content.head = payload
        else:
            content.body = content.body + payload if content.body else payload
        if len(content.body) == content.size:
            self.events.append(
                Delivery(content.tag, content.redelivered, content.body, content.consumer, content.head)
            )
            self._content = None

    # -- what tests ask for ----------------------------------------------------------------------------------

    def declare(self, queue: str, *, durable: bool = True, **arguments: Any) -> int:
        """Declare a queue; return the number of its ready messages."""
        answer = self.call(
            commands.Queue.Declare(queue=queue, durable=durable, arguments=arguments),
            commands.Queue.DeclareOk,
        )
        return int(answer.message_count or 0)

    def count(self, queue: str) -> int:
        answer = self.call(commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk)
        return int(answer.message_count or 0)

    def publish_numbered(self, addresses: Iterable[Address], count: int, size: int) -> None:
        """Publish so many numbered messages of this many bytes to each of these addresses."""
        for seq in range(count):
            message = body(seq, size)
            self.send(b"".join(address.message(message) for address in addresses))

    def confirms(self) -> None:
        self.call(commands.Confirm.Select(), commands.Confirm.SelectOk)

    def consume(self, queue: str, prefetch: int, tag: str = "c") -> None:
        self.sync(prefetch)
        self.call(commands.Basic.Consume(queue=queue, consumer_tag=tag), commands.Basic.ConsumeOk)

    def sync(self, prefetch: int) -> None:
        """Send a request whose answer says that everything sent before it was taken."""
        self.call(commands.Basic.Qos(prefetch_count=prefetch), commands.Basic.QosOk)

    def cancel(self) -> None:
        self.call(commands.Basic.Cancel(consumer_tag="c"), commands.Basic.CancelOk)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.send(settle(80, tag, multiple))

    def deliveries(self, count: int) -> list[Delivery]:
        """Wait for exactly this many deliveries."""
        found: list[Delivery] = []
        while len(found) < count:
            events = self.receive()
            found += [event for event in events if isinstance(event, Delivery)]
        assert len(found) == count, f"{len(found)} deliveries where {count} were due"
        return found


def settle(method: int, tag: int, bits: int) -> bytes:
    """basic.ack (80) or nack (120; bits: 1 multiple, 2 requeue)."""
    return _SETTLE.pack(1, CHANNEL, 13, 60, method, tag, bits, 0xCE)


class Address:
    """The exchange, routing key and properties of messages; only bodies differ."""

    def __init__(
        self, exchange: str, routing_key: str, *, persistent: bool = True, **properties: Any
    ) -> None:
        publish = commands.Basic.Publish(exchange=exchange, routing_key=routing_key)
        self._method = frame.marshal(publish, CHANNEL)
        mode = 2 if persistent else 1
        self._properties = commands.Basic.Properties(delivery_mode=mode, **properties)
        self._headers: dict[int, bytes] = {}

    def message(self, body: bytes) -> bytes:
        """The frames of one message; the body must fit into one."""
        size = len(body)
        content = self._headers.get(size)
        if content is None:
            head = frame.marshal(header.ContentHeader(0, size, self._properties), CHANNEL)
            content = self._headers[size] = self._method + head + _FRAME.pack(3, CHANNEL, size)
        return b"".join((content, body, b"\xce"))
