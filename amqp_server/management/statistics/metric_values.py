"""The values of a node's metrics. Reading is quick; nothing here awaits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from amqp_server.broker.dead_letter import DeadLetterSender
from amqp_server.broker.declared.queue_types import QUEUE_TYPES
from amqp_server.broker.topology.queue import Queue
from amqp_server.broker.traffic import Ended, MessageSizes, Traffic
from amqp_server.conditions import CONDITIONS
from amqp_server.config import VERSION
from amqp_server.connection.session import Session, State
from amqp_server.descriptors import ALARM
from amqp_server.management.request.identity import cluster_id, cluster_name
from amqp_server.streams.local_host import StreamHost
from exchanges.router import Exchange
from persistence.commits.committing import Syncs
from persistence.own_process import files_limit, open_files

if TYPE_CHECKING:
    from amqp_server.management.parts import ManagedParts

Values = tuple[float, ...]
OPEN = (State.OPENING, State.RUNNING, State.CLOSING)


class OwnMetric(NamedTuple):
    """A metric of mqd's own, with its labels and values."""

    name: str
    kind: str
    help: str
    values: list[tuple[dict[str, str], float]]
    #: The data of a histogram.
    syncs: Syncs | None = None


def _one(name: str, kind: str, text: str, value: float) -> OwnMetric:
    return OwnMetric(name, kind, text, [({}, value)])


class Looked:
    """The sums of one look at all clients and queues."""

    def __init__(self) -> None:
        self.connections = self.channels = self.consumers = self.publishers = 0
        #: Messages that open channels have published in confirm mode.
        self.expecting = 0
        self.traffic = Traffic()
        self.streams = self.segments = self.stream_bytes = 0
        self.remote_segments = self.remote_bytes = 0
        self.groups = self.led = self.leaderless = 0
        #: Age of the oldest ready message of all queues.
        self.oldest_age_s = 0.0

    def at_session(self, session: Session) -> None:
        self.connections += 1
        for channel in session.channels.values():
            self.channels += 1
            self.consumers += len(channel.subscriptions)
            if channel.closed:
                continue
            self.traffic.add(channel.counted())
            self.publishers += channel.traffic.publish > 0
            if channel.confirms is not None:
                self.expecting += channel.confirms.numbered_count

    def at_stream(self, host: StreamHost) -> None:
        self.streams += 1
        self.segments += host.segment_count
        self.stream_bytes += host.ready_bytes
        if host.tier is not None:
            _, segments, size = host.tier_figures()
            self.remote_segments += segments
            self.remote_bytes += size


class Measures:
    def __init__(self, parts: ManagedParts) -> None:
        self._parts = parts
        self._broker = parts.broker
        self._cluster = parts.cluster
        self.node = parts.config.node
        self.version = VERSION

    @property
    def ended(self) -> Ended:
        return self._broker.counts.ended

    @property
    def message_sizes(self) -> MessageSizes:
        return self._broker.counts.message_sizes

    def cluster_name(self) -> str:
        return cluster_name(self._parts)

    def cluster_id(self) -> str:
        return cluster_id(self._parts)

    # -- of the node -----------------------------------------------------------------------------------------

    def node_values(self) -> Values:
        """Return the values of metrics.NODE."""
        watch, alarms = self._parts.resources, self._broker.alarms.names()
        limit = files_limit()
        return (
            open_files(),
            limit,
            len(self._broker.sessions),
            limit,
            watch.memory_bytes,
            watch.memory_limit_bytes,
            watch.disk_free_bytes,
            watch.disk_free_min_bytes,
            round(time.monotonic() - self._parts.began, 3),
            int(ALARM in alarms),
            int(any(name.startswith("disk") for name in alarms)),
            int("memory" in alarms),
        )

    def churn_values(self) -> Values:
        """Return the values of metrics.CHURN."""
        return self.ended.churn()

    def disk_values(self) -> Values:
        """Return the values of metrics.DISK."""
        syncs = self._parts.commits.syncs
        return syncs.count, round(syncs.seconds, 6), syncs.count

    def login_values(self) -> dict[str, Values]:
        """Return the values of metrics.LOGINS by protocol."""
        return {
            protocol: (logins.accepted + logins.refused, logins.accepted, logins.refused)
            for protocol, logins in self.ended.logins().items()
        }

    def object_values(self, looked: Looked) -> Values:
        """Return the values of metrics.OBJECTS."""
        return looked.connections, looked.channels, looked.consumers, self._broker.counts.queues

    def publish_values(self, looked: Looked) -> Values:
        """Return the values of metrics.GLOBAL_PUBLISHES."""
        traffic, expecting = looked.traffic, self.ended.expecting + looked.expecting
        dropped, returned = traffic.drop_unroutable, traffic.return_unroutable
        return (
            traffic.publish,
            expecting,
            traffic.publish - dropped - returned,
            dropped,
            returned,
            traffic.confirm,
        )

    def ended_by_type(self) -> dict[str, Traffic]:
        """Return the counts of messages that clients of this node got from deleted queues, by queue type, in
        separate counters.
        """
        found: dict[str, Traffic] = {}
        for name in QUEUE_TYPES:
            found[name] = Traffic()
            before = self.ended.by_type.get(name)
            if before is not None:
                found[name].add(before)
        return found

    # -- of objects ------------------------------------------------------------------------------------------

    def sessions(self) -> Iterator[Session]:
        for session in self._broker.sessions:
            if isinstance(session, Session) and session.state in OPEN and session.is_open:
                yield session

    def queues(self) -> Iterator[tuple[Queue, bool]]:
        """Yield all queues, each with True if this node is the one that reports it."""
        hosts = self._broker.hosts
        for vhost in list(self._broker.vhosts.values()):
            for queue in list(vhost.queues.values()):
                if not queue.deleted:
                    yield queue, (hosts.leader(queue) or queue.node or self.node) == self.node

    def raft_values(self, queue: Queue, looked: Looked) -> Values | None:
        """Return the values of metrics.RAFT for this node's member of a queue."""
        grouped = None if self._cluster is None else self._cluster.hosts.grouped.get(queue.queue_id)
        if grouped is None:
            return None
        group = grouped.group
        core = group.core
        looked.groups += 1
        looked.led += core.leader == self.node
        looked.leaderless += not core.leader
        told = core.term, group.snapshot_index, group.applied, core.commit, core.log.stable_index
        # Each value appears under two names.
        return told + told

    def vhosts(self) -> list[str]:
        return [vhost.name for vhost in self._broker.vhost_records]

    def exchanges(self) -> Iterator[tuple[str, Exchange, int]]:
        """Yield (vhost, exchange, number of bindings whose source it is)."""
        for vhost in list(self._broker.vhosts.values()):
            for exchange in list(vhost.router.exchanges()):
                yield vhost.name, exchange, vhost.router.count_from(exchange.name)

    def dead_letters(self) -> Mapping[tuple[str, str, str], int]:
        """Return the numbers of dead letters by type of queue, strategy and reason."""
        letters = self._broker.services.dead_letters
        counts = letters.counts if isinstance(letters, DeadLetterSender) else {}
        return {(type_, strategy, reason): count for (type_, strategy, reason), count in counts.items()}

    # -- of mqd's own ----------------------------------------------------------------------------------------

    def own(self, looked: Looked) -> Iterator[OwnMetric]:
        yield from self._store()
        yield from self._memory()
        yield _one(
            "mqd_oldest_message_age_seconds",
            "gauge",
            "Age of the oldest ready message in the queues that this node reports",
            looked.oldest_age_s,
        )
        yield _one("mqd_streams", "gauge", "Streams on this node", looked.streams)
        yield _one("mqd_stream_segments", "gauge", "Segments of all streams", looked.segments)
        yield _one("mqd_stream_bytes", "gauge", "Bytes of all streams", looked.stream_bytes)
        yield _one("mqd_stream_remote_segments", "gauge", "Segments in object stores", looked.remote_segments)
        yield _one("mqd_stream_remote_bytes", "gauge", "Bytes in object stores", looked.remote_bytes)
        if self._cluster is not None:
            yield from self._links()
            yield from self._groups(looked)

    def _store(self) -> Iterator[OwnMetric]:
        parts = self._parts
        yield OwnMetric(
            "mqd_commit_seconds",
            "histogram",
            "Time from the end of a turn to the sync of its commit",
            [],
            parts.commits.syncs,
        )
        waiting, high = parts.backpressure.waiting_bytes, parts.backpressure.high_bytes
        yield _one("mqd_unsynced_bytes", "gauge", "Published bytes that are not safe yet", waiting)
        yield _one(
            "mqd_unsynced_high_bytes", "gauge", "Unsynced bytes above which publishers are not read", high
        )
        failed = len(list(self._broker.failures.stopped()))
        raised = {name for name, _, _ in self._broker.alarms.told()}
        yield OwnMetric(
            "mqd_alarm",
            "gauge",
            "1 while the alarm, which blocks nobody, stands on this node",
            [({"alarm": name}, int(name in raised)) for name in CONDITIONS],
        )
        yield _one(
            "mqd_failed_queues", "gauge", "Queues that failed on this node and are stopped here", failed
        )
        paused = self._broker.counts.paused_queues
        yield _one("mqd_paused_queues", "gauge", "Queues that operators have paused, on any node", paused)

    def _memory(self) -> Iterator[OwnMetric]:
        memory = self._broker.services.memory
        yield _one("mqd_body_memory_bytes", "gauge", "Memory that message bodies take up", memory.used)
        yield _one(
            "mqd_body_memory_limit_bytes",
            "gauge",
            "Memory for message bodies, above which queues are paged out",
            memory.budget_bytes,
        )
        yield _one("mqd_paged_out_bytes_total", "counter", "Bodies that left memory", memory.paged_out_bytes)
        letters = self._broker.services.dead_letters
        if isinstance(letters, DeadLetterSender):
            yield _one(
                "mqd_dead_letter_cycles_total",
                "counter",
                "Dead letters that a queue did not get because the message had died there before",
                letters.cycles,
            )
        memo = self._broker.memo
        yield _one("mqd_memo_bytes", "gauge", "Memory of remembered publish frames", memo.used)

    def _links(self) -> Iterator[OwnMetric]:
        assert self._cluster is not None
        mesh, others = self._cluster.mesh, [name for name in self._cluster.roster.nodes if name != self.node]
        connected = mesh.connected()
        yield OwnMetric(
            "mqd_link_up",
            "gauge",
            "1 if there is a link with the node",
            [({"peer": name}, int(name in connected)) for name in others],
        )
        yield OwnMetric(
            "mqd_link_pending_bytes",
            "gauge",
            "Bytes that wait for the link",
            [({"peer": name}, mesh.pending_bytes(name)) for name in others],
        )

    def _groups(self, looked: Looked) -> Iterator[OwnMetric]:
        assert self._cluster is not None
        replicas = self._cluster.replicas
        yield _one("mqd_raft_groups", "gauge", "Quorum queues with a member on this node", looked.groups)
        yield _one("mqd_raft_groups_led", "gauge", "Quorum queues that this node leads", looked.led)
        yield _one(
            "mqd_raft_groups_without_leader",
            "gauge",
            "Quorum queues here that know no leader",
            looked.leaderless,
        )
        yield _one(
            "mqd_raft_flight_bytes",
            "gauge",
            "Bytes published to replicated queues that are not applied here",
            replicas.flight_bytes,
        )
        yield _one(
            "mqd_cluster_majority",
            "gauge",
            "1 if this node can change the topology",
            int(not self._cluster.administration.obstacle()),
        )
        lost = sum(
            len(replicas.lost_entries.waiting_for_operator(group_id))
            for group_id in replicas.lost_entries.groups_with_losses()
        )
        yield _one("mqd_lost_entries", "gauge", "Entries that wait for an operator to give them up", lost)
        yield _one("mqd_disk_stalled", "gauge", "1 if the disk takes no writes", int(replicas.stalled))
