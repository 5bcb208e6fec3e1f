"""Policies and operator policies: their effect on existing queues and exchanges, and on new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from conformance_tests.api import Answer, Api
from conformance_tests.conftest import Name
from conformance_tests.expect import eventually
from conformance_tests.inbox import publish, queue_exists

QUORUM = {"x-queue-type": "quorum"}
STREAM = {"x-queue-type": "stream"}
KINDS = [{}, QUORUM]

SetPolicy = Callable[..., str]


def put(api: Api, kind: str, name: str, pattern: str, definition: object, **rest: object) -> Answer:
    body = {"pattern": pattern, "definition": definition} | {k.replace("_", "-"): v for k, v in rest.items()}
    return api.ask("PUT", f"{kind}/%2F/{quote(name, safe='')}", body)


@pytest.fixture
def set_policy(api: Api, name: Name) -> Iterator[SetPolicy]:
    """`set_policy(pattern, definition, operator=, apply_to=, priority=)` returns the name of a policy that is
    cleared after the test.
    """
    made: list[tuple[str, str]] = []

    def make(pattern: str, definition: dict[str, Any], *, operator: bool = False, **rest: Any) -> str:
        kind, policy = "operator-policies" if operator else "policies", name("policy")
        made.append((kind, policy))
        assert put(api, kind, policy, pattern, definition, **rest).status == 201
        return policy

    yield make
    for kind, policy in made:
        api.ask("DELETE", f"{kind}/%2F/{policy}")


def shown(api: Api, queue: str, kind: str = "queues") -> dict[str, Any]:
    answer = api.ask("GET", f"{kind}/%2F/{quote(queue, safe='')}")
    assert answer.status == 200
    found: dict[str, Any] = answer.json
    return found


def length(ch: BlockingChannel, queue: str) -> int:
    return int(ch.queue_declare(queue, passive=True).method.message_count)


@pytest.mark.parametrize("arguments", KINDS)
def test_a_length_holds_for_a_queue_that_is_there(
    ch: BlockingChannel, api: Api, name: Name, set_policy: SetPolicy, arguments: dict[str, Any]
) -> None:
    queue = name("long")
    ch.queue_declare(queue, durable=True, arguments=arguments)
    ch.confirm_delivery()
    publish(ch, queue, b"1", b"2", b"3", b"4")
    policy = set_policy(f"^{queue}$", {"max-length": 2}, apply_to="queues")
    eventually(lambda: shown(api, queue).get("policy") == policy)
    publish(ch, queue, b"5")
    eventually(lambda: length(ch, queue) == 2)
    assert ch.basic_get(queue, auto_ack=True)[2] == b"4"
    assert api.ask("DELETE", f"policies/%2F/{policy}").status == 204
    eventually(lambda: not shown(api, queue).get("policy"))
    eventually(lambda: not shown(api, queue).get("effective_policy_definition"))
    publish(ch, queue, b"6", b"7", b"8")
    eventually(lambda: length(ch, queue) == 4)


@pytest.mark.parametrize("arguments", KINDS)
def test_a_policy_holds_for_queues_that_come_later(
    ch: BlockingChannel, api: Api, name: Name, set_policy: SetPolicy, arguments: dict[str, Any]
) -> None:
    queue = name("later")
    policy = set_policy(queue, {"max-length": 1, "overflow": "reject-publish"}, apply_to="queues")
    ch.queue_declare(queue, durable=True, arguments=arguments)
    ch.confirm_delivery()
    # RabbitMQ reports it with its next statistics.
    eventually(lambda: shown(api, queue).get("policy") == policy)
    found = shown(api, queue)
    assert found["operator_policy"] is None
    assert found["effective_policy_definition"] == {"max-length": 1, "overflow": "reject-publish"}
    # A quorum queue of RabbitMQ takes a few more before it refuses.
    with pytest.raises(NackError):
        for _ in range(100):
            publish(ch, queue, b"x")


@pytest.mark.parametrize("arguments", KINDS)
def test_messages_expire_and_go_to_the_dead_letter_exchange_of_a_policy(
    ch: BlockingChannel, name: Name, set_policy: SetPolicy, arguments: dict[str, Any]
) -> None:
    queue, dead = name("q"), name("dead")
    ch.queue_declare(dead)
    ch.queue_declare(queue, durable=True, arguments=arguments)
    set_policy(
        f"^{queue}$",
        {"message-ttl": 50, "dead-letter-exchange": "", "dead-letter-routing-key": dead},
        apply_to="queues",
    )
    ch.confirm_delivery()
    publish(ch, queue, b"x")
    got = eventually(lambda: (found := ch.basic_get(dead, auto_ack=True))[0] and found)
    assert got[1].headers["x-first-death-reason"] == "expired"
    assert got[1].headers["x-first-death-queue"] == queue


@pytest.mark.parametrize("arguments", KINDS)
def test_the_smaller_limit_of_argument_policy_and_operator_policy_holds(
    ch: BlockingChannel, api: Api, name: Name, set_policy: SetPolicy, arguments: dict[str, Any]
) -> None:
    queue, short = name("wide"), name("short")
    ch.confirm_delivery()
    policy = set_policy(f"^({queue}|{short})$", {"max-length": 3, "expires": 900_000}, apply_to="queues")
    operator = set_policy(
        f"^({queue}|{short})$", {"max-length": 2, "expires": 990_000}, operator=True, apply_to="queues"
    )
    ch.queue_declare(queue, durable=True, arguments={"x-max-length": 50} | arguments)
    ch.queue_declare(short, durable=True, arguments={"x-max-length": 1} | arguments)
    for each in (queue, short):
        eventually(lambda each=each: shown(api, each).get("policy") == policy)  # type: ignore[misc]
        found = shown(api, each)
        assert found["operator_policy"] == operator
        assert found["effective_policy_definition"] == {"max-length": 2, "expires": 900_000}
        publish(ch, each, *[b"%d" % number for number in range(6)])
    eventually(lambda: (length(ch, queue), length(ch, short)) == (2, 1))


def test_what_a_classic_queue_was_declared_with_goes_before_a_policy(
    ch: BlockingChannel, name: Name, set_policy: SetPolicy
) -> None:
    queue, own, other = name("q"), name("own"), name("other")
    ch.queue_declare(own)
    ch.queue_declare(other)
    own_arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": own}
    ch.queue_declare(queue, arguments=own_arguments)
    set_policy(
        f"^{queue}$", {"dead-letter-exchange": "", "dead-letter-routing-key": other}, apply_to="queues"
    )
    ch.confirm_delivery()
    publish(ch, queue, b"x")
    ch.basic_reject(ch.basic_get(queue)[0].delivery_tag, requeue=False)
    eventually(lambda: length(ch, own) == 1)
    assert length(ch, other) == 0


def test_the_highest_priority_applies(
    ch: BlockingChannel, api: Api, name: Name, set_policy: SetPolicy
) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    low = set_policy(queue, {"max-length": 10}, priority=1)
    high = set_policy(queue, {"max-length-bytes": 10}, priority=2)
    set_policy(f"{queue}-not", {"max-length": 1}, priority=9)
    set_policy(queue, {"alternate-exchange": "amq.fanout"}, priority=9, apply_to="exchanges")
    eventually(lambda: shown(api, queue).get("policy") == high)
    assert shown(api, queue)["effective_policy_definition"] == {"max-length-bytes": 10}
    assert put(api, "policies", low, queue, {"max-length": 7}, priority=3).status == 204
    eventually(lambda: shown(api, queue).get("policy") == low)
    assert shown(api, queue)["effective_policy_definition"] == {"max-length": 7}
    api.ask("DELETE", f"policies/%2F/{low}")
    eventually(lambda: shown(api, queue).get("policy") == high)


def test_a_policy_applies_to_no_queue_for_which_a_part_of_it_means_nothing(
    ch: BlockingChannel, api: Api, name: Name, set_policy: SetPolicy
) -> None:
    classic, quorum, stream = name("classic"), name("quorum"), name("stream")
    ch.queue_declare(classic, durable=True)
    ch.queue_declare(quorum, durable=True, arguments=QUORUM)
    ch.queue_declare(stream, durable=True, arguments=STREAM)
    pattern = f"^({classic}|{quorum}|{stream})$"
    limited = set_policy(pattern, {"max-length": 9, "delivery-limit": 2}, apply_to="queues")
    aged = set_policy(pattern, {"max-length-bytes": 10_000, "max-age": "1D"}, priority=-1)
    eventually(lambda: shown(api, quorum).get("policy") == limited)
    eventually(lambda: shown(api, stream).get("policy") == aged)
    assert shown(api, classic).get("policy") is None


def test_a_delivery_limit(ch: BlockingChannel, name: Name, set_policy: SetPolicy) -> None:
    queue = name("q")
    ch.queue_declare(queue, durable=True, arguments=QUORUM)
    set_policy(queue, {"delivery-limit": 1}, apply_to="queues")
    ch.confirm_delivery()
    publish(ch, queue, b"x")
    returned = 0
    while (got := ch.basic_get(queue))[0] is not None:
        returned += 1
        assert returned <= 2
        ch.basic_reject(got[0].delivery_tag, requeue=True)
    assert returned == 2


@pytest.mark.parametrize("arguments", KINDS)
def test_an_unused_queue_goes(
    ch: BlockingChannel, api: Api, name: Name, set_policy: SetPolicy, arguments: dict[str, Any]
) -> None:
    queue, used = name("q"), name("used")
    for each in (queue, used):
        ch.queue_declare(each, durable=True, arguments=arguments)
    ch.basic_consume(used, lambda *_: None)
    set_policy(f"^({queue}|{used})$", {"expires": 200}, apply_to="queues")
    # A declare would renew its lease.
    eventually(lambda: api.ask("GET", f"queues/%2F/{queue}").status == 404)
    assert queue_exists(ch, used)


def test_an_alternate_exchange(ch: BlockingChannel, api: Api, name: Name, set_policy: SetPolicy) -> None:
    exchange, other, queue, declared = name("x"), name("other"), name("q"), name("declared")
    ch.exchange_declare(exchange, "direct")
    ch.exchange_declare(other, "fanout")
    ch.exchange_declare(declared, "direct", arguments={"alternate-exchange": "amq.topic"})
    ch.queue_declare(queue)
    ch.queue_bind(queue, other)
    ch.confirm_delivery()
    publish(ch, "nowhere", b"lost", exchange=exchange)
    policy = set_policy(f"^({exchange}|{declared})$", {"alternate-exchange": other}, apply_to="exchanges")
    eventually(lambda: shown(api, exchange, "exchanges").get("policy") == policy)
    for each in (exchange, declared):
        publish(ch, "nowhere", each.encode(), exchange=each)
    got = eventually(lambda: (found := ch.basic_get(queue, auto_ack=True))[0] and found)
    assert got[2] == exchange.encode()
    assert length(ch, queue) == 0
    api.ask("DELETE", f"policies/%2F/{policy}")
    eventually(lambda: "policy" not in shown(api, exchange, "exchanges"))
    publish(ch, "nowhere", b"lost", exchange=exchange)
    assert length(ch, queue) == 0


def test_lists(api: Api, name: Name, set_policy: SetPolicy) -> None:
    policy = set_policy("^x", {"max-length": 1}, apply_to="queues", priority=4)
    told = {
        "vhost": "/",
        "name": policy,
        "pattern": "^x",
        "apply-to": "queues",
        "definition": {"max-length": 1},
        "priority": 4,
    }
    assert api.ask("GET", f"policies/%2F/{policy}").json == told
    assert told in api.ask("GET", "policies").json
    assert told in api.ask("GET", "policies/%2F").json
    assert told not in api.ask("GET", "operator-policies").json
    assert api.ask("GET", "policies/no-such-vhost").status == 404
    assert api.ask("GET", f"operator-policies/%2F/{policy}").status == 404
    assert api.ask("DELETE", f"operator-policies/%2F/{policy}").status == 404
    assert api.ask("PUT", f"policies/%2F/{policy}", told | {"priority": 5}).status == 204
    assert api.ask("GET", f"policies/%2F/{policy}").json == told | {"priority": 5}


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"definition": {"max-length": 1}}, "[{key_missing,pattern}]"),
    ({"pattern": "x"}, "[{key_missing,definition}]"),
    ({"definition": {}}, "no policy provided"),
    ({"definition": {"nosuch": 1}}, '[{&lt;&lt;"nosuch"&gt;&gt;,1}] are not recognised policy settings'),
    ({"priority": "x"}, 'priority should be a number, actually was &lt;&lt;"x"&gt;&gt;'),
    ({"pattern": "("}, "pattern should be regular expression but is invalid: "),
    ({"apply-to": "x"}, "apply-to 'x' unrecognised; should be "),
    ({"definition": {"max-length": -1}}, "-1 is not a valid maximum length"),
    ({"definition": {"max-length": "x"}}, '&lt;&lt;"x"&gt;&gt; is not a valid maximum length'),
    ({"definition": {"max-length-bytes": -1}}, "-1 is not a valid maximum length in bytes"),
    ({"definition": {"message-ttl": -1}}, "-1 is not a valid message TTL"),
    ({"definition": {"expires": 0}}, "0 is not a valid queue expiry"),
    ({"definition": {"overflow": 1}}, "1 is not a valid overflow value"),
    ({"definition": {"delivery-limit": "x"}}, '&lt;&lt;"x"&gt;&gt; is not a valid delivery limit'),
    ({"definition": {"dead-letter-exchange": 1}}, "1 is not a valid dead letter exchange name"),
    ({"definition": {"dead-letter-routing-key": 1}}, "1 is not a valid dead letter routing key"),
    ({"definition": {"dead-letter-strategy": 1}}, "1 is not a valid dead letter strategy"),
    ({"definition": {"alternate-exchange": 1}}, "1 is not a valid alternate exchange name"),
    ({"definition": {"max-age": "1"}}, '&lt;&lt;"1"&gt;&gt; is not a valid max age'),
]


@pytest.mark.parametrize(("body", "reason"), INVALID)
def test_what_is_wrong_is_told(api: Api, name: Name, body: dict[str, Any], reason: str) -> None:
    policy = name("policy")
    full = {"pattern": "^no-queue", "definition": {"max-length": 1}} | body
    if "key_missing" in reason:
        full = body
    answer = api.ask("PUT", f"policies/%2F/{policy}", full)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    if "key_missing" in reason:
        assert answer.json["reason"] == reason
    else:
        assert answer.json["reason"].startswith(f"Validation failed\n\n{reason}")
    assert api.ask("GET", f"policies/%2F/{policy}").status == 404
    missing = api.ask("PUT", "policies/no-such-vhost/x", {"pattern": "x", "definition": {"max-length": 1}})
    assert (missing.status, missing.json["reason"]) == (404, "vhost_not_found")


def test_operators_set_limits_only(api: Api, name: Name) -> None:
    for definition in ({"queue-mode": "lazy"}, {"max-length": 1, "dead-letter-exchange": ""}):
        answer = put(api, "operator-policies", name("policy"), "^no-queue", definition)
        assert answer.status == 400
        assert "are not recognised policy settings" in answer.json["reason"]


def test_the_operators_overflow_holds(api: Api, ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    assert put(api, "policies", queue, f"^{queue}$", {"max-length": 1, "overflow": "drop-head"}).status == 201
    operators = {"overflow": "reject-publish"}
    try:
        assert put(api, "operator-policies", queue, f"^{queue}$", operators).status == 201
        ch.queue_declare(queue)
        ch.confirm_delivery()
        ch.basic_publish("", queue, b"1")
        with pytest.raises(NackError):
            for _ in range(3):
                ch.basic_publish("", queue, b"2")
    finally:
        for kind in ("policies", "operator-policies"):
            api.ask("DELETE", f"{kind}/%2F/{queue}")


def test_who_may_set_them(api: Api, name: Name) -> None:
    users = {tag: name(tag) for tag in ("management", "monitoring", "policymaker")}
    stranger = name("stranger")
    for tag, user in [*users.items(), ("policymaker", stranger)]:
        assert api.ask("PUT", f"users/{user}", {"password": "x", "tags": tag}).status == 201
        if user != stranger:
            everything = {"configure": ".*", "write": ".*", "read": ".*"}
            assert api.ask("PUT", f"permissions/%2F/{user}", everything).status == 201
    try:
        for tag, user in [*users.items(), ("stranger", stranger)]:
            login, policy = f"{user}:x", name("policy")
            body = {"pattern": "^no-queue", "definition": {"max-length": 1}}
            may = tag == "policymaker"
            asked = api.ask("PUT", f"policies/%2F/{policy}", body, login=login)
            assert asked.status == (201 if may else 401), tag
            if not may:
                assert asked.json["reason"] == "User not authorised to access object"
            assert api.ask("GET", f"policies/%2F/{policy}", login=login).status == (200 if may else 401)
            assert api.ask("DELETE", f"policies/%2F/{policy}", login=login).status == (204 if may else 401)
            for method in ("PUT", "GET", "DELETE"):
                asked = api.ask(method, f"operator-policies/%2F/{policy}", body, login=login)
                assert (asked.status, asked.json["reason"]) == (401, "Not administrator user")
            if tag != "stranger":
                assert api.ask("GET", "policies/%2F", login=login).status == 200
                assert api.ask("GET", "operator-policies/%2F", login=login).status == 200
    finally:
        for user in (*users.values(), stranger):
            api.ask("DELETE", f"users/{user}")
