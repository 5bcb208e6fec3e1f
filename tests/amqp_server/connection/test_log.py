"""The log's lines about connections: RabbitMQ's words, one line each, and nothing that a client could
forge.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import trio
from pamqp import commands, frame

from amqp_server import logs

from ..wire.published import method
from .node import CAPABILITIES
from .served import Client, client, connect, served, until


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "mqd.connection"
    ]


async def start(made: Client, response: str, mechanism: str = "PLAIN", name: str = "") -> None:
    await made.send(b"AMQP\x00\x00\x09\x01")
    await made.wait_for(commands.Connection.Start)
    properties: dict[str, object] = {"capabilities": dict(CAPABILITIES)}
    if name:
        properties["connection_name"] = name
    start_ok = commands.Connection.StartOk(properties, mechanism, response, "en_US")  # type: ignore[arg-type]
    await made.send(frame.marshal(start_ok, 0))


async def test_life_of_a_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with served(tmp_path) as node:
        made = await connect(node)
        await start(made, "\0guest\0guest", name="my name")
        await made.wait_for(commands.Connection.Tune)
        await made.send(method(0, commands.Connection.TuneOk(2047, 131_072, 0)))
        await made.ask(0, commands.Connection.Open("/"), commands.Connection.OpenOk)
        (session,) = node.broker.sessions
        await made.close()
        await until(lambda: not node.server.transports)
    about = f"<0.{session.number}.0> ({session.client.name}"
    assert lines(caplog)[:4] == [
        ("INFO", f"accepting AMQP connection {about})"),
        ("INFO", f"connection {about}) has a client-provided name: my name"),
        (
            "INFO",
            f"connection {about} - my name): user 'guest' authenticated and granted access to vhost '/'",
        ),
        ("INFO", f"closing AMQP connection {about} - my name, vhost: '/', user: 'guest')"),
    ]
    (fields,) = [each.__dict__ for each in caplog.records if "authenticated" in each.getMessage()]
    assert (fields["connection"], fields["user"], fields["vhost"]) == (session.client.name, "guest", "/")


@pytest.mark.parametrize(("user", "password"), [("guest", "wrong"), ("x", "guest")])
async def test_a_refused_login_is_logged_as_by_rabbitmq(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, user: str, password: str
) -> None:
    async with served(tmp_path) as node:
        made = await connect(node)
        await start(made, f"\0{user}\0{password}")
        await made.wait_for(commands.Connection.Close)
        await trio.aclose_forcefully(made.stream)
    level, line = lines(caplog)[0]
    assert level == "ERROR" and line.startswith("Error on AMQP connection <0.")
    assert line.endswith(f", state: starting): PLAIN login refused: user '{user}' - invalid credentials")


async def test_vhost_that_is_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path) as node:
        made = await connect(node)
        await start(made, "\0guest\0guest")
        await made.wait_for(commands.Connection.Tune)
        await made.send(method(0, commands.Connection.TuneOk(2047, 131_072, 0)))
        await made.ask(0, commands.Connection.Open("nov"), commands.Connection.Close)
        await trio.aclose_forcefully(made.stream)
    assert lines(caplog)[0][1].endswith(", user: 'guest', state: opening): vhost nov not found")


async def test_channel_and_connection_exceptions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path) as node, client(node) as made:
        await made.ask(1, commands.Queue.Purge(queue="nope"), commands.Channel.Close)
        await made.ask(2, commands.Channel.Open(), commands.Channel.OpenOk)
        wrong = commands.Exchange.Declare(exchange="e", exchange_type="nonesuch")
        await made.ask(2, wrong, commands.Connection.Close)
    (channel, of_channel), (connection, of_connection), *_ = lines(caplog)
    assert channel == connection == "ERROR"
    assert of_channel.startswith("Channel error on connection <0.")
    assert of_channel.endswith(
        ", vhost: '/', user: 'guest'), channel 1: operation queue.purge caused a channel exception not_found: "
        "no queue 'nope' in vhost '/'"
    )
    assert of_connection.endswith(
        ", vhost: '/', user: 'guest', state: running), channel 2: operation exchange.declare caused a "
        "connection exception command_invalid: \"unknown exchange type 'nonesuch'\""
    )


async def test_a_probe_for_what_is_not_there_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A passive declare is a question: many programs ask for the next partition until there is none."""
    caplog.set_level("INFO")
    async with served(tmp_path) as node, client(node) as made:
        await made.ask(1, commands.Queue.Declare(queue="nope", passive=True), commands.Channel.Close)
        await made.send(method(1, commands.Channel.CloseOk()))
        await made.ask(1, commands.Channel.Open(), commands.Channel.OpenOk)
        await made.ask(1, commands.Exchange.Declare(exchange="nope", passive=True), commands.Channel.Close)
        await made.send(method(1, commands.Channel.CloseOk()))
        await made.ask(1, commands.Channel.Open(), commands.Channel.OpenOk)
        await made.ask(1, commands.Basic.Get(queue="nope"), commands.Channel.Close)
    found = [level for level, line in lines(caplog) if line.startswith("Channel error")]
    assert found == ["INFO", "INFO", "ERROR"]


async def test_client_that_leaves_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path) as node:
        async with client(node):
            pass
        await until(lambda: not node.server.transports)
    ((level, line),) = lines(caplog)
    assert level == "WARNING"
    assert line.endswith(", vhost: '/', user: 'guest'): client unexpectedly closed TCP connection")


async def test_probe_leaves_no_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A load balancer connects and leaves, to see whether the port is open."""
    caplog.set_level("INFO")
    async with served(tmp_path) as node:
        probe = await connect(node)
        await until(lambda: node.server.transports)
        await trio.aclose_forcefully(probe.stream)
        await until(lambda: not node.server.transports)
        assert lines(caplog) == []
        other = await connect(node)
        await other.send(b"GET / HTTP/1.1\r\n\r\n")
        await other.ended()
        await trio.aclose_forcefully(other.stream)
    assert [level for level, _ in lines(caplog)] == ["INFO", "ERROR"]
    assert lines(caplog)[1][1].endswith("): bad_header b'GET / HT'")


async def test_lines_of_one_address_are_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path, log_lines_max=3) as node, client(node) as made:
        for number in range(2, 12):
            await made.ask(number, commands.Channel.Open(), commands.Channel.OpenOk)
            await made.ask(number, commands.Queue.Purge(queue="nope"), commands.Channel.Close)
            await made.send(method(number, commands.Channel.CloseOk()))
        assert len(lines(caplog)) == 3
        caplog.clear()
        node.server._summarise()
        assert lines(caplog) == [
            (
                "WARNING",
                "channel exception: 7 more, not logged one by one: 7 of user 'guest' at 127.0.0.1",
            )
        ]
        caplog.clear()
        node.server._summarise()
        assert lines(caplog) == []


def record(text: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("mqd.connection", logging.INFO, "", 0, "%s", (text,), None)
    made.__dict__.update(extra)
    return made


FORGED = "bob\n2026-01-01 INFO mqd: forged\x1b[2J\u2028é"


def test_text_has_one_line_whatever_a_client_calls_itself() -> None:
    line = logs.TextFormatter().format(record(FORGED))
    assert line.endswith("INFO mqd.connection: bob\\n2026-01-01 INFO mqd: forged\\x1b[2J\\u2028é")


def test_json_has_one_object_a_line() -> None:
    line = logs.JsonFormatter().format(record(FORGED, user=FORGED, password="canary"))
    assert "\n" not in line and "canary" not in line
    told = json.loads(line)
    assert told["message"] == told["user"] == FORGED
    assert (told["level"], told["logger"]) == ("info", "mqd.connection")
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        failed = record("x")
        failed.exc_info = (ValueError, error, error.__traceback__)
    assert "ValueError: two\nlines" in json.loads(logs.JsonFormatter().format(failed))["exception"]


def test_sources_of_lines_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_PAIRS_MAX", 10)
    limit = logs.LineLimit(1)
    for number in range(1_000):
        limit.allows("kind", f"address-{number}")
    assert len(limit._asked) == 11
    (summary,) = limit.summaries()
    assert summary == "kind: 989 more, not logged one by one: 989 of others"
