"""Connections, channels and consumers. A user who may not see all of them sees only their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from amqp_server.broker.access.users import ADMINISTRATOR, MONITORING
from amqp_server.connection.session import Session, State
from amqp_server.management.request.answer import NO_CONTENT, Answer, not_authorised, not_found, plain
from amqp_server.management.request.call import Call
from amqp_server.management.request.columns import ABSENT, Column, Row, Table
from amqp_server.management.request.listing import listing
from amqp_server.management.request.other_nodes import ask_others
from amqp_server.streams.local_host import StreamHost

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.channel.channel import Channel
    from amqp_server.management.parts import ManagedParts
    from amqp_server.management.statistics.stats import Stats
    from quorum_queue.ports import ConsumerState

#: The same text as RabbitMQ's: clients and test suites compare it.
REASON = "Closed via management plugin"
REASON_CHARACTERS_MAX = 200
OPEN = (State.OPENING, State.RUNNING, State.CLOSING)


# -- columns -------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    session: Session
    channel: Channel


class Reads:
    """What one request reads connections and channels with. See CONNECTIONS and CHANNELS."""

    def __init__(self, parts: ManagedParts, stats: Stats) -> None:
        self._node = parts.config.node
        self._stats = stats

    # -- of a connection -------------------------------------------------------------------------------------

    def ends(self, session: Session) -> Sequence[Any]:
        peer, _, here = session.client.name.partition(" -> ")
        peer_host, _, peer_port = peer.rpartition(":")
        host, _, port = here.rpartition(":")
        vhost = session.vhost.name if session.vhost else ""
        return vhost, peer_host, number_of(peer_port), host, number_of(port), self._node

    def constants(self, session: Session) -> Sequence[Any]:
        blocked = session.incoming.blocked and session.state is State.RUNNING
        return "network", "AMQP 0-9-1", "blocked" if blocked else session.state.value

    def tls(self, session: Session) -> Sequence[Any]:
        tls = session.client.tls
        if tls is None:
            return (False, *(None,) * 7)
        return (True, tls.protocol, None, None, None, tls.subject, tls.issuer, tls.validity)

    def client(self, session: Session) -> Sequence[Any]:
        return session.client.given_name or ABSENT, len(session.channels), plain(session.client.properties)

    def octets(self, session: Session) -> Sequence[Any]:
        return self._stats.connection(session)

    # -- of a channel ----------------------------------------------------------------------------------------

    def place(self, seen: Seen) -> Sequence[Any]:
        client, channel = seen.session.client, seen.channel
        peer_host, _, port = client.name.partition(" -> ")[0].rpartition(":")
        details = {"name": client.name, "peer_host": peer_host, "peer_port": number_of(port)}
        state = "closing" if channel.closing else "running"
        return f"{client.name} ({channel.number})", details, self._node, state

    def pending(self, seen: Seen) -> Sequence[Any]:
        channel = seen.channel
        confirms, tx = channel.confirms, channel.tx
        return (
            confirms is not None,
            tx is not None,
            len(channel.subscriptions),
            0 if confirms is None else confirms.unconfirmed_count,
            0 if tx is None else tx.published_count,
            0 if tx is None else tx.settled_count,
            0,
        )

    def counters(self, seen: Seen) -> Sequence[Any]:
        return (self._stats.channel(seen.channel) or ABSENT,)


CONNECTIONS = Table(
    "Connection",
    (
        #: `127.0.0.1:50000 -> 127.0.0.1:5672`
        Column("name", "string", "client.name"),
        Column("user", "string", "client.username"),
        Column("user_who_performed_action", "string", "client.username"),
        Column("vhost", "string", Reads.ends),
        Column("peer_host", "string", Reads.ends),
        Column("peer_port", "integer", Reads.ends),
        Column("host", "string", Reads.ends),
        Column("port", "integer", Reads.ends),
        Column("node", "string", Reads.ends),
        Column("type", "string", Reads.constants),
        Column("protocol", "string", Reads.constants),
        Column("state", "string", Reads.constants),
        Column("ssl", "boolean", Reads.tls),
        Column("ssl_protocol", "string?", Reads.tls),
        Column("ssl_key_exchange", "string?", Reads.tls),
        Column("ssl_cipher", "string?", Reads.tls),
        Column("ssl_hash", "string?", Reads.tls),
        Column("peer_cert_subject", "string?", Reads.tls),
        Column("peer_cert_issuer", "string?", Reads.tls),
        Column("peer_cert_validity", "string?", Reads.tls),
        Column("user_provided_name", "string", Reads.client),
        Column("channels", "integer", Reads.client),
        Column("client_properties", "object", Reads.client),
        Column("auth_mechanism", "string", "client.mechanism"),
        Column("channel_max", "integer", "limits.channel_max"),
        Column("frame_max", "integer", "limits.frame_max"),
        #: Seconds between heartbeats.
        Column("timeout", "integer", "limits.heartbeat_s"),
        #: Milliseconds since 1970.
        Column("connected_at", "integer", "client.connected_at_ms"),
        #: Reads that returned bytes, and sends that wrote some.
        Column("recv_cnt", "integer", "incoming.received_count"),
        Column("send_cnt", "integer", "outbox.sent_count"),
        Column("send_pend", "integer", "outbox.size"),
        Column("recv_oct", "integer", Reads.octets),
        Column("recv_oct_details", "object", Reads.octets),
        Column("send_oct", "integer", Reads.octets),
        Column("send_oct_details", "object", Reads.octets),
    ),
)
#: The columns of a user's connections.
BRIEF = ("name", "node", "user", "vhost")
CHANNELS = Table(
    "Channel",
    (
        #: `127.0.0.1:50000 -> 127.0.0.1:5672 (1)`
        Column("name", "string", Reads.place),
        #: name, peer_host, peer_port
        Column("connection_details", "object", Reads.place),
        Column("node", "string", Reads.place),
        Column("state", "string", Reads.place),
        Column("number", "integer", "channel.number"),
        Column("user", "string", "session.client.username"),
        Column("user_who_performed_action", "string", "session.client.username"),
        Column("vhost", "string", "channel.vhost.name"),
        Column("confirm", "boolean", Reads.pending),
        Column("transactional", "boolean", Reads.pending),
        Column("consumer_count", "integer", Reads.pending),
        Column("messages_unconfirmed", "integer", Reads.pending),
        Column("messages_uncommitted", "integer", Reads.pending),
        Column("acks_uncommitted", "integer", Reads.pending),
        Column("pending_raft_commands", "integer", Reads.pending),
        Column("messages_unacknowledged", "integer", "channel.unacked.count"),
        Column("prefetch_count", "integer", "channel.prefetch"),
        Column("global_prefetch_count", "integer", "channel.window.limit"),
        #: Absent if the channel did nothing.
        Column("message_stats", "object", Reads.counters),
    ),
)


def number_of(port: str) -> int:
    return int(port) if port.isdigit() else 0


# -- connections ---------------------------------------------------------------------------------------------


def sessions_of(broker: Broker, identity: str | None = None) -> Iterator[Session]:
    """Yield connections that are logged in, those of one user only if its identity is given."""
    for session in list(broker.sessions):
        if not isinstance(session, Session) or session.state not in OPEN:
            continue
        if identity is None or session.client.identity == identity:
            yield session


def _whose(call: Call) -> str | None:
    """Return the identity of the only user whose connections may be seen; None: all of them."""
    return None if call.may(MONITORING) else call.identity


def visible_sessions(call: Call) -> Iterator[Session]:
    return sessions_of(call.broker, _whose(call))


def _rows(call: Call, table: Table, wanted: Iterable[str] | None = None) -> Callable[[Any], Row | None]:
    return table.rows(Reads(call.parts, call.stats), wanted)


async def _listed(call: Call, items: Iterable[object | None], row: Callable[[Any], Row | None]) -> Any:
    """List the items of this node and of the others."""
    others = (await ask_others(call)).all_rows()
    return await listing(call, chain(items, others), row)


async def connections(call: Call) -> Any:
    return await _listed(call, visible_sessions(call), _rows(call, CONNECTIONS))


async def connections_of_vhost(call: Call) -> Any:
    vhost = call.vhost()
    found = (each if each.vhost and each.vhost.name == vhost else None for each in visible_sessions(call))
    return await _listed(call, found, _rows(call, CONNECTIONS))


async def connections_of_user(call: Call) -> Any:
    name = call.path["user"]
    found = (each if each.client.username == name else None for each in visible_sessions(call))
    return await _listed(call, found, _rows(call, CONNECTIONS, BRIEF))


async def connection(call: Call) -> Any:
    found = _connection(call)
    if found is None:
        return await _elsewhere(call)
    return _rows(call, CONNECTIONS)(found)


async def _elsewhere(call: Call) -> Any:
    """Return another node's answer for an object that this node does not have. Raises Refusal if no node has
    it.
    """
    answers = await ask_others(call)
    for body in answers.bodies.values():
        return body
    raise not_found()


def _connection(call: Call) -> Session | None:
    """Return the path's connection, None if this node has none that the user may see."""
    name = call.path["name"]
    return next((each for each in visible_sessions(call) if each.client.name == name), None)


async def close_connection(call: Call) -> Answer:
    """Users may close their own connections, an administrator may close any."""
    found = _connection(call)
    if found is None:
        await _elsewhere(call)
        return NO_CONTENT
    if found.client.identity != call.identity and not call.may(ADMINISTRATOR):
        raise not_authorised("Not administrator user")
    name = found.client.name
    _close(call, [each for each in sessions_of(call.broker) if each.client.name == name])
    return NO_CONTENT


async def close_connections_of_user(call: Call) -> Answer:
    """An administrator closes those of all users with this name, wherever they come from."""
    name, administrates = call.path["user"], call.may(ADMINISTRATOR)
    if name != call.user.name and not administrates:
        raise not_authorised("Not administrator user")
    for each in list(sessions_of(call.broker, None if administrates else call.identity)):
        await call.slices.rest()
        if each.client.username == name and each.state in OPEN:
            _close(call, [each])
    await ask_others(call)
    return NO_CONTENT


def _close(call: Call, sessions: Iterable[Session]) -> None:
    given = call.reason or REASON
    reason = "".join(letter for letter in given[:REASON_CHARACTERS_MAX] if letter.isprintable())
    for session in sessions:
        call.broker.turn.run(session.force_close, reason)


# -- channels ------------------------------------------------------------------------------------------------


def channels_of(sessions: Iterable[Session]) -> Iterator[Seen]:
    return (Seen(session, channel) for session in sessions for channel in list(session.channels.values()))


async def channels(call: Call) -> Any:
    return await _listed(call, channels_of(visible_sessions(call)), _rows(call, CHANNELS))


async def channels_of_vhost(call: Call) -> Any:
    vhost = call.vhost()
    found = channels_of(visible_sessions(call))
    of_vhost = (seen if seen.channel.vhost.name == vhost else None for seen in found)
    return await _listed(call, of_vhost, _rows(call, CHANNELS))


async def channels_of_connection(call: Call) -> Any:
    found = _connection(call)
    if found is not None:
        name = found.client.name
        named = (each for each in sessions_of(call.broker) if each.client.name == name)
        return await listing(call, channels_of(named), _rows(call, CHANNELS))
    if call.local:
        raise not_found()
    answers = await ask_others(call)
    for node, rows in answers.rows.items():
        if node in answers.bodies:
            return await listing(call, rows)
    raise not_found()


async def channel(call: Call) -> Any:
    name = call.path["name"]
    for seen in channels_of(visible_sessions(call)):
        if f"{seen.session.client.name} ({seen.channel.number})" == name:
            row = _rows(call, CHANNELS)(seen) or {}
            consumers = await consumer_rows(call, consumers_of_channel(call.parts, seen))
            return row | {"consumer_details": consumers, "deliveries": [], "publishes": []}
    return await _elsewhere(call)


# -- consumers -----------------------------------------------------------------------------------------------


class Consumer(NamedTuple):
    queue: Queue
    state: ConsumerState
    #: The node of its client.
    node: str


class ConsumerReads:
    """What one request reads consumers with; of a consumer on another node, only what the queue knows. See
    CONSUMERS.
    """

    def __init__(self, broker: Broker) -> None:
        self._timeout_ms = broker.config.consumer_timeout_ms
        self._own = broker.replication.node, broker.replication.incarnation

    def client(self, consumer: Consumer) -> Sequence[Any]:
        queue, state, node = consumer
        # In a cluster the key begins with the node and its incarnation; the consumer's key on its node
        # follows.
        *home, _, number, tag, _ = state.key
        channel: dict[str, Any] = {"number": number, "node": node}
        arguments: dict[str, object] = {"x-priority": state.priority} if state.priority else {}
        timeout_ms: int | None = self._timeout_ms
        subscription = queue.subscriptions.get(state.key[-4:]) if tuple(home) in ((), self._own) else None
        if subscription is not None:
            client = subscription.channel.connection.client
            channel["name"] = f"{client.name} ({number})"
            channel["connection_name"] = client.name
            channel["user"] = client.username
            channel["peer_host"], _, port = client.name.partition(" -> ")[0].rpartition(":")
            channel["peer_port"] = number_of(port)
            arguments = subscription.arguments
            own_ms: int | None = getattr(subscription, "timeout_ms", None)
            timeout_ms = timeout_ms if own_ms is None else own_ms
        status = "waiting"
        if state.active:
            status = "single_active" if queue.parsed.single_active_consumer else "up"
        return (
            tag,
            {"name": queue.name, "vhost": queue.vhost.name},
            channel,
            not state.no_ack,
            status,
            0 if state.no_ack else timeout_ms,
            plain(arguments),
        )

    def stream(self, consumer: Consumer) -> Sequence[Any]:
        host = consumer.queue.host
        offset = host.offset_of(consumer.state.key) if isinstance(host, StreamHost) else None
        if offset is None or not isinstance(host, StreamHost):
            return ABSENT, ABSENT
        return offset, max(host.next_offset - offset, 0)


CONSUMERS = Table(
    "Consumer",
    (
        Column("consumer_tag", "string", ConsumerReads.client),
        #: name, vhost
        Column("queue", "object", ConsumerReads.client),
        #: name, number, connection_name, user, node
        Column("channel_details", "object", ConsumerReads.client),
        Column("ack_required", "boolean", ConsumerReads.client),
        Column("activity_status", "string", ConsumerReads.client),
        #: Time limit for acks, ms; 0: deliveries may stay unacked for ever.
        Column("consumer_timeout", "integer", ConsumerReads.client),
        Column("arguments", "object", ConsumerReads.client),
        Column("exclusive", "boolean", "state.exclusive"),
        Column("active", "boolean", "state.active"),
        Column("prefetch_count", "integer", "state.prefetch"),
        Column("priority", "integer", "state.priority"),
        #: For a stream's consumer: the offset that it gets next, and the number of messages from there on.
        Column("offset", "integer", ConsumerReads.stream),
        Column("lag", "integer", ConsumerReads.stream),
    ),
)


def consumers_of_queue(parts: ManagedParts, queue: Queue) -> Iterator[Consumer]:
    for state in queue.host.consumers():
        yield Consumer(queue, state, state.key[-6] if len(state.key) > 4 else parts.config.node)


def consumers_of_channel(parts: ManagedParts, seen: Seen) -> Iterator[Consumer | None]:
    """Yield the consumers of a channel, and None for each consumer of others on the same queues."""
    keys = {subscription.key for subscription in seen.channel.subscriptions.values()}
    for queue in list(seen.channel.consumed):
        for consumer in consumers_of_queue(parts, queue):
            yield consumer if consumer.state.key[-4:] in keys else None


async def consumer_rows(call: Call, found: Iterable[Consumer | None]) -> list[Row]:
    """Return the rows of consumers; there may be thousands."""
    row, rows = CONSUMERS.rows(ConsumerReads(call.broker)), list[Row]()
    for consumer in found:
        await call.slices.rest()
        if consumer is not None:
            rows.append(row(consumer) or {})
    return rows


async def consumers(call: Call) -> Any:
    broker, own, vhosts = call.broker, call.parts.config.node, call.vhosts()
    answers = await ask_others(call)
    # Each node knows the consumers of its own clients best.
    told = {own, *answers.rows}

    def here() -> Iterator[Consumer | None]:
        for vhost in vhosts:
            for queue in list(broker.vhost(vhost).queues.values()):
                # A step of its own for each queue.
                yield None
                for consumer in () if queue.deleted else consumers_of_queue(call.parts, queue):
                    if consumer.node == own or (not call.local and consumer.node not in told):
                        yield consumer

    return await listing(call, chain(here(), answers.all_rows()), CONSUMERS.rows(ConsumerReads(broker)))
