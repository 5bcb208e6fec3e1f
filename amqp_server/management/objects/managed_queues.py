"""Queues as the management API shows and changes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import trio
from pamqp import commands

from amqp_server.broker.access.permissions import ITSELF
from amqp_server.broker.broker import Broker
from amqp_server.broker.recovery.failures import describe
from amqp_server.broker.topology.queue import Queue
from amqp_server.management.objects.internal_session import ANSWER_S, Direct
from amqp_server.management.objects.views import QueueView
from amqp_server.management.resources.explained import explain
from amqp_server.management.statistics.stats import Stats
from amqp_server.streams.local_host import StreamHost
from amqp_server.wire import content, methods
from quorum_queue.local_host import LocalHost
from quorum_queue.ports import Host

if TYPE_CHECKING:
    from amqp_server.cluster.administration import Administration


class ManagedQueues:
    def __init__(self, broker: Broker, cluster: Administration | None) -> None:
        self._broker = broker
        #: None for a node without a cluster.
        self.cluster = cluster
        self._name = broker.config.node

    # Iterations here go over the queues that existed at their start and skip those deleted since: the broker
    # does other work between two items. Most of an item's cost is that of showing it.

    def each(self, vhost: str) -> Iterator[Queue]:
        """Yield queues; `view` makes rows of them later, and only of those that are wanted."""
        topology = self._broker.vhost(vhost)
        for queue in list(topology.queues.values()):
            if topology.queues.get(queue.name) is queue:
                yield queue

    def views(self, vhost: str, stats: Stats | None = None) -> Iterator[QueueView]:
        return (self.view(queue, stats) for queue in self.each(vhost))

    def view(self, queue: Queue, stats: Stats | None = None) -> QueueView:
        host, record = self._broker.host_parts.begun(queue), queue.record
        leader = self._broker.hosts.leader(queue)
        members = self._members(queue)
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
            node=self.home_of(queue),
            leader=leader or (self._name if members == [self._name] else ""),
            members=members,
            online=self._online(members),
            state=self.state(queue),
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
            message_bytes=host.ready_bytes + host.unacked_bytes,
            message_bytes_ready=host.ready_bytes,
            message_bytes_unacknowledged=host.unacked_bytes,
            message_bytes_ram=host.resident_bytes,
            memory=host.resident_bytes,
            owner_pid_details=owner,
            single_active_consumer_tag=_single_active(queue),
            exclusive_consumer_tag=next(
                (subscription.tag for subscription in queue.subscriptions.values() if subscription.exclusive),
                None,
            ),
            head_message_timestamp=_head_timestamp(host) if isinstance(host, LocalHost) else None,
            stats={} if stats is None else stats.queue(queue),
            stream=_stream(host) if isinstance(host, StreamHost) else {},
        )

    def hosts(self, vhost: str, *, own: bool = False) -> Iterator[Host]:
        """Yield the host of each queue, which counts messages and consumers; with `own`, only of this node's
        queues.
        """
        return (queue.host for queue in self.each(vhost) if not own or self.home_of(queue) == self._name)

    def count(self, vhost: str) -> int:
        return len(self._broker.vhost(vhost).queues)

    def home_of(self, queue: Queue) -> str:
        """Return the node that reports a queue: its leader, or the node that has it."""
        return self._broker.hosts.leader(queue) or queue.node or queue.record.leader or self._name

    def state(self, queue: Queue) -> str:
        return "running" if self._broker.failures.find(queue) is None else "crashed"

    def find(self, vhost: str, name: str, stats: Stats | None = None) -> QueueView | None:
        queue = self._broker.vhost(vhost).queues.get(name)
        return None if queue is None else self.view(queue, stats)

    def has(self, vhost: str, name: str) -> bool:
        return name in self._broker.vhost(vhost).queues

    def failed(self, vhost: str) -> list[dict[str, Any]]:
        stopped = self._broker.failures.stopped()
        return [describe(failure) for failure in stopped if failure.queue.vhost.name == vhost]

    def retry(self, vhost: str, name: str) -> bool:
        queue = self._broker.vhost(vhost).queues.get(name)
        if queue is None or self._broker.failures.find(queue) is None:
            return False
        self._broker.turn.run(self._broker.failures.retry, queue)
        return True

    def get(self, vhost: str, name: str) -> Queue | None:
        return self._broker.vhost(vhost).queues.get(name)

    def is_lost(self, queue: Queue, missing: Collection[str]) -> bool:
        """True if only missing nodes have the queue."""
        return self.home_of(queue) in missing and not self._online(self._members(queue))

    def _members(self, queue: Queue) -> list[str]:
        members = list(queue.members)
        if not members and self.cluster is None and queue.type.replicated:
            members = [self._name]
        return members

    def _online(self, members: list[str]) -> list[str]:
        return members if self.cluster is None else self.cluster.online(members)

    @property
    def _home(self) -> tuple[str, int]:
        return self._broker.replication.node, self._broker.replication.incarnation

    async def declare(
        self, vhost: str, name: str, *, durable: bool, auto_delete: bool, arguments: Mapping[str, object]
    ) -> bool:
        """Return True if the queue is new."""
        new = name not in self._broker.vhost(vhost).queues
        with Direct(self._broker, vhost, ITSELF) as direct:
            await direct.ask(
                methods.make(
                    commands.Queue.Declare,
                    queue=name,
                    durable=durable,
                    auto_delete=auto_delete,
                    arguments=dict(arguments),
                )
            )
        return new

    async def delete(self, vhost: str, name: str, *, if_unused: bool, if_empty: bool) -> None:
        with Direct(self._broker, vhost, ITSELF) as direct:
            await direct.ask(
                methods.make(commands.Queue.Delete, queue=name, if_unused=if_unused, if_empty=if_empty)
            )

    async def catch_up(self) -> None:
        """Return when this node knows all declarations and policies that clients of any node have had answers
        to, and its queues have them; or when it does not learn that in time.
        """
        broker, answered = self._broker, trio.Event()

        def caught_up(known: bool) -> None:
            broker.runtime.policies.when_applied(answered.set)

        broker.turn.run(broker.replication.catch_up, caught_up)
        with trio.move_on_after(ANSWER_S):
            await answered.wait()

    async def explain(self, queue: Queue) -> dict[str, Any]:
        """Explain a queue; see explained."""
        members = self._members(queue)
        placed = {
            "name": queue.name,
            "vhost": queue.vhost.name,
            "type": queue.type.name,
            "node": self.home_of(queue),
            "leader": self._broker.hosts.leader(queue) or (self._name if members == [self._name] else ""),
            "members": members,
            "online": self._online(members),
            "asked_node": self._name,
        }
        return placed | await explain(self._broker, queue)

    async def purge(self, vhost: str, name: str) -> int:
        with Direct(self._broker, vhost, ITSELF) as direct:
            for answer in await direct.ask(methods.make(commands.Queue.Purge, queue=name)):
                if isinstance(answer, commands.Queue.PurgeOk):
                    return answer.message_count or 0
        return 0


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


def _head_timestamp(host: LocalHost) -> int | None:
    """The timestamp of the next message to be delivered, if it has one and is in memory."""
    head = host.machine.ready.head()
    if head is None or head.contents is None:
        return None
    return content.Properties.parse(content.header_of(head.contents[0]), checked=True).timestamp


def _single_active(queue: Queue) -> str | None:
    """Tag of the active consumer of a queue with a single active consumer."""
    if not queue.parsed.single_active_consumer:
        return None
    return next((consumer.key[-2] for consumer in queue.host.consumers() if consumer.active), None)
