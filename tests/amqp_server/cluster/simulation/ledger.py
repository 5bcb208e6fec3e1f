"""The checks of the topology, made against the log of group 0.

The first node that applies an entry shows it to the ledger, which applies it to a model. The ledger compares
with the model whatever state a node reaches, whatever answer it gets, and whatever it finds on its disk at a
start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from amqp_server.broker.declared import operations
from amqp_server.broker.declared.records import QueueRecord
from amqp_server.broker.topology.replication import Result
from amqp_server.cluster import node as product
from amqp_server.cluster.coordinator.decisions import Decision
from amqp_server.cluster.membership.roster import LAST_BATCH
from amqp_server.cluster.topology_group import (
    _ENTRY,
    _LENGTH,
    UNSEEN,
    Catalog,
    Change,
    Decide,
    PutNode,
    RaiseEpoch,
    RaiseVersion,
    RemoveNode,
    Restate,
    _Batch,
    _decode_batch,
)
from quorum_queue.clock import SLEW
from quorum_queue.machine import versions
from quorum_queue.machine.parts import TransactionId
from quorum_queue.ports import Refused
from tests.amqp_server.cluster.simulation.model import Model, difference, state_of
from tests.amqp_server.cluster.simulation.older import check_proposal
from tests.turns import Violation

if TYPE_CHECKING:
    from tests.amqp_server.cluster.simulation.messages import Transaction
    from tests.amqp_server.cluster.simulation.node import SimulatedNode


def digest(state: bytes) -> bytes:
    return hashlib.blake2b(state, digest_size=16).digest()


class Ledger:
    def __init__(self) -> None:
        self.model = Model()
        self.index = 0
        self.entries: dict[int, bytes | None] = {}
        #: The digest that all nodes must have at each index, and the digest of their records by the last
        #: operation in them.
        self.digests: dict[int, bytes] = {}
        self.topologies: dict[int, bytes] = {}
        self._batches: dict[str, tuple[int, int]] = {}
        #: Proposals that were applied, each with whether it changed anything: by node, start and number.
        self.changed: dict[tuple[str, int, int], bool] = {}
        self.nodes: dict[str, SimulatedNode] = {}
        #: By node, the last start that other nodes may take for down.
        self.doubted: dict[str, int] = {}
        #: Queues whose deletion a client asked for.
        self.asked: dict[int, None] = {}
        #: Nodes that an operator has given up, with all data that only they had.
        self.forgotten: dict[str, None] = {}
        #: When queues were used last, by the clocks of all nodes.
        self.used: dict[int, dict[str, int]] = {}
        #: All queues that have ever been there.
        self.queues: dict[int, QueueRecord] = {}
        self.count: dict[str, int] = {}
        #: Entries that an operator has given up.
        self.given_up: dict[int, None] = {}
        #: Restatements by nodes whose records have such entries; one of them is taken.
        self.restated: dict[tuple[str, int, int], None] = {}
        #: The highest epoch of each producer of transactions that the log has, and the last transaction that
        #: each start of one has sent.
        self.epochs: dict[str, int] = {}
        self.sent: dict[tuple[str, int], Transaction] = {}
        #: Transactions that the log has decided about.
        self.decided: set[TransactionId] = set()

    def note(self, what: str) -> None:
        self.count[what] = self.count.get(what, 0) + 1

    def fail(self, text: str) -> Violation:
        return Violation(f"topology at {self.index}: {text}")

    # -- the log ---------------------------------------------------------------------------------------------

    def take(self, node: SimulatedNode, index: int, data: bytes | None) -> bool:
        """A node is about to apply this entry; return whether it is the first one."""
        if data is not None and node.version != versions.NEWEST:
            for batch in _batches(data):
                check_proposal(node, batch.proposal)
        if index <= self.index:
            if self.entries[index] != data:
                raise self.fail(f"{node.name} applies another entry {index} than was applied before")
            return False
        if index != self.index + 1:
            raise self.fail(f"{node.name} applies entry {index}, which nobody has come to yet")
        self.index = index
        self.entries[index] = data
        if data is not None:
            self._apply(index, data)
        return True

    def give_up(self, index: int) -> None:
        """A node is about to apply an empty entry instead of one that was lost."""
        self.given_up[index] = None
        # Epochs may be among what is lost.
        self.epochs.clear()
        if index <= self.index:
            self.entries[index] = None

    def applied(self, node: SimulatedNode, index: int, *, first: bool) -> None:
        """A node has applied the entry."""
        if node.cluster.roster.given_up.first:
            # The records of some nodes have the entry that was given up.
            return
        if first and node.topology.applied <= index:
            self._compare(node)
        self.same(node, index)

    def _apply(self, index: int, data: bytes) -> None:
        for batch in _batches(data):
            self._batch(index, batch)

    def _batch(self, index: int, batch: _Batch) -> None:
        start, last = self._batches.get(batch.node, (0, 0))
        removed = last == LAST_BATCH and batch.node not in self.model.nodes
        if (
            (removed and self.model.version >= versions.REMOVED)
            or batch.incarnation < start
            or batch.number != (last + 1 if batch.incarnation == start else 1)
        ):
            self.note("batches skipped")
            return
        place = self._batches[batch.node] = batch.incarnation, batch.number
        changed = True
        if isinstance(batch.proposal, Change):
            operation = operations.decode(batch.proposal.operation)
            self.note(type(operation).__name__)
            before = dict(self.model.queues)
            changed = self.model.apply(index, operation)
            for record in self.model.queues.values():
                self.queues[record.queue_id] = record
            if not isinstance(operation, operations.DeleteVhost):
                left = {record.queue_id for record in self.model.queues.values()}
                for record in before.values():
                    if record.queue_id not in left:
                        self._check_gone(record, operation)
        elif isinstance(batch.proposal, Restate):
            self.note("topologies restated")
            self.restated[batch.node, *place] = None
        else:
            self.note(type(batch.proposal).__name__)
            self._change_others(batch.proposal)
        self.changed[batch.node, *place] = changed

    def _change_others(self, proposal: Any) -> None:
        if isinstance(proposal, PutNode):
            self.model.nodes[proposal.name] = proposal.address
        elif isinstance(proposal, RaiseVersion):
            self.model.version = max(self.model.version, proposal.version)
        elif isinstance(proposal, RemoveNode) and self.model.nodes.pop(proposal.name, None) is not None:
            # Batches that the removed node sent earlier are ignored from now on.
            self._batches[proposal.name] = self._batches.get(proposal.name, (0, 0))[0], LAST_BATCH
        elif isinstance(proposal, RaiseEpoch):
            self.epochs[proposal.producer] = max(proposal.epoch, self.epochs.get(proposal.producer, -1))
        elif isinstance(proposal, Decide):
            for decision in proposal.decisions:
                if decision.transaction not in self.decided:
                    self._check_producer(decision)
                self.decided.add(decision.transaction)

    def _check_producer(self, decision: Decision) -> None:
        """A start of a producer that is shut out commits nothing, now or later."""
        key, epoch = decision.producer, decision.epoch
        if decision.committed and epoch < self.epochs.get(key, -1) and (key, epoch) in self.sent:
            self.note("commits of producers that are shut out")
            self.sent[key, epoch].shut_out = f"producer {key} of epoch {epoch}"

    def _check_gone(self, record: QueueRecord, operation: Any) -> None:
        """An exclusive queue goes with its owner, and any other transient queue with its node."""
        if isinstance(operation, operations.DeleteQueue):
            if record.exclusive and record.queue_id not in self.asked and self.has_owner(record):
                raise self.fail(f"queue {record.name} is deleted, and its owner is there")
            self.note("exclusive queues gone" if record.exclusive else "queues gone")
        elif isinstance(operation, operations.DeleteExchange):
            if record.type != "stream":
                raise self.fail(f"queue {record.name} went with an exchange")
            self.note("partitions gone")
        elif self.doubted.get(record.node, 0) < record.incarnation:
            raise self.fail(f"queue {record.name} went with {record.node}, which was always in contact")

    def has_owner(self, record: QueueRecord) -> bool:
        """Return whether the session that an exclusive queue belongs to is still there."""
        node = self.nodes[record.node]
        return (
            node.alive
            and node.incarnation == record.incarnation
            and node.broker.sessions.get(record.owner) is not None
        )

    def _compare(self, node: SimulatedNode) -> None:
        other = difference(self.model.state(), state_of(node.broker))
        if other:
            raise self.fail(f"{node.name} has not made of it what it means: {other}")

    def same(self, node: SimulatedNode, index: int) -> None:
        """A node is at this index: its state must be the one that all others had there."""
        if node.topology.applied > index:
            # The node reads once more the entries that its records have already.
            return
        found = digest(node.cluster.catalog.snapshot())
        if self.digests.setdefault(index, found) != found:
            raise self.fail(f"{node.name} at {index} is not what another node was there")
        self.topologies[node.topology.applied] = digest(node.topology.snapshot())

    def recovered(self, node: SimulatedNode) -> None:
        """A node has read its records."""
        applied = node.topology.applied
        if applied and not self.given_up and self.topologies.get(applied) != digest(node.topology.snapshot()):
            raise self.fail(f"{node.name} finds other records on its disk than it had at {applied}")

    # -- answers ---------------------------------------------------------------------------------------------

    def answered(self, node: str, incarnation: int, number: int, result: Result | Refused) -> None:
        """The node answers a proposal."""
        place = node, incarnation, number
        if isinstance(result, Refused):
            self.note("proposals without an answer")
            return
        self.note("proposals answered")
        if place in self.restated:
            return
        if place not in self.changed:
            raise self.fail(f"proposal {place} is answered, and is not in the log")
        if result is not UNSEEN and result.changed != self.changed[place] and not result.error:
            raise self.fail(f"proposal {place} is answered with {result}, the log says {self.changed[place]}")

    def use(self, queue_id: int, asked: dict[str, int]) -> None:
        """A client got the answer that it has used a queue, some time after its request."""
        self.used[queue_id] = asked

    def clocks(self) -> dict[str, int]:
        return {name: node.now_ms for name, node in self.nodes.items()}

    def proposed(self, node: SimulatedNode, proposal: Any) -> None:
        """A node gives up a queue that nobody has used for as long as its declaration says, by the clock of
        some node: the leader that decided it may have been another one. The queue time of a node that is
        behind goes somewhat faster than any clock.
        """
        operation = operations.decode(proposal.operation) if isinstance(proposal, Change) else None
        if not isinstance(operation, operations.DeleteQueue) or operation.queue_id in self.asked:
            return
        queue = node.broker.vhost(operation.vhost).queues.get(operation.name)
        if queue is None or queue.queue_id != operation.queue_id:
            # It is gone already.
            return
        if queue.parsed.expires_ms is None or queue.node in self.forgotten:
            return
        self.note("leases over")
        used = self.used.get(queue.queue_id, {})
        idle_ms = max(now_ms - used.get(name, 0) for name, now_ms in self.clocks().items())
        if idle_ms + idle_ms // SLEW < queue.parsed.expires_ms:
            raise self.fail(f"{node.name} deletes queue {queue.name}, which was used {idle_ms} ms ago")

    def doubt(self, node: str, incarnation: int) -> None:
        self.doubted[node] = max(incarnation, self.doubted.get(node, 0))


def _batches(data: bytes) -> Iterator[_Batch]:
    offset = _ENTRY.size
    while offset < len(data):
        (size,) = _LENGTH.unpack_from(data, offset)
        offset += _LENGTH.size
        yield _decode_batch(data[offset : offset + size])
        offset += size


@contextmanager
def watching(simulated: SimulatedNode, ledger: Ledger) -> Iterator[None]:
    """Nodes made within this have a Catalog that shows the ledger each entry it applies and each answer it
    gives.
    """
    with mock.patch.object(product, "Catalog", _watched(simulated, ledger)):
        yield


def _watched(simulated: SimulatedNode, ledger: Ledger) -> type[Catalog]:
    class Watched(Catalog):
        foreseen_bytes_min = 0

        def apply(self, index: int, data: bytes) -> None:
            first = ledger.take(simulated, index, data)
            super().apply(index, data)
            ledger.applied(simulated, index, first=first)

        def passed(self, index: int) -> None:
            first = ledger.take(simulated, index, None)
            super().passed(index)
            ledger.applied(simulated, index, first=first)

        def passed_over(self, index: int) -> None:
            ledger.give_up(index)
            super().passed_over(index)

        def batch(self, number: int, proposal: Any) -> bytes:
            ledger.proposed(simulated, proposal)
            return super().batch(number, proposal)

        def wait(self, number: int, done: Any) -> None:
            node, incarnation = self._own

            def told(result: Result | Refused) -> None:
                ledger.answered(node, incarnation, number, result)
                done(result)

            super().wait(number, told)

        def snapshot_in_parts(self, then: Callable[[bytes], None]) -> None:
            expected, began = super().snapshot(), simulated.topology.applied

            def made(state: bytes) -> None:
                if state != expected:
                    raise ledger.fail(
                        f"a snapshot of {simulated.name} is not what the node was when it began"
                    )
                if simulated.topology.applied > began:
                    ledger.note("snapshots made while more was applied")
                then(state)

            super().snapshot_in_parts(made)

        def restore(self, state: bytes) -> None:
            super().restore(state)
            simulated.restored += 1
            if super().snapshot() != state:
                raise ledger.fail(f"{simulated.name} has not become what the snapshot says")

    return Watched
