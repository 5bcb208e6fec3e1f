"""x-super-stream: the partition of a key, as RabbitMQ's stream clients
choose it, and messages without a key.
"""

import pytest

from exchanges.binding import Binding
from exchanges.errors import InvalidArgument
from exchanges.router import Depends, Route, Router
from exchanges.super_stream import KEYLESS_RUN


def make(count: int) -> Router:
    router = Router(lambda name: True)
    router.declare("s", "x-super-stream")
    # Their order does not matter.
    for number in reversed(range(count)):
        router.bind(Binding("s", f"s-{number}", "queue", str(number)))
    return router


def test_a_key_goes_where_stream_clients_send_it() -> None:
    # The tests of the Go and the .NET client expect these for three partitions.
    expected = [1, 0, 1, 2, 0, 2, 0, 1, 0, 2]
    router = make(3)
    for number, partition in enumerate(expected, 1):
        route = router.route("s", f"hello{number}", nonce=number * 1_000)
        assert route.queues == (f"s-{partition}",)
        assert route.depends is Depends.KEY


def test_without_a_key_partitions_take_turns_in_runs() -> None:
    router = make(3)
    went = [router.route("s", "", nonce=nonce) for nonce in range(4 * KEYLESS_RUN)]
    assert {route.depends for route in went} == {Depends.NONCE}
    runs = [
        {route.queues for route in went[at : at + KEYLESS_RUN]} for at in range(0, len(went), KEYLESS_RUN)
    ]
    assert runs == [{("s-0",)}, {("s-1",)}, {("s-2",)}, {("s-0",)}]


def test_behind_another_exchange() -> None:
    router = make(3)
    router.declare("t", "topic")
    router.declare("h", "headers")
    router.bind(Binding("t", "s", "exchange", "#"))
    router.bind(Binding("h", "s", "exchange", ""))
    assert router.route("t", "hello4") == Route(("s-2",), Depends.KEY)
    assert router.route("t", "").depends is Depends.NONCE
    assert router.route("h", "hello4", {"headers": {}}) == Route(("s-2",), Depends.HEADERS)
    assert router.route("h", "").depends == Depends.HEADERS | Depends.NONCE
    assert router.begin("s", ["hello4", "hello1"]).finish().queues == ("s-2",)


@pytest.mark.parametrize("key", ["", "a", "-1", "01", "1.0", "²"])
def test_a_partition_is_bound_with_its_number(key: str) -> None:
    router = make(1)
    with pytest.raises(InvalidArgument, match="The binding key must be an integer: "):
        router.bind(Binding("s", "q", "queue", key))
    with pytest.raises(InvalidArgument, match="has a partition 0 already"):
        router.bind(Binding("s", "q", "queue", "0"))
    assert router.route("s", "hello4").queues == ("s-0",)


def test_without_a_partition() -> None:
    router = make(2)
    router.unbind(Binding("s", "s-0", "queue", "0"))
    # One partition is left, and it has another number: as in RabbitMQ, messages for the missing first one go
    # nowhere.
    assert router.route("s", "hello1").queues == ()
    router.unbind(Binding("s", "s-1", "queue", "1"))
    assert router.route("s", "hello1").queues == ()


def test_a_route_says_for_how_many_nonces_it_holds() -> None:
    router = Router(lambda name: True)
    router.declare("s", "x-super-stream")
    for number in range(3):
        router.bind(Binding("s", f"s-{number}", "queue", str(number)))
    for nonce in range(3 * KEYLESS_RUN):
        route = router.route_at_once("s", "", nonce=nonce)
        assert route is not None and route.depends is Depends.NONCE
        for later in (nonce + route.ahead, nonce + route.ahead + 1):
            following = router.route_at_once("s", "", nonce=later)
            assert following is not None
            assert (following.queues == route.queues) == (later <= nonce + route.ahead)
