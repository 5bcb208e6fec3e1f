"""What other brokers do differently, and why the model asks for what mqd does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.model.campaign import Failure


@dataclass(frozen=True)
class Difference:
    #: Beginning of product and version.
    broker: str
    #: Found in the text of the failure.
    text: str
    reason: str
    #: Choices of the row without which it does not happen; several are separated by |.
    row: tuple[tuple[str, str], ...] = ()


RABBITMQ = "rabbitmq"
#: Of 4.3; 3.10 does what mqd does.
RABBITMQ_4 = "rabbitmq-4"
KNOWN: tuple[Difference, ...] = (
    Difference(
        RABBITMQ,
        r"operations with if-(empty|unused) flag set are not supported",
        "conditional deletes of quorum queues and streams are refused with 540",
    ),
    Difference(
        RABBITMQ,
        r"basic\.get operations are not supported by \W*quorum\W* queues with single active consumer",
        "basic.get from a quorum queue with a single active consumer is refused with 405",
    ),
    Difference(RABBITMQ, r"does not support global qos", "no global prefetch on quorum queues (540)"),
    Difference(
        RABBITMQ,
        r"Basic\.Consume was accepted where 403 is right|in exclusive use where success is right",
        "exclusive consumers of quorum queues exclude nobody",
        (("kind", "quorum"),),
    ),
    Difference(
        RABBITMQ,
        r"basic\.(nack|reject|recover).* not supported by stream queues",
        "nack, reject and recover of a stream's delivery close the connection",
    ),
    Difference(
        RABBITMQ,
        r"^step \d+ \(\w+\): \w+(-\d)? has \d+ messages where",
        "counts of streams are those of the last statistics",
        (("kind", "stream"),),
    ),
    Difference(
        RABBITMQ,
        r"reader \w+ got more than its prefetch",
        "a stream delivers the messages of one chunk together, whatever the prefetch",
        (("kind", "stream"),),
    ),
    Difference(
        RABBITMQ,
        r"Tx\.Commit was accepted where 406 is right",
        "a message of a transaction that a queue refuses is lost, and the commit succeeds",
    ),
    Difference(
        RABBITMQ,
        r"got ack where {'nack'} is right|was delivered, which never was in this queue",
        "a quorum queue takes some messages above its limit before it refuses others",
        (("kind", "quorum"),),
    ),
    Difference(
        RABBITMQ,
        r"came before message|came to .* after message|is lost|never was in this queue|messages where|remain where",
        "a policy with max-length and overflow together drops messages before it refuses any",
        (("policy", "overflow"),),
    ),
    Difference(
        RABBITMQ,
        r"Queue\.Delete was accepted where 406 is right",
        "conditions of a delete are ignored for streams",
        (("kind", "stream"),),
    ),
    Difference(
        RABBITMQ,
        r"is there [\d.]+ s after its lease",
        "a quorum queue looks at its lease every 5 s",
        (("kind", "quorum"),),
    ),
    Difference(
        RABBITMQ,
        r"q1 is there [\d.]+ s after its lease",
        "a quorum queue looks at its lease every 5 s",
        (("policy", "expires"),),
    ),
    Difference(
        RABBITMQ,
        r"is there [\d.]+ s after its lease",
        "a passive declare by another client, which is refused, renews the lease of an exclusive queue",
        (("life", "exclusive"),),
    ),
    Difference(
        RABBITMQ_4,
        r"message \d+ has redelivered=True",
        "a dead letter keeps the flag of the queue that it comes from",
    ),
    Difference(
        RABBITMQ_4,
        r"got more than its prefetch of \d+, or of \d+ for its channel",
        "global prefetch counts for each consumer",
        (("consume", "global"),),
    ),
    Difference(
        RABBITMQ_4,
        r"came before message",
        "every quorum queue has priorities, q1 too",
        (("priority", "5"),),
    ),
    Difference(
        RABBITMQ_4,
        r"was purged with \d+ messages where|has \d+ messages where|messages remain where",
        "x-max-length-bytes of a quorum queue counts properties, too",
        (("kind", "quorum"), ("bytes", "100")),
    ),
)


def known(product: str, failure: Failure) -> str | None:
    row = failure.program.row
    for each in KNOWN:
        fits = all(row.get(name) in values.split("|") for name, values in each.row)
        if product.startswith(each.broker) and fits and re.search(each.text, failure.text):
            return each.reason
    return None
