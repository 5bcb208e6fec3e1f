"""Limits and times of the Raft core. Times are in ticks; the driver decides how long one is (about 50 ms)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    #: Silence of the leader after which a follower campaigns, and of a quorum after which a leader steps
    #: down. Candidates wait up to twice as long, each member of a group for another time.
    election_ticks: int = 10
    #: A follower may take so much longer for each of so many bytes that it has not answered for: it must not
    #: get a large entry again while a slow network or disk still works on it.
    unanswered_bytes: int = 4 << 20
    #: The same after the link to the leader's node was lost: least wait, and the spread between members.
    lost_ticks_min: int = 0
    lost_ticks_jitter: int = 3
    #: Entry bytes of one append (a single larger entry goes by itself).
    append_bytes_max: int = 1 << 20
    #: The same while the leader does not know where a follower's log agrees.
    probe_bytes_max: int = 1 << 16
    #: Bytes sent to one follower and not yet answered.
    inflight_appends_max: int = 64
    inflight_bytes_max: int = 8 << 20
    #: Entry bytes handed out for applying in one Ready.
    apply_bytes_max: int = 4 << 20
    #: Entries of one Ready; in between the turn may end.
    apply_entries_max: int = 64
    #: The same for a state machine whose entries are one batch each: a declaration that looks at very many
    #: policies takes a fraction of a millisecond.
    apply_single_max: int = 16
    #: Entries kept in memory for followers that are behind. Entries that are not yet durable or applied are
    #: always kept.
    cache_bytes_max: int = 4 << 20
    #: How long a follower may take to answer after all of a snapshot was sent.
    snapshot_ticks: int = 200
