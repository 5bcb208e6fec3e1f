"""Queues without a leader that an operator has to help: entries that any member can still read must survive
that.
"""

from __future__ import annotations

import pytest

from quorum_queue.cluster.frames import LOST_HERE
from tests.quorum_queue.cluster.scene import Scene, sync
from tests.quorum_queue.cluster.test_holes import (
    ROUND_TICKS,
    accept,
    begin,
    bodies,
    check_alike,
    close_books,
    flip,
    is_said,
    log_of,
    restart,
)

pytestmark = pytest.mark.usefixtures("quiet")


def elections_failed(scene: Scene, names: str) -> None:
    """As if elections had failed before the start: these logs may end with a later term."""
    for name in names:
        scene.host(name).group.core.log.term_bound += 10


def whole(scene: Scene) -> None:
    """Check that the queue takes messages again, and is the same on all members."""
    scene.settle()
    publisher = scene.publisher("c")
    scene.publish("c", publisher)
    scene.work(2)
    assert not publisher.waiting
    scene.settle()
    check_alike(scene)


# -- two members lost the end of their logs ------------------------------------------------------------------


@pytest.mark.parametrize("node", "ab")
def test_two_members_that_lost_the_end_of_their_logs_follow_the_third_when_an_operator_says_so(
    node: str,
) -> None:
    scene, _ = begin()
    index = log_of(scene)[-1]
    restart(scene, {"a": [index], "b": [index]})
    elections_failed(scene, "ab")
    scene.heal()
    scene.work(5 * ROUND_TICKS)
    assert not scene.leaders()
    for name in "ab":
        assert scene.nodes[name].replicas.lost_entries.in_doubt(scene.group_id) == [index]
    assert accept(scene, node) == 1
    scene.settle()
    assert scene.leaders() == {"plain": "c"}
    # The third member had it.
    assert bodies(scene) == [b"1", b"2", b"3"]
    scene.finish()


def test_no_member_yields_before_all_others_have_told_what_they_can_read() -> None:
    scene, _ = begin()
    index = log_of(scene)[-1]
    restart(scene, {"a": [index], "b": [index]}, names="ab")
    elections_failed(scene, "ab")
    scene.heal()
    scene.work(5 * ROUND_TICKS)
    assert accept(scene, "a") == 0
    assert scene.host("a").group.core.last_index == index
    scene.start(scene.nodes["c"])
    scene.heal()
    scene.work(5 * ROUND_TICKS)
    assert accept(scene, "a") == 1
    scene.settle()
    assert bodies(scene) == [b"1", b"2", b"3"]
    scene.finish()


@pytest.mark.parametrize("node", "ab")
def test_what_the_third_member_can_read_survives_though_what_followed_is_lost(node: str) -> None:
    """The lost entries begin a term, so the entries before them do not show the term of these."""
    scene, publisher = begin()
    scene.elect("b")
    scene.elect("a")
    first = scene.host("a").group.core.last_index
    scene.publish("a", publisher)
    scene.work()
    scene.isolate("c")
    scene.publish("a", publisher)
    scene.work()
    last = scene.host("a").group.core.last_index
    assert scene.host("c").group.core.last_index == last - 1
    tail = list(range(first, last + 1))
    scene.network.blocked.clear()
    restart(scene, {"a": tail, "b": tail})
    close_books(scene)
    scene.heal()
    scene.work(5 * ROUND_TICKS)
    accept(scene, node)
    whole(scene)
    assert bodies(scene) == [b"1", b"2", b"3", b"4", b"1"]


def test_an_end_that_nobody_can_read_keeps_its_rank_in_elections() -> None:
    """Entries before this end were acknowledged no later than in its term: an older log must not replace
    them.
    """
    scene, _ = begin()
    scene.elect("b")
    scene.elect("a")
    last = scene.host("a").group.core.last_index
    assert scene.host("a").group.core.log.term_at(last - 1) < scene.host("a").group.core.log.term_at(last)
    restart(scene, dict.fromkeys("abc", [last]))
    scene.heal()
    scene.work(5 * ROUND_TICKS)
    assert is_said(scene) == [last]
    node = scene.nodes["a"]
    rank = scene.host("a").group.core.log.last_term
    # The others have not heard of it yet.
    scene.isolate("a")
    for peer in "bc":
        node.replicas.lost_entries._waiting[scene.group_id, last].said[peer] = LOST_HERE
    assert node.replicas.lost_entries.pass_over(scene.group_id).entries == 1
    node.end_turn()
    sync(node)
    for _ in range(2):
        log = scene.host("a").group.core.log
        assert (log.lost, log.last_index, log.last_term) == ((), last, rank)
        assert log.term_at(last) < rank
        scene.crash(node)
        scene.start(node)


# -- members without a memory --------------------------------------------------------------------------------


def forget_memories(scene: Scene, names: str) -> None:
    """These disks have lost all data."""
    for name in names:
        scene.crash(scene.nodes[name])
        scene.nodes[name].lose_disk()
        scene.start(scene.nodes[name])
    scene.heal()


def test_two_members_without_a_memory_are_filled_by_the_third_when_an_operator_says_so() -> None:
    scene, _ = begin()
    forget_memories(scene, "bc")
    close_books(scene)
    scene.work(5 * ROUND_TICKS)
    assert all(scene.host(name).group.core.amnesiac for name in "bc")
    given_up = scene.nodes["a"].replicas.lost_entries.accept(scene.group_id)
    assert given_up.members
    scene.nodes["a"].end_turn()
    whole(scene)
    assert sorted(scene.host("a").group.core.members.voters) == ["a", "b", "c"]
    assert bodies(scene, "c") == [b"1", b"2", b"3", b"1"]


def test_they_are_filled_though_the_third_has_started_again() -> None:
    scene, _ = begin()
    scene.crash(scene.nodes["a"])
    forget_memories(scene, "bc")
    scene.start(scene.nodes["a"])
    close_books(scene)
    scene.heal()
    scene.work(5 * ROUND_TICKS)
    assert not scene.leaders()
    # Neither of the two nodes knows anything.
    assert accept(scene, "b") == 0
    scene.nodes["a"].replicas.lost_entries.accept(scene.group_id)
    scene.nodes["a"].end_turn()
    whole(scene)
    assert bodies(scene, "b") == [b"1", b"2", b"3", b"1"]


@pytest.mark.parametrize("applied", [True, False])
def test_an_entry_that_all_have_lost_while_two_members_are_filled(applied: bool) -> None:
    """The command that gives the entry up needs a majority."""
    scene, _ = begin(4)
    index = log_of(scene)[-3]
    if applied:
        forget_memories(scene, "bc")
        flip(scene, {"a": [index]})
        scene.nodes["a"].replicas.bodies.drop_group(scene.group_id)
        scene.consume("a")
    else:
        restart(scene, {"a": [index]}, names="a")
        forget_memories(scene, "bc")
    close_books(scene)
    scene.heal()
    scene.work(6 * ROUND_TICKS)
    assert is_said(scene, "a") == [index]
    assert accept(scene, "a") == 1
    scene.work(6 * ROUND_TICKS)
    whole(scene)
    if not applied:
        assert bodies(scene, "b") == [b"1", b"3", b"4", b"1"]


def test_a_member_that_forgot_only_its_vote_is_not_overruled_by_a_shorter_log() -> None:
    """This member may have entries that the third one lacks."""
    scene, publisher = begin()
    scene.isolate("a")
    scene.elect("b")
    scene.publish("b", scene.publisher("b"))
    scene.work()
    scene.network.blocked.clear()
    for name in "abc":
        scene.crash(scene.nodes[name])
    for name in "bc":
        # A start that cannot read its vote notes this.
        stored = scene.nodes[name].environment.groups.groups[scene.group_id]
        assert stored.hard is not None
        stored.hard = (stored.hard[0], "?5")
    for name in "abc":
        scene.start(scene.nodes[name])
    scene.heal()
    last = scene.host("b").group.core.last_index
    scene.work(5 * ROUND_TICKS)
    assert all(scene.host(name).group.core.amnesiac for name in "bc")
    assert not scene.nodes["a"].replicas.lost_entries.accept(scene.group_id)
    scene.nodes["a"].end_turn()
    scene.work(5 * ROUND_TICKS)
    assert not scene.leaders()
    assert scene.host("b").group.core.last_index == last
    assert publisher.bodies
