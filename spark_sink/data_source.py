"""The format `amqp`: Spark gets readers and writers from it. Runs on the driver; opens a connection only when
needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_sink.options import batch_options, query_options, read_options, sink_options, source_options
from spark_sink.rows import source_schema
from spark_sink.shipped import load, zip_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter


class AmqpDataSource(DataSource):
    """`df.write.format("amqp")`, `df.writeStream.format("amqp")`, `spark.read.format("amqp")`,
    `spark.readStream.format("amqp")`.
    """

    @classmethod
    def name(cls) -> str:
        return "amqp"

    def __reduce_ex__(self, protocol: Any) -> Any:
        zip_path = zip_of(__file__)
        if zip_path is None:
            return super().__reduce_ex__(protocol)
        return load, (zip_path, __name__, type(self).__name__, self.options)

    def schema(self) -> StructType:
        options = source_options(self.options)
        return source_schema(options.include_headers, of_stream=options.of_streams)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        if options.of_streams:
            from spark_sink.streams.readers import LogReader

            return LogReader(options, schema)
        from spark_sink.source.reader import AmqpReader

        return AmqpReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = query_options(self.options)
        if options.of_streams:
            from spark_sink.streams.readers import LogStreamReader

            return LogStreamReader(options, schema)
        from spark_sink.source.stream_reader import AmqpStreamReader

        return AmqpStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_sink.sink.writer import AmqpWriter

        return AmqpWriter(batch_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark_sink.sink.stream_writer import AmqpStreamWriter

        writer: DataSourceStreamArrowWriter = AmqpStreamWriter(sink_options(self.options), schema)
        return writer
