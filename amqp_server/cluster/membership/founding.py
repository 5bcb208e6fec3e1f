"""Finds out which cluster a node belongs to, from the first messages on links.

A cluster is founded when all configured nodes see one another for the first time, each with an empty data
directory: then each node notes the identities of all these directories. A node whose directory is not among
them has lost its disk, or is new. In both cases it has no earlier state, does not vote in groups that may be
older, and is filled by the others. One of the nodes may have run without a cluster before: then the cluster
begins with its data, see adoption.
"""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec

from amqp_server.cluster.membership.machines import votes
from amqp_server.cluster.membership.membership import (
    CHOOSE_ONE,
    REMOVED,
    STARTS_APART,
    TOO_LATE,
    TURNED_BACK,
    About,
    Directory,
    Founded,
    Seen,
)

logger = logging.getLogger("mqd.cluster")


class Fate(Protocol):
    """The node, which acts on the outcome."""

    @property
    def topology_index(self) -> int:
        """Index up to which this node has read the log of group 0."""

    def belong(self, founded: Founded) -> None:
        """This node belongs to this cluster from now on."""

    def complete(self) -> None:
        """All other nodes are linked and empty: the cluster may begin with the data of this node."""

    def overtaken(self, incarnation: int) -> None:
        """The cluster knows of a start of this node with this number, which is higher than this start's."""

    def go(self, why: str) -> None:
        """This node must leave the cluster, and must not start again as a member."""

    def refuse(self, why: str) -> None:
        """This node cannot take part with its directory, which may still be used in another way."""


class Founding:
    def __init__(
        self, directory: Directory, node: str, nodes: list[str], brings: str, incarnation: int, fate: Fate
    ) -> None:
        """`nodes` are the configured ones that vote in the topology; the further workers of a machine follow.
        `brings` is this node's directory if it has run without a cluster.
        """
        self._directory = directory
        self._node = node
        self._nodes = sorted(nodes)
        self._incarnation = incarnation
        self._fate = fate
        self._abouts: dict[str, About] = {}
        self.founded = directory.founded
        self.brings = "" if self.founded is not None else brings
        #: Nodes named by peers, with their addresses.
        self.expected: dict[str, str] = {}

    def tell(self, seen: Seen, nodes: dict[str, str], removed_at: int) -> About:
        """Return the message to a peer; `seen` is this node's knowledge of the peer, `nodes` are all nodes of
        the cluster.
        """
        return About(
            self._directory.identity, self.founded, self._nodes, seen, self.brings, nodes, removed_at
        )

    def heard(self, peer: str, about: About) -> None:
        # A node that was in no cluster with this directory has not voted or acknowledged anything.
        cluster = self.founded or (None if self.brings else about.founded)
        if cluster is not None:
            seen, own = about.seen, self._incarnation
            if self._directory.turned_back(self._node, cluster, seen, own):
                self._fate.go(TURNED_BACK)
            elif own < seen.incarnation + STARTS_APART and own != seen.incarnation:
                self._fate.overtaken(seen.incarnation)
                return
        self._abouts[peer] = about
        # The leader of the topology may have joined after this node was configured.
        self.expected = about.nodes
        if self.founded is not None:
            if self._was_removed(about):
                self._fate.go(REMOVED)
            if about.brings:
                logger.error("%s", TOO_LATE.format(name=peer, data=about.brings, peer=self._node))
        elif about.founded is not None:
            self._follow(peer, about.founded)
        elif votes(self._node):
            self._found(peer, about)

    def _was_removed(self, about: About) -> bool:
        """True if the others know that this node was removed, and this node has not read its removal in the
        log.

        False for a node that joins again with another directory and has yet to read both in the log.
        """
        founded = self.founded
        if founded is None or about.founded is None or about.founded.nodes != founded.nodes:
            return False
        return max(founded.since, self._fate.topology_index) < about.removed_at

    def _follow(self, peer: str, founded: Founded) -> None:
        """Join a cluster that exists."""
        if self.brings:
            self._fate.refuse(TOO_LATE.format(name=self._node, data=self.brings, peer=peer))
            return
        lost = founded.nodes.get(self._node) != self._directory.identity
        if lost and votes(self._node):
            logger.warning("this node's data directory is new to the cluster: the other nodes fill it")
        self._fate.belong(msgspec.structs.replace(founded, lost=lost, lost_before=0, name=self._node))

    def begin(self) -> None:
        """Found a cluster of one, if this node is configured with no others: nobody has to agree."""
        if self.founded is None and self._nodes == [self._node]:
            self._found_if_all_told()

    def _found(self, peer: str, about: About) -> None:
        """Found a cluster, since none exists yet."""
        ours = self._nodes
        if about.peers != ours:
            logger.error(
                "node %s is configured with the peers %s, this node with %s: the cluster starts when they "
                "agree",
                *(peer, ", ".join(about.peers), ", ".join(ours)),
            )
        self._found_if_all_told()

    def _found_if_all_told(self) -> None:
        ours = self._nodes
        bringing = self.bringing() | ({self._node: self.brings} if self.brings else {})
        if len(bringing) > 1:
            self._choose_one(bringing)
            return
        known = {name for name, known in self._abouts.items() if known.peers == ours}
        if not known.issuperset(name for name in ours if name != self._node):
            return
        if self.brings:
            self._fate.complete()
        elif not bringing:
            self._fate.belong(Founded(self.identities(), name=self._node))

    def bringing(self) -> dict[str, str]:
        """Return the other nodes that have run without a cluster, with their data directories."""
        return {name: about.brings for name, about in self._abouts.items() if about.brings}

    def identities(self) -> dict[str, str]:
        """Return the identities of the directories of all nodes; all nodes have announced them."""
        others = {name: self._abouts[name].identity for name in self._nodes if name != self._node}
        return others | {self._node: self._directory.identity}

    def _choose_one(self, bringing: dict[str, str]) -> None:
        """Refuse: several nodes have data of their own, which cannot be merged."""
        (first, first_data), (second, second_data) = sorted(bringing.items())[:2]
        why = CHOOSE_ONE.format(first=first, first_data=first_data, second=second, second_data=second_data)
        if self.brings:
            self._fate.refuse(why)
        else:
            logger.error("%s", why)

    def note(self, founded: Founded) -> None:
        self.founded, self.brings = founded, ""
        self._directory.note_founded(founded)

    def noted(self) -> Founded:
        """The directory was converted into that of a cluster's first node:
        return its note about the cluster.
        """
        self.founded, self.brings = self._directory.founded, ""
        assert self.founded is not None
        return self.founded
