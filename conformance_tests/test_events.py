"""Events on amq.rabbitmq.event: which come, in which order, and their content. On a broker that is configured
to publish them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.api import Api
from conformance_tests.beside import Place, beside
from conformance_tests.broker import Broker
from conformance_tests.expect import eventually
from conformance_tests.patience import open_connection, patient

EVENT = "amq.rabbitmq.event"
#: Events about RabbitMQ's own steps.
STEPS = ("vhost.down", "exchange-delete-in-progress")


class Told(NamedTuple):
    key: str
    headers: dict[str, Any]


@pytest.fixture(scope="module")
def place(broker: Broker) -> Iterator[Place]:
    with beside(broker, ["--event-exchange-vhost", "/"], ["rabbitmq_event_exchange"]) as found:
        yield found


@pytest.fixture
def api(place: Place) -> Api:
    return Api(f"http://guest:guest@{place.http}")


def url(place: Place, login: str = "guest:guest", vhost: str = "%2F") -> str:
    return f"amqp://{login}@{place.amqp}/{vhost}"


class Tap:
    """A queue that gets events."""

    def __init__(self, channel: BlockingChannel, *keys: str) -> None:
        self._channel = channel
        self._queue = channel.queue_declare("", exclusive=True).method.queue
        self.waiting: list[Told] = []
        for key in keys:
            channel.queue_bind(self._queue, EVENT, key)

    def next(self) -> Told:
        """Return the next event; check the parts that are the same in all events."""
        got: list[Any] = []

        def comes() -> bool:
            got[:] = self._channel.basic_get(self._queue, auto_ack=True)
            return got[0] is not None

        eventually(comes)
        method, properties, body = got
        assert body == b"" and properties.delivery_mode == 2
        headers = dict(properties.headers)
        assert abs(headers.pop("timestamp_in_ms") // 1000 - properties.timestamp) <= 1
        assert method.exchange == EVENT
        if method.routing_key in STEPS or headers.get("component") in STEPS:
            return self.next()
        return Told(method.routing_key, headers)

    def expect(self, key: str, **headers: Any) -> dict[str, Any]:
        """Check that the next event has this key, and these headers among others."""
        told = self.next()
        assert told.key == key, told
        assert headers.items() <= told.headers.items(), told
        return told.headers


@pytest.fixture
def channel(place: Place) -> Iterator[BlockingChannel]:
    connection = open_connection(url(place))
    yield connection.channel()
    connection.close()


@pytest.fixture
def tap(channel: BlockingChannel) -> Callable[..., Tap]:
    return lambda *keys: Tap(channel, *keys)


BY_GUEST = {"user_who_performed_action": "guest"}


def test_the_exchange(api: Api, channel: BlockingChannel) -> None:
    found = api.ask("GET", f"exchanges/%2F/{EVENT}").json
    shown = {name: found[name] for name in ("type", "durable", "internal", "auto_delete", "arguments")}
    assert shown == {
        "type": "topic",
        "durable": True,
        "internal": True,
        "auto_delete": False,
        "arguments": {},
    }
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
        channel.basic_publish(EVENT, "queue.created", b"")


def test_queues_exchanges_and_bindings(channel: BlockingChannel, tap: Callable[..., Tap]) -> None:
    told = tap("queue.*", "exchange.*", "binding.*")
    # The last one of its own.
    told.expect("binding.created", source_name=EVENT)
    channel.queue_declare("q", durable=True, arguments={"x-max-length": 5})
    headers = told.expect(
        "queue.created", name="q", vhost="/", durable=True, auto_delete=False, exclusive=False, **BY_GUEST
    )
    # RabbitMQ sends this as text in Erlang's syntax.
    assert "x-max-length" in str(headers["arguments"])
    channel.queue_declare("q", durable=True, arguments={"x-max-length": 5})
    channel.exchange_declare("x", "topic", auto_delete=True)
    told.expect(
        "exchange.created",
        name="x",
        vhost="/",
        type="topic",
        durable=False,
        auto_delete=True,
        internal=False,
        **BY_GUEST,
    )
    channel.queue_bind("q", "x", "k.#", {"a": 1})
    binding = {
        "source_name": "x",
        "source_kind": "exchange",
        "destination_name": "q",
        "destination_kind": "queue",
        "routing_key": "k.#",
        "vhost": "/",
    }
    headers = told.expect("binding.created", **binding, **BY_GUEST)
    assert "a" in str(headers["arguments"])
    channel.exchange_bind("amq.fanout", "x", "e")
    told.expect("binding.created", destination_name="amq.fanout", destination_kind="exchange", **BY_GUEST)
    channel.exchange_unbind("amq.fanout", "x", "e")
    told.expect("binding.deleted", destination_name="amq.fanout", destination_kind="exchange", **BY_GUEST)
    channel.queue_delete("q")
    # Objects that were deleted with it.
    gone = sorted((told.next() for _ in range(3)), key=lambda each: each.key)
    assert [each.key for each in gone] == ["binding.deleted", "exchange.deleted", "queue.deleted"]
    assert binding.items() <= gone[0].headers.items()
    assert {"name": "x", "vhost": "/"}.items() <= gone[1].headers.items()
    assert ({"name": "q", "vhost": "/"} | BY_GUEST).items() <= gone[2].headers.items()


def test_connections(place: Place, tap: Callable[..., Tap]) -> None:
    told = tap("connection.*", "channel.*", "consumer.*", "user.authentication.*")
    parameters = patient(pika.URLParameters(url(place)))
    parameters.client_properties = {"connection_name": "anna"}
    connection = pika.BlockingConnection(parameters)
    login = told.expect("user.authentication.success", name="guest", auth_mechanism="PLAIN", ssl=False)
    opened = told.expect(
        "connection.created",
        user="guest",
        vhost="/",
        type="network",
        ssl=False,
        auth_mechanism="PLAIN",
        **BY_GUEST,
    )
    assert (login["peer_host"], login["peer_port"]) == (opened["peer_host"], opened["peer_port"])
    assert opened["name"] == login["connection_name"]
    assert opened["name"].startswith(f"127.0.0.1:{opened['peer_port']} -> 127.0.0.1:")
    assert "anna" in str(opened["client_properties"])
    channel = connection.channel(7)
    made = told.expect(
        "channel.created", number=7, user="guest", vhost="/", connection=opened["pid"], **BY_GUEST
    )
    assert made["name"] == f"{opened['name']} (7)"
    channel.queue_declare("consumed", exclusive=True)
    channel.basic_qos(prefetch_count=5)
    channel.basic_consume("consumed", lambda *_: None, consumer_tag="tag", arguments={"x-priority": 2})
    consumer = {"consumer_tag": "tag", "queue": "consumed", "vhost": "/", "channel": made["pid"]}
    headers = told.expect(
        "consumer.created", exclusive=False, ack_required=True, prefetch_count=5, **consumer, **BY_GUEST
    )
    assert "x-priority" in str(headers["arguments"])
    channel.basic_cancel("tag")
    told.expect("consumer.deleted", **consumer, **BY_GUEST)
    channel.close()
    told.expect("channel.closed", pid=made["pid"])
    connection.close()
    told.expect("connection.closed", pid=opened["pid"], name=opened["name"])
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        open_connection(url(place, "guest:wrong"))
    failure = told.expect("user.authentication.failure", name="guest", auth_mechanism="PLAIN")
    assert failure["error"]


def test_users_and_permissions(api: Api, tap: Callable[..., Tap]) -> None:
    told = tap("user.created", "user.deleted", "user.password.*", "user.tags.*", "permission.*", "topic.#")
    api.ask("PUT", "users/bert", {"password": "p", "tags": "monitoring,other"})
    told.expect("user.created", name="bert", **BY_GUEST)
    headers = told.expect("user.tags.set", name="bert", **BY_GUEST)
    assert headers["tags"] == ["monitoring", "other"]
    everything = {"configure": ".*", "write": "", "read": "x"}
    api.ask("PUT", "permissions/%2F/bert", everything)
    told.expect("permission.created", user="bert", vhost="/", **everything, **BY_GUEST)
    topic = {"exchange": "amq.topic", "write": "a", "read": "b"}
    api.ask("PUT", "topic-permissions/%2F/bert", topic)
    told.expect("topic.permission.created", user="bert", vhost="/", **topic, **BY_GUEST)
    api.ask("DELETE", "topic-permissions/%2F/bert")
    told.expect("topic.permission.deleted", user="bert", vhost="/", **BY_GUEST)
    api.ask("DELETE", "permissions/%2F/bert")
    told.expect("permission.deleted", user="bert", vhost="/", **BY_GUEST)
    api.ask("DELETE", "users/bert")
    told.expect("user.deleted", name="bert", **BY_GUEST)


def test_vhosts_and_parameters(api: Api, tap: Callable[..., Tap]) -> None:
    told = tap("vhost.#", "policy.*", "parameter.*")
    api.ask("PUT", "vhosts/shop", {"description": "d", "tags": "a,b"})
    told.expect("vhost.created", name="shop", **BY_GUEST)
    api.ask("PUT", "vhost-limits/shop/max-queues", {"value": 5})
    limits = {"component": "vhost-limits", "vhost": "shop", "value": {"max-queues": 5}}
    told.expect("parameter.set", **limits, **BY_GUEST)
    headers = told.expect("vhost.limits.set", **BY_GUEST)
    assert headers["max-queues"] == 5
    policy = {"pattern": "^q", "definition": {"max-length": 3}, "apply-to": "queues", "priority": 1}
    api.ask("PUT", "policies/shop/p", policy)
    headers = told.expect("policy.set", name="p", vhost="shop", **BY_GUEST)
    assert {name: headers[name] for name in policy} == policy
    api.ask("DELETE", "policies/shop/p")
    told.expect("policy.cleared", name="p", vhost="shop", **BY_GUEST)
    api.ask("PUT", "global-parameters/g", {"value": {"a": 1}})
    told.expect("parameter.set", name="g", component="global", value={"a": 1}, **BY_GUEST)
    api.ask("DELETE", "global-parameters/g")
    # RabbitMQ sends an event that it is set to nothing.
    assert told.next().headers["name"] == "g"
    api.ask("DELETE", "vhosts/shop")
    deleted = told.next()
    while deleted.key in ("parameter.cleared", "vhost.limits.cleared"):
        # RabbitMQ 4 tells of the limits, too.
        deleted = told.next()
    assert deleted.key == "vhost.deleted"
    assert {"name": "shop", **BY_GUEST}.items() <= deleted.headers.items()


def test_what_the_management_does(api: Api, tap: Callable[..., Tap]) -> None:
    told = tap("queue.*", "exchange.*")
    api.ask("PUT", "users/carl", {"password": "p", "tags": "management"})
    api.ask("PUT", "permissions/%2F/carl", {"configure": ".*", "write": ".*", "read": ".*"})
    carl = Api(f"http://carl:p@{api.host}:{api.port}")
    by_carl = {"user_who_performed_action": "carl"}
    assert carl.ask("PUT", "queues/%2F/carls", {}).status == 201
    told.expect("queue.created", name="carls", **by_carl)
    assert carl.ask("PUT", "exchanges/%2F/carlx", {"type": "fanout"}).status == 201
    told.expect("exchange.created", name="carlx", **by_carl)
    assert carl.ask("DELETE", "exchanges/%2F/carlx").status == 204
    told.expect("exchange.deleted", name="carlx", **by_carl)
    assert carl.ask("DELETE", "queues/%2F/carls").status == 204
    told.expect("queue.deleted", name="carls", **by_carl)
    api.ask("DELETE", "users/carl")
