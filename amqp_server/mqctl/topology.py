"""Queues, exchanges and bindings: declared, purged, deleted. Messages: published and got."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any

import click

from amqp_server.mqctl.client import UNAVAILABLE, USAGE, Failure
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


@mqctl.command("delete_queue", help="Deletes a queue.")
@in_vhost
@click.argument("name")
@click.option("-u", "--if-unused", is_flag=True, help="Delete it only if it has no consumers.")
@click.option("-e", "--if-empty", is_flag=True, help="Delete it only if it has no messages.")
@pass_invocation
def delete_queue(invocation: Invocation, vhost: str, name: str, if_unused: bool, if_empty: bool) -> None:
    told = {"if_unused": str(if_unused).lower(), "if_empty": str(if_empty).lower()}
    invocation.client.delete("queues", vhost, name, **told)


@mqctl.command(
    "purge_queue", help="Deletes all messages of a queue, except those that a consumer holds unacked."
)
@in_vhost
@click.argument("name")
@pass_invocation
def purge_queue(invocation: Invocation, vhost: str, name: str) -> None:
    invocation.client.delete("queues", vhost, name, "contents")


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


@mqctl.command(
    "publish",
    help="Publishes a message, and prints whether it was routed to a queue. Without BODY, the body is read from stdin.",
)
@in_vhost
@click.argument("exchange")
@click.argument("routing_key")
@click.argument("body", required=False)
@click.option(
    "-P", "--property", "properties", multiple=True, metavar="NAME=VALUE",
    help="Property such as content_type, delivery_mode or headers (as JSON). May be repeated.",
)  # fmt: skip
@pass_invocation
def publish(
    invocation: Invocation,
    vhost: str,
    exchange: str,
    routing_key: str,
    body: str | None,
    properties: tuple[str, ...],
) -> None:
    import base64

    payload = sys.stdin.buffer.read() if body is None else body.encode()
    told = {
        "routing_key": routing_key,
        "payload": base64.b64encode(payload).decode(),
        "payload_encoding": "base64",
        "properties": {name: _property(name, value) for name, value in pairs(properties).items()},
    }
    answer = invocation.client.post("exchanges", vhost, exchange or DEFAULT_EXCHANGE, "publish", body=told)
    invocation.say("routed" if answer["routed"] else "not routed")


def _property(name: str, value: object) -> object:
    """Return a property's value. Only these three are numbers: `message_id=7` is the text "7"."""
    if name in ("delivery_mode", "priority", "timestamp", "headers") or isinstance(value, str):
        return value
    return str(value)


@mqctl.command(
    "get",
    help="Takes messages from a queue and prints them. Without --requeue or --reject, they are acked, and so deleted.",
)
@in_vhost
@click.argument("queue")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Number of messages to take, at most.",
)
@click.option("--requeue", is_flag=True, help="Return the messages to the queue.")
@click.option(
    "--reject",
    is_flag=True,
    help="Reject the messages; they are dead-lettered if the queue has a dead-letter exchange.",
)
@pass_invocation
def get(invocation: Invocation, vhost: str, queue: str, count: int, requeue: bool, reject: bool) -> None:
    if requeue and reject:
        raise Failure("--requeue and --reject cannot be used together", USAGE)
    mode = "ack_requeue_true" if requeue else "reject_requeue_false" if reject else "ack_requeue_false"
    body = {"count": count, "ackmode": mode, "encoding": "auto"}
    messages = invocation.client.post("queues", vhost, queue, "get", body=body)
    columns = ("exchange", "routing_key", "message_count", "redelivered", "properties", "payload")
    show_columns(columns, messages, invocation)


@mqctl.command(
    "message_status",
    help="Prints what became of a message in the queues that record messages. "
    "Exit code 0 if one of them knows it, 69 if none does.",
)
@in_vhost
@click.argument("message_id")
@click.option("--queue", default="", metavar="NAME", help="Ask only this queue.")
@click.option("--hex", "in_hex", is_flag=True, help="MESSAGE_ID is in hexadecimal digits: it is no text.")
@pass_invocation
def message_status(invocation: Invocation, vhost: str, message_id: str, queue: str, in_hex: bool) -> None:
    query = {"hex": "true"} if in_hex else {}
    told = invocation.client.get(
        "messages", vhost, message_id, **query, **({"queue": queue} if queue else {})
    )
    if invocation.json:
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        columns = (
            "queue",
            "state",
            "reason",
            "queued",
            "changed",
            "deliveries",
            "consumer",
            "dead_lettered_to",
        )
        show(columns, [row for found in told["queues"] for row in _status_rows(found)], invocation)
        for failed in told["failed"]:
            click.echo(f"queue '{failed['queue']}' has not answered: {failed['reason']}")
    if not told["known"]:
        since = _moment(told["recorded_since_ms"]) or "their declaration"
        raise Failure(
            f"none of {told['asked']} queues knows it; they know everything that they have taken since {since}",
            UNAVAILABLE,
        )


def _status_rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows of what a queue knows."""
    rows: list[tuple[str, ...]] = []
    for each in found["messages"]:
        consumer, to = each["consumer"], each["dead_letter_exchange"]
        name = "" if consumer is None else consumer["consumer_tag"] or "basic.get"
        rows.append(
            (
                found["queue"],
                each["state"],
                each["reason"],
                _moment(each["queued_ms"]),
                _moment(each["changed_ms"]),
                str(each["deliveries"]),
                name if consumer is None else f"{name} on {consumer['node']}",
                "" if to is None else to or DEFAULT_EXCHANGE,
            )
        )
    note = found["not_taken"]
    if note is not None:
        state = f"{note['state']}, {note['times']} times" if note["times"] > 1 else note["state"]
        rows.append((found["queue"], state, note["reason"], "", _moment(note["last_ms"]), "", "", ""))
    return rows


def _moment(ms: int) -> str:
    """Return a time of the wall clock; empty for none."""
    if not ms:
        return ""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
