"""Direct reply-to: a consumer on `amq.rabbitmq.reply-to` is itself a target, without a queue.

Its token ends with the name of the node that its client is connected to, so that other nodes know where to
send replies.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from quorum_queue.ports import Sink, Turn

PSEUDO_QUEUE = "amq.rabbitmq.reply-to"


def home_of(token: str) -> str:
    """Return the node in a token; empty if it is no token."""
    return token[len(PSEUDO_QUEUE) + 1 :].partition(".")[2]


class DirectTarget:
    """Takes messages without a queue. See queue.Target and quorum_queue.ports.Recipient."""

    counts_bytes = False
    may_refuse = False
    wants_ids = False
    records = False
    in_journal = True
    takes_parts = False
    takes_kinds = False
    is_queue = False
    deleted = False
    delays = False
    group_header = ""

    def __init__(self, name: str, turn: Turn) -> None:
        self.name = name
        self.published = 0
        self.pending: list[Any] = []
        self._turn = turn

    @property
    def host(self) -> DirectTarget:
        return self

    def begin_large(self, content: bytes, head: bytes, channel: int) -> None:
        return None

    def submit(self, *commands: Any) -> None:
        self.pending += commands
        self._turn.schedule(self)

    def barrier(self, done: Callable[..., None]) -> None:
        done()

    def hold(self) -> None:
        """What is submitted does not wait for the end of the transaction."""

    def unhold(self) -> None:
        """It was not held."""

    def apply_pending(self) -> None:
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        raise NotImplementedError


class ReplyHost(DirectTarget):
    """Sends messages to the token directly to the consumer. `deleted` is True when the consumer has ended."""

    def __init__(self, turn: Turn, sink: Sink, node: str) -> None:
        super().__init__(f"{PSEUDO_QUEUE}.g1h{secrets.token_hex(16)}.{node}", turn)
        self.sink = sink
        self._holds = 0

    def hold(self) -> None:
        self._holds += 1

    def unhold(self) -> None:
        self._holds -= 1
        self._turn.schedule(self)

    def apply_pending(self) -> None:
        if self._holds and not self.deleted:
            return
        commands, self.pending = self.pending, []
        for _, run, origin, first in commands:
            if not self.deleted:
                self._turn.deliver(self.sink, None, run, 0)
            if origin is not None:
                origin.confirmed(first, first + len(run.seqs) - 1)

    def failed(self, error: Exception) -> None:
        self.sink.failed(error)

    def close(self) -> None:
        """The consumer has ended: drop later replies, as RabbitMQ does."""
        self.deleted = True


class Replies:
    """The clients of this node that wait for direct replies, by their tokens."""

    def __init__(self) -> None:
        self._hosts: dict[str, ReplyHost] = {}

    def add(self, host: ReplyHost) -> None:
        self._hosts[host.name] = host

    def remove(self, host: ReplyHost) -> None:
        self._hosts.pop(host.name, None)

    def __len__(self) -> int:
        return len(self._hosts)

    def get(self, token: str) -> ReplyHost | None:
        return self._hosts.get(token)
