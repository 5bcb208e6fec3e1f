"""A plain blocking AMQP connection: set-up, topology, single messages. The measured traffic then uses its
socket.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from pamqp import base, commands, frame, header

from .frames import CHANNEL, FRAME_HEAD, FRAME_MAX, FRAME_OVERHEAD

HOST = "127.0.0.1"
TIMEOUT_S = 20.0

Method = TypeVar("Method", bound=base.Frame)


class Refused(Exception):
    """The broker closed the channel or the connection, or hung up."""


class Unexpected(Exception):
    """The broker answered, but not with the expected method."""


@dataclass(frozen=True, slots=True)
class Delivery:
    tag: int
    body: bytes
    wire_bytes: int


class Connection:
    """One connection with one open channel. Heartbeats are off, so every frame that arrives was requested."""

    def __init__(self, port: int, timeout_s: float = TIMEOUT_S) -> None:
        self.sock = socket.create_connection((HOST, port), timeout_s)
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._received = b""
            self._log_in()
        except BaseException:
            self.sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.sock.close()

    def _log_in(self) -> None:
        self.sock.sendall(header.ProtocolHeader().marshal())
        self._expect(commands.Connection.Start)
        self._send(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), 0)
        tune = self._expect(commands.Connection.Tune)
        if tune.frame_max and tune.frame_max < FRAME_MAX:
            raise Unexpected(f"frame_max {tune.frame_max}; the messages are cut for {FRAME_MAX}")
        self._send(commands.Connection.TuneOk(tune.channel_max, FRAME_MAX, 0), 0)
        self._send(commands.Connection.Open("/"), 0)
        self._expect(commands.Connection.OpenOk)
        self.call(commands.Channel.Open(), commands.Channel.OpenOk)

    def _send(self, method: base.Frame, channel: int = CHANNEL) -> None:
        self.sock.sendall(frame.marshal(method, channel))

    def call(self, method: base.Frame, answer: type[Method]) -> Method:
        self._send(method)
        return self._expect(answer)

    def _expect(self, kind: type[Method]) -> Method:
        got, _ = self._frame()
        if isinstance(got, commands.Connection.Close | commands.Channel.Close):
            raise Refused(f"{got.reply_code} {got.reply_text}")
        if not isinstance(got, kind):
            raise Unexpected(f"{kind.name} was due, {got!r} came")
        return got

    def _frame(self) -> tuple[Any, int]:
        """The next frame, decoded, and its size."""
        while True:
            if len(self._received) >= FRAME_HEAD.size:
                size = FRAME_HEAD.unpack_from(self._received)[2] + FRAME_OVERHEAD
                if len(self._received) >= size:
                    whole, self._received = self._received[:size], self._received[size:]
                    return frame.unmarshal(whole)[2], size
            data = self.sock.recv(1 << 20)
            if not data:
                raise Refused("the broker hung up")
            self._received += data

    def confirms(self) -> None:
        self.call(commands.Confirm.Select(), commands.Confirm.SelectOk)

    def queue(self, name: str, durable: bool = False, **arguments: Any) -> None:
        self.call(
            commands.Queue.Declare(queue=name, durable=durable, arguments=arguments),
            commands.Queue.DeclareOk,
        )

    def queued(self, name: str) -> int:
        """Number of ready messages in the queue."""
        declared = self.call(commands.Queue.Declare(queue=name, passive=True), commands.Queue.DeclareOk)
        return int(declared.message_count or 0)

    def delete_queue(self, name: str) -> None:
        self.call(commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)

    def exchange(self, name: str, kind: str, durable: bool = False, **arguments: Any) -> None:
        declare = commands.Exchange.Declare(
            exchange=name, exchange_type=kind, durable=durable, arguments=arguments
        )
        self.call(declare, commands.Exchange.DeclareOk)

    def delete_exchange(self, name: str) -> None:
        self.call(commands.Exchange.Delete(exchange=name), commands.Exchange.DeleteOk)

    def bind(self, queue: str, exchange: str, routing_key: str = "", **arguments: Any) -> None:
        self.call(
            commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=routing_key, arguments=arguments),
            commands.Queue.BindOk,
        )

    def consume(self, queue: str, prefetch: int | None, **arguments: Any) -> None:
        """Without a prefetch the broker takes deliveries as acknowledged when it has sent them."""
        if prefetch is not None:
            self.call(commands.Basic.Qos(prefetch_count=prefetch), commands.Basic.QosOk)
        self.call(
            commands.Basic.Consume(
                queue=queue, consumer_tag="bench", no_ack=prefetch is None, arguments=arguments
            ),
            commands.Basic.ConsumeOk,
        )

    def rest(self) -> bytes:
        """Take what was read behind the last decoded frame."""
        data, self._received = self._received, b""
        return data

    def delivery(self) -> Delivery:
        """The next delivery, decoded frame by frame."""
        start, wire_bytes = self._frame()
        if isinstance(start, commands.Connection.Close | commands.Channel.Close):
            raise Refused(f"{start.reply_code} {start.reply_text}")
        content, size = self._frame()
        if not isinstance(start, commands.Basic.Deliver) or not isinstance(content, header.ContentHeader):
            raise Unexpected(f"a delivery was due, {start!r} {content!r} came")
        wire_bytes += size
        body = b""
        while len(body) < content.body_size:
            piece, size = self._frame()
            wire_bytes += size
            body += piece.value
        return Delivery(int(start.delivery_tag or 0), body, wire_bytes)

    def get(self, queue: str) -> bytes:
        """The body of the message that basic.get brings."""
        self.call(commands.Basic.Get(queue=queue, no_ack=True), commands.Basic.GetOk)
        content, _ = self._frame()
        body, _ = self._frame()
        if content.body_size != len(body.value):
            raise Unexpected("the body came in more than one frame")
        return bytes(body.value)

    def undecoded(self) -> int:
        """Discard received bytes that are not decoded; return their number."""
        size = len(self._received)
        self._received = b""
        return size

    def drained(self) -> bool:
        """True if all received bytes are decoded, so the socket may be read without this class."""
        return not self._received

    def close(self) -> None:
        try:
            self._send(commands.Connection.Close(200, "done", 0, 0), 0)
            while not isinstance(self._frame()[0], commands.Connection.CloseOk):
                pass
        finally:
            self.sock.close()
