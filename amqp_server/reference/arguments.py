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
    "x-message-ttl": Argument(_MS, "a message that has waited longer is discarded", 1000),
    "x-expires": Argument(_LEASE, "the queue is deleted when nobody has used it for so long", 1000),
    "x-max-length": Argument(_NUMBER, "waiting messages", 10),
    "x-max-length-bytes": Argument(_BYTES, "bytes of their bodies; of a stream, its size, above 0", 1000),
    "x-overflow": Argument(
        "`drop-head`, `reject-publish`, `reject-publish-dlx`", "what happens at the limit", "reject-publish"
    ),
    "x-dead-letter-exchange": Argument("name", "where discarded messages go", "dead"),
    "x-dead-letter-routing-key": Argument(
        "text", "with this key, instead of their own", "key", {"x-dead-letter-exchange": "dead"}
    ),
    "x-dead-letter-strategy": Argument(
        "`at-most-once`, `at-least-once`",
        "whether the queue keeps dead letters until they have arrived",
        "at-least-once",
    ),
    "x-max-priority": Argument(f"0 to {parser.PRIORITY_MAX}", "the property `priority` orders the queue", 5),
    "x-single-active-consumer": Argument("true, false", "one consumer at a time gets all messages", True),
    "x-delivery-limit": Argument(
        "integer; below 0: none", "how often a message may come back before it is discarded", 5
    ),
    "x-deduplication": Argument("true, false", "[takes no message twice](../queues.md#deduplication)", True),
    "x-deduplication-window-ms": Argument(_LEASE, "for so long an id is remembered", 1000),
    "x-deduplication-count": Argument(
        f"1 to {parser.DEDUPLICATION_COUNT_MAX:,}", "so many ids are remembered", 10
    ),
    "x-quorum-initial-group-size": Argument(_COUNT, "nodes that keep the queue from the start", 3),
    "x-quorum-target-group-size": Argument(_COUNT, "nodes up to which it grows by itself", 3),
    "x-queue-leader-locator": Argument(
        "`client-local`, `balanced`, `random`, `least-leaders`",
        "where the leader is put in a cluster; the last two mean `balanced`",
        "client-local",
    ),
    "x-queue-mode": Argument("`default`, `lazy`", "no effect", "lazy"),
    "x-queue-version": Argument("1, 2", "no effect", 2),
    "x-max-in-memory-length": Argument(_NUMBER, "no effect", 10),
    "x-max-in-memory-bytes": Argument(_BYTES, "no effect", 10),
    "x-max-age": Argument(_AGE, "age at which [segments](../streams.md#declaring) go", "7D"),
    "x-stream-max-segment-size-bytes": Argument(
        f"bytes, 1 to {parser.SEGMENT_BYTES_MAX:,}", "size from which the next segment begins", 1_000_000
    ),
    "x-stream-filter-size-bytes": Argument(
        f"{parser.FILTER_BYTES.start} to {parser.FILTER_BYTES.stop - 1}", "no effect: filters are exact", 32
    ),
    "x-stream-compression": Argument(
        ", ".join(map(code, CODECS)), "[compression](../streams.md#compression)", "zstd"
    ),
    "x-stream-compaction": Argument(
        "`key`, `header:NAME`", "by what the stream is [compacted](../streams.md#compaction)", "key"
    ),
    "x-stream-tombstone-age": Argument(
        _AGE,
        "time for which tombstones stay after the messages that they delete",
        "2D",
        {"x-stream-compaction": "key"},
    ),
    "x-initial-cluster-size": Argument(_COUNT, "nodes that keep the stream", 3),
    "x-stream": Argument("name", "the stream of the [group](../streams.md#consumer-groups)", "other"),
    "x-stream-offset": Argument("as for consumers, but not `committed`", "where the group begins", "first"),
    "x-consumer-timeout": Argument(_LEASE, "for so long a member may hold a message", 1000),
}

EXCHANGE_TYPE_TEXTS = {
    "direct": "to the bindings with the routing key",
    "fanout": "to all bindings",
    "topic": "to the bindings whose key matches, in words with dots between: `*` is one word, `#` any number of them",
    "headers": "to the bindings whose arguments the headers match, as `x-match` says",
    "x-consistent-hash": "to one binding, by the hash of the key, a header or a property; the binding's key is its weight",
    "x-modulus-hash": "to one binding, by the hash of the key modulo their number",
    "x-random": "to one binding, at random",
    "x-local-random": "the same",
    "x-super-stream": "to one [partition](../streams.md#super-streams), by the hash of the key",
}

EXCHANGES = {
    "alternate-exchange": ("all", "name", "where messages go that no binding matches"),
    "hash-header": ("`x-consistent-hash`", "name", "this header is hashed, instead of the key"),
    "hash-property": (
        "`x-consistent-hash`", "`correlation_id`, `message_id`, `timestamp`", "this property is hashed; not with the other one"
    ),
    "x-partitions": (
        "`x-super-stream`", "1 to `super_stream_partitions_max`",
        "streams that are made with the exchange; the other arguments are theirs",
    ),
    "x-super-stream": ("`direct`", "true", "marks the super streams that RabbitMQ's own tools make"),
}  # fmt: skip

BINDINGS = {
    "x-match": (
        "`headers`", "`all`, `any`, `all-with-x`, `any-with-x`",
        "whether all arguments have to match or one; headers that begin with `x-` count for the last two only",
    ),
    "x-stream-partition-order": ("`x-super-stream`, `direct`", "integer", "the number of the partition"),
}  # fmt: skip

CONSUMERS = {
    "x-priority": ("classic, quorum", "integer", "consumers with a higher one go first while they have room"),
    "x-stream-offset": (
        "stream", "`first`, `last`, `next`, an offset, a timestamp, an age such as `1h`, `committed`",
        "[where it begins](../streams.md#consuming)",
    ),
    "x-group": ("stream", "name", "whose place `committed` is; refused with 406 if the stream has `stream_names_max` others"),
    "x-stream-offset-default": ("stream", "as above", "where `committed` begins the first time"),
    "x-stream-filter": ("stream", "text, or a list of texts", "only messages with one of these filter values"),
    "x-stream-match-unfiltered": ("stream", "true, false", "and those without any"),
}  # fmt: skip

PUBLISHED = {
    "CC": ("list of texts", "more routing keys"),
    "BCC": ("list of texts", "more routing keys, which consumers do not see"),
    "x-deduplication-id": ("text", "[identity](../queues.md#deduplication) of the message"),
    "x-producer": ("text", "identity of its publisher, with `x-sequence`"),
    "x-sequence": ("integer", "number of the message at its publisher"),
    "x-confirm": (
        "`leader`, `all`",
        "[when it is confirmed](../reliability.md#levels-of-confirmation), if not by a majority",
    ),
    "x-stream-filter-value": ("text", "what `x-stream-filter` of a consumer asks for"),
}

DELIVERED = {
    "x-death": ("list", "where, why and how often the message died, the newest first"),
    "x-first-death-queue": ("text", "where it died first"),
    "x-first-death-exchange": ("text", "where it had been published to then"),
    "x-first-death-reason": ("`rejected`, `expired`, `maxlen`, `delivery_limit`", "why it died first"),
    "x-delivery-count": ("integer", "how often it came back; of quorum queues and consumer groups"),
    "x-stream-offset": ("integer", "its offset in the stream"),
    "x-stream": ("text", "the partition, of consumer groups"),
    "x-shovelled": ("list", "the shovels that have moved it, where they are told to say so"),
    "x-shovelled-timestamp": ("integer", "when the last one did, in s"),
}


def page() -> str:
    _check()
    lines = head(
        "Arguments",
        "What clients may give to `queue.declare`, `exchange.declare`, `queue.bind` and `basic.consume` as arguments, and the "
        "headers of messages that mean something to the broker. Arguments that nobody knows are ignored, as by RabbitMQ; "
        "values that cannot be are refused with 406. Most of the first table can be set by [policies](../policies.md), too.",
        "## Queues",
        "*yes*: it has an effect, or is checked; *406*: a declare with it is refused; *ignored*: it means nothing to this type.",
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
