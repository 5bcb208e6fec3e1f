"""How far the topology is on each node, and who waits until all of them are there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from quorum_queue.cluster import frames
from quorum_queue.links.mesh import Mesh

#: A node that has not applied a change by then is not waited for, ms.
SPREAD_MS = 1_000


class Spread:
    def __init__(self, mesh: Mesh, clock: Callable[[], int]) -> None:
        self._mesh = mesh
        self._clock = clock
        #: How far it is here, as is known now and as the others were told; and how far it is there.
        self._here = self._told = 0
        self._applied: dict[str, int] = {}
        self._waiting: deque[tuple[int, int, Callable[[], None]]] = deque()

    def up(self) -> list[str]:
        """Return the other nodes that can be reached and know the topology."""
        return [peer for peer in self._mesh.connected() if self._applied.get(peer)]

    def wait(self, index: int, then: Callable[[], None]) -> None:
        """Call back when the nodes in reach have applied this: a client may go on at any of them."""
        self._waiting.append((index, self._clock() + SPREAD_MS, then))
        self.go_on()

    def go_on(self) -> None:
        applied = self._applied
        while self._waiting:
            index, deadline_ms, then = self._waiting[0]
            lag = any(applied.get(peer, 0) < index for peer in self._mesh.connected())
            if lag and self._clock() < deadline_ms:
                return
            self._waiting.popleft()
            then()

    def applied_here(self, index: int) -> None:
        """This node has applied so much; the others are told with the next frames."""
        self._here = index

    def flush(self) -> None:
        """Tell the others how far it is here."""
        if self._here > self._told:
            self._told = self._here
            for peer in self._mesh.connected():
                self._mesh.send(peer, frames.applied(self._told))

    def heard(self, peer: str, applied: int) -> None:
        self._applied[peer] = applied
        self.go_on()

    def link_up(self, peer: str) -> None:
        self._applied[peer] = 0
        self._mesh.send(peer, frames.applied(self._told))
