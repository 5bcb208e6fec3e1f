"""Spark looks into every top-level module whose name begins with `pyspark_` and takes its DefaultSource by
itself.
"""

from spark_sink.data_source import AmqpDataSource as DefaultSource

__all__ = ["DefaultSource"]
