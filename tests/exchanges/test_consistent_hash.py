import subprocess
import sys
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exchanges import consistent_hash
from exchanges.binding import Binding
from exchanges.consistent_hash import WEIGHTS_SUM_MAX, ConsistentHashMatcher
from exchanges.errors import InvalidArgument
from exchanges.matcher import Depends, Message
from tests.work import steps

KEYS = [f"key-{number}" for number in range(4000)]


def bound(queue: str, weight: str = "1") -> Binding:
    return Binding("x", queue, "queue", weight)


def matcher_of(weights: dict[str, str]) -> ConsistentHashMatcher:
    matcher = ConsistentHashMatcher({})
    for queue, weight in weights.items():
        matcher.bind(bound(queue, weight))
    return matcher


def points(matcher: ConsistentHashMatcher) -> list[int]:
    """Return all points of the ring, in order."""
    owner(matcher, "k")
    found = matcher._ring._points
    assert found == sorted(matcher._ring._owner_of_point)
    return found


def owner(matcher: ConsistentHashMatcher, key: str, message: Message | None = None) -> str:
    (destinations,) = matcher.match(key, message, 0)
    (queue,) = destinations.queues
    return queue


def test_shares_follow_the_weights() -> None:
    counts = Counter(
        owner(matcher, key) for matcher in [matcher_of({"a": "1", "b": "2", "c": "5"})] for key in KEYS
    )
    for queue, share in {"a": 1 / 8, "b": 2 / 8, "c": 5 / 8}.items():
        assert abs(counts[queue] / len(KEYS) - share) < 0.06


def test_a_new_destination_takes_messages_only_for_itself() -> None:
    before = matcher_of({"a": "1", "b": "1", "c": "1"})
    after = matcher_of({"a": "1", "b": "1", "c": "1", "d": "1"})
    moved = {owner(after, key) for key in KEYS if owner(after, key) != owner(before, key)}
    assert moved == {"d"}
    after.unbind(bound("d"))
    assert [owner(after, key) for key in KEYS] == [owner(before, key) for key in KEYS]


def test_the_order_of_binding_does_not_matter() -> None:
    first = matcher_of({"a": "3", "b": "1", "c": "2"})
    second = matcher_of({"c": "2", "a": "3", "b": "1"})
    assert [owner(first, key) for key in KEYS] == [owner(second, key) for key in KEYS]


def test_another_process_answers_the_same() -> None:
    program = (
        "from tests.exchanges.test_consistent_hash import *\n"
        "m = matcher_of({'a': '1', 'b': '2'})\nprint(''.join(owner(m, key) for key in KEYS))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    here = matcher_of({"a": "1", "b": "2"})
    assert answers == {"".join(owner(here, key) for key in KEYS)}


def test_many_heavy_destinations_stay_bounded() -> None:
    matcher = matcher_of({f"q{number}": "60" for number in range(1000)})
    counts = Counter(owner(matcher, key) for key in KEYS)
    assert len(points(matcher)) <= consistent_hash.POINTS_MAX
    assert len(counts) > 900


def test_each_destination_has_a_point() -> None:
    """However small its share is."""
    matcher = matcher_of({"heavy": "60000"} | {f"q{number}": "1" for number in range(500)})
    assert len(points(matcher)) == 60_000 * 128 // 512 + 500


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("", "The binding key must be an integer: <<>>"),
        ("a", 'The binding key must be an integer: <<"a">>'),
        ("1.5", 'The binding key must be an integer: <<"1.5">>'),
        ("1 ", 'The binding key must be an integer: <<"1 ">>'),
        ("+", 'The binding key must be an integer: <<"+">>'),
        ("²", 'The binding key must be an integer: <<"Â²">>'),
        ("0", "The binding key must be greater than 0"),
        ("-1", "The binding key must be greater than 0"),
        ("9" * 200, "The binding key must be 65536 at most"),
    ],
)
def test_a_binding_key_that_is_no_weight(key: str, text: str) -> None:
    matcher = ConsistentHashMatcher({})
    with pytest.raises(InvalidArgument) as refusal:
        matcher.bind(bound("q", key))
    assert str(refusal.value) == text
    assert matcher.match("k", None, 0) == ()


@pytest.mark.parametrize("key", ["+1", "01", "65536"])
def test_a_binding_key_that_is_a_weight(key: str) -> None:
    assert owner(matcher_of({"q": key}), "k") == "q"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"hash-header": "a", "hash-property": "message_id"},
            "hash-header and hash-property are mutually exclusive",
        ),
        ({"hash-property": "app_id"}, "Unsupported property: app_id"),
        ({"hash-header": 1}, "Invalid hash-header field type signedint; expected longstr"),
        ({"hash-property": None}, "Invalid hash-property field type void; expected longstr"),
    ],
)
def test_invalid_arguments_of_the_exchange(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        ConsistentHashMatcher(arguments)
    assert str(refusal.value) == text


def test_the_sum_of_the_weights_is_bounded() -> None:
    matcher = matcher_of({"a": str(WEIGHTS_SUM_MAX)})
    with pytest.raises(InvalidArgument, match="add up to 65536 at most"):
        matcher.bind(bound("b"))
    matcher.unbind(bound("a", str(WEIGHTS_SUM_MAX)))
    matcher.bind(bound("b"))
    assert owner(matcher, "k") == "b"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hash-header": "h"}, lambda value: {"headers": {"h": value}}),
        ({"hash-property": "message_id"}, lambda value: {"message_id": value}),
        ({"hash-property": "correlation_id"}, lambda value: {"correlation_id": value}),
        ({"hash-property": "timestamp"}, lambda value: {"timestamp": int(value[4:])}),
    ],
)
def test_hashing_something_else_than_the_key(
    arguments: dict[str, object], message: Callable[[str], Message]
) -> None:
    matcher = ConsistentHashMatcher(arguments)
    assert matcher.depends is Depends.HEADERS
    for queue in "abc":
        matcher.bind(bound(queue))
    assert len({owner(matcher, "same", message(key)) for key in KEYS[:50]}) == 3
    assert len({owner(matcher, key, message("key-7")) for key in KEYS[:50]}) == 1
    blank: list[Message | None] = [None, {}, {"headers": None}]
    without = {owner(matcher, key, each) for key in KEYS[:20] for each in blank}
    assert len(without) == 1


#: Each example makes many thousand points.
@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from(["1", "2", "200", "300", "9000"])), max_size=20
    )
)
def test_the_ring_does_not_depend_on_what_was_bound_before(changes: list[tuple[str, str]]) -> None:
    matcher = matcher_of({"z": "1"})
    there: dict[tuple[str, str], None] = {}
    for number, (queue, weight) in enumerate(changes):
        if (queue, weight) in there:
            del there[queue, weight]
            matcher.unbind(bound(queue, weight))
        else:
            there[queue, weight] = None
            matcher.bind(bound(queue, weight))
        if number % 2:
            owner(matcher, "k")
    anew = matcher_of({"z": "1"})
    for queue, weight in reversed(there):
        anew.bind(bound(queue, weight))
    assert [owner(matcher, key) for key in KEYS[:300]] == [owner(anew, key) for key in KEYS[:300]]
    assert matcher._ring._owner_of_point.keys() == anew._ring._owner_of_point.keys()


def test_two_destinations_with_the_same_points_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    def alike(seed: bytes, first: int, stop: int) -> "array[int]":
        return array("Q", range(50 * seed[-1] + first, 50 * seed[-1] + stop))

    monkeypatch.setattr(consistent_hash, "_points", alike)
    matcher = matcher_of({"a": "1", "b": "2"})
    for unbind, queue, weight in (
        (True, "a", "1"), (False, "a", "1"), (True, "b", "2"), (False, "c", "3"), (True, "a", "1"),
    ):  # fmt: skip
        assert owner(matcher, "k") in "abc"
        (matcher.unbind if unbind else matcher.bind)(bound(queue, weight))
    assert owner(matcher, "k") == "c"


def test_points_that_are_gone_do_not_pile_up() -> None:
    matcher = matcher_of({"a": "100"})
    for _ in range(8):
        matcher.bind(bound("b", "300"))
        owner(matcher, "k")
        matcher.unbind(bound("b", "300"))
        assert len(points(matcher)) == 12_800


def test_no_change_of_the_ring_is_long() -> None:
    """One destination with all of the weight, and 1,000 that get half or twice as many points."""
    matcher = matcher_of({})
    changes: list[int] = []

    def changed(queue: str, weight: str, *, unbind: bool = False) -> None:
        def change() -> None:
            (matcher.unbind if unbind else matcher.bind)(bound(queue, weight))
            if matcher._bindings:
                owner(matcher, "k")

        changes.append(steps(change))

    changed("all", "65536")
    changed("all", "65536", unbind=True)
    for number in range(1_000):
        matcher.bind(bound(f"q{number}", "32"))
    owner(matcher, "k")
    changed("more", "1000")
    changed("more", "1000", unbind=True)
    assert max(changes) < 250_000


def test_a_bind_makes_its_own_points_only() -> None:
    def publish_after_bind(count: int) -> int:
        matcher = matcher_of({f"q{number}": "1" for number in range(count)})
        owner(matcher, "k")

        def both() -> None:
            matcher.bind(bound("new"))
            owner(matcher, "k")

        return steps(both)

    assert publish_after_bind(400) < 1.3 * publish_after_bind(40)
