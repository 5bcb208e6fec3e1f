"""The replica of a queue on each member of its group: the machine, and the state that replication adds. Pure,
like the machine.

Every replica applies the same entries and comes to the same state; every node then delivers to its own
consumers and answers its own publishers. So the state only has names of such objects: a consumer's key, which
begins with its node and that node's incarnation, and a number for a publisher, which only its own node
understands.

A node numbers its batches, and replicas apply them only in order. So a node may send all batches that it has
not seen applied again to a new leader: none is applied twice, and the order holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from quorum_queue.batch_order import NOT_NEXT, BatchOrder
from quorum_queue.machine import versions
from quorum_queue.machine.bodies import Bodies, bodies_of, contents_of
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import NO_LIMIT, Effects, Reason, Refusal
from quorum_queue.machine.entries import Batch, DecodedEntry, decode_entry, encode_batch, encode_entry
from quorum_queue.machine.locations import Locations
from quorum_queue.machine.machine import DROPS_MAX, Machine, Meta
from quorum_queue.machine.parts import TransactionId
from quorum_queue.machine.positions import Positions, Seqs, merged
from quorum_queue.machine.run import Run
from quorum_queue.machine.seal import SEALED, Sealed
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots import snapshot
from quorum_queue.machine.snapshots.snapshot import Own, Reading, View

#: (node, incarnation)
Member = tuple[str, int]


class Applied:
    """The effects of an entry for a node: its own answers and deliveries only, and all other effects."""

    __slots__ = (
        "accepted_bytes",
        "attach_refused",
        "batches",
        "configured",
        "confirmed",
        "consumers_gone",
        "dead_letters",
        "deliveries",
        "got_nothing",
        "index",
        "missed",
        "more",
        "prepared",
        "purged",
        "refused",
        "released",
        "resolved",
        "sealed",
        "seals",
        "settled",
        "skipped",
        "used",
        "wake_at",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        #: True if the settings were changed.
        self.configured = False
        #: Numbers of own batches that were applied.
        self.batches: list[int] = []
        #: Numbers of own batches in an entry that no member can read any more.
        self.missed = range(0)
        #: (consumer, run without bodies, first delivery id) for own consumers.
        self.deliveries: list[tuple[Consumer, Run, int]] = []
        #: Messages of own publishers: (origin, first, last).
        self.confirmed: list[tuple[int, int, int]] = []
        self.refused: list[tuple[int, int, int]] = []
        #: Keys of own getters.
        self.attach_refused: list[tuple[Any, Refusal]] = []
        self.got_nothing: list[Any] = []
        #: Own consumers that were removed because the group considered this node down.
        self.consumers_gone: list[Any] = []
        #: (token, messages) of own purges.
        self.purged: list[tuple[int, int]] = []
        #: (token, outcome) of own parts of transactions; see quorum_queue.machine.parts.
        self.prepared: list[tuple[int, int]] = []
        #: Transactions that were resolved, by any node.
        self.resolved: list[TransactionId] = []
        #: (token, outcome) of own seals.
        self.seals: list[tuple[int, Sealed]] = []
        #: True if the queue was sealed by this entry, by any node or again.
        self.sealed = False
        #: Dead letters that the leader sends. At least once: until ("dead_lettered", …) is applied; a new
        #: leader finds the remaining ones in `QueueReplica.dead_lettering`.
        self.dead_letters: list[tuple[Run, Reason]] = []
        #: Messages that left the queue for good.
        self.settled: list[Run] = []
        #: Entries whose messages are all settled, and perhaps others between them without any.
        self.released: list[range] = []
        self.accepted_bytes = 0
        #: True if more messages are to be delivered than one entry may: the leader proposes a tick at once.
        self.more = False
        #: True if the leader must renew the lease of an expiring queue, by its own clock.
        self.used = False
        #: The leader proposes a tick at this time (ms).
        self.wake_at: int | None = None


class QueueReplica:
    """One member's copy of a queue."""

    __slots__ = ("applied", "locations", "machine", "now_ms", "order")

    def __init__(self, settings: Settings) -> None:
        self.machine = Machine(settings, version=versions.FIRST)
        #: Index of the last entry applied.
        self.applied = 0
        #: Time of the last entry; it never goes back, even if the next leader's clock is behind.
        self.now_ms = 0
        self.order = BatchOrder()
        self.locations = Locations()

    def passed_over(self, index: int) -> None:
        """The entry with this index is lost on all members: pass over it."""
        self.applied = index
        self.order.passed_over()

    def apply(self, index: int, entry: DecodedEntry, own: Member) -> Applied:
        """Apply the entry with this index; return its effects for the node and incarnation `own`."""
        if index <= self.applied:
            raise ValueError(f"entry {index} comes after entry {self.applied}")
        self.applied = index
        self.now_ms = max(self.now_ms, entry.now_ms)
        meta = Meta(self.now_ms)
        drops_max = DROPS_MAX if self.machine.version >= versions.DROPS else NO_LIMIT
        effects = Effects(wants_places=True, expires_max=drops_max)
        applied = Applied(index)
        order = self.order
        for batch in entry.batches:
            begins = order.begins(batch.node, batch.incarnation)
            last = order.take(batch.node, batch.incarnation, batch.number)
            if last == NOT_NEXT:
                continue
            if begins:
                self.machine.run(meta, [("node_down", batch.node, batch.incarnation - 1)], effects)
            if batch.node == own[0] and batch.incarnation == own[1]:
                if batch.number != last + 1:
                    applied.missed = range(last + 1, batch.number)
                self._run_own(batch, meta, effects, applied)
            else:
                self.machine.run(meta, batch.commands, effects)
        self.machine.finish(meta, effects)
        self._locate(index, effects, applied)
        _gather(effects, own, applied)
        return applied

    def _run_own(self, batch: Batch, meta: Meta, effects: Effects, applied: Applied) -> None:
        """Apply an own batch.

        Origins and tokens are unique in a node only: the effects' positions in the lists tell which are its
        own.
        """
        confirmed, refused, purged = len(effects.confirmed), len(effects.refused), len(effects.purged)
        seals, prepared = len(effects.seals), len(effects.prepared)
        self.machine.run(meta, batch.commands, effects)
        applied.batches.append(batch.number)
        for origin, first, last, _ in effects.confirmed[confirmed:]:
            if origin is not None:
                applied.confirmed.append((origin, first, last))
        applied.refused += [refusal for refusal in effects.refused[refused:] if refusal[0] is not None]
        applied.purged += [purge for purge in effects.purged[purged:] if purge[0] is not None]
        for token, _, outcome in effects.prepared[prepared:]:
            if token is not None:
                applied.prepared.append((token, outcome))
        applied.seals += [seal for seal in effects.seals[seals:] if seal[0] is not None]

    def _locate(self, index: int, effects: Effects, applied: Applied) -> None:
        locations = self.locations
        for first_seq, count, ordinal in effects.places or ():
            locations.add(first_seq, count, index, ordinal)
        for seqs in _joined(effects.settled):
            locations.forget(seqs)
        applied.released = locations.released()

    def find(self, seqs: Seqs) -> list[tuple[int, Seqs]]:
        """Return the locations of bodies: entries, each with ordinals, in the order of the positions. Raises
        KeyError.

        Until the next entry is applied this still finds messages that the last one settled, and messages of
        the last one that went to the dead-letter exchange because the queue was full: their numbers are below
        1.
        """
        if isinstance(seqs, range) and seqs and seqs[0] < 1:
            return [(self.applied, range(-seqs.start, -seqs.start + len(seqs)))]
        return self.locations.find(seqs)

    @property
    def dead_lettering(self) -> list[tuple[Run, Reason]]:
        """Dead letters that their targets have not got yet, for a new leader."""
        return list(self.machine.dead_lettering.values())

    def members(self) -> list[Member]:
        """Return the nodes of consumers, with their incarnations: nodes that are down need a node_down."""
        found: dict[Member, None] = {}
        for consumer in self.machine.consumers.in_turn():
            found[consumer.key[0], consumer.key[1]] = None
        return list(found)

    # -- the whole state -------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Return everything but bodies. A restore also needs the entries that `locations.pinned()` names."""
        view = self.view()
        while view.go_on():
            pass
        return view.replica()

    def view(self) -> View:
        """Begin a snapshot: it has the state of this moment, whatever is applied until it is encoded."""
        own = Own(self.applied, self.now_ms, self.order.rows(), self.order.heard())
        return View(self.machine, own, self.locations)

    @classmethod
    def restore(cls, data: bytes | memoryview) -> QueueReplica:
        """Build a replica from what `snapshot` returned. Raises CodecError."""
        reading = Reading(data)
        while reading.go_on():
            pass
        return cls.of(reading)

    @classmethod
    def of(cls, reading: Reading) -> QueueReplica:
        """Build a replica from a snapshot that was read."""
        machine, own = reading.machine, reading.own
        replica = cls(machine.settings)
        replica.machine, replica.locations = machine, reading.locations
        replica.applied, replica.now_ms = own.applied, own.now_ms
        replica.order = BatchOrder(own.batches, own.gap)
        return replica

    def digest(self) -> bytes:
        """16 bytes that are equal on replicas that applied the same entries."""
        digest = blake2b(digest_size=16)
        digest.update(repr((self.applied, self.now_ms, sorted(self.order.last.items()))).encode())
        if self.order.gap is not None:
            digest.update(repr(self.order.heard()).encode())
        digest.update(self.locations.snapshot())
        digest.update(snapshot.digest(self.machine))
        return digest.digest()


def _joined(runs: list[Run]) -> Iterator[Seqs]:
    """Positions of runs, with neighbours joined: two hundred acks of one read are one look-up. Those that lie
    between one another come together, at the end.
    """
    joined = range(0)
    scattered: list[Positions] = []
    for run in runs:
        seqs = run.seqs
        if isinstance(seqs, Positions):
            scattered.append(seqs)
        elif seqs.step != 1 or joined.step != 1 or seqs.start != joined.stop:
            if joined:
                yield joined
            joined = seqs
        else:
            joined = range(joined.start, seqs.stop)
    if joined:
        yield joined
    if scattered:
        yield merged(scattered)


def _gather(effects: Effects, own: Member, applied: Applied) -> None:
    for delivery in effects.deliveries:
        if delivery[0].key[:2] == own:
            applied.deliveries.append(delivery)
    if effects.attach_refused:
        applied.attach_refused = [pair for pair in effects.attach_refused if pair[0][:2] == own]
    if effects.got_nothing:
        applied.got_nothing = [key for key in effects.got_nothing if key[:2] == own]
    if effects.consumers_gone:
        applied.consumers_gone = [key for key in effects.consumers_gone if key[:2] == own]
    applied.dead_letters = effects.dead_letters
    applied.settled = effects.settled
    applied.accepted_bytes = effects.accepted_bytes
    applied.more = effects.more
    applied.sealed = any(found.outcome == SEALED for _, found in effects.seals)
    applied.resolved = effects.resolved
    applied.configured = effects.configured
    applied.used = effects.used
    applied.wake_at = effects.wake_at


__all__ = [
    "Applied",
    "Batch",
    "Bodies",
    "DecodedEntry",
    "Member",
    "QueueReplica",
    "bodies_of",
    "contents_of",
    "decode_entry",
    "encode_batch",
    "encode_entry",
]
