"""The log line about a failed TLS handshake says which side failed, for which certificate, and what to do."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from amqp_server.app import Node
from amqp_server.config import Config
from amqp_server.connection.sockets.handshake_failures import explained
from amqp_server.connection.sockets.tls import make_context
from conformance_tests.patience import PATIENCE_S

from .authority import tls_port
from .served import connect, served, until

YEAR = timedelta(days=365)
NOW = datetime.now(UTC)


class Certificates:
    def __init__(self, directory: Path) -> None:
        self.ca = trustme.CA()
        server = self.ca.issue_cert("127.0.0.1")
        files = {name: str(directory / f"{name}.pem") for name in ("cert", "key", "ca")}
        server.cert_chain_pems[0].write_to_path(files["cert"])
        server.private_key_pem.write_to_path(files["key"])
        Path(files["key"]).chmod(0o600)
        self.ca.cert_pem.write_to_path(files["ca"])
        self.options: dict[str, Any] = {
            "amqps": "127.0.0.1:0",
            "tls_cert_file": files["cert"],
            "tls_key_file": files["key"],
            "tls_ca_file": files["ca"],
            "tls_client_certificate": True,
        }

    def context(self, *, trusts: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if trusts:
            self.ca.configure_trust(context)
        return context

    def showing(self, certificate: trustme.LeafCert) -> ssl.SSLContext:
        context = self.context()
        certificate.configure_cert(context)
        return context


def none(made: Certificates) -> ssl.SSLContext:
    return made.context()


def expired(made: Certificates) -> ssl.SSLContext:
    return made.showing(
        made.ca.issue_cert("ann@example.org", not_before=NOW - 2 * YEAR, not_after=NOW - YEAR)
    )


def too_early(made: Certificates) -> ssl.SSLContext:
    return made.showing(
        made.ca.issue_cert("ann@example.org", not_before=NOW + YEAR, not_after=NOW + 2 * YEAR)
    )


def of_another_authority(made: Certificates) -> ssl.SSLContext:
    return made.showing(trustme.CA().issue_cert("ann@example.org"))


def old(made: Certificates) -> ssl.SSLContext:
    context = made.context()
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


async def shake_hands(node: Node, context: ssl.SSLContext) -> None:
    """Make a handshake that either side refuses: with TLS 1.3 a client hears of a refusal after its part of
    the handshake.
    """
    client = await connect(node, tls=context, port=tls_port(node))
    assert isinstance(client.stream, trio.SSLStream)
    with trio.fail_after(PATIENCE_S):
        with pytest.raises((trio.BrokenResourceError, ssl.SSLError)):
            await client.stream.do_handshake()
            await client.stream.receive_some()
    await trio.aclose_forcefully(client.stream)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("client", "meaning"),
    [
        (none, "the client shows no certificate, but tls_client_certificate requires one"),
        (expired, "the client's certificate has expired: give the client a new one"),
        (too_early, "the client's certificate is not valid yet"),
        (of_another_authority, "no authority in tls_ca_file has signed the client's certificate"),
        (old, "the client supports neither TLS 1.2 nor TLS 1.3"),
    ],
)
async def test_the_log_says_what_is_wrong_and_what_to_do(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    newest: ssl.TLSVersion,
    client: Callable[[Certificates], ssl.SSLContext],
    meaning: str,
) -> None:
    caplog.set_level("INFO")
    made = Certificates(tmp_path)
    context = client(made)
    if client is not old:
        context.maximum_version = newest
    async with served(tmp_path, **made.options) as node:
        await shake_hands(node, context)
        await until(lambda: "TLS handshake" in caplog.text)
    (line,) = [each.getMessage() for each in caplog.records if "TLS handshake" in each.getMessage()]
    assert line.startswith(f"TLS handshake with 127.0.0.1 failed: {meaning}")
    # An operator can search for OpenSSL's own words; the place in Python's source helps nobody.
    assert "([SSL: " in line and "_ssl.c" not in line


@pytest.mark.parametrize(
    ("sent", "meaning"),
    [
        (
            b"AMQP\x00\x00\x09\x01",
            "the client does not use TLS: turn on TLS in the client, or let it connect to the listener of --amqp",
        ),
        (b"GET / HTTP/1.1\r\n\r\n", "the client uses HTTP"),
    ],
)
async def test_without_tls_on_the_tls_listener(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes, meaning: str
) -> None:
    caplog.set_level("INFO")
    async with served(tmp_path, **Certificates(tmp_path).options) as node:
        client = await connect(node, port=tls_port(node))
        await client.send(sent)
        await until(lambda: "TLS handshake" in caplog.text)
        await trio.aclose_forcefully(client.stream)
    assert f"TLS handshake with 127.0.0.1 failed: {meaning}" in caplog.text


async def test_tls_on_the_listener_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    made = Certificates(tmp_path)
    async with served(tmp_path, **made.options) as node:
        client = await connect(node, tls=made.context())
        assert isinstance(client.stream, trio.SSLStream)
        with trio.fail_after(PATIENCE_S), pytest.raises((trio.BrokenResourceError, ssl.SSLError)):
            await client.stream.do_handshake()
        await trio.aclose_forcefully(client.stream)
        await until(lambda: "bad_header" in caplog.text)
    assert (
        "the client uses TLS, but this listener does not: let the client connect to that of --amqps"
        in caplog.text
    )


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_that_does_not_trust_the_server(tmp_path: Path, newest: ssl.TLSVersion) -> None:
    made = Certificates(tmp_path)
    server, client = make_context(Config(**made.options)), made.context(trusts=False)
    client.maximum_version = newest
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = server.wrap_bio(to_server, to_client, server_side=True)
    there = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        there.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        here.do_handshake()
    with pytest.raises(ssl.SSLCertVerificationError):
        there.do_handshake()
    with pytest.raises(ssl.SSLError) as caught:
        here.do_handshake()
    assert explained(caught.value).startswith(
        "the client does not trust the certificate in tls_cert_file: let it trust the authority"
    )


def test_what_has_no_meaning_of_its_own_is_told_as_it_is() -> None:
    assert explained(ConnectionResetError("the other side left")) == "the other side left"
    assert explained(TimeoutError()) == "it took too long"
    assert explained(ssl.SSLError(1, "[SSL: STRANGE] strange (_ssl.c:1006)")) == "[SSL: STRANGE] strange"
