"""A follower's side: handles the messages of a leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_queue.raft.errors import LogDiverged
from quorum_queue.raft.messages import APPEND_ANSWER, SNAPSHOT_ANSWER, Message

if TYPE_CHECKING:
    from quorum_queue.raft.core import Raft


def on_append(raft: Raft, message: Message) -> None:
    """Append entries that fit this log, and answer when they are durable."""
    raft.follow(message.sender)
    raft.leader_commit = max(raft.leader_commit, message.hint_term)
    if raft.installing_index:
        return
    # If an append was refused that follows on entries which are not judged, the leader would begin with them
    # again, at once and without end.
    follows = bool(raft.log.vague and message.entries) and message.index == raft.unjudged
    if raft.log.vague and raft.log.is_vague(message.index, message.index + len(message.entries)):
        # It is unknown whether these entries equal the ones here. First fetch the unreadable ones; the leader
        # sends this append again.
        raft.unjudged = message.index + len(message.entries)
        if message.index in raft.log.unreadable_end() and not follows:
            # The leader may have deleted the entry since, and every other member, too. Then it sends its
            # snapshot, else this append from that entry on.
            _refuse(raft, message, raft.log.unreadable_end()[0] - 1)
        return
    if not fits(raft, message):
        if follows:
            raft.unjudged += len(message.entries)
        else:
            _reject(raft, message)
        return
    _take_entries(raft, message)
    _verify(raft, message)
    if not message.entries or raft.log.stable_index >= raft.verified:
        acknowledge(raft)


def on_commit(raft: Raft, message: Message) -> None:
    raft.follow(message.sender)
    raft.leader_commit = max(raft.leader_commit, message.hint_term)
    if raft.installing_index or (raft.log.vague and raft.log.is_vague(message.index, message.index)):
        return
    if fits(raft, message):
        _verify(raft, message)
    else:
        _reject(raft, message)


def on_snapshot(raft: Raft, message: Message) -> None:
    """Ask for the snapshot, unless this log has its entries."""
    raft.follow(message.sender)
    raft.leader_commit = max(raft.leader_commit, message.index)
    log = raft.log
    if raft.installing_index or (
        message.index < log.last_index and log.is_vague(message.index, message.index)
    ):
        return
    if message.index > raft.commit and not log.has(message.index, message.log_term):
        raft.offer = message
        return
    if message.index > raft.commit:
        raft.verified = max(raft.verified, message.index)
        raft.commit_to(message.index)
    acknowledge(raft, SNAPSHOT_ANSWER)


def fits(raft: Raft, message: Message) -> bool:
    """Return whether this log has the entry before the message's; it has all that its snapshot covers."""
    log = raft.log
    return message.index < log.snapshot_index or log.term_at(message.index) == message.log_term


def acknowledge(raft: Raft, kind: int = APPEND_ANSWER) -> None:
    """Tell the leader up to which index this log is durable and known to equal the leader's."""
    index = durable_and_verified(raft)
    raft.acked = index
    raft.rest(
        Message(
            kind,
            raft.node,
            raft.leader,
            raft.term,
            index,
            commit=raft.commit,
            amnesiac=raft.amnesiac,
            patient=raft.patient,
        )  # fmt: skip
    )


def durable_and_verified(raft: Raft) -> int:
    """Committed entries are in every later leader's log, so they are known to be equal as well."""
    return min(raft.log.stable_index, max(raft.verified, raft.commit))


def _take_entries(raft: Raft, message: Message) -> None:
    log = raft.log
    entries = message.entries
    known = 0
    for entry in entries:
        # All entries below the snapshot are committed, hence equal.
        if entry.index > log.snapshot_index:
            if entry.index > log.last_index:
                break
            if log.term_at(entry.index) != entry.term:
                if entry.index <= raft.commit:
                    raise LogDiverged(
                        f"{message.sender} has another entry {entry.index} than is committed here"
                    )
                break
        known += 1
    if known < len(entries):
        raft.append(entries[known:])


def _verify(raft: Raft, message: Message) -> None:
    """Commit what the leader has committed, as far as this log is known to be the leader's.

    Later entries may be left over from an earlier leader.
    """
    raft.verified = max(raft.verified, message.index + len(message.entries))
    raft.commit_to(min(message.commit, raft.verified))
    if raft.amnesiac and message.amnesiac == raft.amnesiac and raft.verified >= message.hint:
        raft.remember()


def _reject(raft: Raft, message: Message) -> None:
    _refuse(raft, message, raft.log.last_before_conflict(message.index, message.log_term))


def _refuse(raft: Raft, message: Message, hint: int) -> None:
    """Answer that this log does not fit; it may fit up to `hint`."""
    raft.rest(
        Message(
            APPEND_ANSWER,
            raft.node,
            message.sender,
            raft.term,
            message.index,
            commit=raft.commit,
            reject=True,
            hint=hint,
            hint_term=raft.log.term_at(hint),
            amnesiac=raft.amnesiac,
        )  # fmt: skip
    )
