"""Which node leads, which votes for which, and what a vote rests on."""

from __future__ import annotations

import pytest

from quorum_queue.raft.errors import NotLeader
from quorum_queue.raft.messages import (
    APPEND,
    PRE_VOTE,
    PRE_VOTE_ANSWER,
    RESIGN,
    VOTE,
    VOTE_ANSWER,
    Entry,
    Message,
)
from quorum_queue.raft.options import Options
from quorum_queue.raft.roles import CANDIDATE, FOLLOWER, LEADER, PRE_CANDIDATE
from quorum_queue.raft.timeouts import election_timeout, lost_timeout
from tests.quorum_queue.raft.group import OPTIONS, Group


def answers(group: Group, kind: int, sender: str) -> list[bool]:
    return [not message.reject for message in group.sent if message.kind == kind and message.sender == sender]


def test_a_group_that_starts_elects_one_leader_and_becomes_quiet() -> None:
    group = Group()
    group.tick_all(25)
    (leader,) = group.leaders()
    assert [group[name].leader for name in "abc"] == [leader] * 3
    assert all(group[name].quiet for name in "abc")
    group.sent.clear()
    group.tick_all(50)
    assert group.sent == []


def test_who_is_to_lead_does_not_wait_for_an_election_timeout() -> None:
    waiting, group = Group(), Group()
    # The links come one after the other.
    group["b"].hurry()
    group["b"].hurry()
    for each in (waiting, group):
        each.tick_all(2)
    assert (waiting.leaders(), group.leaders()) == ([], ["b"])


def test_a_leader_that_is_known_is_not_hurried_away() -> None:
    group = Group()
    group.elect("a")
    for name in "abc":
        group[name].hurry()
    group.tick_all(3)
    assert group.leaders() == ["a"]
    assert [group[name].term for name in "abc"] == [1, 1, 1]


def test_a_lost_pre_vote_is_asked_for_again_at_the_next_link() -> None:
    group = Group()
    group.isolate("a")
    group["a"].hurry()
    group.tick("a", 2)
    group.pump()
    assert group["a"].role == PRE_CANDIDATE
    group.heal()
    group["a"].hurry()
    group.tick_all(2)
    assert group.leaders() == ["a"]


def test_a_node_by_itself_leads_when_its_vote_is_durable() -> None:
    group = Group("a")
    group["a"].campaign()
    group.pump()
    assert group["a"].role == CANDIDATE
    group.settle()
    assert group.leaders() == ["a"]
    assert group["a"].commit == 1


def test_a_pre_vote_changes_no_term() -> None:
    group = Group()
    group.isolate("a")
    for _ in range(100):
        group.tick("a")
        group.pump()
    assert (group["a"].role, group["a"].term) == (PRE_CANDIDATE, 0)


@pytest.mark.parametrize("kind", [PRE_VOTE, VOTE])
def test_a_candidate_whose_log_is_behind_gets_no_vote(kind: int) -> None:
    group = Group()
    group.elect("a")
    group.propose("a")
    group.crash("a")
    group.sent.clear()
    voter = group.nodes["b"]
    for index, log_term in ((1, 1), (0, 0)):
        voter.receive(Message(kind, "c", "b", 2 + index, index, log_term), None)
        group.settle(synced="b")
    assert answers(group, kind + 1, "b") == [False, False]
    voter.receive(Message(kind, "c", "b", 9, 2, 1), None)
    group.settle(synced="b")
    assert answers(group, kind + 1, "b")[-1]


def test_a_longer_log_of_an_older_term_is_behind() -> None:
    group = Group()
    group.elect("a")
    group.crash("a")
    group.elect("b")
    voter = group.nodes["c"]
    group.crash("b")
    group.sent.clear()
    voter.receive(Message(VOTE, "a", "c", 9, 50, 1), None)
    group.settle(synced="c")
    assert answers(group, VOTE_ANSWER, "c") == [False]


def test_a_follower_in_contact_with_its_leader_takes_part_in_no_election() -> None:
    group = Group()
    group.elect("a")
    group.sent.clear()
    for kind in (PRE_VOTE, VOTE):
        group.nodes["b"].receive(Message(kind, "c", "b", 5, 9, 9), None)
    group.settle()
    assert answers(group, PRE_VOTE_ANSWER, "b") == [False]
    assert answers(group, VOTE_ANSWER, "b") == []
    assert group["b"].term == 1


def test_a_vote_is_sent_only_when_it_is_durable_and_not_given_twice() -> None:
    group = Group()
    voter = group.nodes["b"]
    voter.receive(Message(VOTE, "a", "b", 1), None)
    voter.receive(Message(VOTE, "c", "b", 1), None)
    group.pump()
    assert answers(group, VOTE_ANSWER, "b") == []
    group.settle(synced="b")
    assert answers(group, VOTE_ANSWER, "b") == [True, False]


def test_a_vote_that_reached_the_disk_is_remembered_after_a_restart() -> None:
    """The voter stops after its vote is durable and before it is sent: only its disk knows of the vote."""
    group = Group()
    group.nodes["b"].receive(Message(VOTE, "a", "b", 1), None)
    group.pump()
    group.crash("b", writes_done=1)
    group.restart("b")
    group.sent.clear()
    group.nodes["b"].receive(Message(VOTE, "c", "b", 1), None)
    group.nodes["b"].receive(Message(VOTE, "a", "b", 1), None)
    group.settle()
    assert answers(group, VOTE_ANSWER, "b") == [False, True]


def test_a_vote_that_never_reached_the_disk_was_never_sent() -> None:
    group = Group()
    group.nodes["b"].receive(Message(VOTE, "a", "b", 1), None)
    group.pump()
    group.crash("b")
    assert answers(group, VOTE_ANSWER, "b") == []
    group.restart("b")
    group.nodes["b"].receive(Message(VOTE, "c", "b", 1), None)
    group.settle(synced="b")
    assert answers(group, VOTE_ANSWER, "b") == [True]


def test_an_answer_waits_for_a_term_that_is_still_being_written() -> None:
    group = Group()
    node = group.nodes["b"]
    node.receive(Message(APPEND, "a", "b", 3), None)
    group.pump()
    node.receive(Message(APPEND, "a", "b", 3), None)
    group.pump()
    assert group.sent == []
    group.settle(synced="b")
    assert [message.term for message in group.sent] == [3, 3]


def test_a_candidate_that_restarts_does_not_stand_in_the_same_term_again() -> None:
    group = Group()
    group["a"].campaign()
    group.settle(synced="bc")
    assert group["a"].term == 1
    group.nodes["a"].sync_all()
    group.crash("a")
    group.restart("a")
    assert (group["a"].term, group["a"].vote) == (1, "a")
    group.elect("a")
    assert group["a"].term == 2


def test_a_candidate_hears_of_a_leader_in_its_term() -> None:
    group = Group()
    group["b"].campaign()
    group.settle(synced="")
    group["b"].hard_written(group["b"].hard)
    assert group["b"].role == CANDIDATE
    group.nodes["b"].receive(Message(APPEND, "a", "b", 1, entries=(Entry(1, 1, 2, b""),)), None)
    assert (group["b"].role, group["b"].leader) == (FOLLOWER, "a")


def test_when_the_leader_dies_one_follower_goes_first_and_soon() -> None:
    for number in range(20):
        for dead in range(3):
            voters = ("a", "b", "c")
            survivors = [name for name in voters if name != voters[dead]]
            times = [lost_timeout(OPTIONS, name, voters, voters[dead], number, 4) for name in survivors]
            assert sorted(times) == [0, 3]
    five = tuple("abcde")
    assert sorted(lost_timeout(OPTIONS, name, five, "c", 9, 4) for name in "abde") == [0, 1, 2, 3]


def test_timeouts_lie_between_one_and_two_and_differ() -> None:
    voters = ("a", "b", "c")
    first: dict[str, int] = {}
    for group in range(200):
        times = {name: election_timeout(OPTIONS, name, voters, group, 1, 0) for name in voters}
        assert all(10 <= ticks < 20 for ticks in times.values())
        assert len(set(times.values())) == 3
        winner = min(times, key=lambda name: times[name])
        first[winner] = first.get(winner, 0) + 1
    assert min(first[name] for name in voters) > 40


def test_a_dead_leader_is_replaced_within_few_ticks() -> None:
    group = Group()
    group.elect("a")
    group.propose("a", b"kept")
    group.crash("a")
    group.tick_all(2)
    (leader,) = group.leaders()
    group.propose(leader, b"new")
    group.restart("a")
    group.settle()
    assert group.applied("a") == group.applied(leader) == [b"kept", b"new"]
    assert group["a"].leader == leader


def test_a_leader_without_a_quorum_steps_down_and_says_so() -> None:
    group = Group()
    group.elect("a")
    group.cut = [("b", "a"), ("c", "a")]
    group.sent.clear()
    group.tick("a", OPTIONS.election_ticks)
    assert group["a"].role == FOLLOWER
    group.pump()
    assert [(message.kind, message.to) for message in group.sent] == [(RESIGN, "b"), (RESIGN, "c")]
    group.deliver()
    assert group["b"].leader == group["c"].leader == ""
    with pytest.raises(NotLeader):
        group["a"].propose(b"late")


def test_a_leader_that_is_not_heard_is_replaced_and_learns_of_it() -> None:
    """Nothing from a arrives, though a hears the others."""
    group = Group()
    group.elect("a")
    group.cut = [("a", "b"), ("a", "c")]
    for name in "bc":
        group[name].lost_contact("a")
    group.tick_all(5)
    (leader,) = [name for name in group.leaders() if name != "a"]
    group.propose(leader, b"new")
    assert group["a"].role == FOLLOWER
    assert group["a"].leader == leader
    # Its own answers don't arrive, so it can't be told that the entry is committed.
    assert [group.applied(name) for name in "abc"] == [[], [b"new"], [b"new"]]
    group.heal()
    group.settle()
    assert group.applied("a") == [b"new"]


def test_a_follower_that_hears_nobody_disturbs_nobody() -> None:
    group = Group()
    group.elect("a")
    group.cut = [("a", "c"), ("b", "c")]
    group["c"].lost_contact("a")
    group.tick_all(40)
    assert group.leaders() == ["a"]
    assert group["a"].term == 1
    group.cut.clear()
    group["a"].in_contact("c")
    group["c"].in_contact("a")
    group.settle()
    assert group["c"].leader == "a"
    assert group["c"].term == 1


def test_a_link_that_comes_back_tells_who_leads_without_an_election() -> None:
    group = Group()
    group.elect("a")
    group.disconnect("a", "b")
    assert not group["b"].quiet
    group.connect("a", "b")
    group.settle()
    assert group["b"].leader == "a"
    assert all(group[name].quiet for name in "abc")
    assert group["a"].term == 1


def test_who_asks_for_votes_does_not_lead() -> None:
    """A resignation may be lost with a session; then the old leader's own candidacy shows that it does not
    lead.
    """
    group = Group()
    group.elect("a")
    group["a"].step_down()
    group.pump()
    group.lose()
    assert group["b"].leader == "a"
    group["a"].campaign()
    group.settle()
    assert group.leaders() == ["a"]
    assert group["a"].term == 2


def test_a_leader_that_steps_down_lets_others_go_first() -> None:
    group = Group()
    group.elect("a")
    group["a"].step_down()
    group.settle()
    group.tick_all(6)
    (leader,) = group.leaders()
    assert leader != "a"


def test_a_deposed_leader_is_told_by_who_followed_it() -> None:
    """b was a follower of a, and now follows c; c can't reach a."""
    group = Group()
    group.elect("a")
    group.cut = [("a", "c"), ("c", "a")]
    group.nodes["b"].receive(Message(APPEND, "c", "b", 2, 1, 1), None)
    assert group["a"].role == LEADER
    group.settle()
    assert (group["a"].role, group["a"].term, group["a"].leader) == (FOLLOWER, 2, "")


def test_a_node_whose_disk_does_not_answer_raises_no_terms() -> None:
    group = Group()
    group["a"].campaign()
    group.settle(synced="bc")
    for _ in range(100):
        group.tick("a")
        group.settle(synced="bc")
    assert group["a"].term == 1


def test_outdated_messages_are_answered_with_the_term() -> None:
    group = Group()
    group.elect("a")
    group.crash("a")
    group.tick_all(20)
    (leader,) = group.leaders()
    other = "c" if leader == "b" else "b"
    term = group[leader].term
    group.sent.clear()
    for kind in (APPEND, PRE_VOTE, VOTE):
        group.nodes[other].receive(Message(kind, "a", other, 1), None)
    group.settle()
    assert [(message.term, message.reject) for message in group.sent] == [(term, True)] * 3


def test_the_smallest_options_elect_a_leader() -> None:
    options = Options(election_ticks=1, lost_ticks_jitter=0)
    for name in "abc":
        assert 1 <= election_timeout(options, name, ("a", "b", "c"), 1, 1, 1) <= 4
    group = Group(options=options)
    group.tick_all(10)
    assert len(group.leaders()) == 1
    assert LEADER in [group[name].role for name in "abc"]
