"""A node with workers answers as one: each request goes to the first of them, which asks the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import httpx
import pytest
import trio
import trio.testing

from amqp_server.cluster.membership.machines import machine_of, on_machine
from amqp_server.errors import PreconditionFailed
from quorum_queue.cluster.snapshots.lost_entries import GivenUp

from .test_everywhere import Two

pytestmark = pytest.mark.trio

FIRST, SECOND, ELSEWHERE = "n1", "n1/1", "n2"


class Member:
    """Stands in for Administration of a worker, in a cluster with a queue `q`, whose member here is the
    second worker.
    """

    def __init__(self, own: str, workers: dict[str, Member]) -> None:
        self.own = own
        self.all = workers
        self.up = [FIRST, SECOND]
        self.queues = 0
        self.has_left = False

    def other_workers(self) -> list[str]:
        return [name for name, worker in self.all.items() if name != self.own and not worker.has_left]

    node_of = staticmethod(machine_of)

    def workers_of(self, node: str) -> list[str]:
        return on_machine(node, (FIRST, SECOND, ELSEWHERE))

    def may_leave(self) -> None: ...

    async def leave(self) -> None:
        """Some queues leave each time: the time for an answer ends before the last one is gone."""
        if self.queues:
            await trio.sleep(20)
            self.queues -= 1
        self.has_left = not self.queues

    def queues_on(self, workers: Iterable[str]) -> int:
        return sum(self.all[name].queues for name in workers)

    def other_workers_with(self, vhost: str, name: str) -> list[str]:
        return [SECOND] if self.own == FIRST else []

    def online(self, members: Iterable[str]) -> list[str]:
        return [name for name in members if name in self.up]

    def critical(self) -> Iterable[str]:
        return iter(())

    async def accept_loss(self, vhost: str, name: str) -> GivenUp:
        if self.own == FIRST:
            raise PreconditionFailed("this node is not a member")
        if name != "q":
            raise PreconditionFailed("nothing is lost")
        return GivenUp(4, ())


@pytest.fixture
def node(tmp_path: Path) -> Two:
    made = Two(tmp_path, up=(FIRST, SECOND, ELSEWHERE), down=())
    members: dict[str, Member] = {}
    for name in (FIRST, SECOND):
        made.nodes[name].administration = members[name] = Member(name, members)
    return made


@pytest.fixture
async def ask(node: Two) -> AsyncIterator[httpx.AsyncClient]:
    """The listener of the first worker."""
    transport = httpx.ASGITransport(node.apis[FIRST].app(requests_max=8), client=("127.0.0.1", 12345))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://b/api/", auth=httpx.BasicAuth("admin", "admin")
    ) as client:
        yield client


async def test_alarms_of_all_workers_are_those_of_the_node(node: Two, ask: httpx.AsyncClient) -> None:
    node.nodes[SECOND].broker.alarms.set("disk", True)
    for path in ("health/checks/local-alarms", "healthchecks/node", "healthchecks/node/n1"):
        answer = await ask.get(path)
        assert (answer.status_code, "disk" in answer.text) == (503, True), path
    assert (await ask.get("healthchecks/node/n2")).json() == {"status": "ok"}
    assert (await ask.get("healthchecks/node/n1%2F1")).status_code == 503


async def test_an_alarm_of_several_workers_is_listed_once(node: Two, ask: httpx.AsyncClient) -> None:
    for name, member in node.nodes.items():
        member.broker.alarms.set("memory", True, f"too much at {name}")
        member.broker.alarms.set_condition("failed_queues", f"one of {name}")
    found = [(row["node"], row["name"], row["text"]) for row in (await ask.get("alarms")).json()]
    assert found == [
        ("n1", "memory", "too much at n1"),
        ("n1", "failed_queues", "one of n1; one of n1/1"),
        ("n2", "memory", "too much at n2"),
        ("n2", "failed_queues", "one of n2"),
    ]
    checked = (await ask.get("health/checks/alarms")).json()["alarms"]
    assert checked == [{"node": name, "resource": "memory"} for name in ("n1", "n2")]
    checked = (await ask.get("health/checks/local-alarms")).json()["alarms"]
    assert checked == [{"node": "n1", "resource": "memory"}]


async def test_listeners_of_several_workers_are_listed_once(ask: httpx.AsyncClient) -> None:
    listeners = (await ask.get("overview")).json()["listeners"]
    found = [(row["node"], row["protocol"]) for row in listeners]
    assert found == sorted(set(found)) and {node for node, _ in found} == {"n1", "n2"}


async def test_logins_at_all_workers_are_counted(node: Two, ask: httpx.AsyncClient) -> None:
    for number, name in enumerate((FIRST, SECOND, ELSEWHERE), 1):
        node.nodes[name].broker.counts.ended.logins()["amqp091"].refused = number
    for name, failed in (("n1", 3), ("n1%2F1", 2), ("n2", 3)):
        amqp, http = (await ask.get(f"auth/attempts/{name}")).json()
        assert (amqp["protocol"], amqp["auth_attempts_failed"]) == ("amqp091", failed)
        assert http["protocol"] == "http"
    assert (await ask.delete("auth/attempts/n1")).status_code == 204
    for name, failed in (("n1", 0), ("n2", 3)):
        amqp, _ = (await ask.get(f"auth/attempts/{name}")).json()
        assert amqp["auth_attempts_failed"] == failed


async def test_connections_to_all_workers_count_for_the_limit_of_the_node(
    node: Two, ask: httpx.AsyncClient
) -> None:
    for name in (FIRST, SECOND):
        node.nodes[name].descriptors.clients_max = 2
    answer = await ask.get("health/checks/below-node-connection-limit")
    assert answer.json() == {"status": "ok", "limit": 4, "connections": 2}
    for name in (FIRST, SECOND):
        node.nodes[name].descriptors.clients_max = 1
    assert (await ask.get("health/checks/below-node-connection-limit")).status_code == 503


async def test_the_worker_that_has_the_queue_accepts_the_loss(node: Two, ask: httpx.AsyncClient) -> None:
    answer = await ask.post("cluster/queues/%2F/q/accept-loss", json={})
    assert answer.json() == {"entries": 4, "members": []}
    answer = await ask.post("cluster/queues/%2F/other/accept-loss", json={})
    assert (answer.status_code, "nothing is lost" in answer.text) == (400, True), answer.text
    node.asked[FIRST][SECOND] = None
    answer = await ask.post("cluster/queues/%2F/q/accept-loss", json={})
    assert (answer.status_code, "does not answer" in answer.text) == (503, True), answer.text


async def test_a_node_of_which_a_worker_does_not_answer_may_be_critical(
    node: Two, ask: httpx.AsyncClient
) -> None:
    path = "health/checks/node-is-quorum-critical"
    assert (await ask.get(path)).status_code == 200
    node.asked[FIRST][SECOND] = None
    answer = await ask.get(path)
    assert (answer.status_code, answer.json()["reason"]) == (503, "n1/1 of this node do not answer")
    # Nobody stops what a worker that is down has.
    node.nodes[FIRST].administration.up = []
    assert (await ask.get(path)).status_code == 200


async def test_a_node_leaves_as_long_as_queues_leave_its_workers(
    node: Two, ask: httpx.AsyncClient, autojump_clock: trio.testing.MockClock
) -> None:
    node.nodes[SECOND].administration.queues = 4
    assert (await ask.delete("cluster/nodes/n1")).status_code == 204
    assert node.nodes[FIRST].administration.has_left


async def test_the_worker_that_has_the_queue_explains_it(node: Two, ask: httpx.AsyncClient) -> None:
    node.declare("q", home=SECOND)
    assert (await ask.get("queues/%2F/q/explain")).json()["asked_node"] == SECOND
    node.asked[FIRST][SECOND] = None
    assert (await ask.get("queues/%2F/q/explain")).json()["asked_node"] == FIRST
