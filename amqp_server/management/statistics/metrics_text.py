"""Metrics in Prometheus' text format, under the names of rabbitmq_prometheus, and mqd's own under `mqd_`.

The text is made here, and not by a client library: a scrape of a thousand queues has 30,000 lines, and
clients must not wait for it. So a step makes a few hundred lines, and the labels of an object are made only
once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from amqp_server.broker.traffic import SIZE_BOUNDS, Traffic
from amqp_server.management.request.time_slices import Slices
from amqp_server.management.statistics.head_timestamp import head_timestamp
from amqp_server.management.statistics.metric_values import Looked, Measures, OwnMetric
from amqp_server.streams.local_host import StreamHost
from persistence.commits.committing import SYNC_BOUNDS_S

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.channel.channel import Channel
    from amqp_server.connection.session import Session

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX, DETAILED_PREFIX = "rabbitmq_", "rabbitmq_detailed_"
HEAD_TIMESTAMP, OLDEST_AGE = "queue_head_message_timestamp", "mqd_queue_oldest_message_age_seconds"
#: Lines that are made in one step.
LINES_AT_ONCE = 250


class Metric(NamedTuple):
    #: Family of /metrics/detailed that it belongs to.
    family: str
    name: str
    kind: str
    help: str

    def shown(self, prefix: str) -> str:
        """Return its name with this prefix; what RabbitMQ does not have begins with mqd_ everywhere."""
        return self.name if self.name.startswith("mqd_") else prefix + self.name


def _metrics(family: str, kind: str, *told: tuple[str, str]) -> tuple[Metric, ...]:
    return tuple(Metric(family, name, kind, text) for name, text in told)


# -- of the node ---------------------------------------------------------------------------------------------

NODE = (
    *_metrics(
        "node_metrics",
        "gauge",
        ("process_open_fds", "Open file descriptors"),
        ("process_max_fds", "Open file descriptors limit"),
        ("process_open_tcp_sockets", "Open TCP sockets"),
        ("process_max_tcp_sockets", "Open TCP sockets limit"),
        ("process_resident_memory_bytes", "Memory used in bytes, without mapped files"),
        ("resident_memory_limit_bytes", "Memory high watermark in bytes"),
        ("disk_space_available_bytes", "Disk space available in bytes"),
        ("disk_space_available_limit_bytes", "Free disk space low watermark in bytes"),
        ("erlang_uptime_seconds", "Node uptime"),
    ),
    *_metrics(
        "alarms",
        "untyped",
        ("alarms_file_descriptor_limit", "is 1 if file descriptor limit alarm is in effect"),
        ("alarms_free_disk_space_watermark", "is 1 if free disk space watermark alarm is in effect"),
        ("alarms_memory_used_watermark", "is 1 if VM memory watermark alarm is in effect"),
    ),
)
CHURN = _metrics(
    "connection_churn_metrics",
    "counter",
    ("connections_opened_total", "Total number of connections opened"),
    ("connections_closed_total", "Total number of connections closed or terminated"),
    ("channels_opened_total", "Total number of channels opened"),
    ("channels_closed_total", "Total number of channels closed"),
    ("queues_declared_total", "Total number of queues declared"),
    ("queues_created_total", "Total number of queues created"),
    ("queues_deleted_total", "Total number of queues deleted"),
)
DISK = _metrics(
    "node_persister_metrics",
    "counter",
    ("io_sync_ops_total", "Total number of I/O sync operations"),
    ("io_sync_time_seconds_total", "Total I/O sync time"),
    ("schema_db_disk_tx_total", "Total number of commits of the store"),
)
LOGINS = _metrics(
    "auth_attempt_metrics",
    "counter",
    ("auth_attempts_total", "Total number of authorization attempts"),
    ("auth_attempts_succeeded_total", "Total number of successful authentication attempts"),
    ("auth_attempts_failed_total", "Total number of failed authentication attempts"),
)
#: Metrics that are only aggregated.
OBJECTS = _metrics(
    "",
    "gauge",
    ("connections", "Connections currently open"),
    ("channels", "Channels currently open"),
    ("consumers", "Consumers currently connected"),
    ("queues", "Queues available"),
)
GLOBAL_PUBLISHES = _metrics(
    "",
    "counter",
    ("global_messages_received_total", "Total number of messages received from publishers"),
    (
        "global_messages_received_confirm_total",
        "Total number of messages received from publishers expecting confirmations",
    ),
    ("global_messages_routed_total", "Total number of messages routed to queues or streams"),
    (
        "global_messages_unroutable_dropped_total",
        "Total number of messages published as non-mandatory into an exchange and dropped as unroutable",
    ),
    (
        "global_messages_unroutable_returned_total",
        "Total number of messages published as mandatory into an exchange and returned as unroutable",
    ),
    ("global_messages_confirmed_total", "Total number of messages confirmed to publishers"),
)
GLOBAL_CLIENTS = _metrics(
    "",
    "gauge",
    ("global_publishers", "Publishers currently connected"),
    ("global_consumers", "Consumers currently connected"),
)
GLOBAL_DELIVERIES = _metrics(
    "",
    "counter",
    ("global_messages_delivered_total", "Total number of messages delivered to consumers"),
    (
        "global_messages_delivered_consume_manual_ack_total",
        "Total number of messages delivered to consumers using basic.consume with manual acknowledgment",
    ),
    (
        "global_messages_delivered_consume_auto_ack_total",
        "Total number of messages delivered to consumers using basic.consume with automatic acknowledgment",
    ),
    (
        "global_messages_delivered_get_manual_ack_total",
        "Total number of messages delivered to consumers using basic.get with manual acknowledgment",
    ),
    (
        "global_messages_delivered_get_auto_ack_total",
        "Total number of messages delivered to consumers using basic.get with automatic acknowledgment",
    ),
    (
        "global_messages_get_empty_total",
        "Total number of times basic.get operations fetched no message",
    ),
    ("global_messages_redelivered_total", "Total number of messages redelivered to consumers"),
    ("global_messages_acknowledged_total", "Total number of messages acknowledged by consumers"),
)
MESSAGE_SIZE = Metric("", "message_size_bytes", "histogram", "Size of messages received from publishers")
#: By the reason of the death; None: all that their targets have confirmed.
DEAD_LETTERS: dict[str | None, Metric] = {
    reason: Metric(
        "", f"global_messages_dead_lettered_{name}_total", "counter", f"Total number of messages {text}"
    )
    for reason, name, text in (
        ("expired", "expired", "dead-lettered due to message TTL exceeded"),
        ("rejected", "rejected", "dead-lettered due to basic.reject or basic.nack"),
        ("maxlen", "maxlen", "dead-lettered due to overflow drop-head or reject-publish-dlx"),
        ("delivery_limit", "delivery_limit", "dead-lettered due to delivery-limit exceeded"),
        (None, "confirmed", "dead-lettered and confirmed by target queues"),
    )
}
STRATEGIES = (("classic", "at_most_once"), ("quorum", "at_most_once"), ("quorum", "at_least_once"))

# -- of objects ----------------------------------------------------------------------------------------------

QUEUE = (
    *_metrics(
        "queue_coarse_metrics",
        "gauge",
        ("queue_messages_ready", "Messages ready to be delivered to consumers"),
        ("queue_messages_unacked", "Messages delivered to consumers but not yet acknowledged"),
        ("queue_messages", "Sum of ready and unacknowledged messages - total queue depth"),
    ),
    *_metrics("queue_consumer_count", "gauge", ("queue_consumers", "Consumers on a queue")),
    *_metrics(
        "queue_metrics",
        "gauge",
        ("queue_consumer_capacity", "1 if consumers take all there is at once, else 0"),
        ("queue_consumer_utilisation", "Same as consumer capacity"),
        ("queue_process_memory_bytes", "Memory in bytes used by the bodies of the queue"),
        ("queue_messages_ram_bytes", "Size of message bodies stored in memory"),
        ("queue_messages_bytes", "Size in bytes of ready and unacknowledged messages"),
        ("queue_messages_ready_bytes", "Size in bytes of ready messages"),
        ("queue_messages_unacked_bytes", "Size in bytes of all unacknowledged messages"),
        ("queue_head_message_timestamp", "Timestamp of the first message in the queue, if any"),
        (OLDEST_AGE, "Age of the oldest ready message, if any"),
    ),
)
#: Metrics whose sums have no meaning.
NOT_SUMMED = frozenset({"queue_consumer_capacity", "queue_consumer_utilisation", HEAD_TIMESTAMP, OLDEST_AGE})
#: Metrics of which 0 is no value.
NOT_ZERO = frozenset({HEAD_TIMESTAMP, OLDEST_AGE})
RAFT = (
    *_metrics("ra_metrics", "counter", ("raft_term_total", "Current Raft term number")),
    *_metrics(
        "ra_metrics",
        "gauge",
        ("raft_log_snapshot_index", "Raft log snapshot index"),
        ("raft_log_last_applied_index", "Raft log last applied index"),
        ("raft_log_commit_index", "Raft log commit index"),
        ("raft_log_last_written_index", "Raft log last written index"),
    ),
    # The same metrics under the names of RabbitMQ 4.2 and later, for its current dashboards.
    *_metrics(
        "ra_metrics",
        "gauge",
        ("raft_term", "Current Raft term number"),
        ("raft_snapshot_index", "Raft log snapshot index"),
        ("raft_last_applied", "Raft log last applied index"),
        ("raft_commit_index", "Raft log commit index"),
        ("raft_last_written_index", "Raft log last written index"),
    ),
)
QUEUE_PUBLISHES = _metrics(
    "queue_publish_metrics",
    "counter",
    ("queue_messages_published_total", "Total number of messages published to queues"),
)
CHANNEL = _metrics(
    "channel_metrics",
    "gauge",
    ("channel_consumers", "Consumers on a channel"),
    ("channel_messages_unacked", "Delivered but not yet acknowledged messages"),
    ("channel_messages_unconfirmed", "Published but not yet confirmed messages"),
    ("channel_messages_uncommitted", "Messages received in a transaction but not yet committed"),
    ("channel_acks_uncommitted", "Message acknowledgements in a transaction not yet committed"),
    ("consumer_prefetch", "Limit of unacknowledged messages for each consumer"),
    ("channel_prefetch", "Total limit of unacknowledged messages for all consumers on a channel"),
)
CHANNEL_TRAFFIC = (
    *_metrics(
        "channel_exchange_metrics",
        "counter",
        ("channel_messages_published_total", "Total number of messages published into an exchange"),
        ("channel_messages_confirmed_total", "Total number of messages confirmed to the publisher"),
        (
            "channel_messages_unroutable_returned_total",
            "Total number of messages published as mandatory and returned to the publisher as unroutable",
        ),
        (
            "channel_messages_unroutable_dropped_total",
            "Total number of messages published as non-mandatory and dropped as unroutable",
        ),
    ),
    *_metrics(
        "channel_queue_metrics",
        "counter",
        (
            "channel_get_ack_total",
            "Total number of messages fetched with basic.get in manual acknowledgement mode",
        ),
        (
            "channel_get_total",
            "Total number of messages fetched with basic.get in automatic acknowledgement mode",
        ),
        (
            "channel_messages_delivered_ack_total",
            "Total number of messages delivered to consumers in manual acknowledgement mode",
        ),
        (
            "channel_messages_delivered_total",
            "Total number of messages delivered to consumers in automatic acknowledgement mode",
        ),
        ("channel_messages_redelivered_total", "Total number of messages redelivered to consumers"),
        ("channel_messages_acked_total", "Total number of messages acknowledged by consumers"),
        ("channel_get_empty_total", "Total number of times basic.get operations fetched no message"),
    ),
)
CONNECTION = (
    *_metrics(
        "connection_coarse_metrics",
        "counter",
        ("connection_incoming_bytes_total", "Total number of bytes received on a connection"),
        ("connection_outgoing_bytes_total", "Total number of bytes sent on a connection"),
    ),
    *_metrics(
        "connection_metrics",
        "counter",
        ("connection_incoming_packets_total", "Total number of packets received on a connection"),
        ("connection_outgoing_packets_total", "Total number of packets sent on a connection"),
    ),
    *_metrics(
        "connection_metrics",
        "gauge",
        ("connection_pending_packets", "Bytes waiting to be sent on a connection"),
        ("connection_channels", "Channels on a connection"),
    ),
)
VHOST_STATUS = Metric("vhost_status", "cluster_vhost_status", "gauge", "Whether a given vhost is running")
EXCHANGE_NAME = Metric(
    "exchange_names", "cluster_exchange_name", "gauge", "Enumerates exchanges without values"
)
EXCHANGE_BINDINGS = Metric(
    "exchange_bindings", "cluster_exchange_bindings", "gauge", "Number of bindings for an exchange"
)

#: Names of the families that `/metrics/detailed?family=` knows.
FAMILIES = frozenset(
    metric.family
    for metric in (
        *NODE,
        *CHURN,
        *DISK,
        *LOGINS,
        *QUEUE,
        *RAFT,
        *QUEUE_PUBLISHES,
        *CHANNEL,
        *CHANNEL_TRAFFIC,
        *CONNECTION,
        VHOST_STATUS,
        EXCHANGE_NAME,
        EXCHANGE_BINDINGS,
    )  # fmt: skip
)


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def labels(**values: str) -> str:
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in values.items()) + "}"


def queue_values(queue: Queue) -> tuple[float, ...]:
    """Return the values of QUEUE."""
    host = queue.host
    ready, unacked, consumers = host.ready_count, host.unacked_count, host.consumer_count
    ready_bytes, unacked_bytes, resident = host.ready_bytes, host.unacked_bytes, host.resident_bytes
    keeps_up = 1 if consumers and not ready else 0
    return (
        ready,
        unacked,
        ready + unacked + host.delayed_count,
        consumers,
        keeps_up,
        keeps_up,
        resident,
        resident,
        ready_bytes + unacked_bytes,
        ready_bytes,
        unacked_bytes,
        # 0 is no value, and has no line.
        head_timestamp(host) or 0,
        (host.oldest_age_ms() or 0) / 1000,
    )


def channel_values(channel: Channel) -> tuple[float, ...]:
    """Return the values of CHANNEL."""
    confirms, tx = channel.confirms, channel.tx
    return (
        len(channel.subscriptions),
        channel.unacked.count,
        0 if confirms is None else confirms.unconfirmed_count,
        0 if tx is None else tx.published_count,
        0 if tx is None else tx.settled_count,
        channel.prefetch,
        channel.window.limit,
    )


def traffic_values(traffic: Traffic) -> tuple[float, ...]:
    """Return the values of CHANNEL_TRAFFIC."""
    return (
        traffic.publish,
        traffic.confirm,
        traffic.return_unroutable,
        traffic.drop_unroutable,
        traffic.get,
        traffic.get_no_ack,
        traffic.deliver,
        traffic.deliver_no_ack,
        traffic.redeliver,
        traffic.ack,
        traffic.get_empty,
    )


def delivery_values(traffic: Traffic) -> tuple[float, ...]:
    """Return the values of GLOBAL_DELIVERIES."""
    delivered = traffic.deliver + traffic.deliver_no_ack + traffic.get + traffic.get_no_ack
    return (
        delivered,
        traffic.deliver,
        traffic.deliver_no_ack,
        traffic.get,
        traffic.get_no_ack,
        traffic.get_empty,
        traffic.redeliver,
        traffic.ack,
    )


def connection_values(session: Session) -> tuple[float, ...]:
    """Return the values of CONNECTION."""
    incoming, outbox = session.incoming, session.outbox
    return (
        incoming.received_bytes,
        outbox.sent_bytes,
        incoming.received_count,
        outbox.sent_count,
        outbox.size,
        len(session.channels),
    )


def _of_connection(session: Session) -> Callable[[], str]:
    return partial(labels, channel=session.client.name)


def _of_channel(session: Session, channel: Channel, vhost: str | None = None) -> Callable[[], str]:
    name = f"{session.client.name} ({channel.number})"
    return partial(labels, channel=name) if vhost is None else partial(labels, channel=name, vhost=vhost)


class Table:
    """Values of many objects, each with its labels; or their sum without labels."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.metrics = metrics
        self.rows: list[tuple[str, tuple[float, ...]]] = []

    def add(self, labels: str, values: tuple[float, ...]) -> None:
        self.rows.append((labels, values))

    def sum_up(self, values: tuple[float, ...]) -> None:
        before = self.rows[0][1] if self.rows else (0,) * len(values)
        self.rows = [("", tuple([one + other for one, other in zip(before, values, strict=True)]))]


class Scrape:
    """One scrape of this node."""

    def __init__(
        self,
        measures: Measures,
        slices: Slices,
        *,
        objects_max: int,
        per_object: bool = False,
        families: Collection[str] | None = None,
        vhosts: Collection[str] = (),
    ) -> None:
        """`families` is None except for /metrics/detailed; there `vhosts` may limit the objects."""
        self._measures = measures
        self._slices = slices
        self._objects_max = objects_max
        self._families = families
        self._per_object = per_object or families is not None
        self._vhosts = vhosts
        self._prefix = PREFIX if families is None else DETAILED_PREFIX
        self._left_out = 0
        self._looked = Looked()

    def _wants(self, *metrics: Metric) -> bool:
        return self._families is None or any(metric.family in self._families for metric in metrics)

    async def text(self) -> AsyncGenerator[bytes, None]:
        yield self._identity()
        yield self._node()
        async for part in self._objects():
            yield part
        if self._families is None:
            yield self._totals()
            yield b"".join(map(_own, self._measures.own(self._looked)))
            yield _line(
                "mqd_metrics_objects_left_out", "gauge", "Objects above metrics_objects_max", self._left_out
            )
        else:
            async for part in self._cluster():
                yield part

    # -- of the node -----------------------------------------------------------------------------------------

    def _identity(self) -> bytes:
        measures = self._measures
        endpoint = "aggregated"
        if self._per_object:
            endpoint = "per-object" if self._families is None else "detailed"
        identity = labels(
            rabbitmq_node=measures.node,
            rabbitmq_cluster=measures.cluster_name(),
            rabbitmq_cluster_permanent_id=measures.cluster_id(),
            rabbitmq_endpoint=endpoint,
        )
        build = labels(
            rabbitmq_version=measures.version,
            prometheus_plugin_version=measures.version,
            prometheus_client_version="",
            erlang_version="",
        )
        return (
            _head("rabbitmq_build_info", "untyped", "RabbitMQ & Erlang/OTP version info")
            + f"rabbitmq_build_info{build} 1\n"
            + _head("rabbitmq_identity_info", "untyped", "RabbitMQ node & cluster identity info")
            + f"rabbitmq_identity_info{identity} 1\n"
        ).encode()

    def _node(self) -> bytes:
        measures = self._measures
        groups = (
            (NODE, measures.node_values(), ""),
            (CHURN, measures.churn_values(), ""),
            (DISK, measures.disk_values(), ""),
        )
        text = "".join(
            _head(self._prefix + metric.name, metric.kind, metric.help)
            + f"{self._prefix}{metric.name}{told} {value}\n"
            for metrics, values, told in groups
            for metric, value in zip(metrics, values, strict=True)
            if self._wants(metric)
        )
        return (text + self._logins()).encode()

    def _logins(self) -> str:
        told = {labels(protocol=name): values for name, values in self._measures.login_values().items()}
        return "".join(
            _head(self._prefix + metric.name, metric.kind, metric.help)
            + "".join(f"{self._prefix}{metric.name}{name} {values[at]}\n" for name, values in told.items())
            for at, metric in enumerate(LOGINS)
            if self._wants(metric)
        )

    def _totals(self) -> bytes:
        measures, looked = self._measures, self._looked
        looked.traffic.add(measures.ended.traffic)
        protocol = labels(protocol="amqp091")
        lines: list[str] = []
        for metrics, values, told in (
            (OBJECTS, measures.object_values(looked), ""),
            (GLOBAL_PUBLISHES, measures.publish_values(looked), protocol),
            (GLOBAL_CLIENTS, (looked.publishers, looked.consumers), protocol),
        ):
            for metric, value in zip(metrics, values, strict=True):
                lines.append(_head(PREFIX + metric.name, metric.kind, metric.help))
                lines.append(f"{PREFIX}{metric.name}{told} {value}\n")
        sizes, name = measures.message_sizes, PREFIX + MESSAGE_SIZE.name
        lines.append(_head(name, MESSAGE_SIZE.kind, MESSAGE_SIZE.help))
        lines += _buckets(name, SIZE_BOUNDS, sizes.by_bound, sizes.bytes, protocol="amqp091")
        return "".join(lines).encode()

    # -- of objects ------------------------------------------------------------------------------------------

    async def _objects(self) -> AsyncGenerator[bytes, None]:
        by_type = self._measures.ended_by_type()
        queues, raft, published = Table(QUEUE), Table(RAFT), Table(QUEUE_PUBLISHES)
        if self._families is None or self._wants(*QUEUE, *RAFT, *QUEUE_PUBLISHES):
            await self._look_at_queues(queues, raft, published, by_type)
        if self._families is None:
            yield self._deliveries(by_type)
            yield self._dead_letters()
        channels, traffic, connections = Table(CHANNEL), Table(CHANNEL_TRAFFIC), Table(CONNECTION)
        if self._wants(*CHANNEL, *CHANNEL_TRAFFIC, *CONNECTION):
            await self._look_at_clients(channels, traffic, connections)
        for table in (queues, raft, published, channels, traffic, connections):
            for metric, position in self._shown(table):
                async for part in self._lines(metric, table, position):
                    yield part

    def _shown(self, table: Table) -> Iterator[tuple[Metric, int]]:
        for position, metric in enumerate(table.metrics):
            if not self._per_object and metric.name in NOT_SUMMED:
                continue
            if self._wants(metric):
                yield metric, position

    async def _lines(self, metric: Metric, table: Table, position: int) -> AsyncGenerator[bytes, None]:
        name, rows = metric.shown(self._prefix), table.rows
        head = _head(name, metric.kind, metric.help)
        if not rows and not self._per_object:
            yield f"{head}{name} 0\n".encode()
            return
        for start in range(0, len(rows), LINES_AT_ONCE):
            await self._slices.rest()
            part = rows[start : start + LINES_AT_ONCE]
            if metric.name in NOT_ZERO:
                part = [row for row in part if row[1][position]]
            text = "".join([f"{name}{told} {values[position]}\n" for told, values in part])
            yield (head + text if not start else text).encode()

    def _note(self, table: Table, told: Callable[[], str], values: tuple[float, ...]) -> None:
        if not self._per_object:
            table.sum_up(values)
        elif len(table.rows) < self._objects_max:
            table.add(told(), values)
        else:
            self._left_out += 1

    async def _look_at_queues(
        self, queues: Table, raft: Table, published: Table, by_type: dict[str, Traffic]
    ) -> None:
        if not self._per_object:
            # The counts of deleted queues stay in the sum.
            published.sum_up((self._measures.ended.published,))
        for queue, is_home in self._measures.queues():
            await self._slices.rest()
            if queue.traffic is not None:
                by_type[queue.type.name].add(queue.traffic)
            vhost = queue.vhost.name
            if self._vhosts and vhost not in self._vhosts:
                continue
            told = partial(labels, vhost=vhost, queue=queue.name)
            if is_home:
                values = queue_values(queue)
                self._looked.oldest_age_s = max(self._looked.oldest_age_s, values[-1])
                self._note(queues, told, values)
            if is_home or queue.published:
                self._note(published, told, (queue.published,))
            if isinstance(queue.host, StreamHost):
                self._looked.at_stream(queue.host)
            raft_values = self._measures.raft_values(queue, self._looked)
            if raft_values is not None:
                self._note(raft, told, raft_values)

    async def _look_at_clients(self, channels: Table, traffic: Table, connections: Table) -> None:
        if not self._per_object:
            # The counts of closed channels and connections stay in the sums.
            traffic.sum_up(traffic_values(self._measures.ended.traffic))
            ended = self._measures.ended
            counts = (ended.received_bytes, ended.sent_bytes, ended.received_count, ended.sent_count)
            connections.sum_up((*counts, 0, 0))
        for session in self._measures.sessions():
            await self._slices.rest()
            self._looked.at_session(session)
            vhost = "" if session.vhost is None else session.vhost.name
            if self._vhosts and vhost not in self._vhosts:
                continue
            self._note(connections, _of_connection(session), connection_values(session))
            for channel in list(session.channels.values()):
                if not channel.closed:
                    self._note(channels, _of_channel(session, channel), channel_values(channel))
                    told = _of_channel(session, channel, vhost)
                    self._note(traffic, told, traffic_values(channel.counted()))

    def _deliveries(self, by_type: dict[str, Traffic]) -> bytes:
        lines: list[str] = []
        values = {
            labels(protocol="amqp091", queue_type=f"rabbit_{type_}_queue"): delivery_values(traffic)
            for type_, traffic in by_type.items()
        }
        for position, metric in enumerate(GLOBAL_DELIVERIES):
            name = PREFIX + metric.name
            lines.append(_head(name, metric.kind, metric.help))
            lines += [f"{name}{told} {each[position]}\n" for told, each in values.items()]
        return "".join(lines).encode()

    def _dead_letters(self) -> bytes:
        lines: list[str] = []
        counts = self._measures.dead_letters()
        for reason, metric in DEAD_LETTERS.items():
            lines.append(_head(PREFIX + metric.name, metric.kind, metric.help))
            # A counter that begins with its first dead letter would have no rate then.
            found = {
                labels(queue_type=f"rabbit_{type_}_queue", dead_letter_strategy=strategy): 0
                for type_, strategy in STRATEGIES
                if strategy == "at_least_once" or reason is not None
            }
            for (type_, strategy, why), count in counts.items():
                if why == reason or (reason is None and strategy == "at_least_once"):
                    told = labels(queue_type=f"rabbit_{type_}_queue", dead_letter_strategy=strategy)
                    found[told] = found.get(told, 0) + count
            lines += [f"{PREFIX}{metric.name}{told} {count}\n" for told, count in found.items()]
        return "".join(lines).encode()

    # -- of the cluster --------------------------------------------------------------------------------------

    async def _cluster(self) -> AsyncGenerator[bytes, None]:
        """Yield metrics that have the same value on all nodes."""
        if self._wants(VHOST_STATUS):
            table = Table((VHOST_STATUS,))
            for vhost in self._measures.vhosts():
                if not self._vhosts or vhost in self._vhosts:
                    table.add(labels(vhost=vhost), (1,))
            async for part in self._cluster_lines(VHOST_STATUS, table):
                yield part
        for metric in (EXCHANGE_NAME, EXCHANGE_BINDINGS):
            if not self._wants(metric):
                continue
            table = Table((metric,))
            for vhost, exchange, bindings in self._measures.exchanges():
                await self._slices.rest()
                if (self._vhosts and vhost not in self._vhosts) or len(table.rows) >= self._objects_max:
                    continue
                told = labels(vhost=vhost, exchange=exchange.name, type=exchange.type)
                table.add(told, (bindings if metric is EXCHANGE_BINDINGS else 1,))
            async for part in self._cluster_lines(metric, table):
                yield part

    async def _cluster_lines(self, metric: Metric, table: Table) -> AsyncGenerator[bytes, None]:
        self._prefix = PREFIX
        async for part in self._lines(metric, table, 0):
            yield part
        self._prefix = DETAILED_PREFIX


def _head(name: str, kind: str, text: str) -> str:
    return f"# TYPE {name} {kind}\n# HELP {name} {text}\n"


def _line(name: str, kind: str, text: str, value: float) -> bytes:
    return f"{_head(name, kind, text)}{name} {value}\n".encode()


def _own(metric: OwnMetric) -> bytes:
    lines = [_head(metric.name, metric.kind, metric.help)]
    lines += [f"{metric.name}{labels(**told) if told else ''} {value}\n" for told, value in metric.values]
    if metric.syncs is not None:
        lines += _buckets(metric.name, SYNC_BOUNDS_S, metric.syncs.by_bound, metric.syncs.seconds)
    return "".join(lines).encode()


def _buckets(
    name: str, bounds: Sequence[float], by_bound: Sequence[int], total: float, **told: str
) -> Iterator[str]:
    """Yield the lines of a histogram: how many were at most each bound, how much all are, and how many."""
    count = 0
    for bound, here in zip((*map(str, bounds), "+Inf"), by_bound, strict=True):
        count += here
        yield f"{name}_bucket{labels(**told, le=bound)} {count}\n"
    shown = labels(**told) if told else ""
    yield f"{name}_sum{shown} {total}\n{name}_count{shown} {count}\n"


def names() -> Iterable[str]:
    """Yield the names of all metrics under rabbitmq_prometheus' names, except those of /metrics/detailed."""
    yield from ("rabbitmq_build_info", "rabbitmq_identity_info")
    tables: tuple[Any, ...] = (
        NODE, CHURN, DISK, LOGINS, OBJECTS, GLOBAL_PUBLISHES, GLOBAL_CLIENTS, GLOBAL_DELIVERIES, QUEUE, RAFT,
        QUEUE_PUBLISHES, CHANNEL, CHANNEL_TRAFFIC, CONNECTION, DEAD_LETTERS.values(),
    )  # fmt: skip
    for table in tables:
        for metric in table:
            yield metric.shown(PREFIX)
    yield from (f"{PREFIX}{MESSAGE_SIZE.name}_{part}" for part in ("bucket", "count", "sum"))
