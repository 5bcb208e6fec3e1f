"""The work that the core requests, as data."""

from __future__ import annotations

from quorum_queue.raft.members import HardState
from quorum_queue.raft.messages import Entry, Message


class Ready:
    """All work since the last Ready. The driver must answer four of its parts:

    `hard` → `hard_written(hard)`, `entries` → `written(index, term)` of the last one, each once and in the
    order of the Readys, as soon as the disk has them; `snapshots` → `snapshot_done()` for each; `reads` →
    `came(low, high)` for each.
    """

    __slots__ = (
        "after_sync",
        "committed",
        "entries",
        "hard",
        "leader_changed",
        "lost",
        "messages",
        "offer",
        "reads",
        "role_changed",
        "snapshots",
    )

    def __init__(
        self,
        hard: HardState | None,
        entries: tuple[Entry, ...],
        messages: tuple[Message, ...],
        after_sync: tuple[Message, ...],
        committed: tuple[Entry, ...],
        snapshots: tuple[str, ...],
        offer: Message | None,
        lost: tuple[int, ...],
        reads: tuple[tuple[int, int], ...],
        role_changed: bool,
        leader_changed: bool,
    ) -> None:
        #: To be made durable, in one transaction with `entries`.
        self.hard = hard
        #: To be made durable: consecutive; the first one replaces the stored entries at its index and after.
        self.entries = entries
        #: To be sent at once.
        self.messages = messages
        #: To be sent when `hard` and `entries` of this Ready are durable.
        self.after_sync = after_sync
        #: To be applied now, in order; each entry of any kind comes once. They are on the disks of a
        #: majority, perhaps without this node's own: its write may still be running.
        self.committed = committed
        #: Followers whose next entry is gone from the log: send `snapshot_offer()` and the newest snapshot.
        self.snapshots = snapshots
        #: The leader's snapshot that this node needs: when all of it has arrived, `installing()`, write it,
        #: `restore()`.
        self.offer = offer
        #: Entries of this disk that cannot be read: fetch them from a peer, store them, and say
        #: `found(index)`.
        self.lost = lost
        #: First and last index of entries to be read soon: make them readable without a wait.
        self.reads = reads
        self.role_changed = role_changed
        self.leader_changed = leader_changed
