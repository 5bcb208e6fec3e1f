"""A leader's knowledge of one follower, and how much it may send to it."""

from __future__ import annotations

from typing import Final

from quorum_queue.raft.options import Options

#: The leader does not know where the logs agree: one append at a time.
PROBE: Final = 0
#: In step: appends are sent ahead of the answers.
REPLICATE: Final = 1
#: The log no longer has its next entry: it gets a snapshot first.
SNAPSHOT: Final = 2


class Progress:
    __slots__ = (
        "amnesiac",
        "contact",
        "due",
        "floor",
        "inflight",
        "inflight_bytes",
        "match",
        "next",
        "patient",
        "probe_bytes",
        "silent",
        "snapshot_sent",
        "state",
        "told",
    )

    def __init__(self, next_index: int) -> None:
        self.state = PROBE
        #: Its log is durable and equal to the leader's up to this index.
        self.match = 0
        self.next = next_index
        #: True if there is a link to its node. Assumed until the driver says otherwise.
        self.contact = True
        #: True if a probe is due.
        self.due = True
        #: Unanswered appends: (last index, bytes).
        self.inflight: list[tuple[int, int]] = []
        self.inflight_bytes = 0
        #: Bytes of an unanswered probe.
        self.probe_bytes = 0
        #: The highest commit that was sent to it.
        self.told = 0
        #: True if it may hear of the commit a tick late.
        self.patient = False
        #: Ticks without an answer.
        self.silent = 0
        self.snapshot_sent = False
        #: The number of its new disk, if it lost its memory; the follower does not count until it is admitted
        #: again.
        self.amnesiac = 0
        #: Index from which it may count again; -1 while that is not decided.
        self.floor = -1

    def probe(self) -> None:
        """Find out again how far its log agrees."""
        self.state = PROBE
        self.due = True
        self.inflight.clear()
        self.inflight_bytes = self.probe_bytes = 0
        self.told = 0
        self.silent = 0

    def unsent(self) -> None:
        """An append was not sent, because too much waits for the link: the next try is as for a lost one."""
        if self.state == REPLICATE:
            self.next = self.match + 1
        self.probe()
        self.due = False

    def patience(self, options: Options) -> int:
        """Return after how many ticks without an answer an append counts as lost."""
        return options.election_ticks * (
            1 + (self.inflight_bytes + self.probe_bytes) // options.unanswered_bytes
        )

    def replicate(self) -> None:
        self.state = REPLICATE
        self.probe_bytes = 0
        self.next = max(self.next, self.match + 1)

    def sent(self, last_index: int, size: int) -> None:
        self.next = last_index + 1
        self.inflight.append((last_index, size))
        self.inflight_bytes += size

    def acked(self, index: int) -> None:
        self.match = max(self.match, index)
        self.next = max(self.next, self.match + 1)
        while self.inflight and self.inflight[0][0] <= index:
            self.inflight_bytes -= self.inflight.pop(0)[1]

    def has_room(self, options: Options) -> bool:
        return (
            len(self.inflight) < options.inflight_appends_max
            and self.inflight_bytes < options.inflight_bytes_max
        )

    def is_behind(self, last_index: int) -> bool:
        """Return whether the leader still expects an answer from it."""
        return self.match < last_index or self.state != REPLICATE or self.amnesiac != 0
