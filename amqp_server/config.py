"""Every option and every limit of the broker, each declared once, with its unit and its default.

`Config` checks itself: a wrong value raises `InvalidOption`, whatever it came from. Where values come from
(command line, environment, TOML file) is the business of `options`, which makes options from these fields.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
#: The backends that check passwords and decide what their users may do; see `auth_backends`.
INTERNAL_BACKEND, HTTP_BACKEND = "internal", "http"
#: Nodes exchange the names of their zones in the handshake of links.
ZONE_BYTES_MAX = 64

VERSION = "0.2.0"

#: Share of the memory limit that message bodies may take before they are paged out.
MEMORY_BUDGET_SHARE = 0.4
#: Share of it that consumers of streams may have read ahead, at most.
STREAM_READ_SHARE = 0.125
#: Share of it that clients may not have taken yet, and what they may at least, bytes.
UNSENT_SHARE, UNSENT_BYTES_MIN = 0.25, 32 * MIB
#: Shares of it for shovels, and for requests and answers of management; what each has at least, bytes.
SHOVELS_SHARE, HTTP_SHARE, SHARED_BYTES_MIN = 0.125, 0.125, 32 * MIB
#: Share of it that declared things may take up, and what they may at least, bytes.
DECLARED_SHARE, DECLARED_BYTES_MIN = 0.5, 32 * MIB

_BYTES_PER = {"": 1, "b": 1, "k": KIB, "kib": KIB, "kb": 1000, "m": MIB, "mib": MIB, "mb": 10**6}
_BYTES_PER |= {"g": GIB, "gib": GIB, "gb": 10**9}
_BYTES = re.compile(r"\s*(\d+)\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)
_AGE = re.compile(r"(\d{1,12})([YMDhms])", re.ASCII)
_AGE_MS = {
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "D": 86_400_000,
    "M": 30 * 86_400_000,
    "Y": 365 * 86_400_000,
}
_FRACTION = re.compile(r"\s*\d*\.\d+\s*", re.ASCII)


class InvalidOption(ValueError):
    """A value that an option can't have: which option, what it was given, what is allowed."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        shown = "the given value" if name in SECRETS else repr(value)
        super().__init__(f"{name}: {shown} is not allowed; it must be {allowed}")
        self.name = name
        self.reason = f"{shown} is not allowed; it must be {allowed}"


#: Fields whose value is never shown.
SECRETS = frozenset({"default_password"})


def option(
    default: Any,
    text: str,
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    kind: str = "",
    section: str = "",
) -> Any:
    """A field of `Config`. `kind` is what a text means beyond being one: address, memory, name."""
    about: dict[str, object] = {"text": text, "unit": unit, "low": low, "high": high}
    about |= {"choices": choices, "kind": kind, "section": section}
    return field(default=default, metadata=about)


# No `repr` is made, nor the docstring that dataclass would make: of so many fields they take 3 ms of each
# start.
@dataclass(frozen=True, kw_only=True, repr=False)
class Config:
    """All options, checked. Raises InvalidOption."""

    data_dir: str = option(
        "./mqd-data", "Directory of all that is stored; made if missing.", section="Node", kind="text"
    )
    node: str = option("n1", "Name of this node.", kind="name")
    log_level: str = option("info", "How much is logged.", choices=("debug", "info", "warning", "error"))
    log_format: str = option("text", "How lines are logged: as text, or as JSON.", choices=("text", "json"))
    log_lines_max: int = option(
        100,
        "Lines of one kind that an address or a user may cause in 10 s; more are counted and logged as one line.",
        low=1,
        high=1_000_000,
    )
    log_queue_lines_max: int = option(
        10_000,
        "Lines that wait to be written while nobody reads stderr; more are counted and left out.",
        low=16,
        high=10_000_000,
    )
    announce_product: str = option(
        "mqd", "Product in the server-properties that clients are shown.", kind="text"
    )
    announce_version: str = option(
        VERSION, "Version in the server-properties that clients are shown.", kind="text"
    )

    amqp: str = option(
        "127.0.0.1:5672",
        "AMQP listener; port 0 picks one.",
        unit="host:port",
        kind="address",
        section="Listeners",
    )
    amqps: str = option("", "AMQP over TLS listener; empty: off.", unit="host:port", kind="address or off")
    http: str = option(
        "127.0.0.1:15672", "Management listener; empty: off.", unit="host:port", kind="address or off"
    )
    metrics: str = option(
        "",
        "Listener of Prometheus' metrics, without a login, as RabbitMQ's on port 15692; empty: off.",
        unit="host:port",
        kind="address or off",
    )
    tls_cert_file: str = option("", "Certificate chain of the TLS listener.", unit="PEM file")
    tls_key_file: str = option("", "Private key of the TLS listener.", unit="PEM file")
    tls_ca_file: str = option("", "Authorities whose client certificates are trusted.", unit="PEM file")
    tls_check_s: float = option(
        10.0,
        "Time between two looks at whether certificates have changed on disk, the cluster's among them.",
        unit="s",
        low=0.1,
        high=86_400,
    )
    tls_client_certificate: bool = option(False, "Refuse TLS clients without a trusted certificate.")
    tls_login_from: str = option(
        "off",
        "What of a trusted client certificate is the name of the user, for the mechanism EXTERNAL.",
        choices=("off", "distinguished_name", "common_name", "subject_alternative_name"),
    )
    tls_login_san_type: str = option(
        "dns", "Kind of alternative name that is the user's.", choices=("dns", "ip", "email", "uri")
    )
    tls_login_san_index: int = option(0, "Which one of them, counted from 0.", low=0, high=1_000)
    proxy_sources: tuple[str, ...] = option(
        (),
        "Proxies that say for whom each connection is (PROXY protocol 1 or 2), on all listeners but that of metrics.",
        unit="addresses and networks, with commas between",
    )
    proxy_header_bytes_max: int = option(
        4 * KIB, "Largest header of such a proxy.", unit="bytes", low=232, high=65_551
    )
    listen_backlog: int = option(1024, "Connections that wait to be accepted.", low=1, high=65_535)

    peers: tuple[str, ...] = option(
        (),
        "Nodes of the cluster, this one among them, as name=host:port; empty: this node stands alone.",
        unit="names and addresses, with commas between",
        section="Cluster",
    )
    cluster_answer_ms: int = option(
        2_000,
        "Time that the management of this node waits for that of another one; then its answer lacks that node's part.",
        unit="ms",
        low=10,
        high=60_000,
    )
    cluster_answer_bytes_max: int = option(
        64 * MIB, "Largest such part.", unit="bytes", low=MIB, high=4 * GIB
    )
    zone: str = option(
        "",
        "Failure domain of this node (rack, room, data centre): members of a queue are put into different ones.",
        unit="name",
    )
    cluster_listen: str = option(
        "",
        "Listener for the other nodes; empty: this node's address among the peers.",
        unit="host:port",
        kind="address or off",
    )
    cluster_secret_file: str = option(
        "", "File with the secret that all nodes share, at least 16 bytes.", unit="file"
    )
    cluster_tls_cert_file: str = option(
        "", "Certificate of this node for the links between nodes; empty: links without TLS.", unit="PEM file"
    )
    cluster_tls_key_file: str = option("", "Its private key.", unit="PEM file")
    cluster_tls_ca_file: str = option("", "Authority that signed the nodes' certificates.", unit="PEM file")
    cluster_frame_bytes_max: int = option(
        192 * MIB,
        "Largest frame between nodes; less than 192 MiB has no effect.",
        unit="bytes",
        low=MIB,
        high=GIB,
    )
    cluster_queue_bytes_max: int = option(
        GIB,
        "Unsent bytes to one node; above it its link is closed. Less than 384 MiB has no effect.",
        unit="bytes",
        low=MIB,
        high=64 * GIB,
    )
    cluster_heartbeat_ms: int = option(
        100, "Time between two beats of a link.", unit="ms", low=10, high=60_000
    )
    cluster_dead_ms: int = option(
        1_000, "Silence after which a link counts as dead.", unit="ms", low=50, high=600_000
    )
    cluster_reach_ms: int = option(
        500,
        "Time that another node must have been out of reach, and alive, before leaders move to where it is reached.",
        unit="ms",
        low=50,
        high=600_000,
    )
    cluster_steady_ms: int = option(
        10_000,
        "Time that a link which broke must last before leaders return to a node at its ends.",
        unit="ms",
        low=0,
        high=3_600_000,
    )
    cluster_strangers_max: int = option(
        32, "Connections of nodes that have not shown the secret yet.", low=1, high=10_000
    )
    election_ms: int = option(
        500, "Time without a leader after which a node stands for election.", unit="ms", low=50, high=600_000
    )
    node_down_ms: int = option(
        1_500,
        "Time that a lost node has to come back before its consumers' messages go to others.",
        unit="ms",
        low=0,
        high=3_600_000,
    )
    gather_ms: int = option(
        2,
        "Where messages come to a quorum queue one by one, faster than it commits each, commits are so far apart.",
        unit="ms",
        low=0,
        high=1_000,
    )
    disk_stall_ms: int = option(
        2_000,
        "Duration of a write after which this node gives up leadership.",
        unit="ms",
        low=100,
        high=600_000,
    )
    read_index_timeout_ms: int = option(
        2_000,
        "Time for which a count of messages or consumers waits for the queue's leader and a majority; then the "
        "answer is what this node knows.",
        unit="ms",
        low=10,
        high=600_000,
    )
    change_timeout_ms: int = option(
        10_000,
        "Time after which a change of the topology without a majority is refused.",
        unit="ms",
        low=100,
        high=600_000,
    )
    drain_timeout_s: float = option(
        10.0, "Time to hand over what this node leads before it stops.", unit="s", low=0, high=600
    )
    rebalance_ms: int = option(
        2_000, "Time between two looks at whether leaders should move.", unit="ms", low=100, high=3_600_000
    )
    handover_groups: int = option(
        100,
        "Leaders handed over every 50 ms to nodes that reach more of the others.",
        unit="queues",
        low=1,
        high=100_000,
    )
    group_size: int = option(
        3, "Nodes that keep a quorum queue, unless it is declared otherwise.", low=1, high=99
    )
    queue_leader_locator: str = option(
        "balanced", "Where the leader of a new quorum queue is placed.", choices=("client-local", "balanced")
    )
    snapshot_bytes: int = option(
        4 * MIB,
        "Log of a quorum queue after which its state is written anew.",
        unit="bytes",
        low=64 * KIB,
        high=GIB,
    )
    snapshot_entries: int = option(2_048, "The same in entries of the log.", low=16, high=10_000_000)
    log_bytes_max: int = option(
        64 * MIB,
        "Log kept for a node that lags; beyond it, it gets a snapshot.",
        unit="bytes",
        low=MIB,
        high=64 * GIB,
    )
    transfer_bytes_max: int = option(
        8 * MIB, "Snapshot on its way to one node at a time.", unit="bytes", low=MIB, high=GIB
    )
    transfer_timeout_ms: int = option(
        10_000,
        "A snapshot on its way to a node of which nothing moves for so long is begun anew.",
        unit="ms",
        low=100,
        high=3_600_000,
    )
    lost_entry_retry_ms: int = option(
        1_000,
        "Time after which a log entry that the disk has lost is asked of another node.",
        unit="ms",
        low=50,
        high=600_000,
    )
    lost_entry_report_ms: int = option(
        60_000, "Time between two log lines about lost log entries.", unit="ms", low=50, high=86_400_000
    )
    lost_entry_refill_ms: int = option(
        5_000,
        "Time for a member that forgets its log because of a lost entry to be filled, before the next one may.",
        unit="ms",
        low=50,
        high=600_000,
    )
    quorum_read_ahead_bytes: int = option(
        MIB,
        "Bodies of a quorum queue that the disk is asked for at once.",
        unit="bytes",
        low=4 * KIB,
        high=GIB,
    )
    bodies_bytes: int = option(
        64 * MIB, "Bodies of quorum queues kept in memory.", unit="bytes", low=MIB, high=1 << 40
    )

    connections_max: int = option(
        20_000, "Open connections.", low=1, high=1_000_000, section="Connections and channels"
    )
    files_reserved: int = option(
        128,
        "Open files that connections leave to the node itself, and half of the limit of open files if that is less; links"
        " to other nodes come on top of it.",
        low=16,
        high=1_000_000,
    )
    half_open_max: int = option(1_000, "Connections that have not logged in yet.", low=1, high=1_000_000)
    half_open_per_address_max: int = option(500, "Those of one address.", low=1, high=1_000_000)
    handshake_timeout_s: float = option(10.0, "Time to log in and open a vhost.", unit="s", low=0.1, high=600)
    close_wait_s: float = option(
        30.0,
        "Time that a client has to close its socket after connection.close-ok; a heartbeat interval if that is less.",
        unit="s",
        low=0,
        high=600,
    )
    handshake_frame_bytes_max: int = option(
        8 * KIB, "Largest frame before the login.", unit="bytes", low=4 * KIB, high=MIB
    )
    frame_max_bytes: int = option(
        128 * KIB,
        "Largest frame after it, offered in connection.tune.",
        unit="bytes",
        low=4 * KIB,
        high=16 * MIB,
    )
    channel_max: int = option(
        2_047, "Channels of one connection, offered in connection.tune.", low=1, high=65_535
    )
    channels_max: int = option(200_000, "Channels of all connections together.", low=1, high=10_000_000)
    heartbeat_s: int = option(
        60, "Heartbeat offered in connection.tune; 0: none.", unit="s", low=0, high=65_535
    )
    receive_bytes: int = option(
        MIB, "Most that is read from a socket at once.", unit="bytes", low=4 * KIB, high=16 * MIB
    )
    outbox_high_bytes: int = option(
        MIB,
        "Unsent bytes of a connection above which its consumers get no credit.",
        unit="bytes",
        low=4 * KIB,
        high=GIB,
    )
    outbox_low_bytes: int = option(
        256 * KIB, "Unsent bytes below which they get it again.", unit="bytes", low=0, high=GIB
    )

    unsent_bytes_max: int = option(
        0,
        "Unsent bytes of all connections above which large messages are not brought back into memory, and those are closed"
        " that take nothing (unfinished_timeout_s). 0: a quarter of the memory limit.",
        unit="bytes",
        low=0,
        high=1 << 50,
    )
    blocked_input_bytes_max: int = option(
        MIB,
        "Input of a publisher that an alarm blocks; beyond it the connection is not read, and its acks wait.",
        unit="bytes",
        low=4 * KIB,
        high=GIB,
    )
    unfinished_bytes_max: int = option(
        512 * MIB,
        "Messages that a connection has begun and not finished: their last frame, or the commit, has not come.",
        unit="bytes",
        low=MIB,
        high=1 << 40,
    )
    unfinished_timeout_s: float = option(
        10.0,
        "Time for which the memory alarm stands before they are to be finished, and for that; 0: for ever.",
        unit="s",
        low=0,
        high=3_600,
    )
    unfinished_bytes_kept: int = option(
        MIB, "What of them a connection may keep all the same.", unit="bytes", low=4 * KIB, high=GIB
    )
    suspended_input_bytes_max: int = option(
        MIB,
        "Input behind a method whose answer is awaited, beyond which the connection is not read.",
        unit="bytes",
        low=4 * KIB,
        high=GIB,
    )

    message_bytes_max: int = option(
        128 * MIB, "Largest message body.", unit="bytes", low=1, high=128 * MIB, section="Messages and queues"
    )
    tx_bytes_max: int = option(
        128 * MIB,
        "Messages of a transaction that is not committed yet; more of them close the channel.",
        unit="bytes",
        low=KIB,
        high=1 << 40,
    )
    tx_parts_max: int = option(
        20_000,
        "Messages for one queue, and acks in a row, that a transaction has; other commits wait for a large one.",
        low=1_000,
        high=10_000_000,
    )
    table_depth_max: int = option(
        128,
        "Tables and arrays nested within a field table of a client's; a deeper one closes the connection.",
        unit="levels",
        low=1,
        high=128,
    )
    vhosts_max: int = option(1_000, "Virtual hosts.", low=1, high=1_000_000)
    event_exchange_vhost: str = option(
        "",
        "Virtual host whose exchange amq.rabbitmq.event gets a message for each change and connection; empty: none does.",
        unit="virtual host",
    )
    event_waiting_max: int = option(
        100_000, "Such messages that wait to be published; more are left out.", low=16, high=10_000_000
    )
    parameters_max: int = option(
        10_000, "Runtime parameters, with policies and limits of vhosts and users.", low=1, high=1_000_000
    )
    parameter_bytes_max: int = option(
        64 * KIB, "Largest value of a runtime parameter or a policy.", unit="bytes", low=KIB, high=MIB
    )
    parameters_bytes_max: int = option(
        64 * MIB, "All values of runtime parameters and policies.", unit="bytes", low=64 * KIB, high=64 * GIB
    )
    queues_max: int = option(100_000, "Queues of all virtual hosts, on all nodes.", low=1, high=10_000_000)
    exchanges_max: int = option(100_000, "Exchanges of all virtual hosts.", low=1, high=10_000_000)
    bindings_max: int = option(1_000_000, "Bindings of all virtual hosts.", low=1, high=100_000_000)
    declared_bytes_max: int = option(
        0,
        "Memory for queues, exchanges, bindings and consumers with their arguments, estimated; no more are made when it is"
        " used up. 0: half of the memory limit.",
        unit="bytes",
        low=0,
        high=1 << 50,
    )
    default_queue_type: str = option(
        "classic",
        "Type of durable queues declared without one, where their vhost has no default of its own.",
        choices=("classic", "quorum"),
    )
    stream_segment_bytes: int = option(
        500_000_000,
        "Size from which a segment of a stream is followed by the next one, unless declared otherwise.",
        unit="bytes",
        low=64 * KIB,
        high=3_000_000_000,
        section="Streams",
    )
    stream_segment_bytes_min: int = option(
        16 * KIB,
        "The size in place of a smaller one that a stream is declared with, or a policy has: each segment is two files.",
        unit="bytes",
        low=1,
        high=64 * MIB,
    )
    stream_max_age: str = option(
        "",
        "Age at which segments of streams declared without x-max-age go, such as 14D; empty: never.",
        unit="a number and Y, M, D, h, m or s",
        kind="age or off",
    )
    stream_max_bytes: int = option(
        0,
        "Size above which the oldest segments of a stream declared without x-max-length-bytes go; 0: none.",
        unit="bytes",
        low=0,
        high=1 << 50,
    )
    stream_flush_bytes: int = option(
        MIB,
        "Bytes of a stream in the journal from which on they are moved to its segment.",
        unit="bytes",
        low=4 * KIB,
        high=GIB,
    )
    stream_flush_batches: int = option(
        128,
        "The same in batches: messages that come one by one are as many batches, and others wait for the thread that"
        " writes very many of them.",
        low=1,
        high=1_000_000,
    )
    stream_flush_ms: int = option(
        5_000, "Time after which fewer bytes are moved there, too.", unit="ms", low=10, high=3_600_000
    )
    stream_readers: int = option(2, "Threads that read segments.", low=1, high=64)
    stream_read_bytes_max: int = option(
        256 * MIB,
        "What all consumers of streams together have read ahead; above it, and above an eighth of the memory limit, those"
        " that wait read again later.",
        unit="bytes",
        low=MIB,
        high=64 * GIB,
    )
    stream_compression: str = option(
        "none",
        "Compression of streams declared without x-stream-compression.",
        choices=("zstd", "lz4", "none"),
    )
    stream_tombstone_age: str = option(
        "1D",
        "Age at which tombstones of compacted streams declared without x-stream-tombstone-age go.",
        unit="a number and Y, M, D, h, m or s",
        kind="age",
    )
    stream_compaction_dirty_percent: int = option(
        50,
        "What must be new of a compacted stream's sealed segments before they are written anew.",
        unit="percent",
        low=1,
        high=100,
    )
    stream_compaction_memory_bytes: int = option(
        64 * MIB,
        "Memory for keys while a stream is compacted; with more keys it takes several passes.",
        unit="bytes",
        low=MIB,
        high=64 * GIB,
    )
    stream_compaction_bytes_per_s: int = option(
        16 * MIB,
        "What compaction reads and writes in a second.",
        unit="bytes per second",
        low=64 * KIB,
        high=64 * GIB,
    )
    stream_names_max: int = option(
        1_000,
        "Offsets that a stream keeps by name (x-group); consumers with more names are refused with 406.",
        low=1,
        high=1_000_000,
    )
    super_stream_partitions_max: int = option(1_000, "Partitions of one super stream.", low=1, high=10_000)
    consumer_timeout_ms: int = option(
        1_800_000,
        "A channel that holds a delivery for so long without an ack is closed with 406, up to a tenth later; 0: never.",
        unit="ms",
        low=0,
        high=315_360_000_000,
    )
    group_consumer_timeout_ms: int = option(
        1_800_000,
        "A member of a consumer group that holds a message for so long without an ack loses its partitions, and is "
        "cancelled, in groups declared without x-consumer-timeout.",
        unit="ms",
        low=1,
        high=315_360_000_000,
    )
    group_commit_ms: int = option(
        50,
        "The acks of a consumer group wait so long for others before they are written to the disk together, unless "
        "something else is written meanwhile.",
        unit="ms",
        low=0,
        high=60_000,
    )
    group_gaps_max: int = option(
        4_096,
        "Runs of unacked messages of a partition that a consumer group remembers: with more of them, its member gets "
        "nothing new until it has acked some.",
        low=16,
        high=1_000_000,
    )
    consumers_per_channel_max: int = option(10_000, "Consumers of one channel.", low=1, high=1_000_000)
    deduplication_producers_max: int = option(
        100_000,
        "Producers with a sequence that a queue declared through this node remembers; the idlest are forgotten first.",
        low=1,
        high=1_000_000,
    )
    alternates_max: int = option(
        1_000,
        "Alternate exchanges that one message goes to; those behind them are not asked.",
        low=1,
        high=100_000,
    )
    routing_steps_max: int = option(
        1_000_000,
        "Steps of one message's route: each exchange on its way, with each of its keys (CC, BCC). A message that needs more"
        " is refused.",
        low=1_000,
        high=1_000_000_000,
    )
    topic_hashes_max: int = option(16, "Words # in one topic binding key.", low=1, high=64)
    topic_hashes_again_max: int = option(
        10_000,
        "Words # that the topic binding keys of one exchange have beside the first one of each.",
        low=0,
        high=100_000_000,
    )
    queue_revivals_max: int = option(
        3, "How often a queue that failed is begun anew before it is set aside.", low=0, high=1_000
    )
    queue_failure_memory_ms: int = option(
        60_000,
        "Time that a queue must have served for its earlier failures to be forgotten.",
        unit="ms",
        low=0,
        high=86_400_000,
    )
    log_bytes: int = option(
        4 * MIB,
        "Size of the write-ahead log, a file that small commits are written to before the data file; 0: none.",
        unit="bytes",
        low=0,
        high=GIB,
    )
    ack_wait_us: int = option(
        300,
        "A commit of nothing but messages that came alone and are with consumers waits so long for their acks, which"
        " make it needless; tried seldom where they come later; 0: it never waits.",
        unit="µs",
        low=0,
        high=5_000,
    )
    log_commit_bytes_max: int = option(
        64 * KIB,
        "Commits above this size go to the data file at once.",
        unit="bytes",
        low=0,
        high=64 * MIB,
    )
    unsynced_high_bytes: int = option(
        64 * MIB,
        "Bytes not yet on disk above which their publishers are not read.",
        unit="bytes",
        low=MIB,
        high=16 * GIB,
    )
    unsynced_share_bytes: int = option(
        64 * KIB,
        "Bytes that each connection may publish meanwhile, so that who publishes little does not wait for those who publish"
        " much; less with very many connections, whose shares together are no more than may wait for the disk.",
        unit="bytes",
        low=0,
        high=GIB,
    )

    memory_limit: str = option(
        "0.6",
        "Memory above which publishers are blocked.",
        unit="bytes, or share of the machine's memory",
        kind="memory",
        section="Memory and disk",
    )
    memory_budget_bytes: int = option(
        0,
        "Message bodies in memory before they are paged out; 0: 40 % of the memory limit.",
        unit="bytes",
        low=0,
        high=1 << 50,
    )
    read_ahead_bytes: int = option(
        512 * KIB,
        "Bodies that left memory, brought back ahead of the head of each queue.",
        unit="bytes",
        low=4 * KIB,
        high=GIB,
    )
    disk_read_ahead_bytes: int = option(
        4 * MIB,
        "Bodies after these that the disk is asked for in advance.",
        unit="bytes",
        low=4 * KIB,
        high=GIB,
    )
    disk_free_min_bytes: int = option(
        2 * GIB, "Free disk space below which publishers are blocked.", unit="bytes", low=0, high=1 << 50
    )

    switch_fast_path: bool = option(
        True, "Decode frames seen before from memory; off: decode each one.", section="Fast path"
    )
    turn_ms: int = option(
        4,
        "Time after which the work of one client is interrupted, so that others have their turn.",
        unit="ms",
        low=1,
        high=60_000,
    )
    memo_entries_max: int = option(16_384, "Frames that each connection remembers.", low=16, high=10_000_000)
    memo_bytes_max: int = option(
        64 * MIB,
        "What all connections together remember of frames, estimated; beyond it, all begin anew.",
        unit="bytes",
        low=64 * KIB,
        high=1 << 40,
    )

    default_user: str = option(
        "guest", "User made when there is none yet.", kind="text", section="Users and management"
    )
    default_password: str = option("guest", "Its password; others see it in ps.", kind="text")
    default_password_file: str = option(
        "",
        "File with its password, which nobody else can read; it goes before default_password.",
        unit="file",
    )
    reset_administrator: str = option(
        "",
        "User made an administrator at this start, with the password in default_password_file: the way back in.",
        unit="user",
    )
    accept_topology_loss: int = option(
        0,
        "Gives up entries of the topology's log that no node can read, if this is the first; see docs/cluster.md.",
        unit="entry",
        low=0,
        high=1 << 62,
    )
    load_definitions: str = option(
        "",
        "File with definitions, RabbitMQ's or mqd's, that are taken over at each start; then there is no default user.",
        unit="file",
    )
    default_vhost: str = option("/", "Virtual host made when there is none yet.", kind="text")
    loopback_users: tuple[str, ...] = option(
        ("guest",), "Users who may log in from this machine only.", unit="names, with commas between"
    )
    users_max: int = option(100_000, "Users.", low=1, high=10_000_000)
    login_memory_s: float = option(
        30.0, "Time for which a checked password is not checked again.", unit="s", low=0, high=3_600
    )
    login_memory_entries_max: int = option(10_000, "Checked passwords remembered.", low=1, high=1_000_000)
    password_checks_max: int = option(
        0, "Passwords checked at a time; 0: half as many as there are processors.", low=0, high=1_000
    )
    password_checks_waiting_max: int = option(
        64, "Logins of one address that wait for their check; more are refused.", low=1, high=10_000
    )
    login_failures_free: int = option(
        20, "Failed logins of one address before its next ones have to wait.", low=0, high=1_000_000
    )
    login_back_off_max_s: float = option(5.0, "Longest such wait before a check.", unit="s", low=0, high=600)
    login_failure_memory_s: float = option(
        60.0, "Time without a failed login after which they are forgotten.", unit="s", low=0, high=86_400
    )
    login_sources_max: int = option(
        10_000, "Addresses whose failed logins are remembered.", low=1, high=1_000_000
    )
    permission_pattern_bytes_max: int = option(
        4 * KIB, "Longest pattern of a permission or a policy.", unit="bytes", low=16, high=MIB
    )
    permission_match_ms: int = option(
        10,
        "Time that matching a pattern with look-around or back-references may take; past it, it does not match.",
        unit="ms",
        low=1,
        high=10_000,
    )
    permission_match_total_ms: int = option(
        100,
        "Time for which such a pattern may exceed this in all; then it matches no other name until it is set anew.",
        unit="ms",
        low=1,
        high=600_000,
    )
    auth_backends: tuple[str, ...] = option(
        (INTERNAL_BACKEND,),
        "Who checks passwords, one after the other: the users of this broker (internal), a server of yours (http).",
        unit="internal and http, with commas between",
    )
    auth_http_user_path: str = option(
        "", "Where the HTTP backend says whether a password is the user's.", unit="URL"
    )
    auth_http_vhost_path: str = option(
        "", "Where it says whether a user may open a virtual host.", unit="URL"
    )
    auth_http_resource_path: str = option(
        "", "Where it says whether a user may configure, write or read a queue or an exchange.", unit="URL"
    )
    auth_http_topic_path: str = option(
        "", "Where it says whether a user may use a routing key of a topic exchange.", unit="URL"
    )
    auth_http_method: str = option(
        "post",
        "How it is asked: with a form, or with a query, in which web servers log passwords.",
        choices=("post", "get"),
    )
    auth_http_ca_file: str = option(
        "", "Authorities of its certificate; empty: those of the system.", unit="PEM file"
    )
    auth_http_cert_file: str = option("", "Certificate that it is shown.", unit="PEM file")
    auth_http_key_file: str = option("", "Its private key.", unit="PEM file")
    auth_http_timeout_s: float = option(
        5.0, "Time for an answer of it, waiting for others included.", unit="s", low=0.1, high=600
    )
    auth_http_answer_bytes_max: int = option(4 * KIB, "Largest answer of it.", unit="bytes", low=64, high=MIB)
    auth_http_requests_max: int = option(
        32, "What it is asked at a time; of that, logins have half.", low=2, high=10_000
    )
    auth_http_waiting_max: int = option(
        4_096, "What waits to be asked; more is refused.", low=1, high=1_000_000
    )
    auth_http_logins_per_address_max: int = option(
        8, "Logins of one address that it is asked about at a time.", low=1, high=10_000
    )
    auth_http_cache_s: float = option(
        15.0, "Time for which an answer of it counts.", unit="s", low=1, high=86_400
    )
    auth_http_cache_entries_max: int = option(
        65_536, "Answers of it that are remembered.", low=16, high=10_000_000
    )
    auth_http_session_s: float = option(
        3_600.0, "Time after which a login of its users to the page ends.", unit="s", low=1, high=2_592_000
    )
    oauth_resource_server_id: str = option(
        "",
        "Name of this broker in tokens of OAuth 2: a token with it as audience is taken as a password; empty: none is.",
        unit="name",
    )
    oauth_issuer: str = option(
        "",
        "Issuer that tokens must have; its configuration is asked for the keys where oauth_jwks_url is empty.",
        unit="https URL",
    )
    oauth_jwks_url: str = option(
        "", "Where the authorization server has the keys that it signs with.", unit="https URL"
    )
    oauth_ca_file: str = option(
        "",
        "Authorities of that server's certificate; empty: those of the system.",
        unit="PEM file",
    )
    oauth_verify_audience: bool = option(True, "Take no token that has another audience.")
    oauth_scope_prefix: str = option(
        "", "What scopes for this broker begin with; empty: oauth_resource_server_id and a dot.", unit="text"
    )
    oauth_scope_claims: tuple[str, ...] = option(
        ("scope",), "Claims in which scopes stand.", unit="names, with commas between"
    )
    oauth_username_claims: tuple[str, ...] = option(
        ("sub", "client_id"),
        "Claims in which the name of the user stands; the first that is there counts.",
        unit="names, with commas between",
    )
    oauth_leeway_s: float = option(
        0.0, "By how much the clocks may differ, for times in tokens.", unit="s", low=0, high=600
    )
    oauth_token_bytes_max: int = option(
        4 * KIB,
        "Longest token in a login; handshake_frame_bytes_max must hold it.",
        unit="bytes",
        low=256,
        high=MIB,
    )
    oauth_keys_age_s: float = option(
        3_600.0, "Time after which the keys are fetched again.", unit="s", low=1, high=31_536_000
    )
    oauth_keys_pause_s: float = option(
        10.0, "Time between two fetches because of a token with an unknown key.", unit="s", low=0, high=86_400
    )
    oauth_fetch_timeout_s: float = option(
        5.0, "Time that the authorization server has for an answer.", unit="s", low=0.1, high=600
    )
    oauth_answer_bytes_max: int = option(
        MIB, "Largest answer of that server.", unit="bytes", low=KIB, high=64 * MIB
    )
    http_body_bytes_max: int = option(
        20 * MIB, "Largest body of a management request.", unit="bytes", low=KIB, high=GIB
    )
    http_json_bytes_max: int = option(
        MIB,
        "Largest object or list within such a body, but for definitions; a payload is a text, and may be larger.",
        unit="bytes",
        low=KIB,
        high=GIB,
    )
    http_definition_bytes_max: int = option(
        256 * KIB, "Largest object in definitions that are imported.", unit="bytes", low=KIB, high=GIB
    )
    http_definitions_max: int = option(
        500_000, "Objects in definitions that are imported.", low=1, high=100_000_000
    )
    http_connections_max: int = option(
        1_024,
        "Management connections; one more displaces the oldest that nobody is logged in on.",
        low=16,
        high=100_000,
    )
    http_pipelined_max: int = option(
        16,
        "Requests on one management connection, each sent before the one ahead of it was answered, after which the connection "
        "is closed; no browser and no usual client sends any.",
        low=0,
        high=100_000,
    )
    http_requests_max: int = option(
        256, "Management requests of logged-in users at a time.", low=1, high=100_000
    )
    http_requests_per_user_max: int = option(
        64, "Management requests of one user at a time.", low=1, high=100_000
    )
    http_request_timeout_s: float = option(
        30.0,
        "Time that a management request may take to arrive, and that a connection may wait for one.",
        unit="s",
        low=0.1,
        high=3_600,
    )
    http_send_timeout_s: float = option(
        30.0, "Time for a management client to take 16 KiB of an answer.", unit="s", low=0.1, high=3_600
    )
    http_answer_timeout_s: float = option(
        300.0,
        "Time for which the node waits in all for a management client to take an answer.",
        unit="s",
        low=0.1,
        high=86_400,
    )
    http_memory_bytes_max: int = option(
        0,
        "What management requests and answers take up together, estimated, half of it those of one user, and an eighth only"
        " those of administrators; more are answered with 503. 0: an eighth of the memory limit.",
        unit="bytes",
        low=0,
        high=1 << 50,
    )
    http_slice_ms: int = option(
        2,
        "Time for which long answers of the management API keep the node from its clients at a stretch.",
        unit="ms",
        low=1,
        high=1_000,
    )
    http_filter_ms: int = option(
        1_000,
        "Time that matching the regular expression of one request may take in all.",
        unit="ms",
        low=1,
        high=600_000,
    )
    http_page: bool = option(True, "Whether the management listener has a page for browsers.")
    http_sessions_max: int = option(
        1_000,
        "Logins of the page at a time; one more ends the one that was used least recently.",
        low=1,
        high=10_000,
    )
    http_sessions_per_user_max: int = option(
        20, "Logins of one user to the page at a time, likewise.", low=1, high=1_000_000
    )
    http_sessions_bytes_max: int = option(
        16 << 20,
        "Memory for logins of the page, those by tokens with many scopes above all; likewise.",
        unit="bytes",
        low=1 << 20,
        high=1 << 30,
    )
    http_session_idle_s: float = option(
        3_600.0,
        "Time without a request after which a login to the page ends.",
        unit="s",
        low=1,
        high=2_592_000,
    )
    http_session_age_s: float = option(
        43_200.0, "Time after which a login to the page ends, used or not.", unit="s", low=1, high=2_592_000
    )
    metrics_objects_max: int = option(
        10_000,
        "Queues, connections, channels and exchanges that one scrape tells of one by one; more are left out, and counted.",
        low=0,
        high=10_000_000,
    )
    statistics_interval_ms: int = option(
        5_000,
        "Time between two samples of counters and lengths, from which the management API makes rates and charts.",
        unit="ms",
        low=100,
        high=600_000,
    )
    statistics_bytes_max: int = option(
        64 * MIB,
        "Memory for the samples of the last ten minutes; what begins to count when it is used up has no rates.",
        unit="bytes",
        low=MIB,
        high=64 * GIB,
    )

    shovels_max: int = option(1_000, "Shovels that may be defined.", low=0, high=100_000, section="Shovels")
    shovel_hosts: tuple[str, ...] = option(
        (),
        "Hosts that shovels may connect to: names, *.names, addresses and networks; empty: all. This node is always one.",
        unit="names and networks, with commas between",
    )
    shovel_uris_max: int = option(32, "URIs of each end of a shovel.", low=1, high=1_000)
    shovel_prefetch_max: int = option(
        10_000,
        "Messages that a shovel has taken and not acked yet; a prefetch count of 0 is this.",
        low=1,
        high=65_535,
    )
    shovel_bytes_max: int = option(
        16 * MIB,
        "Bytes of one shovel that its destination has not taken yet, beyond which its source is not read.",
        unit="bytes",
        low=64 * KIB,
        high=GIB,
    )
    shovels_bytes_max: int = option(
        0,
        "The same of all shovels together: above it, only sources of shovels that hold nothing are read, and a shovel ends"
        " whose destination takes nothing (unfinished_timeout_s). 0: an eighth of the memory limit.",
        unit="bytes",
        low=0,
        high=1 << 50,
    )
    shovel_connect_timeout_s: float = option(
        10.0, "Time for a shovel to connect, log in and declare at one URI.", unit="s", low=0.1, high=600
    )
    shovel_heartbeat_s: int = option(
        30,
        "Heartbeat of a shovel's connections unless their URI has another; 0: none.",
        unit="s",
        low=0,
        high=65_535,
    )
    shovel_reconnect_min_ms: int = option(
        100, "Shortest time between two tries of a shovel.", unit="ms", low=10, high=600_000
    )
    shovel_tls_ca_file: str = option(
        "",
        "Authorities that shovels trust unless their URI names others; empty: those of the system.",
        unit="PEM file",
    )
    shovel_tls_directory: str = option(
        "",
        "Directory of the certificates and keys that URIs of shovels may name; empty: none.",
        unit="directory",
    )

    def __post_init__(self) -> None:
        for declared in fields(self):
            check(declared, getattr(self, declared.name))
        if self.outbox_low_bytes >= self.outbox_high_bytes:
            allowed = f"below outbox_high_bytes ({self.outbox_high_bytes})"
            raise InvalidOption("outbox_low_bytes", self.outbox_low_bytes, allowed)
        if self.amqps and not (self.tls_cert_file and self.tls_key_file):
            raise InvalidOption("amqps", self.amqps, "empty unless tls_cert_file and tls_key_file are given")
        if self.tls_client_certificate and not self.tls_ca_file:
            raise InvalidOption("tls_client_certificate", True, "off unless tls_ca_file is given")
        if self.tls_login_from != "off" and not self.tls_ca_file:
            raise InvalidOption("tls_login_from", self.tls_login_from, "off unless tls_ca_file is given")
        if self.oauth_resource_server_id and not (self.oauth_jwks_url or self.oauth_issuer):
            allowed = "empty unless oauth_jwks_url or oauth_issuer is given"
            raise InvalidOption("oauth_resource_server_id", self.oauth_resource_server_id, allowed)
        for name in ("oauth_jwks_url", "oauth_issuer"):
            url = getattr(self, name)
            if url and not url.startswith("https://"):
                raise InvalidOption(name, url, "a URL that begins with https://")
        self._check_backends()
        for source in self.proxy_sources:
            try:
                ipaddress.ip_network(source, strict=False)
            except ValueError:
                raise InvalidOption("proxy_sources", source, "an address or a network") from None
        if self.reset_administrator and not self.default_password_file:
            raise InvalidOption(
                "reset_administrator", self.reset_administrator, "empty unless default_password_file is given"
            )
        if len(self.zone.encode()) > ZONE_BYTES_MAX or not self.zone.isprintable():
            raise InvalidOption(
                "zone", self.zone, f"at most {ZONE_BYTES_MAX} bytes and only printable characters"
            )
        self._check_cluster()

    def _check_backends(self) -> None:
        backends, known = self.auth_backends, (INTERNAL_BACKEND, HTTP_BACKEND)
        if not backends or len(set(backends)) != len(backends) or not set(backends) <= set(known):
            raise InvalidOption("auth_backends", ",".join(backends), "made of internal and http, each once")
        for path in ("user", "vhost", "resource", "topic"):
            name = f"auth_http_{path}_path"
            url = getattr(self, name)
            if (url or HTTP_BACKEND in backends) and not url.startswith(("http://", "https://")):
                raise InvalidOption(name, url, "a URL that begins with https:// or http://")
        if bool(self.auth_http_cert_file) != bool(self.auth_http_key_file):
            raise InvalidOption(
                "auth_http_cert_file",
                self.auth_http_cert_file,
                "given with auth_http_key_file, or not at all",
            )

    def _check_cluster(self) -> None:
        addresses = self.peer_addresses
        if len(addresses) != len(self.peers):
            raise InvalidOption("peers", ",".join(self.peers), "made of name=host:port, each name once")
        if not self.peers:
            return
        if self.node not in addresses:
            raise InvalidOption(
                "peers", ",".join(self.peers), f"such that this node, {self.node}, is among them"
            )
        if not self.cluster_secret_file:
            raise InvalidOption("cluster_secret_file", "", "given when there are peers")
        tls = (self.cluster_tls_cert_file, self.cluster_tls_key_file, self.cluster_tls_ca_file)
        if any(tls) and not all(tls):
            raise InvalidOption(
                "cluster_tls_cert_file", tls[0], "given with its key and its authority, or none of them"
            )

    @property
    def peer_addresses(self) -> dict[str, tuple[str, int]]:
        """The nodes of the cluster by name, without malformed ones."""
        found: dict[str, tuple[str, int]] = {}
        for peer in self.peers:
            name, _, address = peer.partition("=")
            parsed = parse_address(address)
            if parsed is not None and _allowed_text("name", (), name):
                found[name] = parsed
        return found

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.shown())})"

    def shown(self) -> Iterator[tuple[str, object]]:
        """All fields and their values, without the secrets."""
        for declared in fields(self):
            secret = declared.name in SECRETS
            yield declared.name, "***" if secret else getattr(self, declared.name)

    @property
    def memory_limit_bytes(self) -> int:
        if _FRACTION.fullmatch(self.memory_limit):
            return int(float(self.memory_limit) * machine_memory_bytes())
        return parse_bytes(self.memory_limit) or 0

    @property
    def stream_read_budget_bytes(self) -> int:
        return min(self.stream_read_bytes_max, int(self.memory_limit_bytes * STREAM_READ_SHARE))

    @property
    def unsent_budget_bytes(self) -> int:
        return self.unsent_bytes_max or max(UNSENT_BYTES_MIN, int(self.memory_limit_bytes * UNSENT_SHARE))

    @property
    def shovels_budget_bytes(self) -> int:
        return self.shovels_bytes_max or max(SHARED_BYTES_MIN, int(self.memory_limit_bytes * SHOVELS_SHARE))

    @property
    def http_memory_budget_bytes(self) -> int:
        return self.http_memory_bytes_max or max(SHARED_BYTES_MIN, int(self.memory_limit_bytes * HTTP_SHARE))

    @property
    def declared_budget_bytes(self) -> int:
        return self.declared_bytes_max or max(
            DECLARED_BYTES_MIN, int(self.memory_limit_bytes * DECLARED_SHARE)
        )

    @property
    def body_budget_bytes(self) -> int:
        return self.memory_budget_bytes or int(self.memory_limit_bytes * MEMORY_BUDGET_SHARE)


def machine_memory_bytes() -> int:
    """The memory that this process may use: the machine's, or less if its control group says so."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as limit:
            text = limit.read().strip()
    except OSError:
        return physical
    return min(physical, int(text)) if text.isdigit() else physical


def parse_bytes(text: str) -> int | None:
    """`"131072"`, `"128 KiB"`, `"16m"`, `"2GB"`; None if it is no amount of bytes."""
    found = _BYTES.fullmatch(text)
    per = _BYTES_PER.get(found[2].lower()) if found else None
    return int(found[1]) * per if found and per else None


def age_ms(text: str) -> int:
    """Return the ms of `"2h"` or `"14D"`: a whole number above zero and Y, M, D, h, m or s. Raises
    ValueError.
    """
    found = _AGE.fullmatch(text)
    if found is None or not int(found[1]):
        raise ValueError(text)
    return int(found[1]) * _AGE_MS[found[2]]


def parse_address(text: str) -> tuple[str, int] | None:
    """`"127.0.0.1:5672"` or `"[::1]:5672"`; None if it is neither."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    return (host, int(port)) if colon and host and digits and int(port) <= 65_535 else None


def allowed_values(declared: Field[Any]) -> str:
    """Return the range of a field in words: `4096 to 16777216 bytes`."""
    about = declared.metadata
    if about["choices"]:
        return " or ".join(about["choices"])
    if about["kind"] == "memory":
        return "an amount of bytes such as 2GiB, or a share of the memory above 0.0 and up to 1.0"
    if about["kind"].startswith("address"):
        return "host:port such as 127.0.0.1:5672" + (", or empty" if about["kind"].endswith("off") else "")
    if about["kind"].startswith("age"):
        return "a whole number above zero and Y, M, D, h, m or s, such as 14D, or empty"
    if about["kind"] == "name":
        return "1 to 64 letters, digits, '-', '_' or '.'"
    if about["low"] is not None:
        return f"{about['low']} to {about['high']} {about['unit']}".rstrip()
    return "on or off" if isinstance(declared.default, bool) else "a text that is not empty"


def check(declared: Field[Any], value: object) -> None:
    """Raises InvalidOption unless the field may hold this value."""
    if not _allowed(declared, value):
        raise InvalidOption(declared.name, value, allowed_values(declared))


def _allowed(declared: Field[Any], value: object) -> bool:
    about = declared.metadata
    default = declared.default
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, (int, float)):
        right_type = isinstance(value, int) or (isinstance(default, float) and isinstance(value, float))
        return right_type and bool(about["low"] <= value <= about["high"])
    if isinstance(default, tuple):
        return isinstance(value, tuple) and all(isinstance(part, str) for part in value)
    return (
        isinstance(value, str) and "\0" not in value and _allowed_text(about["kind"], about["choices"], value)
    )


def _allowed_text(kind: str, choices: tuple[str, ...], value: str) -> bool:
    if choices:
        return value in choices
    if kind.startswith("address"):
        return parse_address(value) is not None or (kind.endswith("off") and not value)
    if kind == "memory":
        if _FRACTION.fullmatch(value):
            return 0 < float(value) <= 1
        return bool(parse_bytes(value))
    if kind.startswith("age"):
        found = _AGE.fullmatch(value)
        return not value or (found is not None and int(found[1]) > 0)
    if kind == "name":
        return re.fullmatch(r"[A-Za-z0-9._-]{1,64}", value) is not None
    return bool(value) or kind != "text"
