"""The arguments of exchanges and of their bindings, a row for each, for the reference and for forms. Each
type of exchange checks those that it takes; see the package `exchanges`.
"""

from __future__ import annotations

from typing import NamedTuple


class ExchangeArgument(NamedTuple):
    name: str
    #: The types that take it; empty: all.
    types: tuple[str, ...]
    #: What a form asks for: `boolean`, `number`, `choice` or `text`.
    kind: str
    #: As a text, or as the choices that there are.
    values: str | tuple[str, ...]
    #: What it does, in Markdown.
    text: str


ROWS = (
    ExchangeArgument("alternate-exchange", (), "text", "name", "exchange for messages that match no binding"),
    ExchangeArgument(
        "x-delayed-type",
        ("x-delayed-message",),
        "text",
        "an exchange type",
        "type by which messages are routed",
    ),
    ExchangeArgument(
        "hash-header",
        ("x-consistent-hash",),
        "text",
        "name",
        "header that is hashed, instead of the routing key",
    ),
    ExchangeArgument(
        "hash-property",
        ("x-consistent-hash",),
        "choice",
        ("correlation_id", "message_id", "timestamp"),
        "property that is hashed, instead of the routing key; not together with `hash-header`",
    ),
    ExchangeArgument(
        "x-partitions",
        ("x-super-stream",),
        "number",
        "1 to `super_stream_partitions_max`",
        "number of streams that are declared with the exchange; other arguments are for these streams",
    ),
    ExchangeArgument(
        "x-super-stream",
        ("direct",),
        "boolean",
        "true",
        "mark of super streams that RabbitMQ's tools declare",
    ),
)

#: The arguments of bindings; the types are those of the exchanges that the bindings come from.
BINDING_ROWS = (
    ExchangeArgument(
        "x-match",
        ("headers",),
        "choice",
        ("all", "any", "all-with-x", "any-with-x"),
        "whether all arguments must match, or one; only the last two values compare headers that begin with `x-`",
    ),
    ExchangeArgument(
        "x-stream-partition-order",
        ("x-super-stream", "direct"),
        "number",
        "integer",
        "number of the partition",
    ),
)
