"""Definitions that RabbitMQ imports whole: what it cannot read is left out, and named.

RabbitMQ refuses a file as soon as one object in it is unknown to it.
"""

from __future__ import annotations

from typing import Any

from amqp_server.broker.access.password import OWN_ALGORITHM
from amqp_server.broker.declared.queue_types import CLASSIC, QUEUE_TYPES
from exchanges.delayed import DELAYED
from exchanges.super_stream import SUPER_STREAM

Row = dict[str, Any]

#: Keys of policies that only mqd has.
OWN_POLICY_KEYS = frozenset(
    {
        "deduplication",
        "deduplication-window-ms",
        "deduplication-count",
        "message-status",
        "message-status-window-ms",
        "message-status-count",
        "message-status-events",
        "delayed-retry-backoff",
        "stream-remote",
        "stream-local-max-age",
        "stream-local-max-length-bytes",
        "stream-table",
    }
)


class ForRabbitMQ:
    """Filters the rows of definitions, and notes what it leaves out."""

    def __init__(self) -> None:
        #: Kind, name and reason of each object that is left out.
        self.left_out: list[dict[str, str]] = []
        self._users: set[str] = set()
        #: Kind, vhost and name of exchanges and queues, the ends of bindings.
        self._ends: set[tuple[str, str, str]] = set()

    def _leave_out(self, kind: str, name: str, reason: str) -> None:
        self.left_out.append({"type": kind, "name": name, "reason": reason})

    def user(self, row: Row) -> Row | None:
        if row["hashing_algorithm"] != OWN_ALGORITHM:
            self._users.add(row["name"])
            return row
        self._leave_out("user", row["name"], "RabbitMQ cannot read its password hash (Argon2id)")
        return None

    def of_user(self, row: Row) -> Row | None:
        """RabbitMQ refuses a permission of a user that the file does not have."""
        return row if row["user"] in self._users else None

    def policy(self, row: Row) -> Row | None:
        own = OWN_POLICY_KEYS & row["definition"].keys()
        if not own:
            return row
        self._leave_out("policy", row["name"], f"RabbitMQ does not know {', '.join(sorted(own))}")
        definition = {key: value for key, value in row["definition"].items() if key not in own}
        return {**row, "definition": definition} if definition else None

    def queue(self, row: Row) -> Row | None:
        row.pop("protected_from_deletion", None)
        kind = row["arguments"].get("x-queue-type", CLASSIC.name)
        if not QUEUE_TYPES[kind].is_group:
            return row
        self._ends.add(("queue", row["vhost"], row["name"]))
        self._leave_out("queue", row["name"], f"RabbitMQ has no queues of type {kind}")
        return None

    def exchange(self, row: Row) -> Row | None:
        if row["type"] not in (SUPER_STREAM, DELAYED):
            return row
        self._ends.add(("exchange", row["vhost"], row["name"]))
        why = f"RabbitMQ has no exchanges of type {row['type']}"
        self._leave_out("exchange", row["name"], why if row["type"] == SUPER_STREAM else f"{why} of its own")
        return None

    def binding(self, row: Row) -> Row | None:
        vhost = row["vhost"]
        ends = {("exchange", vhost, row["source"]), (row["destination_type"], vhost, row["destination"])}
        return None if ends & self._ends else row


__all__ = ["ForRabbitMQ"]
