"""A member whose log has holes: what it promises, and what it must not do."""

from __future__ import annotations

from quorum_queue.raft.core import Raft
from quorum_queue.raft.log import Log
from quorum_queue.raft.members import HardState, Members
from quorum_queue.raft.messages import (
    APPEND,
    COMMIT,
    EMPTY,
    MEMBERS,
    PASSED_OVER,
    PRE_VOTE,
    SNAPSHOT,
    VOTE,
    Entry,
    Message,
)
from tests.quorum_queue.raft.disk import Disk, Snapshot
from tests.quorum_queue.raft.world import OPTIONS

ABC = Members(("a", "b", "c"))


def a_member(*holes: int, last_index: int = 8) -> Raft:
    """Return a member that has seen term 6, with entries of the terms 1, 2 and 5."""
    log = Log(
        Disk(Snapshot(0, 0, ABC, b"")), last_index=last_index, terms=[(1, 1), (4, 2), (7, 5)], holes=holes,
        term_bound=6,
    )  # fmt: skip
    raft = Raft("b", 1, members=ABC, hard=HardState(6, ""), log=log, options=OPTIONS)
    assert raft.ready().lost == holes
    return raft


def answers(raft: Raft, message: Message) -> list[Message]:
    """Return the member's answers, once its disk is done."""
    raft.step(message)
    found: list[Message] = []
    while raft.has_ready:
        ready = raft.ready()
        found += ready.messages
        if ready.hard is not None:
            raft.hard_written(ready.hard)
        found += ready.after_sync
    return found


def grants(raft: Raft, log_term: int, index: int) -> bool:
    (answer,) = answers(raft, Message(PRE_VOTE, "c", "b", raft.term + 1, index, log_term))
    (again,) = answers(raft, Message(VOTE, "c", "b", raft.term + 1, index, log_term))
    assert answer.reject == again.reject
    return not answer.reject


def test_a_hole_counts_in_elections_as_the_entry_that_it_was() -> None:
    assert grants(a_member(5), 5, 8)
    assert not grants(a_member(5), 5, 7)
    assert not grants(a_member(3, 4), 2, 9)


def test_the_last_entry_counts_as_one_of_the_highest_term_that_it_may_have() -> None:
    for holes in ((8,), (7, 8), (3, 8)):
        assert not grants(a_member(*holes), 5, 9)
        assert not grants(a_member(*holes), 6, 7)
        assert grants(a_member(*holes), 6, 8)
        assert grants(a_member(*holes), 7, 2)


def test_what_replaces_the_last_entry_counts_as_one_of_that_term_too() -> None:
    raft = a_member(8)
    raft.log.bounded_index = 8
    raft.found(Entry(8, 5, EMPTY, PASSED_OVER))
    assert not raft.log.vague
    assert not grants(raft, 5, 9)
    assert grants(raft, 6, 8)
    raft = a_member(8)
    raft.log.bounded_index = 8
    raft.cut(8)
    assert raft.log.bounded_index == -1
    assert grants(raft, 5, 7)


def test_a_member_with_a_hole_does_not_stand_for_election() -> None:
    raft = a_member(5)
    raft.campaign()
    for _ in range(10 * OPTIONS.election_ticks):
        raft.tick([])
    assert not raft.has_ready
    raft.found(Entry(5, 2, 0, b""))
    raft.campaign()
    assert [message.kind for message in raft.ready().messages] == [PRE_VOTE, PRE_VOTE]


def test_appends_that_touch_a_term_which_is_not_known_change_nothing() -> None:
    for holes, index, log_term, entries in (
        ((7, 8), 6, 2, (Entry(7, 6, 0, b"7"),)),
        ((3,), 2, 1, (Entry(3, 2, 0, b"3"),)),
    ):
        raft = a_member(*holes)
        assert not answers(raft, Message(APPEND, "a", "b", 6, index, log_term, entries=entries))
        assert (raft.last_index, raft.log.lost) == (8, holes)
    raft = a_member(8)
    assert not answers(raft, Message(COMMIT, "a", "b", 6, 8, 6, 8))


def test_a_leader_learns_that_the_end_is_not_known() -> None:
    """It may have deleted that entry: then only its snapshot helps. If not, it sends this append again."""
    for holes, hint in (((8,), 7), ((7, 8), 6)):
        raft = a_member(*holes)
        (answer,) = answers(raft, Message(APPEND, "a", "b", 6, 8, 6, entries=(Entry(9, 6, 0, b"9"),)))
        assert (answer.reject, answer.index, answer.hint) == (True, 8, hint)
        assert (raft.last_index, raft.log.lost, raft.commit) == (8, holes, 0)
        # That one waits for the entry, so that the two do not go round.
        whole = (*(Entry(index, 6, 0, b"") for index in range(hint + 1, 9)), Entry(9, 6, 0, b"9"))
        assert not answers(raft, Message(APPEND, "a", "b", 6, hint, raft.log.term_at(hint), entries=whole))


def test_a_snapshot_replaces_a_log_whose_end_is_not_known() -> None:
    """The member keeps its vote: all that it may have acknowledged is in the snapshot."""
    for term in (5, 6):
        raft = a_member(8)
        raft.step(Message(SNAPSHOT, "a", "b", 6, 8, term))
        offer = raft.ready().offer
        assert offer is not None and raft.installing(8, term)
        raft.restore(8, term, ABC)
        assert (raft.last_index, raft.commit, raft.log.lost, raft.log.vague) == (8, 8, (), ())
        assert (raft.log.last_term, raft.amnesiac) == (term, 0)


def test_a_snapshot_does_not_replace_entries_behind_a_hole() -> None:
    """They may have been acknowledged, and may follow on the snapshot."""
    raft = a_member(3)
    raft.step(Message(SNAPSHOT, "a", "b", 6, 3, 1))
    assert raft.ready().offer is None
    assert (raft.last_index, raft.commit) == (8, 0)


def test_what_follows_a_hole_is_taken_and_acknowledged() -> None:
    raft = a_member(4)
    (answer,) = answers(raft, Message(APPEND, "a", "b", 6, 8, 5, 8))
    assert (answer.reject, answer.index, raft.commit) == (False, 8, 8)


def test_members_that_were_in_a_hole_hold_from_then_on() -> None:
    raft = a_member(5)
    more = Members(("a", "b", "c", "d"))
    raft.found(Entry(5, 2, MEMBERS, more.encode()))
    assert (raft.members, raft.members_index) == (more, 5)
    raft.cut(5)
    assert raft.members == ABC


def test_what_the_leader_has_not_is_cut_off() -> None:
    raft = a_member(6)
    raft.cut(7)
    assert (raft.last_index, raft.log.vague) == (6, (6,))
    raft.found(Entry(6, 4, 0, b""))
    assert (raft.log.last_term, raft.has_holes) == (4, False)
