"""Changes by the management API in a cluster: they wait until they are applied, or are refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from pamqp import commands
from trio.testing import wait_all_tasks_blocked

from amqp_server.broker.access.permissions import ITSELF
from amqp_server.broker.broker import Broker
from amqp_server.broker.declared.operations import ClearPermission, DeleteVhost
from amqp_server.errors import Unavailable
from amqp_server.management.changes.internal_session import Direct
from amqp_server.management.changes.proposals import propose
from amqp_server.management.messages.by_hand import get_messages, publish_message
from amqp_server.management.resources import queues, users, vhosts
from amqp_server.management.resources.bindings import BindingView, change
from conformance_tests.patience import PATIENCE_S

from ..connection.test_suspension import Cluster


@pytest.fixture
def node() -> Cluster:
    return Cluster()


BINDING = BindingView(
    source="amq.topic", vhost="/", destination="q", destination_type="queue", routing_key="k", arguments={}
)


def declare(broker: Broker) -> Awaitable[bool]:
    return queues.declare(broker, "/", "q", durable=True, auto_delete=False, arguments={})


CHANGES: list[Callable[[Broker], Awaitable[object]]] = [
    lambda broker: vhosts.create_vhost(broker, "v", "", (), "quorum"),
    lambda broker: users.set_user(broker, "ann", "", ("management",)),
    lambda broker: users.set_permission(broker, "guest", "/", "", "", ""),
    lambda broker: propose(broker, ClearPermission("guest", "/")),
    declare,
    lambda broker: propose(broker, DeleteVhost("/")),
]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_returns_when_it_is_applied(
    node: Cluster, change: Callable[[Broker], Awaitable[object]]
) -> None:
    before = node.broker.topology.snapshot()
    returned = trio.Event()

    async def run() -> None:
        await change(node.broker)
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
    node: Cluster, change: Callable[[Broker], Awaitable[object]]
) -> None:
    before = node.broker.topology.snapshot()

    async def run() -> None:
        with pytest.raises(Unavailable, match="no majority"):
            await change(node.broker)

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await wait_all_tasks_blocked()
            node.turn.run(node.log.refuse)
    assert node.broker.topology.snapshot() == before


async def test_a_request_that_is_given_up_leaves_nothing_behind(node: Cluster) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(declare, node.broker)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert not node.broker.sessions
    node.apply()
    assert list(node.broker.vhost("/").queues) == ["q"]


async def test_what_lives_elsewhere_is_waited_for(node: Cluster) -> None:
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

    assert await through(declare(node.broker)) is True
    await through(change(node.broker, BINDING, commands.Queue.Bind, commands.Exchange.Bind))
    assert await through(publish_message(node.broker, "/", "amq.topic", "k", {}, b"body", "guest")) is True
    node.turn.end()
    (message,) = await through(get_messages(node.broker, "/", "q", 5, "requeue"))
    assert message.body == b"body"
    with Direct(node.broker, "/", ITSELF) as direct:
        (purged,) = await through(direct.ask(commands.Queue.Purge(queue="q")))
        assert purged.message_count == 1
        await through(direct.ask(commands.Queue.Delete(queue="q", if_unused=True, if_empty=True)))
    assert not node.broker.vhost("/").queues
