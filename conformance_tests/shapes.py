"""Fields of RabbitMQ's management API and their types, as its tools decode them.

`i` is an integer, `f` a number, `s` a text, `b` true or false, `o` an object, `a` an array, `n` null; `si` is
either of two. Beside a name with `+` there is `NAME_details` with a rate. A name that begins with `?` may be
missing.
"""

from typing import Any, NamedTuple

TYPES: dict[str, tuple[type, ...]] = {
    "i": (int,),
    "f": (int, float),
    "s": (str,),
    "b": (bool,),
    # An empty table may come as an empty array.
    "o": (dict, list),
    "a": (list,),
    "n": (type(None),),
}

OVERVIEW = """
cluster_name:s disable_stats:b enable_queue_totals:b erlang_full_version:s erlang_version:s management_version:s node:s
product_name:s product_version:s rabbitmq_version:s rates_mode:s release_series_support_status:s
statistics_db_event_queue:i churn_rates:o contexts:a exchange_types:a listeners:a message_stats:o object_totals:o
queue_totals:o sample_retention_policies:o
"""
CHURN = """
channel_closed+:i channel_created+:i connection_closed+:i connection_created+:i queue_created+:i queue_declared+:i
queue_deleted+:i
"""
OBJECT_TOTALS = "channels:i connections:i consumers:i exchanges:i queues:i"
QUEUE_TOTALS = "messages+:i messages_ready+:i messages_unacknowledged+:i"
EXCHANGE_TYPE = "description:s enabled:b name:s"
LISTENER = "ip_address:s node:s port:i protocol:s socket_opts:o"
CONTEXT = "cowboy_opts:s description:s ip:s node:s path:s port:s ssl_opts:a"
NODE = """
channel_closed+:i channel_created+:i connection_closed+:i connection_created+:i queue_created+:i queue_declared+:i
queue_deleted+:i config_files:a context_switches+:i db_dir:s disk_free+:i disk_free_alarm:b disk_free_limit:i
enabled_plugins:a fd_total:i fd_used+:i gc_bytes_reclaimed+:i gc_num+:i io_read_avg_time+:f io_read_bytes+:i
io_read_count+:i io_reopen_count+:i io_seek_avg_time+:f io_seek_count+:i io_sync_avg_time:f io_sync_count+:i
io_write_avg_time+:f io_write_bytes+:i io_write_count+:i log_files:a mem_alarm:b mem_calculation_strategy:s mem_limit:i
mem_used+:i mnesia_disk_tx_count+:i mnesia_ram_tx_count+:i msg_store_read_count+:i msg_store_write_count+:i name:s
net_ticktime:i os_pid:s partitions:a proc_total:i proc_used+:i processors:i queue_index_read_count+:i
queue_index_write_count+:i rates_mode:s run_queue:i running:b sockets_total:i sockets_used+:i type:s uptime:i
applications:a auth_mechanisms:a cluster_links:a contexts:a exchange_types:a metrics_gc_queue_length:o
ra_open_file_metrics:o
"""
CONNECTION = """
auth_mechanism:s channel_max:i channels:i client_properties:o connected_at:i frame_max:i host:s name:s node:s
peer_cert_issuer:ns peer_cert_subject:ns peer_cert_validity:ns peer_host:s peer_port:i port:i protocol:s recv_cnt:i
recv_oct+:i reductions+:i send_cnt:i send_oct+:i send_pend:i ssl:b ssl_cipher:ns ssl_hash:ns ssl_key_exchange:ns
ssl_protocol:ns state:s timeout:i type:s user:s user_provided_name:s user_who_performed_action:s vhost:s
garbage_collection:o
"""
CHANNEL = """
acks_uncommitted:i confirm:b consumer_count:i global_prefetch_count:i messages_unacknowledged:i messages_uncommitted:i
messages_unconfirmed:i name:s node:s number:i pending_raft_commands:i prefetch_count:i reductions+:i state:s
transactional:b user:s user_who_performed_action:s vhost:s connection_details:o garbage_collection:o
"""
CHANNEL_OF_CONNECTION = "name:s peer_host:s peer_port:i"
ONE_CHANNEL = "consumer_details:a deliveries:a publishes:a"
CONSUMER = """
ack_required:b active:b activity_status:s arguments:o consumer_tag:s exclusive:b prefetch_count:i channel_details:o
queue:o
"""
CHANNEL_OF_CONSUMER = "connection_name:s name:s node:s number:i peer_host:s peer_port:i user:s"
EXCHANGE = """
arguments:o auto_delete:b durable:b internal:b name:s type:s user_who_performed_action:s vhost:s
"""
ONE_EXCHANGE = "incoming:a outgoing:a"
PUBLISHED = "publish+:i confirm+:i return_unroutable+:i drop_unroutable+:i"
DELIVERED = """
ack+:i deliver+:i deliver_get+:i deliver_no_ack+:i get+:i get_empty+:i get_no_ack+:i redeliver+:i
"""
EXCHANGED = "publish_in+:i publish_out+:i"
QUEUE = """
arguments:o auto_delete:b consumers:i durable:b effective_policy_definition:o exclusive:b memory:i messages+:i
messages_ready+:i messages_unacknowledged+:i name:s node:s operator_policy:ns policy:ns state:s type:s vhost:s
reductions+:i ?garbage_collection:o
"""
CLASSIC = """
backing_queue_status:o consumer_capacity:f consumer_utilisation:f exclusive_consumer_tag:ns head_message_timestamp:n
message_bytes:i message_bytes_paged_out:i message_bytes_persistent:i message_bytes_ram:i message_bytes_ready:i
message_bytes_unacknowledged:i messages_paged_out:i messages_persistent:i messages_ram:i messages_ready_ram:i
messages_unacknowledged_ram:i recoverable_slaves:n single_active_consumer_tag:ns
"""
QUORUM = """
consumer_capacity:f consumer_utilisation:f leader:s members:a message_bytes:i message_bytes_dlx:i
message_bytes_persistent:i message_bytes_ram:i message_bytes_ready:i message_bytes_unacknowledged:i messages_dlx:i
messages_persistent:i messages_ram:i online:a open_files:o single_active_consumer_ctag:ns
"""
STREAM = "members:a online:a readers:o"
ONE_QUEUE = "consumer_details:a deliveries:a incoming:a"
BINDING = """
arguments:o destination:s destination_type:s properties_key:s routing_key:s source:s vhost:s
"""
VHOST = """
cluster_state:o default_queue_type:s description:s messages+:i messages_ready+:i messages_unacknowledged+:i metadata:o
name:s recv_oct+:i send_oct+:i tags:a tracing:b message_stats:o
"""

#: Fields that mqd does not have: those of Erlang, and those that it does not count. docs/deviations.md has
#: the same names.
MQD_LACKS = frozenset(
    [
        "reductions",
        "garbage_collection",
        "backing_queue_status",
        "recoverable_slaves",
        "message_bytes_paged_out",
        "message_bytes_persistent",
        "messages_paged_out",
        "messages_persistent",
        "messages_ram",
        "messages_ready_ram",
        "messages_unacknowledged_ram",
        "open_files",
        "readers",
        "context_switches",
        "gc_bytes_reclaimed",
        "gc_num",
        "io_read_avg_time",
        "io_read_bytes",
        "io_read_count",
        "io_reopen_count",
        "io_seek_avg_time",
        "io_seek_count",
        "io_write_avg_time",
        "io_write_bytes",
        "mnesia_disk_tx_count",
        "mnesia_ram_tx_count",
        "msg_store_read_count",
        "msg_store_write_count",
        "proc_total",
        "proc_used",
        "queue_index_read_count",
        "queue_index_write_count",
        "run_queue",
        "metrics_gc_queue_length",
        "ra_open_file_metrics",
    ]
)


#: What RabbitMQ 4 has no longer. Fields without a value are left out of its lists.
RABBITMQ4_LACKS = frozenset(
    [
        "backing_queue_status",
        "global_prefetch_count",
        "message_bytes_paged_out",
        "messages_paged_out",
        "recoverable_slaves",
        "release_series_support_status",
    ]
)


class Lacks(NamedTuple):
    """What a broker does not tell."""

    fields: frozenset[str] = frozenset()
    #: Fields that may be null may be missing.
    nulls: bool = False


MQD = Lacks(MQD_LACKS)
RABBITMQ4 = Lacks(RABBITMQ4_LACKS, nulls=True)
NOTHING = Lacks()


def faults(row: dict[str, Any], shape: str, lacks: Lacks = NOTHING) -> list[str]:
    """Return the faults of a row: fields that are missing, have another type, or should not be there."""
    found: list[str] = []
    for field in shape.split():
        name, _, kinds = field.partition(":")
        optional = name.startswith("?") or (lacks.nulls and "n" in kinds)
        name = name.removeprefix("?")
        counted = name.endswith("+")
        name = name.removesuffix("+")
        if name in lacks.fields:
            if name in row:
                found.append(f"{name} is there")
            continue
        if name not in row:
            if not optional:
                found.append(f"{name} is missing")
            continue
        value = row[name]
        allowed = tuple(type_ for kind in kinds for type_ in TYPES[kind])
        if not isinstance(value, allowed) or (isinstance(value, bool) and "b" not in kinds):
            found.append(f"{name} is {value!r}")
        if counted and not isinstance(row.get(f"{name}_details", {}).get("rate"), (int, float)):
            found.append(f"{name}_details is {row.get(f'{name}_details')!r}")
    return found
