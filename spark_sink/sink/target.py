"""The target of a sink's messages, checked by the driver before any task starts: only passive checks, no
declarations.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from pika import spec
from pyspark.sql.types import StructType

from spark_sink.client.connection import Connection
from spark_sink.client.errors import ChannelClosed
from spark_sink.option_values import BadOption
from spark_sink.options import SinkOptions
from spark_sink.sink.packing import check_columns
from spark_sink.source.consumer import QueueRefused
from spark_sink.streams.probe import discovered

NOT_FOUND, PRECONDITION_FAILED = 404, 406
#: The capability of a broker that drops duplicates in queues with the argument x-deduplication.
CAPABILITY = "publisher_deduplication"
ARGUMENT = "x-deduplication"

#: The reasons why a target is not known, as the user reads them.
ROWS_DECIDE = "rows say which queues they go to"

Declare: TypeAlias = spec.Exchange.Declare | spec.Queue.Declare
#: How a task sends messages.
Mechanism = Literal["none", "confirm", "tx", "ledger", "broker"]


@dataclass(frozen=True, slots=True)
class Prepared:
    options: SinkOptions
    mechanism: Mechanism
    #: Streams from which tasks choose.
    partitions: tuple[str, ...]


logger = logging.getLogger("spark_sink")
#: Messages that this process has printed.
_told: set[str] = set()


def resolved(
    connection: Connection, options: SinkOptions, columns: Collection[str]
) -> tuple[SinkOptions, tuple[str, ...]]:
    """Return the options with the effect of the option `stream`, and the partitions if tasks choose among
    them.

    The broker chooses the partition of a message by its routing key. Packed rows have to be grouped by
    partition before that. Raises BadOption, AmqpError.
    """
    stream = options.stream
    if stream is None:
        return options, ()
    try:
        partitions, single = discovered(connection, stream, {})
    except QueueRefused as error:
        raise BadOption(f"option 'stream': {error}") from None
    if not single:
        names = tuple(partitions[number] for number in sorted(partitions))
        return replace(options, exchange=stream), names if options.packing == "arrow" else ()
    keys = [name for name in ("routing_key", "key") if name in columns]
    if keys and options.packing == "none":
        raise BadOption(
            f"option 'stream': '{stream}' is a single stream, and the rows have a column '{keys[0]}', which chooses a "
            "partition: drop the column, or bind the stream to an exchange and set option 'exchange'"
        )
    return replace(options, routing_key=stream), (stream,) if options.packing == "arrow" else ()


def prepared(connection: Connection, options: SinkOptions, schema: StructType) -> Prepared:
    """Check the target, and decide how to send. Raises BadColumn, BadOption, AmqpError."""
    columns = schema.fieldNames()
    if options.packing == "arrow":
        check_columns(schema)
    options, partitions = resolved(connection, options, columns)
    if partitions:
        # Keys choose among these, and nothing else.
        columns = [name for name in columns if name not in ("routing_key", "key")]
    elif "key" in columns:
        columns = [*columns, "routing_key"]
    if "stream" in columns:
        # Tasks make both of it.
        columns = [*columns, "exchange", "routing_key"]
    check(connection, options, columns)
    return Prepared(options, mechanism(connection, options, columns), partitions)


def check(connection: Connection, options: SinkOptions, columns: Collection[str]) -> None:
    """Raises BadOption if the exchange or the queue in the options does not exist."""
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


def _passive(connection: Connection, declare: Declare, option: str, name: str) -> None:
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
    """Choose how tasks send, and say so. Raises BadOption if the broker lacks a feature that the options
    require.
    """
    if options.delivery != "exactly-once":
        return options.delivery
    missing = _missing(connection, options, columns)
    if options.deduplication == "broker":
        # For queues that only rows name, the user has to know it.
        if missing is not None and not missing.startswith(ROWS_DECIDE):
            raise BadOption(
                f"option 'deduplication' is broker, and {missing}: leave it at auto, or set it to ledger"
            )
        return _chosen("broker", "asked for")
    if options.deduplication == "ledger":
        return _chosen("ledger", "asked for")
    return _chosen("broker", f"all queues have {ARGUMENT}") if missing is None else _chosen("ledger", missing)


def _missing(connection: Connection, options: SinkOptions, columns: Collection[str]) -> str | None:
    """Return why the broker may not drop all duplicates, None if it does."""
    if not connection.capabilities.get(CAPABILITY):
        return f"{connection.host} has no publisher deduplication"
    if options.exchange and "exchange" not in columns:
        declare: Declare = spec.Exchange.Declare(
            exchange=options.exchange, passive=True, arguments={ARGUMENT: True}
        )
        what = f"a queue behind the exchange '{options.exchange}'"
    elif (queue := _only_queue(options, columns)) is not None:
        declare = spec.Queue.Declare(queue=queue, passive=True, arguments={ARGUMENT: True})
        what = f"the queue '{queue}'"
    else:
        return f"{ROWS_DECIDE}, and it is not known which of them have {ARGUMENT}"
    error = _mismatch(connection, declare)
    return None if error is None else f"{what} was declared without {ARGUMENT} ({error})"


def _mismatch(connection: Connection, declare: Declare) -> str | None:
    """A broker with the capability compares this argument even in a passive declare."""
    try:
        connection.call(declare, spec.Exchange.DeclareOk, spec.Queue.DeclareOk)
    except ChannelClosed as error:
        if error.code != PRECONDITION_FAILED:
            raise
        connection.open_channel()
        return str(error)
    return None


def _chosen(mechanism: Mechanism, why: str) -> Mechanism:
    """Print it on the driver's standard error, once for each process: a streaming query decides for each
    micro-batch.
    """
    text = f"exactly-once by the {mechanism}: {why}"
    if text not in _told:
        if not logger.hasHandlers():
            # This runs in a process of Spark, where no other code sets up logging.
            logger.addHandler(logging.StreamHandler())
            logger.setLevel(logging.INFO)
        logger.info("spark_sink: %s", text)
        _told.add(text)
    return mechanism
