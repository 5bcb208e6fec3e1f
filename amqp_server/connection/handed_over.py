"""A session that goes on in another process of the node: what the other one has to know.

Only a quiet session can go: all that its client has sent is handled and answered, and it holds nothing. So
its state is small: who the client is, what was agreed with it, and the modes of its channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from amqp_server.broker.topology.event_headers import pid
from amqp_server.channel.channel import Channel
from amqp_server.channel.confirms import Confirms
from amqp_server.connection.events import end_told
from amqp_server.connection.state import State

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.connection.session import Session


class ChannelState(msgspec.Struct, frozen=True, array_like=True):
    number: int
    next_tag: int
    prefetch: int
    #: Prefetch that all consumers of the channel share; 0 for none.
    shared_prefetch: int
    last_queue: str
    #: Number of the next publish; 0 if the channel is not in confirm mode.
    next_publish: int


class SessionState(msgspec.Struct, frozen=True, array_like=True):
    name: str
    peer: str
    given_name: str
    connected_at_ms: int
    username: str
    access: str
    identity: str
    mechanism: str
    properties: dict[str, Any]
    capabilities: dict[str, bool]
    vhost: str
    frame_max: int
    channel_max: int
    heartbeat_s: int
    channels: tuple[ChannelState, ...]
    #: See Events.began_as.
    began_as: tuple[str, int]
    #: Bytes that the client has sent and that nobody has handled.
    unread: bytes


encode = msgspec.msgpack.Encoder(enc_hook=str).encode
decode = msgspec.msgpack.Decoder(SessionState).decode


def is_quiet(session: Session) -> bool:
    """True if the session can go on elsewhere."""
    client = session.client
    return (
        session.state is State.RUNNING
        and session.suspended is None
        and session.login is None
        and not (session.unfinished or session.paused or session.exclusive_queues)
        and client.grant is None
        and client.tls is None
        and client.trusted_as is None
        and not session.outbox.size
        and session.incoming.is_idle
        and all(map(_channel_is_quiet, session.channels.values()))
    )


def _channel_is_quiet(channel: Channel) -> bool:
    confirms = channel.confirms
    return not (
        channel.closing
        or channel.closed
        or channel.leaving
        or channel.unacked.count
        or channel.subscriptions
        or channel.assembly is not None
        or channel.tx is not None
        or channel.ending is not None
        or channel.deleting is not None
        or channel.reply_host is not None
        or (confirms is not None and confirms.unconfirmed_count)
    )


def state_of(session: Session, unread: bytes) -> SessionState:
    """Return the state of a quiet session whose client has sent `unread` since."""
    client, limits, vhost = session.client, session.limits, session.vhost
    assert vhost is not None
    events = session.broker.events
    return SessionState(
        client.name,
        client.peer,
        client.given_name,
        client.connected_at_ms,
        client.username,
        client.access,
        client.identity,
        client.mechanism,
        client.properties,
        client.capabilities,
        vhost.name,
        limits.frame_max,
        limits.channel_max,
        limits.heartbeat_s,
        tuple(map(_channel_state, session.channels.values())),
        (session.config.node, session.number) if events is None else events.origin(session.number),
        unread,
    )


def _channel_state(channel: Channel) -> ChannelState:
    confirms = channel.confirms
    next_publish = 0 if confirms is None else confirms.next_number
    return ChannelState(
        channel.number,
        channel.next_tag,
        channel.prefetch,
        channel.window.limit,
        channel.last_queue,
        next_publish,
    )


class Farewell(msgspec.Struct, frozen=True, array_like=True):
    """What is told if a connection is lost on its way to another process."""

    name: str
    username: str
    began_as: tuple[str, int]
    #: Empty if they are large.
    properties: dict[str, Any]

    @staticmethod
    def of(state: SessionState) -> Farewell:
        return Farewell(state.name, state.username, state.began_as, state.properties)

    def encoded(self, bytes_max: int) -> bytes:
        """Return it in this many bytes at most; without properties it is always short."""
        whole = encode(self)
        return whole if len(whole) <= bytes_max else encode(msgspec.structs.replace(self, properties={}))


decode_farewell = msgspec.msgpack.Decoder(Farewell).decode


def was_lost(broker: Broker, farewell: Farewell) -> None:
    """A connection has ended on its way to this process."""
    events = broker.events
    if events is None or not events.wanted:
        return
    origin = pid(*farewell.began_as)
    node, properties = broker.replication.node, farewell.properties
    events.tell("connection.closed", end_told(farewell.name, origin, node, properties, farewell.username))


def take_over(session: Session, state: SessionState) -> None:
    """Let a new session go on with the state of another process's one. Raises KeyError if the vhost or the
    user was deleted meanwhile.
    """
    client, broker = session.client, session.broker
    if broker.access.users.get(state.username) is None:
        raise KeyError(state.username)
    session.vhost = vhost = broker.vhosts[state.vhost]
    client.given_name, client.connected_at_ms = state.given_name, state.connected_at_ms
    client.username, client.access, client.identity = state.username, state.access, state.identity
    client.mechanism = state.mechanism
    client.properties, client.capabilities = state.properties, state.capabilities
    session.tuned(state.frame_max, state.channel_max, state.heartbeat_s)
    if broker.events is not None:
        broker.events.began_as[session.number] = state.began_as
    session.arrived()
    for told in state.channels:
        channel = Channel(session, vhost, told.number)
        channel.next_tag, channel.prefetch, channel.last_queue = told.next_tag, told.prefetch, told.last_queue
        channel.window.change(told.shared_prefetch)
        if told.next_publish:
            channel.confirms = confirms = Confirms(session.turn, session.outbox, told.number)
            confirms.begin_at(told.next_publish)
        session.channel_arrived(channel)
