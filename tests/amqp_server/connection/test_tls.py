"""AMQP over TLS (amqps), with a certificate made for the tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio
from pamqp import commands

from amqp_server.app import Node
from amqp_server.config import Config
from amqp_server.connection.sockets.tls import make_context
from amqp_server.secret_files import SecretFileError
from conformance_tests.patience import PATIENCE_S

from ..wire.published import message, method
from .authority import Authority, connect_tls, make_authority, tls_port
from .node import Delivery
from .served import connect, handshakes_take, served, until


async def test_publish_and_consume(tmp_path: Path, authority: Authority) -> None:
    async with served(tmp_path, **authority.options) as node:
        client = await connect_tls(node, authority.trusting)
        await client.log_in()
        await client.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        await client.ask(1, commands.Basic.Consume(queue="q", no_ack=True), commands.Basic.ConsumeOk)
        bodies = [index.to_bytes(2, "big") * (1 + index * 97) for index in range(300)]
        await client.send(b"".join(message(routing_key="q", body=body).encode(1) for body in bodies))
        assert [delivery.body for delivery in await client.deliveries(300)] == bodies
        await client.close()
        await until(lambda: not node.server.transports)


async def test_what_is_decrypted_is_served_though_nothing_more_comes(
    tmp_path: Path, authority: Authority
) -> None:
    """TLS takes more from the socket at once than the node reads from a light connection."""
    async with served(tmp_path, **authority.options) as node:
        client = await connect_tls(node, authority.trusting)
        await client.log_in()
        await client.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        await client.send(message(routing_key="q", body=b"x" * 100).encode(1) * 1_200)
        queue = node.broker.vhost("/").queues["q"]
        await until(lambda: queue.host.ready_count == 1_200)
        await client.close()


async def test_slow_reader_gets_all(tmp_path: Path, authority: Authority) -> None:
    """Records that do not fit in the socket wait, and none of their bytes is lost."""
    async with served(
        tmp_path, outbox_high_bytes=65_536, outbox_low_bytes=16_384, **authority.options
    ) as node:
        publisher = await connect_tls(node, authority.trusting)
        await publisher.log_in()
        await publisher.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        reader = await connect_tls(node, authority.trusting, receive_buffer_bytes=4096)
        await reader.log_in()
        await reader.ask(1, commands.Basic.Consume(queue="q", no_ack=True), commands.Basic.ConsumeOk)
        count = 1_000
        bodies = [index.to_bytes(4, "big") * 1_024 for index in range(count)]
        for start in range(0, count, 100):
            await publisher.send(
                b"".join(
                    message(routing_key="q", body=body).encode(1) for body in bodies[start : start + 100]
                )
            )
        queue = node.broker.vhost("/").queues["q"]
        # The answer comes when all earlier messages are in the queue.
        await publisher.ask(1, commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk)
        assert queue.host.ready_count > 0
        got: list[bytes] = []
        with trio.fail_after(PATIENCE_S):
            while len(got) < count:
                await reader.read(3_000)
                got += [each.body for _, each in reader.received if isinstance(each, Delivery)]
                reader.received.clear()
        assert got == bodies
        for each in (publisher, reader):
            await trio.aclose_forcefully(each.stream)


async def test_answer_before_the_end_is_sent(tmp_path: Path, authority: Authority) -> None:
    async with served(tmp_path, close_wait_s=0.1, **authority.options) as node:
        reader = await connect_tls(node, authority.trusting, receive_buffer_bytes=4096)
        await reader.log_in()
        await reader.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        await reader.send(message(routing_key="q", body=b"x" * 4_000).encode(1) * 200)
        await reader.send(
            method(1, commands.Basic.Consume(queue="q", no_ack=True)),
            method(0, commands.Connection.Close(200, "", 0, 0)),
        )
        assert await reader.ended()
        assert isinstance(reader.received[-1][1], commands.Connection.CloseOk)
        assert len([each for _, each in reader.received if isinstance(each, Delivery)]) == 200
        await trio.aclose_forcefully(reader.stream)


async def test_plain_bytes_and_silence_on_the_tls_port(tmp_path: Path, authority: Authority) -> None:
    async with served(tmp_path, **authority.options) as node:
        handshakes_take(node, 0.5)
        plain, silent = [await connect(node, port=tls_port(node)) for _ in range(2)]
        await plain.send(b"AMQP\x00\x00\x09\x01")
        with trio.fail_after(PATIENCE_S):
            for each in (plain, silent):
                try:
                    while await each.stream.receive_some():
                        pass
                except trio.BrokenResourceError:
                    pass
                await each.stream.aclose()
        # They no longer count among the clients that have not logged in.
        await until(lambda: not node.server.half_opens)
        handshakes_take(node, PATIENCE_S)
        client = await connect_tls(node, authority.trusting)
        await client.log_in()
        await client.close()


@pytest.mark.parametrize(
    ("which", "allowed"), [("with_certificate", True), ("trusting", False), ("strange", False)]
)
async def test_client_certificate_demanded(
    tmp_path: Path, authority: Authority, which: str, allowed: bool
) -> None:
    async with served(tmp_path, tls_client_certificate=True, **authority.options) as node:
        client = await connect(node, tls=getattr(authority, which), port=tls_port(node))
        if allowed:
            await client.log_in()
            await client.close()
            return
        # In TLS 1.3 the client learns of it with the first bytes that it reads.
        with pytest.raises(trio.BrokenResourceError):
            await client.log_in()
        await trio.aclose_forcefully(client.stream)
        await until(lambda: not node.server.transports)


async def test_certificate_that_changed_on_disk_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = make_authority(tmp_path)
    async with served(tmp_path, tls_check_s=0.1, **authority.options) as node:
        stays = await connect_tls(node, authority.trusting)
        await stays.log_in()
        before = await _certificate(node, authority)
        # Half of a new pair can't be used, and the old pair stays.
        (tmp_path / "renewed").mkdir()
        renewed = make_authority(tmp_path / "renewed")
        shutil.copyfile(renewed.options["tls_key_file"], authority.options["tls_key_file"])
        await until(lambda: "the new certificate of the TLS listener can't be used" in caplog.text)
        assert await _certificate(node, authority) == before
        shutil.copyfile(renewed.options["tls_cert_file"], authority.options["tls_cert_file"])
        with trio.fail_after(PATIENCE_S):
            while (after := await _certificate(node, renewed)) in (None, before):
                await trio.sleep(0.01)
        assert after is not None
        # The client that was there before has noticed nothing.
        await stays.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        await stays.close()


async def _certificate(node: Node, authority: Authority) -> bytes | None:
    """Return the certificate that the listener shows; None if it is of another authority."""
    try:
        made = await connect_tls(node, authority.trusting)
    except trio.BrokenResourceError:
        return None
    assert isinstance(made.stream, trio.SSLStream)
    shown: bytes = made.stream.getpeercert(binary_form=True)
    await trio.aclose_forcefully(made.stream)
    return shown


def test_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    Path(authority.options["tls_key_file"]).chmod(0o644)
    with pytest.raises(SecretFileError, match="--tls-key-file: others may read"):
        make_context(Config(**authority.options))


async def test_old_protocols_are_refused(tmp_path: Path, authority: Authority) -> None:
    async with served(tmp_path, **authority.options) as node:
        # A ClientHello of TLS 1.1, written by hand: this machine's OpenSSL may no longer offer that version.
        hello = bytes.fromhex("0302") + bytes(32) + b"\x00" + bytes.fromhex("0004002f0035") + b"\x01\x00"
        handshake = b"\x01" + len(hello).to_bytes(3, "big") + hello
        old = await connect(node, port=tls_port(node))
        await old.send(b"\x16\x03\x01" + len(handshake).to_bytes(2, "big") + handshake)
        with trio.fail_after(PATIENCE_S):
            try:
                data = await old.stream.receive_some()
            except trio.BrokenResourceError:
                data = b""
        assert data[:1] in (b"", b"\x15")  # closed, or first an alert; no ServerHello
        await old.stream.aclose()
