"""A broker, or one node of a cluster, with what every way needs, and the number of objects of each kind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any
from urllib.parse import quote

import pika
from pika.adapters.blocking_connection import BlockingChannel

from amqp_server.testing.api import ApiError
from amqp_server.testing.broker import Broker
from conformance_tests.expect import eventually
from conformance_tests.patience import open_connection

#: What limits count.
QUEUE, EXCHANGE, BINDING, VHOST, USER = "queue", "exchange", "binding", "vhost", "user"
PARAMETER, SHOVEL, CONNECTION, CHANNEL, CONSUMER = "parameter", "shovel", "connection", "channel", "consumer"
#: A partition of one super stream, an offset that a stream stores by name, and a `#` of a binding key.
PARTITION, NAME, HASH = "partition", "name", "hash"
#: Everything with arguments takes some of the memory for declarations.
DECLARED = frozenset({QUEUE, EXCHANGE, BINDING, CONSUMER})

VHOST_NAME = "/"
AT = quote(VHOST_NAME, safe="")
LOCAL = "amqp://"
#: A user other than the one that the tests use, whose connections and channels have limits.
LIMITED = "limited"
_PARAMETERS = (
    *("parameters", "policies", "operator-policies", "global-parameters"),
    *("vhost-limits", "user-limits"),
)
STREAM = {"x-queue-type": "stream"}


class Refused(Exception):
    """A way has made nothing; the text has the broker's reason."""


def prepare(broker: Broker) -> None:
    """Make what the ways begin with."""
    api = broker.api
    api("PUT", f"/api/users/{LIMITED}", {"password": LIMITED, "tags": ""})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    api("PUT", f"/api/permissions/{AT}/{LIMITED}", everything)
    api("PUT", f"/api/queues/{AT}/q", {"durable": True})
    api("PUT", f"/api/queues/{AT}/s", {"durable": True, "arguments": STREAM})
    api("PUT", f"/api/exchanges/{AT}/x", {"type": "topic", "durable": True})
    whole = {"type": "x-super-stream", "durable": True, "arguments": {"x-partitions": 1}}
    api("PUT", f"/api/exchanges/{AT}/whole", whole)


class Scene:
    """One attempt; what it has made goes when it is closed."""

    def __init__(
        self, broker: Broker, shared: pika.BlockingConnection | BlockingChannel | None = None
    ) -> None:
        """`shared`: the connection or the channel to use, instead of one of the scene's own."""
        self.broker = broker
        self._stack = ExitStack()
        #: pika does not ask for a channel above channel_max unless the number is given.
        self._number = 77 if isinstance(shared, pika.BlockingConnection) else None
        self._connection = shared if isinstance(shared, pika.BlockingConnection) else None
        self._channel = shared if isinstance(shared, BlockingChannel) else None

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def api(self, method: str, path: str, body: object = None) -> Any:
        """Raises Refused."""
        try:
            return self.broker.api(method, path, body)
        except ApiError as error:
            raise Refused(str(error)) from None

    def undo(self, call: Callable[..., object], *arguments: Any) -> None:
        def attempt() -> None:
            with suppress(ApiError, Refused, pika.exceptions.AMQPError):
                call(*arguments)

        self._stack.callback(attempt)

    def undo_path(self, path: str) -> None:
        self.undo(self.broker.api, "DELETE", path)

    def connect(self, user: str = LIMITED) -> pika.BlockingConnection:
        """Raises Refused."""
        url = self.broker.url(VHOST_NAME).replace("guest:guest", f"{user}:{user}")
        try:
            connection = open_connection(url)
        except (pika.exceptions.AMQPError, OSError) as error:
            raise Refused(repr(error)) from None

        self.undo(connection.close)
        return connection

    def channel(self) -> BlockingChannel:
        """Return a channel of a connection that this scene has for it. Raises Refused."""
        if self._channel is not None:
            return self._channel
        if self._connection is None or not self._connection.is_open:
            self._connection = self.connect()
        try:
            return self._connection.channel(self._number)
        except pika.exceptions.AMQPError as error:
            raise Refused(repr(error)) from None

    def ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a method of a channel. Raises Refused."""
        try:
            return call(*arguments, **options)
        except pika.exceptions.AMQPError as error:
            raise Refused(repr(error)) from None

    def counts(self, *kinds: str) -> dict[str, int]:
        """Return how many objects of these kinds, or of each kind, the broker has, or the cluster."""
        # Several kinds are in the same answer.
        api = cache(self.broker.api)
        return {kind: _COUNTED[kind](api) for kind in kinds or _COUNTED}

    def shovel(self, name: str, **definition: object) -> None:
        """Set a shovel, and wait until it runs. Raises Refused."""
        path = f"/api/parameters/shovel/{AT}/{name}"
        value = {"src-uri": LOCAL, "dest-uri": LOCAL, "dest-queue": "q", "reconnect-delay": 0, **definition}
        self.api("PUT", path, {"value": value})
        self.undo_path(path)
        self.runs(name)

    def runs(self, name: str) -> None:
        """Wait until a shovel runs. Raises Refused."""
        states: dict[str, str] = {}

        def told() -> bool:
            states.update(
                (row["state"], row.get("reason", ""))
                for row in self.api("GET", f"/api/shovels/{AT}")
                if row["name"] == name
            )
            return bool(states.keys() & {"running", "terminated"})

        eventually(told)
        if "terminated" in states:
            raise Refused(states["terminated"])


Ask = Callable[[str, str], Any]


def _total(kind: str) -> Callable[[Ask], int]:
    return lambda api: int(api("GET", "/api/overview")["object_totals"][kind])


def _length(path: str, wanted: Callable[[dict[str, Any]], object] = bool) -> Callable[[Ask], int]:
    return lambda api: sum(bool(wanted(row)) for row in api("GET", f"/api/{path}"))


def _parameters(api: Ask) -> int:
    traced = _length("vhosts", lambda row: row["tracing"])(api)
    return traced + sum(_length(path)(api) for path in _PARAMETERS)


def _hashes(api: Ask) -> int:
    rows = api("GET", f"/api/exchanges/{AT}/x/bindings/source")
    return sum(max(0, row["routing_key"].count("#") - 1) for row in rows)


_COUNTED: dict[str, Callable[[Ask], int]] = {
    QUEUE: _total("queues"),
    EXCHANGE: _length("exchanges", lambda row: row["name"] and not row["name"].startswith("amq.")),
    BINDING: _length("bindings", lambda row: row["source"]),
    VHOST: _length("vhosts"),
    USER: _length("users"),
    PARAMETER: _parameters,
    SHOVEL: _length("parameters", lambda row: row["component"] == "shovel"),
    CONNECTION: _total("connections"),
    CHANNEL: _total("channels"),
    CONSUMER: _total("consumers"),
    PARTITION: _length(f"queues/{AT}", lambda row: row["name"].startswith("whole-")),
    NAME: _length(f"queues/{AT}/s/offsets"),
    HASH: _hashes,
}
