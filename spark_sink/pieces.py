"""The messages of a micro-batch, cut into pieces for tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_sink.deliveries import Run

#: A task passes through an RPC: spark.rpc.message.maxSize is 128 MiB. A longer message is a piece of its own.
PIECE_BYTES_MAX = 16 << 20
PIECE_MESSAGES = 12_500
CODEC = "lz4_raw"


class Deliveries(InputPartition):
    """Messages for one task, compressed: they pass through the driver's JVM, and Spark warns of tasks above 1 MB."""

    def __init__(self, blocks: Iterable[bytes], offset: int) -> None:
        super().__init__(offset)
        self.offset = offset
        data = b"".join(blocks)
        self._size = len(data)
        self._data: bytes = pa.compress(data, codec=CODEC, asbytes=True)

    @property
    def block(self) -> bytes:
        data: bytes = pa.decompress(self._data, self._size, codec=CODEC, asbytes=True)
        return data


def cut(runs: Sequence[Run], offset: int) -> list[InputPartition]:
    """Pieces of like size; `offset` is the first message's."""
    total = sum(map(len, runs))
    most = -(-total // max(1, -(-total // PIECE_MESSAGES)))
    pieces: list[InputPartition] = []
    blocks: list[bytes] = []
    count = size = 0
    for run in runs:
        rest: Run | None = run
        while rest is not None:
            room = min(most - count, rest.count_within(PIECE_BYTES_MAX - size))
            if not room and count:
                pieces.append(Deliveries(blocks, offset))
                offset += count
                blocks, count, size = [], 0, 0
                continue
            part, rest = rest.split(max(room, 1)) if max(room, 1) < len(rest) else (rest, None)
            blocks.append(part.data)
            count += len(part)
            size += len(part.data)
    pieces.append(Deliveries(blocks, offset))
    return pieces
