"""The records of snapshots.

They are in a module of their own because mypyc cannot compile a msgspec Struct: a module with one runs
interpreted.
"""

import msgspec


class DedupState(msgspec.Struct, array_like=True):
    """The whole state, oldest first."""

    ids: list[tuple[bytes, int]]
    #: producer, highest sequence, last used
    producers: list[tuple[bytes, int, int]]


class LocationsState(msgspec.Struct, array_like=True):
    firsts: bytes
    counts: bytes
    entries: bytes
    ordinals: bytes
    pinned: bytes
    live: bytes


class ReplicaState(msgspec.Struct, array_like=True):
    version: int
    applied: int
    now_ms: int
    batches: list[tuple[str, int, int]]
    locations: bytes
    machine: bytes
    gap: list[str] | None = None
