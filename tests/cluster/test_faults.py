"""Load through all three nodes, with one fault each; all promises must hold. The longer list is `make
chaos`.
"""

from __future__ import annotations

import contextlib

import pytest
from pamqp import commands

from amqp_server.build import BUILD
from tests.cluster import faults
from tests.cluster.faults import FAULTS
from tests.cluster.mqd import PURE, MqdCluster
from tests.cluster.nodes import Cluster, wait_for
from tests.cluster.scene import CONFIRMED_MIN, Outcome, Scene, run
from tests.reliability.client import Client

#: Shorter than in the long version: what matters is that the others go on meanwhile.
HOLD_S = 1.5
ABSENT_S = 4.0
LINK_S = 9.0
LINK_FLAPS = 8
#: Much less than LINK_S, and much more than nodes need: machines are slow at times.
LINK_SILENT_MAX_S = 6.0
CLOCK_S = 8.0
#: These run with streams, too, which takes longer; in the long version all faults do.
STREAMED = ("kill leader", "partition leader")
CLOCK_SILENT_MAX_S = 2.5


def judged(cluster: Cluster, name: str) -> Outcome:
    outcome = run(cluster, name, FAULTS[name], seed=1, streams=name in STREAMED)
    assert outcome.failures == []
    assert not any(outcome.counts.values()), outcome
    assert not any(outcome.log_counts.values()), outcome
    assert outcome.confirmed > CONFIRMED_MIN, "there was hardly any load"
    return outcome


@pytest.fixture(autouse=True)
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "HOLD_S", HOLD_S)
    monkeypatch.setattr(faults, "ABSENT_S", ABSENT_S)
    monkeypatch.setattr(faults, "LINK_S", LINK_S)
    monkeypatch.setattr(faults, "CLOCK_S", CLOCK_S)
    monkeypatch.setattr(faults, "LINK_FLAPS", LINK_FLAPS)


def purge(scene: Scene) -> None:
    """This is no fault of the broker, which does what it is asked to; the judge must see that messages are
    gone.
    """
    scene.strike()
    scene.load.pause(True)
    wait_for("consumers are gone", lambda: not any(c.attached.is_set() for c in scene.load.consumers))
    # No consumer holds a message, so the purge takes all messages that are confirmed and unseen.
    wait_for("nothing is unacked", lambda: scene.cluster.depth(scene.queues[0])[1] == 0)
    wait_for("a backlog", lambda: scene.ledgers[0].waiting() >= 50)
    with contextlib.closing(Client(scene.cluster.port(scene.cluster.names[0]))) as client:
        client.call(commands.Queue.Purge(queue=scene.queues[0]), commands.Queue.PurgeOk)
    scene.heal()
    scene.load.pause(False)


@pytest.mark.long
def test_judge_sees_what_is_gone(cluster: Cluster) -> None:
    outcome = run(cluster, "purge", purge, seed=1, streams=False)
    assert outcome.counts["lost"] >= 50
    assert not outcome.held
    assert not any(count for rule, count in outcome.counts.items() if rule != "lost")


def test_kill_leader_then_follower(cluster: Cluster) -> None:
    judged(cluster, "kill leader")
    judged(cluster, "kill follower")


def test_kill_all(cluster: Cluster) -> None:
    judged(cluster, "kill all")


@pytest.mark.long
def test_freeze_leader(cluster: Cluster) -> None:
    """The node is frozen for longer than the others wait: they go on, and it finds its place again."""
    judged(cluster, "freeze leader")


def test_partition_leader(cluster: Cluster) -> None:
    judged(cluster, "partition leader")


def link_judged(cluster: Cluster, name: str) -> None:
    """Clients of all nodes go on: they publish, get messages, declare, and their nodes are ready."""
    outcome = judged(cluster, name)
    assert outcome.silent_s is not None and outcome.silent_s < LINK_SILENT_MAX_S, outcome
    assert outcome.starved_s is not None and outcome.starved_s < LINK_SILENT_MAX_S, outcome
    questions = outcome.questions
    assert questions is not None
    assert questions.longest_declare_s < LINK_SILENT_MAX_S
    assert questions.differed_s < LINK_SILENT_MAX_S


def test_cut_link(cluster: Cluster) -> None:
    link_judged(cluster, "link cut")


@pytest.mark.long
def test_link_cut_in_one_direction(cluster: Cluster) -> None:
    link_judged(cluster, "link cut from leader")
    link_judged(cluster, "link cut to leader")


@pytest.mark.long
def test_flapping_link(cluster: Cluster) -> None:
    link_judged(cluster, "flapping link")


def test_flipped_bits_on_two_nodes(cluster: Cluster) -> None:
    judged(cluster, "flipped bits on two nodes")


def clock_judged(cluster: Cluster, name: str) -> None:
    outcome = judged(cluster, name)
    assert outcome.silent_s is not None and outcome.silent_s < CLOCK_SILENT_MAX_S, outcome
    assert outcome.starved_s is not None and outcome.starved_s < CLOCK_SILENT_MAX_S, outcome


@pytest.mark.long
def test_clock_of_the_leader_is_set(cluster: Cluster) -> None:
    clock_judged(cluster, "clock back")
    clock_judged(cluster, "clock forward")


def test_wiped_while_the_clock_is_behind(cluster: Cluster) -> None:
    judged(cluster, "wiped data, clock back")


@pytest.mark.long
def test_exception_in_apply() -> None:
    if BUILD == "compiled":
        pytest.skip("methods of a compiled class cannot be replaced")
    with MqdCluster(program=PURE) as cluster:
        judged(cluster, "exception in apply, leader")
        judged(cluster, "exception in apply, each time")


def test_moving_queues(cluster: Cluster) -> None:
    judged(cluster, "moving queues")


def test_rolling_restart(cluster: Cluster) -> None:
    judged(cluster, "rolling restart")
