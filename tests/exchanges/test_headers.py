from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exchanges import headers as headers_module
from exchanges.binding import Binding
from exchanges.errors import InvalidArgument
from exchanges.headers import HeadersMatcher

Table = dict[str, object]


def bound(arguments: Table, queue: str) -> Binding:
    return Binding("x", queue, "queue", "", arguments)


def matched(matcher: HeadersMatcher, headers: Table | None) -> set[str]:
    message = None if headers is None else {"headers": headers}
    return {queue for destinations in matcher.match("", message, 0) for queue in destinations.queues}


def model_matches(arguments: Table, headers: Table) -> bool:
    kind = arguments.get("x-match", "all")
    assert isinstance(kind, str)
    wanted = [
        (name, value)
        for name, value in arguments.items()
        if name != "x-match" and (kind.endswith("with-x") or not name.startswith("x-"))
    ]
    hits = [name in headers and (value is None or same(value, headers[name])) for name, value in wanted]
    return all(hits) if kind.startswith("all") else any(hits)


def same(first: object, second: object) -> bool:
    return isinstance(first, bool) == isinstance(second, bool) and first == second


NAMES = st.sampled_from(["a", "b", "c", "x-a", "x-b"])
VALUES = st.sampled_from(
    [None, 0, 1, True, False, 1.0, 2.5, "1", "", "é", [1, "a"], {"k": 1}, Decimal("1.5")]
)
TABLES = st.dictionaries(NAMES, VALUES, max_size=4)
ARGUMENTS = st.tuples(
    TABLES, st.sampled_from([{}, *({"x-match": k} for k in ("all", "any", "all-with-x", "any-with-x"))])
).map(lambda pair: {**pair[0], **pair[1]})


@given(
    arguments=st.lists(ARGUMENTS, max_size=12),
    removed=st.integers(0, 12),
    messages=st.lists(TABLES, max_size=6),
    queues=st.sampled_from((1, 3, 12)),
)
def test_it_agrees_with_the_specification(
    arguments: list[Table], removed: int, messages: list[Table], queues: int
) -> None:
    matcher = HeadersMatcher()
    found = [bound(each, f"q{number % queues}") for number, each in enumerate(arguments)]
    bindings = list(dict.fromkeys(found))
    for binding in bindings:
        matcher.bind(binding)
    for binding in bindings[:removed]:
        matcher.unbind(binding)
    for headers in messages:
        expected = {
            each.destination for each in bindings[removed:] if model_matches(dict(each.arguments), headers)
        }
        assert matched(matcher, headers) == expected


@given(
    arguments=st.lists(ARGUMENTS, max_size=12),
    removed=st.integers(0, 12),
    messages=st.lists(TABLES, max_size=6),
    queues=st.sampled_from((1, 3, 12)),
)
def test_many_bindings_under_one_header_agree_with_it_too(
    arguments: list[Table], removed: int, messages: list[Table], queues: int
) -> None:
    """Also where bindings are kept as bits, and where they lead to few queues."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headers_module, "MASK_FROM", 2)
        test_it_agrees_with_the_specification.hypothesis.inner_test(arguments, removed, messages, queues)  # type: ignore[attr-defined]
        test_nothing_is_left_when_all_is_unbound.hypothesis.inner_test(arguments)  # type: ignore[attr-defined]


def test_a_binding_is_visited_once_under_however_many_headers_it_stands() -> None:
    headers: Table = {f"h{number}": 1 for number in range(100)}
    matcher = HeadersMatcher()
    for number in range(200):
        matcher.bind(bound({"x-match": "any", **headers, "own": number}, f"q{number}"))
    assert len(matcher.match("", {"headers": headers}, 0)) == 200
    assert len(matcher.match("", {"headers": {"h1": 1, "own": 7}}, 0)) <= 201


def test_many_bindings_that_lead_to_few_queues_are_not_looked_at_one_by_one() -> None:
    matcher = HeadersMatcher()
    bindings = [
        bound({"x-match": "any", "a": 1, "b": 1, "own": number}, f"q{number % 3}") for number in range(1_000)
    ]
    for binding in bindings:
        matcher.bind(binding)
    assert len(matcher.match("", {"headers": {"a": 1, "b": 1}}, 0)) == 2
    for binding in bindings[:990]:
        matcher.unbind(binding)
    assert matched(matcher, {"a": 1, "b": 1}) == {"q0", "q1", "q2"}
    for binding in bindings[990:999]:
        matcher.unbind(binding)
    assert matched(matcher, {"a": 1, "b": 1}) == {"q0"}


@given(arguments=st.lists(ARGUMENTS, max_size=12))
def test_nothing_is_left_when_all_is_unbound(arguments: list[Table]) -> None:
    matcher = HeadersMatcher()
    bindings = [bound(each, f"q{number}") for number, each in enumerate(arguments)]
    for binding in bindings:
        matcher.bind(binding)
    for binding in bindings:
        matcher.unbind(binding)
    assert not (matcher._patterns or matcher._index or matcher._unconditional)


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [  # as RabbitMQ 3.10.8 answered
        ({}, None, True),
        ({}, {}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "any"}, None, False),
        ({"x-match": "any-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "all", "x-a": 1}, {}, True),
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any-with-x"}, {"x-match": "any-with-x"}, False),
        ({"a": None}, {"a": 1}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {}, False),
        ({"a": 1}, {"a": None}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"a": datetime.fromtimestamp(1, UTC)}, True),
        ({"a": 1}, {"a": Decimal(1)}, False),
        ({"a": "1"}, {"a": b"1"}, True),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": [1]}, {"a": [1]}, True),
        ({"a": [1]}, {"a": [True]}, False),
        ({"a": {"z": 1}}, {"a": {"z": 1}}, True),
        ({"a": -0.0}, {"a": 0.0}, True),
        ({"a": b"\xff"}, {"a": b"\xff"}, True),
        ({"a": float("nan")}, {"a": float("nan")}, True),
    ],
)
def test_edges(arguments: Table, headers: Table | None, expected: bool) -> None:
    matcher = HeadersMatcher()
    matcher.bind(bound(arguments, "q"))
    assert (matched(matcher, headers) == {"q"}) is expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (23, "Invalid x-match field type signedint (value 23); expected longstr"),
        (2**40, "Invalid x-match field type long (value 1099511627776); expected longstr"),
        (True, "Invalid x-match field type bool (value true); expected longstr"),
        (None, "Invalid x-match field type void (value undefined); expected longstr"),
        (1.5, "Invalid x-match field type double (value 1.5); expected longstr"),
        (b"all", 'Invalid x-match field type binary (value <<"all">>); expected longstr'),
        (
            [1, "a"],
            'Invalid x-match field type array (value [{signedint,1},{longstr,<<"a">>}]); expected longstr',
        ),
        ({"a": 1}, 'Invalid x-match field type table (value [{<<"a">>,signedint,1}]); expected longstr'),
        ("foo", 'Invalid x-match field value <<"foo">>; expected all, any, all-with-x, or any-with-x'),
        ("", "Invalid x-match field value <<>>; expected all, any, all-with-x, or any-with-x"),
        (
            Decimal("1.50"),
            "Invalid x-match field type decimal (value {2,150}); expected longstr",
        ),
        (
            datetime.fromtimestamp(5, UTC),
            "Invalid x-match field type timestamp (value 5); expected longstr",
        ),
    ],
)
def test_invalid_x_match(value: object, text: str) -> None:
    matcher = HeadersMatcher()
    with pytest.raises(InvalidArgument) as refusal:
        matcher.bind(bound({"x-match": value, "a": 1}, "q"))
    assert str(refusal.value) == text
    assert matched(matcher, {"a": 1}) == set()


def test_a_common_header_does_not_gather_all_bindings() -> None:
    matcher = HeadersMatcher()
    for number in range(100):
        matcher.bind(bound({"common": "same", "unit": number}, f"q{number}"))
    assert max(len(bucket) for buckets in matcher._index.values() for bucket in buckets.values()) <= 2
    assert matched(matcher, {"common": "same", "unit": 42}) == {"q42"}
