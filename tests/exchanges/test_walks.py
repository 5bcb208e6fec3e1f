"""A route over any topology is found in short steps, whose number is bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exchanges.binding import Binding, DestinationKind
from exchanges.matcher import Message
from exchanges.registry import EXCHANGE_TYPES
from exchanges.router import AT_ONCE, InvalidArgument, Router, RoutingTooLong
from tests.work import ended, steps

#: Instructions for one step of a walk.
STEP_MAX = 500


def to_exchange(source: str, destination: str, key: str = "", **arguments: object) -> Binding:
    return Binding(source, destination, "exchange", key, arguments)


def alternates(count: int) -> Router:
    """Each exchange has the next one as its alternate, and looks at headers."""
    router = Router({"q": 1}.__contains__, alternates_max=count)
    for number in range(count):
        router.declare(f"x{number}", "headers", arguments={"alternate-exchange": f"x{number + 1}"})
    return router


def bindings(count: int) -> Router:
    """Each exchange is bound to the next one; the last one to a queue."""
    router = Router({"q": 1}.__contains__)
    for number in range(count):
        router.declare(f"x{number}", ("fanout", "headers", "topic")[number % 3])
        if number:
            source = f"x{number - 1}"
            router.bind(to_exchange(source, f"x{number}", "#", **{"x-match": "all-with-x"}))
    router.bind(Binding(f"x{count - 1}", "q", "queue", "#", {"x-match": "all-with-x"}))
    return router


def crowd(count: int) -> Router:
    """Every exchange is bound to every other one."""
    count = int(count**0.5)
    router = Router({"q": 1}.__contains__)
    for number in range(count):
        router.declare(f"x{number}", "fanout")
    for source in range(count):
        for destination in range(count):
            router.bind(to_exchange(f"x{source}", f"x{destination}"))
    return router


@pytest.mark.pure
@pytest.mark.parametrize("made", [alternates, bindings, crowd])
def test_the_work_grows_with_the_exchanges_on_the_way_and_no_faster(made: Callable[[int], Router]) -> None:
    message = {"headers": {"a": 1}}

    def work(count: int) -> int:
        return steps(made(count).begin("x0", ("k",), message).finish)

    assert work(400) < 5 * work(100)
    walk = made(400).begin("x0", ("k",), message)
    walk.finish()
    assert 400 <= walk.steps <= 3 * 400


@pytest.mark.pure
@pytest.mark.parametrize("made", [alternates, bindings, crowd])
def test_no_step_of_a_walk_is_long(made: Callable[[int], Router]) -> None:
    router = made(2_000)
    keys = [f"key{number}" for number in range(50)]
    walk = router.begin("x0", keys, {"headers": {"a": 1}})
    longest = 0
    while not walk.done:
        longest = max(longest, steps(walk.go_on, 1))
    assert longest < STEP_MAX
    assert walk.route == router.begin("x0", keys, {"headers": {"a": 1}}).finish()


def test_a_long_walk_is_not_finished_at_once() -> None:
    router = alternates(10 * AT_ONCE)
    assert router.route_at_once("x0", "k") is None
    assert steps(router.route_at_once, "x0", "k") < STEP_MAX * AT_ONCE
    assert router.route("x0", "k").queues == ()
    assert router.route_at_once(f"x{10 * AT_ONCE - 10}", "k") == router.route(f"x{10 * AT_ONCE - 10}", "k")


def test_a_message_with_many_keys_costs_each_exchange_each_key() -> None:
    router = Router({"q": 1}.__contains__, steps_max=1_000)
    router.declare("a", "topic", arguments={"alternate-exchange": "b"})
    router.declare("b", "direct")
    router.bind(Binding("b", "q", "queue", "key9"))
    walk = router.begin("a", [f"key{number}" for number in range(300)])
    assert walk.finish().queues == ("q",)
    assert 600 <= walk.steps < 650
    with pytest.raises(RoutingTooLong, match="1000"):
        router.begin("a", [f"key{number}" for number in range(600)]).finish()


def test_many_keys_that_lead_to_the_same_queues_are_joined_once() -> None:
    """A pattern that all keys match may lead to 100,000 queues."""
    router = Router(lambda name: True)
    router.declare("t", "topic")
    for number in range(6_400):
        router.bind(Binding("t", f"q{number}", "queue", "#"))
    walk = router.begin("t", [f"key{number}" for number in range(100)])
    assert len(walk.finish().queues) == 6_400
    assert walk.steps < 100 + 2 * 6_400 // 64


def test_an_exchange_with_very_many_queues_counts_as_several_steps() -> None:
    router = Router(lambda name: True)
    router.declare("f", "fanout")
    router.declare("g", "fanout")
    router.bind(to_exchange("f", "g"))
    for number in range(6_400):
        router.bind(Binding("f", f"q{number}", "queue", ""))
    walk = router.begin("f", ("",))
    assert not walk.go_on(50)
    assert walk.go_on(50)


@pytest.mark.pure
def test_the_queues_behind_a_chain_are_found_in_short_steps() -> None:
    router = bindings(5_000)
    found = router.reachable_queues("x0")
    longest = 0
    with pytest.raises(StopIteration) as end:
        while True:
            longest = max(longest, steps(next, found))
    assert end.value.value == ["q"]
    assert longest < 100 * AT_ONCE
    assert ended(router.reachable_queues("x4999")) == ["q"]


@pytest.mark.pure
@pytest.mark.parametrize("made", [alternates, bindings])
def test_changes_of_a_long_chain_cost_the_same_as_those_of_a_short_one(made: Callable[[int], Router]) -> None:
    def work(count: int) -> int:
        router = made(count)
        router.route("x0", "k")

        def change() -> None:
            router.declare("more", "headers", arguments={"alternate-exchange": "x0"})
            router.bind(to_exchange(f"x{count // 2}", "more", "#"))
            router.set_alternate("more", None)
            router.unbind(to_exchange(f"x{count // 2}", "more", "#"))
            router.delete("more")

        return steps(change)

    assert work(1_000) < work(10) + 100


NAMES = "abcde"
TOPOLOGIES = st.tuples(
    st.lists(st.sampled_from(EXCHANGE_TYPES), min_size=5, max_size=5),
    st.lists(st.sampled_from([None, "", "none", *NAMES]), min_size=5, max_size=5),
    st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.sampled_from([*NAMES, "q1", "q2", "q3"]),
            st.sampled_from(["1", "2", "3", "#"]),
        ),
        max_size=16,
    ),
)


def built(topology: tuple[list[str], list[str | None], list[tuple[str, str, str]]]) -> Router:
    router = Router({"q1": 1, "q2": 1, "1": 1}.__contains__)
    router.predeclare()
    types, others, edges = topology
    for name, exchange_type, alternate in zip(NAMES, types, others, strict=True):
        more = {} if alternate is None else {"alternate-exchange": alternate}
        router.declare(name, exchange_type, arguments={"x-delayed-type": "topic", **more})
    for source, destination, key in edges:
        kind: DestinationKind = "exchange" if destination in NAMES else "queue"
        arguments: dict[str, Any] = {"h": key}
        with suppress(InvalidArgument):
            router.bind(Binding(source, destination, kind, key, arguments))
    return router


def by_definition(
    router: Router, exchange: str, keys: Sequence[str], message: Message | None, nonce: int
) -> set[str]:
    """What RabbitMQ's documentation says: every exchange on the way gets the message once, with all keys; one
    without any match hands it to its alternate.
    """
    visited: set[str] = set()
    queues: set[str] = set()

    def visit(name: str) -> None:
        found = router.get(name)
        if name in visited or found is None:
            return
        visited.add(name)
        if not name:
            queues.update(key for key in keys if router.has_queue(key))
            return
        asked = keys if found.matcher.wants_all_keys else keys[:1]
        matched = [each for key in asked for each in found.matcher.match(key, message, nonce)]
        for destinations in matched:
            queues.update(destinations.queues)
            for other in destinations.exchanges:
                visit(other)
        if not matched and found.alternate is not None:
            visit(found.alternate)

    visit(exchange)
    return queues


@given(
    TOPOLOGIES,
    st.lists(st.sampled_from(["1", "2", "3", ""]), min_size=1, max_size=3, unique=True),
    st.sampled_from([None, {"headers": {"h": "1"}}, {"headers": {"h": "2"}}]),
    st.integers(0, 3),
    st.integers(1, 7),
)
def test_a_walk_in_steps_finds_what_the_definition_says(
    topology: tuple[list[str], list[str | None], list[tuple[str, str, str]]],
    keys: list[str],
    message: dict[str, object] | None,
    nonce: int,
    part: int,
) -> None:
    router = built(topology)
    for exchange in ("", "none", *NAMES):
        walk = router.begin(exchange, keys, message, nonce)
        while not walk.go_on(part):
            pass
        assert walk.route == router.begin(exchange, keys, message, nonce).finish()
        assert set(walk.route.queues) == by_definition(router, exchange, keys, message, nonce)
        assert len(set(walk.route.queues)) == len(walk.route.queues)
        if len(keys) == 1:
            route = router.route(exchange, keys[0], message, nonce)
            assert (set(route.queues), route.depends) == (set(walk.route.queues), walk.route.depends)
