"""Members that come back under their old name with an empty disk."""

from __future__ import annotations

from quorum_queue.raft.messages import (
    APPEND_ANSWER,
    MEMBERS,
    PRE_VOTE,
    PRE_VOTE_ANSWER,
    VOTE,
    VOTE_ANSWER,
    Message,
)
from quorum_queue.raft.roles import FOLLOWER
from tests.quorum_queue.raft.group import OPTIONS, Group, leading, members


def forgetful() -> Group:
    """b has lost its disk after it acknowledged entries 1 to 3, which c does not have."""
    group = Group()
    group.elect("a")
    group.crash("c")
    group.propose("a", b"1")
    group.propose("a", b"2")
    group.crash("b")
    group.nodes["b"].lose_disk(99, group.members)
    return group


def test_who_lost_its_disk_neither_votes_nor_campaigns() -> None:
    group = forgetful()
    group.crash("a")
    group.sent.clear()
    for kind in (PRE_VOTE, VOTE):
        group.nodes["b"].receive(Message(kind, "c", "b", 5, 1, 1), None)
    group.settle(synced="b")
    assert [m.reject for m in group.sent if m.kind in (VOTE_ANSWER, PRE_VOTE_ANSWER)] == [True, True]
    group.tick("b", 100)
    group["b"].campaign()
    assert group["b"].role == FOLLOWER
    # c with b's vote would be a majority that does not know the committed entries.
    group.restart("c")
    group.tick_all(60)
    assert group.leaders() == []


def test_who_lost_its_disk_stays_so_over_a_restart() -> None:
    group = forgetful()
    group.settle(synced="b")
    group.crash("b")
    group.restart("b")
    assert group["b"].amnesiac == 99
    assert group["b"].vote == ""
    group.sent.clear()
    group.nodes["b"].receive(Message(VOTE, "c", "b", 50, 90, 9), None)
    group.settle(synced="b")
    assert [m.reject for m in group.sent if m.kind == VOTE_ANSWER] == [True]


def test_who_lost_its_disk_does_not_count() -> None:
    group = forgetful()
    group.reconnect("b")
    group.settle()
    index = group.propose("a", b"3")
    assert group["b"].last_index >= index
    assert group["a"].commit < index


def test_who_lost_its_disk_comes_back_as_a_learner_and_then_as_a_voter() -> None:
    group = forgetful()
    group.reconnect("b")
    group.restart("c")
    group.settle()
    assert [group[name].members for name in "abc"] == [members("ac", "b")] * 3
    assert group["b"].amnesiac == 0
    assert group.applied("b") == [b"1", b"2"]
    assert group["a"].caught_up("b")
    group["a"].propose_members(members("abc"))
    group.settle()
    assert all(group[name].quiet for name in "abc")
    group.crash("c")
    index = group.propose("a", b"3")
    assert group["a"].commit == index
    group.crash("a")
    group.restart("c")
    group.tick_all(30)
    assert group.leaders() == ["b"]


def test_the_memory_is_back_only_when_that_is_durable() -> None:
    group = forgetful()
    group.settle(synced="b")
    group.reconnect("b")
    group.restart("c")
    group.settle()
    assert group["b"].amnesiac == 0
    group = forgetful()
    group.settle(synced="b")
    group.reconnect("b")
    group.restart("c")
    for _ in range(20):
        # All writes except the one that ends the amnesia.
        group.settle(synced="ac")
        if group["b"].amnesiac:
            group.nodes["b"].sync()
    assert group["b"].amnesiac == 0
    assert group.nodes["b"].disk.hard.vote == "?63"
    assert leading(group, "a").peers["b"].amnesiac == 99
    group.crash("b")
    group.restart("b")
    assert group["b"].amnesiac == 99
    group.settle()
    assert group["b"].amnesiac == 0
    group.crash("b")
    group.restart("b")
    assert group["b"].amnesiac == 0


def test_old_members_in_the_log_do_not_bring_memory_back() -> None:
    """b joined through entries of this very log; to read them again proves nothing."""
    group = Group("a", others="bc")
    group.elect("a")
    for change in (members("a", "b"), members("ab"), members("ab", "c"), members("abc")):
        group["a"].propose_members(change)
        group.settle()
    group.crash("c")
    group.crash("b")
    group.nodes["b"].lose_disk(5, group.members)
    group.reconnect("b")
    group.settle()
    assert group["b"].members == members("abc")
    assert group["b"].last_index == group["a"].last_index
    assert group["b"].amnesiac == 5


def test_an_answer_from_before_the_loss_does_not_count_as_memory() -> None:
    group = forgetful()
    group.reconnect("b")
    group.restart("c")
    group.lose(lambda message: message.to == "b")
    group.settle(synced="ac")
    stale = Message(APPEND_ANSWER, "b", "a", 1, 3)
    group["a"].step(stale)
    group.settle()
    assert group["b"].amnesiac == 0
    assert group["a"].members == members("ac", "b")


def test_a_demotion_waits_for_the_majority_that_is_left() -> None:
    group = forgetful()
    group.reconnect("b")
    group.settle()
    assert group["a"].members_index == 0
    group.restart("c")
    group.tick_all(OPTIONS.election_ticks + 1)
    assert group["c"].members == members("ac", "b")
    assert [entry.kind for entry in group.nodes["c"].entries].count(MEMBERS) == 1
