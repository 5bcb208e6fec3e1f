"""Sizes of segments: a small one that a client asks for is raised, because each segment is two files."""

from __future__ import annotations

import pytest

from amqp_server.config import Config
from amqp_server.streams.stream_options import StreamOptions


@pytest.mark.parametrize(
    ("declared", "size"), [(1, 16_384), (16_383, 16_384), (20_000, 20_000), (None, 500_000_000)]
)
def test_a_tiny_segment_is_raised_to_the_smallest_one(declared: int | None, size: int) -> None:
    config = Config()
    options = StreamOptions(
        segment_bytes=config.stream_segment_bytes, segment_bytes_min=config.stream_segment_bytes_min
    )
    assert options.segment_size(declared) == size
