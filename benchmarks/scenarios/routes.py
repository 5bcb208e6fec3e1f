"""The topologies of the throughput scenarios and the messages that go through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from ..frames import message
from ..streams import Route, Topology, properties

BODY_BYTES = 128
TOPIC_BINDINGS = 1_000
HEADERS_BINDINGS = 100
FANOUT_QUEUES = 10
PAIRS = 4
MARK = b"0123456789"


def body(size: int) -> bytes:
    return b"b" * size


def one_queue(size: int) -> Callable[[Topology], Sequence[Route]]:
    def routes(topology: Topology) -> Sequence[Route]:
        queue = topology.queue("bench-0")
        return [Route([queue], [message("", queue, body(size), properties())])]

    return routes


def durable_queue(topology: Topology) -> Sequence[Route]:
    queue = topology.queue("bench-0", durable=True)
    return [Route([queue], [message("", queue, body(BODY_BYTES), properties(persistent=True))])]


def four_queues(topology: Topology) -> Sequence[Route]:
    queues = [topology.queue(f"bench-{i}") for i in range(PAIRS)]
    return [Route([queue], [message("", queue, body(BODY_BYTES), properties())]) for queue in queues]


def fanout(topology: Topology) -> Sequence[Route]:
    exchange = topology.exchange("fanout")
    queues = [topology.queue(f"bench-{i}") for i in range(FANOUT_QUEUES)]
    for queue in queues:
        topology.connection.bind(queue, exchange)
    return [Route(queues, [message(exchange, "", body(BODY_BYTES), properties())])]


def topic(topology: Topology) -> Sequence[Route]:
    """A third of the bindings each exact, with a star, with a hash. A thousand keys in turn, each matching
    one.
    """
    exchange = topology.exchange("topic")
    queue = topology.queue("bench-0")
    patterns = ("site.{:04}.alert", "site.{:04}.*", "site.{:04}.#")
    for i in range(TOPIC_BINDINGS):
        topology.connection.bind(queue, exchange, patterns[i % 3].format(i))
    keys = [f"site.{i:04}.alert" for i in range(TOPIC_BINDINGS)]
    return [Route([queue], [message(exchange, key, body(BODY_BYTES), properties()) for key in keys])]


def headers(topology: Topology) -> Sequence[Route]:
    """Every binding asks for two headers, half for all of them; a hundred messages in turn, each matching
    one.
    """
    exchange = topology.exchange("headers")
    queue = topology.queue("bench-0")
    sensors = [{"site": f"site-{i:04}", "kind": f"kind-{i:04}"} for i in range(HEADERS_BINDINGS)]
    for i, sensor in enumerate(sensors):
        arguments = sensor | {"x-match": "all" if i % 2 else "any"}
        topology.connection.bind(queue, exchange, **arguments)
    messages = [message(exchange, "", body(BODY_BYTES), properties(headers=sensor)) for sensor in sensors]
    return [Route([queue], messages)]


def distinct_headers(topology: Topology) -> Sequence[Route]:
    """No two content headers alike: message-id and a header of the application carry a running number."""
    queue = topology.queue("bench-0")
    mark = MARK.decode()
    sent = properties(message_id=mark, headers={"trace": mark}, timestamp=datetime(2024, 1, 1, tzinfo=UTC))
    return [Route([queue], [message("", queue, body(BODY_BYTES), sent)], MARK)]


def with_ids(*, recorded: bool, durable: bool) -> Callable[[Topology], Sequence[Route]]:
    """Each message has a message-id of its own; the queue records what becomes of it, or not."""

    def routes(topology: Topology) -> Sequence[Route]:
        arguments = {"x-message-status": True} if recorded else {}
        queue = topology.queue("bench-0", durable=durable, **arguments)
        # As long as the text of a UUID.
        sent = properties(persistent=durable, message_id=MARK.decode() + "-4b3c-9a1e-5d7f0c2a8e")
        return [Route([queue], [message("", queue, body(BODY_BYTES), sent)], MARK)]

    return routes
