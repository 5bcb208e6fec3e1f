"""Where a sink's messages go, looked at by the driver before any task starts: passive checks, nothing is declared."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from pika import spec

from spark_sink.client.connection import Connection
from spark_sink.client.errors import ChannelClosed
from spark_sink.options import BadOption, SinkOptions

NOT_FOUND, PRECONDITION_FAILED = 404, 406
#: What a broker announces that drops messages it has taken already, in queues with the argument x-deduplication.
CAPABILITY = "publisher_deduplication"
ARGUMENT = "x-deduplication"

#: How a task sends.
Mechanism = Literal["none", "confirm", "tx", "ledger", "broker"]


def check(connection: Connection, options: SinkOptions, columns: Collection[str]) -> None:
    """Raises BadOption if the exchange or the queue that the options name is not there."""
    if options.exchange:
        _passive(
            connection,
            spec.Exchange.Declare(exchange=options.exchange, passive=True),
            "exchange",
            options.exchange,
        )
    elif (queue := _only_queue(options, columns)) is not None:
        _passive(connection, spec.Queue.Declare(queue=queue, passive=True), "routingKey", queue)


def _only_queue(options: SinkOptions, columns: Collection[str]) -> str | None:
    """Return the queue that all messages go to, if the options alone say that."""
    if options.exchange or "exchange" in columns or "routing_key" in columns:
        return None
    return options.routing_key


def _passive(
    connection: Connection, declare: spec.Exchange.Declare | spec.Queue.Declare, option: str, name: str
) -> None:
    try:
        connection.call(declare, spec.Exchange.DeclareOk, spec.Queue.DeclareOk)
    except ChannelClosed as error:
        if error.code == NOT_FOUND:
            what = "exchange" if option == "exchange" else "queue"
            raise BadOption(
                f"option '{option}': {error}. Nothing is declared by a write: declare the {what} '{name}' first, "
                "or correct the name"
            ) from None
        raise BadOption(f"option '{option}' ('{name}'): {error}") from None


def mechanism(connection: Connection, options: SinkOptions, columns: Collection[str]) -> Mechanism:
    """Choose how tasks send. Raises BadOption if the broker lacks what the options ask for."""
    if options.delivery != "exactly-once":
        return options.delivery
    able = bool(connection.capabilities.get(CAPABILITY))
    queue = _only_queue(options, columns)
    if options.deduplication == "broker":
        if not able:
            raise BadOption(
                f"option 'deduplication' is broker, and {connection.host} has no publisher deduplication: "
                "leave it at auto, or set it to ledger"
            )
        # Of queues behind an exchange the user has to know it.
        if queue is not None and not _deduplicates(connection, queue):
            raise BadOption(
                f"option 'deduplication' is broker, and the queue '{queue}' was declared without {ARGUMENT}: "
                "declare it with that argument, leave the option at auto, or set it to ledger"
            )
        return "broker"
    if options.deduplication == "ledger" or not able or queue is None:
        return "ledger"
    return "broker" if _deduplicates(connection, queue) else "ledger"


def _deduplicates(connection: Connection, queue: str) -> bool:
    """A broker with the capability compares this argument even of a passive declare."""
    try:
        connection.call(
            spec.Queue.Declare(queue=queue, passive=True, arguments={ARGUMENT: True}), spec.Queue.DeclareOk
        )
    except ChannelClosed as error:
        if error.code != PRECONDITION_FAILED:
            raise
        connection.open_channel()
        return False
    return True
