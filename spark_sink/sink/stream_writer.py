"""`df.writeStream.format("amqp")`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_sink.client.publisher import connect
from spark_sink.options import SinkOptions
from spark_sink.rows import check_schema
from spark_sink.sink import target
from spark_sink.sink.task import Plan, current_task, write


class AmqpStreamWriter(DataSourceStreamArrowWriter):
    """Created for each micro-batch, and again for its commit: it keeps no state, and commit has nothing to
    do.

    Output mode `complete` writes the whole result each time; `update` is not for sources in Python (use
    foreachBatch).
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(schema, options)
        # A broker that restarts must not end the query: the driver is as patient as the tasks are.
        with connect(options.login, "spark_sink driver", options.confirm_timeout_ms) as connection:
            to = target.prepared(connection, options, schema)
        self.plan = Plan(to.options, to.mechanism, None, 0, to.partitions)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write(self.plan, current_task(self.plan), iterator)
