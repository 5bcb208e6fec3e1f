"""Tells nodes that they were removed from the cluster, and then ends the links with them."""

from __future__ import annotations

from collections.abc import Callable

from amqp_server.cluster.membership.roster import Roster
from quorum_queue.clock import Clock
from quorum_queue.links.mesh import Mesh

#: Time that links with a removed node stay open, ms.
LEAVE_MS = 2_000
#: Time after which a removed node that still dials may have a link again, to get the message again, ms.
REMIND_MS = 10_000


class RemovedNodes:
    """The removed nodes that this node still has to tell."""

    def __init__(self, mesh: Mesh, roster: Roster, clock: Clock) -> None:
        self._mesh = mesh
        self._roster = roster
        self._clock = clock
        #: When the links with removed nodes end, ms.
        self._leaving: dict[str, int] = {}
        #: Linked nodes that were told of their removal.
        self._told: dict[str, None] = {}
        #: When nodes that were told of their removal may be told again, ms.
        self._reminded: dict[str, int] = {}

    def add(self, name: str) -> None:
        """A node was removed just now."""
        self._leaving[name] = self._clock.monotonic_ms() + LEAVE_MS

    def link_down(self, name: str) -> None:
        self._told.pop(name, None)

    def may_link(self, name: str) -> bool:
        """True if a removed node may have a link for a while, because it has not been told yet."""
        return self._roster.removed_at(name) > 0 and self._reminded.get(name, 0) <= self._clock.monotonic_ms()

    def tell(self, tell: Callable[[str], None]) -> None:
        """Call `tell` for linked removed nodes: perhaps no other node can tell them."""
        for name in self._mesh.connected():
            if name not in self._told and self._roster.removed_at(name):
                self._told[name] = None
                tell(name)
                self._leaving.setdefault(name, self._clock.monotonic_ms() + LEAVE_MS)

    def end_links(self) -> None:
        """End the links with nodes that had time to read the message."""
        now = self._clock.monotonic_ms()
        for name in [name for name, at in self._leaving.items() if at <= now]:
            del self._leaving[name]
            if name not in self._roster.nodes:
                if name in self._told:
                    self._reminded[name] = now + REMIND_MS
                self._mesh.remove_peer(name)
