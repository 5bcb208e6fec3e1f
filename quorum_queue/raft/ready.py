"""The work that the core requests, as data."""

from __future__ import annotations

from typing import NamedTuple

from quorum_queue.raft.members import HardState
from quorum_queue.raft.messages import Entry, Message


class Ready(NamedTuple):
    """All work since the last Ready. The driver must answer four of its parts:

    `hard` → `hard_written(hard)`, `entries` → `written(index, term)` of the last one, each once and in the
    order of the Readys, as soon as the disk has them; `snapshots` → `snapshot_done()` for each; `reads` →
    `came(low, high)` for each.
    """

    #: To be made durable, in one transaction with `entries`.
    hard: HardState | None
    #: To be made durable: consecutive; the first replaces what is stored at its index and after.
    entries: tuple[Entry, ...]
    #: To be sent at once.
    messages: tuple[Message, ...]
    #: To be sent when `hard` and `entries` of this Ready are durable.
    after_sync: tuple[Message, ...]
    #: To be applied now, in order; each entry of any kind comes once. They are on the disks of a majority,
    #: perhaps without this node's own: its write may still be running.
    committed: tuple[Entry, ...]
    #: Followers whose next entry is gone from the log: send `snapshot_offer()` and the newest snapshot.
    snapshots: tuple[str, ...]
    #: The leader's snapshot that this node needs: when all of it has arrived, `installing()`, write it,
    #: `restore()`.
    offer: Message | None
    #: Entries of this disk that cannot be read: fetch them from a peer, store them, and say `found(index)`.
    lost: tuple[int, ...]
    #: First and last index of entries to be read soon: make them readable without a wait.
    reads: tuple[tuple[int, int], ...]
    role_changed: bool
    leader_changed: bool
