"""Every way to make something that a limit counts, with the kinds that it makes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

from pika import BasicProperties

from tests.amqp_server.limits.scene import (
    AT,
    BINDING,
    CHANNEL,
    CONNECTION,
    CONSUMER,
    EXCHANGE,
    HASH,
    LIMITED,
    NAME,
    PARAMETER,
    PARTITION,
    QUEUE,
    SHOVEL,
    STREAM,
    USER,
    VHOST,
    VHOST_NAME,
    Scene,
)


class Way(NamedTuple):
    act: Callable[[Scene], object]
    #: What it makes besides the connection and the channel of the test's own.
    makes: frozenset[str]
    #: The paths of the management API and the sections of definitions that it stands for.
    paths: tuple[str, ...] = ()


WAYS: dict[str, Way] = {}


def way(name: str, act: Callable[..., object], *makes: str, paths: Collection[str] = ()) -> None:
    WAYS[name] = Way(act, frozenset(makes), tuple(paths))


# -- AMQP ----------------------------------------------------------------------------------------------------


def declare(scene: Scene, queue: str = "new", **options: Any) -> None:
    channel = scene.channel()
    answer = scene.ask(channel.queue_declare, queue, **options)
    scene.undo_path(f"/api/queues/{AT}/{answer.method.queue}")


def of_type(type_: str, **arguments: Any) -> dict[str, Any]:
    return {"durable": True, "arguments": {"x-queue-type": type_, **arguments}}


DECLARES: dict[str, dict[str, Any]] = {
    "transient": {},
    "durable": {"durable": True},
    "exclusive": {"exclusive": True},
    "auto-delete": {"auto_delete": True},
    "named by the server": {"queue": ""},
    "quorum": of_type("quorum"),
    "retrying quorum": of_type("quorum", **{"x-delayed-retry-type": "all", "x-delayed-retry-min": 1}),
    "stream": of_type("stream"),
    "compacted stream": of_type("stream", **{"x-cleanup-policy": "compact"}),
    "consumer group": of_type("stream-group", **{"x-stream": "s"}),
    "consumer group of a super stream": of_type("stream-group", **{"x-stream": "whole"}),
}
for _name, _options in DECLARES.items():
    way(f"queue.declare, {_name}", partial(declare, **_options), QUEUE)


def declare_exchange(scene: Scene, type_: str = "direct", **options: Any) -> None:
    scene.ask(scene.channel().exchange_declare, "new", type_, **options)
    # The partitions of a super stream go with it.
    scene.undo_path(f"/api/exchanges/{AT}/new")


way("exchange.declare", partial(declare_exchange, durable=True), EXCHANGE)
way("exchange.declare, transient", declare_exchange, EXCHANGE)
way("exchange.declare, auto-delete", partial(declare_exchange, auto_delete=True), EXCHANGE)
SUPER = partial(declare_exchange, type_="x-super-stream", durable=True)
way("super stream", partial(SUPER, arguments={"x-partitions": 1}), EXCHANGE, QUEUE, BINDING)
way("super stream of three", partial(SUPER, arguments={"x-partitions": 3}), EXCHANGE, QUEUE, BINDING)
way("super stream without partitions", SUPER, EXCHANGE)


def bind(scene: Scene, key: str = "new", source: str = "amq.direct") -> None:
    scene.ask(scene.channel().queue_bind, "q", source, key)
    scene.undo(lambda: scene.channel().queue_unbind("q", source, key))


def bind_exchange(scene: Scene) -> None:
    scene.ask(scene.channel().exchange_bind, "x", "amq.direct", "new")
    scene.undo(lambda: scene.channel().exchange_unbind("x", "amq.direct", "new"))


way("queue.bind", bind, BINDING)
way("queue.bind, with '#'", partial(bind, key="#.new.#", source="x"), BINDING, HASH)
way("exchange.bind", bind_exchange, BINDING)


def open_channels(scene: Scene) -> None:
    scene.channel()


def consume(scene: Scene, queue: str, prefetch: int = 0, **options: Any) -> None:
    channel = scene.channel()
    if prefetch:
        channel.basic_qos(prefetch_count=prefetch)
    scene.ask(channel.basic_consume, queue, lambda *_: None, **options)


def consume_by_name(scene: Scene) -> None:
    scene.undo_path(f"/api/queues/{AT}/s/offsets/new")
    consume(scene, "s", 1, arguments={"x-group": "new", "x-stream-offset": "committed"})


def consume_in_group(scene: Scene) -> None:
    declare(scene, "new", **of_type("stream-group", **{"x-stream": "s"}))
    consume(scene, "new", 1)


way("connection.open", Scene.connect, CONNECTION)
way("channel.open", open_channels, CHANNEL, CONNECTION)
way("basic.consume", partial(consume, queue="q"), CONSUMER)
way("basic.consume, replies", partial(consume, queue="amq.rabbitmq.reply-to", auto_ack=True))
way("basic.consume, stream", partial(consume, queue="s", prefetch=1), CONSUMER)
way("basic.consume, named offset", consume_by_name, CONSUMER, NAME)
way("basic.consume, member of a group", consume_in_group, CONSUMER, QUEUE)


def retry(scene: Scene) -> None:
    """Messages that are retried, delayed and dead-lettered wait in queues that are there."""
    arguments = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 1}
    arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    declare(scene, **of_type("quorum", **arguments))
    channel = scene.channel()
    scene.ask(channel.confirm_delivery)
    for headers in ({}, {"x-delay": 1}):
        properties = BasicProperties(headers=headers, delivery_mode=2)
        scene.ask(channel.basic_publish, "", "new", b"x", properties)
    tag = scene.ask(channel.basic_get, "new")[0].delivery_tag
    scene.ask(channel.basic_reject, tag, requeue=True)
    scene.ask(channel.queue_declare, "new", passive=True)


way("queue.declare, and retries in it", retry, QUEUE)

# -- the management API --------------------------------------------------------------------------------------


def put(scene: Scene, path: str, body: object, delete: str = "") -> None:
    scene.api("PUT", path, body)
    scene.undo_path(delete or path)


def by_api(name: str, path: str, body: object, *makes: str, at: str = "", delete: str = "") -> None:
    """`path` as in the table of endpoints; `at` is where the request goes."""
    place = at or path.format(vhost=AT, name="new", user="new", component="")
    way(f"PUT {name}", partial(put, path=place, body=body, delete=delete), *makes, paths=(f"PUT {path}",))


by_api("queue", "/api/queues/{vhost}/{name}", {"durable": True}, QUEUE)
by_api("quorum queue", "/api/queues/{vhost}/{name}", of_type("quorum"), QUEUE)
by_api("stream", "/api/queues/{vhost}/{name}", of_type("stream"), QUEUE)
by_api("group", "/api/queues/{vhost}/{name}", of_type("stream-group", **{"x-stream": "s"}), QUEUE)
by_api("exchange", "/api/exchanges/{vhost}/{name}", {"type": "fanout", "durable": True}, EXCHANGE)
by_api(
    "super stream",
    "/api/exchanges/{vhost}/{name}",
    {"type": "x-super-stream", "durable": True, "arguments": {"x-partitions": 2}},
    *(EXCHANGE, QUEUE, BINDING),
)
by_api("vhost", "/api/vhosts/{vhost}", {}, VHOST, at="/api/vhosts/new")
by_api("traced vhost", "/api/vhosts/{vhost}", {"tracing": True}, VHOST, PARAMETER, at="/api/vhosts/new")
by_api("user", "/api/users/{user}", {"password": "new", "tags": ""}, USER)
POLICY = {"pattern": "^none$", "definition": {"max-length": 5}}
by_api("policy", "/api/policies/{vhost}/{name}", POLICY, PARAMETER)
by_api("operator policy", "/api/operator-policies/{vhost}/{name}", POLICY, PARAMETER)
by_api(
    "operator policy as a parameter",
    "/api/parameters/{component}/{vhost}/{name}",
    {"value": POLICY},
    PARAMETER,
    at=f"/api/parameters/operator_policy/{AT}/new",
)
by_api("global parameter", "/api/global-parameters/{name}", {"value": 1}, PARAMETER)
by_api(
    "cluster name",
    "/api/cluster-name",
    {"name": "new"},
    PARAMETER,
    delete="/api/global-parameters/cluster_name",
)
by_api(
    "limit of a vhost",
    "/api/vhost-limits/{vhost}/{name}",
    {"value": 1000},
    PARAMETER,
    at=f"/api/vhost-limits/{AT}/max-queues",
)
by_api(
    "limit of a user",
    "/api/user-limits/{user}/{name}",
    {"value": 1000},
    PARAMETER,
    at="/api/user-limits/guest/max-channels",
)


def post_binding(scene: Scene, kind: str, destination: str) -> None:
    path = f"/api/bindings/{AT}/e/amq.direct/{kind}/{destination}"
    scene.api("POST", path, {"routing_key": "new"})
    scene.undo_path(f"{path}/new")


POST_BINDING = "POST /api/bindings/{vhost}/e/{source}/{kind}/{destination}"
way("POST binding", partial(post_binding, kind="q", destination="q"), BINDING, paths=(POST_BINDING,))
way(
    "POST binding of exchanges",
    partial(post_binding, kind="e", destination="x"),
    BINDING,
    paths=(POST_BINDING,),
)


def grow(scene: Scene) -> None:
    """Partitions cannot be taken away: the next one that grows it makes it anew."""
    scene.api("POST", f"/api/exchanges/{AT}/whole/partitions", {"add": 1})
    scene.undo(make_whole, scene, 1)
    scene.undo_path(f"/api/exchanges/{AT}/whole")


def make_whole(scene: Scene, partitions: int) -> None:
    arguments = {"x-partitions": partitions}
    body = {"type": "x-super-stream", "durable": True, "arguments": arguments}
    scene.api("PUT", f"/api/exchanges/{AT}/whole", body)


way(
    "POST partitions",
    grow,
    *(QUEUE, BINDING, PARTITION),
    paths=("POST /api/exchanges/{vhost}/{name}/partitions",),
)


def look(scene: Scene) -> None:
    """What operators do with messages takes no place of a client."""
    api = scene.api
    properties = {"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
    api("POST", f"/api/exchanges/{AT}/amq.default/publish", properties)
    api("POST", f"/api/queues/{AT}/q/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"})
    api("GET", f"/api/queues/{AT}/q/peek")
    api("POST", f"/api/exchanges/{AT}/amq.default/explain", {"routing_key": "q"})
    api("DELETE", f"/api/queues/{AT}/q/contents")


way(
    "messages by hand",
    look,
    paths=(
        "POST /api/exchanges/{vhost}/{name}/publish",
        "POST /api/exchanges/{vhost}/{name}/explain",
        "POST /api/queues/{vhost}/{name}/get",
    ),
)


def aliveness(scene: Scene) -> None:
    scene.api("GET", f"/api/aliveness-test/{AT}")
    scene.undo_path(f"/api/queues/{AT}/aliveness-test")


way("GET aliveness-test", aliveness, QUEUE)

# -- definitions ---------------------------------------------------------------------------------------------

_QUEUE = {"name": "new", "vhost": VHOST_NAME, "durable": True, "auto_delete": False}
_EXCHANGE = {"name": "new", "vhost": VHOST_NAME, "type": "fanout", "durable": True}
_BINDING = {"vhost": VHOST_NAME, "source": "amq.direct", "destination": "q", "destination_type": "queue"}
_GLOBAL = {"component": "vhost-limits", "name": "limits", "vhost": VHOST_NAME}
SHOVEL_VALUE = {"src-uri": f"amqp://{LIMITED}@", "src-queue": "q", "dest-uri": "amqp://", "dest-queue": "q"}

#: By name: the section, the object, what it makes, and the path that takes it away.
DEFINITIONS: dict[str, tuple[str, dict[str, Any], tuple[str, ...], str]] = {
    "queue": ("queues", _QUEUE | {"arguments": {}}, (QUEUE,), f"queues/{AT}/new"),
    "stream": ("queues", _QUEUE | {"arguments": STREAM}, (QUEUE,), f"queues/{AT}/new"),
    "quorum queue": (
        "queues",
        _QUEUE | {"arguments": {"x-queue-type": "quorum"}},
        (QUEUE,),
        f"queues/{AT}/new",
    ),
    "exchange": ("exchanges", _EXCHANGE | {"arguments": {}}, (EXCHANGE,), f"exchanges/{AT}/new"),
    "super stream": (
        "exchanges",
        _EXCHANGE | {"type": "x-super-stream", "arguments": {"x-partitions": 2}},
        (EXCHANGE, QUEUE, BINDING),
        f"exchanges/{AT}/new",
    ),
    "binding": (
        "bindings",
        _BINDING | {"routing_key": "new", "arguments": {}},
        (BINDING,),
        f"bindings/{AT}/e/amq.direct/q/q/new",
    ),
    "binding with '#'": (
        "bindings",
        _BINDING | {"routing_key": "#.new.#", "source": "x", "arguments": {}},
        (BINDING, HASH),
        f"bindings/{AT}/e/x/q/q/%23.new.%23",
    ),
    "vhost": ("vhosts", {"name": "new"}, (VHOST,), "vhosts/new"),
    "user": ("users", {"name": "new", "password": "new", "tags": []}, (USER,), "users/new"),
    "user with a limit": (
        "users",
        {"name": LIMITED, "password": LIMITED, "tags": [], "limits": {"max-connections": 1000}},
        (PARAMETER,),
        f"user-limits/{LIMITED}/max-connections",
    ),
    "policy": ("policies", POLICY | {"name": "new", "vhost": VHOST_NAME}, (PARAMETER,), f"policies/{AT}/new"),
    "operator policy": (
        "parameters",
        {"component": "operator_policy", "name": "new", "vhost": VHOST_NAME, "value": POLICY},
        (PARAMETER,),
        f"operator-policies/{AT}/new",
    ),
    "limit of a vhost": (
        "parameters",
        {**_GLOBAL, "value": {"max-queues": 1000}},
        (PARAMETER,),
        f"vhost-limits/{AT}/max-queues",
    ),
    "global parameter": (
        "global_parameters",
        {"name": "new", "value": 1},
        (PARAMETER,),
        "global-parameters/new",
    ),
    "shovel": (
        "parameters",
        {"component": "shovel", "name": "new", "vhost": VHOST_NAME, "value": SHOVEL_VALUE},
        (PARAMETER, SHOVEL, CONNECTION, CHANNEL, CONSUMER),
        f"parameters/shovel/{AT}/new",
    ),
}
#: Of the whole broker; an import into one vhost leaves them out.
OF_BROKER = ("vhosts", "users", "global_parameters")


def bring(scene: Scene, section: str, item: dict[str, Any], delete: str, path: str) -> None:
    scene.api("POST", path, {section: [item]})
    scene.undo_path(f"/api/{delete}")
    if item.get("component") == "shovel":
        scene.runs("new")


for _name, (_section, _item, _makes, _delete) in DEFINITIONS.items():
    for _path in ("/api/definitions", "/api/definitions/{vhost}"):
        if "{vhost}" not in _path or _section not in OF_BROKER:
            _act = partial(bring, section=_section, item=_item, delete=_delete, path=_path.format(vhost=AT))
            _of = "import into a vhost" if "{vhost}" in _path else "import"
            way(f"{_of}: {_name}", _act, *_makes, paths=(f"POST {_path}",))

# -- shovels -------------------------------------------------------------------------------------------------

SHOVEL_PATH = "PUT /api/parameters/{component}/{vhost}/{name}"


def shovel(scene: Scene, definition: dict[str, str]) -> None:
    scene.undo_path(f"/api/queues/{AT}/new")
    scene.shovel("new", **{"src-uri": f"amqp://{LIMITED}@", **definition})


for _name, _definition, _more in (
    ("shovel", {"src-queue": "q"}, ()),
    ("shovel that declares its source", {"src-queue": "new"}, (QUEUE,)),
    ("shovel that declares its destination", {"src-queue": "q", "dest-queue": "new"}, (QUEUE,)),
    (
        "shovel from an exchange",
        {"src-exchange": "amq.direct", "src-exchange-key": "new"},
        (QUEUE, BINDING),
    ),
):
    _act = partial(shovel, definition=_definition)
    way(_name, _act, *(PARAMETER, SHOVEL, CONNECTION, CHANNEL, CONSUMER), *_more, paths=(SHOVEL_PATH,))
