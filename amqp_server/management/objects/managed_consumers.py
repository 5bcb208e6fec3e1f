"""Consumers as the management API shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amqp_server.broker.broker import Broker
from amqp_server.broker.topology.queue import Queue
from amqp_server.management.objects.managed_connections import ManagedConnections, port_of
from amqp_server.management.objects.views import ConsumerView
from amqp_server.streams.local_host import StreamHost
from quorum_queue.ports import ConsumerState


class ManagedConsumers:
    def __init__(self, broker: Broker, connections: ManagedConnections) -> None:
        self._broker = broker
        self._connections = connections
        self._name = broker.config.node

    def views(self, vhost: str) -> Iterator[ConsumerView | None]:
        """Yield None before the consumers of each queue."""
        for queue in list(self._broker.vhost(vhost).queues.values()):
            yield None
            if queue.deleted:
                continue
            for consumer in queue.host.consumers():
                yield self._consumer(queue, consumer)

    def of_queue(self, vhost: str, name: str) -> Iterator[ConsumerView]:
        queue = self._broker.vhost(vhost).queues.get(name)
        if queue is not None:
            for consumer in queue.host.consumers():
                yield self._consumer(queue, consumer)

    def of_channel(self, name: str) -> Iterator[ConsumerView | None]:
        """Yield the consumers of a channel, and None for each consumer of others on the same queues."""
        connection, _, number = name.removesuffix(")").rpartition(" (")
        for session in self._connections.sessions():
            channel = session.channels.get(int(number)) if number.isdecimal() else None
            if session.client.name != connection or channel is None:
                continue
            keys = {subscription.key for subscription in channel.subscriptions.values()}
            for queue in list(channel.consumed):
                for consumer in queue.host.consumers():
                    yield self._consumer(queue, consumer) if consumer.key[-4:] in keys else None

    def _consumer(self, queue: Queue, consumer: ConsumerState) -> ConsumerView:
        """Return the view of a consumer; of one on another node it has only what the queue knows."""
        # In a cluster the key begins with the node and its incarnation; the consumer's key on its node
        # follows.
        *home, _, number, tag, _ = consumer.key
        replication = self._broker.replication
        node = home[0] if home else self._name
        channel: dict[str, Any] = {"number": number, "node": node}
        arguments: dict[str, object] = {"x-priority": consumer.priority} if consumer.priority else {}
        here = not home or tuple(home) == (replication.node, replication.incarnation)
        subscription = queue.subscriptions.get(consumer.key[-4:]) if here else None
        if subscription is not None:
            client = subscription.channel.connection.client
            channel["name"] = f"{client.name} ({number})"
            channel["connection_name"] = client.name
            channel["user"] = client.username
            peer = client.name.partition(" -> ")[0]
            channel["peer_host"], channel["peer_port"] = peer.rpartition(":")[0], port_of(peer)
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
