"""Elections: a pre-vote that changes nothing (thesis 9.6), then the vote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_queue.raft.messages import PRE_VOTE, PRE_VOTE_ANSWER, VOTE, VOTE_ANSWER, Message
from quorum_queue.raft.roles import CANDIDATE, PRE_CANDIDATE

if TYPE_CHECKING:
    from quorum_queue.raft.core import Raft


def start_pre_vote(raft: Raft, *, reforming: bool = False) -> None:
    """Ask the other voters whether they would vote for this member. See Raft.reform."""
    _candidate(raft, PRE_CANDIDATE)
    raft.reforming = reforming
    for name in raft.members.voters:
        if name != raft.node:
            raft.send(_request(raft, PRE_VOTE, name, raft.term + 1))
    count(raft, raft.node, True)


def start_vote(raft: Raft, *, forced: bool = False) -> None:
    """Ask for votes in a new term. This member's own vote counts, like
    those of others, when it is durable.
    """
    raft.set_hard(raft.term + 1, raft.node)
    _candidate(raft, CANDIDATE)
    for name in raft.members.voters:
        if name != raft.node:
            raft.rest(_request(raft, VOTE, name, raft.term, int(forced)))


def _candidate(raft: Raft, role: int) -> None:
    raft.role = role
    raft.leader = ""
    raft.verified = raft.acked = 0
    raft.granted = {}
    raft.attempt += 1
    raft.restart_clock()


def _request(raft: Raft, kind: int, to: str, term: int, context: int = 0) -> Message:
    log = raft.log
    return Message(kind, raft.node, to, term, log.last_index, log.last_term, context=context)


def on_pre_vote(raft: Raft, message: Message) -> None:
    if message.term > raft.term and message.sender == raft.leader:
        raft.lose_leader()  # A leader never starts a pre-vote.
    grant = (
        message.term > raft.term
        and not raft.amnesiac
        and not trusts_leader(raft, message.sender)
        and log_is_as_good(raft, message)
    )
    term = message.term if grant else raft.term
    if raft.amnesiac:
        # This member may have forgotten the candidate's term, and the candidate ignores answers of an earlier
        # term.
        term = max(term, message.term - 1)
    raft.rest(_answer(raft, PRE_VOTE_ANSWER, message.sender, term, grant=grant))
    if raft.leadership is not None:
        raft.leadership.in_contact(message.sender)  # The sender does not know that this member leads.


def on_vote(raft: Raft, message: Message) -> None:
    # An amnesiac has no vote to give: the number of its disk takes the place of the vote.
    free = raft.hard.vote == message.sender or (not raft.hard.vote and not raft.leader)
    grant = free and log_is_as_good(raft, message)
    if grant:
        raft.set_hard(raft.term, message.sender)
        raft.restart_clock()
    raft.rest(_answer(raft, VOTE_ANSWER, message.sender, raft.term, grant=grant))


def _answer(raft: Raft, kind: int, to: str, term: int, *, grant: bool) -> Message:
    if not raft.amnesiac:
        return Message(kind, raft.node, to, term, reject=not grant)
    log = raft.log
    return Message(
        kind, raft.node, to, term, log.last_index, log.last_term, reject=not grant, amnesiac=raft.amnesiac
    )


def on_pre_vote_answer(raft: Raft, message: Message) -> None:
    if raft.role == PRE_CANDIDATE and (message.reject or message.term == raft.term + 1):
        count(raft, message.sender, not message.reject, forgetful=_has_forgotten(raft, message))


def on_vote_answer(raft: Raft, message: Message) -> None:
    if raft.role == CANDIDATE:
        count(raft, message.sender, not message.reject, forgetful=_has_forgotten(raft, message))


def _has_forgotten(raft: Raft, message: Message) -> bool:
    """Return whether a voter has no memory. If only its vote is lost, it may have more entries than this
    member.
    """
    own = raft.log.last_term, raft.log.last_index
    return bool(message.amnesiac) and (message.log_term, message.index) <= own


def count(raft: Raft, name: str, granted: bool, *, forgetful: bool = False) -> None:
    voters = raft.members.voters
    if raft.granted is None or name not in voters:
        return
    raft.granted[name] = granted
    if forgetful and name not in raft.forgetful:
        raft.forgetful += (name,)
    elif not forgetful and name in raft.forgetful:
        raft.forgetful = tuple(other for other in raft.forgetful if other != name)
    if sum(raft.granted.values()) > len(voters) // 2 or (raft.reforming and _is_alone(raft)):
        if raft.role == PRE_CANDIDATE:
            start_vote(raft)
        else:
            raft.become_leader()


def _is_alone(raft: Raft) -> bool:
    """Return whether all voters have answered in this candidacy, and those that have a memory agree."""
    granted = raft.granted or {}
    return all(name in granted and (granted[name] or name in raft.forgetful) for name in raft.members.voters)


def log_is_as_good(raft: Raft, message: Message) -> bool:
    """Return whether the candidate's log is at least as up to date (Raft paper, 5.4.1)."""
    return (message.log_term, message.index) >= (raft.log.last_term, raft.log.last_index)


def trusts_leader(raft: Raft, besides: str) -> bool:
    """Return whether there is a leader, so that an election would only disturb it."""
    if raft.leadership is not None:
        return True
    return raft.leader not in ("", besides) and raft.elapsed < raft.options.election_ticks
