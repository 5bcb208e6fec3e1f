"""The sessions that are open, and the frames that wait in them for the end of the turn."""

from __future__ import annotations

from collections.abc import Callable

from quorum_queue.links.session import LinkSession


class OpenSessions:
    """At most one with each peer."""

    __slots__ = ("_dirty", "_flush_soon", "_turning", "by_peer")

    def __init__(self, flush_soon: Callable[[], None]) -> None:
        """`flush_soon` arranges a call of `flush` as soon as the present task waits."""
        self._flush_soon = flush_soon
        self.by_peer: dict[str, LinkSession] = {}
        #: Sessions with queued frames.
        self._dirty: dict[LinkSession, None] = {}
        #: True within a turn of the node: its end sends the queued frames.
        self._turning = False

    def send(self, peer: str, parts: list[bytes]) -> bool:
        session = self.by_peer.get(peer)
        if session is None or session.closed or not session.send(parts):
            return False
        if session not in self._dirty:
            self._dirty[session] = None
            if not self._turning:
                self._flush_soon()
        return True

    def remove(self, session: LinkSession) -> None:
        del self.by_peer[session.peer]
        self._dirty.pop(session, None)

    def turn_begins(self) -> None:
        self._turning = True

    def waiting(self) -> list[str]:
        return [session.peer for session in self._dirty]

    def flush(self) -> None:
        self._turning = False
        dirty = self._dirty
        while dirty:
            session, _ = dirty.popitem()
            session.flush()
