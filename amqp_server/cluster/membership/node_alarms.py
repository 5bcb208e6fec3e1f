"""Nodes tell each other why they block publishers.

A classic queue is kept by one node, and clients of all nodes publish to it. Without this they would fill the
memory of a node whose disk is full, and that node could not stop them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from amqp_server.broker.alarms import Alarms
from quorum_queue.cluster import frames


class Links(Protocol):
    def send(self, peer: str, parts: list[bytes]) -> bool: ...

    def connected(self) -> Collection[str]: ...

    def features_of(self, peer: str) -> Collection[str]: ...


class NodeAlarms:
    def __init__(self, links: Links, alarms: Alarms) -> None:
        self._links = links
        self._alarms = alarms
        #: What the others know of this node.
        self._told = ""

    def tell(self) -> None:
        """The alarms of this node may have changed. Within a turn."""
        if self._alarms.reason != self._told:
            self._told = self._alarms.reason
            for peer in self._links.connected():
                self._send(peer)

    def link_up(self, peer: str) -> None:
        if self._told:
            self._send(peer)

    def link_down(self, peer: str) -> None:
        self._alarms.set_elsewhere(peer, "")

    def _send(self, peer: str) -> None:
        if frames.ALARM_FEATURE in self._links.features_of(peer):
            self._links.send(peer, frames.alarm(self._told))

    def heard(self, peer: str, frame: memoryview) -> None:
        """Take the reason of another node. Raises FrameError."""
        self._alarms.set_elsewhere(peer, frames.parse_alarm(frame))
