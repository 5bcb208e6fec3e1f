"""Routing by each exchange type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.compat import long
from pika.exceptions import UnroutableError

from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import expect_channel_close
from conformance_tests.features import needs_exchange_type
from conformance_tests.inbox import drain, get, publish, sync


def bound_queue(
    ch: BlockingChannel, name: Name, exchange: str, *keys: str, arguments: dict[str, Any] | None = None
) -> str:
    queue = name("q")
    ch.queue_declare(queue)
    for key in keys or ("",):
        ch.queue_bind(queue, exchange, key, arguments=arguments)
    return queue


# --- default exchange ---


def test_default_exchange_routes_by_queue_name(ch: BlockingChannel, name: Name) -> None:
    queue, other = name("q"), name("q")
    ch.queue_declare(queue)
    ch.queue_declare(other)
    publish(ch, queue, b"mine")
    delivery = get(ch, queue)
    assert delivery is not None
    assert (delivery.body, delivery.exchange, delivery.routing_key) == (b"mine", "", queue)
    assert get(ch, other) is None


@pytest.mark.parametrize("operation", ["queue_bind", "queue_unbind"])
def test_default_exchange_cannot_be_bound(ch: BlockingChannel, name: Name, operation: str) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    with expect_channel_close(403, "ACCESS_REFUSED - operation not permitted on the default exchange"):
        getattr(ch, operation)(queue, "", "key")


@pytest.mark.parametrize("operation", ["exchange_bind", "exchange_unbind"])
@pytest.mark.parametrize("default_is", ["source", "destination"])
def test_default_exchange_cannot_be_bound_to_an_exchange(
    ch: BlockingChannel, name: Name, operation: str, default_is: str
) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "direct")
    ends = {"source": exchange, "destination": exchange, default_is: ""}
    with expect_channel_close(403, "ACCESS_REFUSED - operation not permitted on the default exchange"):
        getattr(ch, operation)(ends["destination"], ends["source"], "key")


# --- direct ---


def test_direct_routes_on_the_exact_key(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "direct")
    queue = bound_queue(ch, name, exchange, "key")
    for key in ("key", "Key", "key ", "ke", "keyy", "", "#", "*"):
        publish(ch, key, key.encode(), exchange=exchange)
    assert drain(ch, queue) == [b"key"]


def test_direct_with_an_empty_key(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "direct")
    queue = bound_queue(ch, name, exchange, "")
    publish(ch, "", b"empty", exchange=exchange)
    publish(ch, "k", b"k", exchange=exchange)
    assert drain(ch, queue) == [b"empty"]


def test_direct_copies_to_every_queue_bound_with_the_key(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "direct")
    queues = [bound_queue(ch, name, exchange, "key") for _ in range(3)]
    publish(ch, "key", b"copy", exchange=exchange)
    assert [drain(ch, queue) for queue in queues] == [[b"copy"]] * 3


def test_the_exchange_and_routing_key_of_publish_are_delivered(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "topic")
    queue = bound_queue(ch, name, exchange, "a.#")
    publish(ch, "a.b.c", b"m", exchange=exchange)
    delivery = get(ch, queue)
    assert delivery is not None
    assert (delivery.exchange, delivery.routing_key) == (exchange, "a.b.c")


# --- fanout ---


def test_fanout_ignores_the_routing_key(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "fanout")
    queues = [bound_queue(ch, name, exchange, key) for key in ("", "a", "b")]
    publish(ch, "a", b"1", exchange=exchange)
    publish(ch, "zzz", b"2", exchange=exchange)
    assert [drain(ch, queue) for queue in queues] == [[b"1", b"2"]] * 3


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic"])
def test_a_queue_bound_twice_gets_one_copy(ch: BlockingChannel, name: Name, kind: str) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, kind)
    queue = bound_queue(ch, name, exchange, "key", "key")
    ch.queue_bind(queue, exchange, "key", arguments={"distinct": "binding"})
    if kind == "topic":
        ch.queue_bind(queue, exchange, "#")
    publish(ch, "key", b"once", exchange=exchange)
    assert drain(ch, queue) == [b"once"]


# --- topic ---


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("a.b.c", ["a.b.c"], ["a.b", "a.b.c.d", "a.b.C", "", "a.b.", ".a.b.c"]),
        ("*", ["a", "abc"], ["a.b", ".", ""]),
        ("*.b", ["a.b", ".b"], ["b", "a.b.c", "a.a.b"]),
        ("a.*.c", ["a.b.c", "a..c"], ["a.c", "a.b.b.c"]),
        ("*.*", ["a.b", "."], ["a", "a.b.c", ""]),
        ("#", ["", "a", "a.b.c", "."], []),
        ("a.#", ["a", "a.b", "a.b.c", "a."], ["b", "ab", ".a"]),
        ("#.c", ["c", "b.c", "a.b.c"], ["c.d", "cc", "c."]),
        ("a.#.c", ["a.c", "a.b.c", "a.b.b.c"], ["a", "c", "a.b", "ac"]),
        ("#.b.#", ["b", "a.b", "b.c", "a.b.c", "a.a.b.c.c"], ["a", "a.c", "bb"]),
        ("#.#", ["", "a", "a.b"], []),
        ("*.#", ["a", "a.b", "a.b.c", "."], [""]),
        ("#.*", ["a", "a.b", "a.b.c", "."], [""]),
        ("#.*.#.c", ["a.c", "a.b.c"], ["c", "a"]),
        ("a.*.#", ["a.b", "a.b.c"], ["a", "b.a"]),
        ("a#", ["a#"], ["a", "ab", "a.b"]),
        ("*a", ["*a"], ["ba", "a"]),
        ("", [""], ["a"]),
        ("größe.*", ["größe.☂"], ["grosse.a"]),
    ],
)
def test_topic_pattern(
    ch: BlockingChannel, name: Name, pattern: str, matching: list[str], other: list[str]
) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "topic")
    queue = bound_queue(ch, name, exchange, pattern)
    for key in matching + other:
        publish(ch, key, key.encode(), exchange=exchange)
    assert drain(ch, queue) == [key.encode() for key in matching]


def test_topic_patterns_of_several_queues_do_not_mix(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "topic")
    patterns = ["#", "a.*", "*.b", "a.b", "a.#.b", "b.#", "c"]
    queues = {pattern: bound_queue(ch, name, exchange, pattern) for pattern in patterns}
    publish(ch, "a.b", b"m", exchange=exchange)
    got = {pattern for pattern, queue in queues.items() if drain(ch, queue)}
    assert got == {"#", "a.*", "*.b", "a.b", "a.#.b"}


def test_topic_unbind_of_one_pattern_leaves_the_others(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "topic")
    queue = bound_queue(ch, name, exchange, "a.*", "a.b", "b.#")
    ch.queue_unbind(queue, exchange, "a.*")
    for key in ("a.b", "a.c", "b.x.y"):
        publish(ch, key, key.encode(), exchange=exchange)
    assert drain(ch, queue) == [b"a.b", b"b.x.y"]


# --- headers ---

ALL: dict[str, Any] = {"x-match": "all", "a": "1", "b": "2"}
ANY: dict[str, Any] = {"x-match": "any", "a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("binding", "headers", "matches"),
    [
        (ALL, {"a": "1", "b": "2"}, True),
        (ALL, {"a": "1", "b": "2", "c": "3"}, True),
        (ALL, {"a": "1"}, False),
        (ALL, {"a": "1", "b": "x"}, False),
        (ALL, {}, False),
        (ALL, None, False),
        ({"a": "1", "b": "2"}, {"a": "1", "b": "2"}, True),
        ({"a": "1", "b": "2"}, {"a": "1"}, False),
        (ANY, {"a": "1"}, True),
        (ANY, {"b": "2", "z": 1}, True),
        (ANY, {"a": "2", "b": "1"}, False),
        (ANY, {}, False),
        ({"x-match": "all"}, {}, True),
        ({"x-match": "all"}, {"a": 1}, True),
        ({}, {"a": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "any"}, {}, False),
        ({"x-match": "all", "a": None}, {"a": "anything"}, True),
        ({"x-match": "all", "a": None}, {"a": 17}, True),
        ({"x-match": "all", "a": None}, {"b": 1}, False),
        ({"x-match": "any", "a": None, "b": 2}, {"a": 5}, True),
        ({"x-match": "all", "a": 1}, {"a": "1"}, False),
        ({"x-match": "all", "a": 1}, {"a": 1}, True),
        ({"x-match": "all", "a": 1}, {"a": long(1)}, True),
        ({"x-match": "all", "a": "1"}, {"a": b"1"}, True),
        ({"x-match": "all", "a": 1}, {"a": True}, False),
        ({"x-match": "all", "a": True}, {"a": True}, True),
        ({"x-match": "all", "a": True}, {"a": False}, False),
        ({"x-match": "all", "a": [1, "b"]}, {"a": [1, "b"]}, True),
        ({"x-match": "all", "a": [1, "b"]}, {"a": [1, "c"]}, False),
        ({"x-match": "all", "a": {"n": 1}}, {"a": {"n": 1}}, True),
        ({"x-match": "all", "a": ""}, {"a": ""}, True),
        ({"x-match": "all", "x-a": "1", "b": "2"}, {"b": "2"}, True),
        ({"x-match": "any", "x-a": "1", "b": "2"}, {"x-a": "1"}, False),
        ({"x-match": "all-with-x", "x-a": "1", "b": "2"}, {"b": "2"}, False),
        ({"x-match": "all-with-x", "x-a": "1", "b": "2"}, {"b": "2", "x-a": "1"}, True),
        ({"x-match": "any-with-x", "x-a": "1", "b": "2"}, {"x-a": "1"}, True),
        ({"x-match": "any-with-x", "x-a": "1", "b": "2"}, {"x-a": "2"}, False),
        ({"x-match": "any-with-x", "x-a": None}, {"x-a": 3}, True),
    ],
)
def test_headers_match(
    ch: BlockingChannel, name: Name, binding: dict[str, Any], headers: dict[str, Any] | None, matches: bool
) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "headers")
    queue = bound_queue(ch, name, exchange, arguments=binding)
    publish(ch, "ignored", b"m", exchange=exchange, headers=headers)
    assert bool(drain(ch, queue)) is matches


def test_headers_match_of_the_wrong_type(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    with expect_channel_close(
        406,
        r"PRECONDITION_FAILED - Invalid x-match field type signedint \(value 23\); expected longstr",
    ):
        ch.queue_bind(queue, "amq.headers", "", arguments={"x-match": 23})


def test_headers_match_of_an_unknown_value(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    with expect_channel_close(
        406,
        r"PRECONDITION_FAILED - Invalid x-match field value <<\"some\">>; "
        r"expected all, any, all-with-x, or any-with-x",
    ):
        ch.queue_bind(queue, "amq.headers", "", arguments={"x-match": "some"})


def test_headers_bindings_of_one_queue_give_one_copy(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "headers")
    queue = bound_queue(ch, name, exchange, arguments={"a": 1})
    ch.queue_bind(queue, exchange, "", arguments={"b": 1})
    publish(ch, "", b"once", exchange=exchange, headers={"a": 1, "b": 1})
    assert drain(ch, queue) == [b"once"]


def test_headers_unbind_takes_the_binding_with_the_same_arguments(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "headers")
    queue = bound_queue(ch, name, exchange, arguments={"a": 1})
    ch.queue_bind(queue, exchange, "", arguments={"b": 1})
    ch.queue_unbind(queue, exchange, "", arguments={"a": 1})
    publish(ch, "", b"a", exchange=exchange, headers={"a": 1})
    publish(ch, "", b"b", exchange=exchange, headers={"b": 1})
    assert drain(ch, queue) == [b"b"]


# --- x-consistent-hash ---


@needs_exchange_type("x-consistent-hash")
def test_consistent_hash_gives_each_message_to_one_queue_in_proportion(
    ch: BlockingChannel, name: Name
) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "x-consistent-hash")
    light, heavy = (bound_queue(ch, name, exchange, weight) for weight in ("10", "30"))
    for number in range(2000):
        ch.basic_publish(exchange, f"key-{number}", b"")
    counts = len(drain(ch, light)), len(drain(ch, heavy))
    assert sum(counts) == 2000
    assert 1.5 < counts[1] / counts[0] < 6, counts


@needs_exchange_type("x-consistent-hash")
def test_consistent_hash_keeps_a_routing_key_on_its_queue(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "x-consistent-hash")
    queues = [bound_queue(ch, name, exchange, "1") for _ in range(3)]
    for _ in range(5):
        for key in range(20):
            ch.basic_publish(exchange, str(key), str(key).encode())
    for queue in queues:
        assert set(Counter(drain(ch, queue)).values()) <= {5}


@needs_exchange_type("x-consistent-hash")
def test_consistent_hash_survives_the_loss_of_a_queue(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "x-consistent-hash")
    queues = [bound_queue(ch, name, exchange, "10") for _ in range(3)]
    before = {}
    for number in range(90):
        ch.basic_publish(exchange, str(number), b"%d" % number)
    for queue in queues:
        before.update(dict.fromkeys(drain(ch, queue), queue))
    lost = queues.pop()
    ch.queue_delete(lost)
    for number in range(90):
        ch.basic_publish(exchange, str(number), b"%d" % number)
    after = {body: queue for queue in queues for body in drain(ch, queue)}
    assert len(after) == 90
    stayed = sum(after[body] == queue for body, queue in before.items() if queue != lost)
    assert stayed >= 0.7 * sum(queue != lost for queue in before.values())


@needs_exchange_type("x-consistent-hash")
def test_consistent_hash_on_a_header(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "x-consistent-hash", arguments={"hash-header": "group"})
    queues = [bound_queue(ch, name, exchange, "1") for _ in range(4)]
    for number in range(60):
        publish(ch, str(number), b"same", exchange=exchange, headers={"group": "one"})
    assert sorted(len(drain(ch, queue)) for queue in queues) == [0, 0, 0, 60]
    for number in range(200):
        publish(ch, "same", b"differ", exchange=exchange, headers={"group": str(number)})
    assert all(drain(ch, queue) for queue in queues)


@pytest.mark.parametrize("field", ["message_id", "correlation_id", "timestamp"])
@needs_exchange_type("x-consistent-hash")
def test_consistent_hash_on_a_property(ch: BlockingChannel, name: Name, field: str) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "x-consistent-hash", arguments={"hash-property": field})
    queues = [bound_queue(ch, name, exchange, "1") for _ in range(4)]
    value: Callable[[int], Any] = (lambda number: number) if field == "timestamp" else str
    for number in range(60):
        publish(ch, str(number), b"same", exchange=exchange, **dict[str, Any]({field: value(7)}))
    assert sorted(len(drain(ch, queue)) for queue in queues) == [0, 0, 0, 60]
    for number in range(200):
        publish(ch, "same", b"differ", exchange=exchange, **dict[str, Any]({field: value(number)}))
    assert all(drain(ch, queue) for queue in queues)


@needs_exchange_type("x-consistent-hash")
def test_consistent_hash_on_header_and_property_at_once_is_refused(ch: BlockingChannel, name: Name) -> None:
    with expect_channel_close(
        406, "PRECONDITION_FAILED - hash-header and hash-property are mutually exclusive"
    ):
        ch.exchange_declare(
            name("x"), "x-consistent-hash", arguments={"hash-header": "a", "hash-property": "message_id"}
        )


@needs_exchange_type("x-consistent-hash")
def test_consistent_hash_on_an_unsupported_property_is_refused(ch: BlockingChannel, name: Name) -> None:
    with expect_channel_close(406, "PRECONDITION_FAILED - Unsupported property"):
        ch.exchange_declare(name("x"), "x-consistent-hash", arguments={"hash-property": "app_id"})


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        ("heavy", 'The binding key must be an integer: <<"heavy">>'),
        ("1.5", 'The binding key must be an integer: <<"1.5">>'),
        ("", "The binding key must be an integer: <<>>"),
        ("-1", "The binding key must be greater than 0"),
        ("0", "The binding key must be greater than 0"),
    ],
)
@needs_exchange_type("x-consistent-hash")
def test_consistent_hash_weight_must_be_a_number(
    ch: BlockingChannel, name: Name, weight: str, text: str
) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "x-consistent-hash")
    queue = name("q")
    ch.queue_declare(queue)
    with expect_channel_close(406, f"PRECONDITION_FAILED - {text}"):
        ch.queue_bind(queue, exchange, weight)


@needs_exchange_type("x-consistent-hash")
def test_consistent_hash_without_queues_drops(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "x-consistent-hash")
    ch.basic_publish(exchange, "1", b"nowhere")
    sync(ch)


# --- x-modulus-hash, x-random ---


@needs_exchange_type("x-modulus-hash")
def test_modulus_hash_gives_each_key_to_one_queue(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "x-modulus-hash")
    queues = [bound_queue(ch, name, exchange, "") for _ in range(3)]
    for _ in range(3):
        for key in range(60):
            ch.basic_publish(exchange, str(key), str(key).encode())
    seen: Counter[bytes] = Counter()
    for queue in queues:
        got = Counter(drain(ch, queue))
        assert got, "a queue got no key at all"
        assert set(got.values()) == {3}
        assert not seen.keys() & got.keys()
        seen += got
    assert len(seen) == 60


@needs_exchange_type("x-random")
def test_random_gives_each_message_to_one_queue(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "x-random")
    queues = [bound_queue(ch, name, exchange, "") for _ in range(3)]
    for number in range(150):
        ch.basic_publish(exchange, "same key", b"%d" % number)
    got = [drain(ch, queue) for queue in queues]
    assert sorted(int(body) for bodies in got for body in bodies) == list(range(150))
    assert all(got), "150 messages and a queue that got none"


# --- exchange to exchange ---


def test_exchange_binding_routes_on_the_sources_key(ch: BlockingChannel, name: Name) -> None:
    source, destination = name("x"), name("x")
    ch.exchange_declare(source, "topic")
    ch.exchange_declare(destination, "fanout")
    queue = bound_queue(ch, name, destination)
    ch.exchange_bind(destination, source, "a.*")
    for key in ("a.b", "b.a"):
        publish(ch, key, key.encode(), exchange=source)
    delivery = get(ch, queue)
    assert delivery is not None
    assert (delivery.body, delivery.exchange, delivery.routing_key) == (b"a.b", source, "a.b")
    assert get(ch, queue) is None


def test_exchange_unbind_stops_it(ch: BlockingChannel, name: Name) -> None:
    source, destination = name("x"), name("x")
    ch.exchange_declare(source, "direct")
    ch.exchange_declare(destination, "fanout")
    queue = bound_queue(ch, name, destination)
    for key in ("a", "b"):
        ch.exchange_bind(destination, source, key)
    ch.exchange_unbind(destination, source, "a")
    for key in ("a", "b"):
        publish(ch, key, key.encode(), exchange=source)
    assert drain(ch, queue) == [b"b"]


def test_exchange_unbind_of_a_missing_binding_is_no_error(ch: BlockingChannel, name: Name) -> None:
    source, destination = name("x"), name("x")
    ch.exchange_declare(source, "direct")
    ch.exchange_declare(destination, "direct")
    ch.exchange_unbind(destination, source, "never")


@pytest.mark.parametrize("missing", ["source", "destination"])
def test_exchange_bind_of_a_missing_exchange(ch: BlockingChannel, name: Name, missing: str) -> None:
    exchange, gone = name("x"), name("x")
    ch.exchange_declare(exchange, "direct")
    ends = {"source": exchange, "destination": exchange, missing: gone}
    with expect_channel_close(404, f"NOT_FOUND - no exchange '{gone}' in vhost '/'"):
        ch.exchange_bind(ends["destination"], ends["source"], "k")


@pytest.mark.parametrize("missing", ["source", "destination"])
def test_exchange_unbind_of_a_missing_exchange_is_no_error(
    ch: BlockingChannel, name: Name, missing: str
) -> None:
    exchange, gone = name("x"), name("x")
    ch.exchange_declare(exchange, "direct")
    ends = {"source": exchange, "destination": exchange, missing: gone}
    ch.exchange_unbind(ends["destination"], ends["source"], "k")


def test_two_ways_to_a_queue_give_one_copy(ch: BlockingChannel, name: Name) -> None:
    source, left, right = name("x"), name("x"), name("x")
    for exchange in (source, left, right):
        ch.exchange_declare(exchange, "fanout")
    queue = bound_queue(ch, name, left)
    ch.queue_bind(queue, right)
    ch.queue_bind(queue, source)
    ch.exchange_bind(left, source)
    ch.exchange_bind(right, source)
    publish(ch, "", b"once", exchange=source)
    assert drain(ch, queue) == [b"once"]


def test_a_cycle_of_exchanges_ends(ch: BlockingChannel, name: Name) -> None:
    first, second = name("x"), name("x")
    for exchange in (first, second):
        ch.exchange_declare(exchange, "fanout")
    queue = bound_queue(ch, name, second)
    ch.exchange_bind(second, first)
    ch.exchange_bind(first, second)
    ch.exchange_bind(first, first)
    publish(ch, "", b"once", exchange=first)
    assert drain(ch, queue) == [b"once"]


def test_deleting_the_destination_ends_its_bindings(ch: BlockingChannel, name: Name) -> None:
    source, destination = name("x"), name("x")
    ch.exchange_declare(source, "fanout")
    ch.exchange_declare(destination, "fanout")
    ch.exchange_bind(destination, source)
    ch.exchange_delete(destination)
    ch.exchange_declare(destination, "fanout")
    queue = bound_queue(ch, name, destination)
    publish(ch, "", b"lost", exchange=source)
    assert drain(ch, queue) == []


# --- alternate exchange ---


def with_alternate(ch: BlockingChannel, name: Name, alternate: str, kind: str = "direct") -> str:
    exchange = name("x")
    ch.exchange_declare(exchange, kind, arguments={"alternate-exchange": alternate})
    return exchange


def test_alternate_exchange_gets_only_what_is_not_routed(ch: BlockingChannel, name: Name) -> None:
    alternate = name("x")
    ch.exchange_declare(alternate, "fanout")
    exchange = with_alternate(ch, name, alternate)
    queue, fallback = bound_queue(ch, name, exchange, "key"), bound_queue(ch, name, alternate)
    publish(ch, "key", b"routed", exchange=exchange)
    publish(ch, "none", b"not routed", exchange=exchange)
    assert drain(ch, queue) == [b"routed"]
    delivery = get(ch, fallback)
    assert delivery is not None
    assert (delivery.body, delivery.exchange, delivery.routing_key) == (b"not routed", exchange, "none")
    assert get(ch, fallback) is None


def test_alternate_exchanges_chain(ch: BlockingChannel, name: Name) -> None:
    last = name("x")
    ch.exchange_declare(last, "fanout")
    middle = with_alternate(ch, name, last)
    first = with_alternate(ch, name, middle)
    queue = bound_queue(ch, name, last)
    publish(ch, "none", b"m", exchange=first)
    assert drain(ch, queue) == [b"m"]


def test_a_cycle_of_alternate_exchanges_ends(ch: BlockingChannel, name: Name) -> None:
    second = name("x")
    first = with_alternate(ch, name, second)
    ch.exchange_declare(second, "direct", arguments={"alternate-exchange": first})
    returned: list[bytes] = []
    ch.add_on_return_callback(lambda _ch, _method, _properties, body: returned.append(body))
    publish(ch, "none", b"m", exchange=first, mandatory=True)
    sync(ch)
    ch.connection.process_data_events(0.1)
    assert returned == [b"m"]


def test_a_missing_alternate_exchange_drops(ch: BlockingChannel, name: Name) -> None:
    exchange = with_alternate(ch, name, name("never-declared"))
    publish(ch, "none", b"m", exchange=exchange)
    sync(ch)


def test_an_alternate_exchange_may_be_declared_later(ch: BlockingChannel, name: Name) -> None:
    alternate = name("x")
    exchange = with_alternate(ch, name, alternate)
    publish(ch, "none", b"too early", exchange=exchange)
    ch.exchange_declare(alternate, "fanout")
    queue = bound_queue(ch, name, alternate)
    publish(ch, "none", b"m", exchange=exchange)
    assert drain(ch, queue) == [b"m"]


def test_a_message_that_the_alternate_exchange_routes_is_not_returned(
    ch: BlockingChannel, name: Name
) -> None:
    alternate = name("x")
    ch.exchange_declare(alternate, "fanout")
    exchange = with_alternate(ch, name, alternate)
    queue = bound_queue(ch, name, alternate)
    ch.confirm_delivery()
    publish(ch, "none", b"m", exchange=exchange, mandatory=True)
    assert drain(ch, queue) == [b"m"]


def test_the_alternate_of_a_bound_exchange_is_used(ch: BlockingChannel, name: Name) -> None:
    source, alternate = name("x"), name("x")
    ch.exchange_declare(source, "fanout")
    ch.exchange_declare(alternate, "fanout")
    inner = with_alternate(ch, name, alternate)
    ch.exchange_bind(inner, source)
    queue = bound_queue(ch, name, alternate)
    publish(ch, "none", b"m", exchange=source)
    assert drain(ch, queue) == [b"m"]


# --- CC, BCC ---


def test_cc_and_bcc_route_too_and_bcc_is_removed(ch: BlockingChannel, name: Name) -> None:
    queues = [name("q") for _ in range(5)]
    for queue in queues:
        ch.queue_declare(queue)
    publish(
        ch, queues[0], b"m", headers={"CC": [queues[1], queues[2]], "BCC": [queues[3], queues[4]], "other": 1}
    )
    for queue in queues:
        delivery = get(ch, queue)
        assert delivery is not None, queue
        assert delivery.headers == {"CC": [queues[1], queues[2]], "other": 1}
        assert delivery.routing_key == queues[0]


def test_cc_of_the_same_queue_gives_one_copy(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    publish(ch, queue, b"m", headers={"CC": [queue], "BCC": [queue, queue]})
    assert drain(ch, queue) == [b"m"]


def test_cc_routes_through_a_topic_exchange(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "topic")
    queue = bound_queue(ch, name, exchange, "b.*")
    publish(ch, "a.a", b"m", exchange=exchange, headers={"CC": ["b.b"]})
    assert drain(ch, queue) == [b"m"]


@pytest.mark.parametrize(
    "copies", [{"CC": ["second"]}, {"BCC": ["second"]}, {"CC": ["x"], "BCC": ["second"]}]
)
@pytest.mark.parametrize(
    ("first_type", "second_type"), [("direct", "direct"), ("topic", "direct"), ("direct", "topic")]
)
def test_each_exchange_on_the_way_sees_all_keys(
    ch: BlockingChannel, name: Name, copies: dict[str, Any], first_type: str, second_type: str
) -> None:
    """One key leads to the next exchange, another key leads on from there."""
    first, second = name("x"), name("x")
    ch.exchange_declare(first, first_type)
    ch.exchange_declare(second, second_type)
    ch.exchange_bind(second, first, "first")
    queue = bound_queue(ch, name, second, "second")
    publish(ch, "first", b"m", exchange=first, headers=copies)
    publish(ch, "first", b"n", exchange=first)
    assert drain(ch, queue) == [b"m"]


@pytest.mark.parametrize("turned", [False, True])
def test_any_key_leads_to_the_next_exchange(ch: BlockingChannel, name: Name, turned: bool) -> None:
    first, second = name("x"), name("x")
    ch.exchange_declare(first, "direct")
    ch.exchange_declare(second, "topic")
    keys = ("on", "there") if not turned else ("there", "on")
    ch.exchange_bind(second, first, "on")
    queue = bound_queue(ch, name, second, "there")
    publish(ch, keys[0], b"m", exchange=first, headers={"BCC": [keys[1]]})
    assert drain(ch, queue) == [b"m"]


def test_keys_are_matched_together_before_the_alternate(ch: BlockingChannel, name: Name) -> None:
    """The alternate gets a message if none of its keys matches, and sees all keys, too."""
    alternate, exchange = name("x"), name("x")
    ch.exchange_declare(alternate, "direct")
    ch.exchange_declare(exchange, "direct", arguments={"alternate-exchange": alternate})
    found = bound_queue(ch, name, exchange, "known")
    left = bound_queue(ch, name, alternate, "left", "unknown")
    publish(ch, "unknown", b"1", exchange=exchange, headers={"CC": ["known"]})
    publish(ch, "known", b"2", exchange=exchange, headers={"CC": ["left"]})
    publish(ch, "nowhere", b"3", exchange=exchange, headers={"CC": ["left"]})
    assert drain(ch, found) == [b"1", b"2"]
    assert drain(ch, left) == [b"3"]


def test_keys_are_matched_together_three_exchanges_on(ch: BlockingChannel, name: Name) -> None:
    exchanges = [name("x") for _ in range(4)]
    for exchange in exchanges:
        ch.exchange_declare(exchange, "direct")
    for number in range(3):
        ch.exchange_bind(exchanges[number + 1], exchanges[number], f"k{number}")
    queue = bound_queue(ch, name, exchanges[3], "k3")
    publish(ch, "k2", b"m", exchange=exchanges[0], headers={"CC": ["k0", "k3"], "BCC": ["k1"]})
    publish(ch, "k2", b"n", exchange=exchanges[0], headers={"CC": ["k0", "k3"]})
    assert drain(ch, queue) == [b"m"]


def test_keys_through_headers_and_fanout_exchanges(ch: BlockingChannel, name: Name) -> None:
    by_headers, all_of_them, last = name("x"), name("x"), name("x")
    ch.exchange_declare(by_headers, "headers")
    ch.exchange_declare(all_of_them, "fanout")
    ch.exchange_declare(last, "direct")
    ch.exchange_bind(all_of_them, by_headers, "", arguments={"h": 1})
    ch.exchange_bind(last, all_of_them)
    queues = [bound_queue(ch, name, last, key) for key in ("a", "b", "c")]
    publish(ch, "a", b"m", exchange=by_headers, headers={"h": 1, "CC": ["b"]})
    assert [drain(ch, queue) for queue in queues] == [[b"m"], [b"m"], []]


@pytest.mark.parametrize("kind", ["x-random", "x-modulus-hash", "x-consistent-hash"])
def test_an_exchange_that_picks_one_picks_one_for_all_keys(
    ch: BlockingChannel, name: Name, kind: str
) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, kind)
    queues = [bound_queue(ch, name, exchange, "1") for _ in range(8)]
    for _ in range(10):
        publish(ch, "a", b"m", exchange=exchange, headers={"CC": ["b", "c", "d", "e"]})
    assert sum(len(drain(ch, queue)) for queue in queues) == 10


@pytest.mark.parametrize("header", ["CC", "BCC"])
@pytest.mark.parametrize(
    ("value", "kind"), [(1, "signedint"), ("a string", "longstr"), ({"a": "b"}, "table"), (True, "bool")]
)
def test_cc_must_be_an_array(ch: BlockingChannel, name: Name, header: str, value: Any, kind: str) -> None:
    with expect_channel_close(
        406, f'PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,"{header}",{kind}}}'
    ):
        publish(ch, name("q"), b"m", headers={header: value})
        sync(ch)


def test_an_empty_cc_is_accepted(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    publish(ch, queue, b"m", headers={"CC": [], "BCC": []})
    assert drain(ch, queue) == [b"m"]


# --- binding life ---


def test_unbind_with_other_arguments_leaves_the_binding(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "direct")
    queue = bound_queue(ch, name, exchange, "k", arguments={"a": 1})
    ch.queue_unbind(queue, exchange, "k", arguments={"a": 2})
    ch.queue_unbind(queue, exchange, "k")
    publish(ch, "k", b"m", exchange=exchange)
    assert drain(ch, queue) == [b"m"]


def test_bind_after_publish_does_not_bring_the_message_back(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "fanout")
    publish(ch, "", b"early", exchange=exchange)
    queue = bound_queue(ch, name, exchange)
    assert drain(ch, queue) == []


def test_a_binding_holds_at_once_for_other_channels(ch: BlockingChannel, name: Name) -> None:
    other = ch.connection.channel()
    queue = name("q")
    ch.queue_declare(queue)
    ch.queue_bind(queue, "amq.direct", queue)
    publish(other, queue, b"1", exchange="amq.direct")
    sync(other)
    ch.queue_unbind(queue, "amq.direct", queue)
    publish(other, queue, b"2", exchange="amq.direct")
    sync(other)
    assert drain(ch, queue) == [b"1"]


def test_a_channel_that_cached_a_route_sees_the_queue_deleted_and_redeclared(
    connect: Connect, ch: BlockingChannel, name: Name
) -> None:
    publisher = connect().channel()
    queue = name("q")
    for body in (b"1", b"2"):
        ch.queue_declare(queue)
        publish(publisher, queue, body)
        sync(publisher)
        assert drain(ch, queue) == [body]
        ch.queue_delete(queue)
        publish(publisher, queue, b"lost")
        sync(publisher)


# --- x-local-random ---


@needs_exchange_type("x-local-random")
def test_a_local_random_exchange_takes_one_queue_whatever_the_key(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "x-local-random")
    queues = [bound_queue(ch, name, exchange) for _ in range(2)]
    for number in range(60):
        ch.basic_publish(exchange, f"key-{number}", b"")
    counts = [len(drain(ch, queue)) for queue in queues]
    assert sum(counts) == 60 and all(counts), counts
    ch.queue_delete(queues[0])
    ch.basic_publish(exchange, "", b"")
    assert get(ch, queues[1]) is not None


@needs_exchange_type("x-local-random")
@pytest.mark.parametrize(
    ("kind", "key", "why"),
    [
        ("classic", "k", "Non empty binding 'k' key not permitted"),
        ("quorum", "", "quorum(_queue)? not valid for this exchange type"),
        ("stream", "", "stream(_queue)? not valid for this exchange type"),
        ("", "", "Destination not found"),
    ],
)
def test_what_is_not_bound_to_a_local_random_exchange(
    ch: BlockingChannel, name: Name, kind: str, key: str, why: str
) -> None:
    exchange, other = name("x"), name("other")
    ch.exchange_declare(exchange, "x-local-random")
    if kind:
        ch.queue_declare(other, durable=True, arguments={"x-queue-type": kind})
    else:
        ch.exchange_declare(other, "fanout")
    with expect_channel_close(406, why):
        if kind:
            ch.queue_bind(other, exchange, key)
        else:
            ch.exchange_bind(other, exchange, key)


@needs_exchange_type("x-local-random")
def test_a_local_random_exchange_without_a_local_queue_returns_messages(
    ch: BlockingChannel, name: Name
) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "x-local-random")
    ch.confirm_delivery()
    with pytest.raises(UnroutableError):
        ch.basic_publish(exchange, "", b"", mandatory=True)
