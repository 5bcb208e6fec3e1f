"""Failures that simulated clusters of whole nodes have run into, each as a scene of its own; see
simulation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.access.users import User
from amqp_server.broker.declared import operations
from amqp_server.broker.declared.arguments import QueueArguments
from amqp_server.broker.declared.records import ExchangeRecord, QueueRecord, encoded
from amqp_server.broker.in_parts.deletion_in_parts import BINDINGS_MIN, QUEUE_BINDINGS
from amqp_server.broker.topology.replication import Result
from amqp_server.cluster.membership.membership import STARTS_APART
from amqp_server.cluster.replication import ClusterReplication
from amqp_server.cluster.topology_group import PutNode, RemoveNode
from amqp_server.errors import PreconditionFailed
from amqp_server.wire import frames
from quorum_queue.cluster.queues.remote_host import RemoteHost
from quorum_queue.cluster.replica_group import Group
from quorum_queue.machine import versions
from quorum_queue.ports import Refused
from tests.amqp_server.cluster.simulation.at_rest import check_at_rest, drain
from tests.amqp_server.cluster.simulation.clients import Client
from tests.amqp_server.cluster.simulation.cluster import Cluster
from tests.amqp_server.cluster.simulation.node import SimulatedNode

pytestmark = pytest.mark.usefixtures("hand")


class Scene(Cluster):
    """Nodes that work, and do only what the test says."""

    def __init__(
        self, names: str = "abc", founders: str = "", *, rates: dict[str, float] | None = None
    ) -> None:
        super().__init__(names, founders or names, rates=rates)
        self.mend()
        self.settle()

    def client(self, name: str) -> Client:
        return self.new_client(self.nodes[name])

    def declare(self, client: Client, name: str) -> int:
        client.declare(name)
        self.wait_for(client)
        queue_id = client.queue_id(name)
        assert queue_id
        return queue_id

    def publish(self, client: Client, name: str) -> None:
        """Publish to a queue, and have it confirmed."""
        client.publish(name)
        self.wait(lambda: not client.unconfirmed)

    def propose(
        self, name: str, *proposed: operations.Operation | PutNode | RemoveNode
    ) -> list[Result | Refused]:
        """Have changes made in one turn of a node; return its answers."""
        replication, answers = self.nodes[name].cluster.replication, list[Result | Refused]()
        for each in proposed:
            if isinstance(each, PutNode | RemoveNode):
                replication.submit(each, answers.append)
            else:
                replication.propose(each, answers.append)
        self.wait(lambda: len(answers) == len(proposed))
        return answers

    def place(self, client: Client, name: str, members: str) -> int:
        """Declare a queue and have it kept by these nodes, the first of them its leader."""
        queue_id = self.declare(client, name)
        self.propose("a", operations.SetMembers("/", name, queue_id, tuple(members), members[0]))
        self.settle()
        leader = self.leading(queue_id)
        assert leader is not None
        assert sorted(leader.core.members.voters) == sorted(members)
        return queue_id

    def lead(self, name: str, group_id: int = 0) -> Group:
        """Have this node lead a group."""
        for _ in range(100):
            leader = self.leading(group_id)
            if leader is not None and leader.replicas.node == name:
                return leader
            if leader is not None:
                leader.replicas.touch(leader)
                leader.core.transfer(name)
                self.nodes[leader.replicas.node].end_turn()
            for node in self.running:
                self.tick(node)
            self.work_off()
        raise AssertionError(f"{name} does not come to lead")

    def cut(self, one: str, two: str) -> None:
        """Nothing arrives between two nodes any more; they notice at once."""
        self.network.blocked[one, two] = self.network.blocked[two, one] = None
        for name, other in ((one, two), (two, one)):
            session = self.nodes[name].sessions.get(other)
            if session is not None:
                self.network.close(session, name)
        self.doubt_all()

    def connect(self, one: str, two: str) -> None:
        if (one, two) not in self.network.blocked:
            super().connect(one, two)

    def ticks(self, count: int) -> None:
        for _ in range(count):
            for node in self.running:
                self.tick(node)
            self.work_off()

    def finish(self) -> None:
        """Everything works again, and all checks pass."""
        self.doubt_all()
        self.mend()
        self.settle()
        check_at_rest(self)
        drain(self, ("/",))
        check_at_rest(self)
        for node in self.nodes.values():
            node.end_tasks()


def test_records_come_with_the_snapshot_that_was_on_disk_before_them() -> None:
    scene = Scene()
    node = scene.nodes["c"]
    scene.crash(node)
    client = scene.client("a")
    for each in scene.running:
        # No log entries are kept for members that lag.
        replicas = each.cluster.replicas
        replicas.options = dataclasses.replace(replicas.options, log_bytes_max=1)
    for _ in range(10):
        scene.declare(client, "classic")
        client.delete("classic")
        scene.wait_for(client)
    scene.declare(client, "quorum")
    scene.ticks(20)
    scene.start(node)
    scene.connect_all()
    restored = node.restored
    for _ in range(2000):
        if node.restored > restored:
            break
        for place in scene.network.places():
            if place in scene.network.places() and node.restored == restored:
                scene.network.go_on(*place, 1)
        for each in scene.running:
            if node.restored == restored:
                scene.step_disk(each)
        if node.restored == restored:
            scene.tick(scene.random.choice(scene.running))
    assert node.restored > restored, "it took over no snapshot"
    # The records of the snapshot are in no commit yet.
    scene.crash(node, written=False)
    scene.finish()


def test_what_is_in_the_records_of_a_snapshot_that_is_behind_them_is_answered_as_done() -> None:
    """A leader that has just started fills a node. The leader's records contain more than it has read of its
    log.
    """
    scene = Scene()
    scene.lead("c")
    for other in "bc":
        scene.cut("a", other)
        replicas = scene.nodes[other].cluster.replicas
        replicas.options = dataclasses.replace(replicas.options, log_bytes_max=1)
    group = scene.nodes["c"].cluster.replicas.groups[0]
    client = scene.client("c")
    lacking = scene.nodes["a"].cluster.replicas.groups[0].core.last_index
    while group.core.log.snapshot_index <= lacking:
        scene.declare(client, "classic")
        client.delete("classic")
        scene.wait_for(client)
    node = scene.nodes["a"]
    answers: list[Result | Refused] = []
    node.broker.propose(operations.PutUser(User("ann", "hash")), answers.append)
    node.end_turn()
    [flight] = list(node.cluster.replicas.groups[0].flights)
    # As if the command had been under way all the time.
    group.take(flight.payload)
    scene.nodes["c"].end_turn()
    scene.wait(lambda: scene.nodes["c"].broker.access.users.get("ann") is not None)
    scene.work_off()
    assert group.snapshot_index < group.applied == scene.nodes["c"].topology.applied
    for other in "bc":
        scene.crash(scene.nodes[other])
    scene.network.blocked.clear()
    scene.start(scene.nodes["c"])
    scene.connect("a", "c")
    restored = node.restored
    scene.wait(lambda: bool(answers))
    assert node.restored > restored, "it took over no snapshot"
    assert answers == [Result(True)]
    scene.finish()


def test_an_exclusive_queue_goes_though_it_comes_after_its_client_has_gone() -> None:
    scene = Scene()
    scene.lead("a")
    client, other = scene.client("b"), scene.client("c")
    client.declare("own/b")
    client.node.end_turn()
    assert not client.queue_id("own/b")
    client.node.turn.run(client.session.lost)
    scene.ticks(4)
    scene.settle()
    assert not other.queue_id("own/b")
    scene.declare(other, "own/b")
    scene.finish()


def test_a_member_is_let_go_only_by_the_leader() -> None:
    """A node that joins the queue at the same time does not know yet that the node which leaves is still
    needed.
    """
    scene = Scene("abcd")
    client = scene.client("d")
    queue_id = scene.place(client, "quorum", "ba")
    scene.lead("b", queue_id)
    scene.lead("d")
    scene.cut("b", "c")
    scene.propose("d", operations.SetMembers("/", "quorum", queue_id, ("b", "c"), "b"))
    scene.ticks(30)
    assert queue_id in scene.nodes["c"].cluster.replicas.groups
    assert queue_id in scene.nodes["a"].cluster.replicas.groups
    scene.publish(client, "quorum")
    scene.finish()


def test_a_member_that_starts_again_while_it_leaves_is_still_one() -> None:
    scene = Scene("abcd")
    client = scene.client("d")
    queue_id = scene.place(client, "quorum", "ba")
    scene.crash(scene.nodes["c"])
    scene.propose("d", operations.SetMembers("/", "quorum", queue_id, ("b", "c"), "b"))
    scene.ticks(10)
    scene.crash(scene.nodes["a"])
    scene.ticks(10)
    scene.start(scene.nodes["a"])
    scene.connect_all()
    scene.ticks(40)
    scene.publish(client, "quorum")
    scene.finish()
    assert queue_id not in scene.nodes["a"].disk.groups.groups


def naming(names: str) -> Callable[[ClusterReplication, Any, Any], None]:
    """Return a `submit` that lets the cluster put only these nodes into the topology."""
    submit = ClusterReplication.submit

    def mutant(self: ClusterReplication, proposal: Any, done: Any = None) -> None:
        if not isinstance(proposal, PutNode) or proposal.name in names:
            submit(self, proposal, done)

    return mutant


@pytest.mark.parametrize("names", ["", "a", "bc"])
def test_a_node_serves_when_it_knows_all_nodes(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue declared earlier would have no place to go to, or too few members."""
    cluster = Cluster("abc", "abc")
    with monkeypatch.context() as patch:
        patch.setattr(ClusterReplication, "submit", naming(names))
        cluster.mend()
        for _ in range(40):
            cluster.work_off()
            for node in cluster.running:
                cluster.tick(node)
        assert cluster.leading() is not None
        assert [list(node.cluster.roster.nodes) for node in cluster.running] == [list(names)] * 3
        assert not cluster.serving
    leader = cluster.leading()
    assert leader is not None
    # The next leader puts the nodes there that this one did not come to.
    cluster.crash(cluster.nodes[leader.replicas.node])
    cluster.settle()
    for node in cluster.serving:
        assert sorted(node.cluster.roster.nodes) == ["a", "b", "c"]
        placed = node.broker.hosts.place(QueueArguments(queue_type="quorum"))
        assert sorted(placed) == ["a", "b", "c"]


def test_a_queue_without_a_place_is_refused_in_order() -> None:
    """Where no node is to stay, or none is known."""
    scene = Scene()
    parsed = QueueArguments(queue_type="quorum")
    hosts = scene.nodes["a"].broker.hosts
    nodes = scene.nodes["a"].cluster.roster.nodes
    for name in "abc":
        nodes[name] = ""
    assert sorted(hosts.place(parsed)) == ["a", "b", "c"]
    nodes.clear()
    assert hosts.place(parsed) == ("a",)


def test_a_queue_is_put_on_nodes_that_have_been_there() -> None:
    """Rather on nodes that are down: a node that has joined and was never seen is still to be filled, and
    does not vote before that.
    """
    scene = Scene("abcde", "cde")
    scene.propose("c", PutNode("a", "127.0.0.1:1"), PutNode("b", "127.0.0.1:1"))
    scene.lead("c")
    scene.crash(scene.nodes["e"])
    scene.ticks(15)
    client = scene.client("c")
    client.declare("quorum")
    scene.ticks(5)
    [queue] = scene.nodes["c"].broker.all_queues()
    assert sorted(queue.members) == ["c", "d", "e"]
    scene.finish()


def test_nothing_is_put_on_a_node_that_leaves() -> None:
    """The node that declared it did not know yet."""
    scene = Scene("abcd")
    empty = encoded({})
    queues = [
        QueueRecord("/", "one", 0, False, empty, type="quorum", members=("d", "a", "b"), leader="d"),
        QueueRecord("/", "only", 0, False, empty, type="quorum", members=("d",), leader="d"),
        QueueRecord("/", "own", 0, False, empty, node="d"),
    ]
    exchange = ExchangeRecord("/", "passing", "fanout", False, False, empty, False, "d", 1)
    answers = scene.propose(
        "a", PutNode("d", ""), *map(operations.DeclareQueue, queues), operations.DeclareExchange(exchange)
    )
    refused = Result(False, "node 'd' is about to leave the cluster")
    assert answers[1:] == [
        Result(True), Result(False, "the nodes d are about to leave the cluster"), refused, refused,
    ]  # fmt: skip
    [queue] = scene.nodes["b"].broker.all_queues()
    assert (queue.members, queue.record.leader) == (("a", "b"), "a")
    # The command of an earlier request comes now.
    moved = operations.SetMembers("/", "one", queue.queue_id, ("d", "a", "b", "a"), "d")
    assert scene.propose("a", moved) == [Result(True)]
    assert (queue.members, queue.record.leader) == (("a", "b"), "a")
    with pytest.raises(PreconditionFailed, match="about to leave"):
        scene.nodes["a"].cluster.administration._require_node("d")
    client = scene.client("d")
    client.declare("classic")
    scene.wait_for(client)
    assert scene.ledger.count["refused 406"] == 1
    scene.settle()
    check_at_rest(scene)


def test_nothing_comes_of_a_node_that_was_removed() -> None:
    scene = Scene("abcd")
    node = scene.nodes["d"]
    scene.lead("a")
    for other in "abc":
        scene.cut("d", other)
    late: list[Result | Refused] = []
    record = QueueRecord("/", "late", 0, False, encoded({}), node="d")
    node.broker.propose(operations.DeclareQueue(record), late.append)
    node.end_turn()
    [*_, flight] = list(node.cluster.replicas.groups[0].flights)
    scene.propose("a", PutNode("d", ""), RemoveNode("d"))
    # As if the command had been under way all the time.
    group = scene.nodes["a"].cluster.replicas.groups[0]
    group.take(flight.payload)
    scene.nodes["a"].end_turn()
    scene.settle()
    assert not list(scene.nodes["a"].broker.all_queues())
    assert not [result for result in late if isinstance(result, Result)]
    check_at_rest(scene)


def test_a_start_that_was_on_its_way_when_the_node_was_removed_does_not_bring_it_back() -> None:
    """The others would take the node for one that nobody has put into the topology yet, and keep its vote
    forever.
    """
    scene = Scene("abcd")
    node = scene.nodes["d"]
    scene.lead("a")
    scene.crash(node)
    for other in "abc":
        scene.cut("d", other)
    scene.start(node)
    scene.ticks(5)
    [*_, flight] = list(node.cluster.replicas.groups[0].flights)
    scene.propose("a", PutNode("d", ""), RemoveNode("d"))
    # As if the command had been under way all the time.
    group = scene.nodes["a"].cluster.replicas.groups[0]
    group.take(flight.payload)
    scene.nodes["a"].end_turn()
    scene.network.blocked.clear()
    scene.ticks(60)
    assert sorted(group.core.members.voters) == ["a", "b", "c"]
    scene.connect("d", "b")
    scene.ticks(40)
    assert node.out.startswith("this node was removed from its cluster")
    scene.finish()


def test_the_founders_of_a_queue_come_with_a_snapshot_though_its_members_are_as_before() -> None:
    """A node that missed the queue's removal and return would begin it anew with the wrong members."""
    scene = Scene()
    client = scene.client("a")
    queue_id = scene.declare(client, "quorum")
    scene.settle()
    members = scene.nodes["a"].broker.vhost("/").queues["quorum"].members
    node = scene.nodes["c"]
    assert node.broker.vhost("/").queues["quorum"].record.founders == ()
    scene.crash(node)
    for each in scene.running:
        # No log entries are kept for members that lag.
        replicas = each.cluster.replicas
        replicas.options = dataclasses.replace(replicas.options, log_bytes_max=1)
    leader = scene.nodes["a"].broker.vhost("/").queues["quorum"].record.leader
    scene.propose("a", operations.SetMembers("/", "quorum", queue_id, members[:2], leader))
    scene.propose("a", operations.SetMembers("/", "quorum", queue_id, members, leader))
    assert scene.nodes["a"].broker.vhost("/").queues["quorum"].record.founders
    for _ in range(10):
        scene.declare(client, "classic")
        client.delete("classic")
        scene.wait_for(client)
    scene.ticks(20)
    scene.start(node)
    scene.connect_all()
    restored = node.restored
    scene.wait(lambda: node.restored > restored)
    records = [other.broker.vhost("/").queues["quorum"].record for other in scene.nodes.values()]
    assert len({record.founders for record in records}) == 1
    scene.finish()


def test_a_founder_that_was_away_until_its_queue_had_moved_votes_for_its_first_leader() -> None:
    """There are two founders, and both are needed, though one is to leave before it has heard of the
    queue.
    """
    scene = Scene("abcd")
    client = scene.client("a")
    node = scene.nodes["d"]
    scene.crash(node)
    for each in scene.running:
        # No log entries are kept for members that lag.
        replicas = each.cluster.replicas
        replicas.options = dataclasses.replace(replicas.options, log_bytes_max=1)
    record = QueueRecord(
        "/", "quorum", 0, False, encoded({"x-queue-type": "quorum"}), members=("a", "d"), leader="a"
    )
    scene.propose("a", operations.DeclareQueue(record))
    queue_id = scene.nodes["a"].broker.vhost("/").queues["quorum"].queue_id
    scene.propose("a", operations.SetMembers("/", "quorum", queue_id, ("a", "b"), "a"))
    for _ in range(10):
        scene.declare(client, "classic")
        client.delete("classic")
        scene.wait_for(client)
    scene.ticks(20)
    assert scene.leading(queue_id) is None
    scene.start(node)
    scene.connect_all()
    restored = node.restored
    scene.wait(lambda: node.restored > restored)
    scene.wait(lambda: scene.leading(queue_id) is not None)
    scene.finish()
    leader = scene.leading(queue_id)
    assert leader is None or sorted(leader.core.members.voters) == ["a", "b"]


def removed_unheard(names: str = "abcd") -> tuple[Scene, SimulatedNode]:
    """Have d cut off, and meanwhile removed by the others."""
    scene = Scene(names)
    node = scene.nodes["d"]
    scene.lead("a")
    for other in names:
        if other != "d":
            scene.cut("d", other)
    scene.propose("a", PutNode("d", ""), RemoveNode("d"))
    scene.ticks(60)
    assert node.alive
    assert "d" in node.cluster.roster.nodes
    scene.look_at_members()
    return scene, node


def test_who_was_cut_off_when_it_was_removed_is_told_by_whom_it_comes_to() -> None:
    scene, node = removed_unheard()
    scene.network.blocked.clear()
    scene.connect("d", "b")
    scene.ticks(40)
    assert node.out.startswith("this node was removed from its cluster")
    assert not node.start("abcd")
    scene.finish()


def test_who_was_removed_is_told_by_a_node_that_starts_with_the_nodes_of_before() -> None:
    scene, node = removed_unheard()
    for name in "abc":
        for _ in range(3):
            scene.nodes[name].cluster.replicas.groups[0].since_bytes = 1 << 30
            scene.propose("a", RemoveNode("nobody"))
            scene.work_off()
    other = scene.nodes["b"]
    scene.crash(other)
    scene.start(other)
    assert other.dials("d")
    assert other.cluster.roster.nodes.keys() == {"a", "b", "c"}
    scene.finish()
    assert node.out.startswith("this node was removed from its cluster")
    assert not other.dials("d")


def test_who_joins_again_is_not_taken_for_the_one_that_was_removed() -> None:
    """This holds also on a node that has yet to read that the other one has joined again."""
    scene, node = removed_unheard()
    scene.crash(node)
    node.replace_disk()
    scene.wiped["d"] = None
    scene.network.blocked.clear()
    other = scene.nodes["b"]
    for name in "ac":
        # Node b takes a while to notice that the links are cut.
        scene.network.blocked[name, "b"] = None
    scene.nodes["a"].cluster.replication.submit(PutNode("d", "127.0.0.1:1"))
    scene.nodes["a"].end_turn()
    scene.work_off()
    scene.look_at_members()
    scene.start(node)
    scene.connect("b", "d")
    for _ in range(3):
        for each in (other, node):
            scene.tick(each)
        scene.work_off()
    group = other.cluster.replicas.groups[0]
    assert other.cluster.roster.removed_at("d")
    assert not group.behind
    assert "d" in other.sessions
    scene.network.blocked.clear()
    scene.connect("a", "d")
    scene.ticks(40)
    assert not node.out
    scene.finish()
    assert node.serving
    assert not node.out


def test_a_lost_disk_is_filled_by_a_leader_that_has_joined_later() -> None:
    scene = Scene("abcd", "abc")
    scene.ask("join", scene.nodes["a"], scene.nodes["a"].cluster.administration.join("d", "127.0.0.1:1"))
    scene.settle()
    assert list(scene.belonging) == ["a", "b", "c", "d"]
    # These nodes do not tell which nodes they reach, so nobody takes over from a leader that does not reach
    # one of them.
    for node in scene.nodes.values():
        node.features = versions.FEATURES
    scene.mend()
    scene.settle()
    scene.lead("d")
    node = scene.nodes["b"]
    scene.crash(node)
    node.replace_disk()
    scene.wiped["b"] = None
    # Node b is configured with a and c.
    scene.finish()
    assert scene.leading() is not None


def test_a_lost_disk_is_filled_by_a_leader_that_is_about_to_leave() -> None:
    scene = Scene("abcd", "abc")
    scene.ask("join", scene.nodes["a"], scene.nodes["a"].cluster.administration.join("d", "127.0.0.1:1"))
    scene.settle()
    scene.lead("d")
    # The node that ran the removal failed in the middle of it, so d has no address any more.
    scene.propose("a", PutNode("d", ""))
    node = scene.nodes["b"]
    scene.crash(node)
    node.replace_disk()
    scene.wiped["b"] = None
    scene.finish()


def test_a_node_does_not_leave_with_what_it_alone_has_come_to_have() -> None:
    scene = Scene("abcd")
    client = scene.client("b")
    queue_id = scene.place(client, "quorum", "da")
    scene.publish(client, "quorum")
    node = scene.nodes["d"]
    leaving = scene.ask("leave", node, node.cluster.administration.leave())
    scene.lead("b")
    # This change was asked for earlier, and comes first in the log.
    scene.nodes["b"].broker.propose(operations.SetMembers("/", "quorum", queue_id, ("d",), "d"))
    scene.nodes["b"].end_turn()
    scene.tick(node)
    scene.settle()
    assert isinstance(leaving.error, PreconditionFailed)
    assert scene.nodes["a"].cluster.roster.nodes["d"]
    scene.finish()


def test_what_a_forgotten_node_had_is_deleted_in_parts() -> None:
    """To delete everything at once would be one step, in which no node does anything else."""
    scene = Scene("abcd")
    queues = [
        QueueRecord("/", f"gone {number}", 0, auto_delete=False, arguments=encoded({}), durable=False, node="d",
                    incarnation=scene.nodes["d"].cluster.incarnation)
        for number in range(BINDINGS_MIN // QUEUE_BINDINGS)
    ]  # fmt: skip
    scene.propose("a", *(operations.DeclareQueue(record) for record in queues))
    node = scene.nodes["a"]
    scene.settle()
    scene.crash(scene.nodes["d"])
    assert {record.name for record in queues} <= node.broker.vhost("/").queues.keys()
    topology = node.cluster.replicas.groups[0].core
    before = topology.commit
    scene.doubt_all()
    scene.wiped["d"] = None
    scene.ledger.forgotten["d"] = None
    asked = scene.ask("forget", node, node.cluster.administration.forget("d"))
    scene.wait(lambda: asked.done)
    assert asked.error is None
    assert "d" not in node.cluster.roster.nodes
    assert not [name for name in node.broker.vhost("/").queues if name.startswith("gone")]
    assert topology.commit - before > len(queues)
    scene.finish()


def test_two_who_ask_for_the_same_member_get_it_once() -> None:
    scene = Scene("abcd")
    client = scene.client("a")
    queue_id = scene.place(client, "quorum", "abc")
    for name in "ab":
        node = scene.nodes[name]
        scene.ask("grow", node, node.cluster.administration.grow("d", ["/"]))
        scene.tick(node)
    scene.settle()
    assert scene.nodes["a"].cluster.hosts.queues[queue_id].members == ("a", "b", "c", "d")
    scene.finish()


def test_a_queue_that_is_declared_after_a_disk_was_lost_is_not_among_what_it_has_forgotten() -> None:
    scene = Scene()
    node = scene.nodes["c"]
    scene.crash(node)
    node.replace_disk()
    scene.wiped["c"] = None
    # The number of this start is clearly higher than that of the last one, so the node does not start once
    # more.
    node.clock.now_ms += 2 * STARTS_APART
    scene.start(node)
    scene.connect_all()
    client = scene.client("a")
    cluster: Any = node.cluster
    # The node does not check yet whether its memory is whole.
    cluster._forget_lost_disk = lambda: None
    scene.wait(lambda: node.serving)
    record = QueueRecord(
        "/",
        "quorum",
        0,
        False,
        encoded({"x-queue-type": "quorum"}),
        type="quorum",
        members=("c",),
        leader="c",
    )
    scene.propose("a", operations.DeclareQueue(record))
    scene.publish(client, "quorum")
    del cluster._forget_lost_disk
    scene.finish()


def check_lease(scene: Scene, client: Client, name: str, use: Callable[[str], str]) -> None:
    """A queue stays for as long as it is used, and goes afterwards."""
    queue_id = client.queue_id(name)
    assert queue_id
    for _ in range(8):
        scene.ticks(15)
        use(name)
        scene.wait_for(client)
    assert client.queue_id(name) == queue_id
    scene.ticks(80)
    assert not client.queue_id(name)
    scene.finish()


def test_a_queue_that_others_use_is_not_given_up_by_its_last_leader() -> None:
    scene = Scene()
    client = scene.client("c")
    queue_id = scene.place(client, "lease", "abc")
    scene.lead("a", queue_id)
    scene.ticks(5)
    scene.propose("c", operations.SetMembers("/", "lease", queue_id, ("b", "a", "c"), "b"))
    scene.lead("b", queue_id)
    check_lease(scene, client, "lease", client.get)


def test_a_leased_queue_is_given_up_by_its_home_only() -> None:
    """Other nodes hear that it was paused, and of no use."""
    scene = Scene()
    client = scene.client("a")
    queue_id = scene.declare(client, "classic lease")
    paused = operations.PauseQueue("/", "classic lease", queue_id, deliveries=False, publishes=True)
    scene.propose("b", paused)
    check_lease(scene, client, "classic lease", client.declare)


def test_a_lease_goes_by_the_clock_of_its_leader_though_the_last_one_was_ahead() -> None:
    """The queue's time continues from where the last leader left it."""
    scene = Scene(rates={"a": 1.0, "b": 1.5, "c": 1.0})
    client = scene.client("c")
    queue_id = scene.place(client, "lease", "bac")
    for _ in range(16):
        scene.ticks(10)
        client.get("lease")
        scene.wait_for(client)
    scene.propose("c", operations.SetMembers("/", "lease", queue_id, ("a", "b", "c"), "a"))
    scene.lead("a", queue_id)
    time_ms = scene.nodes["a"].cluster.hosts.grouped[queue_id].replica.now_ms
    for _ in range(4):
        scene.ticks(15)
        client.get("lease")
        scene.wait_for(client)
    assert scene.nodes["a"].cluster.hosts.grouped[queue_id].replica.now_ms >= time_ms + 1500
    assert client.queue_id("lease") == queue_id
    scene.ticks(80)
    assert not client.queue_id("lease")
    scene.finish()


def test_a_queue_of_a_closed_connection_goes_before_close_ok() -> None:
    scene = Scene()
    client, other = scene.client("a"), scene.client("b")
    scene.declare(client, "own")
    assert other.queue_id("own")
    client.closing = True
    client.node.turn.receive(client.session, frames.method_frame(0, commands.Connection.Close(200, "", 0, 0)))
    scene.wait(lambda: client not in client.node.clients)
    assert not client.queue_id("own")
    assert not other.queue_id("own")
    scene.finish()


@pytest.mark.parametrize("way", ["joins", "leaves", "the home goes"])
def test_a_commit_says_that_its_acks_came_too_late(way: str) -> None:
    """The node of the client joins or leaves the queue, or loses its home: the messages that the client held
    are in the queue again.
    """
    scene = Scene("abcd")
    other = scene.client("b")
    if way == "the home goes":
        name, queue_id = "classic", scene.declare(other, "classic")
    else:
        name, queue_id = "quorum", scene.place(other, "quorum", "abc")
    scene.publish(other, name)
    client = scene.new_client(scene.nodes["a" if way == "leaves" else "d"], transactional=True)
    client.get(name)
    scene.wait_for(client)
    [tag] = client.unacked
    client.uncommitted_tags = [tag]
    client.unacked.clear()
    client.send(commands.Basic.Ack(delivery_tag=tag))
    if way == "the home goes":
        session = client.node.sessions["b"]
        scene.network.close(session, "d")
        scene.ticks(2)
        scene.connect_all()
    else:
        members = ("b", "c", "d") if way == "leaves" else ("a", "b", "c", "d")
        scene.propose("b", operations.SetMembers("/", name, queue_id, members, "b"))
    scene.settle()
    client.commit()
    scene.wait_for(client)
    assert len(client.refusals) == 1
    assert client.refusals[0].startswith("PRECONDITION_FAILED - partial tx completion")
    other.get(name)
    scene.wait_for(other)
    assert other.received
    other.ack_all()
    scene.finish()


def test_a_commit_waits_until_the_home_of_a_queue_has_its_messages_on_disk() -> None:
    scene = Scene()
    scene.declare(scene.client("b"), "classic")
    client = scene.new_client(scene.nodes["a"], transactional=True)
    client.publish("classic")
    client.commit()
    client.node.end_turn()
    for _ in range(20):
        for place in scene.network.places():
            if place in scene.network.places():
                scene.network.go_on(*place, 8)
    home = scene.nodes["b"]
    assert next(iter(home.broker.all_queues())).host.ready_count == 1
    # No disk has taken a step.
    assert client.asked is not None
    scene.crash(home, written=False)
    scene.ticks(30)
    assert client.asked is None
    assert "is down or inaccessible" in client.refusals[-1]
    scene.finish()


def test_a_member_by_name_only_is_taken_out_before_the_others() -> None:
    """Node c has never heard of the queue. Left with one other member, it would keep the queue from ever
    changing again.
    """
    scene = Scene()
    node = scene.nodes["c"]
    scene.crash(node)
    client = scene.client("a")
    queue_id = scene.declare(client, "quorum/q")
    assert sorted(scene.nodes["a"].broker.vhost("/").queues["quorum/q"].members) == ["a", "b", "c"]
    scene.lead("b", queue_id)
    scene.propose("b", operations.SetMembers("/", "quorum/q", queue_id, ("b",), "b"))
    scene.ticks(60)
    scene.start(node)
    scene.connect_all()
    scene.settle()
    assert scene.leading(queue_id) is scene.nodes["b"].cluster.replicas.groups[queue_id]
    scene.finish()


@pytest.mark.parametrize("known", ["abc", "a", "bc", ""])
def test_an_entry_of_the_topology_that_all_have_lost_is_given_up_by_an_operator(known: str) -> None:
    """The records of the nodes in `known` have the change; the others had not written it yet."""
    scene = Scene()
    client = scene.client("a")
    scene.declare(client, "quorum/kept")
    scene.settle()
    before = {name: dict(node.disk.entries) for name, node in scene.nodes.items()}
    lost = scene.declare(client, "quorum/lost")
    scene.work_off()
    for node in scene.nodes.values():
        scene.crash(node, written=True)
        if node.name not in known:
            node.disk.entries = before[node.name]
            node.disk.groups.groups.pop(lost)
        node.disk.groups.flip(0, lost)
    for node in scene.nodes.values():
        scene.start(node)

    def pass_time() -> None:
        for _ in range(30):
            scene.connect_all()
            for node in scene.running:
                scene.tick(node)
            scene.work_off()

    pass_time()
    if not known:
        model = scene.ledger.model
        model.queues = {key: record for key, record in model.queues.items() if record.queue_id != lost}
    losses = [node.cluster.replicas.lost_entries for node in scene.nodes.values()]
    assert [each.waiting_for_operator(0) for each in losses] == [[lost]] * 3
    assert not scene.leading()
    asked: Any = scene.nodes["b"].cluster
    # If an operator names another entry, nothing is given up.
    asked._config = dataclasses.replace(asked._config, accept_topology_loss=lost + 1)
    pass_time()
    assert not scene.leading()
    asked._config = dataclasses.replace(asked._config, accept_topology_loss=lost)
    scene.wait(lambda: bool(scene.leading()))
    scene.wait(lambda: not any(node.cluster.roster.given_up.first for node in scene.nodes.values()))
    scene.settle()
    assert len({node.topology.snapshot() for node in scene.nodes.values()}) == 1
    # The change is not lost if any records have it.
    check_at_rest(scene)
    client = scene.client("c")
    assert bool(client.queue_id("quorum/lost")) is bool(known)
    assert client.queue_id("quorum/kept")
    scene.declare(client, "quorum/more")
    # The entry stays given up, whichever node starts again.
    for node in scene.nodes.values():
        scene.crash(node)
    scene.mend()
    scene.settle()
    assert len({node.topology.snapshot() for node in scene.nodes.values()}) == 1
    assert scene.client("a").queue_id("quorum/more")


@pytest.mark.parametrize("ask", ["consume", "get"])
def test_who_asks_a_queue_whose_deletion_the_node_has_not_seen_yet_may_ask_again(ask: str) -> None:
    """As if the node had known of it: a queue of that name may be there again by the next ask."""
    scene = Scene()
    at_a, at_b = scene.client("a"), scene.client("b")
    queue_id = scene.declare(at_a, "quorum/q")
    scene.settle()
    scene.cut("a", "b")
    scene.cut("b", "c")
    getattr(at_b, ask)("quorum/q")
    at_a.delete("quorum/q")
    scene.wait_for(at_a)
    assert not at_a.queue_id("quorum/q")
    assert at_b.queue_id("quorum/q") == queue_id
    assert at_b.asked is not None
    scene.mend()
    scene.wait_for(at_b)
    assert at_b.refusals == ["NOT_FOUND - no queue 'quorum/q' in vhost '/'"]
    # The connection stays, and its next channel may ask again.
    scene.declare(at_b, "quorum/q")
    at_b.consume("quorum/q")
    scene.wait_for(at_b)
    assert len(at_b.refusals) == 1
    scene.settle()
    check_at_rest(scene)


def test_of_two_administrators_deleted_at_once_one_stays() -> None:
    scene = Scene()
    first, other = scene.nodes["a"], scene.nodes["b"]
    answers: list[Result | Refused] = []
    first.broker.propose(operations.PutUser(User("ann", "hash", ("administrator",))), answers.append)
    first.end_turn()
    scene.wait(lambda: bool(answers) and other.broker.access.users.get("ann") is not None)
    answers.clear()
    # Neither node knows of the other's deletion.
    first.broker.propose(operations.DeleteUser("ann"), answers.append)
    other.broker.propose(operations.DeleteUser("guest"), answers.append)
    first.end_turn()
    other.end_turn()
    scene.wait(lambda: len(answers) == 2)
    scene.work_off()
    results = [answer for answer in answers if isinstance(answer, Result)]
    assert sorted(result.changed for result in results) == [False, True]
    assert "last administrator" in "".join(result.error for result in results)
    for node in scene.nodes.values():
        assert len([user for user in node.broker.access.users if user.administers]) == 1
    # With `forced`, an operator may do it.
    (left,) = [user.name for user in first.broker.access.users if user.administers]
    first.broker.propose(operations.PutUser(User(left, "hash"), forced=True), answers.append)
    first.end_turn()
    scene.wait(lambda: len(answers) == 3)
    assert not [user for user in first.broker.access.users if user.administers]


@pytest.mark.parametrize("ask", ["get", "consume"])
@pytest.mark.parametrize(("name", "members"), [("quorum/q", "acb"), ("quorum/q", "acd"), ("classic", "")])
def test_a_client_gets_what_it_took_before_its_queue_was_deleted_as_empty(
    name: str, members: str, ask: str
) -> None:
    """Though the topology's log is faster than what comes from the queue's leader or home."""
    scene = Scene("abcd")
    at_a, at_b, at_c = (scene.client(node) for node in "abc")
    queue_id = scene.place(at_a, name, members) if members else scene.declare(at_a, name)
    remote = scene.nodes["b"].cluster.hosts.remote.get(queue_id)
    home = remote._home("") if isinstance(remote, RemoteHost) else "a"
    scene.lead(next(node for node in "cd" if node != home))
    scene.settle()
    if ask == "consume":
        at_b.consume(name)
        scene.wait_for(at_b)
        scene.network.blocked[home, "b"] = None
        scene.publish(at_a, name)
    else:
        scene.publish(at_a, name)
        scene.network.blocked[home, "b"] = None
        at_b.get(name)
        scene.work_off()
    at_c.ask("delete", (name, queue_id), commands.Queue.Delete(queue=name, if_empty=True))
    for _ in range(20):
        for node in scene.running:
            node.end_turn()
        scene.work_off()
    assert not at_b.received
    assert not at_b.refusals
    scene.unblock()
    scene.wait_for(at_c)
    scene.wait(lambda: bool(at_b.received))
    assert at_b.asked is None
    assert not (at_b.refusals or at_c.refusals or at_b.queue_id(name))
    if ask == "consume":
        scene.wait(lambda: bool(at_b.cancelled))
    scene.settle()
    check_at_rest(scene)


@pytest.mark.parametrize("ask", ["get", "consume"])
def test_a_client_gets_what_is_read_from_disk_when_its_queue_is_deleted_as_empty(
    ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene()
    at_a, at_b = scene.client("a"), scene.client("b")
    queue_id = scene.place(at_a, "quorum/q", "abc")
    scene.publish(at_a, "quorum/q")
    scene.settle()
    node = scene.nodes["b"]
    node.cluster.replicas.bodies.drop_group(queue_id)
    with monkeypatch.context() as slow:
        slow.setattr(node.disk.reader, "waits", lambda: True)
        slow.setattr(node, "step_read", lambda: False)
        getattr(at_b, ask)("quorum/q")
        scene.work_off()
        scene.ticks(3)
        assert len(node.cluster.hosts.grouped[queue_id].deliveries_waiting) == 1
        at_a.ask("delete", ("quorum/q", queue_id), commands.Queue.Delete(queue="quorum/q", if_empty=True))
        scene.wait_for(at_a)
        scene.wait(lambda: not at_b.queue_id("quorum/q"))
        assert not (at_b.received or at_b.refusals or at_b.cancelled)
    scene.wait(lambda: len(at_b.received) == 1)
    assert at_b.asked is None
    scene.settle()
    assert not at_b.refusals
    assert len(at_b.cancelled) == (ask == "consume")
    assert not any(each.cluster.replicas.last_messages for each in scene.nodes.values())
    check_at_rest(scene)
