"""The records of which a queue's snapshot is made; see quorum_queue.machine.snapshots.snapshot.

They are in a module of their own because mypyc cannot compile a msgspec Struct.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quorum_queue.machine.attributes import Attributes
from quorum_queue.machine.effects import Reason
from quorum_queue.machine.letters import State as LettersState
from quorum_queue.machine.settings import Settings

#: See quorum_queue.machine.snapshots.columns.
Column = int | list[int] | bytes


class OldRun(msgspec.Struct, array_like=True, gc=False):
    """Messages that differ in their size and routing only: before versions.COLUMNS."""

    start: int
    count: int
    step: int
    #: One size for all messages, or an array of sizes.
    sizes: int | bytes
    head: bytes
    heads: list[bytes] | None
    attributes: Attributes
    expires_at: int | None
    redelivered: bool
    attempts: int


class StoredRun(msgspec.Struct, array_like=True, gc=False):
    start: int
    count: int
    step: int
    sizes: Column
    head: bytes
    heads: list[bytes] | None
    attributes: Attributes
    #: Places in `table`, or None if all have the attributes above.
    kinds: bytes | None
    table: list[Attributes] | None
    expires_at: int | None
    #: Deadlines that differ.
    deadlines: Column | None
    redelivered: bool
    attempts: int
    #: From versions.FAILURES on.
    acquired: int = 0
    #: From versions.DELAYS on.
    waits_until: int = 0
    #: From versions.KINDS on: the positions, if they are not evenly apart.
    positions: Column | None = None


class StoredConsumer(msgspec.Struct, array_like=True):
    key: Any
    channel: Any
    no_ack: bool
    own_prefetch: int
    window_limit: int
    priority: int
    exclusive: bool
    paused: bool
    attached: bool
    active: bool
    next_id: int
    #: (first delivery id, messages). Empty from versions.COLUMNS on: they come in parts of their own.
    held: list[tuple[int, msgspec.Raw]]
    #: From versions.PICKS on.
    position: int = 0


class OldMachine(msgspec.Struct, array_like=True):
    """A machine before versions.COLUMNS."""

    version: int
    settings: Settings
    next_seq: int
    last_used_ms: int
    ready: list[msgspec.Raw]
    dead_lettering: list[tuple[Reason, msgspec.Raw]]
    consumers: list[msgspec.Raw]
    dedup: msgspec.Raw
    #: From versions.LETTERS on.
    letters: LettersState = []


class StoredBlock(msgspec.Struct, array_like=True, gc=False):
    first: int
    entry: int
    count: int
    firsts: Column
    counts: Column
    entries: Column
    ordinals: Column
    live: Column


class StoredPart(msgspec.Struct, array_like=True):
    """A part of a transaction; see quorum_queue.machine.parts."""

    transaction: tuple[str, int, int]
    came: int
    late: bool
    prepared: bool
    participants: list[int]
    since_ms: int
    #: (messages, their names or None if none has any)
    enqueued: list[tuple[StoredRun, list[bytes | None] | None]]
    #: (settle, return or discard; the deliveries)
    settled: list[tuple[str, list[StoredRun]]]


class Head(msgspec.Struct, array_like=True):
    """The first part of a snapshot from versions.COLUMNS on."""

    version: int
    settings: Settings
    next_seq: int
    last_used_ms: int
    letters: LettersState
    #: Of the replica: what it has applied, and its clock; node, incarnation and number of the last batches;
    #: see quorum_queue.machine.replicated.
    applied: int
    now_ms: int
    batches: list[tuple[str, int, int]]
    gap: list[str] | None
    #: True if the queue takes nothing any more; see quorum_queue.machine.seal.
    sealed: bool
    #: From versions.MESSAGE_GROUPS on; see quorum_queue.machine.order.message_groups.
    scanned: int = 0
    #: Positions and times of arrivals.
    arrivals: tuple[list[int], list[int]] = ([], [])
    #: From versions.PAUSES on: how often publishes were paused.
    pauses: int = 0


__all__ = [
    "Column",
    "Head",
    "OldMachine",
    "OldRun",
    "StoredBlock",
    "StoredConsumer",
    "StoredPart",
    "StoredRun",
]
