import logging
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from amqp_server.broker.access.users import ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER
from amqp_server.management.parts import ManagedParts
from amqp_server.management.resources import queues
from amqp_server.management.serving.endpoints import ANYBODY, ENDPOINTS
from amqp_server.management.serving.http import REFUSED
from amqp_server.management.serving.requests import HEADERS

from .conftest import BODY_BYTES_MAX, Connect, ManagedNode

pytestmark = pytest.mark.trio

PATH = {
    "id": "n1.1.1",
    "node": "n1",
    "user": "nobody",
    "vhost": "%2F",
    "name": "q",
    "source": "x",
    "kind": "q",
}
PATH |= {"destination": "q", "properties": "~", "component": "policy", "exchange": "x"}
PATH |= {
    "message_id": "m",
    "port": "1",
    "protocol": "amqp",
    "within": "1",
    "unit": "weeks",
    "offset": "o",
    "pattern": ".*",
}


@pytest.mark.parametrize(
    ("user", "password", "peer", "reason"),
    [
        (None, None, "127.0.0.1", "Login failed"),
        ("admin", "wrong", "127.0.0.1", "Login failed"),
        ("nobody", "nobody", "127.0.0.1", "Login failed"),
        ("admin", "", "127.0.0.1", "Login failed"),
        ("plain", None, "127.0.0.1", "Not management user"),
        ("guest", None, "10.0.0.1", "User can only log in via localhost"),
        ("guest", None, "::ffff:10.0.0.1", "User can only log in via localhost"),
    ],
)
async def test_who_may_not_in(
    connect: Connect, user: str | None, password: str | None, peer: str, reason: str
) -> None:
    answer = await connect(user, password, peer).get("whoami")
    assert answer.status_code == 401
    error = "not_authorized" if reason == "Login failed" else "not_authorised"
    assert answer.json() == {"error": error, "reason": reason}
    assert answer.headers["www-authenticate"].startswith("Basic ")


@pytest.mark.parametrize(
    "header", ["", "Basic", "Basic !", "Basic bm9jb2xvbg==", "Bearer x", "Basic " + "A" * 4000]
)
async def test_bad_authorization(connect: Connect, header: str) -> None:
    answer = await connect(None).get("whoami", headers={"authorization": header})
    assert answer.status_code == 401


@pytest.mark.parametrize("user", ["admin", "watcher", "manager", "policies"])
async def test_whoami(connect: Connect, parts: ManagedParts, user: str) -> None:
    answer = await connect(user).get("whoami")
    assert answer.status_code == 200
    assert answer.json()["name"] == user
    assert answer.json()["tags"] == list(parts.broker.access.users.require(user).tags)


async def test_guest_from_here(connect: Connect) -> None:
    assert (await connect("guest", peer="::ffff:127.0.0.1").get("whoami")).status_code == 200


@pytest.mark.parametrize("route", ENDPOINTS, ids=lambda route: f"{route.method} {route.path}")
async def test_no_route_lets_a_lesser_user_through(connect: Connect, route: Any) -> None:
    path = route.path.format(**PATH).removeprefix("/api/")
    if route.who == ANYBODY:
        assert (await connect(None).request(route.method, path, json={})).status_code == 200
        return
    reached = {MANAGEMENT: "manager", MONITORING: "watcher", POLICYMAKER: "policies", ADMINISTRATOR: "admin"}
    # As in RabbitMQ, a monitoring user may not set policies, nor a policymaker see everything.
    above = {MONITORING: (MANAGEMENT,), POLICYMAKER: (MANAGEMENT,), ADMINISTRATOR: tuple(reached)}
    for tag, user in reached.items():
        answer = await connect(user).request(route.method, path, json={})
        refused = answer.status_code == 401 and answer.json()["reason"] == REFUSED[route.who]
        assert refused is (tag != route.who and route.who not in above.get(tag, ())), (user, answer.text)
    assert (await connect("plain").request(route.method, path, json={})).status_code == 401
    assert (await connect(None).request(route.method, path, json={})).status_code == 401


async def test_only_policymakers_set_policies(connect: Connect) -> None:
    body = {"pattern": "x", "definition": {"max-length": 1}, "value": 1}
    paths = ("policies/%2F/p", "parameters/policy/%2F/p")
    for user in ("manager", "watcher", "policies", "admin"):
        for method in ("PUT", "GET", "DELETE"):
            for path in paths:
                answer = await connect(user).request(method, path, json=body)
                refused = answer.status_code == 401
                assert refused is (user in ("manager", "watcher")), (user, method, path)
                assert not refused or answer.json()["reason"] == "User not authorised to access object"
    # Only where the user has access to the vhost.
    assert (await connect("policies").put("policies/other/p", json=body)).status_code == 401
    assert (await connect("policies").put("operator-policies/%2F/p", json=body)).status_code == 401
    for component in ("operator_policy", "vhost-limits"):
        answer = await connect("policies").put(f"parameters/{component}/%2F/p", json={"value": body})
        assert (answer.status_code, answer.json()["reason"]) == (401, "Not administrator user")


async def test_every_answer_has_strict_headers(connect: Connect) -> None:
    client = connect("admin")
    for path in ("whoami", "nowhere", "queues/%2F/nope", "users/x/y/z"):
        answer = await client.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert "access-control-allow-origin" not in answer.headers


async def test_unknown_paths_and_methods(connect: Connect) -> None:
    client = connect("admin")
    assert (await client.get("nowhere")).json() == {"error": "Object Not Found", "reason": "Not Found"}
    answer = await client.put("overview", json={})
    assert answer.status_code == 405
    assert (answer.headers["allow"], answer.content) == ("HEAD, GET, OPTIONS", b"")
    asked = await client.request("OPTIONS", "queues/%2F/q")
    assert (asked.status_code, asked.headers["allow"]) == (200, "HEAD, GET, PUT, DELETE, OPTIONS")
    assert (await client.head("whoami")).status_code == 200
    assert (await client.get("queues//")).status_code == 404


@pytest.mark.parametrize(
    "path", ["queues", "queues/%2F", "vhosts", "overview", "bindings/%2F/e/amq.topic/q/q"]
)
async def test_a_slash_at_the_end_changes_nothing(connect: Connect, path: str) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q/", json={})
    assert (await client.get(f"{path}/")).json() == (await client.get(path)).json()
    assert (await client.get(f"{path}//")).status_code == 404


async def test_slashes_in_names(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    assert (await client.put("queues/%2F/a%2Fb%20%C3%A4", json={})).status_code == 201
    assert list(node.broker.vhost("/").queues) == ["a/b ä"]
    assert (await client.get("queues/%2F/a%2Fb%20%C3%A4")).json()["name"] == "a/b ä"
    assert (await client.get("queues/%2F/%ff")).status_code == 400
    assert (await client.get("queues/%2F/%00")).status_code == 400


async def test_body_is_bounded(connect: Connect) -> None:
    client = connect("admin")
    answer = await client.put(
        "vhosts/v", content=b" " * (BODY_BYTES_MAX + 1), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413

    async def unannounced() -> Any:
        for _ in range(BODY_BYTES_MAX // 1024 + 1):
            yield b" " * 1024

    answer = await client.put("vhosts/v", content=unannounced(), headers={"content-type": "application/json"})
    assert answer.status_code == 413


FORMS = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
OF_ANOTHER_PAGE = [{"origin": "http://elsewhere"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]


@pytest.mark.parametrize("type_", FORMS)
@pytest.mark.parametrize("page", OF_ANOTHER_PAGE)
async def test_forms_of_other_pages_are_refused(
    connect: Connect, parts: ManagedParts, type_: str, page: dict[str, str]
) -> None:
    headers = page | {"content-type": type_} if type_ else page
    for content in (b"{}", b""):
        answer = await connect("admin").put("vhosts/v", content=content, headers=headers)
        assert answer.status_code == 415
    assert "v" not in parts.broker.vhost_records


@pytest.mark.parametrize("type_", FORMS)
@pytest.mark.parametrize("page", [{}, {"origin": "http://broker"}, {"sec-fetch-site": "same-origin"}])
async def test_tools_send_bodies_under_any_content_type(
    connect: Connect, parts: ManagedParts, type_: str, page: dict[str, str]
) -> None:
    headers = page | {"content-type": type_} if type_ else page
    answer = await connect("admin").put("vhosts/v", content=b'{"description": "d"}', headers=headers)
    assert answer.status_code == 201
    assert parts.broker.vhost_records.require("v").description == "d"


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"durable": 7}', b'{"arguments": [1]}', b"\xff", b"[" * 50_000]
)
async def test_bad_json_is_the_clients_fault(connect: Connect, node: ManagedNode, body: bytes) -> None:
    answer = await connect("admin").put(
        "queues/%2F/q", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"] == "bad_request"
    assert not node.broker.vhost("/").queues


async def test_our_own_faults_are_logged_and_not_shown(
    connect: Connect, parts: ManagedParts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> Any:
        raise RuntimeError("inner canary")

    monkeypatch.setattr(queues, "queues_of", fails)
    with caplog.at_level(logging.ERROR):
        answer = await connect("admin").get("queues")
    assert answer.status_code == 500
    assert answer.json() == {"error": "internal_server_error", "reason": "Internal Server Error"}
    assert "inner canary" in caplog.text
    assert "authorization" not in caplog.text.lower()


async def test_long_paths_are_refused(connect: Connect) -> None:
    assert (await connect("admin").get("queues/%2F/" + "a" * 9000)).status_code == 414
    assert (await connect("admin").get("queues?name=" + "a" * 9000)).status_code == 414


async def test_changes_are_settled_before_they_are_answered(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    assert node.settled == [["q"]]
    await client.get("queues")
    assert node.settled == [["q"]]


async def test_requests_at_a_time_are_bounded(parts: ManagedParts) -> None:
    """Only requests of users count. Probes and refused logins are outside the bound."""
    import httpx

    from amqp_server.management.serving.http import Api

    app = Api(parts, BODY_BYTES_MAX).app(requests_max=0)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://broker") as client:
        auth = httpx.BasicAuth("admin", "admin")
        assert (await client.get("/api/whoami", auth=auth)).status_code == 503
        assert (await client.get("/api/whoami")).status_code == 401
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/health/ready")).status_code == 200


async def test_wrong_logins_of_one_address_leave_room_for_others(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """The API of these tests takes eight requests at a time."""
    stranger, admin = connect(None, peer="10.0.0.2"), connect("admin", peer="10.0.0.3")
    assert (await connect("watcher", peer="10.0.0.2").get("whoami")).status_code == 200
    answers: list[int] = []

    async def guess(number: int) -> None:
        auth = httpx.BasicAuth("admin", f"guess-{number}")
        answers.append((await stranger.get("whoami", auth=auth)).status_code)

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(guess, number)
        await trio.testing.wait_all_tasks_blocked()
        assert (await admin.get("whoami")).status_code == 200
        # A password that was right a moment ago needs no check.
        assert (await connect("watcher", peer="10.0.0.2").get("whoami")).status_code == 200
    assert 429 in answers and set(answers) <= {401, 429, 503}
    assert "HTTP access denied: user 'admin' - invalid credentials, from 10.0.0.2" in caplog.text
    assert "guess" not in caplog.text


async def test_changes_are_noted_and_secrets_are_not(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect("admin", peer="10.0.0.7")
    with caplog.at_level(logging.INFO, "mqd.audit"):
        assert (await client.put("users/ann", json={"password": "canary", "tags": ""})).status_code == 201
        wrong = {"configure": "(", "write": "", "read": ""}
        assert (await client.put("permissions/%2F/ann", json=wrong)).status_code == 400
        assert (await client.post("users/ann/authenticate", json={"password": "canary"})).status_code < 500
        assert (await client.get("users")).status_code == 200
        assert (await connect("manager").delete("users/ann")).status_code == 401
    lines = [record.getMessage() for record in caplog.records if record.name == "mqd.audit"]
    assert lines == [
        "user 'admin' from 10.0.0.7: PUT /api/users/ann: 201",
        "user 'admin' from 10.0.0.7: PUT /api/permissions/%2F/ann: 400",
    ]
    assert "canary" not in caplog.text
