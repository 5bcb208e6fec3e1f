"""One connection's protocol state, without I/O: bytes in by `receive`, bytes out by the outbox.

The loop walks the buffer by offset. Publishes and acks, which are nearly all frames, go to the intake in runs; every
other frame is decoded by pamqp and dispatched through a table. A soft error closes its channel, a hard one the
connection, each in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from pamqp import base, commands

from amqp_server.channel import basic_methods, exchange_methods, publish, queue_methods
from amqp_server.channel.channel import Assembly, Channel
from amqp_server.config import Config
from amqp_server.connection import handshake
from amqp_server.connection.outbox import Outbox
from amqp_server.connection.sasl import Credentials
from amqp_server.errors import (
    AMQPError,
    ChannelError,
    CommandInvalid,
    ConnectionForced,
    FrameError,
    HardError,
    InternalError,
    LoginRefused,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    SoftError,
    UnexpectedFrame,
)
from amqp_server.wire import acks, frames, intake, methods
from amqp_server.wire.intake import Outcome, Publisher, Route, Segment

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.queue import Queue
    from amqp_server.broker.vhost import VHost

#: Body frames from this size on are taken as they come, not when they are whole.
LARGE_FRAME = 16 * 1024
#: Content that is published while publishers are blocked is kept up to here; then reading stops.
HELD_BYTES_MAX = 1 << 20


class State(Enum):
    """Where the connection stands."""

    HEADER = "header"
    STARTING = "starting"
    AUTHENTICATING = "authenticating"
    TUNING = "tuning"
    OPENING = "opening"
    RUNNING = "running"
    #: We sent connection.close and wait for close-ok.
    CLOSING = "closing"
    CLOSED = "closed"


class Session:
    """The server's side of one connection."""

    def __init__(self, broker: Broker, outbox: Outbox, peer: str, name: str) -> None:
        self.broker = broker
        self.config: Config = broker.config
        self.outbox = outbox
        #: Address of the real peer.
        self.peer = peer
        #: `client host:port -> server host:port`, as RabbitMQ names connections.
        self.name = name
        self.number = broker.next_session_id()
        self.state = State.HEADER
        self.username = ""
        self.mechanism = ""
        self.vhost: VHost | None = None
        self.client_properties: dict[str, Any] = {}
        self.capabilities: dict[str, bool] = {}
        self.frame_max = self.config.handshake_frame_bytes_max
        self.channel_max = 0
        self.heartbeat_s = 0
        self.connected_at_ms = self.closing_since_ms = broker.clock()
        self.publisher = Publisher(self.frame_max, b"", self.config.message_bytes_max)
        self.channels: dict[int, Channel] = {}
        self.exclusive_queues: dict[Queue, None] = {}
        #: What the client wants to log in with; the edge verifies it and calls `login_done`.
        self.login: Credentials | None = None
        #: The client's consumers get nothing until the outbox has drained.
        self.paused = False
        #: It has published something.
        self.published = False
        #: connection.blocked was sent.
        self.blocked = False
        #: Nothing more is to be read until `resume`.
        self.stalled = False
        self.received_bytes = 0
        #: Called when the connection is open; set by the edge.
        self.opened: Callable[[], None] = lambda: None
        self._tail = b""
        #: Bytes still to come of a large body frame, and its channel.
        self._body_left = 0
        self._body_channel: Channel | None = None
        self._routes: dict[bytes, Route] = {}
        self._hosts: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._generation = broker.generation
        self._segments: list[Segment] = []
        self._held_bytes = 0
        broker.sessions[self.number] = self

    # -- in --------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Handle what came from the client. Raises nothing: errors become close methods."""
        self.received_bytes += len(data)
        if self._body_left:
            data = self._more_body(data)
            if not data:
                return
        self._handle(self._tail + data if self._tail else data)

    def _more_body(self, data: bytes) -> bytes:
        """Add to the body frame that is still coming, as it comes; return what follows it."""
        channel = self._body_channel
        assembly = channel.assembly if channel is not None else None
        taken = min(self._body_left, len(data))
        self._body_left -= taken
        if assembly is None:
            return data[taken:]
        assembly.framed.append(data if taken == len(data) else data[:taken])
        if self._body_left:
            return b""
        self._body_channel = None
        try:
            if data[taken - 1] != frames.END:
                raise FrameError(f"type 3: {{invalid_frame_end_marker,{data[taken - 1]}}}")
            assert channel is not None
            if assembly.received == assembly.body_size:
                channel.assembly = None
                self._assembled(channel, assembly)
        except AMQPError as error:
            self._flush(hold=False)
            self.fail(error, (0, 0))
            return b""
        if taken == len(data):
            self._flush()
        return data[taken:]

    def _begin_body(self, data: bytes, pos: int, number: int, size: int, end: int) -> bool:
        """Take the beginning of a large body frame without waiting for its end; False if it is not as expected."""
        channel = self.channels.get(number)
        assembly = channel.assembly if channel is not None and not channel.closing else None
        if assembly is None or assembly.header is None or assembly.received + size > assembly.body_size:
            return False
        assembly.received += size
        assembly.oversized = assembly.oversized or size + frames.OVERHEAD > self.frame_max
        assembly.framed.append(data[pos:])
        self._body_left = pos + size + frames.OVERHEAD - end
        self._body_channel = channel
        return True

    def resume(self) -> None:
        """Go on after a stall or a login with what is in the buffer."""
        self.stalled = False
        self._handle(self._tail)

    def _handle(self, data: bytes) -> None:
        position = 0
        try:
            if self._generation != self.broker.generation:
                self._forget_routes()
            if self.state is State.HEADER:
                position = self._protocol_header(data)
            position = self._frames(data, position)
        except AMQPError as error:
            self._flush(hold=False)
            self.fail(error, (0, 0))
            position = len(data)
        self._tail = data[position:] if self.state is not State.CLOSED else b""
        self._flush()

    def _protocol_header(self, data: bytes) -> int:
        if len(data) < 8 and frames.PROTOCOL_HEADER.startswith(data):
            return 0
        if data.startswith(frames.PROTOCOL_HEADER):
            self.state = State.STARTING
            handshake.start(self)
            return 8
        self.outbox.put(frames.PROTOCOL_HEADER)
        self._closed()
        return len(data)

    def _frames(self, data: bytes, pos: int) -> int:
        """Handle the whole frames in data[pos:]; return the offset of the first byte left."""
        end = len(data)
        unpack = frames.prefix.unpack_from
        fast = self.config.switch_fast_path
        while end - pos >= 7 and not self.stalled:
            state = self.state
            if state is State.CLOSED or state is State.AUTHENTICATING or state is State.HEADER:
                break
            kind, number, size = unpack(data, pos)
            # RabbitMQ lets 8 bytes more pass than its text says, and clients rely on it.
            if size > self.frame_max:
                raise FrameError(_octets(data, pos, size, f"{{frame_too_large,{size},{self.frame_max - 8}}}"))
            after = pos + size + frames.OVERHEAD
            if after > end:
                if kind not in _KINDS:
                    raise FrameError(_first_octets(data, pos, "unknown_frame"))
                if kind == frames.BODY and size >= LARGE_FRAME and self._begin_body(data, pos, number, size, end):
                    return end
                break
            if data[after - 1] != frames.END:
                raise FrameError(_octets(data, pos, size, f"{{invalid_frame_end_marker,{data[after - 1]}}}"))
            if state is State.RUNNING and kind == frames.METHOD and number:
                signature = data[pos + 7 : pos + 11]
                if signature == _PUBLISH and fast:
                    channel = self.channels.get(number)
                    if channel is not None and channel.assembly is None and not channel.closing:
                        taken = self._publishes(data, pos, after, end, channel)
                        if taken is None:
                            break
                        pos = taken
                        continue
                elif signature == _ACK and fast:
                    channel = self.channels.get(number)
                    if channel is not None and channel.assembly is None and not channel.closing:
                        taken = self._acks(data, pos, end, channel)
                        if taken > pos:
                            pos = taken
                            continue
            if self._held_bytes and self._must_wait(data, pos, kind):
                self.stalled = True
                break
            self._frame(kind, number, data[pos + 7 : after - 1], data[pos:after])
            pos = after
        return pos

    def _publishes(self, data: bytes, pos: int, after: int, end: int, channel: Channel) -> int | None:
        """Take the publishes at `pos`; None if the next one is not complete."""
        if self._generation != self.broker.generation:
            self._forget_routes()
        key = data[pos:after]
        route = self._routes.get(key)
        if route is None:
            route = self._new_route(key, channel)
            if route is None:
                return after
        begin = pos
        pos, outcome, route = intake.take(data, pos, end, route, self._routes, self.publisher, self._segments)
        if self.broker.alarms.active and pos != begin:
            self._hold(pos - begin)
        if outcome is Outcome.OTHER:
            return pos
        if outcome is Outcome.MORE:
            return None if pos == begin else pos
        channel.assembly = Assembly(route)
        return pos + len(route.key)

    def _new_route(self, key: bytes, channel: Channel) -> Route | None:
        """Decode, check and route a publish frame not seen before; None if that closed the channel."""
        self._flush_segments()
        method = methods.decode(key[7:-1])
        assert isinstance(method, commands.Basic.Publish)
        try:
            route = publish.make_route(channel, key, method)
        except SoftError as error:
            self.close_channel(channel, error, (60, 40))
            return None
        except HardError as error:
            error.method = (60, 40)
            raise
        if len(self._routes) >= self.config.memo_entries_max:
            self._routes.clear()
        self._routes[key] = route
        return route

    def hosts_of(self, hosts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the one tuple for these hosts, so that routes to the same queues are told by identity."""
        return self._hosts.setdefault(hosts, hosts)

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._hosts.clear()
        self._generation = self.broker.generation

    def _acks(self, data: bytes, pos: int, end: int, channel: Channel) -> int:
        pos, ranges = acks.take(data, pos, end)
        try:
            for low, high in ranges:
                if low == acks.NO_TAG:
                    raise PreconditionFailed("unknown delivery tag 0")
                channel.acknowledge("settle", low, high)
        except SoftError as error:
            self._flush_segments()
            self.close_channel(channel, error, (60, 80))
        return pos

    # -- frames one by one -----------------------------------------------------------------------------------------

    def _frame(self, kind: int, number: int, payload: bytes, whole: bytes) -> None:
        if self.state is State.CLOSING:
            if kind == frames.METHOD and number == 0 and payload[:4] in (_CLOSE_OK, _CLOSE):
                if payload[:4] == _CLOSE:
                    self.send(commands.Connection.CloseOk())
                self._closed()
            return
        if len(payload) < _PAYLOAD_BYTES_MIN.get(kind, 0) or (kind == frames.HEARTBEAT and payload):
            raise FrameError(_octets(whole, 0, len(payload), "unknown_frame"))
        if kind == frames.METHOD and number == 0:
            self._connection_method(payload)
        elif kind == frames.HEARTBEAT:
            if number:
                raise UnexpectedFrame(_octets(whole, 0, len(payload), ""))
        elif kind not in _KINDS:
            raise FrameError(_octets(whole, 0, len(payload), "unknown_frame"))
        elif number == 0 or self.state is not State.RUNNING:
            raise UnexpectedFrame(_octets(whole, 0, len(payload), ""))
        elif kind == frames.METHOD:
            self._channel_method(number, payload)
        else:
            self._content(kind, number, payload, whole)

    def _connection_method(self, payload: bytes) -> None:
        method = methods.decode(payload)
        handler = _CONNECTION.get(type(method))
        where = methods.ids(payload)
        if handler is None or self.state is not handler[0]:
            raise ChannelError(f"unexpected method in connection state {self.state.value}", where)
        try:
            handler[1](self, method, payload)
        except AMQPError as error:
            error.method = error.method or where
            raise

    def _channel_method(self, number: int, payload: bytes) -> None:
        channel = self.channels.get(number)
        where = methods.ids(payload)
        if channel is None:
            self._open_channel(number, methods.decode(payload), where)
            return
        if channel.closing:
            if payload[:4] == _CHANNEL_CLOSE_OK:
                self._drop_channel(channel)
            elif payload[:4] == _CHANNEL_CLOSE:
                channel.send(commands.Channel.CloseOk())
            return
        if channel.assembly is not None:
            raise UnexpectedFrame(_expected(channel.assembly), (60, 40))
        method = methods.decode(payload)
        self._flush_segments()
        if not isinstance(method, (commands.Basic.Publish, commands.Basic.Ack)):
            # Answers count what was published before them. An ack has none, and the fast path runs nothing for it either.
            self.broker.run_dirty()
        channel.raw = payload
        try:
            self._dispatch(channel, method)
        except SoftError as error:
            self.close_channel(channel, error, where)
        except HardError as error:
            error.method = error.method or where
            raise
        if self._generation != self.broker.generation:
            self._forget_routes()

    def _dispatch(self, channel: Channel, method: base.Frame) -> None:
        if isinstance(method, commands.Basic.Publish):
            route = publish.make_route(channel, frames.method_frame(channel.number, method), method)
            channel.assembly = Assembly(route)
            return
        if isinstance(method, commands.Channel.Close):
            channel.close()
            self._drop_channel(channel)
            self.synced()
            channel.send(commands.Channel.CloseOk())
            return
        handler = _CHANNEL.get(type(method))
        if handler is None:
            if isinstance(method, commands.Channel.Open):
                raise ChannelError("second 'channel.open' seen")
            raise CommandInvalid("unimplemented method")
        handler(channel, method)

    def _open_channel(self, number: int, method: base.Frame, where: tuple[int, int]) -> None:
        if not isinstance(method, commands.Channel.Open):
            raise ChannelError("expected 'channel.open'", where)
        count = len(self.channels)
        if number > self.channel_max or count >= self.channel_max:
            raise NotAllowed(
                f"number of channels opened ({count}) has reached the negotiated channel_max ({self.channel_max})",
                (0, 0),
            )
        if self.broker.channel_count >= self.config.channels_max:
            raise NotAllowed(f"{self.broker.channel_count} channels are open, no more are allowed (channels_max)")
        self.channels[number] = channel = Channel(self, number)
        self.broker.channel_count += 1
        channel.send(commands.Channel.OpenOk())

    def _drop_channel(self, channel: Channel) -> None:
        if self.channels.pop(channel.number, None) is not None:
            self.broker.channel_count -= 1
        self._routes = {key: route for key, route in self._routes.items() if route.publisher is not channel}

    # -- content ---------------------------------------------------------------------------------------------------

    def _content(self, kind: int, number: int, payload: bytes, whole: bytes) -> None:
        channel = self.channels.get(number)
        if channel is not None and channel.closing:
            return
        if channel is None:
            raise UnexpectedFrame("expected method frame, got non method frame instead")
        assembly = channel.assembly
        if assembly is None:
            raise UnexpectedFrame("expected method frame, got non method frame instead")
        if assembly.header is None:
            if kind != frames.HEADER:
                raise UnexpectedFrame(_expected(assembly), (60, 40))
            self._content_header(channel, assembly, payload, whole)
        else:
            if kind != frames.BODY:
                raise UnexpectedFrame(_expected(assembly), (60, 40))
            assembly.received += len(payload)
            assembly.oversized = assembly.oversized or len(whole) > self.frame_max
            if assembly.received > assembly.body_size:
                raise FrameError(
                    f"body of {assembly.received} bytes is longer than the {assembly.body_size} announced", (60, 40)
                )
            assembly.framed.append(whole)
        if assembly.header is not None and assembly.received == assembly.body_size:
            channel.assembly = None
            self._assembled(channel, assembly)

    def _content_header(self, channel: Channel, assembly: Assembly, payload: bytes, whole: bytes) -> None:
        class_id = int.from_bytes(payload[:2], "big")
        if class_id != 60:
            raise UnexpectedFrame(
                f"expected content header for class 60, got one for class {class_id} instead", (60, 40)
            )
        if payload[2:4] != b"\0\0":
            # The weight, always 0 (spec 4.2.6.1). RabbitMQ takes anything else for no content header at all.
            raise UnexpectedFrame(_expected(assembly), (60, 40))
        size = int.from_bytes(payload[4:12], "big")
        if size > self.config.message_bytes_max:
            channel.assembly = None
            limit = self.config.message_bytes_max
            error = PreconditionFailed(f"message size {size} is larger than configured max size {limit}")
            self.close_channel(channel, error, (60, 40))
            # Its body frames are skipped like everything else for a closing channel.
            return
        assembly.header = payload
        assembly.body_size = size
        assembly.framed.append(whole)

    def _assembled(self, channel: Channel, assembly: Assembly) -> None:
        if self._generation != self.broker.generation:
            self._forget_routes()
        try:
            segment = publish.slow_segment(channel, assembly)
        except SoftError as error:
            self._flush_segments()
            self.close_channel(channel, error, (60, 40))
            return
        except HardError as error:
            error.method = (60, 40)
            raise
        self._segments.append(segment)
        if self.broker.alarms.active:
            self._hold(assembly.body_size)

    # -- out -------------------------------------------------------------------------------------------------------

    def _flush_segments(self) -> None:
        """Hand what was published to the channels."""
        if self._held_bytes:
            return
        segments, self._segments = self._segments, []
        self.published = self.published or bool(segments)
        for segment in segments:
            segment.route.publisher.publish(segment)

    def _flush(self, *, hold: bool = True) -> None:
        """End the turn: hand over what was published, and apply all that is pending."""
        if not hold:
            self._held_bytes = 0
        self._flush_segments()
        self.broker.run_dirty()

    def send(self, method: base.Frame) -> None:
        """Send a method on channel 0."""
        self.outbox.put(frames.method_frame(0, method))

    def heartbeat(self) -> None:
        """Send a heartbeat."""
        self.outbox.put(frames.HEARTBEAT_FRAME)

    def can(self, capability: str) -> bool:
        """Did the client announce this capability?"""
        return self.capabilities.get(capability, False)

    def synced(self) -> None:
        """What is answered from here on waits until all that was changed is on disk."""
        if self.broker.unsynced():
            self.broker.services.commits.request(self.outbox.hold())

    # -- flow ------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """The outbox is full: its consumers get no more for now."""
        if not self.paused:
            self.paused = True
            self._tell_consumers(paused=True)

    def drained(self) -> None:
        """The outbox has room again."""
        if self.paused:
            self.paused = False
            self._tell_consumers(paused=False)
            self.broker.run_dirty()

    def _tell_consumers(self, *, paused: bool) -> None:
        for channel in self.channels.values():
            for subscription in channel.subscriptions.values():
                host = subscription.queue.host
                host.pending.append(("pause", subscription.key, paused))
                self.broker.dirty[host] = None

    def _hold(self, size: int) -> None:
        """An alarm stands: keep what is published, and tell the client once."""
        self._held_bytes += size
        if not self.blocked:
            self.blocked = True
            if self.can("connection.blocked"):
                self.send(commands.Connection.Blocked(self.broker.alarms.reason))
        if self._held_bytes > HELD_BYTES_MAX:
            self.stalled = True

    def _must_wait(self, data: bytes, pos: int, kind: int) -> bool:
        """While publishes are held only acks, heartbeats and content pass: the rest could overtake them."""
        if kind != frames.METHOD:
            return False
        return data[pos + 7 : pos + 11] not in _PASS_WHILE_HELD

    def alarm_changed(self) -> None:
        """The alarms were raised or cleared."""
        if self.broker.alarms.active or not self.blocked:
            return
        self.blocked = False
        self._held_bytes = 0
        if self.can("connection.blocked"):
            self.send(commands.Connection.Unblocked())
        self.resume()

    # -- login -----------------------------------------------------------------------------------------------------

    def login_done(self, *, accepted: bool) -> None:
        """The edge has verified `login`."""
        assert self.login is not None
        user = self.login.user
        self.login = None
        if self.state is not State.AUTHENTICATING:
            return
        if not accepted or not self.broker.users.may_connect_from(user, self.peer):
            text = (
                f"Login was refused using authentication mechanism {self.mechanism}. "
                "For details see the broker logfile."
            )
            if self.can("authentication_failure_close"):
                self.fail(LoginRefused(text), (0, 0))
            else:
                self._closed()
            return
        self.username = user
        self.state = State.TUNING
        handshake.tune(self)
        self.resume()

    # -- end -------------------------------------------------------------------------------------------------------

    def close_channel(self, channel: Channel, error: SoftError, where: tuple[int, int]) -> None:
        """Close a channel for an error; frames for it are skipped until the client has answered."""
        channel.close()
        channel.closing = True
        class_id, method_id = error.method or where
        channel.send(commands.Channel.Close(error.code, error.reply_text(), class_id, method_id))

    def fail(self, error: AMQPError, where: tuple[int, int]) -> None:
        """Close the connection for an error."""
        if self.state in (State.CLOSING, State.CLOSED):
            return
        class_id, method_id = error.method or where
        self._release()
        self.send(commands.Connection.Close(error.code, error.reply_text(), class_id, method_id))
        self.state = State.CLOSING
        self.closing_since_ms = self.broker.clock()
        self.frame_max = max(self.frame_max, frames.FRAME_BYTES_MIN)

    def force_close(self, reason: str) -> None:
        """Close the connection because an operator wants it, or because the node stops."""
        if self.state is State.RUNNING:
            self.fail(ConnectionForced(reason), (0, 0))
        else:
            self._closed()

    def crashed(self) -> None:
        """A defect of ours was met while handling this connection; nobody else is to suffer."""
        self._segments = []
        self.fail(InternalError(""), (0, 0))

    def lost(self) -> None:
        """The socket is gone."""
        self._closed()

    def _closed(self) -> None:
        self._release()
        self.state = State.CLOSED

    def _release(self) -> None:
        """Give back all that the connection held: channels, exclusive queues."""
        for channel in list(self.channels.values()):
            if not channel.closing:
                channel.close()
            self._drop_channel(channel)
        for queue in list(self.exclusive_queues):
            queue.vhost.delete_queue(queue)
        self.exclusive_queues.clear()
        self._segments = []
        self._held_bytes = 0
        self._tail = b""
        self._routes.clear()
        self.broker.sessions.pop(self.number, None)
        self.broker.run_dirty()


# -- methods of the connection -------------------------------------------------------------------------------------


def _start_ok(session: Session, method: commands.Connection.StartOk, payload: bytes) -> None:
    session.login = handshake.start_ok(session, method, _sasl_response(payload))
    session.state = State.AUTHENTICATING


def _sasl_response(payload: bytes) -> bytes:
    """Return the response as bytes: pamqp decodes it as text."""
    offset = 4 + 4 + int.from_bytes(payload[4:8], "big")
    offset += 1 + payload[offset]
    size = int.from_bytes(payload[offset : offset + 4], "big")
    return payload[offset + 4 : offset + 4 + size]


def _tune_ok(session: Session, method: commands.Connection.TuneOk, payload: bytes) -> None:
    handshake.tune_ok(session, method)
    session.state = State.OPENING


def _open(session: Session, method: commands.Connection.Open, payload: bytes) -> None:
    handshake.open_vhost(session, method)
    session.state = State.RUNNING
    session.opened()


def _update_secret(session: Session, method: commands.Connection.UpdateSecret, payload: bytes) -> None:
    session.send(commands.Connection.UpdateSecretOk())


def _close(session: Session, method: commands.Connection.Close, payload: bytes) -> None:
    session._flush(hold=False)
    session._release()
    session.synced()
    session.send(commands.Connection.CloseOk())
    session.state = State.CLOSED


_CONNECTION: dict[type[base.Frame], tuple[State, Callable[[Session, Any, bytes], None]]] = {
    commands.Connection.StartOk: (State.STARTING, _start_ok),
    commands.Connection.TuneOk: (State.TUNING, _tune_ok),
    commands.Connection.Open: (State.OPENING, _open),
    commands.Connection.UpdateSecret: (State.RUNNING, _update_secret),
    commands.Connection.Close: (State.RUNNING, _close),
}

_CHANNEL: dict[type[base.Frame], Callable[[Channel, Any], None]] = {
    commands.Channel.Flow: basic_methods.flow,
    commands.Exchange.Declare: exchange_methods.declare,
    commands.Exchange.Delete: exchange_methods.delete,
    commands.Exchange.Bind: exchange_methods.bind,
    commands.Exchange.Unbind: exchange_methods.unbind,
    commands.Queue.Declare: queue_methods.declare,
    commands.Queue.Bind: queue_methods.bind,
    commands.Queue.Unbind: queue_methods.unbind,
    commands.Queue.Purge: queue_methods.purge,
    commands.Queue.Delete: queue_methods.delete,
    commands.Basic.Qos: basic_methods.qos,
    commands.Basic.Consume: basic_methods.consume,
    commands.Basic.Cancel: basic_methods.cancel,
    commands.Basic.Get: basic_methods.get,
    commands.Basic.Ack: basic_methods.ack,
    commands.Basic.Nack: basic_methods.nack,
    commands.Basic.Reject: basic_methods.reject,
    commands.Basic.Recover: basic_methods.recover,
    commands.Basic.RecoverAsync: basic_methods.recover_async,
    commands.Confirm.Select: basic_methods.confirm_select,
    commands.Tx.Select: basic_methods.tx_select,
    commands.Tx.Commit: basic_methods.tx_commit,
    commands.Tx.Rollback: basic_methods.tx_rollback,
}

_KINDS = (frames.METHOD, frames.HEADER, frames.BODY, frames.HEARTBEAT)
#: Class and method id; class, weight and body size.
_PAYLOAD_BYTES_MIN = {frames.METHOD: 4, frames.HEADER: 12}
_PUBLISH = b"\x00\x3c\x00\x28"
_ACK = b"\x00\x3c\x00\x50"
_CLOSE = b"\x00\x0a\x00\x32"
_CLOSE_OK = b"\x00\x0a\x00\x33"
_CHANNEL_CLOSE = b"\x00\x14\x00\x28"
_CHANNEL_CLOSE_OK = b"\x00\x14\x00\x29"
#: basic.publish, ack, reject and nack.
_PASS_WHILE_HELD = (_PUBLISH, _ACK, b"\x00\x3c\x00\x5a", b"\x00\x3c\x00\x78")


def _expected(assembly: Assembly) -> str:
    """RabbitMQ's text for a frame out of turn."""
    if assembly.header is None:
        return "expected content header for class 60, got non content header frame instead"
    return "expected content body, got non content body frame instead"


def _binary(data: bytes) -> str:
    """Print bytes as Erlang does: as text where all of it is printable."""
    if data and all(32 <= octet < 127 for octet in data):
        return '<<"' + data.decode() + '">>'
    return "<<" + ",".join(map(str, data)) + ">>"


def _octets(data: bytes, pos: int, size: int, reason: str) -> str:
    """RabbitMQ's description of a bad frame: its type and its payload's beginning."""
    payload = data[pos + 7 : pos + 7 + size]
    if len(payload) > 16:
        return _first_octets(data, pos, reason)
    text = f"type {data[pos]}, all octets = {_binary(payload)}"
    return f"{text}: {reason}" if reason else text


def _first_octets(data: bytes, pos: int, reason: str) -> str:
    text = f"type {data[pos]}, first 16 octets = {_binary(data[pos + 7 : pos + 23])}"
    return f"{text}: {reason}" if reason else text


__all__ = ["NotFound", "Session", "State"]
