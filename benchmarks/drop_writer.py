"""A writer for Spark that drops its rows: it is as fast as Spark itself passes rows on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType


class DropDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "drop"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return DropWriter()


@dataclass
class Dropped(WriterCommitMessage):
    rows: int


class DropWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return Dropped(sum(batch.num_rows for batch in iterator))


__all__ = ["DropDataSource"]
