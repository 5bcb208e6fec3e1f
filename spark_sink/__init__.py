"""Spark reads from and writes to an AMQP 0-9-1 broker: `df.write.format("amqp")`,
`spark.readStream.format("amqp")`.
"""

from spark_sink.data_source import AmqpDataSource

__all__ = ["AmqpDataSource"]
