"""Messages: published and taken, looked at and searched for, and what became of one."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from typing import Any

import click

from amqp_server.mqctl.client import UNAVAILABLE, USAGE, Failure
from amqp_server.mqctl.command import Invocation, in_vhost, mqctl, pairs, pass_invocation
from amqp_server.mqctl.commands.topology import DEFAULT_EXCHANGE
from amqp_server.mqctl.looking import conditions, ready, seen
from amqp_server.mqctl.progress import progress
from amqp_server.mqctl.table import moment, show, show_columns

#: Messages that one request reads, at most.
READ_AT_ONCE = 1_000


def how_many(default: int, most: int | None = None) -> Callable[[Any], Any]:
    return click.option(
        "-n",
        "--count",
        type=click.IntRange(1, most),
        default=default,
        show_default=True,
        help="Number of messages to print, at most.",
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
        since = moment(told["recorded_since_ms"]) or "their declaration"
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
                moment(each["queued_ms"]),
                moment(each["changed_ms"]),
                str(each["deliveries"]),
                name if consumer is None else f"{name} on {consumer['node']}",
                "" if to is None else to or DEFAULT_EXCHANGE,
            )
        )
    note = found["not_taken"]
    if note is not None:
        state = f"{note['state']}, {note['times']} times" if note["times"] > 1 else note["state"]
        rows.append((found["queue"], state, note["reason"], "", moment(note["last_ms"]), "", "", ""))
    return rows


@mqctl.command(
    "read",
    help="Prints messages of a stream from an offset on. The stream keeps them, and nobody's offset changes.",
)
@in_vhost
@click.argument("stream")
@click.option(
    "--offset",
    default="first",
    show_default=True,
    help="Where to begin: first, last, the number of a message, or an age such as 1h.",
)
@how_many(10, READ_AT_ONCE)
@click.option(
    "--filter", "filter_", metavar="VALUE", help="Only messages with this value of x-stream-filter-value."
)
@pass_invocation
def read(
    invocation: Invocation, vhost: str, stream: str, offset: str, count: int, filter_: str | None
) -> None:
    asked: dict[str, Any] = {"offset": _offset(offset), "count": count, "encoding": "auto"}
    if filter_ is not None:
        asked["filter"] = filter_
    rows = invocation.client.post("queues", vhost, stream, "read", body=asked)
    columns = ("offset", "exchange", "routing_key", "properties", "payload")
    show(columns, [[row[column] for column in columns] for row in rows], invocation)


def _offset(given: str) -> object:
    return int(given) if given.isascii() and given.isdigit() else given


SEEN = ("place", "exchange", "routing_key", "redelivered", "properties", "payload")
_WAITING = click.option(
    "--waiting",
    is_flag=True,
    help="Also messages that wait before they are delivered, behind the others, and when they are due.",
)


def _show_seen(rows: list[dict[str, Any]], invocation: Invocation, *, waiting: bool) -> None:
    columns = (SEEN[0], "due", *SEEN[1:]) if waiting else SEEN
    for row in rows:
        row["due"] = moment(row.get("due", 0))
    show(columns, [[row[column] for column in columns] for row in rows], invocation)


@mqctl.command(
    "peek",
    help="Prints the next messages of a queue or stream without taking them: they stay where they are, consumers get them as before, and none of them counts as redelivered. Messages that consumers hold are not among them.",
)
@in_vhost
@click.argument("queue")
@click.option(
    "--from",
    "after",
    metavar="PLACE",
    default="",
    help="Begin behind the message at this place, which the column `place` shows. By default at the head.",
)
@how_many(10, READ_AT_ONCE)
@_WAITING
@pass_invocation
def peek(invocation: Invocation, vhost: str, queue: str, after: str, count: int, waiting: bool) -> None:
    pages = seen(invocation, vhost, queue, after, count, **_also(waiting))
    _show_seen([row for page in pages for row in page["messages"]], invocation, waiting=waiting)


def _also(waiting: bool) -> dict[str, str]:
    return {"waiting": "true"} if waiting else {}


@mqctl.command(
    "search",
    help="Prints the messages of a queue or stream that fulfil all the conditions given, without taking them. Looks at as many messages as the queue has now, a thousand with one request, so that clients are not held up. Messages that consumers take meanwhile may be missing.",
)
@in_vhost
@click.argument("queue")
@conditions
@click.option("--from", "after", metavar="PLACE", default="", help="Begin behind the message at this place.")
@how_many(100)
@_WAITING
@pass_invocation
def search(
    invocation: Invocation,
    vhost: str,
    queue: str,
    wanted: dict[str, str],
    after: str,
    count: int,
    waiting: bool,
) -> None:
    if not wanted:
        raise Failure(
            "search for what? Give --header, --routing-key, --contains, --message-id or --since", USAGE
        )
    rows: list[dict[str, Any]] = []
    looked_at, left = 0, ready(invocation, vhost, queue, waiting=waiting)
    with progress(f"Searching {queue}"):
        for page in seen(invocation, vhost, queue, after, left, **wanted, **_also(waiting)):
            rows += page["messages"]
            looked_at += page["looked_at"]
            if len(rows) >= count:
                break
    _show_seen(rows[:count], invocation, waiting=waiting)
    if not invocation.json:
        click.echo(f"{looked_at} messages were looked at", err=True)
