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

from amqp_server.spelling import hint
from amqp_server.startup import stream_remotes
from amqp_server.startup.stream_remotes import StreamRemote, parse_remote

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
#: The backends that check passwords and decide what their users may do; see `auth_backends`.
INTERNAL_BACKEND, HTTP_BACKEND = "internal", "http"
#: Most workers of a node, and the value of the option that means one for each core.
WORKERS_MAX, AUTO = 64, "auto"
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

#: Earlier names of options. They are still accepted, with a warning.
RENAMED = {
    "topic_hashes_again_max": "topic_extra_hashes_max",
    "queue_revivals_max": "queue_restart_tries_max",
}


def option(
    default: Any,
    text: str,
    *,
    common: bool = False,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    kind: str = "",
    section: str = "",
) -> Any:
    """A field of `Config`. `common`: it is in `mqd --help`, and not only in `mqd --help-all`. `kind` is what
    a text means beyond being one: address, memory, name.
    """
    about: dict[str, object] = {"text": text, "common": common, "unit": unit, "low": low, "high": high}
    about |= {"choices": choices, "kind": kind, "section": section}
    return field(default=default, metadata=about)


# No `repr` is made, nor the docstring that dataclass would make: of so many fields they take 3 ms of each
# start.
@dataclass(frozen=True, kw_only=True, repr=False)
class Config:
    """All options, checked. Raises InvalidOption."""

    data_dir: str = option(
        "./mqd-data",
        "Directory of everything that this node stores; created if missing.",
        common=True,
        section="Node",
        kind="text",
    )
    node: str = option("n1", "Name of this node, unique in the cluster.", common=True, kind="name")
    workers: str = option(
        "1",
        "Processes of this node, each on a core of its own; auto: one for each core.",
        common=True,
        unit="count",
        kind="workers",
    )
    reserve_cores: int = option(
        0, "Cores that `--workers auto` leaves to other programs.", low=0, high=WORKERS_MAX
    )
    worker_affinity: bool = option(
        True,
        "Whether a client's connection goes to the worker that has the queue it uses first.",
    )
    pin_workers: bool = option(False, "Whether each worker stays on one core.")
    worker_restarts_max: int = option(
        5,
        "How often in a row the node restarts a worker that ends within 10 s of its start, before it leaves it down.",
        low=0,
        high=1_000,
    )
    log_level: str = option(
        "info",
        "Least severe level of the lines that are logged.",
        common=True,
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = option(
        "text",
        "Format of log lines: plain text, or one JSON object per line.",
        common=True,
        choices=("text", "json"),
    )
    log_lines_max: int = option(
        100,
        "Log lines of one kind that one address or user may cause within 10 s; further lines are counted, "
        "and one line reports the count.",
        low=1,
        high=1_000_000,
    )
    log_queue_lines_max: int = option(
        10_000,
        "Log lines that may wait until stderr accepts them; further lines are dropped and counted.",
        low=16,
        high=10_000_000,
    )
    announce_product: str = option(
        "mqd",
        "Product name that clients and the management API report. Change it for software that insists on "
        "RabbitMQ.",
        kind="text",
    )
    announce_version: str = option(
        VERSION, "Version that clients and the management API report.", kind="text"
    )

    amqp: str = option(
        "127.0.0.1:5672",
        "Address of the AMQP listener; port 0 picks a free port.",
        common=True,
        unit="host:port",
        kind="address",
        section="Listeners",
    )
    amqps: str = option(
        "",
        "Address of the AMQP listener with TLS; empty: none. Needs tls_cert_file and tls_key_file.",
        common=True,
        unit="host:port",
        kind="address or off",
    )
    http: str = option(
        "127.0.0.1:15672",
        "Address of the management listener (HTTP API and page); empty: none.",
        common=True,
        unit="host:port",
        kind="address or off",
    )
    metrics: str = option(
        "",
        "Address of a listener for Prometheus that needs no login (RabbitMQ uses port 15692); empty: none.",
        common=True,
        unit="host:port",
        kind="address or off",
    )
    tls_cert_file: str = option(
        "",
        "Certificate of the TLS listener, followed by its intermediate certificates.",
        common=True,
        unit="PEM file",
    )
    tls_key_file: str = option("", "Private key of the TLS listener.", common=True, unit="PEM file")
    tls_ca_file: str = option(
        "",
        "Certificate authorities that sign client certificates; empty: clients are asked for none.",
        common=True,
        unit="PEM file",
    )
    tls_check_s: float = option(
        10.0,
        "Interval of checks whether certificate files have changed on disk, those of the cluster "
        "included; changed files are reloaded.",
        unit="s",
        low=0.1,
        high=86_400,
    )
    certificate_alarm_days: int = option(
        14,
        "Raise an alarm, which blocks nobody, when a certificate expires within this time; 0: never.",
        unit="days",
        low=0,
        high=10_000,
    )
    tls_client_certificate: bool = option(
        False, "Refuse TLS clients without a certificate that tls_ca_file has signed."
    )
    tls_login_from: str = option(
        "off",
        "Part of the client certificate that is the user name for logins with EXTERNAL; off: no such logins.",
        choices=("off", "distinguished_name", "common_name", "subject_alternative_name"),
    )
    tls_login_san_type: str = option(
        "dns",
        "Type of the alternative name that is the user name, with tls_login_from = subject_alternative_name.",
        choices=("dns", "ip", "email", "uri"),
    )
    tls_login_san_index: int = option(
        0, "Position of that name among the alternative names of its type, counted from 0.", low=0, high=1_000
    )
    proxy_sources: tuple[str, ...] = option(
        (),
        "Load balancers whose connections begin with a PROXY header (version 1 or 2), on all listeners "
        "except that of metrics.",
        unit="addresses and networks, with commas between",
    )
    proxy_header_bytes_max: int = option(4 * KIB, "Largest PROXY header.", unit="bytes", low=232, high=65_551)
    listen_backlog: int = option(
        1024,
        "New connections that the kernel may queue for each listener until the node accepts them.",
        low=1,
        high=65_535,
    )

    peers: tuple[str, ...] = option(
        (),
        "All nodes of the cluster, this one included, as name=host:port; empty: a single node.",
        common=True,
        unit="names and addresses, with commas between",
        section="Cluster",
    )
    cluster_answer_ms: int = option(
        2_000,
        "How long a management request waits for the other nodes; the answer lacks the part of a node "
        "that is late.",
        unit="ms",
        low=10,
        high=60_000,
    )
    cluster_answer_bytes_max: int = option(
        64 * MIB,
        "Largest answer of another node to a management request.",
        unit="bytes",
        low=MIB,
        high=4 * GIB,
    )
    zone: str = option(
        "",
        "Failure domain of this node (rack, room, data centre). The members of a queue are placed in "
        "different zones if possible.",
        unit="name",
    )
    cluster_listen: str = option(
        "",
        "Address of the listener for other nodes, if it is not this node's address in peers.",
        common=True,
        unit="host:port",
        kind="address or off",
    )
    cluster_secret_file: str = option(
        "",
        "File with the secret that all nodes of the cluster share, at least 16 bytes.",
        common=True,
        unit="file",
    )
    cluster_tls_cert_file: str = option(
        "",
        "Certificate of this node for links to other nodes; empty: links without TLS.",
        common=True,
        unit="PEM file",
    )
    cluster_tls_key_file: str = option(
        "", "Private key of cluster_tls_cert_file.", common=True, unit="PEM file"
    )
    cluster_tls_ca_file: str = option(
        "",
        "Certificate authority that has signed the certificates of all nodes.",
        common=True,
        unit="PEM file",
    )
    cluster_frame_bytes_max: int = option(
        192 * MIB,
        "Largest frame between nodes; a value below 192 MiB counts as 192 MiB.",
        unit="bytes",
        low=MIB,
        high=GIB,
    )
    cluster_queue_bytes_max: int = option(
        GIB,
        "Bytes that may wait to be sent to one node; above this, the link to it is closed. A value below "
        "384 MiB counts as 384 MiB.",
        unit="bytes",
        low=MIB,
        high=64 * GIB,
    )
    cluster_heartbeat_ms: int = option(
        100, "Interval of heartbeats on the link between two nodes.", unit="ms", low=10, high=60_000
    )
    cluster_dead_ms: int = option(
        1_000,
        "Silence after which the link to another node counts as broken. Raise it for slow networks.",
        unit="ms",
        low=50,
        high=600_000,
    )
    cluster_reach_ms: int = option(
        500,
        "How long the link to a node that is alive must be broken before leaders move to a node that "
        "reaches more members.",
        unit="ms",
        low=50,
        high=600_000,
    )
    cluster_steady_ms: int = option(
        10_000,
        "How long a link that was broken must work before leaders return to the nodes at its ends.",
        unit="ms",
        low=0,
        high=3_600_000,
    )
    cluster_strangers_max: int = option(
        32,
        "Connections to the cluster listener that have not shown yet that they know the secret.",
        low=1,
        high=10_000,
    )
    election_ms: int = option(
        500,
        "How long a member hears nothing from its leader before it starts an election. Raise it for slow "
        "networks or disks.",
        unit="ms",
        low=50,
        high=600_000,
    )
    node_down_ms: int = option(
        1_500,
        "How long a node may be unreachable before the unacked messages of its consumers go to other "
        "consumers.",
        unit="ms",
        low=0,
        high=3_600_000,
    )
    gather_ms: int = option(
        2,
        "How long a leader collects small batches for one log entry, if a quorum queue gets more of them "
        "than it can commit one by one.",
        unit="ms",
        low=0,
        high=1_000,
    )
    disk_stall_ms: int = option(
        2_000,
        "Duration of one disk write after which this node hands its leaderships to other nodes.",
        unit="ms",
        low=100,
        high=600_000,
    )
    read_index_timeout_ms: int = option(
        2_000,
        "How long a count of messages or consumers waits for the queue's leader and a majority; after "
        "that, the count is this node's own and may be old.",
        unit="ms",
        low=10,
        high=600_000,
    )
    change_timeout_ms: int = option(
        10_000,
        "How long a change of the topology (a declare, a bind, a new user) waits for a majority before it "
        "is refused.",
        unit="ms",
        low=100,
        high=600_000,
    )
    drain_timeout_s: float = option(
        10.0,
        "How long a node that stops may take to hand its leaderships to other nodes.",
        unit="s",
        low=0,
        high=600,
    )
    drain_connections_per_s: int = option(
        100,
        "Connections that a node closes in a second after `mqctl drain`.",
        unit="connections/s",
        low=1,
        high=1_000_000,
    )
    rebalance_ms: int = option(
        2_000,
        "Interval of checks whether leaders should move to other nodes.",
        unit="ms",
        low=100,
        high=3_600_000,
    )
    handover_groups: int = option(
        100,
        "Leaderships that a node hands over per 50 ms to nodes that reach more members.",
        unit="queues",
        low=1,
        high=100_000,
    )
    group_size: int = option(
        3,
        "Number of members (nodes with a copy) of a quorum queue or stream, unless its declaration says "
        "otherwise.",
        low=1,
        high=99,
    )
    queue_leader_locator: str = option(
        "balanced",
        "Node that leads a new quorum queue: the client's node (client-local), or the one that leads the "
        "fewest queues (balanced).",
        choices=("client-local", "balanced"),
    )
    snapshot_bytes: int = option(
        4 * MIB,
        "Size of log entries after which a quorum queue writes a snapshot of its state.",
        unit="bytes",
        low=64 * KIB,
        high=GIB,
    )
    snapshot_entries: int = option(
        2_048,
        "Number of log entries after which a quorum queue writes a snapshot of its state, even if they "
        "are small.",
        low=16,
        high=10_000_000,
    )
    log_bytes_max: int = option(
        64 * MIB,
        "Size of the log that a leader keeps for a member that is behind; a member that is further behind "
        "gets a snapshot.",
        unit="bytes",
        low=MIB,
        high=64 * GIB,
    )
    transfer_bytes_max: int = option(
        8 * MIB, "Bytes of snapshots that may wait on the link to one node.", unit="bytes", low=MIB, high=GIB
    )
    transfer_timeout_ms: int = option(
        10_000,
        "How long a snapshot transfer to another node may stand still before it starts again.",
        unit="ms",
        low=100,
        high=3_600_000,
    )
    lost_entry_retry_ms: int = option(
        1_000,
        "Interval at which a node asks other members for log entries that its own disk has lost.",
        unit="ms",
        low=50,
        high=600_000,
    )
    lost_entry_report_ms: int = option(
        60_000,
        "Interval of log lines about the lost log entries of one queue.",
        unit="ms",
        low=50,
        high=86_400_000,
    )
    lost_entry_refill_ms: int = option(
        5_000,
        "Time that a member with an emptied log has to be filled again before another member of the queue "
        "may empty its own.",
        unit="ms",
        low=50,
        high=600_000,
    )
    quorum_read_ahead_bytes: int = option(
        MIB,
        "Message bodies that each quorum queue reads from disk ahead of its consumers.",
        unit="bytes",
        low=4 * KIB,
        high=GIB,
    )
    bodies_bytes: int = option(
        64 * MIB,
        "Memory for message bodies that all quorum queues share; other bodies are read from disk.",
        unit="bytes",
        low=MIB,
        high=1 << 40,
    )

    connections_max: int = option(
        20_000,
        "Open AMQP connections; further ones are refused. A low limit of open files allows fewer.",
        common=True,
        low=1,
        high=1_000_000,
        section="Connections and channels",
    )
    files_reserved: int = option(
        128,
        "File descriptors that connections leave to the node itself, at most half of the limit of open "
        "files; those for links to other nodes come on top.",
        low=16,
        high=1_000_000,
    )
    half_open_max: int = option(
        1_000,
        "Connections that have not logged in yet; at the limit, a new one replaces the oldest one of the "
        "address that has most of them.",
        low=1,
        high=1_000_000,
    )
    half_open_per_address_max: int = option(
        500, "Connections of one address that have not logged in yet.", low=1, high=1_000_000
    )
    handshake_timeout_s: float = option(
        10.0, "Time for a client to log in and open a virtual host.", unit="s", low=0.1, high=600
    )
    close_wait_s: float = option(
        30.0,
        "Time for a client to close its socket after connection.close-ok; at most one heartbeat interval.",
        unit="s",
        low=0,
        high=600,
    )
    handshake_frame_bytes_max: int = option(
        8 * KIB,
        "Largest frame that a client may send before its login. Raise it for long tokens.",
        unit="bytes",
        low=4 * KIB,
        high=MIB,
    )
    frame_max_bytes: int = option(
        128 * KIB,
        "Largest frame after the login, offered in connection.tune.",
        unit="bytes",
        low=4 * KIB,
        high=16 * MIB,
    )
    channel_max: int = option(
        2_047, "Channels per connection, offered in connection.tune.", low=1, high=65_535
    )
    channels_max: int = option(
        200_000, "Open channels of all connections to this node.", low=1, high=10_000_000
    )
    heartbeat_s: int = option(
        60, "Heartbeat interval offered in connection.tune; 0: no heartbeats.", unit="s", low=0, high=65_535
    )
    receive_bytes: int = option(
        MIB, "Most bytes that the node reads from a socket at once.", unit="bytes", low=4 * KIB, high=16 * MIB
    )
    outbox_high_bytes: int = option(
        MIB,
        "Unsent bytes of one connection above which its consumers get no messages.",
        unit="bytes",
        low=4 * KIB,
        high=GIB,
    )
    outbox_low_bytes: int = option(
        256 * KIB,
        "Unsent bytes of one connection below which its consumers get messages again.",
        unit="bytes",
        low=0,
        high=GIB,
    )

    unsent_bytes_max: int = option(
        0,
        "Unsent bytes of all connections together. Above this, large messages stay on disk, and "
        "connections that take nothing for unfinished_timeout_s are closed. 0: a quarter of the memory "
        "limit.",
        unit="bytes",
        low=0,
        high=1 << 50,
    )
    blocked_input_bytes_max: int = option(
        MIB,
        "Bytes that a publisher may send while an alarm blocks it; after that, its connection is not "
        "read, so its acks wait as well.",
        unit="bytes",
        low=4 * KIB,
        high=GIB,
    )
    unfinished_bytes_max: int = option(
        512 * MIB,
        "Bytes of unfinished messages of one connection (their last frame, or the commit of their "
        "transaction, is missing); above this, it is closed.",
        unit="bytes",
        low=MIB,
        high=1 << 40,
    )
    unfinished_timeout_s: float = option(
        10.0,
        "How long a connection may keep unfinished messages during a memory alarm, or unsent data above "
        "unsent_bytes_max, without progress; then it is closed. 0: for ever.",
        unit="s",
        low=0,
        high=3_600,
    )
    unfinished_bytes_kept: int = option(
        MIB,
        "A connection with at most this much unfinished or unsent data is not closed for it.",
        unit="bytes",
        low=4 * KIB,
        high=GIB,
    )
    suspended_input_bytes_max: int = option(
        MIB,
        "Bytes that are read behind a method whose answer is pending; after that, the connection is not "
        "read until the answer is there.",
        unit="bytes",
        low=4 * KIB,
        high=GIB,
    )

    message_bytes_max: int = option(
        128 * MIB,
        "Largest message body.",
        common=True,
        unit="bytes",
        low=1,
        high=128 * MIB,
        section="Messages and queues",
    )
    incoming_timestamp: str = option(
        "never",
        "Whether the node writes into messages of clients when they came: the header timestamp_in_ms and the property "
        "timestamp; always, or where they are missing.",
        choices=("never", "missing", "always"),
    )
    incoming_routing_node: str = option(
        "never",
        "The same of the name of the node to which the publisher is connected: the header x-routed-by.",
        choices=("never", "missing", "always"),
    )
    tx_bytes_max: int = option(
        128 * MIB,
        "Bytes of the messages in one transaction; above this, the channel is closed.",
        unit="bytes",
        low=KIB,
        high=1 << 40,
    )
    tx_parts_max: int = option(
        20_000,
        "Parts of one transaction (a message for one queue, or a run of acks, is one); above this, the "
        "channel is closed. Other commits wait for a large transaction.",
        low=1_000,
        high=10_000_000,
    )
    tx_timeout_ms: int = option(
        300_000,
        "How long a transaction may stay open, from its first publish or ack; then it is rolled back, and its "
        "channel closed with 406. 0: no limit.",
        unit="ms",
        low=0,
        high=315_360_000_000,
    )
    tx_producers_max: int = option(
        100_000,
        "Producers of transactions whose epoch (x-producer-epoch) is remembered; the one whose epoch was "
        "raised longest ago is forgotten first.",
        low=1,
        high=10_000_000,
    )
    tx_decision_ms: int = option(
        10_000,
        "How long the queues of a cluster keep their parts of a transaction that nobody decides about, before "
        "they have it rolled back. If the node that commits it is down, they do not wait.",
        unit="ms",
        low=1_000,
        high=3_600_000,
    )
    table_depth_max: int = option(
        128,
        "Levels of tables and arrays in one field table from a client; with more, the connection is closed.",
        unit="levels",
        low=1,
        high=128,
    )
    vhosts_max: int = option(1_000, "Virtual hosts.", low=1, high=1_000_000)
    event_exchange_vhost: str = option(
        "",
        "Virtual host in which the exchange amq.rabbitmq.event gets a message for each change and each "
        "connection; empty: none.",
        unit="virtual host",
    )
    event_waiting_max: int = option(
        100_000,
        "Messages for amq.rabbitmq.event that may wait to be published; further ones are dropped.",
        low=16,
        high=10_000_000,
    )
    parameters_max: int = option(
        10_000,
        "Runtime parameters, including policies and the limits of virtual hosts and users.",
        low=1,
        high=1_000_000,
    )
    parameter_bytes_max: int = option(
        64 * KIB, "Largest value of one runtime parameter or policy.", unit="bytes", low=KIB, high=MIB
    )
    parameters_bytes_max: int = option(
        64 * MIB,
        "Total size of the values of all runtime parameters and policies.",
        unit="bytes",
        low=64 * KIB,
        high=64 * GIB,
    )
    queues_max: int = option(100_000, "Queues of all virtual hosts, on all nodes.", low=1, high=10_000_000)
    exchanges_max: int = option(100_000, "Exchanges of all virtual hosts.", low=1, high=10_000_000)
    bindings_max: int = option(1_000_000, "Bindings of all virtual hosts.", low=1, high=100_000_000)
    declared_bytes_max: int = option(
        0,
        "Estimated memory for queues, exchanges, bindings and consumers with their arguments; above this, "
        "no more are created. 0: half of the memory limit.",
        unit="bytes",
        low=0,
        high=1 << 50,
    )
    default_queue_type: str = option(
        "classic",
        "Type of durable queues declared without one, if their virtual host has no default type.",
        common=True,
        choices=("classic", "quorum"),
    )
    stream_segment_bytes: int = option(
        500_000_000,
        "Size at which a stream begins its next segment, unless the stream is declared with another size.",
        unit="bytes",
        low=64 * KIB,
        high=3_000_000_000,
        section="Streams",
    )
    stream_segment_bytes_min: int = option(
        16 * KIB,
        "Smallest segment size. A smaller one in a declaration or policy is raised to it, because each "
        "segment is two files.",
        unit="bytes",
        low=1,
        high=64 * MIB,
    )
    stream_max_age: str = option(
        "",
        "Age at which segments are deleted (such as 14D), for streams declared without x-max-age; empty: "
        "never.",
        unit="a number and Y, M, D, h, m or s",
        kind="age or off",
    )
    stream_max_bytes: int = option(
        0,
        "Size of a stream above which its oldest segments are deleted, for streams declared without "
        "x-max-length-bytes; 0: no limit.",
        unit="bytes",
        low=0,
        high=1 << 50,
    )
    stream_flush_bytes: int = option(
        MIB,
        "Bytes of one stream in the journal at which the node moves them to the segment file.",
        unit="bytes",
        low=4 * KIB,
        high=GIB,
    )
    stream_flush_batches: int = option(
        128,
        "Batches of one stream in the journal at which the node moves them to the segment file. A message "
        "that is published alone is one batch.",
        low=1,
        high=1_000_000,
    )
    stream_flush_ms: int = option(
        5_000,
        "Time after which the node moves data of a stream from the journal to the segment file, however "
        "little it is.",
        unit="ms",
        low=10,
        high=3_600_000,
    )
    stream_readers: int = option(2, "Threads that read segment files.", low=1, high=64)
    stream_read_bytes_max: int = option(
        256 * MIB,
        "Data that all consumers of streams together may have read ahead, at most an eighth of the memory "
        "limit; above this, further reads wait.",
        unit="bytes",
        low=MIB,
        high=64 * GIB,
    )
    stream_compression: str = option(
        "lz4",
        "Compression of streams declared without x-stream-compression.",
        choices=("zstd", "lz4", "none"),
    )
    stream_tombstone_age: str = option(
        "1D",
        "Time for which tombstones of compacted streams declared without x-stream-tombstone-age stay after the messages that "
        "they delete.",
        unit="a number and Y, M, D, h, m or s",
        kind="age",
    )
    stream_compaction_dirty_percent: int = option(
        50,
        "Share of new data in the closed segments of a compacted stream at which compaction rewrites them.",
        unit="percent",
        low=1,
        high=100,
    )
    stream_compaction_memory_bytes: int = option(
        64 * MIB,
        "Memory for keys during the compaction of a stream; with more keys, it takes several passes.",
        unit="bytes",
        low=MIB,
        high=64 * GIB,
    )
    stream_compaction_bytes_per_s: int = option(
        16 * MIB,
        "Bytes that compaction reads and writes per second. Raise it if compaction does not keep up with "
        "publishers.",
        unit="bytes per second",
        low=64 * KIB,
        high=64 * GIB,
    )
    stream_remotes: tuple[str, ...] = option(
        (),
        "Object stores for old segments of streams (x-stream-remote), as name=url: s3://bucket/prefix, gs://, az:// or "
        "file:///directory. In the file, a table [stream_remotes.NAME] with url, region, endpoint, allow_http, "
        "credentials_file and catalog_file.",
        unit="name=url, with commas between",
    )
    stream_remote_cache_bytes: int = option(
        64 * MIB,
        "Memory for data of streams that was read from object stores.",
        unit="bytes",
        low=0,
        high=64 * GIB,
    )
    stream_remote_readers: int = option(4, "Threads that read streams from object stores.", low=1, high=64)
    stream_remote_timeout_ms: int = option(
        60_000,
        "Time for which a consumer waits for an object store that fails; then it is cancelled.",
        unit="ms",
        low=100,
        high=3_600_000,
    )
    stream_table_group_bytes: int = option(
        32 * MIB,
        "Size of messages that become one row group of a table's file (x-stream-table). The process that writes "
        "tables needs a few times this memory.",
        unit="bytes",
        low=MIB,
        high=GIB,
    )
    stream_table_timeout_ms: int = option(
        1_800_000,
        "Time for writing one file of a table, and for its commit to a catalog. Then the process that writes is "
        "killed, and tries again later.",
        unit="ms",
        low=1_000,
        high=86_400_000,
    )
    stream_names_max: int = option(
        1_000,
        "Offsets that one stream stores by name (x-group); consumers with further names are refused with "
        "406.",
        low=1,
        high=1_000_000,
    )
    stream_begin_timeout_ms: int = option(
        10_000,
        "Time for which a consumer of a stream in a cluster that begins at `next`, `last` or a time waits for a majority "
        "of the stream's members; then it is refused with 506.",
        unit="ms",
        low=100,
        high=600_000,
    )
    super_stream_partitions_max: int = option(1_000, "Partitions of one super stream.", low=1, high=10_000)
    consumer_timeout_ms: int = option(
        1_800_000,
        "How long a channel may hold a delivery without an ack; then it is closed (406), or the consumer of a "
        "quorum queue is cancelled. 0: no limit.",
        common=True,
        unit="ms",
        low=0,
        high=315_360_000_000,
        section="Consumers and routing",
    )
    group_consumer_timeout_ms: int = option(
        1_800_000,
        "How long a member of a consumer group may hold a message without an ack; after that, it is "
        "cancelled. For groups declared without x-consumer-timeout.",
        unit="ms",
        low=1,
        high=315_360_000_000,
    )
    group_commit_ms: int = option(
        50,
        "How long the acks of a consumer group wait to be written to disk together; they go earlier if "
        "something else is written.",
        unit="ms",
        low=0,
        high=60_000,
    )
    group_gaps_max: int = option(
        4_096,
        "Runs of unacked messages that a consumer group remembers per partition; at the limit, its member "
        "gets no new messages until it acks some.",
        low=16,
        high=1_000_000,
    )
    consumers_per_channel_max: int = option(10_000, "Consumers on one channel.", low=1, high=1_000_000)
    deduplication_producers_max: int = option(
        100_000,
        "Producers with sequence numbers that a queue declared on this node remembers; the one that is "
        "idle longest is forgotten first.",
        low=1,
        high=1_000_000,
    )
    message_status_window_ms: int = option(
        0,
        "How long queues record what became of each message, unless their argument x-message-status or a "
        "policy says otherwise. 0: only queues that ask do. Must be the same on all nodes.",
        unit="ms",
        low=0,
        high=315_360_000_000,
    )
    message_status_count: int = option(
        100_000,
        "Messages that the record of such a queue has; the oldest is forgotten first. Must be the same on all "
        "nodes.",
        low=1,
        high=1_000_000,
    )
    message_status_queues_max: int = option(
        1_000,
        "Queues that one question about a message may ask, if it names none; further ones are left out, and "
        "the answer says so.",
        low=1,
        high=100_000,
    )
    alternates_max: int = option(
        1_000,
        "Alternate exchanges that one message may go to; further ones are ignored.",
        low=1,
        high=100_000,
    )
    routing_steps_max: int = option(
        1_000_000,
        "Routing steps of one message: each exchange on its way counts once per routing key (CC and BCC "
        "included). A message that needs more is refused.",
        low=1_000,
        high=1_000_000_000,
    )
    topic_hashes_max: int = option(16, "`#` words in one topic binding key.", low=1, high=64)
    topic_extra_hashes_max: int = option(
        10_000,
        "Extra `#` words (beyond the first in each binding key) that one topic exchange may have in total.",
        low=0,
        high=100_000_000,
    )
    queue_restart_tries_max: int = option(
        3,
        "How often the node restarts a queue that has failed before it sets the queue aside (see mqctl "
        "list_failed).",
        low=0,
        high=1_000,
        section="Failed queues",
    )
    queue_failure_memory_ms: int = option(
        60_000,
        "How long a restarted queue must run before its earlier failures are forgotten.",
        unit="ms",
        low=0,
        high=86_400_000,
    )
    log_bytes: int = option(
        4 * MIB,
        "Size of the write-ahead log, a file for small commits in front of the data file; 0: no log.",
        unit="bytes",
        low=0,
        high=GIB,
        section="Commits",
    )
    ack_wait_us: int = option(
        300,
        "How long a commit waits for acks when all its messages are already delivered; acked messages are "
        "not written. 0: never.",
        unit="µs",
        low=0,
        high=5_000,
    )
    log_commit_bytes_max: int = option(
        64 * KIB,
        "Largest commit that is written to the write-ahead log; larger ones go directly to the data file.",
        unit="bytes",
        low=0,
        high=64 * MIB,
    )
    unsynced_high_bytes: int = option(
        64 * MIB,
        "Published bytes that are not yet on disk above which publishers are not read.",
        unit="bytes",
        low=MIB,
        high=16 * GIB,
    )
    unsynced_share_bytes: int = option(
        64 * KIB,
        "Bytes that each connection may publish while others wait for the disk, so that small publishers "
        "do not wait for large ones. With very many connections it is less.",
        unit="bytes",
        low=0,
        high=GIB,
    )

    memory_limit: str = option(
        "0.6",
        "Memory of this process above which publishers are blocked.",
        common=True,
        unit="bytes, or share of the machine's memory",
        kind="memory",
        section="Memory and disk",
    )
    memory_budget_bytes: int = option(
        0,
        "Message bodies in memory above which the node moves bodies to disk. 0: 40 % of the memory limit.",
        unit="bytes",
        low=0,
        high=1 << 50,
    )
    read_ahead_bytes: int = option(
        512 * KIB,
        "Message bodies that each queue brings back into memory ahead of its consumers.",
        unit="bytes",
        low=4 * KIB,
        high=GIB,
    )
    disk_read_ahead_bytes: int = option(
        4 * MIB,
        "Message bodies behind these that the disk is asked for in advance.",
        unit="bytes",
        low=4 * KIB,
        high=GIB,
    )
    disk_free_min_bytes: int = option(
        2 * GIB,
        "Free disk space below which publishers are blocked.",
        common=True,
        unit="bytes",
        low=0,
        high=1 << 50,
    )
    clock_step_max_s: float = option(
        60.0,
        "Raise an alarm, which blocks nobody, when the wall clock was set forward or back by more than this.",
        unit="s",
        low=1,
        high=86_400_000,
    )
    clock_alarm_s: float = option(
        3_600.0,
        "How long the alarm of a clock that was set lasts, if the clock is not set right before.",
        unit="s",
        low=1,
        high=86_400_000,
    )

    switch_fast_path: bool = option(
        True,
        "Reuse what was decoded from a frame when a client repeats it. Turn it off only to look for an "
        "error.",
        section="Fast path",
    )
    turn_ms: int = option(
        4,
        "How long the node works for one client before others get their turn.",
        unit="ms",
        low=1,
        high=60_000,
    )
    memo_entries_max: int = option(
        16_384, "Decoded frames that the node remembers for each connection.", low=16, high=10_000_000
    )
    memo_bytes_max: int = option(
        64 * MIB,
        "Estimated memory for the decoded frames of all connections; when it is used up, all are forgotten.",
        unit="bytes",
        low=64 * KIB,
        high=1 << 40,
    )

    default_user: str = option(
        "guest",
        "Administrator that is created if there are no users.",
        common=True,
        kind="text",
        section="Users and management",
    )
    default_password: str = option(
        "guest",
        "Password of default_user, if there is no default_password_file. Other users of this machine can "
        "see it in ps.",
        kind="text",
    )
    password_hashing: str = option(
        "argon2id",
        "How new passwords are hashed. rabbitmq: as RabbitMQ does (salted SHA-256, weaker), and hashes from "
        "RabbitMQ stay as they are, so that users can go back to RabbitMQ by definitions.",
        choices=("argon2id", "rabbitmq"),
    )
    default_password_file: str = option(
        "",
        "File with the password of default_user, readable only by its owner.",
        common=True,
        unit="file",
    )
    reset_administrator: str = option(
        "",
        "User that is made an administrator at this start, with the password in default_password_file. "
        "Use it if no administrator can log in.",
        unit="user",
    )
    accept_topology_loss: int = option(
        0,
        "First of the entries of the topology's log that no node can read. The node gives up all of them; "
        "see docs/cluster.md.",
        unit="entry",
        low=0,
        high=1 << 62,
    )
    load_definitions: str = option(
        "",
        "File of definitions (RabbitMQ's or mqd's) to import at each start; then there is no default user.",
        common=True,
        unit="file",
    )
    default_vhost: str = option("/", "Virtual host that is created if there is none.", kind="text")
    loopback_users: tuple[str, ...] = option(
        ("guest",),
        "Users who may log in from this machine only.",
        common=True,
        unit="names, with commas between",
    )
    users_max: int = option(100_000, "Users.", low=1, high=10_000_000)
    login_memory_s: float = option(
        30.0,
        "How long a checked password or token is accepted without another check.",
        unit="s",
        low=0,
        high=3_600,
    )
    login_memory_entries_max: int = option(
        10_000, "Checked passwords and tokens that are remembered.", low=1, high=1_000_000
    )
    password_checks_max: int = option(
        0, "Passwords that are checked at the same time; 0: half the number of processors.", low=0, high=1_000
    )
    password_checks_waiting_max: int = option(
        64,
        "Logins of one address that may wait for their check; further ones are refused.",
        low=1,
        high=10_000,
    )
    login_failures_free: int = option(
        20, "Failed logins of one address before its further logins are delayed.", low=0, high=1_000_000
    )
    login_back_off_max_s: float = option(
        5.0, "Longest delay of a login after failed logins of its address.", unit="s", low=0, high=600
    )
    login_failure_memory_s: float = option(
        60.0,
        "Time without a failed login after which the failed logins of an address are forgotten.",
        unit="s",
        low=0,
        high=86_400,
    )
    login_sources_max: int = option(
        10_000, "Addresses whose failed logins are remembered.", low=1, high=1_000_000
    )
    permission_pattern_bytes_max: int = option(
        4 * KIB, "Longest pattern of a permission or a policy.", unit="bytes", low=16, high=MIB
    )
    permission_match_ms: int = option(
        10,
        "Time for one match of a pattern with look-around or back-references; if it takes longer, the "
        "pattern does not match.",
        unit="ms",
        low=1,
        high=10_000,
    )
    permission_match_total_ms: int = option(
        100,
        "Total time by which such a pattern may exceed permission_match_ms; after that, it matches no "
        "further names until it is set again.",
        unit="ms",
        low=1,
        high=600_000,
    )
    auth_backends: tuple[str, ...] = option(
        (INTERNAL_BACKEND,),
        "Password backends, tried in this order: internal (this broker's users), http (your own server).",
        unit="internal and http, with commas between",
    )
    auth_http_user_path: str = option(
        "",
        "URL of the HTTP backend that answers whether a password is right, and with which tags.",
        unit="URL",
    )
    auth_http_vhost_path: str = option(
        "", "URL of the HTTP backend that answers whether a user may open a virtual host.", unit="URL"
    )
    auth_http_resource_path: str = option(
        "",
        "URL of the HTTP backend that answers whether a user may configure, write or read a queue or an "
        "exchange.",
        unit="URL",
    )
    auth_http_topic_path: str = option(
        "",
        "URL of the HTTP backend that answers whether a user may use a routing key of a topic exchange.",
        unit="URL",
    )
    auth_http_method: str = option(
        "post",
        "HTTP method of requests to the HTTP backend. With get, passwords are in the query, which web "
        "servers log.",
        choices=("post", "get"),
    )
    auth_http_ca_file: str = option(
        "",
        "Certificate authorities for the HTTP backend's certificate; empty: those of the system.",
        unit="PEM file",
    )
    auth_http_cert_file: str = option(
        "", "Client certificate for the HTTP backend; empty: none.", unit="PEM file"
    )
    auth_http_key_file: str = option("", "Private key of auth_http_cert_file.", unit="PEM file")
    auth_http_timeout_s: float = option(
        5.0,
        "How long the node waits for the HTTP backend, including the wait for earlier requests.",
        unit="s",
        low=0.1,
        high=600,
    )
    auth_http_answer_bytes_max: int = option(
        4 * KIB, "Largest answer of the HTTP backend.", unit="bytes", low=64, high=MIB
    )
    auth_http_requests_max: int = option(
        32, "Requests to the HTTP backend at the same time; logins may use half of them.", low=2, high=10_000
    )
    auth_http_waiting_max: int = option(
        4_096,
        "Requests to the HTTP backend that are sent or wait to be sent; further ones are refused.",
        low=1,
        high=1_000_000,
    )
    auth_http_logins_per_address_max: int = option(
        8, "Logins of one address that the HTTP backend is asked about at the same time.", low=1, high=10_000
    )
    auth_http_cache_s: float = option(
        15.0, "How long an answer of the HTTP backend is reused.", unit="s", low=1, high=86_400
    )
    auth_http_cache_entries_max: int = option(
        65_536, "Answers of the HTTP backend that are remembered.", low=16, high=10_000_000
    )
    auth_http_session_s: float = option(
        3_600.0,
        "Longest session on the management page of a user of the HTTP backend.",
        unit="s",
        low=1,
        high=2_592_000,
    )
    oauth_resource_server_id: str = option(
        "",
        "Name of this broker in OAuth 2 tokens: a token with it as audience is accepted as a password; "
        "empty: no tokens.",
        unit="name",
    )
    oauth_issuer: str = option(
        "",
        "Issuer that tokens must have; empty: any. If oauth_jwks_url is empty, the issuer's configuration "
        "tells where the keys are.",
        unit="https URL",
    )
    oauth_jwks_url: str = option(
        "", "URL of the keys with which the authorization server signs tokens.", unit="https URL"
    )
    oauth_ca_file: str = option(
        "",
        "Certificate authorities for the authorization server's certificate; empty: those of the system.",
        unit="PEM file",
    )
    oauth_verify_audience: bool = option(True, "Refuse tokens that have another audience.")
    oauth_scope_prefix: str = option(
        "",
        "Prefix of the scopes that are for this broker; empty: oauth_resource_server_id and a dot.",
        unit="text",
    )
    oauth_scope_claims: tuple[str, ...] = option(
        ("scope",), "Claims that contain scopes.", unit="names, with commas between"
    )
    oauth_username_claims: tuple[str, ...] = option(
        ("sub", "client_id"),
        "Claims that may contain the user name; the first one in the token is used.",
        unit="names, with commas between",
    )
    oauth_leeway_s: float = option(
        0.0,
        "How much the clocks may differ when the times in a token are checked.",
        unit="s",
        low=0,
        high=600,
    )
    oauth_token_bytes_max: int = option(
        4 * KIB,
        "Longest token in a login; handshake_frame_bytes_max must be larger.",
        unit="bytes",
        low=256,
        high=MIB,
    )
    oauth_keys_age_s: float = option(
        3_600.0,
        "Age at which the keys of the authorization server are fetched again.",
        unit="s",
        low=1,
        high=31_536_000,
    )
    oauth_keys_pause_s: float = option(
        10.0,
        "Shortest time between two fetches of these keys; a token with an unknown key causes one.",
        unit="s",
        low=0,
        high=86_400,
    )
    oauth_fetch_timeout_s: float = option(
        5.0, "How long a fetch of these keys may take.", unit="s", low=0.1, high=600
    )
    oauth_answer_bytes_max: int = option(
        MIB, "Largest answer of the authorization server.", unit="bytes", low=KIB, high=64 * MIB
    )
    http_body_bytes_max: int = option(
        20 * MIB,
        "Largest body of a management request. Raise it to import large definitions.",
        unit="bytes",
        low=KIB,
        high=GIB,
    )
    http_json_bytes_max: int = option(
        MIB,
        "Largest JSON object or list in a management request other than an import of definitions; texts, "
        "such as payloads, may be larger.",
        unit="bytes",
        low=KIB,
        high=GIB,
    )
    http_definition_bytes_max: int = option(
        256 * KIB, "Largest object in imported definitions.", unit="bytes", low=KIB, high=GIB
    )
    http_definitions_max: int = option(
        500_000, "Number of objects in imported definitions.", low=1, high=100_000_000
    )
    http_connections_max: int = option(
        1_024,
        "Connections to the management listener; at the limit, a new one replaces an old one that answers "
        "no logged-in user.",
        low=16,
        high=100_000,
    )
    http_pipelined_max: int = option(
        16,
        "Requests in a row that a management client may send before the previous answer; after that, its "
        "connection is closed. Browsers and usual clients send none.",
        low=0,
        high=100_000,
    )
    http_requests_max: int = option(
        256, "Management requests of logged-in users at the same time.", low=1, high=100_000
    )
    http_requests_per_user_max: int = option(
        64, "Management requests of one user at the same time.", low=1, high=100_000
    )
    http_request_timeout_s: float = option(
        30.0,
        "Time for a management request to arrive completely, and for an idle connection to begin one.",
        unit="s",
        low=0.1,
        high=3_600,
    )
    http_send_timeout_s: float = option(
        30.0, "Time for a management client to take 16 KiB of an answer.", unit="s", low=0.1, high=3_600
    )
    http_answer_timeout_s: float = option(
        300.0,
        "Total time that the node waits for a management client to take one answer.",
        unit="s",
        low=0.1,
        high=86_400,
    )
    http_memory_bytes_max: int = option(
        0,
        "Estimated memory for management requests and answers: one user may hold half of it, and an "
        "eighth is left to administrators. Further requests get status 503. 0: an eighth of the memory "
        "limit.",
        unit="bytes",
        low=0,
        high=1 << 50,
    )
    http_slice_ms: int = option(
        2,
        "How long a long answer of the management API may occupy the node before clients get their turn. It "
        "makes room sooner when a client waits.",
        unit="ms",
        low=1,
        high=1_000,
    )
    http_filter_ms: int = option(
        1_000,
        "Total time for matching the regular expression of one management request.",
        unit="ms",
        low=1,
        high=600_000,
    )
    http_page: bool = option(True, "Serve the management page for browsers.")
    http_sessions_max: int = option(
        1_000,
        "Sessions on the management page; at the limit, a login ends the session that is unused longest.",
        low=1,
        high=10_000,
    )
    http_sessions_per_user_max: int = option(
        20,
        "Sessions of one user on the management page; at the limit, a login ends the one that is unused "
        "longest.",
        low=1,
        high=1_000_000,
    )
    http_sessions_bytes_max: int = option(
        16 << 20,
        "Memory for sessions on the management page (those of tokens with many scopes are large); at the "
        "limit, a login ends the session that is unused longest.",
        unit="bytes",
        low=1 << 20,
        high=1 << 30,
    )
    http_session_idle_s: float = option(
        3_600.0,
        "Time without a request after which a session on the management page ends.",
        unit="s",
        low=1,
        high=2_592_000,
    )
    http_session_age_s: float = option(
        43_200.0,
        "Time after the login when a session on the management page ends, used or not.",
        unit="s",
        low=1,
        high=2_592_000,
    )
    metrics_objects_max: int = option(
        10_000,
        "Queues, connections, channels and exchanges (of each kind) that one scrape reports one by one; "
        "others are left out and counted.",
        low=0,
        high=10_000_000,
    )
    statistics_interval_ms: int = option(
        5_000,
        "Interval of the samples from which the management API makes rates and charts.",
        unit="ms",
        low=100,
        high=600_000,
    )
    statistics_bytes_max: int = option(
        64 * MIB,
        "Memory for the samples of the last ten minutes; when it is used up, further objects have no rates.",
        unit="bytes",
        low=MIB,
        high=64 * GIB,
    )

    shovels_max: int = option(1_000, "Shovels that may be defined.", low=0, high=100_000, section="Shovels")
    shovel_hosts: tuple[str, ...] = option(
        (),
        "Hosts that shovels may connect to: names, *.names, addresses and networks; empty: all. This node "
        "is always allowed.",
        unit="names and networks, with commas between",
    )
    shovel_uris_max: int = option(32, "URIs for each end of a shovel.", low=1, high=1_000)
    shovel_prefetch_max: int = option(
        10_000,
        "Messages that a shovel may have received and not acked; a prefetch count of 0 means this number.",
        low=1,
        high=65_535,
    )
    shovel_bytes_max: int = option(
        16 * MIB,
        "Bytes that one shovel may hold for its destination; above this, its source is not read.",
        unit="bytes",
        low=64 * KIB,
        high=GIB,
    )
    shovels_bytes_max: int = option(
        0,
        "Bytes that all shovels together may hold. Above this, only sources of shovels that hold nothing "
        "are read, and a shovel ends if its destination takes nothing for unfinished_timeout_s. 0: an "
        "eighth of the memory limit.",
        unit="bytes",
        low=0,
        high=1 << 50,
    )
    shovel_connect_timeout_s: float = option(
        10.0, "Time for a shovel to connect to one URI, log in and declare.", unit="s", low=0.1, high=600
    )
    shovel_heartbeat_s: int = option(
        30,
        "Heartbeat interval of a shovel's connections, unless their URI has another; 0: no heartbeats.",
        unit="s",
        low=0,
        high=65_535,
    )
    shovel_reconnect_min_ms: int = option(
        100, "Shortest pause before a shovel connects again.", unit="ms", low=10, high=600_000
    )
    shovel_tls_ca_file: str = option(
        "",
        "Certificate authorities that shovels trust, unless their URI names others; empty: those of the "
        "system.",
        unit="PEM file",
    )
    shovel_tls_directory: str = option(
        "",
        "Directory of the certificates and keys that URIs of shovels may name; empty: they may name none.",
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
        if len(self.remotes) != len(self.stream_remotes):
            raise InvalidOption("stream_remotes", ",".join(self.stream_remotes), stream_remotes.ALLOWED)
        self._check_cluster()

    def _check_backends(self) -> None:
        backends, known = self.auth_backends, (INTERNAL_BACKEND, HTTP_BACKEND)
        if not backends or len(set(backends)) != len(backends) or not set(backends) <= set(known):
            raise InvalidOption("auth_backends", ",".join(backends), "internal, http, or both, each once")
        for path in ("user", "vhost", "resource", "topic"):
            name = f"auth_http_{path}_path"
            url = getattr(self, name)
            if (url or HTTP_BACKEND in backends) and not url.startswith(("http://", "https://")):
                raise InvalidOption(name, url, "a URL that begins with https:// or http://")
        if bool(self.auth_http_cert_file) != bool(self.auth_http_key_file):
            raise InvalidOption(
                "auth_http_cert_file",
                self.auth_http_cert_file,
                "given together with auth_http_key_file, or not at all",
            )

    def _check_cluster(self) -> None:
        addresses = self.peer_addresses
        if len(addresses) != len(self.peers):
            raise InvalidOption(
                "peers", ",".join(self.peers), "a list of name=host:port, with each name once"
            )
        if not self.peers:
            return
        if self.node not in addresses:
            raise InvalidOption("peers", ",".join(self.peers), f"a list that contains this node, {self.node}")
        if not self.cluster_secret_file:
            raise InvalidOption("cluster_secret_file", "", "given if there are peers")
        tls = (self.cluster_tls_cert_file, self.cluster_tls_key_file, self.cluster_tls_ca_file)
        if any(tls) and not all(tls):
            raise InvalidOption(
                "cluster_tls_cert_file",
                tls[0],
                "given together with cluster_tls_key_file and cluster_tls_ca_file, or not at all",
            )

    @property
    def peer_addresses(self) -> dict[str, tuple[str, int]]:
        """The nodes of the cluster by name, without malformed ones."""
        found: dict[str, tuple[str, int]] = {}
        for peer in self.peers:
            name, _, address = peer.partition("=")
            parsed = parse_address(address)
            if parsed is not None and self._is_name(name):
                found[name] = parsed
        return found

    @property
    def links_address(self) -> str:
        """Where this node listens for the others of its cluster; empty if it has none."""
        return self.cluster_listen or self.told_addresses.get(self.node, "")

    @property
    def told_addresses(self) -> dict[str, str]:
        """The addresses of the nodes by name, as the topology has them."""
        return dict(peer.split("=", 1) for peer in self.peers)

    def _is_name(self, name: str) -> bool:
        return _allowed_text("name", (), name)

    @property
    def remotes(self) -> dict[str, StreamRemote]:
        """The object stores by name, without malformed ones."""
        found = [parse_remote(each) for each in self.stream_remotes]
        return {each.name: each for each in found if each is not None}

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
    def node_name(self) -> str:
        """The name of the whole node; `node` is that of the worker, if it has several."""
        return self.node

    def is_of_node(self, name: str) -> bool:
        """Return whether the process of this name belongs to this node."""
        return name == self.node

    @property
    def password_checks_at_once(self) -> int:
        return self.password_checks_max or max(1, (os.cpu_count() or 1) // 2)

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


_UNITS = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))


def amount(value: float, declared: Field[Any]) -> str:
    """Return a number as people write it: `64 MiB`, if the field's unit is bytes, or `10,000`."""
    if declared.metadata["unit"].startswith("bytes") and isinstance(value, int):
        for size, name in _UNITS:
            if value and value % size == 0:
                return f"{value // size:,} {name}"
        return f"{value:,}" + (" bytes" if value else "")
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def allowed_values(declared: Field[Any]) -> str:
    """Return the range of a field in words: `4096 to 16777216 bytes`."""
    about = declared.metadata
    if about["choices"]:
        *others, last = about["choices"]
        return f"{', '.join(others)} or {last}"
    if about["kind"] == "memory":
        return "an amount of bytes such as 2GiB, or a share of the memory such as 0.6, up to 1.0"
    if about["kind"].startswith("address"):
        return "host:port such as 127.0.0.1:5672" + (", or empty" if about["kind"].endswith("off") else "")
    if about["kind"].startswith("age"):
        return "a whole number above zero and Y, M, D, h, m or s, such as 14D, or empty"
    if about["kind"] == "workers":
        return f"a number from 1 to {WORKERS_MAX}, or {AUTO}"
    if about["kind"] == "name":
        return "1 to 64 letters, digits, '-', '_' or '.'"
    if about["low"] is not None:
        return f"{about['low']} to {about['high']} {about['unit']}".rstrip()
    return "on or off" if isinstance(declared.default, bool) else "a text that is not empty"


def check(declared: Field[Any], value: object) -> None:
    """Raises InvalidOption unless the field may hold this value."""
    if not _allowed(declared, value):
        spelling = hint(value, declared.metadata["choices"])
        if isinstance(value, str) and declared.metadata["unit"] == "bytes":
            spelling += ", as a whole number with or without a unit, such as 1536MiB"
        raise InvalidOption(declared.name, value, allowed_values(declared) + spelling)


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
    if kind == "workers":
        digits = value.isascii() and value.isdigit() and len(value) <= 3
        return value == AUTO or (digits and 1 <= int(value) <= WORKERS_MAX)
    if kind == "name":
        return re.fullmatch(r"[A-Za-z0-9._-]{1,64}", value) is not None
    return bool(value) or kind != "text"
