"""Users of another server: the broker's questions, and their times. On a separate broker that is configured
to ask it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pika.exceptions
import pytest

from conformance_tests.api import Api
from conformance_tests.beside import Place, beside
from conformance_tests.broker import Broker
from conformance_tests.expect import check_close
from conformance_tests.http_backend import PATHS, Asked, Backend
from conformance_tests.patience import patient


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    made = Backend()
    yield made
    made.close()


@pytest.fixture(scope="module")
def place(broker: Broker, backend: Backend) -> Iterator[Place]:
    """A broker that asks the backend."""
    options = ["--auth-backends", "internal,http"]
    settings = ["auth_backends.1 = internal", "auth_backends.2 = http", "auth_http.http_method = post"]
    for path in PATHS:
        options += [f"--auth-http-{path}-path", f"{backend.url}/{path}"]
        settings.append(f"auth_http.{path}_path = {backend.url}/{path}")
    with beside(broker, options, ["rabbitmq_auth_backend_http"], settings) as found:
        yield found


@pytest.fixture
def asked(backend: Backend) -> Iterator[Backend]:
    backend.asked.clear()
    yield backend
    backend.tags, backend.permits = "", lambda asked: True


def connect(place: Place, user: str = "anna", password: str = "tea") -> pika.BlockingConnection:
    return pika.BlockingConnection(patient(pika.URLParameters(f"amqp://{user}:{password}@{place.amqp}/")))


def test_what_is_asked(place: Place, asked: Backend) -> None:
    asked.tags = "Monitoring  custom"
    channel = connect(place).channel()
    channel.confirm_delivery()
    channel.queue_declare("q", arguments={"x-dead-letter-exchange": "amq.fanout"})
    channel.queue_bind("q", "amq.topic", "a.b")
    channel.basic_publish("amq.topic", "a.b", b"tea")
    channel.basic_publish("", "q", b"tea")
    assert channel.basic_get("q", auto_ack=True)[2] == b"tea"
    channel.connection.close()
    whole = [(each.path, each.parameters) for each in asked.asked]
    who = {"username": "anna", "vhost": "/", "tags": "monitoring custom"}

    def resource(kind: str, name: str, permission: str) -> tuple[str, dict[str, str]]:
        return "resource", {**who, "resource": kind, "name": name, "permission": permission}

    def topic(permission: str) -> tuple[str, dict[str, str]]:
        _, told = resource("topic", "amq.topic", permission)
        names = {"variable_map.username": "anna", "variable_map.vhost": "/"}
        return "topic", {**told, "routing_key": "a.b", **names}

    assert whole == [
        ("user", {"username": "anna", "password": "tea"}),
        ("vhost", {**who, "ip": "127.0.0.1"}),
        resource("queue", "q", "configure"),
        resource("queue", "q", "read"),
        resource("exchange", "amq.fanout", "write"),
        resource("queue", "q", "write"),
        resource("exchange", "amq.topic", "read"),
        topic("read"),
        resource("exchange", "amq.topic", "write"),
        topic("write"),
        resource("exchange", "amq.default", "write"),
        # No question for basic.get: the answer about reading the queue is cached.
    ]


def test_who_is_refused(place: Place, asked: Backend) -> None:
    for user, password in (("anna", "coffee"), ("nobody", "tea"), ("guest", "tea")):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="ACCESS_REFUSED"):
            connect(place, user, password)
    assert [(each["username"], each["password"]) for each in asked.questions("user")] == [
        ("anna", "coffee"),
        ("nobody", "tea"),
        ("guest", "tea"),
    ]
    asked.asked.clear()
    connect(place, "guest", "guest").close()
    # A user of the broker itself: the server is not asked.
    assert asked.asked == []


def test_what_is_refused(place: Place, asked: Backend) -> None:
    connection = connect(place)
    asked.permits = lambda each: each.path == "vhost" or each.parameters.get("permission") == "write"
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        connection.channel().queue_declare("refused")
    refused = r"ACCESS_REFUSED - (configure )?access to queue 'refused' in vhost '/' refused for user 'anna'"
    check_close(closed.value.reply_code, closed.value.reply_text, 403, f"^{refused}$")
    asked.permits = lambda each: each.path != "topic"
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", "no.key", b"tea")
    refused = r"access to topic 'no\.key' in exchange 'amq.topic' in vhost '/' refused for user 'anna'"
    check_close(
        closed.value.reply_code, closed.value.reply_text, 403, f"^ACCESS_REFUSED - (write )?{refused}$"
    )
    connection.close()


def test_the_vhost_is_refused(place: Place, asked: Backend) -> None:
    asked.passwords["bert"] = "tea"
    asked.permits = lambda each: each.path != "vhost"
    refused = "NOT_ALLOWED - access to vhost '/' refused for user 'bert'"
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=f"530.*{refused}"):
        connect(place, "bert")


def test_the_management_api(place: Place, asked: Backend) -> None:
    asked.passwords["carl"] = "tea"
    asked.tags = "management"
    api = Api(f"http://carl:tea@{place.http}")
    assert api.ask("GET", "whoami").json["tags"] == ["management"]
    assert [each["name"] for each in api.ask("GET", "vhosts").json] == ["/"]
    assert api.ask("PUT", "queues/%2F/carls", {}).status == 201
    asked.permits = lambda each: each.parameters.get("name") != "other"
    assert api.ask("PUT", "queues/%2F/other", {}).status in (400, 401)
    assert api.ask("DELETE", "queues/%2F/carls").status == 204
    configured = Asked("POST", "resource", {
        "username": "carl",
        "vhost": "/",
        "resource": "queue",
        "name": "carls",
        "permission": "configure",
        "tags": "management",
    })  # fmt: skip
    assert configured in asked.asked
