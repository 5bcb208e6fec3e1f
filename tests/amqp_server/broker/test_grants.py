"""Scopes of tokens permit the same as in RabbitMQ."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_server.broker.access.token_permissions import Grant, Wildcard


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*", ("", "a", "a/b"), ()),
        ("a", ("a",), ("", "aa", "A")),
        ("a*", ("a", "ab"), ("", "ba")),
        ("*a", ("a", "ba"), ("", "ab")),
        ("a*a", ("aa", "aba"), ("a", "ab")),
        ("a*b*c", ("abc", "a-b-b-c"), ("ac", "acb", "abb")),
        ("%2F", ("/",), ("%2F", "")),
        ("a%2Ab", ("a*b",), ("aab",)),
        ("**", ("", "x"), ()),
        ("", ("",), ("x",)),
    ],
)
def test_a_star_stands_for_any_text(pattern: str, yes: tuple[str, ...], no: tuple[str, ...]) -> None:
    wildcard = Wildcard(pattern)
    assert all(map(wildcard.matches, yes)) and not any(map(wildcard.matches, no))


@given(st.text("ab*", max_size=8), st.text("ab", max_size=12))
def test_wildcards_are_as_the_regular_expression(pattern: str, text: str) -> None:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert Wildcard(pattern).matches(text) == bool(re.fullmatch(expression, text))


def test_a_grant_takes_the_scopes_that_it_understands() -> None:
    grant = Grant(
        [
            "read:%2F/orders-*",
            "write:shop/*",
            "configure:*/mine",
            "write:shop/events/eu.*",
            "tag:monitoring",
            "tag:monitoring",
            "read:too/many/parts/here",
            "read:few",
            "write:\udcff/x%ff",
            "openid",
        ]
    )
    assert grant.tags == ("monitoring",)
    assert grant.may_open("/") and grant.may_open("shop") and grant.may_open("any")
    assert grant.allows("/", "orders-1", "read") and not grant.allows("/", "orders-1", "write")
    assert not grant.allows("/", "a-orders-1", "read")
    assert grant.allows("any", "mine", "configure") and not grant.allows("any", "mine2", "configure")
    assert grant.allows("shop", "amq.default", "write")
    # A scope without a routing key permits no routing key.
    assert grant.allows_key("shop", "events", "eu.de", "write")
    assert not grant.allows_key("shop", "events", "us.de", "write")
    assert not grant.allows_key("shop", "other", "eu.de", "write")
    assert not Grant(["read:shop/*"]).may_open("/") and not Grant([]).may_open("/")
