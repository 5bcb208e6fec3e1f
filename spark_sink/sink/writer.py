"""`df.write.format("amqp").mode("append")`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_sink.client.connection import Connection
from spark_sink.option_values import BadOption
from spark_sink.options import SinkOptions
from spark_sink.rows import check_schema
from spark_sink.sink import target
from spark_sink.sink.task import Plan, current_task, write


class AmqpWriter(DataSourceArrowWriter):
    """Created once, beside the driver; its state reaches every task and every retry of the job."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise BadOption("a broker has nothing to overwrite: write with mode('append')")
        check_schema(schema, options)
        with Connection.open(options.login, "spark_sink driver") as connection:
            to = target.prepared(connection, options, schema)
        self.plan = Plan(
            to.options,
            to.mechanism,
            options.txn_app_id or uuid4().hex,
            options.txn_version or 0,
            to.partitions,
        )

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write(self.plan, current_task(self.plan), iterator)
