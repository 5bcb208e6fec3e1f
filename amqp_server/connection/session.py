"""One connection's protocol state, without I/O: bytes in by `receive`, bytes out by the outbox.

Publishes and acks, which are nearly all frames, are handled by `incoming`; every other frame comes here, is
decoded, and dispatched through a table. A soft error closes its channel, a hard one the connection, each in
one place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pamqp import base, commands

from amqp_server.broker.access.http_permissions import RemoteGrant
from amqp_server.broker.access.token_permissions import Token
from amqp_server.broker.awaited import Awaited
from amqp_server.broker.memo import Memo
from amqp_server.broker.topology.replication import Result
from amqp_server.channel import publish
from amqp_server.channel.assembly import Assembly
from amqp_server.channel.channel import Channel, ChannelsEnd, are_many
from amqp_server.config import Config
from amqp_server.connection import events, handshake, log
from amqp_server.connection.client import AgreedLimits, Client
from amqp_server.connection.dispatch import CHANNEL, CONNECTION
from amqp_server.connection.frame_errors import expected, octets
from amqp_server.connection.incoming import KINDS, Incoming
from amqp_server.connection.login.sasl import Credentials
from amqp_server.connection.outbox import Outbox
from amqp_server.connection.pending_method import Suspension
from amqp_server.connection.state import State
from amqp_server.errors import (
    AMQPError,
    ChannelError,
    CommandInvalid,
    ConnectionForced,
    FrameError,
    HardError,
    HomeNodeDown,
    InternalError,
    LoginRefused,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
    SoftError,
    Unavailable,
    UnexpectedFrame,
)
from amqp_server.wire import frames, methods
from amqp_server.wire.intake import Publisher
from quorum_queue.machine.versions import SEALS
from quorum_queue.ports import Refused

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.declared.operations import Operation
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.broker.topology.vhost import VHost
    from amqp_server.channel.connection import Consuming

logger = logging.getLogger("mqd.connection")

#: Class and method id; class, weight and body size.
_PAYLOAD_BYTES_MIN = {frames.METHOD: 4, frames.HEADER: 12}
_CLOSE = b"\x00\x0a\x00\x32"
_CLOSE_OK = b"\x00\x0a\x00\x33"
_CHANNEL_CLOSE = b"\x00\x14\x00\x28"
_CHANNEL_CLOSE_OK = b"\x00\x14\x00\x29"


class Edge(Protocol):
    """Moves a session's bytes, and hears of its state."""

    def opened(self) -> None:
        """The client has logged in and opened a vhost."""

    def resumed(self) -> None:
        """The session has got the answer that it waited for: read more."""


class _NoEdge:
    """The edge of a session whose socket is gone."""

    def opened(self) -> None: ...

    def resumed(self) -> None: ...


_NO_EDGE = _NoEdge()


#: Classes and methods that are refused because of the topology: exchange and queue; basic.consume, basic.get.
_TOPOLOGY_CLASSES = (40, 50)
_TOPOLOGY_METHODS = ((60, 20), (60, 70))


class Session:
    """The server's side of one connection.

    See amqp_server.turn.Session, and channel.connection.Connection.
    """

    def __init__(self, broker: Broker, outbox: Outbox, edge: Edge, peer: str, name: str) -> None:
        self.broker = broker
        self.config: Config = broker.config
        self.turn = broker.turn
        self.outbox = outbox
        self._edge: Edge = edge
        self.client = Client(peer, name, broker.clock.wall_ms())
        self.limits = AgreedLimits(self.config.handshake_frame_bytes_max)
        self.number = broker.sessions.next_number()
        self.state = State.HEADER
        self.closing_since_ms = self.client.connected_at_ms
        #: True if close-ok was sent: the client should close its socket now.
        self.answered_close = False
        self.vhost: VHost | None = None
        #: True while the session counts as a connection, until its counts are added up.
        self._opened = False
        self.channels: dict[int, Channel] = {}
        self.exclusive_queues: dict[Queue, None] = {}
        #: User and password of a login; the edge verifies them and calls `login_done`.
        self.login: Credentials | None = None
        #: New secrets that came while one is verified.
        self._secrets: list[str] = []
        #: True while the client's consumers get no messages, until the outbox has drained.
        self.paused = False
        #: True while copies of deliveries for the firehose are missing.
        self._uncopied = False
        #: A method that waits for its answer; no later frame is handled before that.
        self.suspended: Suspension | None = None
        #: True if a later turn continues with the client's bytes, or with work that they caused.
        self.unfinished = False
        #: Channel, class id and method id of the current method.
        self._handling: tuple[Channel, tuple[int, int]] | None = None
        self.incoming = Incoming(self)
        broker.sessions.add(self)

    @classmethod
    def logged_in(
        cls,
        broker: Broker,
        outbox: Outbox,
        edge: Edge,
        *,
        name: str,
        peer: str = "",
        user: str,
        access: str = "",
        vhost: VHost,
        frame_max: int,
        channel_max: int,
    ) -> Session:
        """Return a session without a handshake, for a client within this process.

        `access` is the key of another user's grant, if not the user's own permissions apply.
        """
        session = cls(broker, outbox, edge, peer, name)
        client = session.client
        client.username, client.access = user, access or user
        client.identity = broker.access.permissions.identity(client.access)
        session.vhost = vhost
        session.tuned(frame_max, channel_max, 0)
        session.state = State.RUNNING
        return session

    # -- in --------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Handle bytes from the client. Errors in them become close methods."""
        self.incoming.receive(data)

    def go_on_later(self) -> None:
        """The turn is too short for the client's requests: the client is not read until they are done."""
        self.unfinished = True
        self.turn.later(self, self._next_part)

    def _next_part(self) -> None:
        self.unfinished = False
        if self._edge is _NO_EDGE:
            # It was lost meanwhile.
            return
        if not self.turn.part(self._go_on_and_apply) and not self.unfinished:
            # All frames are handled, but queues still have work.
            self.go_on_later()
        if not self.unfinished:
            self._edge.resumed()

    def _go_on_and_apply(self) -> None:
        self.incoming.go_on()
        self.turn.apply()

    def protocol_header(self, data: bytes) -> int:
        """Answer the protocol header; return the offset after it."""
        header = data[:8]
        if len(header) < 8 and any(known.startswith(header) for known in frames.CLIENT_HEADERS):
            return 0
        log.accepting(self)
        if header in frames.CLIENT_HEADERS:
            self.state = State.STARTING
            handshake.start(self)
            return 8
        log.bad_header(self, data)
        self.outbox.put(frames.PROTOCOL_HEADER)
        self._closed()
        return len(data)

    def frame(self, kind: int, number: int, payload: bytes, whole: bytes) -> None:
        """Handle one frame. Raises AMQPError."""
        if self.state is State.CLOSING:
            if kind == frames.METHOD and number == 0 and payload[:4] in (_CLOSE_OK, _CLOSE):
                self._closed()
                if payload[:4] == _CLOSE:
                    self._answer_close()
            return
        if len(payload) < _PAYLOAD_BYTES_MIN.get(kind, 0) or (kind == frames.HEARTBEAT and payload):
            raise FrameError(octets(whole, 0, len(payload), "unknown_frame"))
        if kind == frames.METHOD and number == 0:
            self._connection_method(payload)
        elif kind == frames.HEARTBEAT:
            if number:
                raise UnexpectedFrame(octets(whole, 0, len(payload), ""))
        elif kind not in KINDS:
            raise FrameError(octets(whole, 0, len(payload), "unknown_frame"))
        elif number == 0 or self.state is not State.RUNNING:
            raise UnexpectedFrame(octets(whole, 0, len(payload), ""))
        elif kind == frames.METHOD:
            self._channel_method(number, payload)
        else:
            self.incoming.content(kind, number, payload, whole)

    def _connection_method(self, payload: bytes) -> None:
        method = methods.decode(payload, self.config.table_depth_max)
        handler = CONNECTION.get(type(method))
        where = methods.ids(payload)
        if handler is None or self.state is not handler[0]:
            raise ChannelError(f"unexpected method in connection state {self.state.value}", where)
        try:
            handler[1](self, method, payload)
        except Awaited as awaited:
            self.wait(awaited, None, where, partial(handler[1], self, method, payload))
        except AMQPError as error:
            error.method = error.method or where
            raise

    def _channel_method(self, number: int, payload: bytes) -> None:
        channel = self.channels.get(number)
        where = methods.ids(payload)
        if channel is None:
            self._open_channel(number, methods.decode(payload, self.config.table_depth_max), where)
            return
        if channel.closing:
            if payload[:4] == _CHANNEL_CLOSE_OK:
                self._handling = channel, where
                self._drop_when_closed(channel)
            elif payload[:4] == _CHANNEL_CLOSE:
                channel.send(commands.Channel.CloseOk())
            return
        if channel.assembly is not None:
            raise UnexpectedFrame(expected(channel.assembly), (60, 40))
        method = methods.decode(payload, self.config.table_depth_max)
        channel.raw = payload
        self._handling = channel, where
        try:
            self._dispatch(channel, method)
        except Awaited as awaited:
            self.wait(awaited, channel, where, partial(self._dispatch, channel, method))
        except SoftError as error:
            if self._may_be_outdated(error, where):
                self._look_again(channel, method, where)
            else:
                self.close_channel(channel, error, where)
        except HardError as error:
            error.method = error.method or where
            raise
        self.incoming.forget_old_routes()

    def _may_be_outdated(self, error: SoftError, where: tuple[int, int]) -> bool:
        """True if a method is refused because of queues, exchanges or bindings, which other nodes may have
        changed: this node may be behind, as after it stood still.
        """
        replication = self.broker.replication
        return (
            replication.clustered
            and replication.version >= SEALS
            and isinstance(error, (NotFound, ResourceLocked, PreconditionFailed))
            and not isinstance(error, HomeNodeDown)
            and (where[0] in _TOPOLOGY_CLASSES or where in _TOPOLOGY_METHODS)
        )

    def _look_again(self, channel: Channel, method: base.Frame, where: tuple[int, int]) -> None:
        """Repeat a refused method, which has changed nothing, once this node has caught up with the topology
        or a time has passed. If it is refused again, that is the answer.
        """

        def caught_up(known: bool) -> None:
            if not channel.closing:
                try:
                    self._dispatch(channel, method)
                except Awaited as awaited:
                    self.wait(awaited, channel, where, partial(self._dispatch, channel, method))

        self.suspended = suspension = Suspension(self.turn, self, channel, where, caught_up)
        suspension.waiting = True
        self.broker.replication.catch_up(suspension.answer)

    def handle(self, channel: Channel, where: tuple[int, int]) -> None:
        """Begin to handle methods that were read in a run."""
        self._handling = channel, where

    def _dispatch(self, channel: Channel, method: base.Frame) -> None:
        if isinstance(method, commands.Basic.Publish):
            route = publish.make_route(channel, frames.method_frame(channel.number, method), method)
            channel.assembly = Assembly(route)
            return
        if isinstance(method, commands.Channel.Close):
            self._close_for_client(channel)
            return
        handler = CHANNEL.get(type(method))
        if handler is None:
            if isinstance(method, commands.Channel.Open):
                raise ChannelError("second 'channel.open' seen")
            raise CommandInvalid("unimplemented method")
        handler(channel, method)

    def _drop_when_closed(self, channel: Channel) -> None:
        """Remove a closing channel when no queue has deliveries of it any more: then the client may use its
        number again.
        """

        def wait(done: Callable[[], None]) -> None:
            if channel.closed:
                done()
            else:
                channel.when_closed = done

        self.after(wait, lambda: self._drop_channel(channel))

    def _close_for_client(self, channel: Channel) -> None:
        def close(done: Callable[[], None]) -> None:
            channel.when_closed = done
            channel.close()
            self.turn.apply()

        def closed() -> None:
            self._drop_channel(channel)
            self.synced()
            channel.send(commands.Channel.CloseOk())

        # The channel's deliveries go back to the queues first, which may take several turns.
        self.after(close, closed)

    def _open_channel(self, number: int, method: base.Frame, where: tuple[int, int]) -> None:
        if not isinstance(method, commands.Channel.Open):
            raise ChannelError("expected 'channel.open'", where)
        # As in RabbitMQ, clients may use any channel numbers, as long as there are not too many channels.
        count, most = len(self.channels), self.limits.channel_max
        if count >= most:
            raise NotAllowed(
                f"number of channels opened ({count}) has reached the negotiated channel_max ({most})",
                (0, 0),
            )
        assert self.vhost is not None
        if not self.client.operates:
            self._take_place_of_channel()
        self.channels[number] = channel = Channel(self, self.vhost, number)
        self.broker.counts.ended.channels_created += 1
        events.channel_opened(self, channel)
        channel.send(methods.make(commands.Channel.OpenOk))

    def _take_place_of_channel(self) -> None:
        """Raises NotAllowed if the node, or the user, has no more."""
        if self.broker.counts.channels_of_node() >= self.config.channels_max:
            raise NotAllowed(
                f"number of channels opened on node '{self.config.node_name}' has reached the maximum allowed limit of "
                f"({self.config.channels_max})"
            )
        self.broker.runtime.limits.check_channel(self.client.username, self.client.identity)
        self._count_channel()

    def _count_channel(self) -> None:
        self.broker.counts.count_channels(1)
        self.broker.sessions.channel_opened(self.client.identity)

    def _drop_channel(self, channel: Channel) -> None:
        if self.channels.pop(channel.number, None) is not None:
            if not self.client.operates:
                self.broker.counts.count_channels(-1)
                self.broker.sessions.channel_gone(self.client.identity)
            events.channel_closed(self, channel)
        self._handling = None
        self.incoming.drop_channel(channel)

    # -- what is not answered at once ------------------------------------------------------------------------

    def after(self, begin: Callable[[Callable[..., None]], None], then: Callable[..., None]) -> None:
        """Call `begin` with a function that takes the answer, and continue with `then` when it has arrived.

        An answer within the turn costs nothing; otherwise the connection waits. Handlers of channel methods
        call this as their last action.
        """
        assert self._handling is not None
        suspension = Suspension(self.turn, self, *self._handling, then)
        begin(suspension.answer)
        if not suspension.answered:
            self.turn.apply()
        if suspension.answered:
            suspension.finish()
        else:
            suspension.waiting = True
            self.suspended = suspension

    def propose(self, operation: Operation, then: Callable[[str], None]) -> None:
        """Propose a change, then continue. `then` gets the text of its error, which is usually empty."""

        def applied(result: Result | Refused) -> None:
            if isinstance(result, Refused):
                raise Unavailable(result.text)
            then(result.error)

        user = self.client.acting or self.client.username
        self.after(lambda done: self.broker.propose(operation, done, user), applied)

    def wait(
        self,
        awaited: Awaited,
        channel: Channel | None,
        where: tuple[int, int],
        again: Callable[[], None],
    ) -> None:
        """Something that the method needs is not known yet, such as the user's permission. Repeat the method
        when it is known; so far it has changed nothing.
        """

        def answered() -> None:
            if channel is not None and channel.closing:
                awaited.settle()
                return
            try:
                again()
            except Awaited as next_one:
                self.wait(next_one, channel, where, again)
                return
            except AMQPError:
                awaited.settle()
                raise
            awaited.settle()

        self.suspended = suspension = Suspension(self.turn, self, channel, where, answered)
        suspension.waiting = True
        awaited.begin(suspension.answer)

    def go_on(self) -> None:
        """The awaited answer has arrived. Does nothing if no method waits for it any more."""
        suspension = self.suspended
        if suspension is None or not suspension.answered:
            return
        self._finish(suspension)
        if self.suspended is None:
            self.incoming.go_on()
        self._edge.resumed()

    def _finish(self, suspension: Suspension) -> None:
        # A separate function: the rest of a method may be suspended again, and in the function that sets
        # None, compiled code would still take it for None.
        self.suspended = None
        channel, where = suspension.channel, suspension.where
        if channel is not None:
            channel.raw = suspension.raw
            self._handling = channel, where
        try:
            suspension.finish()
        except AMQPError as error:
            if channel is not None and isinstance(error, SoftError):
                self.close_channel(channel, error, where)
                return
            self.incoming.flush(release=True)
            self.fail(error, where)

    # -- out -------------------------------------------------------------------------------------------------

    def send(self, method: base.Frame) -> None:
        """Send a method on channel 0."""
        self.outbox.put(frames.method_frame(0, method))

    def heartbeat(self) -> None:
        """Send a heartbeat."""
        self.outbox.beat(frames.HEARTBEAT_FRAME)

    def synced(self) -> None:
        """Later answers wait until all changes so far are on disk."""
        commits = self.broker.services.commits
        if commits.unsynced:
            commits.request(self.outbox.withhold())

    # -- flow ------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """The outbox is full: the connection's consumers get no messages until it has drained."""
        if not self.paused:
            self.paused = True
            self._tell_consumers(paused=True)

    def drained(self) -> None:
        """The outbox has room again."""
        if self.paused and not self._uncopied:
            self.paused = False
            self._tell_consumers(paused=False)

    def copies_wait(self) -> None:
        """See broker.firehose."""
        self._uncopied = True
        self.pause()

    def copied(self) -> None:
        self._uncopied = False
        if self.outbox.size <= self.outbox.high_bytes:
            # Otherwise the outbox reports when it has drained.
            self.drained()

    def room(self) -> None:
        """The outbox has room for answers again: handle the rest of the last read."""
        if self.incoming.congested:
            self.incoming.go_on()

    def _tell_consumers(self, *, paused: bool) -> None:
        for channel in self.channels.values():
            if channel.leaving:
                continue
            for subscription in channel.subscriptions.values():
                subscription.queue.host.submit(("pause", subscription.key, paused))

    def alarm_changed(self) -> None:
        """The alarms were raised or cleared."""
        if not self.broker.alarms.active:
            self.incoming.unblock()
            self._edge.resumed()

    def forget_memos(self) -> None:
        """The memos of all connections are too large together, or memory is low."""
        self.incoming.forget_memos()

    # -- login -----------------------------------------------------------------------------------------------

    def tuned(self, frame_max: int, channel_max: int, heartbeat_s: int) -> None:
        """The limits were agreed."""
        self.limits = AgreedLimits(frame_max, channel_max, heartbeat_s)
        username = self.client.username.encode()
        self.incoming.publisher.forget()
        self.incoming.publisher = Publisher(
            frame_max,
            username,
            self.config.message_bytes_max,
            self.config.table_depth_max,
            Memo(self.broker.memo),
        )

    def opened(self) -> None:
        """The vhost is open."""
        self.state = State.RUNNING
        self._opened = True
        self.broker.counts.ended.connections_created += 1
        log.opened(self)
        events.opened(self)
        events.kept(self)
        self._edge.opened()

    def arrived(self) -> None:
        """The connection goes on here: it has logged in and opened its vhost in another process of this
        node.
        """
        self.state = State.RUNNING
        self._opened = True
        self.broker.sessions.opened(self)
        events.kept(self)
        self._edge.opened()

    def channel_arrived(self, channel: Channel) -> None:
        """The connection has come with this channel."""
        self.channels[channel.number] = channel
        self.broker.counts.ended.channels_created += 1
        self._count_channel()

    def given_away(self) -> None:
        """The connection goes on in another process of this node: end here, and tell nobody."""
        assert self.vhost is not None
        self._add_up_traffic(self.vhost)
        events.forgotten(self)
        self._opened = False
        self.client.ended = True

    def login_done(
        self, *, accepted: bool, reason: str = "invalid credentials", token: Token | None = None
    ) -> None:
        """The edge has verified `login`. The reason of a refusal is logged. A token identifies the user."""
        assert self.login is not None
        user = self.login.user if token is None else token.user
        self.login = None
        if self.state is State.RUNNING:
            self._renewed(token if accepted else None, reason)
            return
        if self.state is not State.AUTHENTICATING:
            return
        if accepted and not self.broker.access.users.may_connect_from(user, self.client.peer):
            accepted, reason = False, "user can only connect via localhost"
        if accepted:
            self.broker.counts.ended.amqp_logins.accepted += 1
            events.logged_in(self, user)
        else:
            self.broker.counts.ended.amqp_logins.refused += 1
            events.logged_in(self, user, reason)
            log.login_refused(self, user, reason)
            text = (
                f"Login was refused using authentication mechanism {self.client.mechanism}. "
                "For details see the broker logfile."
            )
            if self.client.can("authentication_failure_close"):
                self.fail(LoginRefused(text), (0, 0))
            else:
                self._closed()
            return
        self.client.username = self.client.access = user
        if self.client.trusted_as is not None:
            self.client.access = self.client.trusted_as
        if token is not None:
            self._take(token)
        self.client.identity = self.broker.access.permissions.identity(self.client.access)
        self.state = State.TUNING
        handshake.tune(self)
        self.incoming.go_on()

    def _take(self, token: Token) -> None:
        """Use this token's grant until it expires, or the HTTP backend's answers."""
        permissions, client = self.broker.access.permissions, self.client
        permissions.drop_grant(client.access)
        client.grant = permissions.grant_of(client.username, token.scopes)
        client.access = permissions.add_grant(client.username, client.grant)
        client.expires_at_ms = int(token.expires_at_s * 1000)
        # Memos depend on the grant of the earlier token.
        self.incoming.forget_memos()

    def update_secret(self, secret: str) -> None:
        """The client has a new token for the edge to verify. A client that logged in in another way has
        nothing to renew.
        """
        if not self.client.expires_at_ms:
            self.send(commands.Connection.UpdateSecretOk())
        elif self.login is None:
            self.login = Credentials(self.client.username, secret)
        else:
            self._secrets.append(secret)

    def _renewed(self, token: Token | None, reason: str) -> None:
        if token is not None and token.user != self.client.username:
            token, reason = None, "it is the token of another user"
        if token is None:
            log.secret_refused(self, reason)
            self.fail(NotAllowed("New secret was refused by one of the backends"), (10, 70))
            return
        self._take(token)
        log.secret_updated(self)
        for channel in list(self.channels.values()):
            channel.check_consumers()
        self.send(commands.Connection.UpdateSecretOk())
        if self._secrets:
            self.update_secret(self._secrets.pop(0))

    def check_grant(self, now_ms: int) -> None:
        """Close the connection if its token has expired by the wall clock. Forget routes that depend on an
        answer of the HTTP backend when that answer expires.
        """
        grant = self.client.grant
        if self.client.expires_at_ms and now_ms >= self.client.expires_at_ms:
            self.force_close("the token has expired")
        elif isinstance(grant, RemoteGrant) and grant.is_stale():
            grant.forgotten()
            self.incoming.forget_memos()

    def consumer_event(self, channel: int, consumer: Consuming, *, created: bool) -> None:
        """A consumer of the channel with this number was created or removed."""
        events.consumer(self, channel, consumer, created=created)

    # -- end -------------------------------------------------------------------------------------------------

    def close_channel(self, channel: object, error: SoftError, where: tuple[int, int]) -> None:
        """Close a channel because of an error; frames for it are skipped until the client has answered."""
        assert isinstance(channel, Channel)
        self.incoming.flush_segments(whole=True)
        if channel.tx is not None:
            # Publishes of a transaction that an alarm holds back are rolled back with the rest.
            self.incoming.drop_segments(channel)
        channel.close()
        self.turn.apply()
        channel.closing = True
        class_id, method_id = error.method or where
        log.channel_failed(self, channel.number, error, (class_id, method_id))
        channel.send(commands.Channel.Close(error.code, error.reply_text(), class_id, method_id))

    def fail(self, error: AMQPError, where: tuple[int, int]) -> None:
        """Close the connection because of an error."""
        if self.state in (State.CLOSING, State.CLOSED):
            return
        class_id, method_id = error.method or where
        handling = self._handling
        at_fault = handling is not None and handling[1] == (class_id, method_id)
        log.failed(self, handling[0].number if handling and at_fault else 0, error, (class_id, method_id))
        self._release()
        self.send(commands.Connection.Close(error.code, error.reply_text(), class_id, method_id))
        self.state = State.CLOSING
        self.closing_since_ms = self.broker.clock.monotonic_ms()
        self.limits.frame_max = max(self.limits.frame_max, frames.FRAME_BYTES_MIN)

    def force_close(self, reason: str) -> None:
        """Close the connection for an operator, or because the node stops."""
        if self.state is State.RUNNING:
            self.fail(ConnectionForced(reason), (0, 0))
        else:
            self._closed()

    def failed(self, error: Exception) -> None:
        """A defect of the broker has shown up while it handled this connection; other connections must not be
        affected.
        """
        logger.error("connection %s: internal error", self.client.name, exc_info=error)
        self.incoming.clear()
        self.fail(InternalError(""), (0, 0))

    def lost(self) -> None:
        """The socket is gone."""
        if self._edge is _NO_EDGE:
            return
        self._closed()
        # Nothing uses the session any more. Without these references it is freed now, and not by the garbage
        # collector, which may run less often than connections come and go.
        self._edge = _NO_EDGE
        self.outbox.close()
        self.incoming.end()

    def closed_by_client(self) -> None:
        """The client has closed: finish its messages, and answer when they are on disk."""
        self.incoming.flush(release=True)
        queues, self.exclusive_queues = self.exclusive_queues, {}
        self._release()
        self.state = State.CLOSING
        self.closing_since_ms = self.broker.clock.monotonic_ms()
        left = len(queues)

        def gone(queue: Queue, result: Result | Refused) -> None:
            nonlocal left
            left -= 1
            if isinstance(result, Refused):
                # Called again later.
                queue.delete()
            if not left and self.state is State.CLOSING:
                self._answer_close()

        # Clients expect that their exclusive queues are deleted at close-ok.
        self.broker.orphaned_queues.add(queues, gone)
        if not queues:
            self._answer_close()

    def _answer_close(self) -> None:
        self.synced()
        self.send(commands.Connection.CloseOk())
        self.incoming.forget()
        self.state = State.CLOSED
        log.closing(self)
        self.answered_close = True
        self.closing_since_ms = self.broker.clock.monotonic_ms()
        self._edge.resumed()

    @property
    def close_wait_s(self) -> float:
        """Time that the client has to close its socket after close-ok: as in
        RabbitMQ, at most a heartbeat.
        """
        wait_s, heartbeat_s = self.config.close_wait_s, self.limits.heartbeat_s
        return min(wait_s, heartbeat_s) if heartbeat_s else wait_s

    @property
    def is_open(self) -> bool:
        """True from the open of the vhost until the connection is released."""
        return self._opened

    def _add_up(self) -> None:
        """The connection has ended: add its counts to those of its vhost and the node."""
        vhost = self.vhost
        if not self._opened or vhost is None:
            return
        events.closed(self)
        self._opened = False
        self.broker.counts.ended.connections_closed += 1
        self._add_up_traffic(vhost)

    def _add_up_traffic(self, vhost: VHost) -> None:
        ended, received, sent = self.broker.counts.ended, self.incoming.received_bytes, self.outbox.sent_bytes
        ended.received_bytes += received
        ended.sent_bytes += sent
        ended.received_count += self.incoming.received_count
        ended.sent_count += self.outbox.sent_count
        vhost.received_bytes += received
        vhost.sent_bytes += sent

    def _closed(self) -> None:
        self._release()
        self.incoming.forget()
        self.state = State.CLOSED

    def _release(self) -> None:
        """Release everything that the connection held: channels, exclusive queues."""
        self.suspended = None
        channels = list(self.channels.values())
        closing = [channel for channel in channels if not channel.closing]
        in_parts = are_many(closing)
        for channel in closing:
            if channel.ending is not None:
                channel.close()
            elif not in_parts:
                channel.finish()
        if in_parts:
            ChannelsEnd(self.turn, self, [each for each in closing if each.ending is None]).begin()
        for channel in channels:
            self._drop_channel(channel)
        self.turn.apply()
        # First remove the session: then an exclusive queue whose declaration is still in progress is deleted,
        # too.
        self.broker.sessions.remove(self)
        if self.client.grant is not None:
            self.broker.access.permissions.drop_grant(self.client.access)
        self._add_up()
        if self.broker.events is not None:
            self.broker.events.began_as.pop(self.number, None)
        queues, self.exclusive_queues = self.exclusive_queues, {}
        self.broker.orphaned_queues.add(queues)
        self.incoming.clear()
        self.turn.apply()


__all__ = ["Edge", "Session", "State"]
