"""Reads that a quorum confirms."""

from __future__ import annotations

from quorum_queue.raft.roles import LEADER
from tests.quorum_queue.raft.group import OPTIONS, Group


def test_a_read_is_confirmed_by_a_quorum() -> None:
    group = Group()
    group.elect("a")
    group.propose("a")
    group["a"].read_index(7)
    group.pump()
    assert group.nodes["a"].reads == []
    group.settle()
    assert group.nodes["a"].reads == [(7, 2)]


def test_reads_of_one_turn_share_a_round() -> None:
    group = Group()
    group.elect("a")
    group.sent.clear()
    for context in range(5):
        group["a"].read_index(context)
    group.settle()
    assert len(group.sent) == 4
    assert group.nodes["a"].reads == [(context, 1) for context in range(5)]


def test_a_single_voter_reads_at_once() -> None:
    group = Group("a")
    group.elect("a")
    group["a"].read_index(7)
    group.pump()
    assert group.nodes["a"].reads == [(7, 1)]


def test_reads_go_to_the_leader() -> None:
    group = Group()
    group.elect("a")
    group["b"].read_index(7)
    group.pump()
    assert group.nodes["b"].reads == [(7, -1)]


def test_a_deposed_leader_confirms_no_reads() -> None:
    group = Group()
    group.elect("a")
    group.isolate("a")
    group.settle()
    group["a"].read_index(7)
    group["b"].campaign()
    group.settle()
    assert group["b"].role == LEADER
    group.propose("b")
    assert group.nodes["a"].reads == []
    group.heal()
    group.settle()
    assert group.nodes["a"].reads == [(7, -1)]


def test_answers_from_before_a_read_do_not_confirm_it() -> None:
    group = Group()
    group.elect("a")
    group["a"].propose(b"x")
    group.pump()
    group.deliver()
    for name in "bc":
        group.nodes[name].sync_all()
    group["a"].read_index(7)
    group.nodes["a"].pump()
    group.deliver(lambda message: message.to == "a")
    assert group.nodes["a"].reads == []
    group.settle()
    assert [context for context, _ in group.nodes["a"].reads] == [7]


def test_a_new_leader_reads_no_earlier_than_its_first_entry() -> None:
    group = Group()
    group.elect("a")
    group.propose("a", b"x")
    group.crash("a")
    group.elect_without("b", lambda message: bool(message.entries))
    assert group["b"].commit <= 2
    group["b"].read_index(7)
    group.settle()
    assert group.nodes["b"].reads == [(7, 3)]


def test_a_read_whose_messages_were_lost_is_tried_again() -> None:
    group = Group()
    group.elect("a")
    group["a"].read_index(7)
    group.pump()
    group.lose()
    assert not group["a"].quiet
    group.tick_all(OPTIONS.election_ticks)
    assert group.nodes["a"].reads == [(7, 1)]
    assert group["a"].quiet
