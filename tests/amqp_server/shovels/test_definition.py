"""The parameter of a shovel: RabbitMQ's rules and texts, hosts, and passwords, which are shown to nobody."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_server.shovels import uri
from amqp_server.shovels.definition import InvalidShovel, acts_as, masked, may_reach, parse, unmasked
from amqp_server.shovels.rewriting import addressing
from amqp_server.shovels.session import Delivery
from amqp_server.shovels.uri import InvalidUri, Uri
from amqp_server.wire import tables
from amqp_server.wire.content import Properties

GOOD: dict[str, Any] = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://h", "dest-queue": "b"}


def test_what_a_definition_leaves_out_has_rabbitmqs_defaults() -> None:
    found = parse("s", GOOD)
    assert (found.ack_mode, found.prefetch, found.delete_after, found.reconnect_delay_s) == (
        "on-confirm",
        1_000,
        "never",
        5.0,
    )
    assert found.source_uris == (Uri(),) and found.destination_uris == (Uri(host="h"),)
    assert found.ends == {"src_queue": "a", "dest_queue": "b"}


def test_old_and_new_names_and_what_is_null() -> None:
    more = {"prefetch-count": 5, "delete-after": 7, "add-forward-headers": True, "dest-exchange": None}
    found = parse("s", GOOD | more | {"publish-properties": {"priority": 3, "app_id": "x"}})
    assert (found.prefetch, found.delete_after, found.forward_headers) == (5, 7, True)
    assert found.properties == {"priority": b"\x03", "app_id": b"\x01x"}
    found = parse("s", GOOD | more | {"src-prefetch-count": 0, "src-delete-after": "queue-length"})
    assert (found.prefetch, found.delete_after) == (0, "queue-length")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"src-uri": None}, 'Key "src-uri" not found in s'),
        ({"src-queue": None}, "Must specify 'src-exchange' or 'src-queue'"),
        ({"src-exchange": "x"}, "Cannot specify 'src-exchange' and 'src-queue'"),
        ({"dest-exchange": "x"}, "Cannot specify 'dest-exchange' and 'dest-queue'"),
        ({"src-queue": 5}, "src-queue should be binary, actually was 5"),
        ({"src-queue": "q" * 256}, "src-queue should have 255 bytes at most"),
        (
            {"ack-mode": "x"},
            'ack-mode should be one of [<<"no-ack">>,<<"on-publish">>,<<"on-confirm">>], actually was <<"x">>',
        ),
        ({"prefetch-count": "a"}, 'prefetch-count should be a number, actually was <<"a">>'),
        ({"prefetch-count": True}, "prefetch-count should be a number, actually was true"),
        (
            {"src-delete-after-duration": 0},
            "src-delete-after-duration should be a positive integer (seconds), actually was 0",
        ),
        (
            {"src-delete-after-duration": True},
            "src-delete-after-duration should be a positive integer (seconds), actually was true",
        ),
        (
            {"src-delete-after": -1},
            'src-delete-after should be a number greater than or equal to 0, "never" or "queue-length", actually was -1',
        ),
        ({"delete-after": 5, "ack-mode": "no-ack"}, "Cannot specify 'no-ack' and numerical 'delete-after'"),
        (
            {"dest-publish-properties": {"nope": 7}},
            'Unrecognised terms [{<<"nope">>,7}] in dest-publish-properties',
        ),
        ({"dest-publish-properties": {"priority": 256}}, "priority should be a number, actually was 256"),
        ({"nope": {"a": [1, False]}}, 'Unrecognised terms [{<<"nope">>,#{<<"a">> => [1,false]}}] in s'),
        ({"src-protocol": "amqp10"}, 'src-protocol should be amqp091, actually was <<"amqp10">>'),
        (
            {"dest-protocol": "local", "dest-uri": ["amqp://", "amqp://a:b@c/v"]},
            "dest-uri of the protocol local should have no host, actually was amqp://c/v",
        ),
        ({"src-uri": "http://x"}, '"http://x" not a valid URI: {unexpected_uri_scheme,"http"}'),
        ({"src-uri": ["amqp://a", "x"]}, '"x" not a valid URI: {unable_to_parse_uri,no_scheme}'),
        ({"src-uri": ["amqp://a"] * 33}, "src-uri has 33 URIs; the maximum is 32 (shovel_uris_max)"),
        ({"src-uri": []}, "src-uri should not be empty"),
        ({"src-consumer-args": 5}, "src-consumer-args not a list 5"),
    ],
)
def test_what_is_wrong(change: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidShovel) as raised:
        parse("s", {key: each for key, each in (GOOD | change).items() if each is not None})
    assert str(raised.value) == text


def test_an_end_in_the_same_cluster() -> None:
    """As RabbitMQ 4 writes it."""
    change = {
        "src-protocol": "local",
        "src-uri": "amqp://",
        "dest-protocol": "local",
        "dest-uri": "amqp:///v",
    }
    found = parse("s", GOOD | change)
    assert (found.source_protocol, found.destination_protocol) == ("local", "local")
    assert [(each.host, each.vhost) for each in found.destination_uris] == [("", "v")]


def test_all_that_is_wrong_is_told() -> None:
    with pytest.raises(InvalidShovel) as raised:
        parse("s", [])
    assert str(raised.value).splitlines() == [
        "Must specify 'src-exchange' or 'src-queue'",
        'Key "dest-uri" not found in s',
        'Key "src-uri" not found in s',
    ]


@pytest.mark.parametrize(
    ("text", "expected", "shown"),
    [
        ("amqp://", Uri(), "amqp://"),
        ("amqp:///v", Uri(vhost="v"), "amqp:///v"),
        ("amqp:///a%0ab", Uri(vhost="a\nb"), "amqp:///a%0Ab"),
        ("amqp://ann@/%2f", Uri(user="ann"), "amqp://"),
        ("amqp://a%40b:p%3A%2Fw@h:99/a%2Fb", Uri(False, "h", 99, "a@b", "p:/w", "a/b"), "amqp://h:99/a%2fb"),
        ("amqp://[::1]:5673", Uri(host="::1", port=5673), "amqp://[::1]:5673"),
        ("amqps://h/", Uri(True, "h", 5671), "amqps://h"),
        (
            "amqps://h?verify=verify_none&server_name_indication=x&heartbeat=5&connection_timeout=2000&nope=1",
            Uri(True, "h", 5671, verify=False, server_name="x", heartbeat_s=5, connect_timeout_s=2.0),
            "amqps://h",
        ),
    ],
)
def test_a_uri_is_parsed_and_shown_without_its_password(text: str, expected: Uri, shown: str) -> None:
    assert uri.parse(text) == expected and expected.shown == shown


@pytest.mark.parametrize(
    "text",
    [
        "amqp://u:canary@h:99999",
        "amqp://u:canary@h:0",
        "amqp://u:canary@h:x",
        "amqp://u:canary@h/a/b",
        "amqp://u:canary@h?heartbeat=x",
        "amqp://u:canary@[h",
        "amqp://u:canary@h\n",
        "amqp:u:canary@h",
        "amqp://u:a/canary@h",
        "http://u:canary@h",
        "amqp://:canary@h",
        "amqps://u:canary@/v",
        "amqp://u:canary@:5672",
        "amqp://%00mqd:canary@/v",
        "amqp://u:canary@h%0a",
        "amqps://u:canary@h?server_name_indication=%0a",
        "amqp://u:canary@h/" + "v" * 256,
    ],
)
def test_texts_about_uris_have_no_passwords(text: str) -> None:
    with pytest.raises(InvalidUri) as raised:
        uri.parse(text)
    assert "canary" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_passwords_in_uris_are_shown_as_stars_and_a_masked_uri_is_refused() -> None:
    value = GOOD | {
        "src-uri": ["amqp://u:canary@h", "amqps://a:b@c?password=canary"],
        "dest-uri": "amqp://u@v:x@y@h",
    }
    assert masked(value) == GOOD | {
        "src-uri": ["amqp://u:***@h", "amqps://a:***@c?password=***"],
        "dest-uri": "amqp://u@v:***@h",
    }
    assert masked("text") == "text" and masked({"src-uri": 5}) == {"src-uri": 5}
    assert "secret" not in repr(uri.parse("amqp://u:secret@h"))
    with pytest.raises(InvalidShovel, match="its password is masked"):
        parse("s", masked(value))


@pytest.mark.parametrize(
    "text",
    [
        "amqps://u:***@h:7",
        "amqp://u:***@h",
        "amqp://v:***@h:7",
        "amqp://u:***@h.example:7",
        "amqp://u:***x@h:7",
        "amqp://u@h:7",
        "amqp://u:***@h:x",
        "amqp://u:***@[h:7",
        "",
    ],
)
def test_a_mask_stands_for_a_password_of_the_same_scheme_user_host_and_port(text: str) -> None:
    before = GOOD | {"src-uri": "amqp://u:can%40ary@h:7/v", "dest-uri": ["amqp://u:***@h:7", 5]}
    masked_one = GOOD | {"src-uri": ["amqp://u:***@h:7?verify=verify_none", text]}
    told = unmasked(masked_one, before)
    assert told == masked_one | {"src-uri": ["amqp://u:can%40ary@h:7?verify=verify_none", text]}
    assert unmasked("text", before) == "text" and unmasked(masked_one, 5) == masked_one


def test_a_shovel_within_the_node_acts_as_the_user_who_set_it() -> None:
    value = GOOD | {"src-uri": ["amqp://", "amqp:///v", "amqp://bob@/v"]}
    changed = acts_as(value, "a@b")
    assert changed["src-uri"] == ["amqp://a%40b@", "amqp://a%40b@/v", "amqp://bob@/v"]
    assert changed["dest-uri"] == "amqp://h"
    assert uri.parse(changed["src-uri"][0]).user == "a@b"
    # And not as a user "ann@", who is a different user.
    assert acts_as(GOOD | {"src-uri": "amqp://@/v"}, "ann")["src-uri"] == "amqp://ann@/v"
    for user in ("", "@", "%40", ":", "@@"):
        try:
            changed = acts_as(GOOD | {"src-uri": f"amqp://{user}/v"}, "ann")
        except InvalidUri:
            continue
        assert uri.parse(changed["src-uri"]).user in ("ann", uri.parse(f"amqp://{user}/v").user)


@pytest.mark.parametrize(
    ("host", "hosts", "refused"),
    [
        ("h", (), False),
        ("", ("x",), False),
        ("H.", ("h",), False),
        ("a.example", ("*.example",), False),
        ("badexample", ("*.example",), True),
        ("10.1.2.3", ("10.0.0.0/8",), False),
        ("11.1.2.3", ("10.0.0.0/8",), True),
        ("::ffff:11.1.2.3", ("10.0.0.0/8",), True),
        ("h", ("10.0.0.0/8",), False),
        ("h", ("other",), True),
    ],
)
def test_only_the_allowed_hosts_may_be_reached(host: str, hosts: tuple[str, ...], refused: bool) -> None:
    assert bool(may_reach([Uri(host=host)], hosts)) is refused


def test_a_message_keeps_the_bytes_of_its_properties() -> None:
    properties = Properties({"headers": b"\x00\x00\x00\x07\x01us\x00\x05\x01bt", "priority": b"\x03"})
    properties.raw["headers"] = b"\x00\x00\x00\x05\x01us\x00\x05"
    delivery = Delivery(1, b"x", b"k", properties.encode(3), [b"abc"])
    method, header = addressing(parse("s", GOOD), {}, lambda: 0)(delivery)
    assert header == delivery.header and method.endswith(b"\x00\x00\x00\x01b\x01")
    found = parse(
        "s",
        {key: each for key, each in GOOD.items() if key != "dest-queue"}
        | {
            "add-forward-headers": True,
            "add-timestamp-header": True,
            "publish-properties": {"delivery_mode": 2},
        },
    )
    method, header = addressing(found, {"shovel-name": "s"}, lambda: 77)(delivery)
    assert method.endswith(b"\x01x\x01k\x00")
    changed = Properties.parse(header)
    assert (changed.octet("priority"), changed.octet("delivery_mode")) == (3, 2)
    assert changed.raw["headers"][4:9] == b"\x01us\x00\x05"
    assert tables.types(changed.raw["headers"])["u"] == "short"
    headers = changed.headers or {}
    assert headers["x-shovelled"] == [{"shovel-name": "s"}] and headers["x-shovelled-timestamp"] == 77
    again = Delivery(2, b"x", b"k", header, [b"abc"])
    _, header = addressing(found, {"shovel-name": "t"}, lambda: 78)(again)
    assert (Properties.parse(header).headers or {})["x-shovelled"] == [
        {"shovel-name": "t"},
        {"shovel-name": "s"},
    ]
