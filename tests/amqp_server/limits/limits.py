"""Every limit on a count, and how a test comes to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from amqp_server.broker.topology import limits as operator_limits
from tests.amqp_server.limits.scene import (
    AT,
    BINDING,
    CHANNEL,
    CONNECTION,
    CONSUMER,
    DECLARED,
    EXCHANGE,
    HASH,
    LIMITED,
    NAME,
    PARAMETER,
    PARTITION,
    QUEUE,
    SHOVEL,
    USER,
    VHOST,
    Refused,
    Scene,
)
from tests.amqp_server.limits.ways import SHOVEL_VALUE, WAYS

#: What a node may have in these tests. `Limit.reach` makes the rest.
OPTIONS: dict[str, int] = {
    "queues_max": 12,
    "exchanges_max": 12,
    "bindings_max": 12,
    "vhosts_max": 4,
    "users_max": 5,
    "parameters_max": 10,
    "shovels_max": 2,
    "connections_max": 10,
    "channel_max": 6,
    "channels_max": 16,
    "consumers_per_channel_max": 3,
    "super_stream_partitions_max": 4,
    "stream_names_max": 2,
    "topic_extra_hashes_max": 3,
}
#: On another node, because many objects are needed.
BYTES_OPTIONS: dict[str, int] = {"declared_bytes_max": 400_000, "parameters_bytes_max": 65_536}
#: More than any limit here.
MANY = 100

Shared: TypeAlias = pika.BlockingConnection | BlockingChannel | None


@dataclass(frozen=True)
class Limit:
    kinds: frozenset[str]
    #: What a refusal says.
    text: str
    #: Comes to the limit. May return a connection or a channel on which further objects count.
    reach: Callable[[Scene, Limit], Shared]
    #: True if all nodes count together.
    of_cluster: bool = True
    #: Ways that do not meet this limit although they make what it counts, and why.
    beside: dict[str, str] = field(default_factory=dict)

    def refuses(self, told: object) -> bool:
        return re.search(self.text, str(told)) is not None

    def fill(self, *attempts: Callable[[str], object]) -> None:
        """Make fillers until one is refused, with the first way, then with the next one."""
        for attempt in attempts:
            for number in count():
                assert number < MANY, "there is no limit"
                try:
                    attempt(f"fill-{number}")
                except Refused as refused:
                    assert self.refuses(refused), refused
                    break


def filled(path: str, body: Callable[[], Any], method: str = "PUT") -> Callable[[Scene, Limit], None]:
    """Come to a limit by requests to this path."""

    def reach(scene: Scene, limit: Limit) -> None:
        def one(name: str) -> None:
            place = f"/api/{path.format(name)}"
            scene.api(method, place, body())
            scene.undo_path(place)

        limit.fill(one)

    return reach


def bound(scene: Scene, limit: Limit, key: str = "{}", source: str = "amq.fanout") -> None:
    def one(name: str) -> None:
        path = f"/api/bindings/{AT}/e/{source}/q/q"
        scene.api("POST", path, {"routing_key": key.format(name)})
        scene.undo_path(f"{path}/{key.format(name).replace('#', '%23')}")

    limit.fill(one)


def of_vhost(name: str, kind: str) -> Callable[[Scene, Limit], None]:
    def reach(scene: Scene, limit: Limit) -> None:
        if kind == CONNECTION:
            scene.connect()
        path = f"/api/vhost-limits/{AT}/{name}"
        scene.api("PUT", path, {"value": scene.counts(kind)[kind]})
        scene.undo_path(path)

    return reach


def of_user(name: str) -> Callable[[Scene, Limit], None]:
    def reach(scene: Scene, limit: Limit) -> None:
        scene.connect().channel()
        path = f"/api/user-limits/{LIMITED}/{name}"
        scene.api("PUT", path, {"value": 1})
        scene.undo_path(path)

    return reach


def all_connections(scene: Scene, limit: Limit) -> None:
    limit.fill(lambda name: scene.connect())


def all_channels(scene: Scene, limit: Limit) -> None:
    def one(name: str) -> None:
        connection = scene.connect()
        for _ in range(OPTIONS["channel_max"]):
            try:
                connection.channel()
            except pika.exceptions.AMQPError as error:
                raise Refused(repr(error)) from None

    limit.fill(one)
    # The channels of the connection that was closed are free again.
    left = OPTIONS["channels_max"] - scene.counts(CHANNEL)[CHANNEL]
    connection = scene.connect()
    for _ in range(left):
        connection.channel()


def channels_of_a_connection(scene: Scene, limit: Limit) -> pika.BlockingConnection:
    connection = scene.connect()
    for _ in range(OPTIONS["channel_max"]):
        connection.channel()
    return connection


def consumers_of_a_channel(scene: Scene, limit: Limit) -> BlockingChannel:
    channel = scene.connect().channel()
    channel.basic_qos(prefetch_count=1)
    for _ in range(OPTIONS["consumers_per_channel_max"]):
        channel.basic_consume("q", lambda *_: None)
    return channel


def names_of_a_stream(scene: Scene, limit: Limit) -> None:
    def one(name: str) -> None:
        channel = scene.channel()
        channel.basic_qos(prefetch_count=1)
        arguments = {"x-group": name, "x-stream-offset": "committed"}
        scene.ask(channel.basic_consume, "s", lambda *_: None, arguments=arguments)

    # They can go when their consumers have gone.
    for number in range(OPTIONS["stream_names_max"]):
        scene.undo_path(f"/api/queues/{AT}/s/offsets/fill-{number}")
    limit.fill(one)


def partitions_of_a_super_stream(scene: Scene, limit: Limit) -> None:
    path = f"/api/exchanges/{AT}/whole"
    most = OPTIONS["super_stream_partitions_max"]
    scene.api("POST", f"{path}/partitions", {"add": most - 1})
    body = {"type": "x-super-stream", "durable": True, "arguments": {"x-partitions": 1}}
    scene.undo(scene.broker.api, "PUT", path, body)
    scene.undo_path(path)


SIZES = 60_000, 6_000, 600, 60, 6, 1


def bytes_of_parameters(scene: Scene, limit: Limit) -> None:
    def one(size: int) -> Callable[[str], None]:
        def attempt(name: str) -> None:
            path = f"/api/global-parameters/{size}-{name}"
            scene.api("PUT", path, {"value": 10 ** (size - 1) if size < 10 else "x" * (size - 2)})
            scene.undo_path(path)

        return attempt

    limit.fill(*map(one, SIZES))


def bytes_of_declarations(scene: Scene, limit: Limit) -> None:
    def one(size: int) -> Callable[[str], None]:
        def attempt(name: str) -> None:
            path = f"/api/bindings/{AT}/e/x/q/q"
            sent = {"routing_key": f"{size}-{name}", "arguments": {"x": "x" * size} if size > 6 else {}}
            scene.api("POST", path, sent)

        return attempt

    def unbind() -> None:
        scene.broker.api("DELETE", f"/api/exchanges/{AT}/x")
        scene.broker.api("PUT", f"/api/exchanges/{AT}/x", {"type": "topic", "durable": True})

    scene.undo(unbind)
    limit.fill(*map(one, SIZES))


def kinds(*names: str) -> frozenset[str]:
    return frozenset(names)


SHOVELS = {
    name: "has connections of its own, each with one channel and at most one consumer"
    for name in WAYS
    if "shovel" in name
}

#: By name: options of a node, and the limits that operators set.
LIMITS: dict[str, Limit] = {
    f"{operator_limits.QUEUES} of a vhost": Limit(
        kinds(QUEUE), r"queue limit in vhost '/' \(\d+\) is reached", of_vhost("max-queues", QUEUE)
    ),
    f"{operator_limits.CONNECTIONS} of a vhost": Limit(
        kinds(CONNECTION), r"connection limit \(\d+\) is reached", of_vhost("max-connections", CONNECTION)
    ),
    f"{operator_limits.CONNECTIONS} of a user": Limit(
        kinds(CONNECTION), r"user connection limit \(1\) is reached", of_user("max-connections")
    ),
    f"{operator_limits.CHANNELS} of a user": Limit(
        kinds(CHANNEL), r"maximum allowed user limit of \(1\)", of_user("max-channels")
    ),
    "queues_max": Limit(
        kinds(QUEUE),
        r"queue limit in cluster \(12\) is reached",
        filled(f"queues/{AT}/{{}}", lambda: {"durable": True}),
    ),
    "exchanges_max": Limit(
        kinds(EXCHANGE),
        "exchange limit of 12 is reached",
        filled(f"exchanges/{AT}/{{}}", lambda: {"type": "fanout", "durable": True}),
    ),
    "bindings_max": Limit(kinds(BINDING), "binding limit of 12 is reached", bound),
    "vhosts_max": Limit(kinds(VHOST), "vhosts_max", filled("vhosts/{}", dict)),
    "users_max": Limit(
        kinds(USER), "users_max", filled("users/{}", lambda: {"password_hash": "", "tags": ""})
    ),
    "parameters_max": Limit(
        kinds(PARAMETER), "parameters_max", filled("global-parameters/{}", lambda: {"value": 1})
    ),
    "parameters_bytes_max": Limit(kinds(PARAMETER), "parameters_bytes_max", bytes_of_parameters),
    "shovels_max": Limit(
        kinds(SHOVEL),
        "shovels_max",
        filled(f"parameters/shovel/{AT}/{{}}", lambda: {"value": SHOVEL_VALUE}),
    ),
    "super_stream_partitions_max": Limit(
        kinds(PARTITION), r"x-partitions.*value_out_of_range,\d+,1,4", partitions_of_a_super_stream
    ),
    "stream_names_max": Limit(kinds(NAME), "stream_names_max", names_of_a_stream),
    "topic_extra_hashes_max": Limit(
        kinds(HASH),
        "topic_extra_hashes_max",
        lambda scene, limit: bound(scene, limit, "#.{}.#", "x"),
    ),
    "declared_bytes_max": Limit(DECLARED, "declared_bytes_max", bytes_of_declarations, of_cluster=False),
    # The client is not told why its socket is closed.
    "connections_max": Limit(
        kinds(CONNECTION), "connections_max|ProtocolError|StreamLost", all_connections, of_cluster=False
    ),
    "channels_max": Limit(
        kinds(CHANNEL), r"opened on node 'n1' has reached.* \(16\)", all_channels, of_cluster=False
    ),
    "consumers_per_channel_max": Limit(
        kinds(CONSUMER),
        r"reached maximum \(3\) of consumers per channel",
        consumers_of_a_channel,
        of_cluster=False,
        beside=SHOVELS,
    ),
    "channel_max": Limit(
        kinds(CHANNEL),
        r"has reached the negotiated channel_max \(6\)",
        channels_of_a_connection,
        of_cluster=False,
        beside=SHOVELS,
    ),
}
