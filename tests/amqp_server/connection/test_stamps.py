"""The node writes into messages when and where they came, with RabbitMQ's names and in its cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, encode

from amqp_server.wire import stamps as stamps_module
from amqp_server.wire.content import Properties
from amqp_server.wire.stamps import Stamps, stamps_of
from tests.amqp_server.connection.node import Delivery, MemoryNode
from tests.amqp_server.wire.published import header_payload, message

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000
#: Bytes of a body frame.
CUT = 131_000


def fields(headers: dict[str, Any] | None, timestamp: int | None = None) -> dict[str, bytes]:
    """Return properties in the form of a content header."""
    found = {} if headers is None else {"headers": encode.field_table(headers)}
    if timestamp is not None:
        found["timestamp"] = timestamp.to_bytes(8, "big")
    return found


def sent(node: MemoryNode, body: bytes = b"m", headers: dict[str, Any] | None = None) -> Any:
    """Return the properties with which a message comes out of a queue."""
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    peer.call(1, commands.Queue.Declare(queue="q"))
    header = header_payload(fields(headers), len(body))
    cuts = tuple(len(body[at : at + CUT]) for at in range(0, len(body), CUT))
    peer.send(replace(message("", "q", body), header=header, cuts=cuts).encode(1))
    ((_, delivery),) = peer.call(1, commands.Basic.Get(queue="q", no_ack=True))
    assert isinstance(delivery, Delivery) and delivery.body == body
    return delivery.properties


def stamps(timestamp: str, routing_node: str) -> Stamps:
    found = stamps_of(timestamp, routing_node, "n1", 32)
    assert found is not None
    return found


@given(
    headers=st.none()
    | st.dictionaries(st.sampled_from(["timestamp_in_ms", "x-routed-by", "a"]), st.text(max_size=3)),
    timestamp=st.none() | st.integers(0, 99),
    when=st.tuples(*[st.sampled_from(stamps_module.WHEN)] * 2).filter(
        lambda when: when != ("never", "never")
    ),
)
@settings(max_examples=200, deadline=None)
def test_each_stamp_is_written_where_its_word_says(
    headers: dict[str, Any] | None, timestamp: int | None, when: tuple[str, str]
) -> None:
    before = header_payload(fields(headers, timestamp), 1)
    after = Properties.parse(stamps(*when).on(before, NOW_MS, 4096))
    found, given_headers = after.headers or {}, headers or {}
    for name, word, value in (("timestamp_in_ms", when[0], NOW_MS), ("x-routed-by", when[1], "n1")):
        written = word == "always" or (word == "missing" and name not in given_headers)
        assert found.get(name) == (value if written else given_headers.get(name))
    assert found.get("a") == given_headers.get("a")
    written = when[0] == "always" or (when[0] == "missing" and timestamp is None)
    assert after.timestamp == (NOW_S if written else timestamp)


def test_a_header_that_would_not_fit_into_a_frame_stays_as_it_is() -> None:
    before = header_payload(fields({"a": "x" * 4040}), 1)
    assert stamps("always", "always").on(before, NOW_MS, 4096) == before


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_messages_have_them(size: int) -> None:
    node = MemoryNode(incoming_timestamp="always", incoming_routing_node="missing", node="n7")
    properties = sent(node, b"." * size, {"a": 1})
    assert properties.headers == {"a": 1, "timestamp_in_ms": NOW_MS, "x-routed-by": "n7"}
    assert properties.timestamp.timestamp() == NOW_S


def test_nothing_is_written_unless_it_is_asked_for() -> None:
    properties = sent(MemoryNode(), headers={"a": 1})
    assert properties.headers == {"a": 1} and properties.timestamp is None
