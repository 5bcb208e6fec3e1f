"""The copies in memory that a large body has on its way into a stream's file, and from there to the socket.

docs/architecture.md has the numbers.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.encode import Encoded, Encoder
from amqp_server.streams.layout.layouts import Layouts
from amqp_server.wire.deliver import DeliverTemplate
from persistence.streams.files import DiskFiles
from persistence.streams.log import Read, Stored, StreamLog
from tests.amqp_server.streams.test_messages import framed, head_of, run_of

FRAME_MAX_BYTES = 131_072
SEGMENT_BYTES = 1 << 30

T = TypeVar("T")


def copies(step: Callable[[], T], size: int) -> tuple[T, float]:
    """Return the result of a step, and the most memory that the step has taken, in bodies of this size."""
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    result = step()
    return result, (tracemalloc.get_traced_memory()[1] - before) / size


def encoded(contents: list[bytes]) -> Encoded:
    encoder = Encoder(Layouts(), 0, 77)
    encoder.add(run_of(contents, [head_of("key")] * len(contents), 1))
    (batch,) = encoder.finish()
    return batch


def delivered(read: Read, out: list[bytes | memoryview], frame_max: int) -> None:
    reader = BatchReader(read.batches[0])
    template = DeliverTemplate(1, "tag", frame_max)
    reader.take(reader.batch.count, template, 1, out)


@pytest.mark.parametrize(("size", "count", "made"), [(4 << 20, 1, 1), (100_000, 2, 2)])
def test_copies_on_the_way_in_and_out(tmp_path: Path, size: int, count: int, made: int) -> None:
    contents = [framed({}, bytes(size), 1, FRAME_MAX_BYTES) for _ in range(count)]
    total = size * count
    log = StreamLog(DiskFiles(), tmp_path / "log", SEGMENT_BYTES)
    log.open(0)
    out: list[bytes | memoryview] = []
    tracemalloc.start()
    try:
        batch, making = copies(lambda: encoded(contents), total)
        stored = Stored(0, count, 77, batch.parts, batch.batch.size)
        _, writing = copies(lambda: log.append([stored]), total)
        read, reading = copies(lambda: log.read(0), total)
        _, delivering = copies(lambda: delivered(read, out, FRAME_MAX_BYTES), total)
    finally:
        tracemalloc.stop()
    # To make: the message as it will be sent, and the batch, which is the same for a large message. To read:
    # the kernel's copy, with the few bytes that are read first to learn the size.
    assert (round(making), round(writing), round(reading), round(delivering)) == (made, 0, 1, 0)
    assert max(making - made, writing, reading - 1, delivering) < 0.1
    # The socket gets memory that the file was read to.
    items = read.batches[0].items
    sent = [each for each in out if isinstance(each, memoryview)]
    assert isinstance(items, memoryview) and len(sent) == count
    assert all(each.obj is items.obj for each in sent) and sum(map(len, sent)) > total
