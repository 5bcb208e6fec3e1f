"""The lists of the management API, field by field: names, types, and rates. See shapes.py."""

from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests import shapes
from conformance_tests.api import Api
from conformance_tests.broker import Broker
from conformance_tests.expect import eventually
from conformance_tests.patience import open_connection

#: RabbitMQ shows changes after its statistics interval, which is 5 s.
SHOWN_S = 30.0
TYPES = {"classic": shapes.CLASSIC, "quorum": shapes.QUORUM, "stream": shapes.STREAM}


class Scene:
    """Queues of all types with a consumer and some traffic, over a named connection."""

    def __init__(self, url: str) -> None:
        wanted = pika.URLParameters(url)
        wanted.client_properties = {"connection_name": "shapes"}
        self.connection = pika.BlockingConnection(wanted)
        self.channel = self.connection.channel()
        self.queues = {kind: f"shapes.{kind}" for kind in TYPES}
        self.channel.confirm_delivery()
        self.channel.basic_qos(prefetch_count=10)
        self.channel.exchange_declare("shapes", "direct", durable=True)
        for kind, queue in self.queues.items():
            self.channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
            self.channel.queue_bind(queue, "shapes", kind)
            for _ in range(4):
                self.channel.basic_publish("shapes", kind, b"body")
            self._take(self.channel, queue, kind)
        # No consumer gets this message.
        self.channel.basic_publish("shapes", "nowhere", b"body")
        self.channel.basic_get(self.queues["classic"])

    def _take(self, channel: BlockingChannel, queue: str, kind: str) -> None:
        arguments = {"x-stream-offset": "first"} if kind == "stream" else {}
        channel.basic_consume(
            queue,
            lambda channel, method, _, __: channel.basic_ack(method.delivery_tag),
            arguments=arguments,
            consumer_tag=f"tag.{kind}",
        )
        self.connection.process_data_events(0.2)

    def go_on(self) -> None:
        """Handle heartbeats and deliveries."""
        self.connection.process_data_events(0.05)

    def close(self) -> None:
        self.connection.close()


@pytest.fixture(scope="module")
def scene(broker: Broker) -> Iterator[Scene]:
    if not broker.http_url:
        pytest.skip("needs the management API (--http-url) of the broker behind --amqp-url")
    made = Scene(broker.url)
    yield made
    made.close()
    connection = open_connection(broker.url)
    channel = connection.channel()
    for queue in made.queues.values():
        channel.queue_delete(queue)
    channel.exchange_delete("shapes")
    connection.close()


def lacks(broker: Broker) -> shapes.Lacks:
    if broker.is_mqd:
        return shapes.MQD
    return shapes.RABBITMQ4 if broker.product == "RabbitMQ" and broker.version >= "4" else shapes.NOTHING


def get(api: Api, path: str) -> Any:
    answer = api.ask("GET", path)
    assert answer.status == 200, answer.body
    return answer.json


def rows(api: Api, path: str, **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in get(api, path) if all(row.get(name) == value for name, value in wanted.items())]


def faultless(scene: Scene, look: Any) -> None:
    """Changes are shown a while later."""
    last: list[list[str]] = [["nothing was looked at"]]

    def right() -> bool:
        scene.go_on()
        try:
            last[0] = look()
        except (AssertionError, IndexError, KeyError, TypeError, ValueError) as error:
            last[0] = [repr(error)]
        return not last[0]

    try:
        eventually(right, SHOWN_S)
    except pytest.fail.Exception:
        pytest.fail("\n".join(last[0]))


def test_overview(api: Api, broker: Broker, scene: Scene) -> None:
    def look() -> list[str]:
        told = get(api, "overview")
        return [
            *shapes.faults(told, shapes.OVERVIEW, lacks(broker)),
            *shapes.faults(told["churn_rates"], shapes.CHURN),
            *shapes.faults(told["object_totals"], shapes.OBJECT_TOTALS),
            *shapes.faults(told["queue_totals"], shapes.QUEUE_TOTALS),
            *shapes.faults(told["message_stats"], shapes.PUBLISHED + shapes.DELIVERED),
            *(fault for each in told["exchange_types"] for fault in shapes.faults(each, shapes.EXCHANGE_TYPE)),
            *(fault for each in told["listeners"] if each["protocol"] == "amqp" for fault in shapes.faults(each, shapes.LISTENER)),
            *shapes.faults(told["contexts"][0], shapes.CONTEXT),
        ]  # fmt: skip

    faultless(scene, look)


def test_nodes(api: Api, broker: Broker, scene: Scene) -> None:
    def look() -> list[str]:
        (listed,) = get(api, "nodes")
        alone = get(api, f"nodes/{quote(listed['name'], safe='')}")
        return [fault for row in (listed, alone) for fault in shapes.faults(row, shapes.NODE, lacks(broker))]

    faultless(scene, look)


def test_connections_and_channels(api: Api, broker: Broker, scene: Scene) -> None:
    def look() -> list[str]:
        (connection,) = rows(api, "connections", user_provided_name="shapes")
        name = connection["name"]
        alone = get(api, f"connections/{quote(name, safe='')}")
        found = [
            fault
            for row in (connection, alone)
            for fault in shapes.faults(row, shapes.CONNECTION, lacks(broker))
        ]
        (channel,) = rows(api, "channels", name=f"{name} (1)")
        (of_connection,) = get(api, f"connections/{quote(name, safe='')}/channels")
        one = get(api, f"channels/{quote(channel['name'], safe='')}")
        for row in (channel, of_connection, one):
            found += shapes.faults(row, shapes.CHANNEL, lacks(broker))
            found += shapes.faults(row["connection_details"], shapes.CHANNEL_OF_CONNECTION)
            found += shapes.faults(row["message_stats"], shapes.PUBLISHED.replace("return_unroutable+:i", ""))
            found += shapes.faults(row["message_stats"], shapes.DELIVERED)
        return found + shapes.faults(one, shapes.ONE_CHANNEL)

    faultless(scene, look)


def test_consumers(api: Api, broker: Broker, scene: Scene) -> None:
    def look() -> list[str]:
        found: list[str] = []
        for kind in TYPES:
            (row,) = rows(api, "consumers/%2F", consumer_tag=f"tag.{kind}")
            found += shapes.faults(row, shapes.CONSUMER)
            found += shapes.faults(row["channel_details"], shapes.CHANNEL_OF_CONSUMER)
            assert row["queue"] == {"name": scene.queues[kind], "vhost": "/"}
        return found

    faultless(scene, look)


def test_exchanges(api: Api, broker: Broker, scene: Scene) -> None:
    def look() -> list[str]:
        (listed,) = rows(api, "exchanges/%2F", name="shapes")
        one = get(api, "exchanges/%2F/shapes")
        found = shapes.faults(one, shapes.ONE_EXCHANGE)
        for row in (listed, one):
            found += shapes.faults(row, shapes.EXCHANGE, lacks(broker))
            found += shapes.faults(row["message_stats"], shapes.EXCHANGED)
        assert one["message_stats"]["publish_in"] == 13
        assert one["message_stats"]["publish_out"] == 12
        return found

    faultless(scene, look)


@pytest.mark.parametrize("kind", TYPES)
def test_queues(api: Api, broker: Broker, scene: Scene, kind: str) -> None:
    def look() -> list[str]:
        queue = scene.queues[kind]
        (listed,) = rows(api, "queues/%2F", name=queue)
        one = get(api, f"queues/%2F/{queue}")
        found = shapes.faults(one, shapes.ONE_QUEUE)
        for row in (listed, one):
            found += shapes.faults(row, shapes.QUEUE + TYPES[kind], lacks(broker))
            found += shapes.faults(row["message_stats"], "publish+:i" + shapes.DELIVERED)
            assert row["message_stats"]["publish"] == row["message_stats"]["deliver"] == 4
            assert row["message_stats"]["ack"] == 4
        assert [each["consumer_tag"] for each in one["consumer_details"]] == [f"tag.{kind}"]
        return found

    faultless(scene, look)


def test_what_consumers_hold_is_counted(api: Api, broker: Broker, scene: Scene) -> None:
    channel = scene.connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    for number in range(4):
        properties = pika.BasicProperties(timestamp=1_700_000_000 + number)
        channel.basic_publish("", queue, b"x" * 100, properties)

    def look() -> list[str]:
        (row,) = rows(api, "queues/%2F", name=queue)
        assert (row["messages"], row["messages_ready"], row["messages_unacknowledged"]) == wanted
        each = row["message_bytes"] / 4
        assert each >= 100
        assert (row["message_bytes_ready"], row["message_bytes_unacknowledged"]) == (
            wanted[1] * each,
            wanted[2] * each,
        )
        return []

    wanted = (4, 4, 0)
    faultless(scene, look)
    assert get(api, f"queues/%2F/{queue}")["head_message_timestamp"] == 1_700_000_000
    for _ in range(3):
        channel.basic_get(queue)
    wanted = (4, 1, 3)
    faultless(scene, look)
    channel.close()


def test_messages_of_a_stream_are_counted_once(api: Api, scene: Scene) -> None:
    """Messages that a consumer holds are in the stream as well."""
    channel = scene.connection.channel()
    channel.basic_qos(prefetch_count=10)
    channel.basic_consume(
        scene.queues["stream"], lambda *_: None, arguments={"x-stream-offset": "first"}, consumer_tag="holds"
    )

    def look() -> list[str]:
        (row,) = rows(api, "queues/%2F", name=scene.queues["stream"])
        (held,) = rows(api, "channels", name=f"{row_of(api)['name']} ({channel.channel_number})")
        assert held["messages_unacknowledged"] == 4
        assert (row["messages"], row["messages_ready"], row["messages_unacknowledged"]) == (4, 4, 0)
        return []

    faultless(scene, look)
    channel.close()


def row_of(api: Api) -> dict[str, Any]:
    (row,) = rows(api, "connections", user_provided_name="shapes")
    return row


def test_bindings(api: Api, scene: Scene) -> None:
    queue = scene.queues["classic"]
    for path in (
        "bindings",
        "bindings/%2F",
        f"queues/%2F/{queue}/bindings",
        "exchanges/%2F/shapes/bindings/source",
    ):
        (row,) = rows(api, path, source="shapes", destination=queue)
        assert shapes.faults(row, shapes.BINDING) == []


def test_vhosts(api: Api, scene: Scene) -> None:
    def look() -> list[str]:
        (listed,) = rows(api, "vhosts", name="/")
        found = [
            fault for row in (listed, get(api, "vhosts/%2F")) for fault in shapes.faults(row, shapes.VHOST)
        ]
        return found + shapes.faults(listed["message_stats"], shapes.PUBLISHED + shapes.DELIVERED)

    faultless(scene, look)


# -- the query -----------------------------------------------------------------------------------------------

REFUSED = {
    "page=0": "invalid_pagination_parameters",
    "page=1&page_size=501": "invalid_pagination_parameters",
    "page=99999&page_size=2": "page_out_of_range",
    "page=x": "bad_request",
}


@pytest.mark.parametrize("query", REFUSED)
def test_pages_that_there_are_not(api: Api, scene: Scene, query: str) -> None:
    answer = api.ask("GET", f"queues?{query}")
    assert (answer.status, answer.json["error"]) == (400, REFUSED[query])
    texts = {
        "page=0": "Invalid pagination parameters: page number 0, page size undefined",
        "page=1&page_size=501": "Invalid pagination parameters: page number 1, page size 501",
        "page=x": "Pagination parameters are invalid",
    }
    assert answer.json["reason"] == texts.get(query, answer.json["reason"])


def test_pages(api: Api, scene: Scene) -> None:
    told = get(api, "queues?page=1&page_size=2&name=shapes.&sort=name&sort_reverse=true&columns=name")
    assert [row["name"] for row in told["items"]] == ["shapes.stream", "shapes.quorum"]
    assert {name: told[name] for name in ("filtered_count", "item_count", "page", "page_count", "page_size")} == {
        "filtered_count": 3, "item_count": 2, "page": 1, "page_count": 2, "page_size": 2,
    }  # fmt: skip
    told = get(api, "queues?page=1&name=%5Eshapes%5C.[cq]&use_regex=true&columns=name&sort=name")
    assert [row["name"] for row in told["items"]] == ["shapes.classic", "shapes.quorum"]
    assert isinstance(get(api, "queues?page_size=5"), list)


def test_lists_without_statistics(api: Api, scene: Scene) -> None:
    (row,) = rows(api, "queues?disable_stats=true", name="shapes.classic")
    basic = {"arguments", "auto_delete", "durable", "exclusive", "name", "node", "state", "type", "vhost"}
    assert basic <= row.keys() and not {"messages", "message_stats", "consumers"} & row.keys()
    (row,) = rows(api, "queues?disable_stats=true&enable_queue_totals=true", name="shapes.classic")
    assert basic | {"messages", "messages_ready", "messages_unacknowledged"} <= row.keys()
    assert "message_stats" not in row


@pytest.mark.parametrize(
    ("query", "many"), [("msg_rates_age=60&msg_rates_incr=5", True), ("msg_rates_age=60", False)]
)
def test_samples(api: Api, scene: Scene, query: str, many: bool) -> None:
    def look() -> list[str]:
        told = get(api, f"exchanges/%2F/shapes?{query}")["message_stats"]["publish_in_details"]
        if not many:
            assert set(told) == {"rate"}
            return []
        assert set(told) == {"rate", "avg", "avg_rate", "samples"}
        stamps = [each["timestamp"] for each in told["samples"]]
        assert len(stamps) == 13
        assert stamps == sorted(stamps, reverse=True)
        assert {before - after for before, after in zip(stamps, stamps[1:], strict=False)} == {5_000}
        assert told["samples"][0]["sample"] == 13
        return []

    faultless(scene, look)


def test_a_connection_is_closed_with_the_reason_of_the_header(api: Api, broker: Broker) -> None:
    for headers, text in (
        ({}, "CONNECTION_FORCED - Closed via management plugin"),
        ({"X-Reason": "out of order"}, "CONNECTION_FORCED - out of order"),
    ):
        wanted = pika.URLParameters(broker.url)
        wanted.client_properties = {"connection_name": "to be closed"}
        connection = pika.BlockingConnection(wanted)

        def listed() -> list[dict[str, Any]]:
            return rows(api, "connections", user_provided_name="to be closed", state="running")

        (row,) = eventually(listed, SHOWN_S)
        path = f"connections/{quote(row['name'], safe='')}"
        assert api.ask("DELETE", path, headers=headers).status == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            while True:
                connection.process_data_events(1)
        assert (closed.value.reply_code, closed.value.reply_text) == (320, text)
        eventually(partial(_is_gone, api, path), SHOWN_S)


def _is_gone(api: Api, path: str) -> bool:
    return api.ask("GET", path).status == 404
