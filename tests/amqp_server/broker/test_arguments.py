from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_server.broker.declared.argument_table import CHECK_ORDER, CHECKED_FIRST, REFUSED, ROWS
from amqp_server.broker.declared.arguments import (
    Declaration,
    QueueArguments,
    equivalence_error,
    parse_queue_arguments,
)
from amqp_server.broker.declared.policy import EXCHANGE_KEYS, KEYS
from amqp_server.broker.declared.queue_types import QUEUE_TYPES
from amqp_server.broker.declared.settings import effective_settings
from amqp_server.errors import PreconditionFailed
from amqp_server.management.definitions.for_rabbitmq import OWN_POLICY_KEYS

Table = dict[str, object]
STREAM: Table = {"x-queue-type": "stream"}
QUORUM: Table = {"x-queue-type": "quorum"}


def parse(
    arguments: Table,
    *,
    durable: bool = True,
    exclusive: bool = False,
    auto_delete: bool = False,
    types: dict[str, str] | None = None,
) -> QueueArguments:
    return parse_queue_arguments(
        "q",
        "/",
        arguments,
        durable=durable,
        exclusive=exclusive,
        auto_delete=auto_delete,
        types=types or {},
    )


def refusal(
    arguments: Table,
    *,
    durable: bool = True,
    exclusive: bool = False,
    auto_delete: bool = False,
    types: dict[str, str] | None = None,
) -> str:
    with pytest.raises(PreconditionFailed) as refused:
        parse(arguments, durable=durable, exclusive=exclusive, auto_delete=auto_delete, types=types)
    return refused.value.text


def test_a_queue_without_arguments_has_the_defaults() -> None:
    assert parse({}) == QueueArguments()
    assert parse({}, durable=False, exclusive=True, auto_delete=True) == QueueArguments()


def test_all_of_a_classic_queue() -> None:
    parsed = parse(
        {
            "x-expires": 9,
            "x-message-ttl": 0,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "k",
            "x-max-length": 0,
            "x-max-length-bytes": 2**62,
            "x-max-priority": 255,
            "x-overflow": "reject-publish-dlx",
            "x-queue-mode": "lazy",
            "x-queue-version": 2,
            "x-single-active-consumer": True,
            "x-queue-type": "classic",
        }
    )
    assert parsed == QueueArguments(
        queue_type="classic",
        expires_ms=9,
        message_ttl_ms=0,
        dead_letter_exchange="",
        dead_letter_routing_key="k",
        max_length=0,
        max_length_bytes=2**62,
        max_priority=255,
        overflow="reject-publish-dlx",
        queue_mode="lazy",
        queue_version=2,
        single_active_consumer=True,
    )


def test_all_of_a_quorum_queue() -> None:
    parsed = parse(
        {
            "x-queue-type": "quorum",
            "x-expires": 315_360_000_000,
            "x-message-ttl": 315_360_000_000,
            "x-dead-letter-exchange": "dlx",
            "x-dead-letter-routing-key": "k",
            "x-dead-letter-strategy": "at-least-once",
            "x-max-length": 1,
            "x-max-length-bytes": 2,
            "x-max-in-memory-length": 3,
            "x-max-in-memory-bytes": 4,
            "x-overflow": "reject-publish",
            "x-single-active-consumer": False,
            "x-quorum-initial-group-size": 3,
            "x-queue-leader-locator": "client-local",
            "x-delivery-limit": -1,
        }
    )
    assert parsed == QueueArguments(
        queue_type="quorum",
        expires_ms=315_360_000_000,
        message_ttl_ms=315_360_000_000,
        dead_letter_exchange="dlx",
        dead_letter_routing_key="k",
        dead_letter_strategy="at-least-once",
        max_length=1,
        max_length_bytes=2,
        max_in_memory_length=3,
        max_in_memory_bytes=4,
        overflow="reject-publish",
        initial_group_size=3,
        leader_locator="client-local",
        delivery_limit=-1,
    )


@pytest.mark.parametrize("extra", [{}, QUORUM])
def test_what_nobody_knows_is_accepted(extra: Table) -> None:
    arguments: Table = {**extra, "x-foo": "bar", "foo": [1]}
    assert parse(arguments) == parse(extra)


@pytest.mark.parametrize("extra", [{}, QUORUM])
def test_a_stored_queue_may_be_older_than_an_argument(extra: Table) -> None:
    arguments: Table = {
        **extra, "x-consumer-timeout": "1h", "x-delayed-retry-type": 5, "x-delayed-retry-min": -1,
        "x-delayed-retry-max": "x", "x-delayed-retry-backoff": "",
    }  # fmt: skip
    flags: dict[str, Any] = {"durable": True, "exclusive": False, "auto_delete": False}
    stored = parse_queue_arguments("q", "/", arguments, **flags, stored=True)
    assert stored == parse_queue_arguments("q", "/", extra, **flags)
    for name, value in arguments.items():
        if name not in extra:
            with pytest.raises(PreconditionFailed, match=name):
                parse_queue_arguments("q", "/", {**extra, name: value}, **flags)


def test_the_longest_wait_is_not_shorter_than_the_first() -> None:
    with pytest.raises(PreconditionFailed, match="x-delayed-retry-max"):
        parse({"x-delayed-retry-min": 10, "x-delayed-retry-max": 9})


# Recorded from RabbitMQ 3.10.8. The argument at fault comes first.
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x-expires": 0}, "{value_zero,0}"),
        ({"x-expires": -1}, "{value_negative,-1}"),
        ({"x-expires": 315_360_000_001}, "{value_too_large,315360000001}"),
        ({"x-expires": "abc"}, '"expected integer, got longstr"'),
        ({"x-expires": True}, '"expected integer, got bool"'),
        ({"x-expires": None}, '"expected integer, got void"'),
        ({"x-expires": 1.5}, '"expected integer, got double"'),
        ({"x-expires": []}, '"expected integer, got array"'),
        ({"x-expires": {}}, '"expected integer, got table"'),
        ({"x-expires": datetime.fromtimestamp(7, UTC)}, '"expected integer, got timestamp"'),
        ({"x-expires": b"ab"}, '"expected integer, got binary"'),
        ({"x-expires": Decimal(1)}, '"expected integer, got decimal"'),
        ({"x-message-ttl": -1}, "{value_negative,-1}"),
        ({"x-message-ttl": 315_360_000_001}, "{value_too_large,315360000001}"),
        ({"x-message-ttl": "abc"}, '"expected integer, got longstr"'),
        ({"x-max-length": -1}, "{value_negative,-1}"),
        ({"x-max-length": "abc"}, '"expected integer, got longstr"'),
        ({"x-max-length-bytes": -1}, "{value_negative,-1}"),
        ({"x-max-length-bytes": False}, '"expected integer, got bool"'),
        ({"x-max-priority": -1}, "{value_negative,-1}"),
        ({"x-max-priority": 256}, "{max_value_exceeded,256}"),
        ({"x-max-priority": 2**40}, "{max_value_exceeded,1099511627776}"),
        ({"x-max-priority": "abc"}, '"expected integer, got longstr"'),
        ({"x-dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
        ({"x-dead-letter-routing-key": 5}, "{unacceptable_type,signedint}"),
        ({"x-dead-letter-routing-key": 3, "x-dead-letter-exchange": "a"}, "{unacceptable_type,signedint}"),
        ({"x-overflow": 5}, "{unacceptable_type,signedint}"),
        ({"x-overflow": 2**40}, "{unacceptable_type,long}"),
        ({"x-overflow": "abc"}, "invalid_overflow"),
        ({"x-overflow": ""}, "invalid_overflow"),
        ({"x-queue-mode": True}, "{unacceptable_type,bool}"),
        ({"x-queue-mode": "abc"}, "\"unsupported queue mode 'abc'\""),
        ({"x-queue-mode": "a{}b"}, "\"unsupported queue mode 'a{}b'\""),
        ({"x-queue-version": 3}, "\"unsupported queue version '3'\""),
        ({"x-queue-version": 0}, "\"unsupported queue version '0'\""),
        ({"x-queue-version": -1}, "{value_negative,-1}"),
        ({"x-queue-version": "1"}, '"expected integer, got longstr"'),
        ({"x-single-active-consumer": "true"}, "{unacceptable_type,longstr}"),
        ({"x-single-active-consumer": 1}, "{unacceptable_type,signedint}"),
        ({"x-queue-type": 5}, "{unacceptable_type,signedint}"),
        ({"x-queue-type": "abc"}, "\"unsupported queue type 'abc'\""),
        ({"x-queue-type": ""}, "\"unsupported queue type ''\""),
        ({"x-dead-letter-strategy": "abc", **QUORUM}, "invalid_dlx_strategy"),
        ({"x-dead-letter-strategy": 5, **QUORUM}, "{unacceptable_type,signedint}"),
        ({"x-max-in-memory-length": -1, **QUORUM}, "{value_negative,-1}"),
        ({"x-max-in-memory-bytes": "abc", **QUORUM}, '"expected integer, got longstr"'),
        ({"x-quorum-initial-group-size": 0, **QUORUM}, "{value_zero,0}"),
        ({"x-quorum-initial-group-size": "a", **QUORUM}, '"expected integer, got longstr"'),
        ({"x-queue-leader-locator": "abc", **QUORUM}, "invalid_queue_locator_arg"),
        ({"x-queue-leader-locator": 5, **QUORUM}, "{unacceptable_type,signedint}"),
        ({"x-max-age": 5, **STREAM}, "{unacceptable_type,signedint}"),
        ({"x-max-age": "0D", **STREAM}, "invalid_max_age"),
        ({"x-max-age": "", **STREAM}, "invalid_max_age"),
        ({"x-max-age": "-5s", **STREAM}, "invalid_max_age"),
        ({"x-max-age": "5d", **STREAM}, "invalid_max_age"),
        ({"x-max-age": "9" * 13 + "s", **STREAM}, "invalid_max_age"),
        ({"x-max-length-bytes": 0, **STREAM}, "{value_zero,0}"),
        ({"x-max-length-bytes": -1, **STREAM}, "{value_negative,-1}"),
        ({"x-stream-max-segment-size-bytes": 0, **STREAM}, "{value_zero,0}"),
        ({"x-stream-filter-size-bytes": 15, **STREAM}, "{value_out_of_range,15,16,255}"),
        ({"x-stream-filter-size-bytes": 256, **STREAM}, "{value_out_of_range,256,16,255}"),
        ({"x-initial-cluster-size": 0, **STREAM}, "{value_zero,0}"),
    ],
)
def test_an_invalid_value_is_refused_in_rabbitmqs_words(arguments: Table, reason: str) -> None:
    argument = next(iter(arguments))
    assert refusal(arguments) == f"invalid arg '{argument}' for queue 'q' in vhost '/': {reason}"


@pytest.mark.parametrize(
    ("text", "age_ms"),
    [("1s", 1_000), ("2m", 120_000), ("2h", 7_200_000), ("14D", 1_209_600_000), ("1M", 2_592_000_000), ("1Y", 31_536_000_000)],
)  # fmt: skip
def test_an_age_is_a_number_with_a_unit(text: str, age_ms: int) -> None:
    assert parse({"x-max-age": text, **STREAM}).max_age_ms == age_ms


@pytest.mark.parametrize("argument", sorted(REFUSED["stream"]))
def test_what_means_nothing_for_a_stream(argument: str) -> None:
    wanted = f"invalid arg '{argument}' for queue 'q' in vhost '/' of queue type rabbit_stream_queue"
    assert refusal({argument: "x" if "exchange" in argument else 5, **STREAM}) == wanted


def test_a_segment_that_is_too_large() -> None:
    """The error has RabbitMQ's words."""
    table = {**STREAM, "x-stream-max-segment-size-bytes": 10**12}
    assert refusal(table) == "Exceeded max value for x-stream-max-segment-size-bytes"


def test_what_only_streams_have_means_nothing_to_others() -> None:
    assert parse({"x-stream-filter-size-bytes": "x"}).filter_bytes is None


def test_stricter_than_rabbitmq() -> None:
    limit = "invalid arg 'x-delivery-limit' for queue 'q' in vhost '/': \"expected integer, got longstr\""
    assert refusal({**QUORUM, "x-delivery-limit": "1"}) == limit


@pytest.mark.parametrize("value", [5, 2**40, True, None, 1.5, [], {}, b"ab", Decimal(1)])
def test_a_dead_letter_exchange_must_be_text(value: object) -> None:
    types = {
        int: "signedint" if value == 5 else "long",
        bool: "bool",
        type(None): "void",
        float: "double",
        list: "array",
        dict: "table",
        bytes: "binary",
        Decimal: "decimal",
    }
    expected = (
        f"invalid type '{types[type(value)]}' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'"
    )
    assert refusal({"x-dead-letter-exchange": value}) == expected


@pytest.mark.parametrize(
    ("queue_type", "argument", "value"),
    [
        ("classic", "x-dead-letter-strategy", "at-least-once"),
        ("classic", "x-max-in-memory-length", 1),
        ("classic", "x-max-in-memory-bytes", 1),
        ("classic", "x-quorum-initial-group-size", 3),
        ("classic", "x-delivery-limit", 3),
        ("classic", "x-delivery-limit", "nonsense"),
        ("classic", "x-max-age", "1D"),
        ("classic", "x-stream-max-segment-size-bytes", 1),
        ("classic", "x-initial-cluster-size", 1),
        ("classic", "x-queue-leader-locator", "balanced"),
        ("quorum", "x-max-priority", 5),
        ("quorum", "x-max-priority", -1),
        ("quorum", "x-queue-mode", "lazy"),
        ("quorum", "x-queue-version", 1),
        ("quorum", "x-max-age", "1D"),
        ("quorum", "x-stream-max-segment-size-bytes", 1),
        ("quorum", "x-initial-cluster-size", 1),
    ],
)
def test_what_only_the_other_type_knows(queue_type: str, argument: str, value: object) -> None:
    text = f"invalid arg '{argument}' for queue 'q' in vhost '/' of queue type rabbit_{queue_type}_queue"
    assert refusal({argument: value, "x-queue-type": queue_type}) == text
    if queue_type == "classic":
        assert refusal({argument: value}) == text


def test_properties_that_a_quorum_queue_cannot_have() -> None:
    assert refusal(QUORUM, durable=False) == "invalid property 'non-durable' for queue 'q' in vhost '/'"
    assert refusal(QUORUM, exclusive=True) == "invalid property 'exclusive-owner' for queue 'q' in vhost '/'"
    assert refusal(QUORUM, auto_delete=True) == "invalid property 'auto-delete' for queue 'q' in vhost '/'"
    several = refusal(QUORUM, durable=False, exclusive=True, auto_delete=True)
    assert several == "invalid property 'auto-delete' for queue 'q' in vhost '/'"
    both = refusal(QUORUM, durable=False, exclusive=True)
    assert both == "invalid property 'exclusive-owner' for queue 'q' in vhost '/'"


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        ({"x-message-ttl": -1, "x-expires": 0}, "x-expires"),
        ({"x-max-priority": -1, "x-overflow": "b", "x-message-ttl": "b"}, "x-message-ttl"),
        ({"x-delivery-limit": 1, "x-message-ttl": -1}, "x-message-ttl"),
        ({"x-queue-type": "foo", "x-message-ttl": -1}, "x-queue-type"),
        ({"x-queue-type": "foo", "x-delivery-limit": 1}, "x-queue-type"),
        ({"x-dead-letter-exchange": 1, "x-expires": 0, **QUORUM}, "x-dead-letter-exchange"),
        ({"x-queue-version": 9, "x-single-active-consumer": 1, "x-overflow": 1}, "x-overflow"),
        ({**QUORUM, "x-max-priority": 1, "x-max-length": -1}, "x-max-length"),
        ({"x-queue-leader-locator": "a", "x-max-age": "1D"}, "x-queue-leader-locator"),
        ({"x-max-age": "1D", "x-queue-leader-locator": "a"}, "x-max-age"),
    ],
)
def test_of_several_mistakes_rabbitmqs_first_is_told(arguments: Table, first: str) -> None:
    assert f"arg '{first}'" in refusal(arguments, durable=False)


def test_the_types_given_are_printed() -> None:
    text = refusal({"x-overflow": 5}, types={"x-overflow": "unsignedbyte"})
    assert text.endswith("{unacceptable_type,unsignedbyte}")
    text = refusal({"x-dead-letter-exchange": 5}, types={"x-dead-letter-exchange": "short"})
    assert text.startswith("invalid type 'short' for arg")


KNOWN = [
    "x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-max-length",
    "x-dead-letter-strategy", "x-max-length-bytes", "x-max-priority", "x-overflow", "x-queue-mode",
    "x-queue-version", "x-single-active-consumer", "x-queue-type", "x-quorum-initial-group-size",
    "x-delivery-limit", "x-max-age", "x-queue-leader-locator", "x-unknown",
]  # fmt: skip
ANY_VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 300),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.sampled_from(["quorum", "classic", "lazy", "drop-head", "reject-publish", "at-least-once"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


@given(st.dictionaries(st.sampled_from(KNOWN), ANY_VALUE, max_size=4), st.booleans(), st.booleans())
def test_any_arguments_are_parsed_or_refused(arguments: Table, durable: bool, exclusive: bool) -> None:
    try:
        parsed = parse(arguments, durable=durable, exclusive=exclusive)
    except PreconditionFailed as refused:
        assert refused.text.startswith("invalid ")
        return
    assert parsed.queue_type == arguments.get("x-queue-type", "classic")
    assert parsed.expires_ms == arguments.get("x-expires")
    # Arguments that were accepted once are accepted, with the same meaning, when the node starts again.
    assert parse(arguments, durable=durable, exclusive=exclusive) == parsed


def declaration(
    arguments: Table | None = None,
    *,
    durable: bool = False,
    auto_delete: bool = False,
    type: str = "",
    internal: bool = False,
    types: dict[str, str] | None = None,
) -> Declaration:
    return Declaration(
        durable=durable,
        auto_delete=auto_delete,
        arguments=arguments or {},
        types=types or {},
        type=type,
        internal=internal,
    )


def queue_difference(received: Declaration, current: Declaration) -> str | None:
    text = equivalence_error("queue", "q", "/", received, current)
    return text and text.replace(" for queue 'q' in vhost '/'", "")


def exchange_difference(received: Declaration, current: Declaration) -> str | None:
    text = equivalence_error("exchange", "x", "/", received, current)
    return text and text.replace(" for exchange 'x' in vhost '/'", "")


def test_the_whole_text() -> None:
    text = equivalence_error("queue", "q", "v", declaration(durable=True), declaration())
    assert (
        text
        == "inequivalent arg 'durable' for queue 'q' in vhost 'v': received 'true' but current is 'false'"
    )
    text = equivalence_error("exchange", "x", "v", declaration(type="fanout"), declaration(type="direct"))
    assert (
        text
        == "inequivalent arg 'type' for exchange 'x' in vhost 'v': received 'fanout' but current is 'direct'"
    )


def test_properties_are_compared_in_order() -> None:
    wanted = declaration({"x-max-length": 1}, durable=True, auto_delete=True)
    assert queue_difference(wanted, declaration()) == (
        "inequivalent arg 'durable': received 'true' but current is 'false'"
    )
    assert queue_difference(wanted, declaration(durable=True)) == (
        "inequivalent arg 'auto_delete': received 'true' but current is 'false'"
    )
    wanted = declaration(
        {"alternate-exchange": "a"}, type="direct", durable=True, auto_delete=True, internal=True
    )
    current = declaration(type="direct", durable=True, auto_delete=True)
    assert exchange_difference(wanted, current) == (
        "inequivalent arg 'internal': received 'true' but current is 'false'"
    )


@pytest.mark.parametrize(
    ("argument", "one", "other", "printed_type"),
    [
        ("x-expires", 100, 200, "signedint"),
        ("x-message-ttl", 10, 20, "signedint"),
        ("x-message-ttl", 2**40, 20, "long"),
        ("x-dead-letter-exchange", "a", "b", "longstr"),
        ("x-dead-letter-routing-key", "a", "b", "longstr"),
        ("x-max-length", 10, 20, "signedint"),
        ("x-max-length-bytes", 10, 20, "signedint"),
        ("x-max-priority", 1, 2, "signedint"),
        ("x-overflow", "drop-head", "reject-publish", "longstr"),
        ("x-queue-mode", "default", "lazy", "longstr"),
        ("x-queue-version", 1, 2, "signedint"),
    ],
)
def test_arguments_of_classic_queues(argument: str, one: object, other: object, printed_type: str) -> None:
    described = f"the value '{one}' of type '{printed_type}'"
    assert queue_difference(declaration({argument: other}), declaration({argument: one})) == (
        f"inequivalent arg '{argument}': received '{other}' but current is '{one}'"
    )
    assert queue_difference(declaration(), declaration({argument: one})) == (
        f"inequivalent arg '{argument}': received none but current is {described}"
    )
    assert queue_difference(declaration({argument: one}), declaration()) == (
        f"inequivalent arg '{argument}': received {described} but current is none"
    )
    assert queue_difference(declaration({argument: one}), declaration({argument: one})) is None


def test_booleans_are_printed_as_erlang_does() -> None:
    argument = "x-single-active-consumer"
    assert queue_difference(declaration({argument: False}), declaration({argument: True})) == (
        f"inequivalent arg '{argument}': received 'false' but current is 'true'"
    )
    assert queue_difference(declaration({argument: True}), declaration()) == (
        f"inequivalent arg '{argument}': received the value 'true' of type 'bool' but current is none"
    )


@pytest.mark.parametrize(
    ("received", "difference"),
    [
        (10, None),
        (10.0, "inequivalent arg 'x-message-ttl': received '10.0' but current is '10'"),
        ("10", "inequivalent arg 'x-message-ttl': received '10' but current is '10'"),
        (-1, "inequivalent arg 'x-message-ttl': received '-1' but current is '10'"),
    ],
)
def test_the_type_counts_the_width_does_not(received: object, difference: str | None) -> None:
    wanted = declaration({"x-message-ttl": received}, types={"x-message-ttl": "whatever"})
    current = declaration({"x-message-ttl": 10}, types={"x-message-ttl": "unsignedbyte"})
    assert queue_difference(wanted, current) == difference


def test_the_types_given_are_printed_in_differences() -> None:
    current = declaration({"x-message-ttl": 10}, types={"x-message-ttl": "long"})
    assert queue_difference(declaration(), current) == (
        "inequivalent arg 'x-message-ttl': received none but current is the value '10' of type 'long'"
    )


@pytest.mark.parametrize("argument", ["x-foo", "foo"])
def test_what_nobody_knows_is_not_compared(argument: str) -> None:
    assert queue_difference(declaration({argument: 1}), declaration({argument: 2})) is None
    assert queue_difference(declaration({argument: 1}), declaration()) is None
    assert exchange_difference(declaration(), declaration({argument: 1})) is None


def test_another_queue_type_is_a_difference_and_the_default_is_none() -> None:
    plain, classic, quorum = declaration(), declaration({"x-queue-type": "classic"}), declaration(QUORUM)
    assert queue_difference(plain, classic) is None
    assert queue_difference(classic, plain) is None
    assert queue_difference(quorum, plain) == (
        "inequivalent arg 'x-queue-type': received the value 'quorum' of type 'longstr' but current is none"
    )
    assert queue_difference(plain, quorum) == (
        "inequivalent arg 'x-queue-type': received none but current is the value 'quorum' of type 'longstr'"
    )
    assert queue_difference(quorum, classic) == (
        "inequivalent arg 'x-queue-type': received 'quorum' but current is 'classic'"
    )


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-delivery-limit", 2),
        ("x-quorum-initial-group-size", 1),
        ("x-queue-leader-locator", "client-local"),
        ("x-dead-letter-strategy", "at-least-once"),
        ("x-max-in-memory-length", 1),
    ],
)
def test_arguments_of_quorum_queues(argument: str, value: object) -> None:
    printed = "longstr" if isinstance(value, str) else "signedint"
    assert queue_difference(declaration(QUORUM), declaration({**QUORUM, argument: value})) == (
        f"inequivalent arg '{argument}': received none but current is the value '{value}' of type '{printed}'"
    )


@pytest.mark.parametrize(
    ("received", "current", "first"),
    [
        (
            {"x-max-length": 2, "x-message-ttl": 2, "x-expires": 8},
            {"x-max-length": 1, "x-message-ttl": 1, "x-expires": 9},
            "x-expires",
        ),
        (
            {},
            {"x-max-length": 1, "x-max-priority": 2, "x-dead-letter-exchange": "a"},
            "x-dead-letter-exchange",
        ),
        ({"x-max-length": 2, **QUORUM}, {"x-max-length": 1, "x-queue-type": "classic"}, "x-max-length"),
        (QUORUM, {**QUORUM, "x-delivery-limit": 1, "x-message-ttl": 5, "x-expires": 5}, "x-expires"),
    ],
)
def test_of_several_differences_rabbitmqs_first_is_told(received: Table, current: Table, first: str) -> None:
    difference = queue_difference(declaration(received), declaration(current))
    assert difference is not None
    assert difference.startswith(f"inequivalent arg '{first}'")


def test_another_alternate_exchange_is_a_difference() -> None:
    none = declaration()
    one, other = declaration({"alternate-exchange": "a"}), declaration({"alternate-exchange": "b"})
    assert exchange_difference(one, one) is None
    assert exchange_difference(none, one) == (
        "inequivalent arg 'alternate-exchange': received none but current is the value 'a' of type 'longstr'"
    )
    assert exchange_difference(one, none) == (
        "inequivalent arg 'alternate-exchange': received the value 'a' of type 'longstr' but current is none"
    )
    assert exchange_difference(other, one) == (
        "inequivalent arg 'alternate-exchange': received 'b' but current is 'a'"
    )
    assert exchange_difference(declaration({"alternate-exchange": 1}), one) == (
        "inequivalent arg 'alternate-exchange': received '1' but current is 'a'"
    )


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
@pytest.mark.parametrize(
    ("asked", "window_ms", "count"),
    [
        ({}, None, 100_000),
        ({"x-deduplication": True}, 600_000, 100_000),
        ({"x-deduplication-window-ms": 5}, 5, 100_000),
        ({"x-deduplication-count": 7}, 600_000, 7),
        ({"x-deduplication": True, "x-deduplication-window-ms": 5, "x-deduplication-count": 7}, 5, 7),
        ({"x-deduplication": False, "x-deduplication-window-ms": 5, "x-deduplication-count": 7}, None, 7),
    ],
)
def test_a_window_or_a_count_turns_deduplication_on(
    queue_type: str, asked: dict[str, object], window_ms: int | None, count: int
) -> None:
    settings = effective_settings(parse({"x-queue-type": queue_type, **asked}))
    assert (settings.deduplication_window_ms, settings.deduplication_count) == (window_ms, count)
    assert settings.deduplicates is (window_ms is not None)


# -- the table of arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize("queue_type", QUEUE_TYPES)
def test_the_places_at_which_a_type_compares_its_arguments_are_numbered_without_gaps(queue_type: str) -> None:
    places = sorted(row.types[queue_type] for row in ROWS if row.types.get(queue_type))
    assert places == [*range(1, len(places) + 1)]
    # The one that a second declare may leave out: RabbitMQ 3.10 does not know it.
    left_out = {row.name for row in ROWS if row.types.get(queue_type) == 0}
    assert left_out == ({"x-quorum-target-group-size"} if queue_type == "quorum" else set())


def test_an_argument_is_one_row_and_a_field_of_the_parsed_arguments() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert {row.field for row in ROWS} == {*QueueArguments.__dataclass_fields__}
    for row in ROWS:
        assert {*row.types} | row.ignored <= QUEUE_TYPES.keys() and not row.types.keys() & row.ignored


def test_the_order_of_checks_names_rows_and_every_argument_of_rabbitmq() -> None:
    assert len({*CHECK_ORDER}) == len(CHECK_ORDER)
    foreign = {row.name for row in ROWS if not row.own}
    assert {*CHECK_ORDER, *CHECKED_FIRST} == foreign


def test_keys_of_policies_are_those_of_arguments_and_one_of_exchanges() -> None:
    of_queues = {row.policy_key for row in ROWS if row.policy is not None}
    assert {*KEYS} - of_queues == {*EXCHANGE_KEYS} == {"alternate-exchange"}
    assert all(bool(key.field) == (name in of_queues) for name, key in KEYS.items())


def test_exports_for_rabbitmq_leave_out_the_keys_that_only_mqd_has() -> None:
    assert {row.policy_key for row in ROWS if row.policy is not None and row.own} == OWN_POLICY_KEYS
