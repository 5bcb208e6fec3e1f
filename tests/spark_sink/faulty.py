"""The sink with faults on request: option `fault` says which, option `once` names a file that shows that it
has happened.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_sink import AmqpDataSource
from spark_sink.options import batch_options, sink_options
from spark_sink.sink.stream_writer import AmqpStreamWriter
from spark_sink.sink.writer import AmqpWriter

HALF, AFTER, COMMIT = "half", "after", "commit"


class Fault(RuntimeError):
    pass


class FaultyDataSource(AmqpDataSource):
    @classmethod
    def name(cls) -> str:
        return "amqp_faulty"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.fault = options.pop("fault")
        self.once = Path(options.pop("once"))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return FaultyWriter(AmqpWriter(batch_options(self.options), schema, overwrite), self.fault)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        writer = FaultyStreamWriter(sink_options(self.options), schema)
        writer.fault, writer.once = self.fault, self.once
        return writer


def dying(batches: Iterator[Any]) -> Iterator[Any]:
    """Give a first part of the rows, then die."""
    batch = next(batches)
    yield batch.slice(0, batch.num_rows // 2)
    raise Fault("half way")


def write(writer: Any, fault: str, batches: Iterator[Any]) -> WriterCommitMessage:
    context = TaskContext.get()
    assert context is not None
    first = context.attemptNumber() == 0
    message: WriterCommitMessage = writer.write(dying(batches) if first and fault == HALF else batches)
    if first and fault == AFTER:
        raise Fault("after all rows")
    return message


class FaultyWriter(AmqpWriter):
    def __init__(self, sound: AmqpWriter, fault: str) -> None:
        self.sound = sound
        self.fault = fault

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write(self.sound, self.fault, iterator)


class FaultyStreamWriter(AmqpStreamWriter):
    fault: str
    once: Path

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write(super(), self.fault, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self.fault == COMMIT and not self.once.exists():
            self.once.touch()
            raise Fault("commit")
