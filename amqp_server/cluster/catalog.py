"""The state machine of group 0, which is on all nodes: the topology, and which nodes there are.

The topology's records are on disk on each node, with the index of the last operation in them, so a start needs no
replay of these; this machine's own state, nodes and the numbers of batches, is in the group's snapshot and log.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable

import msgspec

from amqp_server.broker import operations
from amqp_server.broker.operations import DeclareExchange, DeclareQueue, Operation, SetMembers
from amqp_server.broker.records import ExchangeRecord
from amqp_server.broker.topology import Result, Topology
from quorum_queue.raft.members import Members

logger = logging.getLogger("mqd.cluster")

GROUP = 0
_ENTRY = struct.Struct(">BQ")
_VERSION = 1
_LENGTH = struct.Struct(">I")
#: No batch of the same start of a node comes after this one.
LAST_BATCH = (1 << 63) - 1
#: A snapshot has brought what was asked for: it is done, and nobody here knows what there was to change.
UNSEEN = Result(True)


class PutNode(msgspec.Struct, frozen=True, array_like=True, tag=101):
    """A node belongs to the cluster, and is reached at this address. Without one it is about to leave."""

    name: str
    address: str


class RemoveNode(msgspec.Struct, frozen=True, array_like=True, tag=102):
    """A node belongs to the cluster no more."""

    name: str


class Mark(msgspec.Struct, frozen=True, array_like=True, tag=103):
    """Nothing: whoever sees its own applied has applied all that was there before."""


class Change(msgspec.Struct, frozen=True, array_like=True, tag=100):
    """A change of the topology."""

    operation: bytes


Proposal = Change | PutNode | RemoveNode | Mark


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    node: str
    incarnation: int
    number: int
    proposal: Proposal


class _State(msgspec.Struct, frozen=True, array_like=True):
    topology: bytes
    nodes: dict[str, str]
    batches: dict[str, tuple[int, int]]
    #: Where in the log the last start of each node had its first word, or the node was removed.
    begun: dict[str, int] = {}


_encode = msgspec.msgpack.encode
_decode_batch = msgspec.msgpack.Decoder(_Batch).decode
_decode_state = msgspec.msgpack.Decoder(_State).decode


def first_state(topology: bytes, nodes: dict[str, str]) -> bytes:
    """Return the state of a catalog that begins with this topology, and these nodes and their addresses."""
    return _encode(_State(topology, nodes, {}))


class Catalog:
    """See quorum_queue.cluster.group.StateMachine."""

    #: A queue's id is the index of its declaration, so there is one batch to an entry.
    single = True
    #: Whoever made a change goes on when all nodes have applied it.
    awaited = True

    def __init__(self, node: str, incarnation: int, topology: Topology) -> None:
        self._own = (node, incarnation)
        self._topology = topology
        #: Addresses of all nodes of the cluster.
        self.nodes: dict[str, str] = {}
        #: Names taken from them that nobody was told of yet.
        self.removed: list[str] = []
        self._batches: dict[str, tuple[int, int]] = {}
        self._begun: dict[str, int] = {}
        #: Who waits for a batch of this node.
        self._waiting: dict[int, Callable[[Result], None]] = {}
        #: Called after a change of `nodes`, of the members or of the leader.
        self.nodes_changed: Callable[[], None] = lambda: None
        self.led: Callable[[], None] = lambda: None
        #: Called with the place of the first batch of this start in the log.
        self.began: Callable[[int], None] = lambda index: None
        #: Calls back when all nodes that can be reached have applied so much.
        self.spread: Callable[[int, Callable[[], None]], None] = lambda index, then: then()

    @property
    def staying(self) -> list[str]:
        """The nodes that queues may be put on: not those that are about to leave."""
        return sorted(name for name, address in self.nodes.items() if address)

    def incarnation_of(self, node: str) -> int:
        """Return the last start of a node that is known here; 0 if none is."""
        return self._batches.get(node, (0, 0))[0]

    def is_known(self, node: str) -> bool:
        """Has a node been heard of since it joined? The disk of one that was not is yet to be filled."""
        return 0 < self._batches.get(node, (0, 0))[1] < LAST_BATCH

    def removed_at(self, node: str) -> int:
        """Return where in the log a node was removed, and has not joined since; 0 if it was not."""
        if node in self.nodes or self._batches.get(node, (0, 0))[1] != LAST_BATCH:
            return 0
        return self._begun.get(node, 0)

    def batch(self, number: int, proposal: Proposal) -> bytes:
        return _encode(_Batch(*self._own, number, proposal))

    def wait(self, number: int, done: Callable[[Result], None]) -> None:
        self._waiting[number] = done

    def waits(self, number: int) -> bool:
        """Return whether somebody waits for this batch."""
        return number in self._waiting

    def give_up(self, number: int) -> bool:
        """Nobody waits for this batch any more; return whether somebody did. It may still be applied."""
        return self._waiting.pop(number, None) is not None

    # -- quorum_queue.cluster.group.StateMachine -------------------------------------------------------------------

    def encode(self, now_ms: int, batches: list[bytes]) -> bytes:
        parts = [_ENTRY.pack(_VERSION, now_ms)]
        for batch in batches:
            parts += (_LENGTH.pack(len(batch)), batch)
        return b"".join(parts)

    def apply(self, index: int, data: bytes) -> None:
        offset = _ENTRY.size
        while offset < len(data):
            (size,) = _LENGTH.unpack_from(data, offset)
            offset += _LENGTH.size
            self._apply(index, _decode_batch(data[offset : offset + size]))
            offset += size

    def _apply(self, index: int, batch: _Batch) -> None:
        incarnation, last = self._batches.get(batch.node, (0, 0))
        if batch.incarnation < incarnation:
            return
        if batch.number != (last + 1 if batch.incarnation == incarnation else 1):
            return
        self._batches[batch.node] = (batch.incarnation, batch.number)
        if batch.number == 1:
            self._begun[batch.node] = index
        proposal = batch.proposal
        result = Result(True)
        if isinstance(proposal, Change):
            result = self._change(index, proposal.operation)
        elif isinstance(proposal, PutNode):
            self.nodes[proposal.name] = proposal.address
            self.nodes_changed()
        elif isinstance(proposal, RemoveNode):
            if self.nodes.pop(proposal.name, None) is not None:
                self._removed(proposal.name)
                # What it has proposed before and comes only now is not to bring anything of it back.
                self._batches[proposal.name] = (self.incarnation_of(proposal.name), LAST_BATCH)
                self._begun[proposal.name] = index
            self.nodes_changed()
        if (batch.node, batch.incarnation) == self._own:
            if batch.number == 1:
                self.began(index)
            done = self._waiting.pop(batch.number, None)
            if done is not None:
                self.spread(index, lambda: done(result))

    def _removed(self, name: str) -> None:
        node, incarnation = self._own
        # This node may read in the log how it was removed once, before it joined again.
        if name != node or self.incarnation_of(node) == incarnation:
            self.removed.append(name)

    def _change(self, index: int, encoded: bytes) -> Result:
        if index <= self._topology.applied:
            # It is in the records already: they were ahead when this node started, or in the snapshot of a leader
            # that had just started. Then somebody here may wait for it.
            return UNSEEN
        operation = self._admissible(operations.decode(encoded))
        return operation if isinstance(operation, Result) else self._topology.apply(index, operation)

    def _admissible(self, operation: Operation) -> Operation | Result:
        """Put nothing on nodes that are about to leave, or have left since this was proposed."""
        if isinstance(operation, SetMembers):
            members = self._staying(operation.members)
            if not members:
                return Result(False)
            leader = operation.leader if operation.leader in members else members[0]
            return msgspec.structs.replace(operation, members=members, leader=leader)
        if not isinstance(operation, DeclareQueue | DeclareExchange):
            return operation
        record = operation.record
        if self.nodes.get(record.node) == "":
            return Result(False, f"node '{record.node}' is about to leave the cluster")
        if isinstance(record, ExchangeRecord) or not record.members:
            return operation
        members = self._staying(record.members)
        if not members:
            return Result(False, f"the nodes {', '.join(record.members)} are about to leave the cluster")
        leader = record.leader if record.leader in members else members[0]
        return DeclareQueue(msgspec.structs.replace(record, members=members, leader=leader))

    def _staying(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name in names if self.nodes.get(name)))

    def passed(self, index: int) -> None:
        pass

    def settled(self) -> None:
        pass

    def snapshot(self) -> bytes:
        return _encode(_State(self._topology.snapshot(), self.nodes, self._batches, self._begun))

    def kept(self) -> list[int]:
        return []

    def kept_in(self, state: bytes) -> list[int]:
        return []

    def wanted(self, index: int) -> bool:
        return True

    def released(self) -> list[int]:
        return []

    def landed(self) -> int:
        incarnation, number = self._batches.get(self._own[0], (0, 0))
        return number if incarnation == self._own[1] and number != LAST_BATCH else 0

    def load(self, state: bytes) -> None:
        """Start from a snapshot of this node's own; the topology has come from its records.

        A snapshot that came from another node is on disk a commit earlier than the records that it leads to.
        """
        found = _decode_state(state)
        self.nodes = dict(found.nodes)
        self._batches, self._begun = dict(found.batches), dict(found.begun)
        if self._topology.is_behind(found.topology):
            self._topology.restore(found.topology)

    def restore(self, state: bytes) -> None:
        found = _decode_state(state)
        for name in self.nodes:
            if name not in found.nodes:
                self._removed(name)
        self.nodes = dict(found.nodes)
        self._batches, self._begun = dict(found.batches), dict(found.begun)
        landed, begun = self.landed(), self._begun.get(self._own[0])
        if landed and begun is not None:
            # Before the queues come that it says something about.
            self.began(begun)
        self._topology.restore(found.topology)
        for number in [number for number in self._waiting if number <= landed]:
            self._waiting.pop(number)(UNSEEN)
        self.nodes_changed()

    def leader_changed(self) -> None:
        self.led()

    def members_changed(self, members: Members) -> None:
        self.nodes_changed()
