"""The management API as tools of RabbitMQ use it: paths, status lines, headers, names, filters."""

from typing import Any
from urllib.parse import quote

import pytest

from conformance_tests.api import Api
from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import eventually


def quoted(name: str) -> str:
    return quote(name, safe="")


@pytest.mark.parametrize("path", ["whoami", "overview?columns=node", "queues/%2F", "vhosts", "connections"])
def test_a_slash_at_the_end_of_a_path_changes_nothing(api: Api, path: str) -> None:
    path, mark, query = path.partition("?")
    plain, slashed = api.ask("GET", path + mark + query), api.ask("GET", f"{path}/{mark}{query}")
    assert (plain.status, slashed.status) == (200, 200)
    assert type(plain.json) is type(slashed.json)
    assert api.ask("GET", f"{path}//{mark}{query}").status == 404


def test_status_lines_have_reason_phrases(api: Api, name: Name) -> None:
    queue = quoted(name("q"))
    told = [
        api.ask("GET", "whoami"),
        api.ask("PUT", f"queues/%2F/{queue}", {}),
        api.ask("PUT", f"queues/%2F/{queue}", {}),
        api.ask("PUT", f"queues/%2F/{queue}", b"{"),
        api.ask("GET", "whoami", login="guest:wrong"),
        api.ask("GET", "no-such-path"),
        api.ask("POST", "whoami", {}),
    ]
    assert [f"{answer.status} {answer.reason}" for answer in told] == [
        "200 OK",
        "201 Created",
        "204 No Content",
        "400 Bad Request",
        "401 Unauthorized",
        "404 Not Found",
        "405 Method Not Allowed",
    ]


def test_a_bad_login_and_missing_rights_are_spelled_differently(api: Api, name: Name) -> None:
    user = name("user")
    for login in ("guest:wrong", f"{user}:x"):
        answer = api.ask("GET", "whoami", login=login)
        assert answer.status == 401
        assert answer.json == {"error": "not_authorized", "reason": "Login failed"}
        assert answer.headers["www-authenticate"].startswith("Basic ")
    assert api.ask("PUT", f"users/{user}", {"password": "x", "tags": "management"}).status == 201
    try:
        answer = api.ask("GET", "users", login=f"{user}:x")
        assert answer.status == 401
        assert answer.json == {"error": "not_authorised", "reason": "Not administrator user"}
    finally:
        assert api.ask("DELETE", f"users/{user}").status == 204


BINDINGS: list[dict[str, Any]] = [
    {"routing_key": "plain"},
    {"routing_key": "a b/c~d+é%.#"},
    {},
    {"routing_key": "k", "arguments": {"x": [1, "two"]}},
]


@pytest.mark.parametrize("body", BINDINGS)
@pytest.mark.parametrize("kind", ["q", "e"])
def test_the_location_of_a_new_binding_leads_to_it(
    api: Api, name: Name, kind: str, body: dict[str, Any]
) -> None:
    end = name("é a/b")
    if kind == "q":
        assert api.ask("PUT", f"queues/%2F/{quoted(end)}", {}).status == 201
    else:
        assert api.ask("PUT", f"exchanges/%2F/{quoted(end)}", {"type": "topic"}).status == 201
    ends = f"bindings/%2F/e/amq.topic/{kind}"
    created = api.ask("POST", f"{ends}/{quoted(end)}", body)
    assert (created.status, created.body) == (201, b"")
    destination, _, key = created.headers["location"].partition("/")
    # RabbitMQ writes a space as a plus, as in a form.
    assert destination.replace("+", "%20") == quoted(end)
    found = api.ask("GET", f"{ends}/{quoted(end)}/{key}")
    assert found.status == 200
    assert found.json["routing_key"] == body.get("routing_key", "")
    assert api.ask("DELETE", f"{ends}/{quoted(end)}/{key}").status == 204
    assert api.ask("GET", f"{ends}/{quoted(end)}/{key}").status == 404


def test_keys_of_bindings_are_written_as_in_a_form(api: Api, name: Name) -> None:
    queue = name("q")
    assert api.ask("PUT", f"queues/%2F/{queue}", {}).status == 201
    ends = f"bindings/%2F/e/amq.topic/q/{queue}"
    keys = {"a+b": "a%2Bb", "a b": "a+b", "a/b~c%é": "a%2Fb%7Ec%25%C3%A9", "*.#": "%2A.%23", "": "~"}
    for routing_key, key in keys.items():
        created = api.ask("POST", ends, {"routing_key": routing_key})
        assert created.headers["location"] == f"{queue}/{quote(key, safe='~')}"
    assert {each["routing_key"]: each["properties_key"] for each in api.ask("GET", ends).json} == keys
    for routing_key, key in keys.items():
        assert api.ask("GET", f"{ends}/{quoted(key)}").json["routing_key"] == routing_key
    # The form that tools use which do not know that keys are encoded.
    assert api.ask("GET", f"{ends}/a%20b").json["routing_key"] == "a b"
    for key in keys.values():
        assert api.ask("DELETE", f"{ends}/{quoted(key)}").status == 204


@pytest.mark.parametrize("switch", ["if-unused=True", "if-unused=False", "if-unused=false"])
def test_switches_of_a_query_as_tools_in_python_write_them(api: Api, name: Name, switch: str) -> None:
    exchange, queue = name("x"), name("q")
    assert api.ask("PUT", f"exchanges/%2F/{exchange}", {"type": "topic"}).status == 201
    assert api.ask("PUT", f"queues/%2F/{queue}", {}).status == 201
    assert api.ask("DELETE", f"exchanges/%2F/{exchange}?{switch}").status == 204
    assert api.ask("DELETE", f"queues/%2F/{queue}?{switch}").status == 204


def test_columns_of_single_objects(api: Api, name: Name) -> None:
    queue = name("q")
    assert api.ask("PUT", f"queues/%2F/{queue}", {"arguments": {"x-max-length": 5}}).status == 201
    told = api.ask("GET", f"queues/%2F/{queue}?columns=name,arguments.x-max-length").json
    # RabbitMQ 4 adds it to a queue's arguments, and a part of them stands for all.
    told["arguments"].pop("x-queue-type", None)
    assert told == {"name": queue, "arguments": {"x-max-length": 5}}
    assert api.ask("GET", "whoami?columns=name").json.keys() == {"name"}
    assert api.ask("GET", "overview?columns=rabbitmq_version,nothing").json.keys() == {"rabbitmq_version"}
    assert api.ask("GET", "vhosts/%2F?columns=name").json == {"name": "/"}
    assert api.ask("GET", "users/guest?columns=name").json == {"name": "guest"}
    assert api.ask("GET", "exchanges/%2F/amq.topic?columns=type").json == {"type": "topic"}


@pytest.mark.parametrize("type_", ["application/x-www-form-urlencoded", "text/plain", "application/json"])
def test_bodies_are_json_under_any_content_type(api: Api, name: Name, type_: str) -> None:
    """`curl -d` sends the content type of a form."""
    queue = name("q")
    headers = {"content-type": type_}
    assert api.ask("PUT", f"queues/%2F/{queue}", b'{"durable": true}', headers=headers).status == 201
    assert api.ask("GET", f"queues/%2F/{queue}?columns=durable").json == {"durable": True}
    message = b'{"routing_key": "%s", "payload": "x", "payload_encoding": "string", "properties": {}}'
    answer = api.ask("POST", "exchanges/%2F/amq.default/publish", message % queue.encode(), headers=headers)
    assert answer.json == {"routed": True}


def test_leader_and_members_of_a_quorum_queue(api: Api, name: Name) -> None:
    queue = name("q")
    body = {"durable": True, "arguments": {"x-queue-type": "quorum"}}
    assert api.ask("PUT", f"queues/%2F/{queue}", body).status == 201
    node = api.ask("GET", "overview?columns=node").json["node"]
    eventually(
        lambda: (
            api.ask("GET", f"queues/%2F/{queue}?columns=leader,members,online").json
            == {"leader": node, "members": [node], "online": [node]}
        )
    )


NAMES = [
    "é",
    "a|b",
    "€ 😀",
    'a"b',
    "a\\b",
    "%",
    "~",
    "{a}",
    "a/b",
    "?",
    "#",
    "a+b c",
    "[x]",
    "x" * 240,
    "é" * 120,
]


@pytest.mark.parametrize("suffix", NAMES)
def test_names_that_are_legal_are_so_in_every_path(api: Api, name: Name, suffix: str) -> None:
    each = (name("") + suffix)[:250]
    each = each.encode()[:255].decode(errors="ignore")
    at = quoted(each)
    queue, exchange = f"queues/%2F/{at}", f"exchanges/%2F/{at}"
    binding = f"bindings/%2F/e/{at}/q/{at}"
    message = {"routing_key": each, "payload": each, "payload_encoding": "string"}
    properties = {"message_id": each, "headers": {each: each}}
    asked: list[tuple[str, str, object, int]] = [
        ("PUT", queue, {}, 201),
        ("PUT", exchange, {"type": "direct"}, 201),
        ("POST", binding, {"routing_key": each, "arguments": {each: each}}, 201),
        ("GET", binding, None, 200),
        ("GET", f"{queue}/bindings", None, 200),
        ("GET", f"{exchange}/bindings/source", None, 200),
        ("POST", f"{exchange}/publish", message | {"properties": properties}, 200),
    ]
    for method, path, body, status in asked:
        assert api.ask(method, path, body).status == status, (method, path)
    assert api.ask("GET", f"{queue}?columns=name").json == {"name": each}
    get = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    (got,) = api.ask("POST", f"{queue}/get", get).json
    assert (got["payload"], got["routing_key"], got["exchange"]) == (each, each, each)
    assert got["properties"]["headers"] == {each: each}
    assert got["properties"]["message_id"] == each
    for path in (f"{queue}/contents", queue, exchange):
        assert api.ask("DELETE", path).status == 204, path
        if path != f"{queue}/contents":
            assert api.ask("GET", path).status == 404, path


def test_filters(api: Api, name: Name) -> None:
    prefix = name("filter")
    queues = [f"{prefix}-{end}" for end in ("a1", "a2", "B1")]
    for queue in queues:
        assert api.ask("PUT", f"queues/%2F/{queue}", {}).status == 201
    try:
        found = {
            query: [row["name"] for row in filtered(api, f"{query}&columns=name&sort=name")["items"]]
            for query in (
                f"name={prefix}",
                f"name={prefix.upper()}",
                f"name={prefix}-[ab]1$&use_regex=true",
                f"name={prefix}-B1&use_regex=true",
                f"name={prefix}-(a|aa)%2B$&use_regex=true",
            )
        }
        assert list(found.values()) == [
            sorted(queues),
            sorted(queues),
            sorted([queues[0], queues[2]]),
            [queues[2]],
            [],
        ]
        assert api.ask("GET", "queues?page=1&page_size=100&name=(&use_regex=true").status == 400
    finally:
        for queue in queues:
            api.ask("DELETE", f"queues/%2F/{queue}")


def filtered(api: Api, query: str) -> Any:
    return api.ask("GET", f"queues/%2F?page=1&page_size=100&{query}").json


def test_refusals_and_lenient_bodies(api: Api, name: Name) -> None:
    """The parts of an answer that tools read, and the bodies that they send: in RabbitMQ's words, without the
    code of a closed channel.
    """
    queue, exchange, user = name("q"), name("x"), name("user")
    node = api.ask("GET", "overview?columns=node").json["node"]
    durable = {"durable": True, "arguments": []}
    publish = {"routing_key": queue, "payload": "x", "payload_encoding": "string", "properties": {}}
    get = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    grant = {"configure": "", "write": "", "read": ""}
    place = "in vhost '/'"
    requests: list[tuple[str, str, Any, int, Any]] = [
        # Empty tables come as empty arrays, switches as texts.
        ("PUT", f"queues/%2F/{queue}", durable, 201, None),
        ("PUT", f"queues/%2F/{queue}", {"durable": "true"}, 204, None),
        ("PUT", f"queues/%2F/{queue}", {"durable": False}, 400,
         f"inequivalent arg 'durable' for queue '{queue}' {place}: received 'false' but current is 'true'"),
        ("PUT", "queues/nosuch/q", {}, 404, "vhost_not_found"),
        ("POST", f"queues/%2F/{queue}/actions", {"action": "sync"}, 204, None),
        ("POST", f"queues/%2F/{queue}/actions", {"action": "x"}, 400, ["unknown", "x"]),
        ("PUT", f"exchanges/%2F/{exchange}", {"durable": True}, 201, None),
        ("PUT", f"exchanges/%2F/{exchange}", {"type": "fanout", "durable": True}, 400,
         f"inequivalent arg 'type' for exchange '{exchange}' {place}: received 'fanout' but current is 'direct'"),
        ("POST", f"bindings/%2F/e/{exchange}/q/{queue}", {"arguments": []}, 201, None),
        ("POST", f"bindings/%2F/e/{exchange}/q/nosuch", {}, 404, f"no queue 'nosuch' {place}"),
        ("POST", f"bindings/%2F/e/nosuch/q/{queue}", {}, 404, f"no exchange 'nosuch' {place}"),
        ("DELETE", f"exchanges/%2F/{exchange}?if-unused=true", None, 400, f"exchange '{exchange}' {place} in use"),
        ("POST", "exchanges/%2F/amq.default/publish", publish, 200, ...),
        ("POST", "exchanges/%2F/amq.default/publish", publish | {"properties": {"user_id": "o"}}, 400,
         "406 PRECONDITION_FAILED - user_id property set to 'o' but authenticated user was 'guest'"),
        ("POST", "exchanges/%2F/nosuch/publish", publish, 400, f"404 NOT_FOUND - no exchange 'nosuch' {place}"),
        ("POST", f"queues/%2F/{queue}/get", get, 200, ...),
        ("POST", "queues/%2F/nosuch/get", get, 404, f"NOT_FOUND - no queue 'nosuch' {place}"),
        ("POST", f"queues/%2F/{queue}/get", {"count": 1, "encoding": "auto"}, 400, "[{key_missing,ackmode}]"),
        ("PUT", f"users/{user}", {"tags": "management"}, 201, None),
        ("PUT", f"users/{user}", {"tags": "", "password": "x", "password_hash": ""}, 400,
         "both_password_and_password_hash_are_provided"),
        ("POST", "users/bulk-delete", {"users": ["nosuch"]}, 400, ["no_such_user", "nosuch"]),
        ("PUT", f"permissions/%2F/{user}", {"configure": ""}, 400, "[{key_missing,write},{key_missing,read}]"),
        ("PUT", "permissions/%2F/nosuch", grant, 400, "vhost_or_user_not_found"),
        ("PUT", f"permissions/nosuch/{user}", grant, 400, "vhost_or_user_not_found"),
        ("POST", f"vhosts/%2F/start/{quoted(node)}", {}, 204, None),
        ("POST", "users/bulk-delete", {"users": [user]}, 204, None),
        ("GET", f"users/{user}", None, 404, "Not Found"),
        ("DELETE", f"queues/%2F/{queue}", None, 204, None),
        ("DELETE", f"exchanges/%2F/{exchange}", None, 204, None),
    ]  # fmt: skip
    wrong = []
    for method, path, body, status, reason in requests:
        answer = api.ask(method, path, body)
        told = answer.json["reason"] if answer.status >= 400 and answer.body else None
        if answer.status != status or (reason is not ... and told != reason):
            wrong.append((method, path, body, answer.status, answer.body))
    assert wrong == []


def test_methods_of_a_path(api: Api) -> None:
    for method, status in (("OPTIONS", 200), ("PATCH", 405)):
        answer = api.ask(method, "queues/%2F/q")
        assert (answer.status, answer.body) == (status, b"")
        assert answer.headers["allow"] == "HEAD, GET, PUT, DELETE, OPTIONS"


def test_the_memory_of_a_node(api: Api) -> None:
    """The format that exporters and clients in other languages decode."""
    node = quoted(api.ask("GET", "overview?columns=node").json["node"])
    told = api.ask("GET", f"nodes/{node}/memory").json["memory"]
    parts = {part: value for part, value in told.items() if part not in ("total", "strategy")}
    assert {
        "connection_readers",
        "queue_procs",
        "quorum_queue_procs",
        "binary",
        "other_system",
        "plugins",
    } <= parts.keys()
    assert all(type(value) is int and value >= 0 for value in parts.values()), parts
    assert told["strategy"] == "rss"
    assert told["total"].keys() == {"rss", "allocated", "erlang"} and told["total"]["rss"] > 1 << 20
    relative = api.ask("GET", f"nodes/{node}/memory/relative").json["memory"]
    assert relative.pop("total") == 100
    assert all(type(value) is int and 0 <= value <= 100 for value in relative.values())


def test_the_default_exchange_has_no_name_in_a_path(api: Api, connect: Connect, name: Name) -> None:
    """The current rabbitmqadmin publishes in this way."""
    queue = name("q")
    connect().channel().queue_declare(queue)
    message = {"routing_key": queue, "payload": "x", "payload_encoding": "string", "properties": {}}
    answer = api.ask("POST", "exchanges/%2F//publish", message)
    assert (answer.status, answer.json) == (200, {"routed": True})
    assert api.ask("GET", "exchanges/%2F//").json["name"] == ""
    assert queue in [each["destination"] for each in api.ask("GET", "exchanges/%2F//bindings/source").json]
    assert api.ask("GET", f"bindings/%2F/e//q/{queue}").status == 200
    assert api.ask("DELETE", "exchanges/%2F//").status == 401
    for path in ("queues/%2F//", "queues//", "exchanges//amq.direct"):
        assert api.ask("GET", path).status == 404
