"""Snapshots of quorum queues in parts: many messages take longer to encode, or to read, than a turn may."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from quorum_queue.errors import Unreadable
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.replicated import Replica
from quorum_queue.machine.snapshots import snapshot

if TYPE_CHECKING:
    from quorum_queue.cluster.queues.member_host import GroupHost


class Encoding:
    """Encodes the state of the moment when this is made, a part in each turn."""

    __slots__ = ("_host", "_then", "_view")

    def __init__(self, host: GroupHost, then: Callable[[bytes], None]) -> None:
        self._host = host
        self._then = then
        self._view = host.replica.view()

    def go_on(self) -> None:
        host, view = self._host, self._view
        turn = host.services.turn
        if host.ended:
            view.end()
            return
        while view.go_on():
            if turn.overdue():
                turn.later(self, self.go_on)
                return
        self._then(view.replica())

    def failed(self, error: Exception) -> None:
        """See quorum_queue.boundary.Unit."""
        self._host.failed(error)


class Reading:
    """Reads a snapshot of another node, a part in each turn, as long as it is wanted."""

    __slots__ = ("_host", "_reading", "_state", "_then", "_wanted")

    def __init__(
        self, host: GroupHost, state: bytes, wanted: Callable[[], bool], then: Callable[[], None]
    ) -> None:
        self._host = host
        self._state = state
        self._wanted = wanted
        self._then = then
        self._reading = snapshot.Reading(state)

    def go_on(self) -> None:
        """Raises Unreadable."""
        host, turn = self._host, self._host.services.turn
        if host.ended or not self._wanted():
            return
        try:
            while self._reading.go_on():
                if turn.overdue():
                    turn.later(self, self.go_on)
                    return
        except CodecError as error:
            raise unreadable(error) from None
        host.read = self._state, Replica.of(self._reading)
        self._then()

    def failed(self, error: Exception) -> None:
        """See quorum_queue.boundary.Unit."""
        self._host.failed(error)


def unreadable(error: CodecError) -> Unreadable:
    return Unreadable(f"its snapshot can't be read by this version of mqd: {error}")


__all__ = ["Encoding", "Reading", "unreadable"]
