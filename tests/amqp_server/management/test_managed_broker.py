"""Changes by the management API in a cluster: they wait until they are applied, or are refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from pamqp import commands
from trio.testing import wait_all_tasks_blocked

from amqp_server.broker.access.permissions import ITSELF
from amqp_server.errors import Unavailable
from amqp_server.management.objects.internal_session import Direct
from amqp_server.management.objects.managed_broker import ManagedBroker
from amqp_server.management.objects.views import BindingView
from amqp_server.management.resources import queues
from conformance_tests.patience import PATIENCE_S

from ..connection.test_suspension import Cluster


@pytest.fixture
def node() -> Cluster:
    return Cluster()


@pytest.fixture
def managed(node: Cluster) -> ManagedBroker:
    running: Any = SimpleNamespace(
        broker=node.broker,
        config=node.broker.config,
        administration=None,
        others=None,
        sampler=None,
        user_changes=None,
        password_checks=None,
        authentication=None,
        tokens=None,
        descriptors=None,
    )
    return ManagedBroker(running)


BINDING = BindingView(
    source="amq.topic", vhost="/", destination="q", destination_type="queue", routing_key="k", arguments={}
)


def declare(managed: ManagedBroker) -> Awaitable[bool]:
    return queues.declare(managed.parts.broker, "/", "q", durable=True, auto_delete=False, arguments={})


CHANGES: list[Callable[[ManagedBroker], Awaitable[object]]] = [
    lambda managed: managed.create_vhost("v", "", (), "quorum"),
    lambda managed: managed.put_user("ann", "", ("management",)),
    lambda managed: managed.set_permission("guest", "/", "", "", ""),
    lambda managed: managed.clear_permission("guest", "/"),
    declare,
    lambda managed: managed.exchanges.declare(
        "/", "x", "topic", durable=True, auto_delete=False, internal=False, arguments={}
    ),
    lambda managed: managed.delete_vhost("/"),
]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_returns_when_it_is_applied(
    node: Cluster, managed: ManagedBroker, change: Callable[[ManagedBroker], Awaitable[object]]
) -> None:
    before = node.broker.topology.snapshot()
    returned = trio.Event()

    async def run() -> None:
        await change(managed)
        returned.set()

    node.broker.access.users.put("guest", "")
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await wait_all_tasks_blocked()
            assert not returned.is_set()
            assert len(node.log.proposed) == 1
            node.apply()
            await returned.wait()
    assert node.broker.topology.snapshot() != before
    assert not [session for session in node.broker.sessions if session.client.username == ITSELF]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_without_a_majority_is_unavailable(
    node: Cluster, managed: ManagedBroker, change: Callable[[ManagedBroker], Awaitable[object]]
) -> None:
    before = node.broker.topology.snapshot()

    async def run() -> None:
        with pytest.raises(Unavailable, match="no majority"):
            await change(managed)

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await wait_all_tasks_blocked()
            node.turn.run(node.log.refuse)
    assert node.broker.topology.snapshot() == before


async def test_a_request_that_is_given_up_leaves_nothing_behind(
    node: Cluster, managed: ManagedBroker
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(declare, managed)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert not node.broker.sessions
    node.apply()
    assert list(node.broker.vhost("/").queues) == ["q"]


async def test_what_lives_elsewhere_is_waited_for(node: Cluster, managed: ManagedBroker) -> None:
    hosts = node.remote_queues()

    async def answer() -> None:
        while True:
            await wait_all_tasks_blocked()
            if not hosts.waiting:
                return
            hosts.answer()
            node.turn.end()

    async def through(change: Awaitable[Any]) -> Any:
        found: list[Any] = []

        async def run() -> None:
            found.append(await change)

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                nursery.start_soon(answer)
        return found[0]

    assert await through(declare(managed)) is True
    assert await through(managed.bindings.add("/", BINDING)) is True
    assert await through(managed.messages.publish("/", "amq.topic", "k", {}, b"body", "guest")) is True
    node.turn.end()
    (message,) = await through(managed.messages.get("/", "q", 5, "requeue"))
    assert message.body == b"body"
    with Direct(node.broker, "/", ITSELF) as direct:
        (purged,) = await through(direct.ask(commands.Queue.Purge(queue="q")))
        assert purged.message_count == 1
        await through(direct.ask(commands.Queue.Delete(queue="q", if_unused=True, if_empty=True)))
    assert not node.broker.vhost("/").queues
