"""Queues, exchanges and bindings: declared, purged, deleted. What groups and streams know of readers."""

from __future__ import annotations

import click

from amqp_server.mqctl.client import UNAVAILABLE, Failure
from amqp_server.mqctl.command import (
    Choice,
    Invocation,
    in_vhost,
    mqctl,
    pairs,
    pass_invocation,
    with_arguments,
)
from amqp_server.mqctl.table import show, show_columns

DEFAULT_EXCHANGE = "amq.default"


@mqctl.command(
    "declare_queue", help="Declares a queue: creates it, or checks that it exists with the same settings."
)
@in_vhost
@click.argument("name")
@click.option(
    "--durable/--transient",
    default=True,
    show_default="durable",
    help="Keep it when the broker restarts, or not.",
)
@click.option("--auto-delete", is_flag=True, help="Delete it when its last consumer ends.")
@with_arguments
@pass_invocation
def declare_queue(
    invocation: Invocation,
    vhost: str,
    name: str,
    durable: bool,
    auto_delete: bool,
    arguments: tuple[str, ...],
) -> None:
    body = {"durable": durable, "auto_delete": auto_delete, "arguments": pairs(arguments)}
    invocation.client.put("queues", vhost, name, body=body)


@mqctl.command("delete_queue", help="Deletes a queue. Refused if it is protected from deletion.")
@in_vhost
@click.argument("name")
@click.option("-u", "--if-unused", is_flag=True, help="Delete it only if it has no consumers.")
@click.option("-e", "--if-empty", is_flag=True, help="Delete it only if it has no messages.")
@pass_invocation
def delete_queue(invocation: Invocation, vhost: str, name: str, if_unused: bool, if_empty: bool) -> None:
    told = {"if_unused": str(if_unused).lower(), "if_empty": str(if_empty).lower()}
    invocation.client.delete("queues", vhost, name, **told)


@mqctl.command(
    "enable_queue_protection_from_deletion",
    help="Protects a queue from deletion, until `mqctl disable_queue_protection_from_deletion`.",
)
@in_vhost
@click.argument("name")
@pass_invocation
def enable_queue_protection_from_deletion(invocation: Invocation, vhost: str, name: str) -> None:
    invocation.client.post("queues", vhost, name, "deletion", "protection", body={})


@mqctl.command(
    "disable_queue_protection_from_deletion",
    help="Lifts the protection of a queue, so that it can be deleted again.",
)
@in_vhost
@click.argument("name")
@pass_invocation
def disable_queue_protection_from_deletion(invocation: Invocation, vhost: str, name: str) -> None:
    invocation.client.delete("queues", vhost, name, "deletion", "protection")


_deliveries = click.option("--deliveries", is_flag=True, help="Only deliveries to consumers.")
_publishes = click.option("--publishes", is_flag=True, help="Only publishes of clients.")


@mqctl.command(
    "pause_queue",
    help="Pauses deliveries and publishes of a queue, or one of them, until `mqctl resume_queue`.",
)
@in_vhost
@click.argument("name")
@_deliveries
@_publishes
@pass_invocation
def pause_queue(invocation: Invocation, vhost: str, name: str, deliveries: bool, publishes: bool) -> None:
    invocation.client.put("queues", vhost, name, "pause", body=_paused(deliveries, publishes))


@mqctl.command("resume_queue", help="Resumes deliveries and publishes of a paused queue, or one of them.")
@in_vhost
@click.argument("name")
@_deliveries
@_publishes
@pass_invocation
def resume_queue(invocation: Invocation, vhost: str, name: str, deliveries: bool, publishes: bool) -> None:
    invocation.client.put("queues", vhost, name, "resume", body=_paused(deliveries, publishes))


def _paused(deliveries: bool, publishes: bool) -> dict[str, bool]:
    named = {"deliveries": deliveries, "publishes": publishes}
    return named if any(named.values()) else {}


@mqctl.command(
    "list_failed",
    help="Lists the queues that have failed on the node at --url and are stopped there, with the reason and the number of restarts.",
)
@pass_invocation
def list_failed(invocation: Invocation) -> None:
    rows = [
        (
            each["vhost"],
            each["name"],
            each["type"],
            "set aside" if each["set_aside"] else "restarting",
            each["attempts"],
            each["reason"],
        )
        for each in invocation.client.get("failed-queues")
    ]
    show(("vhost", "name", "type", "state", "attempts", "reason"), rows, invocation)


@mqctl.command(
    "retry_failed", help="Restarts a queue that has failed on the node at --url from its stored data."
)
@in_vhost
@click.argument("name")
@pass_invocation
def retry_failed(invocation: Invocation, vhost: str, name: str) -> None:
    try:
        invocation.client.post("failed-queues", vhost, name, "retry", body={})
    except Failure as failure:
        if failure.status == 404:
            raise Failure(
                f"no queue '{name}' in vhost '{vhost}' has failed on this node", UNAVAILABLE
            ) from None
        raise


@mqctl.command(
    "declare_exchange",
    help="Declares an exchange. TYPE is direct (default), fanout, topic, headers or another type of docs/reference/arguments.md.",
)
@in_vhost
@click.argument("name")
@click.argument("type", default="direct")
@click.option(
    "--durable/--transient",
    default=True,
    show_default="durable",
    help="Keep it when the broker restarts, or not.",
)
@click.option("--auto-delete", is_flag=True, help="Delete it when its last binding is removed.")
@click.option(
    "--internal", is_flag=True, help="Refuse publishes from clients; only other exchanges route to it."
)
@with_arguments
@pass_invocation
def declare_exchange(
    invocation: Invocation,
    vhost: str,
    name: str,
    type: str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: tuple[str, ...],
) -> None:
    body = {"type": type, "durable": durable, "auto_delete": auto_delete, "internal": internal}
    invocation.client.put("exchanges", vhost, name, body=body | {"arguments": pairs(arguments)})


@mqctl.command("add_partitions", help="Adds COUNT partitions to super stream NAME.")
@in_vhost
@click.argument("name")
@click.argument("count", type=click.IntRange(min=1))
@pass_invocation
def add_partitions(invocation: Invocation, vhost: str, name: str, count: int) -> None:
    invocation.client.post("exchanges", vhost, name, "partitions", body={"add": count})


PARTITION_COLUMNS = (
    "partition",
    "stream",
    "committed_offset",
    "end_offset",
    "lag",
    "messages_unacknowledged",
    "oldest_unread_ms",
    "member",
    "connection",
)
MEMBER_COLUMNS = (
    "consumer_tag",
    "connection",
    "channel",
    "prefetch_count",
    "messages_unacknowledged",
    "partitions",
)


@mqctl.command(
    "list_group_members",
    help="Lists the members of a consumer group, or of all groups of the virtual host, with the partitions of each.",
)
@in_vhost
@click.argument("name", required=False)
@pass_invocation
def list_group_members(invocation: Invocation, vhost: str, name: str | None) -> None:
    if name is None:
        show_columns(("group", *MEMBER_COLUMNS), invocation.client.get("group-members", vhost), invocation)
    else:
        show_columns(MEMBER_COLUMNS, invocation.client.get("groups", vhost, name, "members"), invocation)


@mqctl.command(
    "list_group_partitions", help="Lists the partitions of a consumer group, with offset, lag and member."
)
@in_vhost
@click.argument("name")
@pass_invocation
def list_group_partitions(invocation: Invocation, vhost: str, name: str) -> None:
    rows = invocation.client.get("groups", vhost, name)["partition_details"]
    show_columns(PARTITION_COLUMNS, rows, invocation)


@mqctl.command(
    "reset_group",
    help="Moves the offsets of a consumer group. PLACE is first, last, next (the end), an offset, a time in ISO 8601, or "
    "an age such as -1h.",
)
@in_vhost
@click.argument("name")
@click.option("--to", required=True, metavar="PLACE", help="Place where the group continues.")
@click.option(
    "--partition", type=click.IntRange(min=0), help="Move the offset of this partition only (its number)."
)
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@click.option("--force", is_flag=True, help="Do it even if the group has members.")
@pass_invocation
def reset_group(
    invocation: Invocation,
    vhost: str,
    name: str,
    to: str,
    partition: int | None,
    dry_run: bool,
    force: bool,
) -> None:
    body = {"to": to, "partition": partition, "dry_run": dry_run, "force": force}
    rows = invocation.client.post("groups", vhost, name, "reset", body=body)
    columns = ("stream", "from", "to")
    show_columns(columns, rows, invocation)


OFFSET_COLUMNS = ("name", "committed_offset", "lag", "in_use", "connection")


@mqctl.command(
    "list_stream_offsets",
    help="Lists the named offsets that a stream stores, the least recently used first, and shows which ones a consumer uses now.",
)
@in_vhost
@click.argument("stream")
@pass_invocation
def list_stream_offsets(invocation: Invocation, vhost: str, stream: str) -> None:
    show_columns(OFFSET_COLUMNS, invocation.client.get("queues", vhost, stream, "offsets"), invocation)


@mqctl.command(
    "delete_stream_offset",
    help="Deletes a named offset of a stream, unless a consumer uses it now.",
)
@in_vhost
@click.argument("stream")
@click.argument("name")
@pass_invocation
def delete_stream_offset(invocation: Invocation, vhost: str, stream: str, name: str) -> None:
    invocation.client.delete("queues", vhost, stream, "offsets", name)


@mqctl.command("delete_exchange", help="Deletes an exchange.")
@in_vhost
@click.argument("name")
@click.option("-u", "--if-unused", is_flag=True, help="Delete it only if nothing is bound to it.")
@pass_invocation
def delete_exchange(invocation: Invocation, vhost: str, name: str, if_unused: bool) -> None:
    invocation.client.delete("exchanges", vhost, name, if_unused=str(if_unused).lower())


_to = click.option(
    "--to",
    "kind",
    type=Choice(["queue", "exchange"]),
    default="queue",
    show_default=True,
    help="Kind of the destination.",
)


@mqctl.command(
    "declare_binding", help="Binds a queue (or, with --to exchange, an exchange) to exchange SOURCE."
)
@in_vhost
@click.argument("source")
@click.argument("destination")
@click.argument("routing_key", default="")
@_to
@with_arguments
@pass_invocation
def declare_binding(
    invocation: Invocation,
    vhost: str,
    source: str,
    destination: str,
    routing_key: str,
    kind: str,
    arguments: tuple[str, ...],
) -> None:
    body = {"routing_key": routing_key, "arguments": pairs(arguments)}
    ends = (source or DEFAULT_EXCHANGE, kind[0], destination)
    invocation.client.post("bindings", vhost, "e", *ends, body=body)


@mqctl.command("delete_binding", help="Removes the binding with this routing key and these arguments.")
@in_vhost
@click.argument("source")
@click.argument("destination")
@click.argument("routing_key", default="")
@_to
@with_arguments
@pass_invocation
def delete_binding(
    invocation: Invocation,
    vhost: str,
    source: str,
    destination: str,
    routing_key: str,
    kind: str,
    arguments: tuple[str, ...],
) -> None:
    ends = ("bindings", vhost, "e", source or DEFAULT_EXCHANGE, kind[0], destination)
    wanted = pairs(arguments)
    for binding in invocation.client.get(*ends):
        if binding["routing_key"] == routing_key and binding["arguments"] == wanted:
            invocation.client.delete(*ends, binding["properties_key"])
            return
    raise Failure(
        f"no binding from '{source}' to '{destination}' has this routing key and these arguments", UNAVAILABLE
    )
