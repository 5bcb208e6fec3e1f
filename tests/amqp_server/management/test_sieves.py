"""Messages are passed over undecoded only if they do not fulfil the conditions."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pamqp import commands

from amqp_server.management.messages.conditions import Conditions, Message, sieves, wanted
from amqp_server.wire import content
from benchmarks import frames

FRAME_MAX = 4096
texts = st.sampled_from(["acme", "acm", "acme2", "", "true", "1", "tenant", "\x06tenantS\0\0\0\x04acme", "é"])
values = st.one_of(
    texts,
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([bytearray(b"acme"), b"\xff".decode("latin-1"), datetime(2024, 1, 1, tzinfo=UTC)]),
    st.dictionaries(st.sampled_from(["tenant", "a"]), texts, max_size=2),
)
names = st.sampled_from(["tenant", "tenan", "a", "atenant", "é"])
properties = st.builds(
    commands.Basic.Properties,
    headers=st.none() | st.dictionaries(names, values, max_size=3),
    message_id=st.none() | texts,
    delivery_mode=st.sampled_from([1, 2]),
)
bodies = st.one_of(
    texts.map(str.encode),
    # The text lies over the end of a frame.
    st.integers(FRAME_MAX - 12, FRAME_MAX - 4).map(lambda size: b"x" * size + b"acme" + b"x" * FRAME_MAX),
)


def item_of(made: commands.Basic.Properties, body: bytes) -> bytes:
    """The frames of a message."""
    published = frames.message("", "q", b"", made)
    header, _ = content.split(published[8 + int.from_bytes(published[3:7], "big") :])
    return content.build(header[:4] + len(body).to_bytes(8, "big") + header[12:], body, 1, FRAME_MAX)


def fulfils(asked: Conditions, item: bytes) -> bool:
    header, body = content.split(item)
    parse = partial(content.Properties.parse, header)
    return all(each(Message("0.1", "", "q", False, parse, body)) for each in wanted(asked, 0))


def may_be(asked: Conditions, item: bytes) -> bool:
    return all(each(item) for each in sieves(asked))


conditions = st.one_of(
    st.builds(lambda name, value: {"header": f"{name}={value}"}, names, texts),
    texts.filter(bool).map(lambda text: {"contains": text}),
    texts.filter(bool).map(lambda text: {"message_id": text}),
)


@given(st.lists(conditions, min_size=1, max_size=2), properties, bodies)
def test_what_fulfils_the_conditions_is_never_passed_over(
    asked: list[dict[str, Any]], made: commands.Basic.Properties, body: bytes
) -> None:
    given_here = Conditions(**{name: value for each in asked for name, value in each.items()})
    item = item_of(made, body)
    assert may_be(given_here, item) or not fulfils(given_here, item)


@pytest.mark.parametrize(
    ("asked", "made", "passes"),
    [
        ({"header": "tenant=acme"}, {"headers": {"tenant": "acme"}}, True),
        ({"header": "tenant=acme"}, {"headers": {"tenant": "other"}}, False),
        ({"header": "tenant=acme"}, {"headers": {"client": "acme"}}, False),
        ({"header": f"{'t' * 256}=acme"}, {"headers": {"tenant": "acme"}}, False),
        ({"header": "tenant=1"}, {"headers": {"tenant": 1}}, True),
        ({"contains": "acme"}, {}, True),
        ({"contains": "other"}, {"message_id": "other"}, False),
        ({"message_id": "a"}, {"message_id": "a"}, True),
        ({"message_id": "of acme"}, {"message_id": "a"}, False),
    ],
)
def test_most_others_are(asked: dict[str, str], made: dict[str, Any], passes: bool) -> None:
    item = item_of(commands.Basic.Properties(**made), b"of acme")
    assert may_be(Conditions(**asked), item) is passes
