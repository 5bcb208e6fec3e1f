"""The page of arguments: of queues, exchanges, bindings and consumers, and headers of messages that mean
something. What is said of queues, policies and exchanges comes from the tables in `broker/declared`.
"""

from __future__ import annotations

from collections.abc import Collection

from amqp_server.broker.declared.argument_table import ROWS, Argument
from amqp_server.broker.declared.exchange_arguments import BINDING_ROWS, ExchangeArgument
from amqp_server.broker.declared.exchange_arguments import ROWS as EXCHANGE_ROWS
from amqp_server.broker.declared.policy import EXCHANGE_KEYS, KEYS, QUEUES, Key
from amqp_server.broker.declared.queue_types import QUEUE_TYPES
from amqp_server.reference.markdown import cell, code, head, prose, table
from exchanges.registry import EXCHANGE_TYPES, PREDECLARED

EXCHANGE_TYPE_TEXTS = {
    "direct": "to the bindings whose key equals the routing key",
    "fanout": "to all bindings",
    "topic": "to the bindings whose key matches; keys are words with dots between, `*` is one word, `#` any number of words",
    "headers": "to the bindings whose arguments match the headers, as `x-match` says",
    "x-consistent-hash": "to one binding, by the hash of the key, a header or a property; the binding's key is its weight",
    "x-modulus-hash": "to one binding, by the hash of the key modulo the number of bindings",
    "x-random": "to one binding, at random",
    "x-local-random": "to one of the classic queues on the publisher's node, at random",
    "x-delayed-message": "as its argument `x-delayed-type` says, and [waits](../delays.md#delayed-messages) in its queues",
    "x-super-stream": "to one [partition](../streams.md#super-streams), by the hash of the key",
}

PASSIVE = {
    "x-stream-offset": ("stream", "integer", "[count the messages](../streams.md#how-far-it-has-come) from this offset on"),
    "x-stream-until": (
        "stream", "timestamp, or integer, ms since 1970",
        "beside `x-stream-offset`: count only messages before the first batch that is not older",
    ),
}  # fmt: skip

CONSUMERS = {
    "x-priority": ("classic, quorum", "integer", "consumers with a higher number get messages first, while they have credit"),
    "x-consumer-timeout": ("classic, quorum", "ms, 1 and more", "[how long](../confirms.md#consumer-timeout) the consumer may hold a message without an ack"),
    "x-stream-offset": (
        "stream", "`first`, `last`, `next`, an offset, a timestamp, an age such as `1h`, `committed`",
        "[place where the consumer begins](../streams.md#consuming)",
    ),
    "x-group": ("stream", "name", "name of the stored offset for `committed`; a new name is refused with 406 if the stream has `stream_names_max` names"),
    "x-stream-offset-default": ("stream", "as above", "place where `committed` begins if no offset is stored yet"),
    "x-stream-filter": ("stream", "text, or a list of texts", "get only messages with one of these filter values"),
    "x-stream-match-unfiltered": ("stream", "true, false", "also get messages without a filter value"),
    "x-stream-batches": ("stream", "true, false", "get [stored batches](../streams.md#batches-as-they-are-stored) in place of messages"),
    "x-stream-timestamps": ("stream", "true, false", "get the time of each message in the header `x-stream-timestamp`"),
}  # fmt: skip

PUBLISHED = {
    "CC": ("list of texts", "more routing keys"),
    "BCC": ("list of texts", "more routing keys, which consumers do not see"),
    "x-delay": (
        "integer, ms",
        "[how long the message waits](../delays.md#delayed-messages) before it is delivered first",
    ),
    "x-delivery-tag": (
        "integer",
        "delivery that [goes back to wait for `x-delay`](../delays.md#a-delay-for-one-message), to `amq.mqd.retry`",
    ),
    "x-failed": ("true, false", "whether that counts as a failure"),
    "x-deliver-at": ("timestamp, or integer, ms since 1970", "until when it waits"),
    "x-group-id": (
        "text",
        "[group](../message-groups.md) of the message, unless the queue names another header",
    ),
    "x-deduplication-id": ("text", "[identity](../confirms.md#deduplication) of the message"),
    "x-producer": ("text", "name of the producer, for `x-sequence` or `x-producer-epoch`"),
    "x-producer-epoch": (
        "integer",
        "start of a producer of transactions: a higher one shuts out the earlier ones",
    ),
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
    "x-acquired-count": ("integer", "how often the message came back, for whatever reason (quorum queues)"),
    "x-delivery-count": (
        "integer",
        "how often its delivery failed (quorum queues), or how often it came back (consumer groups)",
    ),
    "x-stream-offset": ("integer", "offset of the message in the stream"),
    "x-stream-timestamp": (
        "integer, ms since 1970",
        "when the broker took the message (streams, to consumers with `x-stream-timestamps`)",
    ),
    "x-stream-next-offset": (
        "integer",
        "offset after the batch (streams, to consumers with `x-stream-batches`)",
    ),
    "x-stream-count": ("integer", "number of messages in the batch, to such consumers"),
    "x-stream-skip": ("integer", "number of its messages before the offset at which the consumer continues"),
    "x-stream-codec": ("`none`, `zstd`, `lz4`", "compression of the batch, to such consumers"),
    "x-stream": ("text", "partition of the message (consumer groups)"),
    "x-shovelled": ("list", "shovels that have moved the message, if they are configured to add this header"),
    "x-shovelled-timestamp": ("integer", "time of the last move, in s since 1970"),
    "timestamp_in_ms": ("integer", "[when the message came](../operating.md#when-and-where-messages-came)"),
    "x-routed-by": ("text", "node that its publisher was connected to, if it is configured to write that"),
}


def page() -> str:
    _check()
    lines = head(
        "Arguments",
        "The arguments of `queue.declare`, `exchange.declare`, `queue.bind` and `basic.consume`, and the message headers that the "
        "broker reads or adds. Unknown arguments are ignored, as in RabbitMQ; invalid values are refused with 406. "
        "[Policies](#policies) can set most arguments of the first table, too.",
        "## Queues",
        "*yes*: the argument has an effect, or is checked; *406*: a declare with it is refused; *ignored*: it has no effect on this type.",
    )
    rows = (
        [code(row.name), *(taken(row, each) for each in QUEUE_TYPES), cell(values_of(row)), cell(row.text)]
        for row in ROWS
    )
    lines += table(["argument", *QUEUE_TYPES, "values", ""], rows)
    lines += ["## Policies", ""]
    lines += prose(
        "The keys of [policies](../policies.md). A policy with a key does not apply to queues of a type that lacks it. Where a "
        "queue was declared with the argument, the argument counts; of two limits, the smaller one; for the types in the last "
        "column, the policy. The column *operators* says which value counts, that of a policy or that of an operator policy, "
        "where these may have the key."
    )
    lines += table(
        ["key", "argument", "of", "operators", "policy before argument"],
        [_policy_row(key, KEYS[key], argument) for key, argument in _policy_arguments()],
    )
    lines += ["## Exchanges", ""]
    lines += table(
        ["type", "a message goes"], ([code(name), EXCHANGE_TYPE_TEXTS[name]] for name in EXCHANGE_TYPES)
    )
    names = ", ".join(code(name) if name else "the default one" for name, _, _ in PREDECLARED)
    lines += [f"Every virtual host has these exchanges from its start: {names}.", ""]
    header = ["argument", "of type", "values", ""]
    lines += table(header, map(_exchange_row, EXCHANGE_ROWS))
    lines += ["## Bindings", ""]
    lines += table(header, map(_exchange_row, BINDING_ROWS))
    lines += ["## Passive declares", "", "Arguments of `queue.declare` with the flag `passive`:", ""]
    lines += table(header, ([code(name), *map(cell, rest)] for name, rest in PASSIVE.items()))
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


def _exchange_row(row: ExchangeArgument) -> list[str]:
    return [code(row.name), cell(_codes(row.types) or "all"), cell(values_of(row)), cell(row.text)]


def _policy_arguments() -> list[tuple[str, str]]:
    """The keys of policies, each with the argument that sets the same."""
    of_queues = [(row.policy_key, row.name) for row in ROWS if row.policy is not None]
    return [*of_queues, *((key, key) for key in EXCHANGE_KEYS)]


def _policy_row(name: str, key: Key, argument: str) -> list[str]:
    kinds = [each for each in QUEUE_TYPES if each in QUEUES - key.unsupported]
    return [
        code(name),
        code(argument),
        "exchanges" if name in EXCHANGE_KEYS else ", ".join(kinds),
        key.operators or "–",
        ", ".join(sorted(key.overrules)) or "–",
    ]


def values_of(row: Argument | ExchangeArgument) -> str:
    return row.values if isinstance(row.values, str) else _codes(row.values)


def _codes(names: Collection[str]) -> str:
    return ", ".join(map(code, names))


def _check() -> None:
    if {*EXCHANGE_TYPES} != EXCHANGE_TYPE_TEXTS.keys():
        raise LookupError(f"types of exchanges: {EXCHANGE_TYPES}")


def taken(row: Argument, queue_type: str) -> str:
    """Return what a declare of a queue of this type does with an argument."""
    if queue_type in row.types:
        return "yes"
    return "ignored" if queue_type in row.ignored else "406"
