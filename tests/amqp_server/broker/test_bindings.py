"""Records of bindings: one for each binding, whatever the order of its arguments, also after a restart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_server.broker.declared import operations
from amqp_server.broker.declared.operations import Operation
from amqp_server.broker.declared.records import (
    BINDINGS,
    BindingRecord,
    ExchangeRecord,
    QueueRecord,
    encoded,
    key,
)
from amqp_server.broker.declared.vhosts import VhostRecord
from amqp_server.broker.metadata import encode
from amqp_server.broker.topology.vhost import binding_of

from .test_topology import Member

ONE: dict[str, Any] = {"x-match": "all", "a": 1, "in": {"x": [1, {"p": 1, "q": 2}], "y": -0.0, "z": math.nan}}
#: The same arguments in another order, also within tables.
OTHER: dict[str, Any] = {
    "in": {"z": math.nan, "y": 0.0, "x": [1, {"q": 2, "p": 1}]},
    "a": 1,
    "x-match": "all",
}


def bound(arguments: Mapping[str, object]) -> BindingRecord:
    return BindingRecord("/", "amq.headers", "q", "queue", "k", encoded(arguments))


def apply(member: Member, *changes: Operation) -> None:
    for change in changes:
        member.topology.apply(member.topology.applied + 1, change)


@pytest.fixture
def member() -> Member:
    member = Member("n1")
    queue = QueueRecord("/", "q", 0, False, encoded({}), durable=True, node="n1")
    apply(member, operations.PutVhost(VhostRecord("/")), operations.DeclareQueue(queue))
    return member


def stored(member: Member) -> list[str]:
    return [name for name, _ in member.environment.items(BINDINGS)]


def test_a_binding_that_was_unbound_in_other_words_does_not_come_back(member: Member) -> None:
    apply(member, operations.Bind(bound(ONE)), operations.Unbind(bound(OTHER)))
    assert stored(member) == []
    assert list(member.restarted().broker.vhost("/").binding_records()) == []


def test_a_binding_in_other_words_is_no_other_binding(member: Member) -> None:
    apply(member, operations.Bind(bound(ONE)), operations.Bind(bound(OTHER)))
    again = member.restarted()
    assert list(again.broker.vhost("/").binding_records()) == [bound(ONE)]
    assert again.topology.snapshot() == member.topology.snapshot()


def stored_before(record: BindingRecord) -> str:
    """Return the key under which earlier versions stored the binding."""
    return key(
        "/", record.source, record.destination, record.kind, record.routing_key, record.arguments.hex()
    )


def test_what_an_earlier_version_stored_is_found_and_can_be_unbound(member: Member) -> None:
    records = [bound(ONE), bound(OTHER), bound({}), bound({"b": 1, "a": 2})]
    for record in records:
        member.environment.put(BINDINGS, stored_before(record), encode(record))
    again = member.restarted()
    assert len(list(again.broker.vhost("/").binding_records())) == 3
    assert sorted(stored(again)) == sorted({record.key for record in records})
    apply(
        again, *(operations.Unbind(record) for record in (bound(OTHER), bound({}), bound({"a": 2, "b": 1})))
    )
    assert stored(again) == []
    assert list(again.restarted().broker.vhost("/").binding_records()) == []


def test_one_argument_or_none_is_stored_as_it_always_was() -> None:
    for arguments in ({}, {"x-match": "any"}, {"n": -0.5}, {"n": None}):
        assert bound(arguments).key == stored_before(bound(arguments))


scalars = (
    st.none() | st.booleans() | st.sampled_from((0, 1, 0.0, -0.0, 1.0, math.nan, "1", b"\xff", "a", 2**40))
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=4,
)
tables_ = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


@given(tables_, tables_)
def test_records_have_one_key_exactly_if_they_are_one_binding(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    shuffled = dict(reversed(one.items()))
    assert bound(one).key == bound(shuffled).key
    same = binding_of(bound(one)) == binding_of(bound(other))
    assert (bound(one).key == bound(other).key) is same


def test_an_exchange_that_is_bound_to_itself_counts_its_binding_once(member: Member) -> None:
    loop = BindingRecord("/", "x", "x", "exchange", "", encoded({}))
    exchange = ExchangeRecord("/", "x", "fanout", False, False, encoded({}))
    apply(member, operations.DeclareExchange(exchange), operations.Bind(loop))
    assert member.broker.counts.bindings == 1
    apply(member, operations.DeleteExchange("/", "x"))
    assert member.broker.counts.bindings == 0
    assert stored(member) == []
