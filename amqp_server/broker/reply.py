"""Direct reply-to: a consumer on `amq.rabbitmq.reply-to` is a target of its own, without a queue.

Its token ends with the name of the node that its client is connected to, so that other nodes know where to send replies.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

PSEUDO_QUEUE = "amq.rabbitmq.reply-to"


def home_of(token: str) -> str:
    """Return the node that a token is of; empty if it is no token."""
    return token[len(PSEUDO_QUEUE) + 1 :].partition(".")[2]


class ReplyHost:
    """Stands where a queue's host would: what is published to the token goes straight to the consumer."""

    #: See LocalHost.
    counts_bytes = False
    wants_ids = False

    def __init__(self, subscription: Any, node: str) -> None:
        self.token = f"{PSEUDO_QUEUE}.g1h{secrets.token_hex(16)}.{node}"
        self.subscription = subscription
        self.pending: list[Any] = []
        self.closed = False

    def barrier(self, done: Callable[..., None]) -> None:
        done()

    def turn(self) -> None:
        commands, self.pending = self.pending, []
        for _, run, origin, first in commands:
            if not self.closed:
                self.subscription.deliver(None, run, 0)
            if origin is not None:
                origin.confirmed(first, first + len(run.seqs) - 1)
