"""A user is a name and where the user comes from: a token's user is another one than the broker's user of the
same name, whose connections, limits and places it does not share.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from pamqp import commands, frame

from amqp_server.app import Node
from amqp_server.broker.declared.operations import DeleteUser, PutParameter
from amqp_server.broker.declared.parameters import GLOBAL, USER_LIMITS
from amqp_server.management.serving.http import Slots
from conformance_tests.patience import PATIENCE_S
from tests.amqp_server.connection.served import Client, served, until
from tests.amqp_server.connection.test_tokens import ALL, Issuer, begin, logged_in

MANAGES = f"{ALL} mqd.tag:management"
PASSWORD = ("anna", "tea")


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    made = Issuer(tmp_path_factory.mktemp("issuer"))
    yield made
    made.close()


@asynccontextmanager
async def both(
    directory: Path, issuer: Issuer, **options: Any
) -> AsyncIterator[tuple[Node, httpx.AsyncClient]]:
    """A node with a user `anna` of its own, beside the one of tokens."""
    async with (
        served(directory, http="127.0.0.1:0", **issuer.options, **options) as node,
        httpx.AsyncClient(base_url=f"http://{node.http_address}/api/", timeout=PATIENCE_S) as client,
    ):
        access = node.broker.access
        access.users.add(*PASSWORD, ("management",))
        access.permissions.set("anna", "/", ".*", ".*", ".*")
        yield node, client


@asynccontextmanager
async def by_password(node: Node) -> AsyncIterator[Client]:
    client, tune = await begin(node, PASSWORD[1], PASSWORD[0])
    assert isinstance(tune, commands.Connection.Tune), tune
    await client.send(frame.marshal(commands.Connection.TuneOk(2047, 131_072, 0), 0))
    await client.ask(0, commands.Connection.Open("/"), commands.Connection.OpenOk)
    try:
        yield client
    finally:
        await trio.aclose_forcefully(client.stream)


def names(node: Node) -> dict[str, str]:
    """Names of the connections by identity."""
    return {session.client.identity: session.client.name for session in node.broker.sessions}


@pytest.mark.parametrize("asks", ["token", "password"])
async def test_closing_connections(tmp_path: Path, issuer: Issuer, asks: str) -> None:
    token = issuer.token(MANAGES)
    async with (
        both(tmp_path, issuer) as (node, http),
        logged_in(node, issuer.token()) as of_token,
        by_password(node) as of_password,
    ):
        found = names(node)
        assert len(found) == 2
        (own, other), (mine, others) = (
            ((of_token, of_password), (found["anna\0token"], found["anna"]))
            if asks == "token"
            else ((of_password, of_token), (found["anna"], found["anna\0token"]))
        )
        login: Any = (
            {"headers": {"authorization": f"Bearer {token}"}} if asks == "token" else {"auth": PASSWORD}
        )
        rows = (await http.get("connections", **login)).json()
        assert [row["name"] for row in rows] == [mine]
        assert [row["name"] for row in (await http.get("connections/username/anna", **login)).json()] == [
            mine
        ]
        assert [
            row["connection_details"]["name"] for row in (await http.get("channels", **login)).json()
        ] == ([mine] if asks == "token" else [])
        assert (await http.get("overview", **login)).json()["object_totals"]["connections"] == 1
        assert (await http.get(f"connections/{others}", **login)).status_code == 404
        assert (await http.get(f"connections/{others}/channels", **login)).status_code == 404
        assert (await http.get(f"channels/{others} (1)", **login)).status_code == 404
        assert (await http.delete(f"connections/{others}", **login)).status_code == 404
        assert (await http.delete("connections/username/anna", **login)).status_code == 204
        await until(lambda: list(names(node).values()) == [others])
        await other.ask(7, commands.Channel.Open(), commands.Channel.OpenOk)
        assert own is not other
        # An administrator closes those of all users with the name.
        guest: Any = {"auth": ("guest", "guest")}
        assert (await http.delete("connections/username/anna", **guest)).status_code == 204
        await until(lambda: not names(node))


async def test_deleting_a_user_closes_its_own_connections(tmp_path: Path, issuer: Issuer) -> None:
    async with (
        both(tmp_path, issuer) as (node, _),
        logged_in(node, issuer.token()) as client,
        by_password(node),
    ):
        node.broker.turn.run(node.broker.propose, DeleteUser("anna"))
        await until(lambda: list(names(node)) == ["anna\0token"])
        await client.ask(9, commands.Channel.Open(), commands.Channel.OpenOk)


async def test_limits_of_a_user(tmp_path: Path, issuer: Issuer) -> None:
    async with both(tmp_path, issuer) as (node, _):
        parameters = node.broker.runtime.parameters
        limits = parameters.prepare(GLOBAL, USER_LIMITS, "anna", {"max-connections": 1, "max-channels": 1})
        node.broker.turn.run(node.broker.propose, PutParameter(limits))
        # The token's user takes no place of the broker's user, and has no limit.
        async with (
            logged_in(node, issuer.token(), channels=3),
            logged_in(node, issuer.token()),
            by_password(node) as client,
        ):
            await client.ask(1, commands.Channel.Open(), commands.Channel.OpenOk)
            refused = await client.ask(2, commands.Channel.Open(), commands.Connection.Close)
            assert "maximum allowed user limit of (1)" in refused.reply_text
        await until(lambda: not names(node))
        assert not node.broker.sessions.counts


async def test_places_for_requests(tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of the token's user do not take the places of the broker's user."""
    counted, has_place = Slots.counted, trio.Event()

    @contextmanager
    def noted(self: Slots, user: str) -> Iterator[None]:
        with counted(self, user):
            has_place.set()
            yield

    # A request that asked whether the place is taken could take it itself.
    monkeypatch.setattr(Slots, "counted", noted)
    async with both(tmp_path, issuer, http_requests_per_user_max=1) as (node, http):
        headers = {"authorization": f"Bearer {issuer.token(MANAGES)}"}
        goes_on = trio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b"{"
            await goes_on.wait()
            yield b"}"

        async def slow() -> None:
            answer = await http.put("queues/%2F/slow", content=body(), headers=headers)
            assert answer.status_code == 201

        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow)
            with trio.fail_after(PATIENCE_S):
                await has_place.wait()
            assert (await http.get("whoami", headers=headers)).status_code == 503
            assert (await http.get("whoami", auth=PASSWORD)).status_code == 200
            goes_on.set()
        assert "slow" in node.broker.vhost("/").queues
