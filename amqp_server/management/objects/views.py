"""The broker's objects as the management API shows them, under the names of RabbitMQ's management API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

Details = dict[str, Any]
#: A message that was got is acked, requeued, or rejected as by a consumer (dead-lettered).
Fate = Literal["ack", "requeue", "reject"]


class ExchangeView(msgspec.Struct, kw_only=True):
    name: str
    vhost: str
    type: str
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Details = {}
    policy: str | None = None
    operator_policy: str | None = None
    effective_policy_definition: Details = {}
    user_who_performed_action: str = ""
    #: The partitions of a super stream, in their order; other exchanges do not show the field.
    partitions: list[str] | None = None
    stats: Details = {}


class BindingView(msgspec.Struct, kw_only=True):
    source: str
    vhost: str
    destination: str
    #: "queue" or "exchange".
    destination_type: str
    routing_key: str
    arguments: Details = {}
    properties_key: str = ""


class ConnectionView(msgspec.Struct, kw_only=True):
    #: `127.0.0.1:50000 -> 127.0.0.1:5672`
    name: str
    user: str
    vhost: str
    peer_host: str
    peer_port: int
    host: str = ""
    port: int = 0
    node: str = ""
    type: str = "network"
    protocol: str = "AMQP 0-9-1"
    state: str = "running"
    ssl: bool = False
    ssl_protocol: str | None = None
    ssl_key_exchange: str | None = None
    ssl_cipher: str | None = None
    ssl_hash: str | None = None
    peer_cert_subject: str | None = None
    peer_cert_issuer: str | None = None
    peer_cert_validity: str | None = None
    user_provided_name: str | None = None
    user_who_performed_action: str = ""
    auth_mechanism: str = "PLAIN"
    channels: int = 0
    channel_max: int = 0
    frame_max: int = 0
    #: Seconds between heartbeats.
    timeout: int = 0
    #: Milliseconds since 1970.
    connected_at: int = 0
    client_properties: Details = {}
    #: Reads that returned bytes, and sends that wrote some.
    recv_cnt: int = 0
    send_cnt: int = 0
    recv_oct: int = 0
    send_oct: int = 0
    send_pend: int = 0
    stats: Details = {}


class ChannelView(msgspec.Struct, kw_only=True):
    #: `127.0.0.1:50000 -> 127.0.0.1:5672 (1)`
    name: str
    number: int
    user: str
    vhost: str
    #: name, peer_host, peer_port
    connection_details: Details = {}
    node: str = ""
    state: str = "running"
    confirm: bool = False
    transactional: bool = False
    consumer_count: int = 0
    messages_unacknowledged: int = 0
    messages_unconfirmed: int = 0
    messages_uncommitted: int = 0
    acks_uncommitted: int = 0
    prefetch_count: int = 0
    global_prefetch_count: int = 0
    pending_raft_commands: int = 0
    user_who_performed_action: str = ""
    stats: Details = {}


class ConsumerView(msgspec.Struct, kw_only=True):
    consumer_tag: str
    #: name, vhost
    queue: Details
    #: name, number, connection_name, user, node
    channel_details: Details = {}
    ack_required: bool = True
    exclusive: bool = False
    active: bool = True
    activity_status: str = "up"
    prefetch_count: int = 0
    priority: int = 0
    #: Time limit for acks, ms; 0: deliveries may stay unacked for ever.
    consumer_timeout: int = 0
    arguments: Details = {}
    #: For a stream's consumer: the offset that it gets next, and the number of messages from there on.
    offset: int | None = None
    lag: int | None = None


class NodeView(msgspec.Struct, kw_only=True):
    name: str
    type: str = "disc"
    running: bool = True
    being_drained: bool = False
    os_pid: str = ""
    uptime: int = 0
    processors: int = 1
    mem_used: int = 0
    mem_limit: int = 0
    mem_alarm: bool = False
    disk_free: int = 0
    disk_free_limit: int = 0
    disk_free_alarm: bool = False
    fd_used: int = 0
    fd_total: int = 0
    sockets_used: int = 0
    sockets_total: int = 0
    rates_mode: str = "basic"
    partitions: list[str] = []
    config_files: list[str] = []
    log_files: list[str] = []
    db_dir: str = ""
    enabled_plugins: list[str] = []
    net_ticktime: int = 0
    mem_calculation_strategy: str = "rss"
    applications: list[Details] = []
    auth_mechanisms: list[Details] = []
    contexts: list[Details] = []
    exchange_types: list[Details] = []
    cluster_links: list[Details] = []
    stats: Details = {}


class ListenerView(msgspec.Struct, kw_only=True):
    protocol: str
    ip_address: str
    port: int
    node: str = ""


class MessageView(msgspec.Struct, kw_only=True):
    """A message that was got."""

    exchange: str
    routing_key: str
    redelivered: bool
    #: Number of messages left in the queue.
    message_count: int
    #: Returns the properties that are set, under their AMQP names: decoded, they may take many times the
    #: memory of their bytes.
    properties: Callable[[], Details]
    body: bytes | memoryview
    #: Bytes of the message in memory.
    size: int
