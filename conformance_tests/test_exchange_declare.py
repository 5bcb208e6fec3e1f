"""exchange.declare and exchange.delete: kinds, passive, equivalence,
reserved names, auto-delete, internal.
"""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.conftest import Name, Raw
from conformance_tests.expect import expect_channel_close, expect_connection_close
from conformance_tests.features import needs_exchange_type
from conformance_tests.inbox import drain, exchange_exists, publish, sync, wait_for
from conformance_tests.plugins import PLUGINS

TYPES = ["direct", "fanout", "topic", "headers"]
EXTENSION_TYPES = [pytest.param(kind, marks=needs_exchange_type(kind)) for kind in PLUGINS]
PREDECLARED = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}


@pytest.mark.parametrize("kind", [*TYPES, *EXTENSION_TYPES])
def test_declare_of_each_type(ch: BlockingChannel, name: Name, kind: str) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, kind)
    assert exchange_exists(ch, exchange)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("auto_delete", [False, True])
@pytest.mark.parametrize("internal", [False, True])
def test_declare_with_each_flag_is_idempotent(
    ch: BlockingChannel, name: Name, durable: bool, auto_delete: bool, internal: bool
) -> None:
    exchange = name("x")
    for _ in range(2):
        ch.exchange_declare(exchange, "direct", durable=durable, auto_delete=auto_delete, internal=internal)


def test_unknown_type_closes_the_connection(ch: BlockingChannel, name: Name) -> None:
    with expect_connection_close(503, r"COMMAND_INVALID - unknown exchange type 'no-such-type'"):
        ch.exchange_declare(name("x"), "no-such-type")


@pytest.mark.parametrize(("exchange", "kind"), PREDECLARED.items())
def test_predeclared_exchange_is_durable_and_of_its_type(
    ch: BlockingChannel, exchange: str, kind: str
) -> None:
    ch.exchange_declare(exchange, kind, durable=True)


@pytest.mark.parametrize("exchange", PREDECLARED)
def test_predeclared_exchange_is_known_to_a_passive_declare(ch: BlockingChannel, exchange: str) -> None:
    ch.exchange_declare(exchange, passive=True)


def test_reserved_name_is_refused(ch: BlockingChannel) -> None:
    with expect_channel_close(
        403, r"ACCESS_REFUSED - exchange name 'amq\.mine' contains reserved prefix 'amq\.\*'"
    ):
        ch.exchange_declare("amq.mine", "direct")


def test_passive_declare_of_a_missing_reserved_name_says_not_found(ch: BlockingChannel) -> None:
    with expect_channel_close(404, r"NOT_FOUND - no exchange 'amq\.mine' in vhost '/'"):
        ch.exchange_declare("amq.mine", "direct", passive=True)


def test_declare_of_the_default_exchange_is_refused(ch: BlockingChannel) -> None:
    with expect_channel_close(403, r"ACCESS_REFUSED - operation not permitted on the default exchange"):
        ch.exchange_declare("", "direct", durable=True)


def test_passive_declare_of_the_default_exchange_is_refused(ch: BlockingChannel) -> None:
    with expect_channel_close(403, r"ACCESS_REFUSED - operation not permitted on the default exchange"):
        ch.exchange_declare("", "direct", passive=True)


def test_passive_declare_finds_an_exchange_whatever_its_type(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "fanout")
    ch.exchange_declare(exchange, "topic", passive=True, durable=True, auto_delete=True)


def test_passive_declare_of_a_missing_exchange(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    with expect_channel_close(404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'"):
        ch.exchange_declare(exchange, passive=True)


@pytest.mark.parametrize("exchange", ["amq.mqd.retry", "amq.mqd.cancel"])
def test_names_that_requests_are_published_to_are_no_exchanges(ch: BlockingChannel, exchange: str) -> None:
    with expect_channel_close(404, exchange):
        ch.exchange_declare(exchange, passive=True)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({}, {"exchange_type": "fanout"}, "'type' .*: received 'fanout' but current is 'direct'"),
        ({}, {"durable": True}, "'durable' .*: received 'true' but current is 'false'"),
        ({"durable": True}, {}, "'durable' .*: received 'false' but current is 'true'"),
        ({}, {"auto_delete": True}, "'auto_delete' .*: received 'true' but current is 'false'"),
        ({"auto_delete": True}, {}, "'auto_delete' .*: received 'false' but current is 'true'"),
        ({}, {"internal": True}, "'internal' .*: received 'true' but current is 'false'"),
        ({"internal": True}, {}, "'internal' .*: received 'false' but current is 'true'"),
        (
            {},
            {"arguments": {"alternate-exchange": "ae"}},
            "'alternate-exchange' .*: received the value 'ae' of type 'longstr' but current is none",
        ),
        (
            {"arguments": {"alternate-exchange": "ae"}},
            {},
            "'alternate-exchange' .*: received none but current is the value 'ae' of type 'longstr'",
        ),
        (
            {"arguments": {"alternate-exchange": "ae"}},
            {"arguments": {"alternate-exchange": "other"}},
            "'alternate-exchange' .*: received 'other' but current is 'ae'",
        ),
    ],
    ids=lambda value: None,
)
def test_inequivalent_redeclare(
    ch: BlockingChannel, name: Name, first: dict[str, Any], second: dict[str, Any], text: str
) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, **{"exchange_type": "direct", **first})
    pattern = f"PRECONDITION_FAILED - inequivalent arg {text}"
    with expect_channel_close(406, pattern.replace(" .*:", f" for exchange '{exchange}' in vhost '/':")):
        ch.exchange_declare(exchange, **{"exchange_type": "direct", **second})


def test_unknown_arguments_are_accepted_and_not_compared(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(
        exchange, "direct", arguments={"some-argument": "a", "nested": {"deep": [1, None, True]}}
    )
    ch.exchange_declare(exchange, "direct", arguments={"some-argument": 2})
    ch.exchange_declare(exchange, "direct")


def test_alternate_exchange_of_the_wrong_type_is_refused(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    with expect_channel_close(
        406,
        f"PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in "
        f"exchange '{exchange}' in vhost '/'",
    ):
        ch.exchange_declare(exchange, "direct", arguments={"alternate-exchange": 5})


def test_line_breaks_are_removed_from_a_name(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(f"{exchange[:-2]}\r\n{exchange[-2:]}", "direct")
    assert exchange_exists(ch, exchange)


def test_a_name_may_be_any_utf8(ch: BlockingChannel, name: Name) -> None:
    exchange = name("börse ☂ ")
    ch.exchange_declare(exchange, "direct")
    assert exchange_exists(ch, exchange)


def test_a_name_of_255_bytes(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    long = exchange + "y" * (255 - len(exchange))
    ch.exchange_declare(long, "direct")
    assert exchange_exists(ch, long)
    ch.exchange_delete(long)


def test_no_wait_declare_is_answered_by_nothing(raw: Raw, ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    client = raw()
    client.send_method(commands.Exchange.Declare(exchange=exchange, exchange_type="direct", nowait=True))
    client.call(
        commands.Exchange.Declare(exchange=exchange, exchange_type="direct"), commands.Exchange.DeclareOk
    )
    client.expect_answer_first()
    assert exchange_exists(ch, exchange)


def test_delete(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "direct")
    ch.exchange_delete(exchange)
    assert not exchange_exists(ch, exchange)


def test_delete_of_a_missing_exchange_is_no_error(ch: BlockingChannel, name: Name) -> None:
    ch.exchange_delete(name("x"))
    sync(ch)


def test_delete_if_unused_of_a_bound_exchange(ch: BlockingChannel, name: Name) -> None:
    exchange, queue = name("x"), name("q")
    ch.exchange_declare(exchange, "direct")
    ch.queue_declare(queue)
    ch.queue_bind(queue, exchange, "k")
    with expect_channel_close(406, f"PRECONDITION_FAILED - exchange '{exchange}' in vhost '/' in use"):
        ch.exchange_delete(exchange, if_unused=True)


def test_delete_if_unused_of_an_unbound_exchange(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "direct")
    ch.exchange_delete(exchange, if_unused=True)
    assert not exchange_exists(ch, exchange)


def test_being_a_destination_is_no_use(ch: BlockingChannel, name: Name) -> None:
    source, destination = name("x"), name("x")
    ch.exchange_declare(source, "fanout")
    ch.exchange_declare(destination, "fanout")
    ch.exchange_bind(destination, source)
    ch.exchange_delete(destination, if_unused=True)
    assert not exchange_exists(ch, destination)


def test_being_a_source_is_use(ch: BlockingChannel, name: Name) -> None:
    source, destination = name("x"), name("x")
    ch.exchange_declare(source, "fanout")
    ch.exchange_declare(destination, "fanout")
    ch.exchange_bind(destination, source)
    with expect_channel_close(406, f"PRECONDITION_FAILED - exchange '{source}' in vhost '/' in use"):
        ch.exchange_delete(source, if_unused=True)


def test_delete_of_the_default_exchange_is_refused(ch: BlockingChannel) -> None:
    with expect_channel_close(403, r"ACCESS_REFUSED - operation not permitted on the default exchange"):
        ch.exchange_delete("")


@pytest.mark.parametrize("exchange", PREDECLARED)
def test_delete_of_a_predeclared_exchange_is_refused(ch: BlockingChannel, exchange: str) -> None:
    with expect_channel_close(
        403, f"ACCESS_REFUSED - deletion of system exchange '{exchange}' in vhost '/' not allowed"
    ):
        ch.exchange_delete(exchange)


def test_auto_delete_exchange_goes_with_its_last_binding(ch: BlockingChannel, name: Name) -> None:
    exchange, queue = name("x"), name("q")
    ch.exchange_declare(exchange, "direct", auto_delete=True)
    ch.queue_declare(queue)
    ch.queue_bind(queue, exchange, "a")
    ch.queue_bind(queue, exchange, "b")
    ch.queue_unbind(queue, exchange, "a")
    assert exchange_exists(ch, exchange)
    ch.queue_unbind(queue, exchange, "b")
    assert not exchange_exists(ch, exchange)


def test_auto_delete_exchange_stays_until_it_was_bound(ch: BlockingChannel, name: Name) -> None:
    exchange, queue = name("x"), name("q")
    ch.exchange_declare(exchange, "direct", auto_delete=True)
    ch.queue_declare(queue)
    ch.queue_unbind(queue, exchange, "never bound")
    assert exchange_exists(ch, exchange)


def test_auto_delete_exchange_goes_with_its_last_queue(ch: BlockingChannel, name: Name) -> None:
    exchange, queue = name("x"), name("q")
    ch.exchange_declare(exchange, "fanout", auto_delete=True)
    ch.queue_declare(queue)
    ch.queue_bind(queue, exchange)
    ch.queue_delete(queue)
    wait_for(lambda: not exchange_exists(ch, exchange), "the exchange to be deleted")


def test_auto_delete_exchange_goes_with_the_last_exchange_bound_to_it(
    ch: BlockingChannel, name: Name
) -> None:
    source, destination = name("x"), name("x")
    ch.exchange_declare(source, "fanout", auto_delete=True)
    ch.exchange_declare(destination, "fanout")
    ch.exchange_bind(destination, source)
    ch.exchange_unbind(destination, source)
    assert not exchange_exists(ch, source)


def test_auto_delete_passes_along_a_chain_of_exchanges(ch: BlockingChannel, name: Name) -> None:
    first, second, queue = name("x"), name("x"), name("q")
    ch.exchange_declare(first, "fanout", auto_delete=True)
    ch.exchange_declare(second, "fanout", auto_delete=True)
    ch.queue_declare(queue)
    ch.exchange_bind(second, first)
    ch.queue_bind(queue, second)
    ch.queue_delete(queue)
    wait_for(lambda: not exchange_exists(ch, second), "the second exchange to be deleted")
    wait_for(lambda: not exchange_exists(ch, first), "the first exchange to be deleted")


def test_delete_removes_bindings_for_good(ch: BlockingChannel, name: Name) -> None:
    exchange, queue = name("x"), name("q")
    ch.exchange_declare(exchange, "fanout")
    ch.queue_declare(queue)
    ch.queue_bind(queue, exchange)
    ch.exchange_delete(exchange)
    ch.exchange_declare(exchange, "fanout")
    publish(ch, "", b"lost", exchange=exchange)
    assert drain(ch, queue) == []


def test_publish_to_an_internal_exchange_is_refused(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "fanout", internal=True)
    with expect_channel_close(
        403, f"ACCESS_REFUSED - cannot publish to internal exchange '{exchange}' in vhost '/'"
    ):
        publish(ch, "", b"refused", exchange=exchange)
        sync(ch)


def test_an_internal_exchange_routes_what_another_exchange_sends(ch: BlockingChannel, name: Name) -> None:
    source, internal, queue = name("x"), name("x"), name("q")
    ch.exchange_declare(source, "fanout")
    ch.exchange_declare(internal, "direct", internal=True)
    ch.queue_declare(queue)
    ch.exchange_bind(internal, source)
    ch.queue_bind(queue, internal, "k")
    publish(ch, "k", b"through", exchange=source)
    assert ch.basic_get(queue, auto_ack=True)[2] == b"through"


def test_a_refused_declare_leaves_the_connection_usable(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "direct")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        ch.exchange_declare(exchange, "fanout")
    again = ch.connection.channel()
    again.exchange_declare(exchange, "direct")
