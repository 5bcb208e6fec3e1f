"""Shares of addresses in a crowd of connections."""

from typing import cast

from quorum_queue.links.crowd import Crowd
from quorum_queue.links.ports import Wire
from quorum_queue.links.sources import source_of


def wire() -> Wire:
    return cast(Wire, object())


def test_the_busiest_address_makes_room() -> None:
    crowd = Crowd(4)
    many = [wire() for _ in range(3)]
    for each in many:
        assert crowd.enter(each, "many") is None
    one = wire()
    assert crowd.enter(one, "one") is None
    assert crowd.enter(wire(), "many") is many[0]
    assert crowd.enter(wire(), "another") is many[1]
    # Nobody has more than the new one's address would have.
    assert crowd.enter(wire(), "one") is one
    assert len(crowd) == 4 and one not in crowd and many[2] in crowd
    crowd.leave(many[2])
    crowd.leave(many[2])
    assert len(crowd) == 3


def test_many_addresses_with_one_connection_each() -> None:
    crowd = Crowd(2)
    first, second = wire(), wire()
    assert crowd.enter(first, "a") is None
    assert crowd.enter(second, "b") is None
    assert crowd.enter(wire(), "c") is first


def test_a_network_of_ipv6_is_one_address() -> None:
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff") != source_of("2001:db8:0:1::1")
    assert source_of("::ffff:192.0.2.1") == source_of("192.0.2.1") == "192.0.2.1"
    assert source_of("fe80::1%eth0") == source_of("fe80::2%eth0")
