"""The running broker as the HTTP API uses it.

Reading is quick and never awaits; a change waits until the node, or a majority of the cluster's nodes, has made it.
A refused change raises the AMQP error that a client would get for it. The handlers check who may call what, before the
call.
"""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import trio
from pamqp import base, commands

from amqp_server.broker.consumer_groups import refuse_publish
from amqp_server.broker.events import ACTING
from amqp_server.broker.failures import describe
from amqp_server.broker.operations import (
    ClearParameter,
    ClearPermission,
    ClearTopicPermission,
    DeleteUser,
    DeleteVhost,
    Operation,
    PutParameter,
    PutUser,
    PutVhost,
    SetPermission,
    SetTopicPermission,
)
from amqp_server.broker.parameters import GLOBAL, TRACING, ParameterRecord
from amqp_server.broker.permissions import ITSELF
from amqp_server.broker.queue import Queue
from amqp_server.broker.super_streams import growth, partitions_of
from amqp_server.broker.topology import Result
from amqp_server.broker.traffic import Traffic
from amqp_server.broker.users import UserRefused
from amqp_server.broker.vhost import routing_view
from amqp_server.build import BUILD
from amqp_server.channel.channel import Channel
from amqp_server.config import VERSION, Config
from amqp_server.connection.session import Session, State
from amqp_server.errors import NotFound, PreconditionFailed, Unavailable
from amqp_server.management.direct import Direct, Got, encode_properties
from amqp_server.management.everywhere import Others
from amqp_server.management.managed_groups import ManagedGroups
from amqp_server.management.sampler import FIGURES, Sampler
from amqp_server.management.slices import Slices
from amqp_server.management.stats import Stats
from amqp_server.management.views import (
    BindingView,
    ChannelView,
    ConnectionView,
    ConsumerView,
    ExchangeView,
    Fate,
    ListenerView,
    MessageView,
    NodeView,
    QueueView,
)
from amqp_server.streams.host import StreamHost
from amqp_server.wire import methods
from amqp_server.wire.content import PROPERTIES, Properties
from exchanges.binding import Binding, DestinationKind
from exchanges.explained import Explanation, explain
from exchanges.registry import EXCHANGE_TYPES
from exchanges.router import Exchange
from quorum_queue.ports import ConsumerState, Host, Refused

if TYPE_CHECKING:
    from amqp_server.app import Node

log = logging.getLogger("mqd.management")

#: Bodies that one request may get; what is left waits for the next one.
GET_BYTES_MAX = 32 << 20
#: Messages that are moved before their answers are waited for.
MOVED_AT_ONCE = 100


class ManagedBroker:
    """Changes the topology as the broker itself."""

    def __init__(self, node: Node) -> None:
        broker = node.broker
        self._node = node
        self._broker = broker
        #: None for a node that stands alone.
        self.cluster = node.administration
        self.others: Others | None = node.administration
        self.name = broker.config.node
        self.product = broker.config.announce_product
        self.version = VERSION
        #: What clients are told that it is.
        self.announced_version = broker.config.announce_version
        self.build = BUILD
        self.users = broker.access.users
        self.permissions = broker.access.permissions
        self.vhosts = broker.vhost_records
        self.parameters = broker.runtime.parameters
        self.policies = broker.runtime.policies
        self.limits = broker.runtime.limits
        self.password_checks = node.password_checks
        self.authentication = node.authentication
        self.tokens = node.tokens
        self.log_limit = broker.log_limit
        self.groups = ManagedGroups(broker)
        #: None before `sample`.
        self.sampler: Sampler | None = None
        #: Held from looking whether an administrator is left to the change.
        self.user_changes = trio.Lock()

    # -- the node -------------------------------------------------------------------------------------------

    def sample(self, slices: Slices) -> Sampler:
        """Return what takes samples of the node from now on, when it is run."""
        config = self._broker.config
        self.sampler = Sampler(
            self._broker,
            slices,
            self._figures,
            interval_s=config.statistics_interval_ms / 1000,
            bytes_max=config.statistics_bytes_max,
        )
        return self.sampler

    def _figures(self) -> tuple[int, ...]:
        """Return what sampler.FIGURES names."""
        watch, syncs = self._node.resources, self._node.commits.syncs
        sockets = len(self._broker.sessions)
        return watch.memory_bytes, watch.disk_free_bytes, _descriptors(), sockets, syncs.count, syncs.count

    def churn(self) -> dict[str, int]:
        ended = self._broker.ended
        return {
            "connection_created": ended.connections_created,
            "connection_closed": ended.connections_closed,
            "channel_created": ended.channels_created,
            "channel_closed": ended.channels_closed,
            "queue_declared": ended.queues_declared,
            "queue_created": ended.queues_created,
            "queue_deleted": ended.queues_deleted,
        }

    def clients(self, user: str | None = None) -> Iterator[list[Channel]]:
        """Yield the channels of each connection, those of one user only if it is given."""
        return (list(session.channels.values()) for session in self._sessions(user))

    def ended_traffic(self) -> Traffic:
        """Return what channels of this node have done that are closed, in counters of its own."""
        total = Traffic()
        total.add(self._broker.ended.traffic)
        return total

    def node(self, stats: Stats | None = None) -> NodeView:
        watch = self._node.resources
        alarms = self._broker.alarms.names()
        config, syncs = self._broker.config, self._node.commits.syncs
        descriptors = _descriptors()
        figures = dict(zip(FIGURES, self._figures(), strict=True))
        told: dict[str, Any] = {} if stats is None else stats.churn(self.churn()) | stats.figures(figures)
        told["io_sync_avg_time"] = round(1000 * syncs.seconds / syncs.count, 3) if syncs.count else 0.0
        return NodeView(
            name=self.name,
            os_pid=str(os.getpid()),
            uptime=int((time.monotonic() - self._node.began) * 1000),
            processors=os.cpu_count() or 1,
            mem_used=watch.memory_bytes,
            mem_limit=watch.memory_limit_bytes,
            mem_alarm="memory" in alarms,
            disk_free=watch.disk_free_bytes,
            disk_free_limit=watch.disk_free_min_bytes,
            disk_free_alarm=any(name.startswith("disk") for name in alarms),
            fd_used=descriptors,
            fd_total=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            sockets_used=len(self._broker.sessions),
            sockets_total=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            rates_mode="basic",
            db_dir=config.data_dir,
            net_ticktime=config.cluster_dead_ms // 1000,
            applications=[{"name": "mqd", "description": "AMQP 0-9-1 broker", "version": self.version}],
            auth_mechanisms=[
                {"name": name, "description": f"SASL {name} authentication mechanism", "enabled": True}
                for name in ("PLAIN", "AMQPLAIN")
            ],
            contexts=self.contexts(),
            exchange_types=self.exchange_types(),
            stats=told,
        )

    def memory(self) -> tuple[int, int]:
        """Return the bytes that the node takes, and those of bodies of messages among them."""
        return self._node.resources.memory_bytes, self._broker.services.memory.used

    def contexts(self) -> list[dict[str, Any]]:
        """Return what the management listener serves, as RabbitMQ tells of its web server."""
        if not self._node.http_address:
            return []
        host, _, port = self._node.http_address.rpartition(":")
        return [
            {
                "description": "mqd Management",
                "path": "/",
                "ip": host.strip("[]"),
                "port": port,
                "cowboy_opts": "[]",
                "ssl_opts": [],
            }
        ]

    def listeners(self) -> Iterable[ListenerView]:
        node = self._node
        told = (
            ("amqp", node.amqp_address),
            ("amqp/ssl", node.amqps_address),
            ("http", node.http_address),
            ("http/prometheus", node.metrics_address),
        )
        for protocol, address in told:
            if address:
                host, _, port = address.rpartition(":")
                yield ListenerView(
                    protocol=protocol, ip_address=host.strip("[]"), port=int(port), node=self.name
                )

    def certificates(self) -> list[str]:
        """Return the files of the certificates that listeners show."""
        config = self._broker.config
        return [config.tls_cert_file] if config.amqps and config.tls_cert_file else []

    @property
    def connections_max(self) -> int:
        return self._broker.config.connections_max

    @property
    def connection_count(self) -> int:
        return len(self._broker.sessions)

    def exchange_types(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "description": f"AMQP {name} exchange", "enabled": True} for name in EXCHANGE_TYPES
        ]

    def set_memory_limit(self, limit: str) -> None:
        """A share of the machine's memory ("0.6") or an amount of bytes. Raises InvalidOption."""
        self._node.resources.set_memory_limit(Config(memory_limit=limit).memory_limit_bytes)

    async def stop(self) -> None:
        """Have the node end in order. Returns before it does."""
        log.info("the node is stopped by a request of the management API")
        self._node.stop()

    async def settled(self) -> None:
        """Return when all changes made until now are on disk."""
        await self._node.commits.barrier()

    # -- what there is --------------------------------------------------------------------------------------

    # What is iterated over here is as it was when the iteration began, without what has gone meanwhile: the
    # broker goes on between two items. An item costs what it takes to show it.

    def _queues(self, vhost: str) -> Iterator[Queue]:
        topology = self._broker.vhost(vhost)
        for queue in list(topology.queues.values()):
            if topology.queues.get(queue.name) is queue:
                yield queue

    def queues(self, vhost: str, stats: Stats | None = None) -> Iterator[QueueView]:
        return (self._queue(queue, stats) for queue in self._queues(vhost))

    def each_queue(self, vhost: str) -> Iterator[Queue]:
        """Yield queues that `view` makes rows of, later and only where they are wanted."""
        return self._queues(vhost)

    def view(self, queue: Queue, stats: Stats | None = None) -> QueueView:
        return self._queue(queue, stats)

    def queue_hosts(self, vhost: str, *, own: bool = False) -> Iterator[Host]:
        """Yield what counts the messages and consumers of each queue; of this node's `own` only, if wanted."""
        return (queue.host for queue in self._queues(vhost) if not own or self._home_of(queue) == self.name)

    def queue_count(self, vhost: str) -> int:
        return len(self._broker.vhost(vhost).queues)

    def _home_of(self, queue: Queue) -> str:
        """Return the node that tells of a queue: its leader, or the one that it is on."""
        return self._broker.hosts.leader(queue) or queue.node or queue.record.leader or self.name

    def cluster_name(self) -> str:
        """Return what an operator has called it, or the name of its first node, which is the same on all nodes."""
        own = self.name if self.others is None else min([self.name, *self.others.names()])
        return self.parameters.cluster_name or own

    def queue(self, vhost: str, name: str, stats: Stats | None = None) -> QueueView | None:
        queue = self._broker.vhost(vhost).queues.get(name)
        return None if queue is None else self._queue(queue, stats)

    def consumers_of(self, vhost: str, name: str) -> Iterator[ConsumerView]:
        queue = self._broker.vhost(vhost).queues.get(name)
        if queue is not None:
            for consumer in queue.host.consumers():
                yield self._consumer(queue, consumer)

    def failed_queues(self, vhost: str) -> list[dict[str, Any]]:
        stopped = self._broker.failures.stopped()
        return [describe(failure) for failure in stopped if failure.queue.vhost.name == vhost]

    def retry_failed(self, vhost: str, name: str) -> bool:
        queue = self._broker.vhost(vhost).queues.get(name)
        if queue is None or self._broker.failures.find(queue) is None:
            return False
        self._broker.turn.run(self._broker.failures.retry, queue)
        return True

    def _queue(self, queue: Queue, stats: Stats | None = None) -> QueueView:
        host, record = self._broker.host_parts.begun(queue), queue.record
        leader = self._broker.hosts.leader(queue)
        members = list(queue.members)
        if not members and self.cluster is None and queue.type.replicated:
            members = [self.name]
        ready, unacked = host.ready_count, host.unacked_count
        owner: dict[str, Any] = {}
        if queue.exclusive:
            here = (record.node, record.incarnation) == self._home
            session = self._broker.sessions.get(record.owner) if here else None
            owner = {"name": session.client.name} if session is not None else {"node": record.node}
        keeps_up = 1.0 if host.consumer_count and not ready else 0.0
        return QueueView(
            name=queue.name,
            vhost=queue.vhost.name,
            type=queue.type.name,
            durable=queue.durable,
            auto_delete=queue.auto_delete,
            exclusive=queue.exclusive,
            arguments=dict(queue.arguments),
            node=self._home_of(queue),
            leader=leader or (self.name if members == [self.name] else ""),
            members=members,
            online=self._online(members),
            state="running" if self._broker.failures.find(queue) is None else "crashed",
            policy=None if queue.policies.policy is None else queue.policies.policy.name,
            operator_policy=(
                None if queue.policies.operator_policy is None else queue.policies.operator_policy.name
            ),
            effective_policy_definition=dict(queue.policies.definition),
            consumers=host.consumer_count,
            consumer_capacity=keeps_up,
            consumer_utilisation=keeps_up,
            messages=ready + unacked,
            messages_ready=ready,
            messages_unacknowledged=unacked,
            message_bytes=host.ready_bytes,
            message_bytes_ready=host.ready_bytes,
            message_bytes_ram=host.resident_bytes,
            memory=host.resident_bytes,
            owner_pid_details=owner,
            single_active_consumer_tag=_single_active(queue),
            exclusive_consumer_tag=next(
                (subscription.tag for subscription in queue.subscriptions.values() if subscription.exclusive),
                None,
            ),
            stats={} if stats is None else stats.queue(queue),
            stream=_stream(host) if isinstance(host, StreamHost) else {},
        )

    def _online(self, members: list[str]) -> list[str]:
        return members if self.cluster is None else self.cluster.online(members)

    @property
    def cluster_version(self) -> int:
        """Return the version that all nodes know; see quorum_queue.machine.versions."""
        return self._broker.replication.version

    @property
    def _home(self) -> tuple[str, int]:
        return self._broker.replication.node, self._broker.replication.incarnation

    def exchanges(self, vhost: str, stats: Stats | None = None) -> Iterator[ExchangeView]:
        router = self._broker.vhost(vhost).router
        return (self._exchange(vhost, exchange, stats) for exchange in list(router.exchanges()))

    def exchange_count(self, vhost: str) -> int:
        return self._broker.vhost(vhost).router.exchange_count

    def exchange(self, vhost: str, name: str, stats: Stats | None = None) -> ExchangeView | None:
        exchange = self._broker.vhost(vhost).router.get(name)
        return None if exchange is None else self._exchange(vhost, exchange, stats)

    def _exchange(self, vhost: str, exchange: Exchange, stats: Stats | None = None) -> ExchangeView:
        policies = self._broker.runtime.policies.of_exchange(vhost, exchange.name)
        return ExchangeView(
            name=exchange.name,
            vhost=vhost,
            type=exchange.type,
            durable=exchange.durable or exchange.predeclared,
            auto_delete=exchange.auto_delete,
            internal=exchange.internal,
            arguments=dict(exchange.arguments),
            policy=None if policies.policy is None else policies.policy.name,
            operator_policy=None if policies.operator_policy is None else policies.operator_policy.name,
            effective_policy_definition=dict(policies.definition),
            user_who_performed_action="rmq-internal" if exchange.predeclared else "",
            partitions=partitions_of(self._broker.vhost(vhost), exchange),
            stats={} if stats is None else stats.exchange(exchange),
        )

    def bindings(self, vhost: str) -> Iterator[BindingView]:
        router = self._broker.vhost(vhost).router
        yield from self.bindings_from(vhost, "")
        for exchange in list(router.exchanges()):
            if exchange.name:
                yield from self.bindings_from(vhost, exchange.name)

    def bindings_from(self, vhost: str, source: str) -> Iterator[BindingView]:
        if not source:
            # Every queue is bound to the default exchange by its name, and that can't be undone.
            return (_default_binding(vhost, queue.name) for queue in self._queues(vhost))
        found = self._broker.vhost(vhost).router.bindings(source=source)
        return (_binding(vhost, binding) for binding in found)

    def bindings_to(self, vhost: str, kind: DestinationKind, destination: str) -> Iterator[BindingView]:
        topology = self._broker.vhost(vhost)
        if kind == "queue" and destination in topology.queues:
            yield _default_binding(vhost, destination)
        for binding in topology.router.bindings(kind=kind, destination=destination):
            yield _binding(vhost, binding)

    def _sessions(self, user: str | None = None) -> Iterator[Session]:
        """Yield connections that are logged in, those of one user only if it is given."""
        states = (State.OPENING, State.RUNNING, State.CLOSING)
        for session in list(self._broker.sessions):
            if not isinstance(session, Session) or session.state not in states:
                continue
            if user is None or session.client.username == user:
                yield session

    def connections(self, user: str | None = None, stats: Stats | None = None) -> Iterator[ConnectionView]:
        return (self._connection(session, stats) for session in self._sessions(user))

    def connection(self, name: str, stats: Stats | None = None) -> ConnectionView | None:
        found = (session for session in self._sessions() if session.client.name == name)
        session = next(found, None)
        return None if session is None else self._connection(session, stats)

    def _connection(self, session: Session, stats: Stats | None = None) -> ConnectionView:
        client, limits, incoming = session.client, session.limits, session.incoming
        peer, _, here = client.name.partition(" -> ")
        blocked = incoming.blocked and session.state is State.RUNNING
        return ConnectionView(
            name=client.name,
            user=client.username,
            vhost=session.vhost.name if session.vhost else "",
            peer_host=peer.rpartition(":")[0],
            peer_port=_port(peer),
            host=here.rpartition(":")[0],
            port=_port(here),
            node=self.name,
            state="blocked" if blocked else session.state.value,
            auth_mechanism=client.mechanism,
            channels=len(session.channels),
            channel_max=limits.channel_max,
            frame_max=limits.frame_max,
            timeout=limits.heartbeat_s,
            connected_at=client.connected_at_ms,
            client_properties=client.properties,
            ssl=_port(here) == _port(self._node.amqps_address) != 0,
            user_provided_name=client.given_name or None,
            user_who_performed_action=client.username,
            recv_cnt=incoming.received_count,
            send_cnt=session.outbox.sent_count,
            stats={} if stats is None else stats.connection(session),
            recv_oct=incoming.received_bytes,
            send_oct=session.outbox.sent_bytes,
            send_pend=session.outbox.size,
        )

    def channels(self, user: str | None = None, stats: Stats | None = None) -> Iterator[ChannelView]:
        return (
            self._channel(session, channel, stats)
            for session in self._sessions(user)
            for channel in list(session.channels.values())
        )

    def channels_of(self, connection: str, stats: Stats | None = None) -> Iterator[ChannelView]:
        return (
            self._channel(session, channel, stats)
            for session in self._sessions()
            if session.client.name == connection
            for channel in list(session.channels.values())
        )

    def consumers_on(self, name: str) -> Iterator[ConsumerView | None]:
        """Yield the consumers of a channel, and None for each consumer of others on the same queues."""
        connection, _, number = name.removesuffix(")").rpartition(" (")
        for session in self._sessions():
            channel = session.channels.get(int(number)) if number.isdecimal() else None
            if session.client.name != connection or channel is None:
                continue
            keys = {subscription.key for subscription in channel.subscriptions.values()}
            for queue in list(channel.consumed):
                for consumer in queue.host.consumers():
                    yield self._consumer(queue, consumer) if consumer.key[-4:] in keys else None

    def _channel(self, session: Session, channel: Channel, stats: Stats | None = None) -> ChannelView:
        peer = session.client.name.partition(" -> ")[0]
        return ChannelView(
            name=f"{session.client.name} ({channel.number})",
            number=channel.number,
            user=session.client.username,
            vhost=channel.vhost.name,
            connection_details={
                "name": session.client.name,
                "peer_host": peer.rpartition(":")[0],
                "peer_port": _port(peer),
            },
            user_who_performed_action=session.client.username,
            stats={} if stats is None else stats.channel(channel),
            node=self.name,
            state="closing" if channel.closing else "running",
            confirm=channel.confirms is not None,
            transactional=channel.tx is not None,
            consumer_count=len(channel.subscriptions),
            messages_unacknowledged=channel.unacked.count,
            messages_unconfirmed=0 if channel.confirms is None else channel.confirms.unconfirmed_count,
            messages_uncommitted=0 if channel.tx is None else channel.tx.published_count,
            acks_uncommitted=0 if channel.tx is None else channel.tx.settled_count,
            prefetch_count=channel.prefetch,
            global_prefetch_count=channel.window.limit,
        )

    def consumers(self, vhost: str) -> Iterator[ConsumerView | None]:
        """Yield None before the consumers of each queue."""
        for queue in self._queues(vhost):
            yield None
            for consumer in queue.host.consumers():
                yield self._consumer(queue, consumer)

    def _consumer(self, queue: Queue, consumer: ConsumerState) -> ConsumerView:
        """Of a consumer on another node, show only what its queue knows."""
        # In a cluster the node and its incarnation stand before the key that the consumer has on its node.
        *home, _, number, tag, _ = consumer.key
        node = home[0] if home else self.name
        channel: dict[str, Any] = {"number": number, "node": node}
        arguments: dict[str, object] = {"x-priority": consumer.priority} if consumer.priority else {}
        here = not home or tuple(home) == self._home
        subscription = queue.subscriptions.get(consumer.key[-4:]) if here else None
        if subscription is not None:
            client = subscription.channel.connection.client
            channel["name"] = f"{client.name} ({number})"
            channel["connection_name"] = client.name
            channel["user"] = client.username
            peer = client.name.partition(" -> ")[0]
            channel["peer_host"], channel["peer_port"] = peer.rpartition(":")[0], _port(peer)
            arguments = subscription.arguments
        offset = lag = None
        if isinstance(queue.host, StreamHost):
            offset = queue.host.offset_of(consumer.key)
            lag = None if offset is None else max(queue.host.next_offset - offset, 0)
        status = "waiting"
        if consumer.active:
            status = "single_active" if queue.parsed.single_active_consumer else "up"
        return ConsumerView(
            consumer_tag=tag,
            queue={"name": queue.name, "vhost": queue.vhost.name},
            channel_details=channel,
            ack_required=not consumer.no_ack,
            exclusive=consumer.exclusive,
            active=consumer.active,
            activity_status=status,
            prefetch_count=consumer.prefetch,
            priority=consumer.priority,
            consumer_timeout=0 if consumer.no_ack else self._broker.config.consumer_timeout_ms,
            arguments=arguments,
            offset=offset,
            lag=lag,
        )

    # -- changes --------------------------------------------------------------------------------------------

    async def _propose(self, operation: Operation) -> Result:
        """Have a change made. Raises Unavailable."""
        answers: list[Result | Refused] = []
        answered = trio.Event()

        def done(result: Result | Refused) -> None:
            answers.append(result)
            answered.set()

        self._broker.turn.run(self._broker.propose, operation, done, ACTING.get())
        await answered.wait()
        (result,) = answers
        if isinstance(result, Refused):
            raise Unavailable(result.text)
        return result

    async def create_vhost(
        self, name: str, description: str, tags: tuple[str, ...], default_queue_type: str
    ) -> bool:
        """Return True if it is new. Raises VhostRefused."""
        record = self.vhosts.prepare(name, description, tags, default_queue_type)
        return (await self._propose(PutVhost(record))).changed

    async def delete_vhost(self, name: str) -> None:
        """Delete it with all that is in it; its connections are closed."""
        await self._propose(DeleteVhost(name))

    async def put_user(
        self, name: str, password_hash: str, tags: Iterable[str], *, forced: bool = False
    ) -> bool:
        """Return True if it is new. Raises UserRefused, also for the last administrator unless `forced`."""
        user = self.users.prepare(name, password_hash, tags)
        return (await self._change_user(PutUser(user, forced))).changed

    async def delete_user(self, name: str, *, forced: bool = False) -> None:
        """Delete it with its permissions; its connections are closed. Raises UserRefused as `put_user` does."""
        await self._change_user(DeleteUser(name, forced))

    async def _change_user(self, operation: Operation) -> Result:
        result = await self._propose(operation)
        if result.error:
            raise UserRefused(result.error)
        return result

    async def set_permission(self, user: str, vhost: str, configure: str, write: str, read: str) -> bool:
        """Return True if there were none. Raises InvalidPermission."""
        permission = self.permissions.prepare(user, vhost, configure, write, read)
        return (await self._propose(SetPermission(permission))).changed

    async def clear_permission(self, user: str, vhost: str) -> None:
        await self._propose(ClearPermission(user, vhost))

    async def set_topic_permission(self, user: str, vhost: str, exchange: str, write: str, read: str) -> bool:
        """Return True if there was none. Raises InvalidPermission."""
        permission = self.permissions.prepare_topic(user, vhost, exchange, write, read)
        self._require_parameters()
        return (await self._propose(SetTopicPermission(permission))).changed

    async def clear_topic_permission(self, user: str, vhost: str, exchange: str) -> None:
        """For all exchanges if none is given."""
        self._require_parameters()
        await self._propose(ClearTopicPermission(user, vhost, exchange))

    async def set_parameter(self, record: ParameterRecord) -> bool:
        """Return True if it is new. On this node it is in effect then."""
        return await self._change_parameter(PutParameter(record))

    async def clear_parameter(self, record: ParameterRecord) -> bool:
        """Return True if it was there."""
        return await self._change_parameter(ClearParameter(*record.key))

    async def _change_parameter(self, operation: PutParameter | ClearParameter) -> bool:
        self._require_parameters()
        result = await self._propose(operation)
        if result.error:
            raise NotFound(result.error)
        applied = trio.Event()
        self._broker.turn.run(self._broker.runtime.policies.when_applied, applied.set)
        await applied.wait()
        return result.changed

    @property
    def config(self) -> Config:
        return self._broker.config

    def shovel_statuses(self) -> list[dict[str, Any]]:
        """Return what the shovels tell that this node runs."""
        shovels = self._node.shovels
        return [] if shovels is None else list(shovels.statuses())

    def restart_shovel(self, vhost: str, name: str) -> bool:
        """Return True if this node runs it."""
        shovels = self._node.shovels
        return shovels is not None and shovels.restart(vhost, name)

    def is_traced(self, vhost: str) -> bool:
        return self.parameters.get(GLOBAL, TRACING, vhost) is not None

    async def trace(self, vhost: str, *, on: bool) -> None:
        """Turn the firehose of a vhost on or off. Raises ParameterRefused."""
        if on and not self.is_traced(vhost):
            await self.set_parameter(self.parameters.prepare(GLOBAL, TRACING, vhost, True))
        elif not on and self.is_traced(vhost):
            await self._change_parameter(ClearParameter(GLOBAL, TRACING, vhost))

    @property
    def takes_parameters(self) -> bool:
        """True if all nodes of the cluster know parameters, policies and what else came with them."""
        return self._broker.topology.takes_parameters

    def direct(self, vhost: str) -> Direct:
        """Return a connection of management's own, to declare several things."""
        return Direct(self._broker, vhost, ITSELF)

    def default_queue_type(self, vhost: str) -> str:
        return self._broker.vhost(vhost).default_queue_type

    def _require_parameters(self) -> None:
        if not self._broker.topology.takes_parameters:
            raise Unavailable("not before all nodes of the cluster run this version of mqd")

    async def declare_queue(
        self, vhost: str, name: str, *, durable: bool, auto_delete: bool, arguments: Mapping[str, object]
    ) -> bool:
        """Return True if it is new."""
        new = name not in self._broker.vhost(vhost).queues
        with Direct(self._broker, vhost, ITSELF) as direct:
            await direct.ask(
                methods.make(
                    commands.Queue.Declare,
                    queue=name,
                    durable=durable,
                    auto_delete=auto_delete,
                    arguments=_table(arguments),
                )
            )
        return new

    async def delete_queue(self, vhost: str, name: str, *, if_unused: bool, if_empty: bool) -> None:
        with Direct(self._broker, vhost, ITSELF) as direct:
            await direct.ask(
                methods.make(commands.Queue.Delete, queue=name, if_unused=if_unused, if_empty=if_empty)
            )

    async def purge_queue(self, vhost: str, name: str) -> int:
        with Direct(self._broker, vhost, ITSELF) as direct:
            for answer in await direct.ask(methods.make(commands.Queue.Purge, queue=name)):
                if isinstance(answer, commands.Queue.PurgeOk):
                    return answer.message_count or 0
        return 0

    async def declare_exchange(
        self,
        vhost: str,
        name: str,
        type: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Mapping[str, object],
    ) -> bool:
        """Return True if it is new."""
        new = self._broker.vhost(vhost).router.get(name) is None
        with Direct(self._broker, vhost, ITSELF) as direct:
            await direct.ask(
                methods.make(
                    commands.Exchange.Declare,
                    exchange=name,
                    exchange_type=type,
                    durable=durable,
                    auto_delete=auto_delete,
                    internal=internal,
                    arguments=_table(arguments),
                )
            )
        return new

    async def add_partitions(self, vhost: str, name: str, more: int) -> None:
        """Make a super stream larger. Raises AMQPError as a declare does."""
        result = await self._propose(growth(self._broker.vhost(vhost), name, more))
        if result.error:
            raise PreconditionFailed(result.error)

    async def delete_exchange(self, vhost: str, name: str, *, if_unused: bool) -> None:
        with Direct(self._broker, vhost, ITSELF) as direct:
            await direct.ask(methods.make(commands.Exchange.Delete, exchange=name, if_unused=if_unused))

    async def bind(self, vhost: str, binding: BindingView) -> bool:
        return await self._change_binding(vhost, binding, commands.Queue.Bind, commands.Exchange.Bind)

    async def unbind(self, vhost: str, binding: BindingView) -> bool:
        return await self._change_binding(vhost, binding, commands.Queue.Unbind, commands.Exchange.Unbind)

    async def _change_binding(
        self,
        vhost: str,
        binding: BindingView,
        of_queue: type[commands.Queue.Bind | commands.Queue.Unbind],
        of_exchange: type[commands.Exchange.Bind | commands.Exchange.Unbind],
    ) -> bool:
        key, arguments = binding.routing_key, _table(binding.arguments)
        method: base.Frame
        if binding.destination_type == "queue":
            method = methods.make(
                of_queue,
                queue=binding.destination,
                exchange=binding.source,
                routing_key=key,
                arguments=arguments,
            )
        else:
            method = methods.make(
                of_exchange,
                destination=binding.destination,
                source=binding.source,
                routing_key=key,
                arguments=arguments,
            )
        with Direct(self._broker, vhost, ITSELF) as direct:
            await direct.ask(method)
        return True

    def close_connection(self, name: str, reason: str) -> bool:
        """Return True if there was one of this name."""
        found = [session for session in self._sessions() if session.client.name == name]
        for session in found:
            self._broker.turn.run(session.force_close, reason)
        return bool(found)

    # -- messages -------------------------------------------------------------------------------------------

    async def publish(
        self,
        vhost: str,
        exchange: str,
        routing_key: str,
        properties: Mapping[str, object],
        body: bytes,
        user: str,
        access: str = "",
    ) -> bool:
        """Return True if it reached a queue. `access`: see Session.logged_in.

        Properties have their AMQP names (`content_type`, `headers` …).
        """
        if self._broker.alarms.active:
            raise PreconditionFailed(f"publishers are blocked: {self._broker.alarms.reason}")
        method = methods.make(
            commands.Basic.Publish, exchange=exchange, routing_key=routing_key, mandatory=True
        )
        with Direct(self._broker, vhost, user, access) as direct:
            return await direct.publish(method, properties, body)

    async def get(self, vhost: str, queue: str, count: int, fate: Fate) -> list[MessageView]:
        got: list[MessageView] = []
        size = tag = 0
        with Direct(self._broker, vhost, ITSELF) as direct:
            while len(got) < count and size < GET_BYTES_MAX:
                taken = await direct.get(queue)
                if taken is None:
                    break
                told, message = taken
                tag = taken.tag
                size += len(message.body)
                got.append(
                    MessageView(
                        exchange=told.exchange or "",
                        routing_key=told.routing_key or "",
                        redelivered=bool(told.redelivered),
                        message_count=told.message_count or 0,
                        properties=_properties(message.properties),
                        body=message.body,
                    )
                )
            if tag and fate != "requeue":
                # Messages that are not settled go back to their place when the session ends.
                ack, reject = commands.Basic.Ack(tag, True), commands.Basic.Nack(tag, True, False)
                await direct.ask(ack if fate == "ack" else reject)
        return got

    async def read(
        self, vhost: str, stream: str, arguments: Mapping[str, object], count: int
    ) -> list[tuple[int, MessageView]]:
        """Return messages of a stream with their offsets, as a consumer with these arguments gets them.

        Raises PreconditionFailed for what is no stream, and for arguments that are none.
        """
        queue = self._broker.vhost(vhost).queues.get(stream)
        if queue is None:
            raise NotFound(f"no queue '{stream}' in vhost '{vhost}'")
        if not isinstance(queue.host, StreamHost):
            raise PreconditionFailed(f"queue '{stream}' in vhost '{vhost}' is no stream, or has failed here")
        end, start = queue.host.next_offset, arguments.get("x-stream-offset")
        if end <= queue.host.first_offset or (isinstance(start, int) and start >= end):
            return []
        with Direct(self._broker, vhost, ITSELF) as direct:
            found = await direct.read(stream, arguments, count, GET_BYTES_MAX, end)
        return [
            (
                each.offset,
                MessageView(
                    exchange=each.deliver.exchange or "",
                    routing_key=each.deliver.routing_key or "",
                    redelivered=False,
                    message_count=0,
                    properties=_properties(each.content.properties),
                    body=each.content.body,
                ),
            )
            for each in found
            # A message that came in meanwhile may be among them.
            if each.offset < end
        ]

    async def move(self, vhost: str, source: str, destination: str, count: int) -> tuple[int, int]:
        """Move the first messages of a queue to another one; return how many went, and how many it refused.

        A message leaves the one when the other has it for good. If the node dies in between it is in both.
        """
        if self._broker.alarms.active:
            raise PreconditionFailed(f"publishers are blocked: {self._broker.alarms.reason}")
        queue = self._broker.vhost(vhost).queues.get(destination)
        if queue is None:
            raise NotFound(f"no queue '{destination}' in vhost '{vhost}'")
        if queue.type.is_group:
            raise refuse_publish(queue)
        moved = 0
        with Direct(self._broker, vhost, ITSELF) as direct:
            await direct.ask(commands.Confirm.Select())
            while moved < count:
                got = await self._take_some(direct, source, min(count - moved, MOVED_AT_ONCE))
                if not got:
                    break
                taken = await direct.hand_on(queue, got, self.settled)
                moved += taken
                if taken < len(got):
                    return moved, len(got) - taken
        return moved, 0

    async def _take_some(self, direct: Direct, queue: str, count: int) -> list[Got]:
        got: list[Got] = []
        size = 0
        while len(got) < count and size < GET_BYTES_MAX:
            taken = await direct.get(queue)
            if taken is None:
                break
            got.append(taken)
            size += len(taken.content.body)
        return got

    def explain(
        self, vhost: str, exchange: str, routing_key: str, properties: Mapping[str, object]
    ) -> Explanation:
        """Return where a message would go, and why. Raises PreconditionFailed for properties that are none."""
        encoded = encode_properties(properties, self._broker.config.table_depth_max)
        router = self._broker.vhost(vhost).router
        return explain(router, exchange, routing_key, routing_view(encoded))


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _default_binding(vhost: str, queue: str) -> BindingView:
    return BindingView(source="", vhost=vhost, destination=queue, destination_type="queue", routing_key=queue)


def _binding(vhost: str, binding: Binding) -> BindingView:
    return BindingView(
        source=binding.source,
        vhost=vhost,
        destination=binding.destination,
        destination_type=binding.kind,
        routing_key=binding.routing_key,
        arguments=dict(binding.arguments),
    )


def _port(address: str) -> int:
    port = address.rpartition(":")[2]
    return int(port) if port.isdigit() else 0


def _stream(host: StreamHost) -> dict[str, Any]:
    host.look()
    return {
        "first_offset": host.first_offset,
        "next_offset": host.next_offset,
        "segments": host.segment_count,
        "oldest_timestamp": host.first_ms,
        "lost_messages": host.lost_count,
        "compression": host.codec,
        "compacted_offset": None if host.compacting is None else host.compacting.stop,
    }


def _single_active(queue: Queue) -> str | None:
    """Tag of the consumer that has a queue for itself for as long as it stays."""
    if not queue.parsed.single_active_consumer:
        return None
    return next((consumer.key[-2] for consumer in queue.host.consumers() if consumer.active), None)


def _table(arguments: Mapping[str, object]) -> Any:
    return dict(arguments)


def _properties(properties: Properties) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name in PROPERTIES:
        if name not in properties.raw:
            continue
        if name == "headers":
            told[name] = properties.headers
        elif name in ("delivery_mode", "priority"):
            told[name] = properties.octet(name)
        elif name == "timestamp":
            told[name] = int.from_bytes(properties.raw[name], "big")
        else:
            told[name] = properties.text(name)
    return told
