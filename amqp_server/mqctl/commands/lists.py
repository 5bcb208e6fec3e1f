"""Lists of queues, exchanges, bindings, consumers, connections and channels, with the columns asked for.

Where RabbitMQ shows process ids, mqctl shows names: a connection is closed by its name.
"""

from __future__ import annotations

from typing import Any

import click

from amqp_server.mqctl.command import Invocation, in_vhost, mqctl, pass_invocation
from amqp_server.mqctl.table import pick, show

Known = dict[str, str]


def _same(names: str) -> Known:
    """Columns with the same names as in the API."""
    return {name: name for name in names.split()}


QUEUE = _same(
    "name durable auto_delete exclusive arguments type policy operator_policy effective_policy_definition state deliveries_paused publishes_paused protected_from_deletion node consumers messages messages_ready"
    " messages_unacknowledged message_bytes message_bytes_ready message_bytes_unacknowledged message_bytes_ram"
    " head_message_timestamp oldest_message_age_ms consumer_capacity consumer_utilisation exclusive_consumer_tag memory vhost single_active_consumer_tag leader members online"
    " first_offset next_offset segments oldest_timestamp lost_messages compression"
    " compacted_offset local_first_offset remote_segments remote_bytes table table_next_offset"
) | {"owner_pid": "owner_pid_details.name"}
EXCHANGE = _same("name type durable auto_delete internal arguments policy vhost partitions")
BINDING = {
    "source_name": "source",
    "source_kind": "source_kind",
    "destination_name": "destination",
    "destination_kind": "destination_type",
} | _same("routing_key arguments vhost")
CONSUMER = {"queue_name": "queue.name", "channel_pid": "channel_details.name"} | _same(
    "consumer_tag ack_required exclusive prefetch_count active activity_status priority arguments offset lag"
)
GROUP = _same(
    "name vhost stream state members partitions messages messages_unacknowledged generation oldest_unread_ms"
)
CONNECTION = {"pid": "name"} | _same(
    "name user peer_host peer_port state vhost host port ssl protocol auth_mechanism channels channel_max"
    " frame_max timeout connected_at client_properties recv_oct send_oct send_pend node type"
)
CHANNEL = {"pid": "name", "connection": "connection_details.name"} | _same(
    "name number user vhost state node consumer_count messages_unacknowledged messages_unconfirmed"
    " messages_uncommitted acks_uncommitted prefetch_count global_prefetch_count confirm transactional"
)

TRANSACTION = _same(
    "id state vhost node age_ms messages message_bytes acks participants waiting_for connection channel user"
)


def _show(
    invocation: Invocation, rows: list[dict[str, Any]], columns: tuple[str, ...], default: str, known: Known
) -> None:
    wanted = columns or tuple(default.split())
    show(wanted, pick(rows, wanted, known), invocation)


def _in_vhost(name: str, path: str, default: str, known: Known, title: str = "") -> None:
    @mqctl.command(
        name,
        help=f"Lists the {title or path} of a virtual host. COLUMNS (default: {default}) may be: {', '.join(known)}.",
    )
    @in_vhost
    @click.argument("columns", nargs=-1)
    @pass_invocation
    def command(invocation: Invocation, vhost: str, columns: tuple[str, ...]) -> None:
        rows = invocation.client.get(path, vhost)
        for row in rows:
            row["source_kind"] = "exchange"
        _show(invocation, rows, columns, default, known)


def _of_node(name: str, path: str, default: str, known: Known) -> None:
    @mqctl.command(
        name, help=f"Lists the {path} of all nodes. COLUMNS (default: {default}) may be: {', '.join(known)}."
    )
    @click.argument("columns", nargs=-1)
    @pass_invocation
    def command(invocation: Invocation, columns: tuple[str, ...]) -> None:
        _show(invocation, invocation.client.get(path), columns, default, known)


_in_vhost("list_queues", "queues", "name messages", QUEUE)
_in_vhost("list_exchanges", "exchanges", "name type", EXCHANGE)
_in_vhost(
    "list_bindings",
    "bindings",
    "source_name source_kind destination_name destination_kind routing_key arguments",
    BINDING,
)
_in_vhost(
    "list_consumers",
    "consumers",
    "queue_name channel_pid consumer_tag ack_required prefetch_count active arguments",
    CONSUMER,
)
_in_vhost(
    "list_groups",
    "groups",
    "name stream members partitions messages oldest_unread_ms",
    GROUP,
    "consumer groups",
)
_of_node("list_connections", "connections", "user peer_host peer_port state", CONNECTION)
_of_node("list_channels", "channels", "pid user consumer_count messages_unacknowledged", CHANNEL)
_of_node("list_transactions", "transactions", "id state age_ms messages acks participants user", TRANSACTION)
