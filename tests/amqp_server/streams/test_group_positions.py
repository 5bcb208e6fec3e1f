"""The stored position of a group in a partition."""

from __future__ import annotations

import msgspec
import pytest

from amqp_server.streams.consumer_groups import partition_position
from quorum_queue.consumer_groups.partition import Partition, Span


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1_000, 70_000])
def test_a_position_is_encoded_as_it_is_decoded(count: int) -> None:
    """Its spans are encoded in blocks, and the header of their array by itself."""
    partition = Partition(1 << 33, "s", 0)
    partition.cursor = 1 << 40
    spans = [Span(low, low + 3, low % 300) for low in range(0, 4 * count, 4)]
    partition.held.extend(spans[::2])
    partition.returned.extend(spans[1::4])
    partition.dying.extend(spans[3::4])
    for _ in range(2):
        stored = partition_position.encode(partition)
        place = partition_position.decode(stored)
        assert (place.version, place.stream_id, place.cursor) == (1, 1 << 33, 1 << 40)
        assert sorted(place.pending) == spans
        # Not one byte more or less than msgpack needs.
        assert stored == msgspec.msgpack.encode(place)
