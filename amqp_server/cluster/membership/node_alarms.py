"""Nodes tell each other why they block publishers, and that their disks take no writes.

A classic queue is kept by one node, and clients of all nodes publish to it. Without this they would fill the
memory of a node whose disk is full, and that node could not stop them. And all others would wait for such a
node with each change of the topology: it applies a change when it hears of the next one, because the leader
does not know what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from amqp_server.broker.alarms import Alarms
from quorum_queue.cluster import frames


class Links(Protocol):
    def send(self, peer: str, parts: list[bytes]) -> bool: ...

    def connected(self) -> Collection[str]: ...

    def features_of(self, peer: str) -> Collection[str]: ...


class NodeAlarms:
    def __init__(
        self,
        links: Links,
        alarms: Alarms,
        stalled: Callable[[], bool],
        stalls: Callable[[str, bool], None],
    ) -> None:
        """`stalled` says whether this node's disk takes no writes; `stalls` is told that of other nodes."""
        self._links = links
        self._alarms = alarms
        self._stalled = stalled
        self._stalls = stalls
        #: What the others know of this node.
        self._told = "", False

    def tell(self) -> None:
        """Something may have changed. Within a turn."""
        now = self._alarms.reason, self._stalled()
        if now != self._told:
            self._told = now
            for peer in self._links.connected():
                self._send(peer)

    def link_up(self, peer: str) -> None:
        if self._told != ("", False):
            self._send(peer)

    def link_down(self, peer: str) -> None:
        self._take(peer, "", stalled=False)

    def _send(self, peer: str) -> None:
        if frames.ALARM_FEATURE in self._links.features_of(peer):
            reason, stalled = self._told
            self._links.send(peer, frames.alarm(reason, stalled=stalled))

    def heard(self, peer: str, frame: memoryview) -> None:
        """Take the state of another node. Raises FrameError."""
        reason, stalled = frames.parse_alarm(frame)
        self._take(peer, reason, stalled=stalled)

    def _take(self, peer: str, reason: str, *, stalled: bool) -> None:
        self._stalls(peer, stalled)
        self._alarms.set_elsewhere(peer, reason)
