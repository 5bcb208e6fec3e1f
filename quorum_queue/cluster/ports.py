"""The interfaces that replication uses: a store, commits, links."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol


class Store(Protocol):
    """The storage of entries, votes and snapshots; see persistence.replica_logs.logs."""

    def append(self, group: int, entries: Sequence[Any]) -> None: ...

    def hard(self, group: int, term: int, vote: str) -> None: ...

    def snapshot(self, group: int, index: int, term: int, state: bytes | list[bytes]) -> None: ...

    def keep(self, group: int, entries: Sequence[Any]) -> None: ...

    def begin_aside(self, group: int, index: int, term: int) -> None:
        """A snapshot at this index is coming from another node, with entries below it."""

    def keep_aside(self, group: int, entries: Sequence[Any]) -> None:
        """Keep such entries apart from this node's own log, which is valid until the snapshot replaces it."""

    def truncate(self, group: int, index: int) -> None: ...

    def drop_entries(self, group: int, spans: list[range]) -> None: ...

    def drop(self, group: int) -> None: ...

    def read(self, group: int, low: int, high: int, max_bytes: int) -> Sequence[Any]: ...

    def warm(self, group: int, spans: list[tuple[int, int]], done: Callable[[], None]) -> bool:
        """True if these entries can be read without a wait for the disk; else
        `done` is called when they can.
        """


class Commits(Protocol):
    def request(self, done: Callable[[], None] | None = None, *, to_store: bool = False) -> None: ...


class Links(Protocol):
    """Frames to the other nodes; see quorum_queue.links."""

    def send(self, peer: str, parts: list[bytes]) -> bool: ...

    def pending_bytes(self, peer: str) -> int: ...

    def arrived_bytes(self, peer: str) -> int:
        """Return the bytes of a frame from the peer that has not come completely."""

    def connected(self) -> Collection[str]: ...

    def features_of(self, peer: str) -> Collection[str]:
        """Return the features that a connected peer has announced; none of a peer that is not connected."""
