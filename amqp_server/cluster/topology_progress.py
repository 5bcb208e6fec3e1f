"""The topology index that each node has applied, and the clients that wait until all nodes have applied one.

Clients also wait for a live node that this node does not reach: a node that reaches both passes on its
progress. They do not wait again for a node that made one of them wait for the longest time, until it has
applied what that one waited for. Nor do they wait for a node that says that its disk takes no writes: it may
be full for hours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from quorum_queue.clock import Clock
from quorum_queue.cluster import frames
from quorum_queue.cluster.connectivity import Reach
from quorum_queue.links.mesh import Mesh

#: Longest time that clients wait for a node that has not applied a change, ms.
SPREAD_MS = 1_000


class TopologyProgress:
    def __init__(self, mesh: Mesh, clock: Clock, reach: Reach) -> None:
        self._mesh = mesh
        self._clock = clock
        self._reach = reach
        #: This node's progress, now and as last told to the others; and the progress of the others.
        self._here = self._told = 0
        self._applied: dict[str, int] = {}
        self._waiting: deque[tuple[int, int, Callable[[], None]]] = deque()
        #: Nodes that clients waited for in vain, with the index that they waited for.
        self._late: dict[str, int] = {}
        #: Nodes whose disks take no writes.
        self._stalled: dict[str, None] = {}

    def up(self) -> list[str]:
        """Return the other nodes that can be reached, know the topology, and apply it in time."""
        return [
            peer for peer in self._mesh.connected() if self._applied.get(peer) and not self._is_late(peer)
        ]

    def wait(self, index: int, then: Callable[[], None]) -> None:
        """Call back when all live nodes have applied this index: then a client may use any of them."""
        self._waiting.append((index, self._clock.monotonic_ms() + SPREAD_MS, then))
        self.go_on()

    def go_on(self) -> None:
        applied = self._applied
        while self._waiting:
            index, deadline_ms, then = self._waiting[0]
            awaited = [*self._mesh.connected(), *self._reach.apart()]
            lag = [node for node in awaited if applied.get(node, 0) < index and not self._is_late(node)]
            if lag and self._clock.monotonic_ms() < deadline_ms:
                return
            self._late.update(dict.fromkeys(lag, index))
            self._waiting.popleft()
            then()

    def stalls(self, node: str, stalled: bool) -> None:
        """This node says whether its disk takes no writes."""
        if stalled:
            self._stalled[node] = None
            self.go_on()
        else:
            self._stalled.pop(node, None)

    def _is_late(self, node: str) -> bool:
        if node in self._stalled:
            return True
        index = self._late.get(node)
        if index is None:
            return False
        if self._applied.get(node, 0) < index:
            return True
        del self._late[node]
        return False

    def applied_here(self, index: int) -> None:
        """This node has applied up to this index; the next frames tell the others."""
        self._here = index

    def flush(self) -> None:
        """Tell the others this node's progress."""
        if self._here > self._told:
            self._told = self._here
            for peer in self._mesh.connected():
                self._mesh.send(peer, frames.applied(self._told))

    def heard(self, peer: str, applied: int) -> None:
        self._applied[peer] = applied
        for other in self._mesh.connected():
            self._pass_on(peer, other)
        self.go_on()

    def heard_of(self, node: str, applied: int) -> None:
        """A peer has passed on the progress of a node that this one does not reach."""
        if node not in self._mesh.connected():
            self._applied[node] = max(applied, self._applied.get(node, 0))
            self.go_on()

    def _pass_on(self, node: str, to: str) -> None:
        """Tell a peer the progress of another one, if they do not reach each other."""
        if node != to and self._reach.understands(to) and not self._reach.linked(node, to):
            self._mesh.send(to, frames.further(node, self._applied.get(node, 0)))

    def reach_changed(self, peer: str) -> None:
        """A peer has told which nodes it reaches."""
        for other in self._mesh.connected():
            self._pass_on(other, peer)
        self.go_on()

    def link_up(self, peer: str) -> None:
        self._applied[peer] = 0
        self._late.pop(peer, None)
        self._mesh.send(peer, frames.applied(self._told))
