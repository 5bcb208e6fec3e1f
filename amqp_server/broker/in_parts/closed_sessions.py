"""Closes connections for an operator, as many in each turn as it has time for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from amqp_server.broker.topology.sessions import BrokerSession, Sessions
from amqp_server.turn import Turn
from quorum_queue.steps import Steps


class ClosedSessions:
    """The node has one."""

    def __init__(self, turn: Turn, sessions: Sessions) -> None:
        self._turn = turn
        self._sessions = sessions
        #: Sessions that are to be closed, in order, with the reasons.
        self._left: deque[tuple[BrokerSession, str]] = deque()
        self._steps = Steps(turn, self._close_each, "connections could not be closed")

    def close(self, sessions: Iterable[BrokerSession], reason: str) -> None:
        self._left.extend([(session, reason) for session in sessions])
        self._steps.begin()

    def of_vhost(self, name: str) -> None:
        """Close the connections of a vhost that is being deleted."""
        self.close(
            [each for each in self._sessions if each.vhost is not None and each.vhost.name == name],
            f"vhost '{name}' is deleted",
        )

    def _close_each(self) -> Iterator[None]:
        while self._left:
            session, reason = self._left.popleft()
            if self._sessions.get(session.number) is session:
                self._turn.contain(session, session.force_close, reason)
                yield


__all__ = ["ClosedSessions"]
