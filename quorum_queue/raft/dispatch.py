"""Passes a message to its handler, by its term and its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_queue.raft import election, following
from quorum_queue.raft.messages import (
    APPEND,
    APPEND_ANSWER,
    COMMIT,
    PRE_VOTE,
    PRE_VOTE_ANSWER,
    RESIGN,
    SNAPSHOT,
    SNAPSHOT_ANSWER,
    TIMEOUT_NOW,
    VOTE,
    VOTE_ANSWER,
    Message,
)

if TYPE_CHECKING:
    from quorum_queue.raft.core import Raft


def step(raft: Raft, message: Message) -> None:
    kind = message.kind
    if message.term > raft.term:
        if kind == VOTE and not message.context and election.trusts_leader(raft, message.sender):
            return
        # A pre-vote and its grant name a term that may never begin.
        if kind != PRE_VOTE and (kind != PRE_VOTE_ANSWER or message.reject):
            _adopt_term(raft, message)
    elif message.term < raft.term:
        _answer_outdated(raft, message)
        return
    _STEP[kind](raft, message)


def _adopt_term(raft: Raft, message: Message) -> None:
    deposed = raft.leader
    if raft.leadership is not None:
        # Resign in the new term, so that former followers do not wait for this node as leader.
        raft.set_hard(message.term, "")
        raft.end_leadership(message.sender)
    raft.become_follower(message.term, "")
    if deposed not in ("", raft.node, message.sender):
        # Without heartbeats an idle leader would not learn that it was deposed.
        _reject(raft, deposed)


def _answer_outdated(raft: Raft, message: Message) -> None:
    if message.kind in (APPEND, COMMIT, SNAPSHOT, TIMEOUT_NOW):
        _reject(raft, message.sender)
    elif message.kind in (PRE_VOTE, VOTE):
        raft.rest(Message(message.kind + 1, raft.node, message.sender, raft.term, reject=True))


def _reject(raft: Raft, leader: str) -> None:
    raft.rest(Message(APPEND_ANSWER, raft.node, leader, raft.term, reject=True, amnesiac=raft.amnesiac))


def _on_answer(raft: Raft, message: Message) -> None:
    if raft.leadership is not None:
        raft.leadership.on_answer(message)


def _on_resign(raft: Raft, message: Message) -> None:
    if message.sender == raft.leader:
        raft.lose_leader()


def _on_timeout_now(raft: Raft, message: Message) -> None:
    if message.sender == raft.leader and raft.may_campaign():
        election.start_vote(raft, forced=True)


_STEP = {
    APPEND: following.on_append,
    COMMIT: following.on_commit,
    SNAPSHOT: following.on_snapshot,
    APPEND_ANSWER: _on_answer,
    SNAPSHOT_ANSWER: _on_answer,
    PRE_VOTE: election.on_pre_vote,
    PRE_VOTE_ANSWER: election.on_pre_vote_answer,
    VOTE: election.on_vote,
    VOTE_ANSWER: election.on_vote_answer,
    TIMEOUT_NOW: _on_timeout_now,
    RESIGN: _on_resign,
}
