"""One link is dead for long while all nodes are alive: clients at both of its ends go on."""

from __future__ import annotations

import pytest

from quorum_queue.cluster import frames, handover
from quorum_queue.cluster.connectivity import FLAPS
from quorum_queue.cluster.replica_group import Group
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.raft.messages import TIMEOUT_NOW, decode_message
from tests.quorum_queue.cluster.clients import Holder, Publisher
from tests.quorum_queue.cluster.node import DEAD_TICKS, LOOK_TICKS, RAFT, REPLICATION, TICK_MS
from tests.quorum_queue.cluster.scene import Scene

pytestmark = pytest.mark.usefixtures("quiet")

REACH_TICKS = REPLICATION.reach_ms // TICK_MS
STEADY_TICKS = REPLICATION.steady_ms // TICK_MS
#: Time until both ends have noticed, all other nodes would have noticed, and another node leads.
SOON_TICKS = 2 * DEAD_TICKS + REACH_TICKS + 4
LONG_TICKS = 100
#: The directions, as (from, to), in which nothing arrives while a leads.
WAYS = [[("a", "c"), ("c", "a")], [("a", "c")], [("c", "a")]]


class Clients:
    """A publisher and a consumer at each node."""

    def __init__(self, scene: Scene, queue: str = "") -> None:
        self.scene = scene
        self.queue = queue
        self.publishers: dict[str, Publisher] = {name: scene.publisher(name, queue) for name in scene.names}
        self.consumers: dict[str, Holder] = {
            name: scene.consume(name, prefetch=1, queue=queue) for name in scene.names
        }
        scene.work(1)

    def go_on(self, ticks: int) -> None:
        """Each publishes and has its confirm within this many ticks, and each consumer has got a message."""
        for name, publisher in self.publishers.items():
            self.scene.publish(name, publisher, len(self.consumers), queue=self.queue)
        waiting = dict.fromkeys(self.consumers)
        for _ in range(ticks):
            self.scene.work(1)
            for name, holder in self.consumers.items():
                if holder.unacked:
                    waiting.pop(name, None)
                    self.scene.settle_all(holder)
            self.scene.work()
            if not waiting and not any(publisher.waiting for publisher in self.publishers.values()):
                return
        unconfirmed = [name for name, publisher in self.publishers.items() if publisher.waiting]
        raise AssertionError(f"no confirms at {unconfirmed}, no deliveries at {list(waiting)}")


def block(scene: Scene, ways: list[tuple[str, str]]) -> None:
    for one, two in ways:
        scene.cut(one, two, both=False)


@pytest.mark.parametrize("ways", WAYS, ids=["both ways", "from the leader", "to the leader"])
def test_clients_at_both_ends_go_on(ways: list[tuple[str, str]]) -> None:
    scene = Scene()
    clients = Clients(scene)
    clients.go_on(2)
    block(scene, ways)
    clients.go_on(SOON_TICKS)
    assert scene.leaders() == {"plain": "b"}
    term = scene.host("b").group.core.term
    for _ in range(LONG_TICKS):
        clients.go_on(3)
    # No node stands for election, and the preferred leader does not get the lead back.
    assert scene.host("b").group.core.term == term
    for name in "abc":
        assert scene.host(name).group.core.leader == "b"
    scene.heal()
    scene.work(STEADY_TICKS + LOOK_TICKS + 4)
    assert scene.leaders() == {"plain": "a"}
    clients.go_on(3)
    scene.finish()


def test_what_was_published_before_anybody_noticed_is_there_once_and_in_order() -> None:
    scene = Scene()
    publishers = {name: scene.publisher(name) for name in "abc"}
    scene.cut("a", "c")
    for _ in range(SOON_TICKS):
        for name, publisher in publishers.items():
            scene.publish(name, publisher)
        scene.work(1)
    scene.work(3)
    assert not any(publisher.waiting for publisher in publishers.values())
    for publisher in publishers.values():
        bodies = [body for body in scene.ledger.accepted if body in publisher.bodies]
        assert bodies == publisher.bodies[1:]
    scene.finish()


def test_many_groups_are_handed_over_a_few_at_a_time() -> None:
    more = ("few", "dead", "short", "full", "timed", "once", "single", "ranked")
    scene = Scene(more=more)
    assert set(scene.leaders().values()) == {"a"}
    scene.cut("a", "c")
    moved: list[int] = []
    for _ in range(SOON_TICKS + len(more)):
        before = scene.leaders()
        scene.work(1)
        after = scene.leaders()
        moved.append(sum(before[name] != after[name] for name in after))
    assert set(scene.leaders().values()) == {"b"}
    assert max(moved) == REPLICATION.handover_groups
    scene.finish()


def test_a_node_that_is_dead_moves_no_leader() -> None:
    scene = Scene(names="abcd", members="abcd")
    term = scene.host("a").group.core.term
    scene.crash(scene.nodes["d"])
    scene.work(LONG_TICKS)
    scene.start(scene.nodes["d"])
    # First d has links with the others.
    scene.network.connect("b", "d")
    scene.network.connect("c", "d")
    scene.work(REACH_TICKS - 2)
    scene.network.connect("a", "d")
    scene.work(LONG_TICKS)
    assert scene.leaders() == {"plain": "a"}
    assert scene.host("a").group.core.term == term
    scene.finish()


def test_a_link_that_breaks_for_a_moment_moves_no_leader() -> None:
    scene = Scene()
    term = scene.host("a").group.core.term
    for session in [each for each in scene.sessions_of("c") if "a" in each.ends]:
        scene.end_session(session)
    scene.work(REACH_TICKS - 2)
    scene.heal()
    scene.work(LONG_TICKS)
    assert scene.host("a").group.core.term == term
    scene.finish()


def test_a_link_that_flaps_moves_the_leader_once() -> None:
    scene = Scene()
    clients = Clients(scene)
    term = scene.host("a").group.core.term
    for _ in range(20):
        for session in [each for each in scene.sessions_of("c") if "a" in each.ends]:
            scene.end_session(session)
        clients.go_on(SOON_TICKS)
        scene.heal()
        clients.go_on(SOON_TICKS)
    assert scene.leaders() == {"plain": "b"}
    assert scene.host("b").group.core.term == term + 1
    scene.work(STEADY_TICKS + LOOK_TICKS + 4)
    assert scene.leaders() == {"plain": "a"}
    scene.finish()


def test_a_link_that_never_stands_for_long_moves_the_leader_though_it_is_soon_back() -> None:
    scene = Scene()
    term = scene.host("a").group.core.term
    for _ in range(4 * FLAPS):
        for session in [each for each in scene.sessions_of("c") if "a" in each.ends]:
            scene.end_session(session)
        scene.work(1)
        scene.heal()
        scene.work(2)
    assert scene.leaders() == {"plain": "b"}
    assert scene.host("b").group.core.term == term + 1
    scene.finish()


def test_a_group_that_comes_back_waits_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node whose links have all flapped prefers other nodes as leaders; these do not know why."""
    moves: list[tuple[str, str]] = []
    hand_over = handover.transfer

    def transfer(replicas: Replicas, group: Group, to: str) -> bool:
        begun = hand_over(replicas, group, to)
        moves.extend([(replicas.node, to)] * begun)
        return begun

    scene = Scene(names="abcde", members="abcde")
    monkeypatch.setattr(handover, "transfer", transfer)
    for _ in range(FLAPS):
        for session in scene.sessions_of("a"):
            scene.end_session(session)
        scene.work(1)
        scene.heal()
        scene.work(2)
    scene.cut("b", "c")
    scene.work(STEADY_TICKS)
    assert moves
    # Without a pause, each look of the maintenance would bring the lead back, and each tick would give it
    # away again.
    assert max(map(moves.count, moves)) <= 3
    scene.finish()


def test_the_receiver_is_the_one_that_reaches_everybody() -> None:
    """Only one of five nodes qualifies: the others are at the end of a dead link, too."""
    scene = Scene(names="abcde", members="abcde")
    scene.cut("a", "b")
    scene.cut("c", "e")
    scene.work(SOON_TICKS)
    assert scene.leaders() == {"plain": "d"}
    Clients(scene).go_on(5)
    scene.finish()


def test_where_nobody_reaches_everybody_the_leader_stays() -> None:
    scene = Scene(names="abcde", members="abcde")
    term = scene.host("a").group.core.term
    # A ring: each node reaches two of the others.
    for one, two in ("ac", "ce", "eb", "bd", "da"):
        scene.cut(one, two)
    scene.work(LONG_TICKS)
    assert scene.leaders() == {"plain": "a"}
    assert scene.host("a").group.core.term == term
    publisher = scene.publisher("b")
    scene.publish("b", publisher)
    scene.work(3)
    assert not publisher.waiting
    scene.finish()


def test_a_leader_without_a_majority_is_replaced_by_election() -> None:
    scene = Scene(names="abcde", members="abcde")
    for other in "cde":
        scene.cut("a", other)
    scene.work(LONG_TICKS)
    assert scene.leaders()["plain"] == "b"
    Clients(scene).go_on(5)
    scene.finish()


def test_a_receiver_that_does_not_take_over_is_not_asked_all_the_time() -> None:
    """Proposals wait while a handover is tried, so clients of the leader would wait like those of the other
    end.
    """
    scene = Scene()
    publisher = scene.publisher("a")
    asked: list[int] = []

    def lose(sender: str, to: str, frame: bytes) -> None:
        if frame[0] == frames.RAFT and decode_message(frame[1:])[1].kind == TIMEOUT_NOW:
            asked.append(scene.nodes["a"].ticks)
            scene.nodes["a"].sessions[to].streams[to].pop()

    scene.nodes["a"].sent = lose
    scene.cut("a", "c")
    for _ in range(4 * LONG_TICKS // RAFT.election_ticks):
        scene.publish("a", publisher)
        scene.work(RAFT.election_ticks + 1)
        assert not publisher.waiting
    attempts = [at for before, at in zip([0, *asked], asked, strict=False) if at - before > 1]
    pauses = [after - before for before, after in zip(attempts, attempts[1:], strict=False)]
    assert len(attempts) > 3
    assert pauses == sorted(pauses)
    assert pauses[-1] > STEADY_TICKS
    scene.nodes["a"].sent = lambda sender, to, frame: None
    scene.work(2 * STEADY_TICKS)
    assert scene.leaders() == {"plain": "b"}
    scene.finish()


def test_a_node_of_the_version_before_is_not_asked_and_not_told() -> None:
    scene = Scene(begun=False)
    scene.nodes["b"].features = ()
    scene.mend()
    scene.settle()
    scene.elect("a")
    scene.settle()
    scene.cut("a", "c")
    scene.work(LONG_TICKS)
    assert scene.leaders() == {"plain": "a"}
    scene.finish()
