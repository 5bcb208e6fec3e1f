"""The nodes of the cluster, and the data about each from the topology's log. Only the catalog writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from amqp_server.cluster.membership.zones import Zones
from quorum_queue.machine import versions

#: Number of the last possible batch of a start.
LAST_BATCH = (1 << 63) - 1


class GivenUpEntries(msgspec.Struct, frozen=True, array_like=True):
    """Entries of group 0 that an operator has given up, until one node's records replace those of all; see
    catalog.
    """

    #: Index of the first of them; 0 if there is none.
    first: int = 0
    #: Nodes with a batch applied since. The next batch of another node is taken even if earlier ones are
    #: missing.
    heard: tuple[str, ...] = ()
    #: Index of the last change of the topology in the log.
    last_change: int = 0


NOTHING_GIVEN_UP = GivenUpEntries()


class Roster:
    """The nodes as of the last entry of group 0 that was applied here."""

    def __init__(self, zones: Zones | None = None) -> None:
        self.zones = zones or Zones()
        #: Addresses by name; the address of a node that is about to leave is empty.
        self.nodes: dict[str, str] = {}
        #: Incarnation and number of the last batch of each node.
        self.batches: dict[str, tuple[int, int]] = {}
        #: Index of the first batch of each node's last start, or of the node's removal.
        self.begun: dict[str, int] = {}
        #: The version that all nodes know, and that queues may be raised to; see
        #: quorum_queue.machine.versions.
        self.version = versions.FIRST
        self.given_up = NOTHING_GIVEN_UP

    def restore(
        self,
        nodes: Mapping[str, str],
        batches: Mapping[str, tuple[int, int]],
        begun: Mapping[str, int],
        version: int,
        given_up: GivenUpEntries,
    ) -> None:
        """Take over the roster of a snapshot."""
        self.given_up = given_up
        self.nodes, self.batches, self.begun = dict(nodes), dict(batches), dict(begun)
        self.version = version

    @property
    def staying(self) -> list[str]:
        """The nodes for new queues: all except those that are about to leave."""
        return sorted(name for name, address in self.nodes.items() if address)

    def incarnation_of(self, node: str) -> int:
        """Return the number of the last known start of a node; 0 if none is known."""
        return self.batches.get(node, (0, 0))[0]

    def is_known(self, node: str) -> bool:
        """True if the log has a batch of this node since it joined. Until then the node is catching up."""
        return 0 < self.batches.get(node, (0, 0))[1] < LAST_BATCH

    def unnamed(self, names: Iterable[str]) -> list[str]:
        """Return the nodes among these that the log has not named yet,
        neither as nodes nor as removed ones.
        """
        return [
            name
            for name in names
            if name not in self.nodes and self.batches.get(name, (0, 0))[1] != LAST_BATCH
        ]

    def removed_at(self, node: str) -> int:
        """Return the index at which a node was removed, if it has not joined since; else 0."""
        if node in self.nodes or self.batches.get(node, (0, 0))[1] != LAST_BATCH:
            return 0
        return self.begun.get(node, 0)
