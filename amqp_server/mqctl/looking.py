"""Requests about the messages in a queue, part by part: one request looks at a limited number of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import click

from amqp_server.mqctl.command import Invocation

#: Messages that one request looks at, at most.
LOOKED_AT_ONCE = 1_000
#: Names of the conditions.
NAMES = ("header", "routing_key", "contains", "message_id", "since")
_OPTIONS = (
    click.option("--header", metavar="NAME=VALUE", help="They have this header with this value."),
    click.option(
        "--routing-key",
        metavar="PATTERN",
        help="Their routing key matches this regular expression, in any case.",
    ),
    click.option("--contains", metavar="TEXT", help="Their payload contains this text."),
    click.option("--message-id", metavar="ID", help="They have this message-id."),
    click.option(
        "--since",
        metavar="TIME",
        help="They came then, or later: a time in ISO 8601, ms since 1970, or an age such as 90s, 15m, 2h or 7d.",
    ),
)
#: Of commands that leave out waiting messages unless they are asked for.
waiting = click.option("--waiting", is_flag=True, help="Also messages that wait before they are delivered.")


def conditions(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for conditions that messages have to fulfil. The command gets those that are given as
    `wanted`, by their names in the API.
    """

    @wraps(command)
    def with_conditions(**given: Any) -> Any:
        conditions = {name: given.pop(name) for name in NAMES}
        return command(
            wanted={name: value for name, value in conditions.items() if value is not None}, **given
        )

    for option in reversed(_OPTIONS):
        with_conditions = option(with_conditions)
    return with_conditions


def ready(invocation: Invocation, vhost: str, queue: str, *, waiting: bool = False) -> int:
    """Return how many messages a command that goes through a queue looks at: those that it has now, and not
    until it is empty, because publishers may be as fast.
    """
    row = invocation.client.get("queues", vhost, queue)
    return int(row["messages_ready"]) + (int(row.get("messages_delayed", 0)) if waiting else 0)


def seen(
    invocation: Invocation, vhost: str, queue: str, after: str, left: int, **wanted: str
) -> Iterator[dict[str, Any]]:
    """Look at `left` messages behind a place."""

    def ask(after: str, count: int) -> dict[str, Any]:
        asked = {"after": after, "count": str(count), **wanted}
        page: dict[str, Any] = invocation.client.get("queues", vhost, queue, "peek", **asked)
        return page

    return pages(after, left, ask)


def pages(after: str, left: int, ask: Callable[[str, int], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the answers of `ask`, which gets a place and how many messages to look at behind it, until `left`
    messages were looked at.
    """
    while left > 0:
        page = ask(after, min(left, LOOKED_AT_ONCE))
        yield page
        if page["next"] is None:
            return
        left -= page["looked_at"]
        after = page["next"]
