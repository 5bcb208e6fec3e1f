"""Members that come and go, and leaders that hand over the lead."""

from __future__ import annotations

import pytest

from quorum_queue.raft.errors import MembershipRefused, NotLeader, TransferInProgress
from quorum_queue.raft.members import Members
from quorum_queue.raft.messages import (
    PRE_VOTE,
    PRE_VOTE_ANSWER,
    TIMEOUT_NOW,
    VOTE,
    Message,
)
from quorum_queue.raft.roles import FOLLOWER, LEADER
from tests.quorum_queue.raft.group import OPTIONS, Group, leading, members

# -- changes -------------------------------------------------------------------------------------------------


def test_a_learner_receives_everything_and_counts_for_nothing() -> None:
    group = Group("abc", learners="d")
    group.elect("a")
    group.propose("a", b"x")
    assert group.applied("d") == [b"x"]
    group.crash("b")
    group.crash("c")
    group["a"].propose(b"y")
    group.settle()
    assert group["a"].commit == 2
    assert not any(message.to == "d" for message in group.sent if message.kind in (PRE_VOTE, VOTE))
    group.tick_all(OPTIONS.election_ticks + 1)
    assert group.leaders() == []


def test_a_learner_does_not_campaign_and_is_quiet() -> None:
    group = Group("abc", learners="d")
    group.tick("d", 100)
    assert (group["d"].role, group["d"].quiet) == (FOLLOWER, True)


def test_an_answer_of_a_learner_is_no_vote() -> None:
    group = Group("abc", learners="d")
    group["a"].campaign()
    group.pump()
    group["a"].step(Message(PRE_VOTE_ANSWER, "d", "a", 1))
    group.pump()
    assert group["a"].term == 0


def test_a_learner_becomes_a_voter() -> None:
    group = Group("abc", others="d")
    group.elect("a")
    for number in range(5):
        group.propose("a", b"%d" % number)
    group["a"].propose_members(members("abc", "d"))
    group.settle()
    assert group.applied("d") == [b"0", b"1", b"2", b"3", b"4"]
    assert group["a"].caught_up("d")
    group["a"].propose_members(members("abcd"))
    group.settle()
    assert [group[name].members.voters for name in "abcd"] == [tuple("abcd")] * 4
    # A majority of four is three.
    group.crash("b")
    group.propose("a", b"three")
    assert group.applied("d")[-1] == b"three"
    group.crash("c")
    index = group["a"].propose(b"two")
    group.settle()
    assert group["a"].commit < index


def test_a_voter_that_is_left_out_by_an_entry_that_only_it_has_gets_it_committed() -> None:
    """The other one cannot win against its log, which is longer."""
    group = Group("ab")
    group.elect("a")
    group.propose("a", b"x")
    group["a"].propose_members(members("a"))
    group.settle(synced="b")
    group.crash("a")
    group.restart("a")
    assert (group["a"].last_index + 1, group["b"].members.voters) == (group["b"].last_index, ("a",))
    group.tick_all(12 * OPTIONS.election_ticks)
    assert group.leaders() == ["a"]
    assert group["a"].members.voters == group["b"].members.voters == ("a",)
    group.propose("a", b"y")
    assert group.applied("a") == [b"x", b"y"]
    # It is no voter any more, and leaves the others alone.
    term = group["a"].term
    group.disconnect("a", "b")
    group.tick_all(12 * OPTIONS.election_ticks)
    assert (group["b"].role, group["a"].term) == (FOLLOWER, term)


def test_members_change_one_by_one() -> None:
    group = Group("abc", others="de")
    group.elect("a")
    with pytest.raises(MembershipRefused, match="one voter"):
        group["a"].propose_members(members("abcde"))
    with pytest.raises(MembershipRefused, match="one voter"):
        group["a"].propose_members(members("abd"))
    group["a"].propose_members(members("abcd"))
    with pytest.raises(MembershipRefused, match="not committed"):
        group["a"].propose_members(members("abcde"))
    group.settle()
    group["a"].propose_members(members("abcde"))
    group.settle()
    assert group["e"].members.voters == tuple("abcde")


def test_several_learners_may_come_at_once() -> None:
    group = Group("a", others="bc")
    group.elect("a")
    group["a"].propose_members(members("a", "bc"))
    group.settle()
    assert [group[name].members for name in "abc"] == [members("a", "bc")] * 3


def test_members_do_not_change_before_the_leader_has_committed_in_its_term() -> None:
    """Otherwise two leaders in turn could each make a change that the other does not know."""
    group = Group("abcd", others="e")
    group["a"].campaign()
    group.elect_without("a", lambda message: bool(message.entries))
    with pytest.raises(MembershipRefused, match="of its term"):
        group["a"].propose_members(members("abc"))


def test_members_need_a_voter_and_names() -> None:
    group = Group()
    group.elect("a")
    for wrong in (Members(()), members("abc", "a"), members(["a", "b", "c", ""])):
        with pytest.raises(MembershipRefused):
            group["a"].propose_members(wrong)
    with pytest.raises(NotLeader):
        group["b"].propose_members(members("ab"))


def test_a_change_that_could_not_be_committed_is_refused() -> None:
    """With one of three members down, the other working one must stay."""
    group = Group()
    group.elect("a")
    group.crash("c")
    with pytest.raises(MembershipRefused, match="not reached"):
        group["a"].propose_members(members("ac"))
    group["a"].propose_members(members("ab"))
    group.settle()
    assert group["b"].members == members("ab")


def test_a_change_that_is_replaced_is_undone() -> None:
    group = Group("abc", others="d")
    group.elect("a")
    group["a"].propose_members(members("abcd"))
    assert group["a"].members == members("abcd")
    group.pump()
    group.lose()
    group.isolate("a")
    group["b"].campaign()
    group.settle()
    group.propose("b", b"x")
    group.heal()
    group.settle()
    assert group["a"].members == members("abc")
    assert group.applied("a") == [b"x"]


def test_a_leader_that_leaves_steps_down_when_that_is_committed() -> None:
    group = Group()
    group.elect("a")
    group["a"].propose_members(members("bc"))
    assert group["a"].role == LEADER
    group.settle()
    assert group["a"].role == FOLLOWER
    assert group["b"].commit == group["c"].commit == 2
    group.tick_all(6)
    (leader,) = group.leaders()
    assert leader in "bc"
    index = group.propose(leader, b"without a")
    assert group[leader].commit == index
    assert group["a"].last_index < index


def test_a_leader_that_leaves_does_not_count_itself() -> None:
    group = Group()
    group.elect("a")
    group["a"].propose_members(members("bc"))
    group.settle(synced="ab")
    assert group["a"].commit == 1
    group.settle()
    assert group["b"].commit == 2


def test_who_left_is_sent_nothing_more_and_disturbs_nobody() -> None:
    group = Group()
    group.elect("a")
    group["a"].propose_members(members("ab"))
    group.settle()
    assert "c" not in leading(group, "a").peers
    group.sent.clear()
    group.propose("a", b"x")
    assert not any(message.to == "c" for message in group.sent)
    group["c"].lost_contact("a")
    group.tick_all(50)
    assert group.leaders() == ["a"]
    assert group["a"].term == 1


# -- hand-over -----------------------------------------------------------------------------------------------


def test_a_leader_hands_over() -> None:
    group = Group()
    group.elect("a")
    group["a"].transfer("b")
    with pytest.raises(TransferInProgress):
        group["a"].propose(b"x")
    group.settle()
    assert group.leaders() == ["b"]
    assert group["a"].leader == group["c"].leader == "b"
    assert all(group[name].quiet for name in "abc")


def test_a_hand_over_waits_for_the_next_leader_to_catch_up() -> None:
    group = Group()
    group.elect("a")
    group["a"].propose(b"x")
    group.settle(synced="ac")
    group["a"].transfer("b")
    group.settle(synced="ac")
    assert not any(message.kind == TIMEOUT_NOW for message in group.sent)
    group.settle()
    assert group.leaders() == ["b"]
    assert group.applied("b") == [b"x"]


def test_a_hand_over_that_fails_is_given_up() -> None:
    group = Group()
    group.elect("a")
    group.cut = [("a", "b")]
    group["a"].transfer("b")
    group.settle()
    assert not group["a"].quiet
    for _ in range(OPTIONS.election_ticks):
        group["a"].tick("bc")
    group.cut.clear()
    index = group.propose("a", b"x")
    assert group["a"].commit == index


def test_only_voters_take_over() -> None:
    group = Group("ab", learners="c")
    group.elect("a")
    for name in ("a", "c", "nobody"):
        with pytest.raises(MembershipRefused):
            group["a"].transfer(name)
    with pytest.raises(NotLeader):
        group["b"].transfer("a")


def test_only_the_leader_can_ask_to_take_over() -> None:
    group = Group()
    group.elect("a")
    group["b"].step(Message(TIMEOUT_NOW, "c", "b", 1))
    group["b"].step(Message(TIMEOUT_NOW, "a", "b", 0))
    assert (group["b"].role, group["b"].term) == (FOLLOWER, 1)
