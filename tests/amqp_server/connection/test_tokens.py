"""Tokens instead of passwords: who signed them, what they grant, how they are renewed and how they end."""

from __future__ import annotations

import http.server
import importlib
import json
import logging
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import trio
import trustme
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from pamqp import commands, frame

from amqp_server.app import Node
from amqp_server.config import Config, InvalidOption
from amqp_server.connection.login import tokens
from conformance_tests.patience import PATIENCE_S

from ..wire.published import message
from .node import CAPABILITIES
from .served import Client, connect, served, until

ALL = "mqd.read:*/* mqd.write:*/* mqd.configure:*/*"


class Issuer:
    """An authorization server: its keys over TLS, and tokens that it signs."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self.ca_file = str(directory / "issuer.pem")
        authority.cert_pem.write_to_path(self.ca_file)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(tls)
        self.rsa = rsa.generate_private_key(65537, 2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        self.keys = [
            RSAAlgorithm.to_jwk(self.rsa.public_key(), as_dict=True) | {"kid": "rsa", "use": "sig"},
            ECAlgorithm.to_jwk(self.ec.public_key(), as_dict=True) | {"kid": "ec"},
            {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
            {"kty": "RSA", "kid": "broken", "n": 7},
        ]
        self.asked: list[str] = []
        #: While this is not set, the server answers nothing.
        self.gate = threading.Event()
        self.gate.set()
        self.closing = threading.Event()
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                issuer.gate.wait(PATIENCE_S)
                answers: dict[str, Any] = {
                    "/keys": {"keys": issuer.keys},
                    "/realm/.well-known/openid-configuration": {"jwks_uri": f"{issuer.url}/keys"},
                    "/large/.well-known/openid-configuration": {"x": "x" * 3_000_000},
                    "/plain/.well-known/openid-configuration": {"jwks_uri": "http://127.0.0.1/keys"},
                }
                told = answers.get(self.path)
                body = b" " * 4_000 if self.path == "/slowly" else json.dumps(told).encode()
                self.send_response(200 if told or self.path == "/slowly" else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.path == "/slowly":
                    # The answer never ends, and no two bytes are far apart.
                    while not issuer.closing.wait(0.05):
                        self.wfile.write(b" ")
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads = True
        # Errors that a client causes by giving up are not to be reported.
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.url = f"https://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def options(self) -> dict[str, Any]:
        return {
            "oauth_resource_server_id": "mqd",
            "oauth_jwks_url": f"{self.url}/keys",
            "oauth_ca_file": self.ca_file,
        }

    def claims(self, scope: str = ALL, **claims: Any) -> dict[str, Any]:
        made = {"sub": "anna", "aud": "mqd", "exp": time.time() + 3600, "scope": scope} | claims
        return {name: value for name, value in made.items() if value is not None}

    def token(self, scope: str = ALL, *, kid: str = "rsa", **claims: Any) -> str:
        key, algorithm = (self.ec, "ES256") if kid == "ec" else (self.rsa, "RS256")
        return jwt.encode(self.claims(scope, **claims), key, algorithm, {"kid": kid})


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    made = Issuer(tmp_path_factory.mktemp("issuer"))
    yield made
    made.close()


async def begin(node: Node, password: str, user: str = "") -> tuple[Client, Any]:
    """Log in; return the answer: connection.tune or connection.close."""
    client = await connect(node)
    await client.send(b"AMQP\x00\x00\x09\x01")
    await client.wait_for(commands.Connection.Start)
    properties: Any = {"capabilities": dict(CAPABILITIES)}
    login = commands.Connection.StartOk(properties, "PLAIN", f"\0{user}\0{password}", "en_US")
    await client.send(frame.marshal(login, 0))
    with trio.fail_after(PATIENCE_S):
        while not client.received:
            assert await client.read(), "the connection was closed"
    return client, client.received.pop(0)[1]


@asynccontextmanager
async def logged_in(node: Node, token: str, vhost: str = "/", channels: int = 1) -> Any:
    client, tune = await begin(node, token)
    try:
        assert isinstance(tune, commands.Connection.Tune), tune
        await client.send(frame.marshal(commands.Connection.TuneOk(2047, 131_072, 0), 0))
        await client.ask(0, commands.Connection.Open(vhost), commands.Connection.OpenOk)
        for channel in range(1, channels + 1):
            await client.ask(channel, commands.Channel.Open(), commands.Channel.OpenOk)
        yield client
    finally:
        await trio.aclose_forcefully(client.stream)


async def refused(node: Node, token: str) -> None:
    client, answer = await begin(node, token)
    assert isinstance(answer, commands.Connection.Close) and answer.reply_code == 403, answer
    await trio.aclose_forcefully(client.stream)


async def denied(client: Client, channel: int, method: Any) -> str:
    close = await client.ask(channel, method, commands.Channel.Close)
    assert close.reply_code == 403
    return str(close.reply_text)


async def test_a_token_says_who_the_user_is_and_grants(tmp_path: Path, issuer: Issuer) -> None:
    async with served(tmp_path, **issuer.options) as node:
        scope = "mqd.configure:%2F/mine-* mqd.read:%2F/mine-* mqd.write:%2F/amq.default other.write:*/*"
        async with logged_in(node, issuer.token(scope), channels=4) as client:
            (session,) = node.broker.sessions
            assert session.client.username == "anna"
            await client.ask(1, commands.Queue.Declare(queue="mine-1"), commands.Queue.DeclareOk)
            await client.send(message(routing_key="mine-1", body=b"tea").encode(1))
            queue = node.broker.vhost("/").queues["mine-1"]
            await until(lambda: queue.host.ready_count == 1)
            said = await denied(client, 2, commands.Queue.Declare(queue="other"))
            assert "access to queue 'other' in vhost '/' refused for user 'anna'" in said
            said = await denied(client, 3, commands.Queue.Bind(queue="mine-1", exchange="amq.topic"))
            assert "access to queue 'mine-1' in vhost '/' refused" in said
        # The same user, and another token.
        async with logged_in(node, issuer.token(kid="ec")) as client:
            await client.ask(1, commands.Queue.Declare(queue="other"), commands.Queue.DeclareOk)
        await until(lambda: not node.server.transports)
        assert not node.broker.access.permissions._grants
        # This name is no user of the broker's own, and passwords still work.
        assert node.broker.access.users.get("anna") is None
        direct = await connect(node)
        await direct.log_in()
        await direct.close()
        elsewhere, _ = await begin(node, issuer.token("mqd.read:shop/*"))
        await elsewhere.send(frame.marshal(commands.Connection.TuneOk(2047, 131_072, 0), 0))
        close = await elsewhere.ask(0, commands.Connection.Open("/"), commands.Connection.Close)
        assert close.reply_text == "NOT_ALLOWED - access to vhost '/' refused for user 'anna'"
        await trio.aclose_forcefully(elsewhere.stream)


async def test_a_scope_limits_the_routing_keys_of_a_topic_exchange(tmp_path: Path, issuer: Issuer) -> None:
    scope = "mqd.configure:*/* mqd.read:*/q mqd.write:*/q mqd.write:%2F/amq.topic/eu.* mqd.read:%2F/amq.topic/eu.*"
    async with (
        served(tmp_path, **issuer.options) as node,
        logged_in(node, issuer.token(scope), channels=3) as client,
    ):
        await client.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        bind = commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="eu.#")
        await client.ask(1, bind, commands.Queue.BindOk)
        await client.send(message(exchange="amq.topic", routing_key="eu.de", body=b"tea").encode(1))
        await until(lambda: node.broker.vhost("/").queues["q"].host.ready_count == 1)
        await client.send(message(exchange="amq.topic", routing_key="us.ny", body=b"tea").encode(1))
        close = await client.wait_for(commands.Channel.Close)
        assert close.reply_code == 403
        assert "access to topic 'us.ny' in exchange 'amq.topic' in vhost '/' refused" in close.reply_text
        said = await denied(client, 2, commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="#"))
        assert "access to topic '#'" in said


async def test_tokens_that_are_refused(
    tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    claims = issuer.claims()
    bad = {
        "it has expired": issuer.token(exp=time.time() - 1),
        "it is for another audience": issuer.token(aud="other"),
        "it is not valid yet": issuer.token(nbf=time.time() + 600),
        "it has no claim 'aud'": issuer.token(aud=None),
        "it has no claim 'exp'": issuer.token(exp=None),
        "it names no user": issuer.token(sub=None),
        "its signature is wrong": jwt.encode(claims, stranger, "RS256", {"kid": "rsa"}),
        "an algorithm that is not accepted": jwt.encode(claims, "secret" * 8, "HS256", {"kid": "shared"}),
        "its algorithm is not that of the key": jwt.encode(claims, issuer.ec, "ES256", {"kid": "rsa"}),
        "no such key": jwt.encode(claims, issuer.rsa, "RS256", {"kid": "unknown"}),
        "it is malformed": "eyJ." + "x" * 30 + ".y",
    }
    unsigned = jwt.encode(claims, "", "none", {"kid": "rsa"})
    options = issuer.options | {"login_failures_free": 100}
    async with served(tmp_path, **options) as node:
        for reason, token in bad.items():
            caplog.clear()
            await refused(node, token)
            assert reason in caplog.text, caplog.text
            assert token not in caplog.text and token.split(".")[1] not in caplog.text
        await refused(node, unsigned)
        # A name that no user can have, and one that may not come from elsewhere.
        await refused(node, issuer.token(sub="an\nna"))
        async with logged_in(node, issuer.token(sub="guest")):
            pass
    with pytest.raises(InvalidOption, match="https"):
        Config(oauth_resource_server_id="mqd", oauth_jwks_url="http://127.0.0.1/keys")
    with pytest.raises(InvalidOption, match="oauth_resource_server_id"):
        Config(oauth_resource_server_id="mqd")


async def test_the_management_api_takes_tokens(
    tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    scope = (
        "mqd.tag:management mqd.configure:%2F/mine mqd.write:%2F/* mqd.read:%2F/amq.topic/eu.* mqd.read:%2F/q"
    )
    token = issuer.token(scope)
    async with served(tmp_path, http="127.0.0.1:0", **issuer.options) as node:
        async with httpx.AsyncClient(
            base_url=f"http://{node.http_address}/api/", timeout=PATIENCE_S
        ) as client:

            async def ask(method: str, path: str, secret: str = token, **options: Any) -> Any:
                headers = {"authorization": f"Bearer {secret}"}
                return await client.request(method, path, headers=headers, **options)

            told = (await ask("GET", "whoami")).json()
            assert told == {"name": "anna", "tags": ["management"], "is_internal_user": False}
            basic = await client.get("whoami", auth=("anyone", token))
            assert basic.json() == told
            assert (await client.get("whoami", auth=("guest", "guest"))).json()["name"] == "guest"
            assert (await ask("PUT", "queues/%2F/mine", json={})).status_code == 201
            assert (await ask("PUT", "queues/%2F/other", json={})).status_code == 401
            bind = "bindings/%2F/e/amq.topic/q/mine"
            assert (await ask("POST", bind, json={"routing_key": "eu.de"})).status_code == 201
            refused = await ask("POST", bind, json={"routing_key": "us.ny"})
            assert refused.status_code == 401 and "access to topic 'us.ny'" in refused.text
            message = {
                "properties": {},
                "routing_key": "mine",
                "payload": "tea",
                "payload_encoding": "string",
            }
            sent = await ask("POST", "exchanges/%2F/amq.default/publish", json=message)
            assert sent.json() == {"routed": True}
            assert (await ask("GET", "users")).status_code == 401
            assert (await ask("GET", "vhosts", issuer.token("mqd.tag:monitoring"))).status_code == 200
            alive = await ask("GET", "aliveness-test/%2F", issuer.token(f"{ALL} mqd.tag:monitoring"))
            assert alive.json() == {"status": "ok"}
            # The token's permissions count, and not those of a broker's user with the same name.
            node.broker.access.users.put("bert", "", ())
            node.broker.access.permissions.set("bert", "/", ".*", ".*", ".*")
            policy = {"pattern": "^q", "definition": {"max-length": 1}}
            for scope, status in (("mqd.read:%2F/*", 201), ("mqd.read:shop/*", 401)):
                policymaker = issuer.token(f"mqd.tag:policymaker {scope}", sub="bert")
                told = await ask("PUT", "policies/%2F/p", policymaker, json=policy)
                assert told.status_code == status
            administrator = issuer.token("mqd.tag:administrator")
            assert (await ask("GET", "users", administrator)).status_code == 200
            for wrong in (issuer.token("mqd.read:*/*"), issuer.token(exp=time.time() - 1), "x", "."):
                assert (await ask("GET", "whoami", wrong)).status_code == 401
        assert not node.broker.access.permissions._grants
        assert token not in caplog.text and "token refused: it has expired" in caplog.text


async def test_keys_are_kept_and_change(tmp_path: Path, issuer: Issuer) -> None:
    issuer.asked.clear()
    options = issuer.options | {"oauth_keys_pause_s": 100.0, "login_failures_free": 100}
    async with served(tmp_path, **options) as node:
        tokens = node.tokens
        assert tokens is not None
        for _ in range(3):
            async with logged_in(node, issuer.token()):
                pass
        assert issuer.asked == ["/keys"]
        tokens.now = lambda: trio.current_time() + 100
        for _ in range(5):
            await refused(node, jwt.encode(issuer.claims(), issuer.rsa, "RS256", {"kid": "new"}))
        assert issuer.asked == 2 * ["/keys"]
        issuer.keys.append(issuer.keys[0] | {"kid": "new"})
        tokens.now = lambda: trio.current_time() + 200
        try:
            async with logged_in(node, jwt.encode(issuer.claims(), issuer.rsa, "RS256", {"kid": "new"})):
                pass
        finally:
            issuer.keys.pop()


async def test_who_waits_for_keys_holds_nobody_up(
    tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    issuer.asked.clear()
    issuer.gate.clear()
    try:
        async with served(tmp_path, oauth_fetch_timeout_s=600.0, **issuer.options) as node:
            waiting = await connect(node)
            await waiting.send(b"AMQP\x00\x00\x09\x01")
            await waiting.wait_for(commands.Connection.Start)
            login = commands.Connection.StartOk({}, "PLAIN", f"\0\0{issuer.token()}", "en_US")
            await waiting.send(frame.marshal(login, 0))
            await until(lambda: bool(issuer.asked))
            # Another client of the same address, with a password.
            direct = await connect(node)
            await direct.log_in()
            await direct.close()
            # The first client gives up, and the keys come all the same.
            await trio.aclose_forcefully(waiting.stream)
            await until(lambda: not node.server.transports)
            issuer.gate.set()
            async with logged_in(node, issuer.token()):
                pass
            assert issuer.asked == ["/keys"]
    finally:
        issuer.gate.set()
    assert not [record for record in caplog.records if record.name.startswith("http")]


async def test_an_answer_that_never_ends_is_given_up(
    tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    options = issuer.options | {"oauth_jwks_url": f"{issuer.url}/slowly", "oauth_fetch_timeout_s": 0.3}
    async with served(tmp_path, **options) as node:
        await refused(node, issuer.token())
        assert "the keys of the authorization server were not fetched: no answer within 0.3 s" in caplog.text


async def test_renewed_and_expired(tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with served(tmp_path, **issuer.options) as node:
        soon = issuer.token("mqd.configure:*/a", exp=time.time() + 2)
        async with logged_in(node, soon, channels=4) as client:
            await client.ask(1, commands.Queue.Declare(queue="a"), commands.Queue.DeclareOk)
            await denied(client, 2, commands.Queue.Declare(queue="b"))
            renewed = issuer.token("mqd.configure:*/b", exp=time.time() + 4)
            await client.ask(
                0, commands.Connection.UpdateSecret(renewed, "renewal"), commands.Connection.UpdateSecretOk
            )
            # The client goes on after the first token has expired, with the permissions of the second one.
            await denied(client, 3, commands.Queue.Declare(queue="a"))
            await client.ask(4, commands.Queue.Declare(queue="b"), commands.Queue.DeclareOk)
            close = await client.wait_for(commands.Connection.Close)
            assert (close.reply_code, close.reply_text) == (320, "CONNECTION_FORCED - the token has expired")
            assert time.time() > jwt.decode(renewed, options={"verify_signature": False})["exp"]
        for other in (issuer.token(sub="bert"), "guest", issuer.token("x" * 5_000)):
            async with logged_in(node, issuer.token()) as client:
                close = await client.ask(
                    0, commands.Connection.UpdateSecret(other, "renewal"), commands.Connection.Close
                )
                assert close.reply_code == 530 and "New secret was refused" in close.reply_text
        refused = "user: 'anna', state: running): Secret update was refused for user 'anna': it is the token of another"
        assert refused in caplog.text and "login refused" not in caplog.text
        assert "): user 'anna' updated secret" in caplog.text
        assert "token refused: it is too long" in caplog.text


async def test_the_last_of_several_secrets_counts(tmp_path: Path, issuer: Issuer) -> None:
    """They come together, so the first one is still verified when the others are there."""
    async with (
        served(tmp_path, **issuer.options) as node,
        logged_in(node, issuer.token(), channels=2) as client,
    ):
        tokens = [issuer.token(f"mqd.configure:*/{name}") for name in "abc"]
        renewals = [commands.Connection.UpdateSecret(each, "renewal") for each in tokens]
        await client.send(b"".join(frame.marshal(each, 0) for each in renewals))
        for _ in tokens:
            await client.wait_for(commands.Connection.UpdateSecretOk)
        await denied(client, 1, commands.Queue.Declare(queue="b"))
        await client.ask(2, commands.Queue.Declare(queue="c"), commands.Queue.DeclareOk)


async def test_a_blocked_publisher_renews_its_token(tmp_path: Path, issuer: Issuer) -> None:
    """An alarm may last for longer than a token."""
    async with (
        served(tmp_path, **issuer.options) as node,
        logged_in(node, issuer.token(exp=time.time() + 2)) as client,
    ):
        await client.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        node.broker.alarms.set("memory", True)
        await client.send(message(routing_key="q", body=b"held back").encode(1))
        await client.wait_for(commands.Connection.Blocked)
        # The publish was permitted when it came.
        renewed = commands.Connection.UpdateSecret(issuer.token("mqd.read:*/*"), "renewal")
        await client.ask(0, renewed, commands.Connection.UpdateSecretOk)
        (session,) = node.broker.sessions
        session.check_grant(int(time.time() * 1000) + 10_000)  # type: ignore[attr-defined]
        assert ready_counts(node) == {"q": 0}
        # Other methods wait until the alarm is over, and then have the new permissions.
        declare = commands.Queue.Declare(queue="new")
        await client.send(frame.marshal(declare, 1))
        node.broker.alarms.set("memory", False)
        await client.wait_for(commands.Connection.Unblocked)
        assert (await client.wait_for(commands.Channel.Close)).reply_code == 403
        await until(lambda: ready_counts(node) == {"q": 1})


def ready_counts(node: Node) -> dict[str, int]:
    return {name: queue.host.ready_count for name, queue in node.broker.vhost("/").queues.items()}


async def test_a_new_token_without_a_permission_ends_the_consumers_that_need_it(
    tmp_path: Path, issuer: Issuer
) -> None:
    scope = "mqd.configure:*/* mqd.write:*/* mqd.read:*/{}"
    async with (
        served(tmp_path, **issuer.options) as node,
        logged_in(node, issuer.token(scope.format("*"))) as client,
    ):
        for queue in ("kept", "lost"):
            await client.ask(1, commands.Queue.Declare(queue=queue), commands.Queue.DeclareOk)
            consume = commands.Basic.Consume(queue=queue, consumer_tag=queue)
            await client.ask(1, consume, commands.Basic.ConsumeOk)
        await client.send(message(routing_key="lost", body=b"tea").encode(1))
        (delivered,) = await client.deliveries(1)
        lost = node.broker.vhost("/").queues["lost"].host
        renewed = commands.Connection.UpdateSecret(issuer.token(scope.format("kept")), "renewal")
        await client.ask(0, renewed, commands.Connection.UpdateSecretOk)
        cancel = await client.wait_for(commands.Basic.Cancel)
        assert cancel.consumer_tag == "lost"
        await until(lambda: lost.consumer_count == 0)
        # As after a cancel by the client, what it holds is still its own to ack.
        assert lost.unacked_count == 1
        await client.send(frame.marshal(commands.Basic.Ack(delivered.method.delivery_tag), 1))
        await until(lambda: lost.unacked_count == 0)
        client.received.clear()
        await client.send(message(routing_key="kept", body=b"tea").encode(1))
        (delivered,) = await client.deliveries(1)
        assert delivered.method.consumer_tag == "kept"


async def test_an_issuer_that_is_away_and_one_that_is_asked_for_its_keys(
    tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    options = issuer.options | {"oauth_jwks_url": "", "oauth_issuer": f"{issuer.url}/realm"}
    async with served(tmp_path / "found", **options) as node:
        async with logged_in(node, issuer.token(iss=f"{issuer.url}/realm")):
            pass
        await refused(node, issuer.token(iss="https://other"))
        assert "it has another issuer" in caplog.text
    for wrong, reason in {
        "missing": "404",
        "large": "more than",
        "plain": "has no jwks_uri that begins with https",
    }.items():
        options["oauth_issuer"] = f"{issuer.url}/{wrong}"
        async with served(tmp_path / wrong, **options) as node:
            await refused(node, issuer.token())
            assert "the keys of the authorization server were not fetched" in caplog.text
            assert reason in caplog.text
            direct = await connect(node)
            await direct.log_in()
            await direct.close()
    # The server's certificate is from another authority, so it is not accepted.
    options = issuer.options | {"oauth_ca_file": ""}
    async with served(tmp_path / "strange", **options) as node:
        await refused(node, issuer.token())
        assert "CERTIFICATE_VERIFY_FAILED" in caplog.text


async def test_the_library_that_fetches_keys_is_loaded_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To load it takes as long as ten turns, the first time."""
    loaded: list[tuple[str, bool]] = []
    load = importlib.import_module

    def seen(name: str) -> Any:
        loaded.append((name, threading.current_thread() is threading.main_thread()))
        return load(name)

    monkeypatch.setattr(importlib, "import_module", seen)
    with pytest.raises(tokens.KeysUnavailable):
        await tokens.fetch_keys(Config(oauth_issuer="https://127.0.0.1:1", oauth_fetch_timeout_s=5.0))
    assert ("httpx", False) in loaded
