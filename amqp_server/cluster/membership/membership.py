"""Which cluster a data directory belongs to, and whether the node may use it.

An old copy of a directory is dangerous: the node has voted and acknowledged entries since then, and does not
remember it. Only the other nodes can know. They note each start of a node and how much its disk has written,
and tell the node on the next link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from amqp_server.cluster.errors import ClusterError, OutOfCluster

if TYPE_CHECKING:
    from amqp_server.broker.metadata import Metadata
    from persistence.replica_logs.logs import Groups

TABLE, FOUNDED, INCARNATION, OUT = "cluster", "founded", "incarnation", "out"
BEGAN = "began"

#: Minimum distance between the numbers of two starts of a node. A node that left a group and joined again
#: counts up from the number of its start: see quorum_queue.cluster.replicas.Replicas.own_in.
STARTS_APART = 1_000
SALTS = 1 << 16

REMOVED = (
    "this node was removed from its cluster. To let it join again, run `mqctl cluster join` at "
    "another node, and start this node with an empty data directory"
)
TURNED_BACK = (
    "the data directory is older than what this node has told the other nodes: a copy of it was restored. "
    "It lacks votes that the node has given; start the node with an empty data directory, and the others fill it"
)


CHOOSE_ONE = (
    "nodes '{first}' ({first_data}) and '{second}' ({second_data}) have both run as single nodes, "
    "and each has its own data, but a cluster starts with the data of one node. Start all other "
    "nodes with empty data directories (--data-dir). Nothing was changed: a node that is started "
    "without --peers has its data as before, and clients can move it"
)
TOO_LATE = (
    "node '{name}' has run as a single node and has its own data in {data}, but the cluster "
    "exists already, with node '{peer}', and accepts only empty nodes. Start '{name}' with an "
    "empty data directory (--data-dir). Nothing was changed: without --peers, the node has its "
    "data as before, and clients can move it"
)


class Founded(msgspec.Struct, frozen=True):
    """A node's note about its cluster, on disk."""

    #: Identities of the data directories that the cluster was founded with.
    nodes: dict[str, str]
    #: True if this node's directory is not among them: the node had another one, or joined later.
    lost: bool = False
    #: Groups declared up to this index of group 0 may have known another directory of this node.
    lost_before: int = 0
    #: The name of this node.
    name: str = ""
    #: The node whose directory the cluster began with, if not all were empty: at first it was the only
    #: member.
    origin: str = ""
    #: Queues declared up to this index of group 0 were in that directory.
    began_at: int = 0

    @property
    def forgotten_before(self) -> int:
        """Index of group 0: groups declared up to it may be older than this node's disk, if they are not on
        the disk.
        """
        if self.lost_before:
            return self.lost_before
        return 1 << 62 if self.lost else self.began_at

    @property
    def since(self) -> int:
        """The index of group 0 at which this directory joined the cluster."""
        return self.lost_before or (1 << 62 if self.lost else 0)


class Seen(msgspec.Struct, frozen=True):
    """A node's knowledge of another node."""

    #: The other node's last start.
    incarnation: int = 0
    #: Its directory, its start, and how much its disk had written, as the other node last said.
    identity: str = ""
    said_in: int = 0
    written: int = 0


class About(msgspec.Struct, frozen=True):
    """The first frame on a link: what nodes tell each other about themselves."""

    identity: str
    founded: Founded | None
    #: Names of the nodes that the sender is configured with.
    peers: list[str] = []
    #: The sender's knowledge of the receiver.
    seen: Seen = Seen()
    #: Path of the sender's data directory, if the sender has run without a cluster and brings its data.
    brings: str = ""
    #: All nodes of the cluster and their addresses, as the sender knows them. A node with an empty disk
    #: learns them only here.
    nodes: dict[str, str] = {}
    #: Index of group 0 at which the receiver was removed from the cluster; 0 if it was not.
    removed_at: int = 0


class Directory:
    """The data directory of this node, as it was at the start."""

    def __init__(self, metadata: Metadata, identity: str, written: int) -> None:
        self._metadata = metadata
        self.identity = identity
        #: Number of commits to the disk before this start.
        self.written = written
        notes = dict(metadata.items(TABLE))
        #: Number of the start before this one; 0 if there was none.
        self.before = int(notes.get(INCARNATION, b"0"))
        self.founded = msgspec.json.decode(notes[FOUNDED], type=Founded) if FOUNDED in notes else None
        self._out = notes.get(OUT, b"").decode()
        self._began = BEGAN in notes

    def begin(self, now_ms: int, salt: int) -> int:
        """Return a number higher than that of any earlier start with this directory.

        It is also higher than the numbers of starts with a lost disk, unless the clock is behind: then the
        others know the higher number. If the clock is behind, `salt` makes the number differ from that of a
        start that this directory has forgotten, because a copy of it was put back.
        """
        first = self.before + STARTS_APART
        incarnation = now_ms if now_ms >= first else first + salt % SALTS
        self._metadata.put(TABLE, INCARNATION, b"%d" % incarnation)
        return incarnation

    def note_later_start(self, incarnation: int) -> None:
        """The cluster knows of this start, made with another directory: the
        next start needs a higher number.
        """
        self._metadata.put(TABLE, INCARNATION, b"%d" % incarnation)

    def note_began(self) -> None:
        """The cluster's log has the first batch of a start with this directory."""
        if not self._began:
            self._began = True
            self._metadata.put(TABLE, BEGAN, b"1")

    def note_founded(self, founded: Founded) -> None:
        self.founded = founded
        self._metadata.put(TABLE, FOUNDED, msgspec.json.encode(founded))

    def note_out(self, why: str) -> None:
        """Note that this directory must not be used again."""
        self._metadata.put(TABLE, OUT, why.encode())

    def check(self, data_dir: str, name: str) -> None:
        """Raise ClusterError if this node of a cluster cannot use the directory."""
        if self._out:
            raise OutOfCluster(f"{data_dir}: {self._out}")
        if self.founded is not None and self.founded.name != name:
            raise ClusterError(
                f"the data directory {data_dir} belongs to node '{self.founded.name}' of a cluster, not to '{name}'"
            )

    def turned_back(self, node: str, founded: Founded, seen: Seen, incarnation: int) -> bool:
        """Return whether another node has seen a later state of this directory: then it is an old copy."""
        # A disk that is new to the cluster, and has no batch in the cluster's log yet, cannot know of earlier
        # starts.
        own = founded.nodes.get(node) == self.identity
        begun = own or self._began or (self.founded is not None and self.founded.lost_before > 0)
        if begun and self.before and self.before < seen.incarnation != incarnation:
            return True
        return seen.identity == self.identity and seen.said_in != incarnation and seen.written > self.written


def check_alone(metadata: Metadata, data_dir: str) -> None:
    """Raise ClusterError for the directory of a node of a cluster."""
    for name, value in metadata.items(TABLE):
        if name == FOUNDED:
            node = msgspec.json.decode(value, type=Founded).name
            raise ClusterError(
                f"the data directory {data_dir} belongs to node '{node}' of a cluster: "
                "start it with --peers, or choose another directory with --data-dir"
            )


def drop_copies(groups: Groups) -> None:
    """Drop the copies of an adoption that did not finish."""
    for found in groups.recover():
        groups.drop(found.group)
