"""The messages of a micro-batch, cut into pieces for tasks."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from operator import add, sub

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_sink.source.deliveries import Run

#: A task passes through an RPC: spark.rpc.message.maxSize is 128 MiB. A longer message is a piece of its own.
PIECE_BYTES_MAX = 16 << 20
PIECE_MESSAGES = 12_500
CODEC = "lz4_raw"
#: Of C, four bytes: a piece is shorter than that, or one message of as many bytes as Arrow can hold.
UNSIGNED = "I"


class Deliveries(InputPartition):
    """Messages for one task, compressed: they pass through the driver's JVM, and Spark warns of tasks above 1
    MB.

    The positions of the messages go with them: the driver has found them, and finding them takes as long as
    decoding. Encoded as lengths, which repeat themselves, they take a few bytes.
    """

    def __init__(self, runs: Sequence[Run], offset: int) -> None:
        super().__init__(offset)
        self.offset = offset
        run = Run.joined(runs)
        lengths = map(sub, [*run.starts[1:], len(run.data)], run.starts)
        self._count, self._size = len(run), len(run.data)
        self._lengths = _compressed(array(UNSIGNED, lengths).tobytes())
        self._heads = _compressed(array(UNSIGNED, map(sub, run.heads, run.starts)).tobytes())
        self._data = _compressed(run.data)

    @property
    def run(self) -> Run:
        starts = list(accumulate(self._numbers(self._lengths), initial=0))[:-1]
        heads = list(map(add, starts, self._numbers(self._heads)))
        return Run(_decompressed(self._data, self._size), starts, heads)

    def _numbers(self, data: bytes) -> array[int]:
        numbers = array(UNSIGNED)
        numbers.frombytes(_decompressed(data, self._count * numbers.itemsize))
        return numbers


def _compressed(data: bytes) -> bytes:
    found: bytes = pa.compress(data, codec=CODEC, asbytes=True)
    return found


def _decompressed(data: bytes, size: int) -> bytes:
    found: bytes = pa.decompress(data, size, codec=CODEC, asbytes=True)
    return found


def cut(runs: Sequence[Run], offset: int) -> list[InputPartition]:
    """Pieces of like size; `offset` is the first message's."""
    total = sum(map(len, runs))
    most = -(-total // max(1, -(-total // PIECE_MESSAGES)))
    pieces: list[InputPartition] = []
    parts: list[Run] = []
    count = size = 0
    for run in runs:
        rest: Run | None = run
        while rest is not None:
            room = min(most - count, rest.count_within(PIECE_BYTES_MAX - size))
            if not room and count:
                pieces.append(Deliveries(parts, offset))
                offset += count
                parts, count, size = [], 0, 0
                continue
            part, rest = rest.split(max(room, 1)) if max(room, 1) < len(rest) else (rest, None)
            parts.append(part)
            count += len(part)
            size += len(part.data)
    pieces.append(Deliveries(parts, offset))
    return pieces
