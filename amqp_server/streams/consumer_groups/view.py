"""The view of a consumer group that this node has a copy of: its streams, unread and unacked messages, and
members.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amqp_server.streams.consumer_groups.deliveries import Deliveries
from amqp_server.streams.consumer_groups.member_reading import Stream, end_of
from amqp_server.streams.consumer_groups.options import GroupOptions
from amqp_server.streams.consumer_groups.takers import ClientTaker
from amqp_server.streams.local_host import StreamHost
from quorum_queue.cluster.queues.deferred_host import DeferredHost
from quorum_queue.cluster.replica_group import Group
from quorum_queue.consumer_groups.replica import GroupReplica
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import ConsumerState


class GroupView(DeferredHost):
    """The part of the group's host for operators. See ConsumerGroupMemberHost."""

    #: For mypyc; see ConsumerGroupMemberHost.closed.
    __deletable__ = ("group",)

    group: Group
    options: GroupOptions
    replica: GroupReplica
    _settings: Settings
    #: Returns the current partitions of the topology.
    _streams: Callable[[], list[Any]]
    #: This node and its incarnation.
    own: tuple[str, int]
    _deliveries: Deliveries

    @property
    def title(self) -> str:
        return f"consumer group '{self.queue.name}' in vhost '{self.queue.vhost.name}'"

    @property
    def settings(self) -> Settings:
        return self._settings

    def configure(self, settings: Settings) -> None:
        self._settings = settings

    def stream_hosts(self) -> dict[int, StreamHost]:
        """Return what this node knows of the streams, by their ids."""
        return {each.queue_id: each.host for each in self._streams() if isinstance(each.host, StreamHost)}

    @property
    def ready_count(self) -> int:
        hosts, count = self.stream_hosts(), 0
        for stream_id, partition in self.replica.group.partitions.items():
            host = hosts.get(stream_id)
            if host is not None:
                count += partition.unread(host.first_offset, end_of(host))
        return count

    @property
    def ready_bytes(self) -> int:
        return 0

    @property
    def unacked_count(self) -> int:
        return sum([each.held.count for each in self.replica.group.partitions.values()])

    @property
    def unacked_bytes(self) -> int:
        return 0

    @property
    def consumer_count(self) -> int:
        return len(self.replica.group.members)

    def consumers(self) -> list[ConsumerState]:
        # Only the consumer's own node knows whether it needs acks.
        takers, own = self._deliveries.takers, self.own
        found: list[ConsumerState] = []
        for each in self.replica.group.members.values():
            taker = takers.get(each.key[2:]) if each.key[:2] == own else None
            no_ack = isinstance(taker, ClientTaker) and taker.no_ack
            found.append(ConsumerState(each.key, no_ack, False, each.prefetch, 0, bool(each.owned)))
        return found

    def touch(self) -> None:
        """Does nothing: a group has no lease."""

    def look(self) -> None:
        """An operator looks at the group: refresh the figures of its streams."""
        for host in self.stream_hosts().values():
            host.look()

    def stream(self, stream_id: int) -> Stream | None:
        """Return a stream of the group; None if this node does not know of it."""
        return next((each for each in self._streams() if each.queue_id == stream_id), None)


__all__ = ["GroupView"]
