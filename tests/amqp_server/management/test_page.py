"""The page's files, and how a browser logs in: cookies, the second secret, and how the node stops other
sites.
"""

from __future__ import annotations

import logging
import re
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from amqp_server.broker.access.token_permissions import Token
from amqp_server.broker.access.users import User
from amqp_server.connection.login.password_checks import Outcome
from amqp_server.management.parts import ManagedParts
from amqp_server.management.serving.http import Api
from amqp_server.management.serving.login import Caller
from amqp_server.management.serving.page_files import DIRECTORY, POLICY, TYPES, page_files
from amqp_server.management.serving.page_login import CSRF_HEADER
from amqp_server.management.serving.page_sessions import PageSessions, SessionLimits
from conformance_tests.patience import PATIENCE_S
from tests.reliability.node import Node as Program

from .conftest import BODY_BYTES_MAX, ManagedNode, sha256


class Clock:
    """A clock in seconds."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


Browser = Callable[..., httpx.AsyncClient]


@pytest.fixture
async def browser(parts: ManagedParts) -> AsyncIterator[Browser]:
    """`browser()`: a client that keeps cookies and sends no login of its own."""
    app = Api(parts, BODY_BYTES_MAX).app(requests_max=8)
    clients: list[httpx.AsyncClient] = []

    def browser(peer: str = "127.0.0.1", of: Any = app) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(of, client=(peer, 12345))
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://broker/"))
        return clients[-1]

    yield browser
    for client in clients:
        await client.aclose()


async def log_in(client: httpx.AsyncClient, user: str, password: str = "") -> str:
    """Return the second secret, which the client sends from now on."""
    body = {"name": user, "password": password or user}
    answer = await client.post("/api/session", json=body)
    assert answer.status_code == 200, answer.text
    csrf: str = answer.json()["csrf"]
    client.headers[CSRF_HEADER] = csrf
    return csrf


# -- files ---------------------------------------------------------------------------------------------------


async def test_the_page_and_its_policy(browser: Browser) -> None:
    client = browser()
    answer = await client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert "'unsafe" not in POLICY and "*" not in POLICY and "data:" not in POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert (await client.post("/")).status_code == 405
    # The API's answers have a stricter policy.
    other = (await client.get("/api/session")).headers["content-security-policy"]
    assert other == "default-src 'none'; frame-ancestors 'none'"


async def test_each_file_is_served_with_its_type(browser: Browser) -> None:
    client = browser()
    files = page_files()
    assert {"index.html", "app.js"} <= set(files)
    for path, file in files.items():
        answer = await client.get(f"/page/{path}")
        assert answer.content == file.body
        assert answer.headers["content-type"] == TYPES["." + path.rpartition(".")[2]]
        assert answer.headers["content-security-policy"] == POLICY
        etag = answer.headers["etag"]
        for known in (etag, f'"x", {etag}', "*"):
            again = await client.get(f"/page/{path}", headers={"if-none-match": known})
            assert (again.status_code, again.content) == (304, b"")
        again = await client.get(f"/page/{path}", headers={"if-none-match": '"x"'})
        assert again.status_code == 200


@pytest.mark.parametrize(
    ("accepts", "encoding"),
    [("gzip, deflate, br", "gzip"), ("br;q=1, GZIP;q=0.5", "gzip"), ("gzip;q=0", None), ("identity", None)],
)
async def test_files_are_compressed_for_those_who_take_it(
    browser: Browser, accepts: str, encoding: str | None
) -> None:
    client = browser()
    answer = await client.get("/page/style.css", headers={"accept-encoding": accepts})
    assert answer.headers.get("content-encoding") == encoding
    assert answer.headers["vary"] == "accept-encoding"
    file = page_files()["style.css"]
    # Compare the content after httpx has decompressed it.
    assert answer.content == file.body
    sent = int(answer.headers["content-length"])
    assert sent == len(file.gzipped if encoding else file.body)
    assert len(file.gzipped) < len(file.body) / 2


def test_what_the_first_script_imports_is_announced() -> None:
    """So a browser requests all of them at once, and not one file after the other."""
    texts = {path: file.body.decode() for path, file in page_files().items()}
    needed, pending = set(), ["app.js"]
    while pending:
        path = pending.pop()
        if path in needed:
            continue
        needed.add(path)
        pending += re.findall(r"""^import .* from "\./([^"]+)";$""", texts[path], re.MULTILINE)
    announced = re.findall(r"""<link rel="modulepreload" href="page/([^"]+)">""", texts["index.html"])
    assert sorted(announced) == sorted(needed - {"app.js"})


@pytest.mark.parametrize(
    "path",
    [
        "/page/../page_files.py",
        "/page/..%2fpage_files.py",
        "/page/%2e%2e/page_files.py",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/page/..\\page_files.py",
        "/page/app.js%00.css",
        "/page/./app.js",
        "/page/pages/../app.js",
        "/page/index.html/",
        "/page/",
        "/page",
        "/page_files.py",
    ],
)
async def test_no_path_leads_elsewhere(parts: ManagedParts, path: str) -> None:
    # Without httpx, which would normalise the path.
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "http_version": "1.1",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"broker")],
        "client": ("127.0.0.1", 12345),
        "server": ("broker", 80),
    }
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    await Api(parts, BODY_BYTES_MAX).app(requests_max=8)(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    assert b"PageFiles" not in body and b"root:" not in body
    assert sent[0]["status"] == (200 if path == "/page/index.html/" else 404)


def test_nothing_in_the_files_needs_what_the_policy_forbids() -> None:
    """The files have no script or style within HTML, nothing of other hosts, and make no HTML from texts."""
    texts = {path: file.body.decode() for path, file in page_files().items()}
    index = texts["index.html"]
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", index)
    for path, text in texts.items():
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert word not in text, (path, word)
        hosts = set(re.findall(r"https?://[\w.]+", text))
        # Names of the XML vocabulary; no browser fetches them.
        assert hosts <= {"http://www.w3.org"}, path
    imported = [
        (path, name)
        for path, text in texts.items()
        for name in re.findall(r"""(?:from|import)\s*\(?["'](\.[^"']+)["']""", text)
    ]
    assert imported
    for path, name in imported:
        found = (DIRECTORY / path).parent / name
        assert found.resolve().relative_to(DIRECTORY.resolve()).as_posix() in texts, (path, name)


async def test_without_a_page_there_are_no_sessions(parts: ManagedParts, browser: Browser) -> None:
    client = browser(of=Api(parts, BODY_BYTES_MAX, page=False).app(requests_max=8))
    assert (await client.get("/")).status_code == 404
    body = {"name": "admin", "password": "admin"}
    assert (await client.post("/api/session", json=body)).status_code == 404


# -- sessions ------------------------------------------------------------------------------------------------


async def test_a_session(browser: Browser) -> None:
    client = browser()
    assert (await client.get("/api/session")).json() == {"name": ""}
    assert (await client.get("/api/whoami")).status_code == 401
    csrf = await log_in(client, "watcher")
    (cookie,) = client.cookies.jar
    assert cookie.path == "/api" and len(cookie.value or "") == 43
    assert (await client.get("/api/whoami")).json()["name"] == "watcher"
    told = (await client.get("/api/session")).json()
    assert told == {"name": "watcher", "tags": ["monitoring"], "node": "n1", "clustered": False, "csrf": csrf}
    value = cookie.value
    assert (await client.delete("/api/session")).status_code == 204
    assert not list(client.cookies.jar)
    # The session is gone from the node, too.
    client.cookies.set(cookie.name, value or "", domain=cookie.domain, path="/api")
    assert (await client.get("/api/whoami")).status_code == 401


async def test_a_login_takes_no_id_from_outside(browser: Browser) -> None:
    """An attacker who has planted an id in a browser does not get the session of the user who logs in
    there.
    """
    client = browser()
    await log_in(client, "watcher")
    (cookie,) = client.cookies.jar
    for planted in (cookie.value or "", "A" * 43):
        headers = {"cookie": f"{cookie.name}={planted}"}
        known = await browser().get("/api/whoami", headers=headers)
        assert known.status_code == (200 if planted == cookie.value else 401)
        body = {"name": "admin", "password": "admin"}
        answer = await browser().post("/api/session", json=body, headers=headers)
        assert answer.status_code == 200 and planted not in answer.headers["set-cookie"]
        # And the session with that id has ended.
        assert (await browser().get("/api/whoami", headers=headers)).status_code == 401


async def test_the_cookie_is_for_this_host_and_no_script(browser: Browser) -> None:
    answer = await browser().post("/api/session", json={"name": "admin", "password": "admin"})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "path=/api" in cookie
    assert "domain" not in cookie and "expires" not in cookie and "max-age" not in cookie
    assert answer.json()["csrf"] not in cookie
    # Beyond the machine there is a proxy that speaks TLS; the browser's request shows it.
    assert "secure" not in cookie
    body = {"name": "admin", "password": "admin"}
    answer = await browser().post("/api/session", json=body, headers={"origin": "https://broker"})
    assert "; secure" in answer.headers["set-cookie"].lower()


async def test_who_may_not_in(browser: Browser, caplog: pytest.LogCaptureFixture) -> None:
    for user, password, peer, reason in (
        ("admin", "wrong canary", "127.0.0.1", "Login failed"),
        ("nobody", "nobody", "127.0.0.1", "Login failed"),
        ("plain", "plain", "127.0.0.1", "Not management user"),
        ("guest", "guest", "10.0.0.1", "User can only log in via localhost"),
    ):
        answer = await browser(peer).post("/api/session", json={"name": user, "password": password})
        assert (answer.status_code, answer.json()["reason"]) == (401, reason)
        assert "set-cookie" not in answer.headers
        # Otherwise the browser would ask for a password in a window of its own.
        assert "www-authenticate" not in answer.headers
    assert "canary" not in caplog.text


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"name": "admin"}', b'{"name": 1, "password": "x"}', b"\xff"]
)
async def test_logins_that_are_none(browser: Browser, body: bytes) -> None:
    answer = await browser().post("/api/session", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["reason"] == "body must be an object with name and password"


async def test_the_body_of_a_login_is_bounded(browser: Browser) -> None:
    body = {"name": "admin", "password": "x" * 9_000}
    assert (await browser().post("/api/session", json=body)).status_code == 413


async def test_logins_are_noted_without_secrets(browser: Browser, caplog: pytest.LogCaptureFixture) -> None:
    client = browser("10.0.0.7")
    with caplog.at_level(logging.DEBUG):
        csrf = await log_in(client, "admin")
        await client.delete("/api/session")
    lines = [record.getMessage() for record in caplog.records if record.name == "mqd.audit"]
    assert lines == ["user 'admin' from 10.0.0.7: logged in to the page"]
    assert csrf not in caplog.text


async def test_changes_need_the_second_secret(browser: Browser, parts: ManagedParts) -> None:
    client = browser()
    csrf = await log_in(client, "admin")
    other = browser()
    for wrong in ("", "x", csrf[:-1], csrf + "x", await log_in(other, "admin")):
        for method, path in (("PUT", "/api/vhosts/v"), ("DELETE", "/api/session")):
            answer = await client.request(method, path, json={}, headers={CSRF_HEADER: wrong})
            assert (answer.status_code, answer.json()["error"]) == (403, "forbidden")
    del client.headers[CSRF_HEADER]
    assert (await client.put("/api/vhosts/v", json={})).status_code == 403
    assert "v" not in parts.broker.vhost_records
    # Requests that only read need no secret.
    assert (await client.get("/api/vhosts")).status_code == 200
    assert (await client.put("/api/vhosts/v", json={}, headers={CSRF_HEADER: csrf})).status_code == 201


@pytest.mark.parametrize(
    "page", [{"origin": "http://elsewhere"}, {"origin": "null"}, {"sec-fetch-site": "same-site"}]
)
async def test_other_pages_change_nothing(
    browser: Browser, parts: ManagedParts, page: dict[str, str]
) -> None:
    client = browser()
    await log_in(client, "admin")
    # Another site can't do it even if it has guessed the secret.
    assert (await client.put("/api/vhosts/v", json={}, headers=page)).status_code == 403
    assert "v" not in parts.broker.vhost_records
    # Nor can it read anything, or have an answer executed as a script.
    assert (await client.get("/api/vhosts", headers=page)).status_code == 403
    assert (await client.get("/api/session", headers=page)).json() == {"name": ""}
    # Nor can it log the browser in as another user.
    body = {"name": "watcher", "password": "watcher"}
    assert (await client.post("/api/session", json=body, headers=page)).status_code == 415
    assert (await client.get("/api/session")).json()["name"] == "admin"


@pytest.mark.parametrize("type_", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_forms_do_not_log_in(browser: Browser, type_: str) -> None:
    body = b'{"name": "admin", "password": "admin"}'
    answer = await browser().post("/api/session", content=body, headers={"content-type": type_})
    assert answer.status_code == 415


async def test_refusals_of_the_pages_requests_challenge_nobody(browser: Browser) -> None:
    client = browser()
    assert "www-authenticate" in (await client.get("/api/whoami")).headers
    answer = await client.get("/api/whoami", headers={CSRF_HEADER: ""})
    assert (answer.status_code, "www-authenticate" in answer.headers) == (401, False)
    await log_in(client, "manager")
    for path in ("/api/users", "/api/queues/other"):
        answer = await client.get(path)
        assert (answer.status_code, "www-authenticate" in answer.headers) == (401, False)


async def test_a_session_may_what_its_user_may_now(browser: Browser, node: ManagedNode) -> None:
    client = browser()
    await log_in(client, "watcher")
    assert (await client.get("/api/users")).status_code == 401
    users = node.broker.access.users
    users.put("watcher", users.require("watcher").password_hash, ["administrator"])
    assert (await client.get("/api/users")).status_code == 200
    users.put("watcher", users.require("watcher").password_hash, [])
    assert (await client.get("/api/whoami")).json()["reason"] == "Not management user"
    assert (await client.get("/api/session")).json() == {"name": ""}


async def test_who_sees_a_message_that_waits_may_cancel_it(browser: Browser, node: ManagedNode) -> None:
    """So the page offers that beside each of them, and shows none to others."""
    admin = browser()
    await log_in(admin, "admin")
    queue = "/api/queues/%2F/later"
    await admin.put(queue, json={"arguments": {"x-delayed": True}})
    properties = {"message_id": "wake ann", "headers": {"x-delay": 60_000}}
    message = {"properties": properties, "routing_key": "later", "payload": "x", "payload_encoding": "string"}
    await admin.post("/api/exchanges/%2F/amq.default/publish", json=message)
    node.broker.access.permissions.set("manager", "/", ".*", ".*", "^$")
    other = browser()
    await log_in(other, "manager")
    look, body = f"{queue}/peek?waiting=true", {"message_id": "wake ann"}
    refused = [await other.get(look), await other.post(f"{queue}/cancel", json=body)]
    assert [answer.status_code for answer in refused] == [401, 401]
    (shown,) = (await admin.get(look)).json()["messages"]
    assert shown["due"] > 0 and shown["properties"]["message_id"] == "wake ann"
    # Without the second secret nothing is cancelled, as with all other changes.
    answer = await admin.post(f"{queue}/cancel", json=body, headers={CSRF_HEADER: "x"})
    assert answer.status_code == 403
    assert (await admin.post(f"{queue}/cancel", json=body)).json()["cancelled"] == 1
    assert (await admin.get(look)).json()["messages"] == []


async def test_a_new_password_ends_the_sessions_of_the_old_one(browser: Browser, node: ManagedNode) -> None:
    client, other = browser(), browser()
    await log_in(client, "watcher")
    await log_in(other, "admin")
    node.broker.access.users.put("watcher", sha256("new"), ["monitoring"])
    assert (await client.get("/api/whoami")).json()["reason"] == "Login failed"
    assert (await other.get("/api/whoami")).status_code == 200
    await log_in(client, "watcher", "new")
    node.broker.access.users.delete("watcher")
    assert (await client.get("/api/whoami")).status_code == 401


async def test_a_better_hash_of_the_same_password_ends_none(browser: Browser, node: ManagedNode) -> None:
    client = browser()
    await log_in(client, "watcher")
    users = node.broker.access.users
    before = users.require("watcher").password_hash
    assert users.replace_hash("watcher", before, sha256("watcher") + "better")
    assert (await client.get("/api/whoami")).status_code == 200
    users.put("watcher", sha256("other"), ["monitoring"])
    assert (await client.get("/api/whoami")).status_code == 401


async def test_a_session_is_of_one_node(browser: Browser, tmp_path: Any) -> None:
    client = browser()
    await log_in(client, "admin")
    (cookie,) = client.cookies.jar
    other_node = ManagedNode(tmp_path, node="n2").parts
    other = browser(of=Api(other_node, BODY_BYTES_MAX).app(requests_max=8))
    await log_in(other, "watcher")
    (other_cookie,) = other.cookies.jar
    # Cookies of two nodes on one host do not overwrite each other.
    assert cookie.name != other_cookie.name
    other.cookies.clear()
    for name in (cookie.name, other_cookie.name):
        other.cookies.set(name, cookie.value or "", domain=cookie.domain, path="/api")
    assert (await other.get("/api/whoami")).status_code == 401


async def test_logins_with_each_request_go_on_as_before(browser: Browser) -> None:
    client = browser()
    await log_in(client, "watcher")
    del client.headers[CSRF_HEADER]
    answer = await client.get("/api/whoami", auth=httpx.BasicAuth("admin", "admin"))
    assert answer.json()["name"] == "admin"
    # The page's own requests belong to its user, whatever other login the browser remembers.
    basic, of_the_page = httpx.BasicAuth("admin", "admin"), {CSRF_HEADER: ""}
    answer = await client.get("/api/whoami", auth=basic, headers=of_the_page)
    assert answer.json()["name"] == "watcher"


async def test_a_session_of_a_token(browser: Browser, node: ManagedNode, parts: ManagedParts) -> None:
    class Tokens:
        bytes_max = 8_192

        async def log_in(self, checks: object, peer: str, secret: str, waiting_max: int) -> Any:
            scopes = ("tag:management", "read:*/*")
            return Outcome.ACCEPTED, "", Token("ann", scopes, 2e9)

    node.tokens = Tokens()
    client = browser(of=Api(parts, BODY_BYTES_MAX).app(requests_max=8))
    await log_in(client, "", "eyJ.eyJ.x")
    assert (await client.get("/api/whoami")).json() == {
        "name": "ann",
        "tags": ["management"],
        "is_internal_user": False,
    }
    assert (await client.get("/api/queues/%2F")).status_code == 200
    assert (await client.put("/api/queues/%2F/q", json={})).status_code == 401


def test_sessions_end_and_are_bounded(node: ManagedNode) -> None:
    clock = Clock()
    users = node.broker.access.users
    admin, watcher = Caller(users.require("admin")), Caller(users.require("watcher"))
    limits = SessionLimits(sessions_max=4, per_user_max=2, idle_s=10, age_s=25)
    sessions = PageSessions(users, limits, now=clock, wall_clock=clock)
    first, second, third = (sessions.begin(admin)[0] for _ in range(3))
    assert sessions.find(first) is None and sessions.find(second) and sessions.find(third)
    others = [sessions.begin(watcher)[0] for _ in range(2)]
    assert len(sessions) == 4
    fifth = Caller(users.require("manager"))
    sessions.find(second)
    sessions.begin(fifth)
    # The session that was used least recently has gone.
    assert sessions.find(third) is None and sessions.find(second) and sessions.find(others[0])
    clock.advance(9)
    assert sessions.find(second)
    clock.advance(9)
    assert sessions.find(second) and sessions.find(others[0]) is None
    clock.advance(9)
    # This session was used all the time, and is too old.
    assert sessions.find(second) is None
    token = Caller(users.require("admin"), ("tag:administrator",), clock() + 5)
    of_token, session = sessions.begin(token)
    assert sessions.find(of_token) is session and len(sessions) == 1
    clock.advance(5)
    assert sessions.find(of_token) is None
    assert all(sessions.find(each) is None for each in ("", "x" * 43, "x" * 10_000))


def test_sessions_are_bounded_in_bytes(node: ManagedNode) -> None:
    limits = SessionLimits(bytes_max=1 << 20)
    sessions = PageSessions(node.broker.access.users, limits)
    scopes = tuple(f"read:{number:05}/*" for number in range(2_000))
    ids = [
        sessions.begin(Caller(User(f"u{number}", "", ("management",)), scopes, 1e12))[0]
        for number in range(50)
    ]
    assert 1 < len(sessions) < 10
    assert sessions.find(ids[-1]) and sessions.find(ids[0]) is None
    # A logout makes room.
    for id_ in ids:
        sessions.end(id_)
    assert len(sessions) == 0
    first = sessions.begin(Caller(node.broker.access.users.require("admin")))[0]
    for _ in range(3):
        sessions.begin(Caller(User("ann", "", ()), scopes, 1e12))
    assert sessions.find(first)


def test_ids_are_not_kept(node: ManagedNode) -> None:
    sessions = PageSessions(node.broker.access.users, SessionLimits())
    ids = {sessions.begin(Caller(node.broker.access.users.require("admin")))[0] for _ in range(5)}
    assert len(ids) == 5 and all(len(each) == 43 for each in ids)
    assert not any(each in repr(vars(sessions)) for each in ids)


def test_the_installed_program_has_all_of_it(tmp_path: Path) -> None:
    with Program(tmp_path) as node:
        for path in ("", *(f"page/{each}" for each in page_files())):
            with urllib.request.urlopen(f"http://127.0.0.1:{node.http}/{path}", timeout=PATIENCE_S) as answer:
                assert answer.read() == page_files()[path.removeprefix("page/") or "index.html"].body
