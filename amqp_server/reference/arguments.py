"""The page of arguments: of queues, exchanges, bindings and consumers, and headers of messages that mean
something.

Which type of queue takes which argument is found out by declaring: the parser of declares is asked with an
example.
"""

from __future__ import annotations

from typing import NamedTuple

from amqp_server.broker.declared import arguments as parser
from amqp_server.broker.declared.queue_types import QUEUE_TYPES, QueueType
from amqp_server.errors import PreconditionFailed
from amqp_server.reference.markdown import cell, code, head, table
from exchanges.registry import EXCHANGE_TYPES, PREDECLARED
from persistence.streams.compression import CODECS


class Argument(NamedTuple):
    values: str
    text: str
    #: A value that is not the default.
    example: object = None
    #: What has to be declared with it.
    beside: dict[str, object] = {}


_NUMBER, _BYTES, _MS = "0 and more", "bytes, 0 and more", f"ms, 0 to {parser.TIME_MS_MAX:,}"
_LEASE = f"ms, 1 to {parser.TIME_MS_MAX:,}"
_COUNT = "1 and more"
_AGE = "a number and `Y`, `M`, `D`, `h`, `m` or `s`"

QUEUES = {
    "x-queue-type": Argument(", ".join(map(code, QUEUE_TYPES)), "[type](../queues.md) of the queue"),
    "x-message-ttl": Argument(_MS, "time after which a waiting message is discarded", 1000),
    "x-expires": Argument(
        _LEASE, "time without a consumer, declare or get after which the queue is deleted", 1000
    ),
    "x-max-length": Argument(_NUMBER, "limit of waiting messages", 10),
    "x-max-length-bytes": Argument(
        _BYTES, "limit of the bytes of their bodies; for a stream, of its size (above 0)", 1000
    ),
    "x-overflow": Argument(
        "`drop-head`, `reject-publish`, `reject-publish-dlx`",
        "what happens at the limit: drop the oldest message, or refuse the newest (and dead-letter it)",
        "reject-publish",
    ),
    "x-dead-letter-exchange": Argument("name", "exchange for discarded messages", "dead"),
    "x-dead-letter-routing-key": Argument(
        "text", "routing key of dead letters, instead of their own", "key", {"x-dead-letter-exchange": "dead"}
    ),
    "x-dead-letter-strategy": Argument(
        "`at-most-once`, `at-least-once`",
        "`at-least-once`: the queue keeps a dead letter until its target has it",
        "at-least-once",
    ),
    "x-max-priority": Argument(
        f"0 to {parser.PRIORITY_MAX}",
        "highest priority: messages with a higher property `priority` come first",
        5,
    ),
    "x-single-active-consumer": Argument("true, false", "only one consumer at a time gets messages", True),
    "x-delivery-limit": Argument(
        "integer; below 0: none", "how often a message may be returned before it is discarded", 5
    ),
    "x-deduplication": Argument(
        "true, false", "[refuses to store a message twice](../queues.md#deduplication)", True
    ),
    "x-deduplication-window-ms": Argument(_LEASE, "how long an id is remembered", 1000),
    "x-deduplication-count": Argument(
        f"1 to {parser.DEDUPLICATION_COUNT_MAX:,}", "how many ids are remembered", 10
    ),
    "x-quorum-initial-group-size": Argument(_COUNT, "number of members (nodes) from the start", 3),
    "x-quorum-target-group-size": Argument(
        _COUNT, "number of members up to which the queue grows by itself", 3
    ),
    "x-queue-leader-locator": Argument(
        "`client-local`, `balanced`, `random`, `least-leaders`",
        "node of the leader: that of the client, or the one with the fewest leaders (all other values)",
        "client-local",
    ),
    "x-queue-mode": Argument("`default`, `lazy`", "no effect", "lazy"),
    "x-queue-version": Argument("1, 2", "no effect", 2),
    "x-max-in-memory-length": Argument(_NUMBER, "no effect", 10),
    "x-max-in-memory-bytes": Argument(_BYTES, "no effect", 10),
    "x-max-age": Argument(_AGE, "age at which [segments](../streams.md#declaring) are deleted", "7D"),
    "x-stream-max-segment-size-bytes": Argument(
        f"bytes, 1 to {parser.SEGMENT_BYTES_MAX:,}", "size at which the next segment begins", 1_000_000
    ),
    "x-stream-filter-size-bytes": Argument(
        f"{parser.FILTER_BYTES.start} to {parser.FILTER_BYTES.stop - 1}", "no effect: filters are exact", 32
    ),
    "x-stream-compression": Argument(
        ", ".join(map(code, CODECS)), "[compression](../streams.md#compression)", "zstd"
    ),
    "x-stream-compaction": Argument(
        "`key`, `header:NAME`",
        "key for [compaction](../streams.md#compaction): the routing key, or a header",
        "key",
    ),
    "x-stream-tombstone-age": Argument(
        _AGE,
        "time for which tombstones stay after the messages that they delete",
        "2D",
        {"x-stream-compaction": "key"},
    ),
    "x-initial-cluster-size": Argument(_COUNT, "number of members (nodes) of the stream", 3),
    "x-stream": Argument("name", "stream of the [consumer group](../streams.md#consumer-groups)", "other"),
    "x-stream-offset": Argument(
        "as for consumers, but not `committed`", "place where the consumer group begins", "first"
    ),
    "x-consumer-timeout": Argument(_LEASE, "how long a member may hold a message without an ack", 1000),
}

EXCHANGE_TYPE_TEXTS = {
    "direct": "to the bindings whose key equals the routing key",
    "fanout": "to all bindings",
    "topic": "to the bindings whose key matches; keys are words with dots between, `*` is one word, `#` any number of words",
    "headers": "to the bindings whose arguments match the headers, as `x-match` says",
    "x-consistent-hash": "to one binding, by the hash of the key, a header or a property; the binding's key is its weight",
    "x-modulus-hash": "to one binding, by the hash of the key modulo the number of bindings",
    "x-random": "to one binding, at random",
    "x-local-random": "the same",
    "x-super-stream": "to one [partition](../streams.md#super-streams), by the hash of the key",
}

EXCHANGES = {
    "alternate-exchange": ("all", "name", "exchange for messages that match no binding"),
    "hash-header": ("`x-consistent-hash`", "name", "header that is hashed, instead of the routing key"),
    "hash-property": (
        "`x-consistent-hash`", "`correlation_id`, `message_id`, `timestamp`", "property that is hashed, instead of the routing key; not together with `hash-header`"
    ),
    "x-partitions": (
        "`x-super-stream`", "1 to `super_stream_partitions_max`",
        "number of streams that are declared with the exchange; other arguments are for these streams",
    ),
    "x-super-stream": ("`direct`", "true", "mark of super streams that RabbitMQ's tools declare"),
}  # fmt: skip

BINDINGS = {
    "x-match": (
        "`headers`", "`all`, `any`, `all-with-x`, `any-with-x`",
        "whether all arguments must match, or one; only the last two values compare headers that begin with `x-`",
    ),
    "x-stream-partition-order": ("`x-super-stream`, `direct`", "integer", "number of the partition"),
}  # fmt: skip

CONSUMERS = {
    "x-priority": ("classic, quorum", "integer", "consumers with a higher number get messages first, while they have credit"),
    "x-stream-offset": (
        "stream", "`first`, `last`, `next`, an offset, a timestamp, an age such as `1h`, `committed`",
        "[place where the consumer begins](../streams.md#consuming)",
    ),
    "x-group": ("stream", "name", "name of the stored offset for `committed`; a new name is refused with 406 if the stream has `stream_names_max` names"),
    "x-stream-offset-default": ("stream", "as above", "place where `committed` begins if no offset is stored yet"),
    "x-stream-filter": ("stream", "text, or a list of texts", "get only messages with one of these filter values"),
    "x-stream-match-unfiltered": ("stream", "true, false", "also get messages without a filter value"),
}  # fmt: skip

PUBLISHED = {
    "CC": ("list of texts", "more routing keys"),
    "BCC": ("list of texts", "more routing keys, which consumers do not see"),
    "x-deduplication-id": ("text", "[identity](../queues.md#deduplication) of the message"),
    "x-producer": ("text", "name of the producer, for `x-sequence`"),
    "x-sequence": ("integer", "number of the message, ascending for each producer"),
    "x-confirm": (
        "`leader`, `all`",
        "[when the message is confirmed](../reliability.md#levels-of-confirmation), if not by a majority",
    ),
    "x-stream-filter-value": ("text", "value for `x-stream-filter` of consumers"),
}

DELIVERED = {
    "x-death": ("list", "queues in which the message died, with reason and count, the latest first"),
    "x-first-death-queue": ("text", "queue in which the message died first"),
    "x-first-death-exchange": ("text", "exchange to which it had been published before that"),
    "x-first-death-reason": (
        "`rejected`, `expired`, `maxlen`, `delivery_limit`",
        "reason of its first death",
    ),
    "x-delivery-count": ("integer", "how often the message was returned (quorum queues and consumer groups)"),
    "x-stream-offset": ("integer", "offset of the message in the stream"),
    "x-stream": ("text", "partition of the message (consumer groups)"),
    "x-shovelled": ("list", "shovels that have moved the message, if they are configured to add this header"),
    "x-shovelled-timestamp": ("integer", "time of the last move, in s since 1970"),
}


def page() -> str:
    _check()
    lines = head(
        "Arguments",
        "The arguments of `queue.declare`, `exchange.declare`, `queue.bind` and `basic.consume`, and the message headers that the "
        "broker reads or adds. Unknown arguments are ignored, as in RabbitMQ; invalid values are refused with 406. "
        "[Policies](../policies.md) can set most arguments of the first table, too.",
        "## Queues",
        "*yes*: the argument has an effect, or is checked; *406*: a declare with it is refused; *ignored*: it has no effect on this type.",
    )
    types = list(QUEUE_TYPES.values())
    rows = (
        [code(name), *(taken(name, each) for each in types), cell(one.values), cell(one.text)]
        for name, one in QUEUES.items()
    )
    lines += table(["argument", *(each.name for each in types), "values", ""], rows)
    lines += ["## Exchanges", ""]
    lines += table(
        ["type", "a message goes"], ([code(name), EXCHANGE_TYPE_TEXTS[name]] for name in EXCHANGE_TYPES)
    )
    names = ", ".join(code(name) if name else "the default one" for name, _, _ in PREDECLARED)
    lines += [f"Every virtual host has these exchanges from its start: {names}.", ""]
    header = ["argument", "of type", "values", ""]
    lines += table(header, ([code(name), *map(cell, rest)] for name, rest in EXCHANGES.items()))
    lines += ["## Bindings", ""]
    lines += table(header, ([code(name), *map(cell, rest)] for name, rest in BINDINGS.items()))
    lines += ["## Consumers", ""]
    lines += table(header, ([code(name), *map(cell, rest)] for name, rest in CONSUMERS.items()))
    lines += ["## Headers of messages", "", "From publishers:", ""]
    lines += table(
        ["header", "values", ""], ([code(name), *map(cell, rest)] for name, rest in PUBLISHED.items())
    )
    lines += ["To consumers:", ""]
    lines += table(
        ["header", "values", ""], ([code(name), *map(cell, rest)] for name, rest in DELIVERED.items())
    )
    return "\n".join(lines)


def parsed_names() -> set[str]:
    """The arguments that the parser of queue.declare looks at."""
    return {name for name, _, _ in parser._CHECKS} | {
        "x-queue-type",
        "x-dead-letter-exchange",
        "x-stream-offset",
    }


def _check() -> None:
    if parsed_names() != QUEUES.keys():
        raise LookupError(
            f"arguments of queues that the page lacks, or has for itself: {parsed_names() ^ QUEUES.keys()}"
        )
    if {*EXCHANGE_TYPES} != EXCHANGE_TYPE_TEXTS.keys():
        raise LookupError(f"types of exchanges: {EXCHANGE_TYPES}")


def taken(name: str, queue_type: QueueType) -> str:
    """Return what a declare of a queue of this type does with an argument."""
    one = QUEUES[name]
    if name == "x-queue-type":
        return "yes"
    least = (
        {"x-queue-type": queue_type.name} | ({"x-stream": "s"} if queue_type.is_group else {}) | one.beside
    )
    try:
        given = _parsed(least | {name: one.example})
        return "ignored" if given == _parsed(least) else "yes"
    except PreconditionFailed:
        return "406"


def _parsed(arguments: dict[str, object]) -> parser.QueueArguments:
    return parser.parse_queue_arguments("q", "/", arguments, durable=True, exclusive=False, auto_delete=False)
