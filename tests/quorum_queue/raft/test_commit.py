"""Which entries are committed, when, and by whose messages."""

from __future__ import annotations

import pytest

from quorum_queue.raft.errors import LogDiverged, NotLeader
from quorum_queue.raft.messages import APPEND, APPEND_ANSWER, COMMIT, Entry, Message
from quorum_queue.raft.options import Options
from quorum_queue.raft.progress import PROBE
from tests.quorum_queue.raft.disk import SimulatedMember
from tests.quorum_queue.raft.group import Group, leading


def acknowledged(group: Group, sender: str) -> int:
    return max(
        (m.index for m in group.sent if m.kind == APPEND_ANSWER and m.sender == sender and not m.reject),
        default=0,
    )


def append(term: int, index: int, log_term: int, *terms: int, commit: int = 0, sender: str = "a") -> Message:
    """An append to b."""
    entries = tuple(Entry(index + 1 + at, own, 0, b"%d" % own) for at, own in enumerate(terms))
    return Message(APPEND, sender, "b", term, index, log_term, commit, entries)


def a_follower() -> tuple[Group, SimulatedMember]:
    group = Group()
    return group, group.nodes["b"]


def test_entries_of_older_terms_are_not_committed_by_counting() -> None:
    """Figure 8 of the Raft paper. An entry on a majority of disks may still
    be replaced by another leader's.
    """
    group = Group("abcde", options=Options(append_bytes_max=8, probe_bytes_max=8))
    group.elect("a")
    # a and b have entry 2 of term 1.
    group["a"].propose(b"older entry")
    group.pump()
    group.nodes["a"].sync_all()
    group.deliver(lambda message: message.to == "b")
    group.nodes["b"].sync_all()
    group.crash("a")
    group.crash("b")
    # e leads by the votes of c and d, and has another entry 2 that nobody else gets.
    group.elect_without("e", lambda message: bool(message.entries))
    own = group["e"].last_index
    assert (own, group["e"].log.term_at(own)) == (2, 2)
    group.crash("e")
    # a leads again and brings c and d its old entry, but not yet the one of its new term.
    group.restart("a")
    group.restart("b")

    def of_new_term(message: Message) -> bool:
        leadership = group["a"].leadership
        if leadership is None or message.sender != "a" or leadership.peers[message.to].state == PROBE:
            return False
        return any(entry.term > 1 for entry in message.entries)

    group.elect_without("a", of_new_term)
    assert [group.nodes[name].disk.log[2].term for name in "abcd"] == [1, 1, 1, 1]
    assert group["a"].commit < 2
    # These two stop, so that nothing is broken when e comes back and replaces the entry.
    group.crash("a")
    group.crash("b")
    group.restart("e")
    group.elect_without("e", lambda message: False)
    group.restart("a")
    group.restart("b")
    group.settle()
    assert [group.nodes[name].disk.log[2].term for name in "abcde"] == [2] * 5
    assert len({group.nodes[name].digest for name in "abcde"}) == 1


def test_a_follower_commits_no_further_than_it_is_verified() -> None:
    """Entries 2 and 3 here are left over from term 1; the leader of term 2 has committed other ones."""
    group, follower = a_follower()
    follower.receive(append(1, 0, 0, 1, 1, 1), None)
    group.settle()
    follower.receive(append(2, 1, 1, commit=3, sender="c"), None)
    group.settle(synced="b")
    assert follower.raft.commit == 1
    assert [entry.index for entry in follower.entries] == [1]
    follower.receive(append(2, 1, 1, 2, 2, commit=3, sender="c"), None)
    group.settle(synced="b")
    assert [entry.term for entry in follower.entries] == [1, 2, 2]


def test_a_commit_message_commits_no_further_than_it_is_verified() -> None:
    group, follower = a_follower()
    follower.receive(append(1, 0, 0, 1, 1, 1), None)
    group.settle()
    follower.receive(Message(COMMIT, "c", "b", 2, 1, 1, 3), None)
    group.settle(synced="b")
    assert follower.raft.commit == 1


def test_what_an_earlier_leader_verified_does_not_count_for_the_next() -> None:
    group, follower = a_follower()
    follower.receive(append(1, 0, 0, 1, 1, 1), None)
    group.settle()
    group.sent.clear()
    follower.receive(append(2, 1, 1, sender="c"), None)
    group.settle(synced="b")
    assert acknowledged(group, "b") == 1


def test_an_append_without_entries_commits_no_more_than_the_follower_has() -> None:
    group = Group()
    group.elect("a")
    group["a"].propose(b"0")
    group.pump()
    group.lose(lambda message: message.to == "c")
    group.settle()
    assert group["a"].commit == 2
    group.connect("a", "c")
    group.pump()
    told = [message.commit for message in group.sent if message.to == "c" and not message.entries]
    assert told[-1:] == [1]
    assert max(told) == 1
    group.settle()
    assert group.applied("c") == [b"0"]


def test_a_leader_counts_itself_only_after_its_own_write() -> None:
    group = Group()
    group.elect("a")
    group.disconnect("a", "c")
    group["a"].propose(b"x")
    group.settle(synced="b")
    assert acknowledged(group, "b") == 2
    assert group["a"].commit == 1
    group.nodes["a"].sync_all()
    assert group["a"].commit == 2


def test_a_leader_sends_and_commits_while_its_own_write_runs() -> None:
    group = Group()
    group.elect("a")
    group["a"].propose(b"x")
    group.settle(synced="bc")
    assert group["a"].commit == 2
    assert [group.applied(name) for name in "abc"] == [[b"x"]] * 3
    assert group.nodes["a"].disk.last_index == 1


def test_a_follower_acknowledges_only_what_is_durable() -> None:
    group = Group()
    group.elect("a")
    group["a"].propose(b"x")
    group.settle(synced="a")
    assert acknowledged(group, "b") == 1
    # Nor does a repetition or a probe cause that while the write runs.
    group["a"].lost_contact("b")
    group["a"].in_contact("b")
    group.settle(synced="a")
    assert acknowledged(group, "b") == 1
    group.settle()
    assert acknowledged(group, "b") == 2


def test_a_late_write_acknowledges_nothing_that_was_replaced() -> None:
    """Three writes wait: entry 2 of term 1, then term 2, then the entry that replaces the first."""
    group, follower = a_follower()
    follower.receive(append(1, 0, 0, 1, 1), None)
    group.pump()
    follower.receive(append(2, 1, 1, sender="c"), None)
    group.pump()
    follower.receive(append(2, 1, 1, 2, sender="c"), None)
    group.pump()
    follower.sync()
    follower.sync()
    assert follower.disk.log[2].term == 1
    assert acknowledged(group, "b") <= 1
    follower.sync()
    assert acknowledged(group, "b") == 2


def test_followers_hear_of_a_commit_at_once() -> None:
    group = Group()
    group.elect("a")
    group.sent.clear()
    group.propose("a")
    assert [group[name].commit for name in "abc"] == [2, 2, 2]
    kinds = [message.kind for message in group.sent if message.to == "b"]
    assert kinds == [APPEND, COMMIT]


def test_a_commit_goes_with_the_next_entries() -> None:
    group = Group()
    group.elect("a")
    group["a"].propose(b"x")
    group.pump()
    group.deliver()
    for name in "abc":
        group.nodes[name].sync_all()
    group.sent.clear()
    for message, _ in group.wire:
        group.nodes[message.to].receive(message, None)
    group.wire.clear()
    group["a"].propose(b"y")
    group.pump()
    assert [(message.kind, message.commit) for message in group.sent if message.to == "b"] == [(APPEND, 2)]


def test_a_single_voter_commits_what_it_has_written() -> None:
    group = Group("a")
    group.elect("a")
    index = group["a"].propose(b"x")
    group.pump()
    assert group["a"].commit == index - 1
    group.nodes["a"].sync_all()
    assert group.applied("a") == [b"x"]


def test_a_leader_that_contradicts_what_is_committed_is_an_error() -> None:
    group, follower = a_follower()
    follower.receive(append(1, 0, 0, 1, 1, commit=2), None)
    group.settle()
    with pytest.raises(LogDiverged):
        follower.receive(append(2, 1, 1, 2, sender="c"), None)


def test_two_leaders_in_a_term_are_an_error() -> None:
    group = Group()
    group.elect("a")
    with pytest.raises(LogDiverged):
        group["a"].step(Message(APPEND, "c", "a", 1))


def test_only_the_leader_takes_proposals() -> None:
    group = Group()
    with pytest.raises(NotLeader):
        group["a"].propose(b"x")
    group.elect("a")
    with pytest.raises(NotLeader) as refused:
        group["b"].propose(b"x")
    assert refused.value.leader == "a"


def test_all_in_contact_have_what_each_of_them_has_written() -> None:
    group = Group("abcd", learners="z")
    group.elect("a")
    leadership = leading(group, "a")
    index = group["a"].propose(b"x")
    group.settle(synced="bcd")
    # Three disks are a majority, but for `reached` the leader's own disk counts, too.
    assert group["a"].commit == index
    assert leadership.reached() == index - 1
    group.nodes["a"].sync_all()
    group.pump()
    # A learner does not matter.
    assert leadership.reached() == index
    index = group["a"].propose(b"y")
    group.settle(synced="abc")
    assert (group["a"].commit, leadership.reached()) == (index, index - 1)
    group["a"].lost_contact("d")
    assert leadership.reached() == index
    group["a"].in_contact("d")
    assert leadership.reached() == index - 1
    group.settle(synced="abcdz")
    assert leadership.reached() == index
    # Never more than a majority has, whichever members are out of contact.
    for name in "bcd":
        group["a"].lost_contact(name)
    index = group["a"].propose(b"z")
    group.pump()
    group.nodes["a"].sync_all()
    assert leadership.reached() == index - 1
