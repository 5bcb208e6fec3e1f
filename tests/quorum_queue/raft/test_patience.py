"""Followers on whose node no client waits learn of the commit with the next entries, or at a tick."""

from __future__ import annotations

from quorum_queue.raft.messages import COMMIT
from tests.quorum_queue.raft.group import Group


def a_group_with_a_patient_member() -> Group:
    """c has said in an answer that it is patient."""
    group = Group()
    group["c"].patient = True
    group.elect("a")
    group.tick_all(2)
    group.propose("a", b"first")
    group.sent.clear()
    return group


def told(group: Group, name: str) -> list[int]:
    return [message.commit for message in group.sent if message.kind == COMMIT and message.to == name]


def test_a_patient_follower_hears_of_the_commit_with_the_next_entry() -> None:
    group = a_group_with_a_patient_member()
    second = group.propose("a", b"second")
    assert told(group, "b") == [second]
    assert told(group, "c") == []
    assert group["c"].commit == second - 1
    group.propose("a", b"third")
    assert group["c"].commit == second
    assert told(group, "c") == []


def test_a_patient_follower_hears_of_the_commit_at_the_next_tick() -> None:
    group = a_group_with_a_patient_member()
    index = group.propose("a", b"second")
    assert group["c"].commit < index
    assert not group["a"].quiet
    group.tick("a")
    group.settle()
    assert told(group, "c") == [index]
    assert group["c"].commit == index
    assert group["a"].quiet
    group.tick_all(5)
    assert told(group, "c") == [index]


def test_patience_ends_with_the_answer_that_says_so() -> None:
    group = a_group_with_a_patient_member()
    group["c"].patient = False
    index = group.propose("a", b"second")
    assert told(group, "c") == [index]
    assert group["c"].commit == index


def test_an_entry_that_a_patient_follower_alone_has_acknowledged_is_committed_at_once() -> None:
    group = a_group_with_a_patient_member()
    group.isolate("b")
    index = group.propose("a", b"second")
    assert group["a"].commit == index
    assert group["c"].commit < index
    group.tick("a")
    group.settle()
    assert group["c"].commit == index
