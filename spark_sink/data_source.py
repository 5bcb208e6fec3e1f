"""The format `amqp`: what Spark asks for readers and writers. Runs on the driver; opens nothing before it has to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_sink.options import batch_options, sink_options, source_options
from spark_sink.rows import source_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter


class AmqpDataSource(DataSource):
    """`df.write.format("amqp")`, `df.writeStream.format("amqp")`, `spark.read.format("amqp")`, `spark.readStream.format("amqp")`."""

    @classmethod
    def name(cls) -> str:
        return "amqp"

    def schema(self) -> StructType:
        return source_schema(source_options(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_sink.reader import AmqpReader

        return AmqpReader(source_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_sink.stream_reader import AmqpStreamReader

        return AmqpStreamReader(source_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_sink.writer import AmqpWriter

        return AmqpWriter(batch_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark_sink.stream_writer import AmqpStreamWriter

        writer: DataSourceStreamArrowWriter = AmqpStreamWriter(sink_options(self.options), schema)
        return writer
