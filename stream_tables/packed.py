"""Rows that the Spark connector has packed into one message: an Arrow IPC stream, compressed by Zstandard.

A message whose rows cannot be read stays a message: its body is the value.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from stream_tables.messages import Message

CONTENT_TYPE: Final = "application/vnd.apache.arrow.stream"
CONTENT_ENCODING: Final = "zstd"
#: In the metadata of the schema.
_ROWS: Final = {b"spark_sink": b"rows"}
#: Messages with more bytes of rows stay as they are.
UNPACKED_BYTES_MAX: Final = 256 << 20

RecordBatch = Any


def packed_rows(message: Message) -> list[RecordBatch] | None:
    """Return the rows in a message; None if it has none, or if they cannot be read."""
    values = message.published.values
    if values.get("content_type") != CONTENT_TYPE or values.get("content_encoding") != CONTENT_ENCODING:
        return None
    try:
        stream = pa.CompressedInputStream(pa.BufferReader(message.body), CONTENT_ENCODING)
        data = stream.read(UNPACKED_BYTES_MAX + 1)
        if len(data) > UNPACKED_BYTES_MAX:
            return None
        reader = pa.ipc.open_stream(data)
        metadata = reader.schema.metadata or {}
        if any(metadata.get(name) != value for name, value in _ROWS.items()):
            return None
        found = list(reader)
    except (pa.ArrowException, OSError):
        return None
    return found if any(each.num_rows for each in found) else None


__all__ = ["CONTENT_ENCODING", "CONTENT_TYPE", "packed_rows"]
