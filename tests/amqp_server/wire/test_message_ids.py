"""The message-id in the frames of a message, whatever stands before it."""

from __future__ import annotations

from datetime import UTC, datetime

import hypothesis.strategies as st
from hypothesis import given
from pamqp import commands

from amqp_server.wire.content import Properties, split
from amqp_server.wire.message_ids import message_ids_of
from benchmarks import frames

texts = st.none() | st.text(max_size=9)
properties = st.builds(
    commands.Basic.Properties,
    content_type=texts,
    content_encoding=texts,
    headers=st.none() | st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, 9), max_size=3),
    delivery_mode=st.none() | st.sampled_from([1, 2]),
    priority=st.none() | st.integers(0, 9),
    correlation_id=texts,
    reply_to=texts,
    expiration=st.none() | st.just("100"),
    message_id=texts | st.just("same"),
    timestamp=st.none() | st.just(datetime(2024, 1, 1, tzinfo=UTC)),
    app_id=texts,
)


def content_of(made: commands.Basic.Properties | None) -> bytes:
    """The header and body frames of a message."""
    published = frames.message("", "q", b"body", made)
    return published[8 + int.from_bytes(published[3:7], "big") :]


@given(st.lists(st.none() | properties, min_size=1, max_size=8), st.integers(1, 3))
def test_every_id_is_found(made: list[commands.Basic.Properties | None], times: int) -> None:
    items = [content_of(each) for each in made for _ in range(times)]
    expected = [Properties.parse(split(item)[0]).raw.get("message_id", b" ")[1:] for item in items]
    assert message_ids_of(items) == (expected if any(expected) else [])
