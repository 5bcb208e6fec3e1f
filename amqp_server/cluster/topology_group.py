"""The state machine of group 0, which all nodes keep: the topology, and the list of nodes.

Each node has the topology's records on disk, with the index of the last operation in them, so a start does
not replay operations. This machine's own state, nodes and the numbers of batches, is in the group's snapshot
and log.

*An entry that an operator has given up* (see quorum_queue.cluster.snapshots.lost_entries) may be in the
records of some nodes, which applied it before it was lost, and not in those of others. So a node whose
records have it proposes to replace the topology of all nodes with its own (`Restate`), which is applied like
a snapshot. It is accepted only if no change came in between.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from amqp_server.broker.declared import operations
from amqp_server.broker.declared.operations import (
    DeclareExchange,
    DeclareQueue,
    DeclareSuperStream,
    Operation,
    SetMembers,
    UnreadableOperation,
)
from amqp_server.broker.declared.records import DEDUPLICATION_PRODUCERS, ExchangeRecord, QueueRecord
from amqp_server.broker.topology.events import INTERNAL
from amqp_server.broker.topology.replication import Result
from amqp_server.broker.topology.topology import Topology
from amqp_server.cluster.coordinator.decisions import NO_STATE as NO_DECISIONS
from amqp_server.cluster.coordinator.decisions import Decision, Decisions
from amqp_server.cluster.coordinator.decisions import State as DecisionsState
from amqp_server.cluster.membership.roster import LAST_BATCH, NOTHING_GIVEN_UP, GivenUpEntries, Roster
from quorum_queue.boundary import Fatal
from quorum_queue.cluster.kept_entries import NOTHING_KEPT, KeptEntries
from quorum_queue.machine import versions
from quorum_queue.machine.parts import TransactionId
from quorum_queue.raft.members import Members

logger = logging.getLogger("mqd.cluster")

GROUP = 0
#: Version, and an unused time.
_ENTRY = struct.Struct(">BQ")
_VERSION = 1
_NEWER = "start the version of mqd that the other nodes run"
_LENGTH = struct.Struct(">I")
#: Result of a change that came with a snapshot: it is done, but this node does not know its details.
UNSEEN = Result(True)


class PutNode(msgspec.Struct, frozen=True, array_like=True, tag=101):
    """A node belongs to the cluster and has this address. Without an address, it is about to leave."""

    name: str
    address: str


class RemoveNode(msgspec.Struct, frozen=True, array_like=True, tag=102):
    """A node no longer belongs to the cluster."""

    name: str


class Mark(msgspec.Struct, frozen=True, array_like=True, tag=103):
    """Changes nothing: a node that sees its own mark applied has applied all earlier entries."""


class RaiseVersion(msgspec.Struct, frozen=True, array_like=True, tag=104):
    """All nodes know this version of queues; see quorum_queue.machine.versions."""

    version: int


class Restate(msgspec.Struct, frozen=True, array_like=True, tag=105):
    """Replaces the topology of all nodes by the proposer's: entries of the log were given up, and its records
    have them.
    """

    first: int
    topology: bytes
    #: Index of the last operation that this topology contains.
    applied: int


class Decide(msgspec.Struct, frozen=True, array_like=True, tag=106):
    """Decides about transactions, from versions.TRANSACTIONS on. Of several decisions about one the first
    stands.
    """

    decisions: tuple[Decision, ...]


class Answers(msgspec.Struct, frozen=True, array_like=True, tag=107):
    """These queues have done what was decided about a transaction."""

    answers: tuple[tuple[TransactionId, int], ...]


class RaiseEpoch(msgspec.Struct, frozen=True, array_like=True, tag=108):
    """A producer of transactions has begun again, and shuts out its earlier starts."""

    producer: str
    epoch: int
    #: How many producers are remembered.
    most: int


class Change(msgspec.Struct, frozen=True, array_like=True, tag=100):
    """A change of the topology."""

    operation: bytes


Proposal = Change | PutNode | RemoveNode | Mark | RaiseVersion | Restate | Decide | Answers | RaiseEpoch


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    node: str
    incarnation: int
    number: int
    proposal: Proposal


class _CatalogState(msgspec.Struct, frozen=True, array_like=True):
    topology: bytes
    nodes: dict[str, str]
    batches: dict[str, tuple[int, int]]
    #: Index of the first batch of each node's last start, or of the node's removal.
    begun: dict[str, int] = {}
    version: int = versions.FIRST
    given_up: GivenUpEntries = NOTHING_GIVEN_UP
    decisions: DecisionsState = NO_DECISIONS


_encode = msgspec.msgpack.encode
_decode_batch = msgspec.msgpack.Decoder(_Batch).decode
_decode_state = msgspec.msgpack.Decoder(_CatalogState).decode


def first_state(topology: bytes, nodes: dict[str, str], epochs: list[tuple[str, int]]) -> bytes:
    """Return the state of a catalog that begins with this topology, these nodes and their addresses, and
    these epochs of producers.
    """
    return _encode(_CatalogState(topology, nodes, {}, decisions=([], epochs)))


class _Foreseen(NamedTuple):
    """An operation that is prepared before it is applied. The preparation is valid only for the same
    operation and the same nodes.
    """

    encoded: bytes
    operation: DeclareSuperStream
    nodes: dict[str, str]


class Listener(Protocol):
    """The node, which the catalog notifies; see amqp_server.cluster.node."""

    def nodes_changed(self, removed: list[str]) -> None:
        """The nodes, the members or the leader of the topology changed; the nodes in `removed` were taken
        out.
        """

    def began(self, index: int) -> None:
        """The first batch of this start of the node has this index in the log."""

    def applied(self) -> None:
        """This node has applied more of the topology."""

    def decided(self, decisions: tuple[Decision, ...], *, own: bool) -> None:
        """Decisions about transactions were applied, proposed by this node if `own`."""

    def epoch_raised(self, producer: str, epoch: int) -> None:
        """A producer of transactions has begun again; its epoch may have been higher already."""

    def decisions_restored(self, last_own: int) -> None:
        """The decisions and epochs of a snapshot replaced those that were known. It has the batches of this
        node until that number.
        """

    def when_spread(self, index: int, then: Callable[[], None]) -> None:
        """Call back when all reachable nodes have applied this index."""


class Catalog:
    """See quorum_queue.cluster.replica_group.StateMachine."""

    title = "the topology"
    #: A queue's id is the index of its declaration, so an entry holds one batch only.
    single = True
    #: The client that made a change continues when all nodes have applied it.
    awaited = True
    #: Smaller entries are applied without preparation: they make few queues.
    foreseen_bytes_min = 8 * 1024

    def __init__(
        self, node: str, incarnation: int, topology: Topology, roster: Roster, listener: Listener
    ) -> None:
        self._own = (node, incarnation)
        self._topology = topology
        self._roster = roster
        self._listener = listener
        self.decisions = Decisions()
        #: Callbacks that wait for a batch of this node.
        self._waiting: dict[int, Callable[[Result], None]] = {}
        #: Users on whose behalf batches of this node were proposed.
        self.users: dict[int, str] = {}
        #: Prepared operations by their indexes.
        self._foreseen: dict[int, _Foreseen] = {}
        #: Nodes that are not in the snapshot to which the topology comes.
        self._removed: list[str] = []
        topology.has_version(roster.version)

    def batch(self, number: int, proposal: Proposal) -> bytes:
        return _encode(_Batch(*self._own, number, proposal))

    @property
    def version(self) -> int:
        """The version that all nodes know; see quorum_queue.machine.versions."""
        return self._roster.version

    def wait(self, number: int, done: Callable[[Result], None]) -> None:
        self._waiting[number] = done

    def waits(self, number: int) -> bool:
        """Return whether a caller waits for this batch."""
        return number in self._waiting

    def give_up(self, number: int) -> bool:
        """Stop waiting for this batch; return whether a caller waited. The batch may still be applied."""
        return self._waiting.pop(number, None) is not None

    # --- StateMachine (quorum_queue.cluster.replica_group)

    def encode(self, batches: list[bytes]) -> bytes:
        parts = [_ENTRY.pack(_VERSION, 0)]
        for batch in batches:
            parts += (_LENGTH.pack(len(batch)), batch)
        return b"".join(parts)

    def apply(self, index: int, data: bytes) -> None:
        version = data[0]
        if version > _VERSION:
            raise Fatal(
                f"entry {index} of the topology's log has version {version}, this mqd reads up to {_VERSION}: {_NEWER}"
            )
        offset = _ENTRY.size
        while offset < len(data):
            (size,) = _LENGTH.unpack_from(data, offset)
            offset += _LENGTH.size
            self._apply(index, _batch(index, data[offset : offset + size]))
            offset += size
        self._listener.applied()

    def foresee(self, index: int, data: bytes, ready: Callable[[], None]) -> bool:
        """Prepare an appended entry in parts before it is applied; return True if `ready` is called
        afterwards.
        """
        if len(data) < self.foreseen_bytes_min or data[0] > _VERSION:
            return False
        try:
            proposal = _batch(index, data[_ENTRY.size + _LENGTH.size :]).proposal
            operation = operations.decode(proposal.operation) if isinstance(proposal, Change) else None
        except (Fatal, UnreadableOperation):
            # Leave the error to `apply`: the entry may never be applied.
            return False
        if not isinstance(proposal, Change) or not isinstance(operation, DeclareSuperStream):
            return False
        placed = self._admissible_partitions(operation)
        if isinstance(placed, Result):
            return False
        for old in [each for each in self._foreseen if each >= index or each <= self._topology.applied]:
            # From here on the log has other entries.
            self._unforesee(old)
        self._foreseen[index] = _Foreseen(proposal.operation, placed, dict(self._roster.nodes))
        self._topology.prepare(index, placed, ready)
        return True

    def _unforesee(self, index: int) -> None:
        if self._foreseen.pop(index, None) is not None:
            self._topology.unprepare(index)

    def _decoded(self, index: int, encoded: bytes) -> Operation | Result:
        foreseen = self._foreseen.get(index)
        if foreseen is not None and (foreseen.encoded, foreseen.nodes) == (encoded, self._roster.nodes):
            del self._foreseen[index]
            return foreseen.operation
        self._unforesee(index)
        try:
            operation = operations.decode(encoded)
        except UnreadableOperation as error:
            raise _unreadable(index, error) from error
        return self._admissible(operation)

    def _apply(self, index: int, batch: _Batch) -> None:
        roster = self._roster
        incarnation, last = roster.batches.get(batch.node, (0, 0))
        if batch.incarnation < incarnation:
            return
        if roster.removed_at(batch.node) and roster.version >= versions.REMOVED:
            # The batch is of a start before its removal, and would make it count as an unnamed node.
            return
        if not self._is_next(batch, incarnation, last):
            return
        roster.batches[batch.node] = (batch.incarnation, batch.number)
        begins = batch.incarnation > incarnation
        if begins:
            roster.begun[batch.node] = index
        own = (batch.node, batch.incarnation) == self._own
        user = self.users.pop(batch.number, INTERNAL) if own else None
        if isinstance(batch.proposal, Decide | Answers | RaiseEpoch):
            self._decide(batch.proposal, own=own)
            result = Result(True)
        else:
            result = self._carry_out(index, batch.proposal, user)
        if own:
            if begins:
                self._listener.began(index)
            done = self._waiting.pop(batch.number, None)
            if done is not None:
                self._listener.when_spread(index, lambda: done(result))

    def _decide(self, proposal: Decide | Answers | RaiseEpoch, *, own: bool) -> None:
        if isinstance(proposal, Decide):
            for decision in proposal.decisions:
                self.decisions.take(decision)
            self._listener.decided(proposal.decisions, own=own)
            return
        if isinstance(proposal, RaiseEpoch):
            self.decisions.raise_epoch(proposal.producer, proposal.epoch, proposal.most)
            self._listener.epoch_raised(proposal.producer, proposal.epoch)
            return
        for transaction, queue_id in proposal.answers:
            self.decisions.answered(transaction, queue_id)

    def _is_next(self, batch: _Batch, incarnation: int, last: int) -> bool:
        expected = last + 1 if batch.incarnation == incarnation else 1
        given_up = self._roster.given_up
        if not given_up.first or batch.node in given_up.heard:
            return batch.number == expected
        if batch.number < expected:
            return False
        # The batches in between were in an entry that was given up.
        self._roster.given_up = replace(given_up, heard=(*given_up.heard, batch.node))
        return True

    def _carry_out(self, index: int, proposal: Proposal, user: str | None) -> Result:
        if isinstance(proposal, Change):
            return self._change(index, proposal.operation, user)
        if isinstance(proposal, PutNode):
            self._roster.nodes[proposal.name] = proposal.address
            self._listener.nodes_changed([])
        elif isinstance(proposal, RemoveNode):
            self._listener.nodes_changed(self._remove_node(index, proposal.name))
        elif isinstance(proposal, RaiseVersion):
            _check_version(proposal.version)
            self._roster.version = max(self._roster.version, proposal.version)
            self._topology.has_version(self._roster.version)
        elif isinstance(proposal, Restate):
            return self._restate(index, proposal)
        return Result(True)

    def restatement(self, *, late: bool) -> Restate | None:
        """Return this node's proposal if entries were given up and this node's records have them.

        `late`: propose even without them, because a node whose records have them would have proposed by now.
        """
        first = self._roster.given_up.first
        if not first or (self._topology.lacks and not late):
            return None
        return Restate(first, self._topology.snapshot(), self._topology.applied)

    def _restate(self, index: int, proposal: Restate) -> Result:
        given_up = self._roster.given_up
        if given_up.first != proposal.first or proposal.applied < given_up.last_change:
            # Another node's proposal came first, or a change that this one lacks.
            return Result(False)
        self._roster.given_up = NOTHING_GIVEN_UP
        if index > self._topology.applied:
            self._topology.restore(proposal.topology)
        self._topology.came_to(index)
        return Result(True)

    def _remove_node(self, index: int, name: str) -> list[str]:
        """Take a node out; return the removed names that this node must handle."""
        roster = self._roster
        if roster.nodes.pop(name, None) is None:
            return []
        told = [name] if self._is_news(name) else []
        # A late batch of this node must not bring anything back.
        roster.batches[name] = (roster.incarnation_of(name), LAST_BATCH)
        roster.begun[name] = index
        return told

    def _is_news(self, name: str) -> bool:
        """Return False for this node's own earlier removal, read in the log after it joined again."""
        node, incarnation = self._own
        return name != node or self._roster.incarnation_of(node) == incarnation

    def _change(self, index: int, encoded: bytes, user: str | None) -> Result:
        # The records may have the change already: they were ahead when this node started, or came in the
        # snapshot of a leader that had just started. Then a caller on this node may wait for the change.
        is_known, given_up = index <= self._topology.applied, self._roster.given_up
        if is_known and not given_up.first:
            return UNSEEN
        operation = self._decoded(index, encoded)
        if isinstance(operation, Result):
            return UNSEEN if is_known else operation
        if given_up.first:
            self._roster.given_up = replace(given_up, last_change=index)
        return UNSEEN if is_known else self._topology.apply(index, operation, user)

    def _admissible(self, operation: Operation) -> Operation | Result:
        """Place nothing on nodes that are about to leave, or have left since the proposal."""
        if isinstance(operation, SetMembers):
            members = self._staying(operation.members)
            if not members:
                return Result(False)
            leader = operation.leader if operation.leader in members else members[0]
            return replace(operation, members=members, leader=leader)
        if isinstance(operation, DeclareSuperStream):
            return self._admissible_partitions(operation)
        if not isinstance(operation, DeclareQueue | DeclareExchange):
            return operation
        record = operation.record
        if isinstance(record, QueueRecord) and self._roster.version == versions.FIRST:
            # A node of the previous version would use its fixed number of producers.
            record = replace(record, deduplication_producers=DEDUPLICATION_PRODUCERS)
            operation = DeclareQueue(record, operation.room)
        if self._roster.nodes.get(record.node) == "":
            return Result(False, f"node '{record.node}' is about to leave the cluster")
        if isinstance(record, ExchangeRecord) or not record.members:
            return operation
        placed = self._placed(record)
        return placed if isinstance(placed, Result) else DeclareQueue(placed, operation.room)

    def _admissible_partitions(self, operation: DeclareSuperStream) -> DeclareSuperStream | Result:
        """Place all partitions or none."""
        partitions: list[QueueRecord] = []
        for record in operation.partitions:
            placed = self._placed(record)
            if isinstance(placed, Result):
                return placed
            partitions.append(placed)
        return replace(operation, partitions=tuple(partitions))

    def _placed(self, record: QueueRecord) -> QueueRecord | Result:
        """Return the record of a replicated queue with only the members that stay."""
        members = self._staying(record.members)
        if not members:
            return Result(False, f"the nodes {', '.join(record.members)} are about to leave the cluster")
        leader = record.leader if record.leader in members else members[0]
        return replace(record, members=members, leader=leader)

    def _staying(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name in names if self._roster.nodes.get(name)))

    def passed_over(self, index: int) -> None:
        logger.error("entry %d of the topology's log is given up", index)
        given_up = self._roster.given_up
        if index > self._topology.applied:
            self._topology.lack(index)
        self._roster.given_up = GivenUpEntries(given_up.first or index, (), given_up.last_change)
        self.passed(index)

    def passed(self, index: int) -> None:
        self._listener.applied()

    def entries_applied(self) -> None:
        pass

    @property
    def keeps(self) -> KeptEntries:
        return NOTHING_KEPT

    def covered(self, applied: int) -> int:
        return applied

    def fill(self, state: bytes, peer: str, wanted: Callable[[], bool], then: Callable[[], None]) -> None:
        self._topology.read_in_parts(_decode_state(state).topology, wanted, then)

    @property
    def fills_itself(self) -> bool:
        return False

    def snapshot(self) -> bytes:
        return self._state()(self._topology.snapshot())

    def snapshot_in_parts(self, then: Callable[[bytes], None]) -> None:
        """Call `then` with a snapshot of the current state, perhaps in a later turn: thousands of queues take
        longer than a turn may.
        """
        state = self._state()
        self._topology.snapshot_in_parts(lambda topology: then(state(topology)))

    def _state(self) -> Callable[[bytes], bytes]:
        """Return a function that makes the current state, as bytes, from the topology's bytes."""
        roster = self._roster
        nodes, batches, begun = dict(roster.nodes), dict(roster.batches), dict(roster.begun)
        version, given_up, decisions = roster.version, roster.given_up, self.decisions.state()
        return lambda topology: _encode(
            _CatalogState(topology, nodes, batches, begun, version, given_up, decisions)
        )

    def last_own_batch(self) -> int:
        incarnation, number = self._roster.batches.get(self._own[0], (0, 0))
        return number if incarnation == self._own[1] and number != LAST_BATCH else 0

    def load(self, state: bytes) -> None:
        """Start from this node's own snapshot; the topology was read from its records.

        A snapshot from another node is on disk one commit before the records that result from it.
        """
        found = _decode_state(state)
        _check_version(found.version)
        self._roster.restore(found.nodes, found.batches, found.begun, found.version, found.given_up)
        self.decisions.restore(found.decisions)
        self._topology.has_version(found.version)
        if self._topology.is_behind(found.topology):
            self._topology.restore(found.topology)

    def come_to(self, state: bytes, then: Callable[[], None]) -> None:
        found = _decode_state(state)
        _check_version(found.version)
        self._removed = [
            name for name in self._roster.nodes if name not in found.nodes and self._is_news(name)
        ]
        self._roster.restore(found.nodes, found.batches, found.begun, found.version, found.given_up)
        self.decisions.restore(found.decisions)
        self._topology.has_version(found.version)
        last_own, begun = self.last_own_batch(), self._roster.begun.get(self._own[0])
        if last_own and begun is not None:
            # Notify before the queues that depend on the version are opened.
            self._listener.began(begun)
        self._topology.restore_in_parts(found.topology, then)

    def restore(self, state: bytes) -> None:
        """`come_to` has changed the topology."""
        last_own = self.last_own_batch()
        for number in [number for number in self._waiting if number <= last_own]:
            self._waiting.pop(number)(UNSEEN)
        removed, self._removed = self._removed, []
        self._listener.decisions_restored(last_own)
        self._listener.nodes_changed(removed)
        self._listener.applied()

    def leader_changed(self) -> None: ...

    def members_changed(self, members: Members) -> None:
        self._listener.nodes_changed([])

    def failed(self, error: Exception) -> None:
        """Without the topology a node can do nothing."""
        raise Fatal(f"the topology's log could not be applied: {error}") from error

    def closed(self) -> None:
        """Happens only when the node ends."""


def _batch(index: int, data: bytes) -> _Batch:
    try:
        return _decode_batch(data)
    except msgspec.MsgspecError as error:
        raise _unreadable(index, error) from error


def _unreadable(index: int, error: Exception) -> Fatal:
    """Return the error for an entry of a newer version: this node must end, because it cannot apply what the
    others apply.
    """
    return Fatal(
        f"entry {index} of the topology's log can't be read by this version of mqd ({error}): {_NEWER}"
    )


def _check_version(version: int) -> None:
    """Raise Fatal for an unknown version: a node that cannot apply the version of this cluster's queues must
    not take part.
    """
    if version > versions.NEWEST:
        raise Fatal(
            f"the queues of this cluster have version {version}, this mqd knows {versions.NEWEST}: {_NEWER}"
        )
