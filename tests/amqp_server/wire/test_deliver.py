"""Deliveries as bytes, decoded again by pamqp."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from amqp_server.wire.deliver import DeliverTemplate
from quorum_queue.machine.run import Attributes, Run

from ..connection.node import Delivery, decoded
from .published import Message, message, messages, short

#: Tags at which the last byte, the last two, or the last four turn over.
TAGS = [1, 250, 255, 256, 257, 65_530, 65_535, 65_536, (1 << 32) - 3, 1 << 32, (1 << 63) - 700]


def run_of(
    sent: list[Message],
    heads: list[bytes] | None = None,
    *,
    frame_bytes: int = 4096,
    redelivered: bool = False,
) -> Run:
    contents = [b"".join(each.frames(1)[1:]) for each in sent]
    run = Run(range(len(sent)), contents, short(b"x") + short(b"key"), Attributes(frame_bytes=frame_bytes))
    run.heads = heads
    run.redelivered = redelivered
    return run


def check(
    data: bytes, sent: list[Message], tag: int, *, channel: int, redelivered: bool = False
) -> list[tuple[str, str]]:
    """Check that all of them come in order, with tags from `tag` on; return their routing."""
    got = decoded(data)
    assert len(got) == len(sent)
    routing: list[tuple[str, str]] = []
    for index, ((number, delivery), each) in enumerate(zip(got, sent, strict=True)):
        assert number == channel and isinstance(delivery, Delivery)
        method = delivery.method
        assert isinstance(method, commands.Basic.Deliver)
        assert (method.consumer_tag, method.delivery_tag, method.redelivered) == (
            "ctag",
            tag + index,
            redelivered,
        )
        assert delivery.body == each.body
        routing.append((str(method.exchange), str(method.routing_key)))
    return routing


@given(
    st.lists(messages(), min_size=1, max_size=4),
    st.integers(1, 150),
    st.sampled_from(TAGS),
    st.sampled_from([1, 2, 65_535]),
    st.booleans(),
)
def test_a_run_is_delivered_as_sent(
    several: list[Message], times: int, tag: int, channel: int, redelivered: bool
) -> None:
    sent = several * times
    run = run_of(sent, redelivered=redelivered)
    before = list(run.contents or ())
    data = DeliverTemplate(channel, "ctag", 131_072).encode(tag, run)
    assert set(check(data, sent, tag, channel=channel, redelivered=redelivered)) == {("x", "key")}
    assert run.contents == before, "the queue's contents are not the consumer's to change"


@given(
    st.lists(
        st.tuples(messages(), st.text("ab", max_size=3), st.text("cd", max_size=120)), min_size=1, max_size=40
    ),
    st.sampled_from(TAGS),
    st.sampled_from([1, 9]),
)
def test_messages_of_a_run_keep_their_own_routing(
    sent: list[tuple[Message, str, str]], tag: int, channel: int
) -> None:
    heads = [short(exchange.encode()) + short(key.encode()) for _, exchange, key in sent]
    contents = [each for each, _, _ in sent]
    data = DeliverTemplate(channel, "ctag", 131_072).encode(tag, run_of(contents, heads))
    assert check(data, contents, tag, channel=channel) == [(exchange, key) for _, exchange, key in sent]


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 600])
@pytest.mark.parametrize("tag", TAGS)
def test_counts_over_a_tag_boundary(count: int, tag: int) -> None:
    sent = [message(body=b"%d" % index) for index in range(count)]
    check(DeliverTemplate(1, "ctag", 131_072).encode(tag, run_of(sent)), sent, tag, channel=1)


@pytest.mark.parametrize("size", [0, 4088, 4089, 20_000, 131_064])
@pytest.mark.parametrize("channel", [1, 4])
def test_a_consumer_gets_frames_of_its_own_limit(size: int, channel: int) -> None:
    sent = [message(body=bytes((index,)) * size) for index in range(3)]
    data = DeliverTemplate(channel, "ctag", 4096).encode(254, run_of(sent, frame_bytes=131_072))
    check(data, sent, 254, channel=channel)
    while data:
        used = 8 + int.from_bytes(data[3:7], "big")
        assert used <= 4096
        data = data[used:]


def test_the_longest_names_fit() -> None:
    template = DeliverTemplate(1, "t" * 255, 131_072)
    sent = message()
    run = run_of([sent], [short(b"e" * 255) + short(b"k" * 255)])
    [(_, delivery)] = decoded(template.encode(1, run))
    assert isinstance(delivery, Delivery) and isinstance(delivery.method, commands.Basic.Deliver)
    names = delivery.method.consumer_tag, delivery.method.exchange, delivery.method.routing_key
    assert [len(str(name)) for name in names] == [255, 255, 255]
