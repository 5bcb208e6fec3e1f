import itertools
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exchanges.binding import Binding
from exchanges.errors import InvalidArgument
from exchanges.router import Router
from exchanges.topic import TopicMatcher
from tests.work import steps


def bound(key: str, queue: str | None = None) -> Binding:
    return Binding("x", key if queue is None else queue, "queue", key)


def matched(matcher: TopicMatcher, routing_key: str) -> set[str]:
    return {queue for destinations in matcher.match(routing_key, None, 0) for queue in destinations.queues}


def model_matches(pattern: list[str], words: list[str]) -> bool:
    """The rule of the specification, word by word."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return model_matches(pattern[1:], words) or (bool(words) and model_matches(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and model_matches(pattern[1:], words[1:])


def words_of(key: str) -> list[str]:
    return key.split(".") if key else []


WORDS = st.lists(st.sampled_from(["a", "b", "c", "", "ab"]), max_size=6).map(".".join)
PATTERNS = st.lists(st.sampled_from(["a", "b", "c", "", "*", "#", "#"]), max_size=6).map(".".join)


@given(patterns=st.lists(PATTERNS, max_size=12), removed=st.integers(0, 12), keys=st.lists(WORDS, max_size=8))
def test_it_agrees_with_the_specification(patterns: list[str], removed: int, keys: list[str]) -> None:
    matcher = TopicMatcher()
    bindings = list(dict.fromkeys(bound(pattern) for pattern in patterns))
    for binding in bindings:
        matcher.bind(binding)
    for binding in bindings[:removed]:
        matcher.unbind(binding)
    left = {binding.routing_key for binding in bindings[removed:]}
    for key in keys:
        assert matched(matcher, key) == {p for p in left if model_matches(words_of(p), words_of(key))}


@given(patterns=st.lists(PATTERNS, max_size=12))
def test_nothing_is_left_when_all_is_unbound(patterns: list[str]) -> None:
    matcher = TopicMatcher()
    bindings = list(dict.fromkeys(bound(pattern) for pattern in patterns))
    for binding in bindings:
        matcher.bind(binding)
    for binding in reversed(bindings):
        matcher.unbind(binding)
    assert matcher._root.is_bare()
    assert matcher.any_words_again == 0


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [  # as RabbitMQ 3.10.8 answered
        ("*", "", False),
        ("#", "", True),
        ("", "", True),
        ("", "a", False),
        ("a.*", "a.", True),
        ("*.*", ".", True),
        ("#.#", "", True),
        ("a.#", "a", True),
        ("#.a.#", "a", True),
        ("a.#.b", "a.b", True),
        ("*.#", "", False),
        ("a..b", "a..b", True),
        ("a.*.b", "a..b", True),
        ("a*", "ab", False),
        ("#.", "a.", True),
    ],
)
def test_edges(pattern: str, key: str, expected: bool) -> None:
    matcher = TopicMatcher()
    matcher.bind(bound(pattern, "q"))
    assert (matched(matcher, key) == {"q"}) is expected


def test_too_many_any_words_are_refused_and_leave_no_trace() -> None:
    matcher = TopicMatcher(any_words_max=3)
    matcher.bind(bound("#.a.#.b.#"))
    with pytest.raises(InvalidArgument, match="has 4 '#' words, at most 3 are allowed"):
        matcher.bind(bound("#.a.#.b.#.c.#"))
    assert matched(matcher, "a.b.c") == {"#.a.#.b.#"}


def test_the_worst_keys_cost_little() -> None:
    matcher = TopicMatcher()
    for last in "xyz":
        matcher.bind(bound(".".join(["#", "a"] * 15) + ".#." + last))
    key = ".".join(["a"] * 127)
    started = time.process_time()
    assert matched(matcher, key) == set()
    assert time.process_time() - started < 5  # a backtracking matcher would need years


@pytest.mark.pure
def test_a_hash_that_is_reached_is_not_looked_at_again_for_each_word() -> None:
    matcher = TopicMatcher()
    letters = random.Random(5)
    for number in range(100):
        words = sorted(letters.sample("abcdefghijkl", 8))
        matcher.bind(bound("".join(f"#.{word}." for word in words) + f"#.{number}.#"))

    def cost(repeats: int) -> int:
        # The letters come first, so that nearly all `#` are reached at once.
        key = ".".join("abcdefghijkl" + "z" * repeats)
        return steps(matcher.match, key, None, 0)

    assert cost(110) < 2 * cost(10)


@given(patterns=st.lists(PATTERNS, max_size=12), keys=st.lists(WORDS, max_size=8))
def test_in_parts_the_answer_is_the_same(patterns: list[str], keys: list[str]) -> None:
    matcher = TopicMatcher()
    for number, pattern in enumerate(patterns):
        matcher.bind(Binding("x", f"q{number}", "queue", pattern))
    for key in keys:
        whole = {id(found) for found in matcher.match(key, None, 0)}
        assert {id(found) for part in matcher.parts(key) for found in part} == whole


@pytest.mark.pure
def test_very_many_patterns_are_matched_in_short_steps() -> None:
    for further in (None, "#.a.#.b"):
        router = Router(lambda name: True)
        router.declare("t", "topic")
        for number, words in enumerate(itertools.product("a*", repeat=13)):
            router.bind(Binding("t", f"q{number % 50}", "queue", ".".join(words)))
        if further is not None:
            router.bind(Binding("t", "more", "queue", further))
        key = ".".join("a" * 13)
        assert router.route_at_once("t", key) is not None
        walk = router.begin("t", [key])
        longest = 0
        while not walk.done:
            longest = max(longest, steps(walk.go_on, 1))
        assert len(walk.route.queues) == 50 and walk.steps > 50
        assert longest < 40_000


def test_equal_keys_share_a_node_and_count() -> None:
    matcher = TopicMatcher()
    first, second = bound("a.#", "q"), bound("a.#.#", "q")
    matcher.bind(first)
    matcher.bind(second)
    matcher.unbind(first)
    assert matched(matcher, "a.b") == {"q"}
    matcher.unbind(second)
    assert matched(matcher, "a.b") == set()


def test_the_order_is_the_same_each_time() -> None:
    keys = [".".join(words) for words in itertools.product(["a", "*", "#"], repeat=3)]
    random.Random(7).shuffle(keys)
    answers = []
    for _ in range(2):
        matcher = TopicMatcher()
        for key in keys:
            matcher.bind(bound(key))
        answers.append([list(each.queues) for each in matcher.match("a.a.a", None, 0)])
    assert answers[0] == answers[1]
    assert len(answers[0]) > 5
