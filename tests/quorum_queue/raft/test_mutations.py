"""Known bugs of Raft implementations, planted one at a time: for each a test must fail, or the tests prove
little.

Directed tests find all of them; for those that random runs find as well, the seeds are run, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from quorum_queue.raft import election, following
from quorum_queue.raft.core import Raft
from quorum_queue.raft.leading import Leadership
from quorum_queue.raft.log import Log
from quorum_queue.raft.members import HardState, Members
from quorum_queue.raft.messages import MEMBERS, Entry, Message
from tests.quorum_queue.raft import (
    simulation,
    test_commit,
    test_elections,
    test_log,
    test_lost_disks,
    test_membership,
    test_snapshots,
)

#: Seeds within which the simulation must find a bug that is marked so; usually a tenth of them is enough.
SEEDS = 1000


class Mutation(NamedTuple):
    name: str
    target: object
    attribute: str
    mutant: Callable[..., Any]
    #: Each of these fails.
    tests: tuple[Callable[[], None], ...]
    #: So does the simulation.
    simulated: bool


def commits_older_terms(self: Leadership) -> None:
    voters = self.raft.members.voters
    index = sorted([self._match(name) for name in voters], reverse=True)[len(voters) // 2]
    self.raft.commit_to(index)


def commits_unverified(raft: Raft, message: Message) -> None:
    raft.verified = max(raft.verified, message.index + len(message.entries))
    raft.commit_to(min(message.commit, raft.log.last_index))


def written_whatever_it_was(self: Log, index: int, term: int) -> bool:
    self.stable_index = max(self.stable_index, min(index, self.last_index))
    return True


def written_by_index_and_term(self: Log, index: int, term: int) -> bool:
    if self.term_at(index) == term and index > self.stable_index:
        self.stable_index = index
        return True
    return False


def forgetting(what: str) -> Callable[..., None]:
    start = Raft.__init__

    def mutant(self: Raft, *arguments: Any, **named: Any) -> None:
        if what == "vote":
            hard = named["hard"]
            # The field of the vote also holds the amnesia.
            named["hard"] = HardState(hard.term, hard.vote if hard.vote.startswith("?") else "")
        elif what == "amnesia":
            named["amnesiac"] = 0
            if named["hard"].vote.startswith("?"):
                named["hard"] = HardState(named["hard"].term, "")
        start(self, *arguments, **named)

    return mutant


def proposes_any_members(self: Leadership, members: Members) -> int:
    index = self.propose(MEMBERS, members.encode())
    self.meet_members()
    return index


def skips_after_snapshot() -> Callable[..., None]:
    restore = Raft.restore

    def mutant(self: Raft, index: int, term: int, members: Members) -> None:
        restore(self, index, term, members)
        self._applied += 1

    return mutant


def keeps_verified(self: Raft, term: int, leader: str) -> None:
    if term > self.term:
        self.set_hard(term, "")
    self.role = 0
    self.leader = leader
    self.acked = 0
    self.granted = None
    self.restart_clock()


def counts_the_forgetful(self: Leadership, name: str) -> int:
    return self.own_match() if name == self.raft.node else self.peers[name].match


def keeps_members(self: Raft, entries: list[Entry]) -> None:
    self.log.append(entries)
    for entry in entries:
        if entry.kind == MEMBERS:
            self._configs.append((entry.index, Members.decode(entry.data)))


MUTATIONS = [
    Mutation("a leader counts its own entry before its write is done",
             Leadership, "own_match", lambda self: self.raft.log.last_index,
             (test_commit.test_a_leader_counts_itself_only_after_its_own_write,), True),
    Mutation("entries of older terms are committed by counting",
             Leadership, "advance_commit", commits_older_terms,
             (test_commit.test_entries_of_older_terms_are_not_committed_by_counting,), False),
    Mutation("a follower commits what is not verified",
             following, "_verify", commits_unverified,
             (test_commit.test_a_follower_commits_no_further_than_it_is_verified,
              test_commit.test_a_commit_message_commits_no_further_than_it_is_verified), True),
    Mutation("a late write marks other entries as durable",
             Log, "written", written_whatever_it_was,
             (test_log.test_a_late_write_makes_nothing_stable_that_was_replaced,
              test_commit.test_a_late_write_acknowledges_nothing_that_was_replaced), False),
    Mutation("a late write marks the same entries, come back, as durable",
             Log, "written", written_by_index_and_term,
             (test_log.test_a_late_write_makes_nothing_stable_that_came_back,), False),
    Mutation("a vote is forgotten at a restart",
             Raft, "__init__", forgetting("vote"),
             (test_elections.test_a_vote_that_reached_the_disk_is_remembered_after_a_restart,), False),
    Mutation("a commit without entries exceeds what the follower has",
             Leadership, "commit_for", lambda self, peer: self.raft.commit,
             (test_commit.test_an_append_without_entries_commits_no_more_than_the_follower_has,), False),
    Mutation("votes are granted whatever the candidate's log",
             election, "log_is_as_good", lambda raft, message: True,
             (test_elections.test_a_longer_log_of_an_older_term_is_behind,), True),
    Mutation("members change while a change is under way, and by more than one",
             Leadership, "propose_members", proposes_any_members,
             (test_membership.test_members_change_one_by_one,
              test_membership.test_members_do_not_change_before_the_leader_has_committed_in_its_term,
              test_membership.test_a_change_that_could_not_be_committed_is_refused), False),
    Mutation("two voters at once",
             Members, "voters_changed", lambda self, other: 1,
             (test_membership.test_members_change_one_by_one,), False),
    Mutation("entries are acknowledged before they are durable",
             following, "durable_and_verified", lambda raft: max(raft.verified, raft.commit),
             (test_commit.test_a_follower_acknowledges_only_what_is_durable,), True),
    Mutation("applying goes wrong after a snapshot",
             Raft, "restore", skips_after_snapshot(),
             (test_snapshots.test_a_follower_behind_the_log_gets_a_snapshot,), True),
    Mutation("votes and answers leave before term and vote are durable",
             Raft, "rest", Raft.send,
             (test_elections.test_a_vote_is_sent_only_when_it_is_durable_and_not_given_twice,
              test_elections.test_an_answer_waits_for_a_term_that_is_still_being_written,
              test_elections.test_a_vote_that_never_reached_the_disk_was_never_sent), True),
    Mutation("what one leader verified counts for the next",
             Raft, "become_follower", keeps_verified,
             (test_commit.test_what_an_earlier_leader_verified_does_not_count_for_the_next,), False),
    Mutation("who lost its disk votes and counts as if it had not",
             Raft, "__init__", forgetting("amnesia"),
             (test_lost_disks.test_who_lost_its_disk_neither_votes_nor_campaigns,
              test_lost_disks.test_who_lost_its_disk_does_not_count), True),
    Mutation("who lost its disk counts",
             Leadership, "_match", counts_the_forgetful,
             (test_lost_disks.test_who_lost_its_disk_does_not_count,), False),
    Mutation("elections disturb a leader that works",
             election, "trusts_leader", lambda raft, besides: False,
             (test_elections.test_a_follower_in_contact_with_its_leader_takes_part_in_no_election,), False),
    Mutation("members that were replaced stay in force",
             Raft, "append", keeps_members,
             (test_membership.test_a_change_that_is_replaced_is_undone,), True),
]  # fmt: skip


@pytest.mark.pure
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    for test in mutation.tests:
        test()
    monkeypatch.setattr(mutation.target, mutation.attribute, mutation.mutant)
    for test in mutation.tests:
        # Any error will do: nobody can foresee what a broken core runs into first.
        with pytest.raises((Exception, pytest.fail.Exception)):
            test()
    if mutation.simulated:
        with pytest.raises(Exception):  # noqa: B017
            for seed in range(SEEDS):
                simulation.run(seed)
