"""Direct reply-to: a consumer on `amq.rabbitmq.reply-to` is a target of its own, without a queue."""

from __future__ import annotations

import secrets
from typing import Any

PSEUDO_QUEUE = "amq.rabbitmq.reply-to"


class ReplyHost:
    """Stands where a queue's host would: what is published to the token goes straight to the consumer."""

    #: See LocalHost.
    counts_bytes = False

    def __init__(self, subscription: Any) -> None:
        self.token = f"{PSEUDO_QUEUE}.g1h{secrets.token_hex(16)}"
        self.subscription = subscription
        self.pending: list[Any] = []
        self.closed = False

    def turn(self) -> None:
        commands, self.pending = self.pending, []
        for _, run, origin, first in commands:
            if not self.closed:
                self.subscription.deliver(None, run, 0)
            if origin is not None:
                origin.confirmed(first, first + len(run.seqs) - 1)
