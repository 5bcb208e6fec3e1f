"""The explanation of a route says what the router does."""

from hypothesis import given
from hypothesis import strategies as st

from exchanges import explained
from exchanges.binding import Binding, DestinationKind
from exchanges.explained import Explanation
from exchanges.matcher import Message
from exchanges.router import Router
from tests.work import ended


def a_router(*exchanges: str) -> Router:
    """`a_router("x:topic", "y:fanout")`, with queues q, r and s."""
    router = Router({"q": 1, "r": 1, "s": 1}.__contains__)
    router.predeclare()
    for each in exchanges:
        name, _, kind = each.partition(":")
        router.declare(name, kind)
    return router


def explain(
    router: Router, exchange: str, key: str, message: Message | None = None, **limits: int
) -> Explanation:
    return ended(explained.explain(router, exchange, key, message, **limits))


def matched(told: Explanation) -> list[tuple[str, str, str]]:
    return [
        (step.exchange, each.destination, each.routing_key) for step in told.steps for each in step.bindings
    ]


def test_the_bindings_that_match() -> None:
    router = a_router("x:topic")
    router.bind(Binding("x", "q", "queue", "a.*"))
    router.bind(Binding("x", "q", "queue", "b.*"))
    router.bind(Binding("x", "r", "queue", "#"))
    router.bind(Binding("x", "s", "queue", "a"))
    told = explain(router, "x", "a.b")
    assert sorted(matched(told)) == [("x", "q", "a.*"), ("x", "r", "#")]
    assert sorted(told.queues) == ["q", "r"]
    assert told.certain and not told.cut


def test_the_bindings_that_match_of_an_exchange_that_delays() -> None:
    router = a_router()
    router.declare("x", "x-delayed-message", arguments={"x-delayed-type": "topic"})
    router.bind(Binding("x", "q", "queue", "a.*"))
    router.bind(Binding("x", "q", "queue", "b.*"))
    assert matched(explain(router, "x", "a.b")) == [("x", "q", "a.*")]


def test_exchanges_on_the_way_and_circles() -> None:
    router = a_router("x:direct", "y:fanout")
    router.bind(Binding("x", "y", "exchange", "k"))
    router.bind(Binding("y", "x", "exchange", ""))
    router.bind(Binding("y", "q", "queue", ""))
    told = explain(router, "x", "k")
    assert [step.exchange for step in told.steps] == ["x", "y"]
    assert told.queues == ("q",)
    assert explain(router, "x", "other").steps[0].bindings == ()


def test_alternates_are_passed_where_nothing_matches() -> None:
    router = a_router("left:fanout")
    router.declare("x", "direct", arguments={"alternate-exchange": "left"})
    router.bind(Binding("x", "q", "queue", "k"))
    router.bind(Binding("left", "r", "queue", ""))
    assert [(step.exchange, step.alternate) for step in explain(router, "x", "k").steps] == [("x", None)]
    told = explain(router, "x", "other")
    assert [(step.exchange, step.alternate) for step in told.steps] == [("x", "left"), ("left", None)]
    assert told.queues == ("r",)


def test_headers_are_looked_at() -> None:
    router = a_router("x:headers")
    router.bind(Binding("x", "q", "queue", "", {"x-match": "all", "kind": "a", "size": 1}))
    router.bind(Binding("x", "r", "queue", "", {"x-match": "any", "kind": "a", "size": 1}))
    told = explain(router, "x", "", {"headers": {"kind": "a", "size": 2}})
    assert [each.destination for each in told.steps[0].bindings] == ["r"]
    assert explain(router, "x", "", {"headers": {"kind": "b"}}).queues == ()


def test_the_default_exchange() -> None:
    router = a_router()
    assert matched(explain(router, "", "q")) == [("", "q", "q")]
    assert explain(router, "", "none").queues == ()


def test_what_is_chosen_at_random_is_not_certain() -> None:
    router = a_router("x:x-random")
    for queue in "qrs":
        router.bind(Binding("x", queue, "queue", ""))
    told = explain(router, "x", "k")
    assert not told.certain
    assert len(told.queues) == 1


def test_what_is_told_is_bounded() -> None:
    names = [f"x{number}" for number in range(6)]
    router = a_router(*(f"{name}:fanout" for name in names))
    for source, destination in zip(names, names[1:], strict=False):
        router.bind(Binding(source, destination, "exchange", ""))
    told = explain(router, "x0", "", steps_max=3)
    assert ([step.exchange for step in told.steps], told.cut) == (["x0", "x1", "x2"], True)
    for number in range(5):
        router.bind(Binding("x5", "q", "queue", str(number)))
    step = explain(router, "x5", "", bindings_max=3).steps[0]
    assert (len(step.bindings), step.cut) == (3, True)


@given(
    st.lists(
        st.tuples(st.sampled_from("xyz"), st.sampled_from("xyzqrs"), st.sampled_from(["a", "b", "#", "*"])),
        max_size=12,
    ),
    st.lists(st.sampled_from(["direct", "topic", "fanout"]), min_size=3, max_size=3),
    st.sampled_from(["a", "b", "a.b"]),
)
def test_queues_are_those_of_the_bindings_told_of(
    bindings: list[tuple[str, str, str]], kinds: list[str], key: str
) -> None:
    router = a_router(*(f"{name}:{kind}" for name, kind in zip("xyz", kinds, strict=True)))
    for source, destination, binding_key in bindings:
        kind: DestinationKind = "exchange" if destination in "xyz" else "queue"
        router.bind(Binding(source, destination, kind, binding_key))
    told = explain(router, "x", key)
    found = {each.destination for step in told.steps for each in step.bindings if each.kind == "queue"}
    assert found == set(told.queues) == set(router.route("x", key).queues)
