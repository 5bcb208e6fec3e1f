"""One link is dead for long while all nodes are alive: what clients of whole nodes see, and what operators
are told.
"""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import trio
from httpx import ASGITransport, AsyncClient

from amqp_server.broker.declared.operations import SetMembers
from amqp_server.cluster.maintenance import LOST_FACTOR
from amqp_server.cluster.readiness import NO_LEADER
from amqp_server.cluster.topology_group import GROUP
from amqp_server.management.serving.http import Api
from quorum_queue.cluster import frames
from quorum_queue.machine import versions
from tests.amqp_server.cluster.simulation.clients import Client
from tests.amqp_server.cluster.simulation.node import DEAD_TICKS, LIMITS, TICK_MS, SimulatedNode
from tests.amqp_server.cluster.test_simulation_scenes import Scene

pytestmark = pytest.mark.usefixtures("hand")

#: Time until both ends have noticed, and another node leads.
SOON_TICKS = 2 * DEAD_TICKS + LIMITS["cluster_reach_ms"] // TICK_MS + 6
STEADY_TICKS = LIMITS["cluster_steady_ms"] // TICK_MS
LOOK_TICKS = LIMITS["rebalance_ms"] // TICK_MS + 1
#: Time until everything that goes with a lost node is gone.
LOST_TICKS = LOST_FACTOR * LIMITS["node_down_ms"] // TICK_MS + 2 * LOOK_TICKS


def split(scene: Scene, *pairs: str, both: bool = True) -> None:
    """The link between the two nodes of each pair is dead; they notice when they have heard nothing for
    long.
    """
    for pair in pairs:
        scene.dead[pair[0], pair[1]] = None
        if both:
            scene.dead[pair[1], pair[0]] = None
    scene.unblock()
    scene.doubt_all()


def answered(scene: Scene, client: Client, ticks: int) -> None:
    for _ in range(ticks):
        scene.ticks(1)
        client.node.end_turn()
        scene.work_off()
        if client.asked is None and not client.unconfirmed:
            return
    raise AssertionError(f"not answered: {client.asked}, {client.unconfirmed}")


def leaders(scene: Scene) -> set[str]:
    groups = {group_id for node in scene.running for group_id in node.cluster.replicas.groups}
    found = [scene.leading(group_id) for group_id in groups]
    return {group.replicas.node for group in found if group is not None}


def obstacles(scene: Scene) -> list[str]:
    return [node.cluster.administration.obstacle() for node in scene.running]


def probed(scene: Scene) -> list[int]:
    """Return the answers that probes of all nodes get from `GET /health/ready`."""
    apps = []
    for node in scene.running:
        served = Mock(
            broker=node.broker,
            config=node.broker.config,
            administration=node.cluster.administration,
            draining=Mock(drained=False),
        )
        apps.append(Api(served, 1, page=False).app(1))

    async def ask() -> list[int]:
        found = []
        for app in apps:
            async with AsyncClient(transport=ASGITransport(app), base_url="http://node") as client:
                found.append((await client.get("/health/ready")).status_code)
        return found

    return trio.run(ask)


def mended(scene: Scene) -> None:
    scene.dead.clear()
    scene.finish()


@pytest.mark.parametrize("ticks", range(1, DEAD_TICKS + 3))
@pytest.mark.parametrize("silent", ["ac", "ca", "both"])
def test_a_member_that_was_silent_for_a_while_comes_after(ticks: int, silent: str) -> None:
    """However long the silence was, and though the groups are idle when it ends: a little shorter, and the
    link lasts; a little longer, and there is a new one.
    """
    scene = Scene()
    scene.lead("a")
    client = scene.client("a")
    client.declare("quorum/known")
    scene.wait_for(client)
    split(scene, *(("ac", "ca") if silent == "both" else (silent,)), both=False)
    client.declare("quorum/new")
    client.publish("quorum/known")
    scene.ticks(ticks)
    scene.dead.clear()
    scene.unblock()
    scene.connect_all()
    scene.ticks(SOON_TICKS)
    for node in scene.running:
        groups = node.cluster.replicas.groups
        assert len(groups) == 3
        for group in groups.values():
            leading = scene.leading(group.id)
            assert leading is not None
            assert group.applied == leading.applied, (node.name, group.id)


@pytest.mark.parametrize("leader", ["a", "c"])
@pytest.mark.parametrize("both", [True, False])
def test_declares_are_answered_at_both_ends_and_seen_everywhere(leader: str, both: bool) -> None:
    scene = Scene()
    scene.lead(leader)
    split(scene, "ac", both=both)
    for ticks in (SOON_TICKS, 2, 2):
        clients = {name: scene.client(name) for name in "abc"}
        for name, client in clients.items():
            client.declare(f"quorum/{name}{ticks}")
            client.node.end_turn()
        for client in clients.values():
            answered(scene, client, ticks)
            for name in clients:
                assert client.queue_id(f"quorum/{name}{ticks}")
    assert not any(client.refusals for node in scene.running for client in node.clients)
    assert leaders(scene) == {"b"}
    assert obstacles(scene) == ["", "", ""]
    mended(scene)


@pytest.mark.parametrize("leader", ["a", "c"])
def test_a_declare_does_not_wait_long_for_a_node_that_is_out_of_reach(leader: str) -> None:
    """The node between the two ends tells each how far the other one is."""
    scene = Scene()
    scene.lead(leader)
    split(scene, "ac")
    scene.ticks(SOON_TICKS)
    clients = {name: scene.client(name) for name in "abc"}
    for name, client in clients.items():
        client.declare(f"quorum/{name}")
        client.node.end_turn()
    for client in clients.values():
        answered(scene, client, 2)
        for name in clients:
            assert client.queue_id(f"quorum/{name}")
    mended(scene)


def test_new_queues_are_led_where_all_members_are_reached() -> None:
    scene = Scene()
    split(scene, "ac")
    scene.ticks(SOON_TICKS)
    for name in "abc":
        client = scene.client(name)
        queue_id = scene.declare(client, f"quorum/{name}")
        assert scene.nodes["b"].cluster.hosts.queues[queue_id].record.leader == "b"
    mended(scene)


def test_a_leader_that_is_preferred_gets_its_queue_when_its_link_has_lasted() -> None:
    scene = Scene()
    queue_id = scene.place(scene.client("a"), "quorum", "abc")
    split(scene, "ac")
    scene.ticks(SOON_TICKS + 3 * LOOK_TICKS)
    assert scene.nodes["b"].cluster.replicas.groups[queue_id].is_leader
    scene.dead.clear()
    scene.unblock()
    scene.connect_all()
    scene.ticks(STEADY_TICKS - 2 * LOOK_TICKS)
    assert scene.nodes["b"].cluster.replicas.groups[queue_id].is_leader
    scene.ticks(4 * LOOK_TICKS)
    assert scene.nodes["a"].cluster.replicas.groups[queue_id].is_leader
    mended(scene)


def test_an_operator_s_choice_waits_for_the_link() -> None:
    scene = Scene()
    queue_id = scene.place(scene.client("a"), "quorum", "bac")
    split(scene, "ac")
    scene.ticks(SOON_TICKS)
    scene.propose("a", SetMembers("/", "quorum", queue_id, ("b", "a", "c"), "c"))
    scene.ticks(3 * LOOK_TICKS)
    assert scene.nodes["b"].cluster.replicas.groups[queue_id].is_leader
    scene.dead.clear()
    scene.unblock()
    scene.connect_all()
    scene.ticks(STEADY_TICKS + 3 * LOOK_TICKS)
    assert scene.nodes["c"].cluster.replicas.groups[queue_id].is_leader
    mended(scene)


# -- what lives on one node ----------------------------------------------------------------------------------


def test_a_queue_that_lives_at_the_other_end_is_like_one_of_a_node_that_is_down() -> None:
    scene = Scene()
    home, far, near = scene.client("c"), scene.client("a"), scene.client("b")
    scene.declare(home, "classic")
    far.consume("classic")
    scene.wait_for(far)
    split(scene, "ac")
    far.publish("classic")
    answered(scene, far, SOON_TICKS)
    assert len(far.nacked) >= 1
    assert far.cancelled == ["c2.1"]
    down = "NOT_FOUND - home node 'c' of durable queue 'classic' in vhost '/' is down or inaccessible"
    for number, ask in enumerate((far.declare, far.get, far.consume, far.purge), 1):
        ask("classic")
        answered(scene, far, 2)
        assert far.refusals == [down] * number
    far.publish("classic")
    answered(scene, far, 2)
    for client in (near, home):
        client.publish("classic")
        answered(scene, client, 2)
        client.get("classic")
        answered(scene, client, 2)
        assert client.unacked
        assert not client.refusals
    mended(scene)


def test_exclusive_queues_of_a_node_at_an_end_stay() -> None:
    """The queues' node is alive, though the node that leads the topology does not reach it."""
    scene = Scene("abcde")
    scene.lead("a")
    clients = [scene.client(name) for name in "abcde"]
    for client in clients:
        scene.declare(client, f"own/{client.node.name}")
    # No node reaches more than two others.
    split(scene, "ac", "ce", "eb", "bd", "da")
    scene.ticks(SOON_TICKS + LOST_TICKS)
    leader = scene.leading()
    assert leader is not None
    near = [leader.replicas.node, *scene.nodes[leader.replicas.node].sessions]
    assert len(near) == 3
    for client in clients:
        for other in clients:
            if client.node.name in near:
                assert client.queue_id(f"own/{other.node.name}")
    mended(scene)


# -- where nobody reaches everybody --------------------------------------------------------------------------


def test_clients_of_a_node_that_does_not_reach_the_leader_are_told_so() -> None:
    scene = Scene("abcde")
    scene.lead("a")
    split(scene, "ac", "ce", "eb", "bd", "da")
    scene.ticks(SOON_TICKS)
    leader = scene.leading()
    assert leader is not None
    for node in scene.running:
        reached = node.name == leader.replicas.node or leader.replicas.node in node.sessions
        assert node.cluster.administration.obstacle() == ("" if reached else NO_LEADER)
        client = scene.client(node.name)
        client.declare(f"quorum/{node.name}")
        answered(scene, client, LIMITS["change_timeout_ms"] // TICK_MS + 4)
        late = f"RESOURCE_ERROR - the change was not applied in time: {NO_LEADER}. "
        assert bool(client.refusals) != reached
        assert all(refusal.startswith(late) for refusal in client.refusals)
    mended(scene)


# -- operators -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leader", ["a", "b", "c"])
@pytest.mark.parametrize("both", [True, False])
def test_nodes_at_both_ends_are_ready_for_as_long_as_the_link_is_dead(leader: str, both: bool) -> None:
    scene = Scene()
    scene.lead(leader)
    assert probed(scene) == [200, 200, 200]
    split(scene, "ac", both=both)
    # An end may be without a leader until another node leads.
    scene.ticks(SOON_TICKS)
    for _ in range(STEADY_TICKS):
        assert obstacles(scene) == ["", "", ""]
        scene.ticks(1)
    assert probed(scene) == [200, 200, 200]
    # A node that reaches nobody is not ready.
    split(scene, "ab", "ac")
    scene.ticks(SOON_TICKS)
    assert probed(scene) == [503, 200, 200]
    mended(scene)


def critical_of(node: SimulatedNode) -> list[str]:
    return sorted(group for group in node.cluster.administration.critical() if group is not None)


def test_operators_are_told_of_the_dead_link_and_of_the_node_that_may_not_be_stopped() -> None:
    scene = Scene()
    scene.place(scene.client("a"), "quorum", "abc")
    for node in scene.running:
        assert node.cluster.administration.status()["dead_links"] == []
        assert critical_of(node) == []
    split(scene, "ac")
    scene.ticks(SOON_TICKS)
    for node in scene.running:
        assert node.cluster.administration.status()["dead_links"] == [("a", "c")]
    critical = {node.name: critical_of(node) for node in scene.running}
    everything = ["queue 'quorum' in vhost '/'", "the topology"]
    assert critical == {"a": [], "b": everything, "c": []}
    mended(scene)


def test_a_node_that_stops_hands_over_once() -> None:
    """It hands over to a node at an end of the link. That node does not give the lead back, though the one
    that stops reaches more.
    """
    scene = Scene()
    scene.place(scene.client("a"), "quorum", "bac")
    scene.lead("b")
    split(scene, "ac")
    scene.ticks(SOON_TICKS)
    assert leaders(scene) == {"b"}
    node = scene.nodes["b"]
    terms = {group_id: group.core.term for group_id, group in node.cluster.replicas.groups.items()}
    for _ in range(SOON_TICKS):
        node.cluster.maintenance.drain()
        node.end_turn()
        scene.ticks(1)
    assert leaders(scene) <= {"a", "c"}
    for group_id, term in terms.items():
        assert node.cluster.replicas.groups[group_id].core.term == term + 1
    scene.crash(node)
    mended(scene)


def test_a_member_at_an_end_leaves_a_queue_whose_leader_it_does_not_reach() -> None:
    scene = Scene("abcd")
    queue_id = scene.place(scene.client("b"), "quorum", "abcd")
    split(scene, "ac")
    scene.ticks(SOON_TICKS)
    scene.propose("b", SetMembers("/", "quorum", queue_id, ("a", "b", "d"), "a"))
    scene.ticks(STEADY_TICKS + 6 * LOOK_TICKS)
    assert scene.nodes["a"].cluster.replicas.groups[queue_id].is_leader
    assert queue_id not in scene.nodes["c"].cluster.replicas.groups
    client = scene.client("c")
    client.publish("quorum")
    answered(scene, client, 4)
    assert not client.nacked
    mended(scene)


# -- nodes of the version before -----------------------------------------------------------------------------


@pytest.mark.parametrize("old", ["a", "b", "c"])
def test_a_node_of_the_version_before_is_told_nothing_that_it_does_not_know(old: str) -> None:
    scene = Scene()
    scene.crash(scene.nodes[old])
    scene.nodes[old].features = versions.FEATURES
    scene.settle()
    links = {name: dict(node.sessions) for name, node in scene.nodes.items()}
    queue_id = scene.place(scene.client("a"), "quorum", "abc")
    split(scene, "ac")
    scene.ticks(SOON_TICKS + 3 * LOOK_TICKS)
    # A new leader moves the lead to a new node that reaches more.
    moved = old == "c"
    leader = scene.leading(queue_id)
    assert leader is not None
    assert leader.replicas.node == ("b" if moved else "a")
    assert scene.nodes["b"].sessions == links["b"]
    scene.publish(scene.client("b"), "quorum")
    mended(scene)


def test_features_are_told_in_the_handshake() -> None:
    scene = Scene()
    assert scene.nodes["a"].cluster.reach.understands("b")
    assert frames.REACH_FEATURE in scene.nodes["a"].features
    assert scene.leading(GROUP) is not None
