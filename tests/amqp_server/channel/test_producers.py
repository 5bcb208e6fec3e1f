"""Who a producer of transactions is."""

from __future__ import annotations

import itertools

import pytest

from amqp_server.broker.transactions import Producer
from amqp_server.channel.transactions.producers import producer_of
from amqp_server.errors import PreconditionFailed

from .test_deduplication import message


def named(vhost: str, name: str) -> Producer | None:
    return producer_of(message({"x-producer": name, "x-producer-epoch": 7}), vhost)


def test_no_two_producers_are_one() -> None:
    """Otherwise a client of one virtual host shuts out a program of another one."""
    names = ["", "/", "%", "%2F", "%25", "a", "/a", "a/", "a/b", "b", "//", "a//b"]
    found = {named(vhost, name) for vhost, name in itertools.product(names, names) if name}
    assert len(found) == len(names) * (len(names) - 1)


def test_names_in_the_default_virtual_host_stay_legible() -> None:
    assert named("/", "billing") == Producer("//billing", 7)


def test_a_name_is_text() -> None:
    item = message({"x-producer": "ab", "x-producer-epoch": 7}).replace(b"ab", b"\xff\xfe")
    with pytest.raises(PreconditionFailed, match="a text"):
        producer_of(item, "/")
