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
from amqp_server.broker.broker import Broker
from amqp_server.broker.declared.operations import ClearPermission, DeleteVhost
from amqp_server.broker.declared.queue_types import CLASSIC
from amqp_server.errors import Unavailable
from amqp_server.management.changes.internal_session import Direct
from amqp_server.management.changes.proposals import propose
from amqp_server.management.changes.proposed_together import AT_ONCE
from amqp_server.management.definitions.importing import Import
from amqp_server.management.messages.by_hand import get_messages, publish_message
from amqp_server.management.request.answer import Refusal
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


def definitions(count: int) -> dict[str, Any]:
    """Definitions of so many users, each with limits, permissions and a policy."""
    names = [f"u{number}" for number in range(count)]
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    return {
        "users": [
            {"name": name, "password_hash": "", "tags": [], "limits": {"max-connections": 1}}
            for name in names
        ],
        "permissions": [{"user": name, "vhost": "/", **everything} for name in names],
        "topic_permissions": [
            {"user": name, "vhost": "/", "exchange": "amq.topic", "write": ".*", "read": ".*"}
            for name in names
        ],
        "policies": [
            {"vhost": "/", "name": name, "pattern": f"^{name}$", "definition": {"max-length": 1}}
            for name in names
        ],
    }


async def imported(node: Cluster, told: dict[str, Any]) -> int:
    """Import definitions; return how many rounds of the log that takes."""
    parts: Any = SimpleNamespace(broker=node.broker, user_changes=trio.Lock(), administration=None)
    rounds, ended = 0, trio.Event()

    async def run() -> None:
        try:
            await Import(parts, trio.lowlevel.checkpoint).run(told)
        finally:
            ended.set()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await wait_all_tasks_blocked()
            while not ended.is_set():
                rounds += 1
                assert 0 < len(node.log.proposed) <= AT_ONCE
                node.apply()
                await wait_all_tasks_blocked()
    return rounds


async def test_definitions_of_many_users_take_few_rounds(node: Cluster) -> None:
    count = 2 * AT_ONCE
    assert await imported(node, definitions(count)) <= 5 * (count // AT_ONCE)
    access, runtime = node.broker.access, node.broker.runtime
    assert len(list(access.users)) >= count and len(access.permissions.topics()) == count
    assert len(access.permissions.of_user(f"u{count - 1}")) == 1
    assert runtime.limits.of_user("u0") == {"max-connections": 1}
    assert runtime.policies.of_queue("/", "u7", CLASSIC).definition == {"max-length": 1}


async def test_what_stands_twice_in_definitions_gets_the_later_value(node: Cluster) -> None:
    told = {"users": [{"name": "ann", "password_hash": "", "tags": [tag]} for tag in ("a", "b", "c")]}
    assert await imported(node, told) == 1
    ann = node.broker.access.users.get("ann")
    assert ann is not None and ann.tags == ("c",)


async def test_objects_before_one_that_is_refused_are_made() -> None:
    node = Cluster()
    told = definitions(10)
    del told["users"][7]["name"]
    with pytest.RaisesGroup(pytest.RaisesExc(Refusal)):
        await imported(node, told)
    assert [user.name for user in node.broker.access.users if user.name[0] == "u"] == [
        f"u{number}" for number in range(7)
    ]


@pytest.mark.parametrize("option", ["users_max", "parameters_max"])
async def test_an_import_exceeds_no_limit(option: str) -> None:
    node = Cluster(**{option: 5})
    with pytest.RaisesGroup(pytest.RaisesExc(Refusal)):
        await imported(node, definitions(10))
    made = {
        "users_max": len(list(node.broker.access.users)),
        "parameters_max": len(node.broker.runtime.parameters),
    }
    assert made[option] == 5


async def test_many_users_are_deleted_in_few_rounds(node: Cluster) -> None:
    names = [f"u{number}" for number in range(2 * AT_ONCE)]
    for name in names:
        node.broker.access.users.put(name, "")
    call: Any = SimpleNamespace(
        broker=node.broker,
        parts=SimpleNamespace(user_changes=trio.Lock()),
        read=lambda _: users.BulkDelete(names),
        switch=lambda _: False,
    )
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(users.delete_users, call)
            for _ in range(2):
                await wait_all_tasks_blocked()
                assert len(node.log.proposed) == AT_ONCE
                node.apply()
    assert not [user for user in node.broker.access.users if user.name[0] == "u"]
