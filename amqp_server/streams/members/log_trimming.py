"""The part of a stream's log that a member no longer needs: up to the last entry whose messages are all in
this member's segments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from amqp_server.streams.layout.deduplication import Taken
from amqp_server.streams.layout.encode import Encoded
from amqp_server.streams.members.entries import CodecError
from amqp_server.streams.members.replica import (
    StreamReplica,
    StreamState,
    encode_with,
    pieces_of,
    take_piece,
)
from quorum_queue.cluster.snapshots.state_of import unreadable
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import Turn
from quorum_queue.steps import in_steps

if TYPE_CHECKING:
    from amqp_server.streams.local_host import StreamHost


class Stable:
    """That entry and the state after it: a snapshot of the group."""

    def __init__(self, replica: StreamReplica, settings: Settings) -> None:
        self.index = 0
        self.state = replica.state()
        #: Names that were taken up to that entry, and the times and names of batches behind it.
        self._taken = Taken(settings) if settings.deduplicates else None
        self._behind: deque[tuple[int, Sequence[bytes]]] = deque()
        #: Numbers of these batches: the next one, and the first one behind that entry.
        self.next = self._first = 0

    def begin_with(self, replica: StreamReplica) -> None:
        """Begin at the replica's state: the segments have all messages up to here."""
        self.index, self.state = replica.applied, replica.state()
        if self._taken is not None and replica.taken is not None:
            self._taken.copy_from(replica.taken)
            self._behind.clear()
            self._first = self.next

    def add(self, encoded: Encoded) -> None:
        """Add a batch that was applied."""
        if self._taken is not None:
            self._behind.append((encoded.batch.time_ms, encoded.names))
            self.next += 1

    def reach(self, index: int, state: StreamState, stop: int) -> None:
        """The segments have all messages up to this entry, and the batches before number `stop`."""
        self.index, self.state = index, state
        taken = self._taken
        while taken is not None and self._first < stop:
            taken.apply(*self._behind.popleft())
            self._first += 1

    def pieces(self) -> Iterator[bytes] | None:
        """Return the names that were taken up to that entry; None if duplicates are not dropped."""
        return None if self._taken is None else pieces_of(self.state, self._taken)


def encode_in_parts(host: StreamHost, stable: Stable, turn: Turn, then: Callable[[bytes], None]) -> None:
    """Encode a snapshot of this moment, some names in each turn, and call `then`."""
    in_steps(turn, _encode(host, stable.state, stable.pieces(), then), host.failed)


def _encode(
    host: StreamHost, state: StreamState, pieces: Iterator[bytes] | None, then: Callable[[bytes], None]
) -> Iterator[None]:
    if pieces is None:
        then(encode_with(state, None))
        return
    found: list[bytes] = []
    for piece in pieces:
        found.append(piece)
        yield
        if host.ended:
            return
    then(encode_with(state, found))


def read_names(
    host: StreamHost,
    taken: Taken,
    pieces: Sequence[bytes],
    turn: Turn,
    wanted: Callable[[], bool],
    then: Callable[[], None],
) -> None:
    """Read the names that were taken, some of them in each turn, as long as they are wanted, and call
    `then`.
    """
    in_steps(turn, _read(host, taken, pieces, wanted, then), host.failed)


def _read(
    host: StreamHost,
    taken: Taken,
    pieces: Sequence[bytes],
    wanted: Callable[[], bool],
    then: Callable[[], None],
) -> Iterator[None]:
    for piece in pieces:
        try:
            take_piece(taken, piece)
        except CodecError as error:
            raise unreadable(error) from None
        yield
        if host.ended or not wanted():
            return
    then()


__all__ = ["Stable", "encode_in_parts", "read_names"]
