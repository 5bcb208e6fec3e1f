"""Tracks which nodes have links with each other, as they report, and which of them reaches most members of a
group.

Batches go directly to the leader, and entries come directly from it. While one link is dead, the node at one
end cannot use a leader at the other end, though both are alive. So each node tells the others which nodes it
has links with (frames.REACH): when that changes, and at the beginning of each link. A leader compares the
members that it reaches with those that other voters reach; see handover.

Two rules keep leaders from moving to and fro. *Leaving is quick, returning is slow*: a lost link counts after
`reach_ms`, because all nodes notice a dead node within that time; and leaders return only when a link that
was lost and is back has lasted for `steady_ms`. *A link that breaks again and again* (`FLAPS` times within
`steady_ms`) counts as lost even while it is up, unless the other voter's link with the same node breaks as
often: then that node is the cause.

A node of an earlier version does not report its links. It never gets a group because of them; groups that it
should lead return to it unless another node reports that it has no link with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from quorum_queue.clock import Clock
from quorum_queue.cluster import frames
from quorum_queue.cluster.frames import ReachWord
from quorum_queue.cluster.options import ReplicationOptions
from quorum_queue.cluster.ports import Links

#: A link that broke so often within `steady_ms` is unreliable.
FLAPS = 3


class Breaks:
    """Recent breaks of links, by the node at the other end."""

    __slots__ = ("_at_ms",)

    def __init__(self) -> None:
        self._at_ms: dict[str, list[int]] = {}

    def note(self, node: str, now_ms: int) -> None:
        self._at_ms[node] = [*self._at_ms.get(node, ())[1 - FLAPS :], now_ms]

    def any(self, node: str) -> bool:
        return node in self._at_ms

    def count(self, node: str, since_ms: int) -> int:
        """Return the number of breaks since then, FLAPS at most."""
        return sum(at_ms >= since_ms for at_ms in self._at_ms.get(node, ()))


class PeerReports:
    """A peer's reports about its links in the present session."""

    __slots__ = ("breaks", "leads", "linked", "restored_ms")

    def __init__(self) -> None:
        self.leads = True
        self.linked: tuple[str, ...] = ()
        self.breaks = Breaks()
        #: When the peer's lost links came back, by the node at the other end.
        self.restored_ms: dict[str, int] = {}

    def hear(self, word: ReachWord, now_ms: int) -> None:
        for node in self.linked:
            if node not in word.linked:
                self.breaks.note(node, now_ms)
        for node in word.linked:
            if node not in self.linked and self.breaks.any(node):
                self.restored_ms[node] = now_ms
        self.leads, self.linked = word


class Reach:
    def __init__(
        self,
        node: str,
        links: Links,
        clock: Clock,
        *,
        leads: Callable[[], bool],
        options: ReplicationOptions,
    ) -> None:
        """`leads` returns whether this node accepts leadership now."""
        self.node = node
        self.options = options
        self._links = links
        self._clock = clock
        self._leads = leads
        #: Linked peers that understand REACH, with their reports.
        self._told: dict[str, PeerReports] = {}
        #: This node's last report to them.
        self._said: dict[str, ReachWord] = {}
        self._breaks = Breaks()
        #: Nodes that other nodes reach and this one does not, with the time when that began.
        self._apart_since: dict[str, int] = {}

    # -- frames
    # ----------------------------------------------------------------------------------------------------

    def link_up(self, peer: str, features: Collection[str]) -> None:
        self._told.pop(peer, None)
        self._said.pop(peer, None)
        if frames.REACH_FEATURE in features:
            self._told[peer] = PeerReports()
        self.tell()

    def link_down(self, peer: str) -> None:
        self._told.pop(peer, None)
        self._said.pop(peer, None)
        self._breaks.note(peer, self._clock.monotonic_ms())
        self.tell()

    def tell(self) -> None:
        """Tell the others about changes of this node's links."""
        self._look()
        word = ReachWord(self._leads(), tuple(sorted(self._links.connected())))
        for peer in self._told:
            if self._said.get(peer) != word and self._links.send(peer, frames.reach(word)):
                self._said[peer] = word

    def heard(self, peer: str, word: ReachWord) -> None:
        told = self._told.get(peer)
        if told is None:
            return
        told.hear(word, self._clock.monotonic_ms())
        self._look()

    def understands(self, peer: str) -> bool:
        """Return whether a connected peer understands REACH."""
        return peer in self._told

    def _look(self) -> None:
        """Note the nodes that are alive and that this node does not reach."""
        now, connected = self._clock.monotonic_ms(), self._links.connected()
        alive = {
            node: None
            for told in self._told.values()
            for node in told.linked
            if node != self.node and node not in connected
        }
        before = self._apart_since
        self._apart_since = {node: before.get(node, now) for node in alive}

    # -- known links
    # -----------------------------------------------------------------------------------------------

    def is_alive(self, node: str) -> bool:
        """Return whether this node, or one that it has a link with, has a link with the given one."""
        return node == self.node or node in self._links.connected() or node in self._apart_since

    def apart(self) -> list[str]:
        """Return the nodes that are alive and that this node does not reach."""
        return list(self._apart_since)

    def linked(self, one: str, two: str) -> bool:
        """Return whether these two nodes reach each other, as far as this node knows."""
        if one == two:
            return True
        if self.node in (one, two):
            return (two if one == self.node else one) in self._links.connected()
        told, answer = self._told.get(one), self._told.get(two)
        if told is None and answer is None:
            # Neither of them reports its links: assume that they reach each other, as long as this node
            # reaches both.
            connected = self._links.connected()
            return one in connected and two in connected
        return (told is None or two in told.linked) and (answer is None or one in answer.linked)

    def takes_leaders(self, peer: str) -> bool:
        """Return whether a connected peer accepts leadership, as far as this node knows."""
        told = self._told.get(peer)
        return told is None or told.leads

    def count(self, node: str, names: Iterable[str]) -> int:
        """Return how many of these nodes a node reaches, itself included."""
        return sum(self.linked(node, name) for name in names)

    def dead_links(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Return the pairs of these nodes that are alive and do not reach each other, as far as this node
        knows.
        """
        here = (self.node, *self._links.connected())
        alive = sorted(name for name in names if self.is_alive(name))
        return [
            (one, two)
            for at, one in enumerate(alive)
            for two in alive[at + 1 :]
            # This node knows nothing about two nodes that it does not reach.
            if (one in here or two in here) and not self.linked(one, two)
        ]

    def missed(self, placed: Sequence[str]) -> int:
        """Return how many of these nodes are alive and the first of them does not reach."""
        return sum(self.is_alive(name) and not self.linked(placed[0], name) for name in placed)

    # -- choosing leaders
    # ------------------------------------------------------------------------------------------

    def lacking(self) -> list[str]:
        """Return the nodes that this node has not reached for long, or not reliably, and others may reach."""
        since = self._clock.monotonic_ms() - self.options.reach_ms
        lost = [node for node, at_ms in self._apart_since.items() if at_ms <= since]
        return lost + [node for node in self._links.connected() if self._flaps(node)]

    def gain(self, peer: str, members: Iterable[str]) -> int:
        """Return how many more members a peer reaches than this node."""
        told = self._told.get(peer)
        if told is None or not told.leads:
            return 0
        lacking, connected = self.lacking(), self._links.connected()
        gain = 0
        for member in members:
            if member in (self.node, peer):
                continue
            here = member not in lacking and (member in connected or member in self._apart_since)
            gain += self._reaches(peer, told, member) - here
        return gain

    def _reaches(self, peer: str, told: PeerReports, node: str) -> bool:
        flaps = told.breaks.count(node, self._clock.monotonic_ms() - self.options.steady_ms) >= FLAPS
        return self.linked(peer, node) and not flaps

    def _flaps(self, node: str) -> bool:
        return self._breaks.count(node, self._clock.monotonic_ms() - self.options.steady_ms) >= FLAPS

    def may_return(self, peer: str, members: Iterable[str]) -> bool:
        """Return whether a peer reaches as many of the members as this node, by links that have lasted long
        enough.
        """
        if not self.takes_leaders(peer):
            return False
        since = self._clock.monotonic_ms() - self.options.steady_ms
        told, connected = self._told.get(peer), self._links.connected()
        there = here = 0
        for member in members:
            restored_ms = None if told is None else told.restored_ms.get(member)
            steady = restored_ms is None or restored_ms <= since
            there += steady and self.linked(peer, member)
            # A link that this node has lost just now may be back soon.
            here += member == self.node or member in connected or self._breaks.count(member, since) > 0
        return there >= here


__all__ = ["Reach", "ReachWord"]
