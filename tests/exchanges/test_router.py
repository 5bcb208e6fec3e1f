import itertools
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exchanges.binding import Binding, DestinationKind
from exchanges.registry import EXCHANGE_TYPES
from exchanges.router import Depends, InvalidArgument, Route, Router, UnknownExchangeType
from tests.work import ended, steps


def router_of(*exchanges: str, queues: tuple[str, ...] = ()) -> Router:
    """Return a router with exchanges given as `name:type` or `name:type>alternate`."""
    router = Router(set(queues).__contains__)
    for exchange in exchanges:
        name, _, rest = exchange.partition(":")
        kind, _, alternate = rest.partition(">")
        router.declare(name, kind, arguments={"alternate-exchange": alternate} if alternate else {})
    return router


def to_queue(source: str, queue: str, key: str = "", **arguments: object) -> Binding:
    return Binding(source, queue, "queue", key, arguments)


def to_exchange(source: str, destination: str, key: str = "", **arguments: object) -> Binding:
    return Binding(source, destination, "exchange", key, arguments)


def test_the_default_exchange_knows_every_queue_by_name() -> None:
    router = router_of(queues=("q",))
    router.predeclare()
    assert router.route("", "q") == Route(("q",), Depends.KEY)
    assert router.route("", "other") == Route((), Depends.KEY)
    assert router.route("missing", "q") == Route((), Depends.KEY)


def test_predeclared_exchanges() -> None:
    router = router_of()
    router.predeclare()
    types = {exchange.name: exchange.type for exchange in router.exchanges()}
    assert types == {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.topic": "topic",
        "amq.headers": "headers",
        "amq.match": "headers",
        "amq.rabbitmq.trace": "topic",
    }
    assert all(exchange.predeclared and exchange.durable for exchange in router.exchanges())


@pytest.mark.parametrize("kind", ["nonsense", "", "Direct"])
def test_unknown_types(kind: str) -> None:
    router = router_of()
    with pytest.raises(UnknownExchangeType) as refusal:
        router.declare("x", kind)
    assert refusal.value.args == (kind,)
    assert router.get("x") is None


def test_an_alternate_exchange_must_be_a_name() -> None:
    router = router_of()
    with pytest.raises(InvalidArgument) as refusal:
        router.declare("x", "direct", arguments={"alternate-exchange": 5})
    text = "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"
    assert str(refusal.value) == text
    assert router.get("x") is None


def test_declare_twice_gives_the_one_there_is() -> None:
    router = router_of()
    first = router.declare("x", "direct", durable=True, internal=True)
    assert router.declare("x", "fanout") is first
    assert (first.name, first.type, first.durable, first.auto_delete, first.internal) == (
        "x",
        "direct",
        True,
        False,
        True,
    )


def test_direct_and_fanout() -> None:
    router = router_of("d:direct", "f:fanout")
    for queue, key in (("q1", "a"), ("q2", "a"), ("q3", "b")):
        assert router.bind(to_queue("d", queue, key)) is True
        router.bind(to_queue("f", queue, key))
    assert router.route("d", "a").queues == ("q1", "q2")
    assert router.route("d", "c").queues == ()
    assert router.route("f", "anything").queues == ("q1", "q2", "q3")


def test_binding_twice_is_once() -> None:
    router = router_of("d:direct")
    assert router.bind(to_queue("d", "q", "a", n=[1])) is True
    assert router.bind(to_queue("d", "q", "a", n=[1])) is False
    assert router.bind(to_queue("d", "q", "a")) is True
    assert router.route("d", "a").queues == ("q",)
    assert router.unbind(to_queue("d", "q", "a")) == ([to_queue("d", "q", "a")], [])
    assert router.unbind(to_queue("d", "q", "a")) == ([], [])
    assert router.route("d", "a").queues == ("q",)


def test_a_refused_binding_leaves_no_trace() -> None:
    router = router_of("h:headers", "c:x-consistent-hash")
    for binding in (Binding("h", "q", "queue", "", {"x-match": "most"}), to_queue("c", "q", "heavy")):
        with pytest.raises(InvalidArgument):
            router.bind(binding)
    assert router.bindings() == []
    assert not router.in_use("h")


def test_exchanges_bound_to_exchanges() -> None:
    router = router_of("a:topic", "b:fanout", "c:direct")
    router.bind(to_exchange("a", "b", "k.#"))
    router.bind(to_exchange("b", "c"))
    router.bind(to_exchange("c", "a", "k.1"))
    router.bind(to_queue("a", "q0", "k.*"))
    router.bind(to_queue("b", "q1"))
    router.bind(to_queue("c", "q2", "k.1"))
    assert set(router.route("a", "k.1").queues) == {"q0", "q1", "q2"}
    assert set(router.route("c", "k.1").queues) == {"q0", "q1", "q2"}
    assert set(router.route("c", "k.2").queues) == set()
    assert router.route("a", "other").queues == ()


def test_alternate_exchanges_chain_and_may_go_round() -> None:
    router = router_of("a:direct>b", "b:direct>c", "c:fanout>a", "d:direct>missing", queues=("q",))
    assert router.route("a", "k").queues == ()
    router.bind(to_queue("c", "last"))
    assert router.route("a", "k").queues == ("last",)
    router.bind(to_queue("b", "middle", "k"))
    assert router.route("a", "k").queues == ("middle",)
    assert router.route("d", "k").queues == ()


def test_all_queues_behind_an_exchange() -> None:
    router = router_of("a:topic", "b:fanout>c", "c:direct>a", "apart:fanout", "default:fanout>")
    for binding in (
        to_queue("a", "1", "#"), to_exchange("a", "b", "x.*"), to_queue("b", "2"), to_queue("c", "3", "y"),
        to_queue("c", "1", "z"), to_queue("apart", "4"),
    ):  # fmt: skip
        router.bind(binding)
    assert sorted(ended(router.reachable_queues("a")) or ()) == ["1", "2", "3"]
    assert sorted(ended(router.reachable_queues("c")) or ()) == ["1", "2", "3"]
    assert ended(router.reachable_queues("apart")) == ["4"]
    assert ended(router.reachable_queues("default")) == ended(router.reachable_queues("missing")) == []
    router.predeclare()
    router.declare("anything", "fanout", arguments={"alternate-exchange": ""})
    assert ended(router.reachable_queues("anything")) is None


def test_a_message_goes_to_so_many_alternate_exchanges() -> None:
    router = Router({"q": 1}.__contains__, alternates_max=3)
    for number in range(6):
        router.declare(f"x{number}", "fanout", arguments={"alternate-exchange": f"x{number + 1}"})
    router.bind(Binding("x4", "q", "queue", ""))
    assert router.route("x1", "k").queues == ("q",)
    assert router.route("x0", "k").queues == ()


def test_a_binding_that_leads_nowhere_is_still_a_match_for_the_alternate_exchange() -> None:
    router = router_of("a:fanout>spare", "empty:direct", "spare:fanout")
    router.bind(to_queue("spare", "q"))
    assert router.route("a", "k").queues == ("q",)
    router.bind(to_exchange("a", "empty"))
    assert router.route("a", "k").queues == ()


def test_delete_removes_bindings_on_both_sides() -> None:
    router = router_of("a:fanout", "b:fanout")
    router.bind(to_exchange("a", "b"))
    router.bind(to_queue("b", "q"))
    assert router.delete("b") == ([to_queue("b", "q"), to_exchange("a", "b")], [])
    assert router.delete("b") == ([], [])
    assert router.bindings() == []
    assert router.get("b") is None
    assert router.get("a") is not None


def test_auto_delete_goes_upwards() -> None:
    router = router_of("kept:fanout")
    for name in ("a", "b", "c"):
        router.declare(name, "fanout", auto_delete=True)
    router.bind(to_exchange("kept", "a"))
    router.bind(to_exchange("a", "b"))
    router.bind(to_exchange("b", "c"))
    last = to_queue("c", "q")
    router.bind(last)
    assert router.unbind(last)[1] == ["c", "b", "a"]
    assert [exchange.name for exchange in router.exchanges()] == ["kept"]
    assert router.bindings() == []


def test_auto_delete_waits_for_the_last_binding_and_for_a_first() -> None:
    router = router_of()
    for name in ("a", "b"):
        router.declare(name, "fanout", auto_delete=True)
    for name, queue in itertools.product("ab", ("q", "r")):
        router.bind(to_queue(name, queue, "1"))
        router.bind(to_queue(name, queue, "2"))
    router.declare("never bound", "fanout", auto_delete=True)
    removed, deleted = router.remove_queue("q")
    assert (len(removed), deleted) == (4, [])
    removed, deleted = router.remove_queue("r")
    assert (len(removed), deleted) == (4, ["a", "b"])
    assert [exchange.name for exchange in router.exchanges()] == ["never bound"]
    assert router.remove_queue("r") == ([], [])


def test_deleting_the_destination_deletes_auto_delete_sources() -> None:
    router = router_of("sink:fanout")
    router.declare("source", "fanout", auto_delete=True)
    router.bind(to_exchange("source", "sink"))
    assert router.delete("sink")[1] == ["source"]


def test_a_long_chain_of_auto_delete_exchanges() -> None:
    router = router_of()
    for number in range(3000):
        router.declare(f"x{number}", "fanout", auto_delete=True)
        if number:
            router.bind(to_exchange(f"x{number - 1}", f"x{number}"))
    router.bind(to_queue("x2999", "q"))
    assert router.route("x0", "").queues == ("q",)
    assert len(router.remove_queue("q")[1]) == 3000


def test_an_exchange_bound_to_itself() -> None:
    router = router_of()
    router.declare("x", "fanout", auto_delete=True)
    router.bind(to_exchange("x", "x"))
    router.bind(to_queue("x", "q"))
    assert router.route("x", "").queues == ("q",)
    removed, deleted = router.delete("x")
    assert (set(removed), deleted) == ({to_exchange("x", "x"), to_queue("x", "q")}, [])
    assert router.bindings() == []


def test_bindings_are_found_from_each_side() -> None:
    router = router_of("a:fanout", "b:fanout")
    one, two, three = to_queue("a", "q"), to_exchange("a", "b"), to_queue("b", "q")
    for binding in (one, two, three):
        router.bind(binding)
    assert router.bindings() == [one, two, three]
    assert router.bindings(source="a") == [one, two]
    assert router.bindings(destination="q", kind="queue") == [one, three]
    assert router.bindings(destination="q", source="b") == [three]
    assert router.bindings(kind="exchange") == [two]
    assert router.bindings(destination="b") == [two]
    assert (router.in_use("a"), router.in_use("missing")) == (True, False)


def test_binding_what_is_not_there_is_the_callers_mistake() -> None:
    router = router_of("a:fanout")
    for binding in (to_queue("missing", "q"), to_exchange("a", "missing")):
        with pytest.raises(KeyError):
            router.bind(binding)
    assert router.bindings() == []


def test_random_follows_the_nonce_and_modulus_the_key() -> None:
    router = router_of("r:x-random", "l:x-local-random", "m:x-modulus-hash")
    for exchange, queue in itertools.product("rlm", ("q1", "q2", "q3")):
        router.bind(to_queue(exchange, queue, "ignored"))
    for exchange in "rl":
        picks = [router.route(exchange, "k", nonce=nonce) for nonce in range(6)]
        assert [pick.queues for pick in picks] == [("q1",), ("q2",), ("q3",)] * 2
        assert picks[0].depends == Depends.NONCE
    routes = [router.route("m", f"k{number}") for number in range(60)]
    assert {route.queues for route in routes} == {("q1",), ("q2",), ("q3",)}
    assert all(route.depends == Depends.KEY for route in routes)
    assert routes == [router.route("m", f"k{number}", nonce=9) for number in range(60)]


def test_a_local_exchange_picks_queues_of_its_node() -> None:
    here = {"q1": 1, "q3": 1}
    router = Router({"q1": 1, "q2": 1, "q3": 1}.__contains__, is_here=lambda name: name in here)
    router.declare("l", "x-local-random")
    assert router.route("l", "k").queues == ()
    for queue in ("q1", "q2", "q3"):
        router.bind(to_queue("l", queue))
    assert [router.route("l", "k", nonce=nonce).queues for nonce in range(3)] == [("q1",), ("q3",), ("q1",)]
    # What a queue was when it was bound counts when it is unbound: it may be gone.
    del here["q1"]
    for queue in ("q1", "q2"):
        router.unbind(to_queue("l", queue))
    assert {router.route("l", "k", nonce=nonce).queues for nonce in range(3)} == {("q3",)}


def test_what_a_route_depends_on() -> None:
    router = router_of(
        "key:direct", "h:headers", "r:x-random", "beyond:fanout", "key2:direct>h", "r2:x-random>h"
    )
    assert router.route("key", "a").depends == Depends.KEY
    assert router.route("h", "a").depends == Depends.HEADERS
    router.bind(to_exchange("key", "h", "by-headers"))
    router.bind(to_exchange("key", "r", "by-chance"))
    router.bind(to_exchange("beyond", "key"))
    assert router.route("beyond", "a").depends == Depends.KEY
    assert router.route("beyond", "by-headers").depends == Depends.HEADERS
    assert router.route("beyond", "by-chance").depends == Depends.NONCE
    assert router.route("key2", "a").depends == Depends.HEADERS
    router.bind(to_queue("key2", "q", "a"))
    assert router.route("key2", "a").depends == Depends.KEY
    # Of the ways that chance may choose, one passes an exchange that looks at headers. Each tells what it has
    # looked at.
    router.bind(to_queue("r2", "q"))
    router.bind(to_exchange("r2", "beyond"))
    ways = {router.route("r2", "by-headers", nonce=nonce).depends for nonce in range(2)}
    assert ways == {Depends.NONCE, Depends.NONCE | Depends.HEADERS}
    # The headers lead to chance.
    router.bind(Binding("h", "r", "exchange", "", {"needed": 1}))
    assert router.route("h", "a", {"headers": {"needed": 2}}).depends == Depends.HEADERS
    lucky = router.route("h", "a", {"headers": {"needed": 1}})
    assert lucky == Route((), Depends.NONCE | Depends.HEADERS)


NAMES = "abcde"
TOPOLOGIES = st.tuples(
    st.lists(st.sampled_from(EXCHANGE_TYPES), min_size=5, max_size=5),
    st.lists(st.sampled_from([None, *NAMES]), min_size=5, max_size=5),
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.sampled_from([*NAMES, "q1", "q2"]), st.sampled_from(["1", "2"])),
        max_size=14,
    ),
)


def built(topology: tuple[list[str], list[str | None], list[tuple[str, str, str]]]) -> Router:
    types, alternates, edges = topology
    router = router_of()
    for name, kind, alternate in zip(NAMES, types, alternates, strict=True):
        arguments: dict[str, object] = {"x-delayed-type": "headers"}
        if alternate:
            arguments["alternate-exchange"] = alternate
        router.declare(name, kind, arguments=arguments)
    for source, destination, key in edges:
        if destination in NAMES:
            binding = to_exchange(source, destination, key, h=key)
        else:
            binding = to_queue(source, destination, key, h=key)
        # A super stream has one binding with each key.
        with suppress(InvalidArgument):
            router.bind(binding)
    return router


@given(TOPOLOGIES)
def test_an_answer_changes_only_with_what_it_says_it_depends_on(
    topology: tuple[list[str], list[str | None], list[tuple[str, str, str]]],
) -> None:
    router = built(topology)
    messages: list[dict[str, object] | None] = [None, {"headers": {"h": "1"}}, {"headers": {"h": "2"}}]
    for name, key in itertools.product(NAMES, ("1", "2", "")):
        routes = {
            (number, nonce): router.route(name, key, message, nonce)
            for (number, message), nonce in itertools.product(enumerate(messages), range(3))
        }
        for (number, nonce), route in routes.items():
            assert len(set(route.queues)) == len(route.queues)
            for (other, other_nonce), told in routes.items():
                same_message = number == other or not route.depends & Depends.HEADERS
                same_nonce = nonce == other_nonce or not route.depends & Depends.NONCE
                if same_message and same_nonce:
                    assert told == route


@given(TOPOLOGIES)
def test_the_same_topology_gives_the_same_answers(
    topology: tuple[list[str], list[str | None], list[tuple[str, str, str]]],
) -> None:
    first, second = built(topology), built(topology)
    for name, key in itertools.product(NAMES, ("1", "2")):
        assert first.route(name, key, {"headers": {"h": "1"}}, 1) == second.route(
            name, key, {"headers": {"h": "1"}}, 1
        )


def test_each_exchange_sees_all_keys() -> None:
    router = Router({"q": 1, "r": 1, "s": 1}.__contains__)
    for exchange, kind in (("a", "direct"), ("b", "topic"), ("c", "fanout"), ("m", "x-modulus-hash")):
        router.declare(exchange, kind)
    router.declare("left", "direct")
    router.declare("d", "direct", arguments={"alternate-exchange": "left"})
    router.bind(Binding("a", "b", "exchange", "1", {}))
    router.bind(Binding("b", "c", "exchange", "2", {}))
    router.bind(Binding("c", "q", "queue", "", {}))
    router.bind(Binding("d", "r", "queue", "1", {}))
    router.bind(Binding("left", "s", "queue", "2", {}))
    for queue in "qrs":
        router.bind(Binding("m", queue, "queue", "", {}))
    assert (
        router.begin("a", ["1", "2"]).finish().queues
        == router.begin("a", ["2", "1"]).finish().queues
        == ("q",)
    )
    assert router.begin("a", ["1"]).finish().queues == ()
    assert router.begin("d", ["2", "1"]).finish().queues == ("r",)
    assert router.begin("d", ["3", "2"]).finish().queues == ("s",)
    assert router.begin("", ["s", "none", "q", "s"]).finish().queues == ("s", "q")
    assert router.begin("none", ["q"]).finish().queues == ()
    keys = [str(number) for number in range(20)]
    assert len(router.begin("m", keys).finish().queues) == 1
    assert router.begin("m", keys).finish().queues == router.route("m", "0").queues


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True), st.data())
def test_with_one_key_it_is_the_same(exchanges: list[str], data: st.DataObject) -> None:
    router = Router({"q": 1}.__contains__)
    for exchange in exchanges:
        router.declare(exchange, data.draw(st.sampled_from(["direct", "topic", "fanout"])))
    for source in exchanges:
        for destination in [*exchanges, "q"]:
            if data.draw(st.booleans()):
                kind: DestinationKind = "queue" if destination == "q" else "exchange"
                router.bind(
                    Binding(source, destination, kind, data.draw(st.sampled_from(["k", "l", "#"])), {})
                )
    for exchange in exchanges:
        assert router.begin(exchange, ["k"]).finish().queues == router.route(exchange, "k").queues


@pytest.mark.parametrize("kind", ["x-modulus-hash", "x-random"])
def test_a_change_among_many_bindings_to_pick_from_is_a_small_step(kind: str) -> None:
    def publish_after_changes(count: int) -> int:
        names = [f"q{number}" for number in range(count)]
        router = router_of(f"x:{kind}", queues=(*names, "new"))
        for name in names:
            router.bind(Binding("x", name, "queue", ""))
        router.route("x", "k")

        def changes() -> None:
            router.bind(Binding("x", "new", "queue", ""))
            router.route("x", "k")
            router.unbind(Binding("x", "q7", "queue", ""))
            router.route("x", "k")

        return steps(changes)

    assert publish_after_changes(400) < 1.3 * publish_after_changes(40)
