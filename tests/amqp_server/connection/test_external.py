"""The mechanism EXTERNAL: only the client's certificate says which user it is."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from pamqp import commands, frame

from amqp_server.app import Node
from amqp_server.config import Config, InvalidOption
from amqp_server.connection.login.certificate_names import distinguished_name, login_name
from amqp_server.management.resources.connections import CONNECTIONS, Reads
from amqp_server.management.statistics.stats import Stats
from conformance_tests.patience import PATIENCE_S

from .authority import Authority, connect_tls
from .node import CAPABILITIES
from .served import Client, connect, served


def test_distinguished_names_are_those_of_rabbitmq() -> None:
    subject = (
        (("countryName", "DE"),),
        (("organizationName", 'Tea, "Coffee" + <Milk>; a\\b'),),
        (("organizationalUnitName", "a"), ("commonName", "b")),
        (("emailAddress", "a@example.org"),),
        (("1.2.3.4", "# x "),),
    )
    assert distinguished_name({"subject": subject}) == (
        "1.2.3.4=\\# x\\ ,EMAILADDRESS=a@example.org,OU=a+CN=b,"
        'O=Tea\\, \\"Coffee\\" \\+ \\<Milk\\>\\; a\\\\b,C=DE'
    )
    assert distinguished_name({}) == ""
    assert distinguished_name({"subject": ((("commonName", "a\0b"),),)}) == "CN=a\\00b"


def test_a_name_may_come_from_any_part_of_the_certificate() -> None:
    certificate: dict[str, Any] = {
        "subject": ((("organizationName", "mqd"),), (("commonName", "one"),), (("commonName", "two"),)),
        "subjectAltName": (
            ("DNS", "a"),
            ("email", "b@c"),
            ("DNS", "d"),
            ("IP Address", "::1"),
            ("URI", "u:x"),
        ),
    }

    def san(kind: str, index: int = 0) -> str:
        return login_name(certificate, "subject_alternative_name", kind, index)

    assert login_name(certificate, "common_name") == "one,two"
    assert (san("dns"), san("dns", 1), san("dns", 2)) == ("a", "d", "")
    assert (san("email"), san("ip"), san("uri")) == ("b@c", "::1", "u:x")
    assert login_name({}, "common_name") == login_name({}, "subject_alternative_name") == ""


def test_without_authorities_no_certificate_logs_in() -> None:
    with pytest.raises(InvalidOption, match="tls_login_from"):
        Config(tls_login_from="common_name")


async def start(client: Client, mechanism: str = "EXTERNAL", response: str = "") -> str:
    """Send a login; return the mechanisms that were offered."""
    await client.send(b"AMQP\x00\x00\x09\x01")
    offered = await client.wait_for(commands.Connection.Start)
    properties: Any = {"capabilities": dict(CAPABILITIES)}
    await client.send(frame.marshal(commands.Connection.StartOk(properties, mechanism, response, "en_US"), 0))
    return str(offered.mechanisms)


async def refused(node: Node, context: ssl.SSLContext, code: int = 403, **login: str) -> str:
    client = await connect_tls(node, context)
    try:
        await start(client, **login)
        close = await client.wait_for(commands.Connection.Close)
        assert close.reply_code == code
        return str(close.reply_text)
    finally:
        await trio.aclose_forcefully(client.stream)


async def test_the_certificate_is_the_login(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    ours = trustme.CA()
    ours.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    options = authority.options | {"tls_ca_file": str(tmp_path / "ca.pem")}

    def context(name: str) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=authority.options["tls_ca_file"])
        ours.issue_cert("client@example.org", common_name=name).configure_cert(made)
        return made

    async with served(tmp_path, tls_login_from="common_name", **options) as node:
        node.broker.access.users.put("app", "")
        node.broker.access.permissions.set("app", "/", ".*", ".*", ".*")
        client = await connect_tls(node, context("app"))
        # A name that the client claims in its response means nothing.
        assert await start(client, response="guest") == "AMQPLAIN PLAIN EXTERNAL"
        await client.wait_for(commands.Connection.Tune)
        await client.send(frame.marshal(commands.Connection.TuneOk(2047, 131_072, 0), 0))
        await client.ask(0, commands.Connection.Open("/"), commands.Connection.OpenOk)
        (session,) = node.broker.sessions
        assert session.client.username == "app"
        told = CONNECTIONS.rows(Reads(node.managed, Stats(node.managed.sampler, {})))(session) or {}
        assert told["auth_mechanism"] == "EXTERNAL" and told["ssl"]
        assert told["peer_cert_subject"].startswith("CN=app,")
        assert "trustme" in told["peer_cert_issuer"]
        assert re.fullmatch(
            r"\d{4}-\d\d-\d\dT[\d:]{8}Z - \d{4}-\d\d-\d\dT[\d:]{8}Z", told["peer_cert_validity"]
        )
        await client.close()
        # A password still works, and a user without a password can't log in with one.
        with_password = await connect_tls(node, context("app"))
        await with_password.log_in()
        await with_password.close()
        await refused(node, context("app"), mechanism="PLAIN", response="\0app\0")
        said = await refused(node, context("nobody"))
        assert said.startswith("ACCESS_REFUSED - Login was refused using authentication mechanism EXTERNAL.")
        assert (
            "EXTERNAL login refused: user 'nobody' - the user of the certificate does not exist"
            in caplog.text
        )
        await refused(node, authority.trusting)
        assert "user '' - the client showed no certificate with a user name" in caplog.text
        # A certificate of another authority makes nobody a user.
        with pytest.raises((trio.BrokenResourceError, AssertionError)):
            await refused(node, authority.with_certificate)
        # Nor does the mechanism work without TLS.
        plain = await connect(node)
        assert await start(plain) == "AMQPLAIN PLAIN"
        close = await plain.wait_for(commands.Connection.Close)
        assert close.reply_code == 503 and "unknown authentication mechanism 'EXTERNAL'" in close.reply_text
        await plain.stream.aclose()


async def test_off_unless_it_is_chosen(tmp_path: Path, authority: Authority) -> None:
    async with served(tmp_path, **authority.options) as node:
        with trio.fail_after(PATIENCE_S):
            assert "unknown authentication" in await refused(node, authority.with_certificate, 503)


async def test_from_the_alternative_name(tmp_path: Path, authority: Authority) -> None:
    chosen = {"tls_login_from": "subject_alternative_name", "tls_login_san_type": "email"}
    async with served(tmp_path, **chosen, **authority.options) as node:
        node.broker.access.users.put("client@example.org", "")
        client = await connect_tls(node, authority.with_certificate)
        await start(client)
        await client.wait_for(commands.Connection.Tune)
        await trio.aclose_forcefully(client.stream)
