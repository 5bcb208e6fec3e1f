"""Turns the directory of a node without a cluster into that of the first node of a cluster.

It is rewritten on the disk, before the broker reads it, in two steps. First the messages of quorum queues are
copied from the journal into the entries of Raft groups, in as many transactions as needed; the journal stays
valid, and the copies are not read yet. Then one transaction makes the directory the cluster's: the topology
becomes the first snapshot of group 0, each quorum queue the first snapshot of its group, with this node as
the only voter, and the journals of these queues are dropped. Until then the node may end at any moment and
finds everything unchanged at the next start; afterwards it continues as a member. The other nodes join like
any new node.

The journal's messages of a stream move to its segments; the first snapshot of its group has their end, and
the offsets by name. The progress of a consumer group becomes the first snapshot of its Raft group.

Durable classic queues stay in the journal: only the record that they are on this node is new.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec
import trio

from amqp_server.broker.declared.argument_table import not_replicated
from amqp_server.broker.declared.records import (
    BINDINGS,
    EXCHANGES,
    MARKS,
    QUEUES,
    BindingRecord,
    ExchangeRecord,
    QueueRecord,
    arguments_of,
    key,
)
from amqp_server.broker.metadata import decode, encode
from amqp_server.broker.recovery import recovery
from amqp_server.broker.topology import topology
from amqp_server.broker.topology.topology_snapshot import TopologyView
from amqp_server.broker.transactions import TABLE as PRODUCERS
from amqp_server.broker.transactions import epochs_in
from amqp_server.cluster.errors import ClusterError
from amqp_server.cluster.membership.membership import Directory, Founded, drop_copies
from amqp_server.cluster.membership.zones import Zones
from amqp_server.cluster.topology_group import GROUP, first_state
from amqp_server.streams.consumer_groups.partition_position import PartitionPlace, PlaceError
from amqp_server.streams.consumer_groups.partition_position import decode as decode_place
from amqp_server.streams.layout.named_offsets import Names
from amqp_server.streams.members.replica import Kept, StreamReplica
from amqp_server.streams.tiers.node_manifest import manifest_of
from persistence.errors import CorruptRecord
from persistence.replica_logs.record import ENTRY_BYTES_MAX
from persistence.streams import batch as batches
from persistence.streams.batch import Damaged
from persistence.streams.deduplication_file import Keeper
from persistence.streams.log import Lost, Stored, StreamLog
from quorum_queue.cluster.snapshots.state import pack_state
from quorum_queue.consumer_groups.partition import Partition, Span
from quorum_queue.consumer_groups.replica import GroupReplica
from quorum_queue.machine import codec, versions
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.entries import encode_batch, encode_entry
from quorum_queue.machine.machine import Machine, Meta
from quorum_queue.machine.replicated import QueueReplica
from quorum_queue.machine.run import Run
from quorum_queue.machine.snapshots.snapshot import sizes_of
from quorum_queue.queue_ids import index_of
from quorum_queue.raft.members import Members
from quorum_queue.raft.messages import NORMAL, Entry

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.declared.arguments import QueueArguments
    from amqp_server.cluster.store import GroupStore
    from persistence.journal import Journal
    from quorum_queue.cluster.ports import Commits
    from quorum_queue.machine.settings import Settings

logger = logging.getLogger("mqd.cluster")

#: The term of all copied entries; the node's first election begins the next one.
TERM = 1
#: Size of the bodies in one entry. As long as one of these messages is in the queue, all stay on disk.
ENTRY_BYTES = 256 * 1024
#: Bytes of copies in one transaction.
STEP_BYTES = 8 * 1024 * 1024
#: An entry has room for the largest body plus this, bytes.
HEAD_BYTES = 1024 * 1024
#: Disk space for the copies, in per cent of their size.
ROOM_PERCENT = 130


class StreamLogs(Protocol):
    def log(self, queue_id: int, segment_bytes: int, *, keeper: Keeper | None = None) -> StreamLog: ...


class Adoption:
    """Converts the directory of a broker that has not read it yet."""

    def __init__(
        self,
        broker: Broker,
        journal: Journal,
        store: GroupStore,
        directory: Directory,
        streams: StreamLogs,
        segment_size: Callable[[int | None], int],
        *,
        addresses: Mapping[str, str],
        identities: Mapping[str, str],
        free_bytes: int,
        version: int,
        zones: Zones | None = None,
    ) -> None:
        """`segment_size` is that of StreamOptions. `addresses` and `identities` are those of all nodes and of
        their directories; `version` is the newest one of queues that all of them know.
        """
        self._zones = zones or Zones()
        self._broker = broker
        self._node = broker.config.node
        self._journal = journal
        self._store = store
        self._directory = directory
        self._streams = streams
        self._segment_size = segment_size
        self._addresses = dict(addresses)
        self._identities = dict(identities)
        self._free_bytes = free_bytes
        self._version = version
        #: Number of groups that each node is a member of, and number that it leads.
        self._kept = dict.fromkeys(sorted(addresses), 0)
        self._led = dict.fromkeys(sorted(addresses), 0)

    async def carry_out(self, commits: Commits) -> None:
        """Take all steps. Afterwards the store has the directory of a member. Raises ClusterError."""
        # It reads the store, which must have what was submitted since the start.
        await _stored(commits)
        for _ in self.steps():
            await _stored(commits)

    def steps(self) -> Iterator[None]:
        """Submit one transaction after the other; each is durable before the caller asks for the next.

        Raises ClusterError.
        """
        stored = recovery.read_queues(self._broker, self._journal)
        moving: list[tuple[QueueRecord, QueueArguments, Machine]] = []
        streams: list[tuple[QueueRecord, QueueArguments]] = []
        groups: list[tuple[QueueRecord, QueueArguments]] = []
        for queue_id, record in sorted(stored.queues.items()):
            parsed = recovery.parsed_of(record)
            if parsed.type.is_stream:
                unknown = not_replicated(arguments_of(record), versions.NEWEST)
                if unknown is not None:
                    raise ClusterError(
                        f"queue '{record.name}' in vhost '{record.vhost}' is a stream with '{unknown}', which streams "
                        "in a cluster do not support. Start the node without --peers and delete the stream first"
                    )
                streams.append((record, parsed))
            elif parsed.type.is_group:
                groups.append((record, parsed))
            elif parsed.type.replicated:
                machine = stored.machines.get(queue_id) or Machine(recovery.settings_of(self._broker, record))
                moving.append((record, parsed, machine))
        self._check([(record, machine) for record, _, machine in moving])
        logger.warning(
            "the cluster begins with the data of this node: %d queues, %d quorum queues among them with %d messages, "
            "and %d streams and %d consumer groups",
            *(len(stored.queues), len(moving), sum(machine.ready.count for _, _, machine in moving)),
            *(len(streams), len(groups)),
        )
        drop_copies(self._store)
        yield
        now_ms = self._broker.services.queue_time.now_ms()
        replicas: dict[int, QueueReplica] = {}
        for record, _, machine in moving:
            copy = _Copy(self._store, self._journal, record, machine, self._node, now_ms, self._version)
            yield from copy.steps()
            replicas[record.queue_id] = copy.replica
        states = {
            record.queue_id: pack_state(
                Members((self._node,)),
                self._stream_state(
                    record, parsed.segment_bytes, recovery.settings_of(self._broker, record), now_ms
                ),
            )
            for record, parsed in streams
        }
        for record, parsed in groups:
            state = self._group_state(stored, record, parsed, now_ms)
            states[record.queue_id] = pack_state(Members((self._node,)), state)
        placed = {record.queue_id: self._placed(record, parsed) for record, parsed, _ in moving}
        placed |= {record.queue_id: self._placed(record, parsed) for record, parsed in [*streams, *groups]}
        records = [
            placed.get(queue_id) or msgspec.structs.replace(record, node=self._node)
            for queue_id, record in sorted(stored.queues.items())
        ]
        self._convert(records, replicas, states)
        yield
        logger.warning(
            "the data of this node belongs to the cluster from now on; its data directory can no longer "
            "be used without --peers or --workers"
        )

    def _check(self, moving: list[tuple[QueueRecord, Machine]]) -> None:
        """Check that the adoption is possible. Raises ClusterError."""
        largest = ENTRY_BYTES_MAX - HEAD_BYTES
        size = 0
        for record, machine in moving:
            for run in _runs_of(machine):
                size += run.size
                if max(sizes_of(run)) > largest:
                    raise ClusterError(
                        f"quorum queue '{record.name}' in vhost '{record.vhost}' holds a message of "
                        f"{max(sizes_of(run))} bytes; in a cluster, a message may have at most {largest} bytes. Start "
                        "the node without --peers and consume the message first"
                    )
        wanted = size * ROOM_PERCENT // 100
        if wanted > self._free_bytes:
            raise ClusterError(
                f"copying the messages of quorum queues needs {wanted >> 20} MiB of disk, and "
                f"{self._free_bytes >> 20} MiB are free. Free some space, or start the node without --peers "
                "and consume some of the messages first"
            )

    def _placed(self, record: QueueRecord, parsed: QueueArguments) -> QueueRecord:
        """Choose the members of a quorum queue. At first this node is the only one; the others join one by
        one.
        """
        size = parsed.initial_group_size or self._broker.config.group_size
        kept, led = self._kept, self._led
        others = [name for name in kept if name != self._node]
        others.sort(key=lambda name: (kept[name], name))
        members = self._zones.choose(self._node, [(0, name) for name in others], size)
        locator = parsed.leader_locator or self._broker.config.queue_leader_locator
        near = locator == "client-local"
        leader = self._node if near else min(members, key=lambda name: (led[name], name != self._node, name))
        for name in members:
            kept[name] += 1
        led[leader] += 1
        return msgspec.structs.replace(record, node="", members=members, leader=leader)

    def _stream_state(
        self, record: QueueRecord, segment_bytes: int | None, settings: Settings, now_ms: int
    ) -> bytes:
        """Move the journal's messages of a stream to its segments, and return the state of its group.

        The journal stays valid until it is dropped: if the node starts alone again, it skips messages that
        are in both.
        """
        found = self._journal.recover_queue(record.queue_id)
        replica = StreamReplica(settings)
        log = self._streams.log(
            record.queue_id,
            self._segment_size(segment_bytes),
            keeper=replica.taken,
        )
        stored_stop = int.from_bytes(found.state, "big") if found is not None and found.state else 0
        lost = log.open(stored_stop)
        replica.last_ms = log.segments[-1].last_ms if log.segments else 0
        for stored in found.records if found is not None else ():
            first, stop = stored.first_seq, stored.first_seq + stored.count
            if stop <= log.stop:
                continue
            if first > log.stop:
                lost.append(Lost(log.stop, first, "the journal has a hole"))
                log.skip_to(first)
            try:
                payload = stored.payload
                head = batches.decode_head(payload)
                batches.decode(head, payload)
                names = batches.decode_names(
                    head, payload[batches.HEAD_BYTES : batches.HEAD_BYTES + head.meta_bytes]
                )
                log.append([Stored(head.base, head.stop, head.time_ms, [payload], head.size, names)])
                replica.last_ms = head.time_ms
            except (CorruptRecord, Damaged) as error:
                lost.append(Lost(first, stop, f"the journal: {error}"))
                log.skip_to(stop)
        for each in lost:
            logger.error(
                "stream '%s' lost messages %d to %d: %s", record.name, each.low, each.stop - 1, each.why
            )
        replica.applied, replica.now_ms = 1, max(now_ms, replica.last_ms)
        replica.first_offset = log.segments[0].base if log.segments else log.stop
        replica.next_offset = log.stop
        replica.manifest = manifest_of(found.annotations) if found is not None else None
        if replica.manifest is not None and replica.manifest.ranges:
            replica.first_offset = min(replica.first_offset, replica.manifest.first)
        known = Names(self._broker.config.stream_names_max)
        known.restore(found.annotations if found is not None else {})
        # No consumer owns a name yet: the first one that uses it takes it.
        replica.names = {name: Kept(min(offset, log.stop), "") for name, offset in known.offsets.items()}
        return replica.snapshot()

    def _group_state(
        self, stored: recovery.StoredQueues, record: QueueRecord, parsed: QueueArguments, now_ms: int
    ) -> bytes:
        """Return the progress of a consumer group. Unsettled deliveries come again as redelivered."""
        found = self._journal.recover_queue(record.queue_id)
        limit = parsed.delivery_limit
        replica = GroupReplica(
            None if limit is None or limit < 0 else limit,
            dead_letters=parsed.dead_letter_exchange is not None,
        )
        slots, marks = stored.slots.get(record.queue_id, []), self._broker.services.marks
        for number, data in sorted(found.annotations.items()) if found is not None else ():
            try:
                place: PartitionPlace = decode_place(data)
            except PlaceError as error:
                logger.error(
                    "consumer group '%s': the offset of partition %d is lost, so the group starts there as a new "
                    "group does: %s",
                    record.name,
                    number,
                    error,
                )
                continue
            stream = stored.queues.get(place.stream_id)
            if stream is None:
                continue
            pending = [Span(low, stop, max(attempts, 1)) for low, stop, attempts in place.pending]
            cursor = place.cursor
            marked = marks.get(slots[number]) if number < len(slots) else -1
            if marked >= cursor:
                # Delivered, with an unknown outcome.
                pending.append(Span(cursor, marked + 1, 1))
                cursor = marked + 1
            partition = Partition(place.stream_id, stream.name, number)
            replica.group.add(partition)
            replica.group.begin(partition, cursor, pending)
        replica.known = found is not None and found.state is not None
        replica.begin_with(1, now_ms)
        return replica.snapshot()

    def _convert(
        self,
        records: list[QueueRecord],
        replicas: Mapping[int, QueueReplica],
        states: Mapping[int, bytes],
    ) -> None:
        """Convert the directory into a member's directory, in one transaction."""
        broker, store, metadata = self._broker, self._store, self._broker.metadata
        alone = Members((self._node,))
        # A queue's id is the index of its declaration: all existing queues must have lower ids than this
        # index.
        began_at = max([1, *(index_of(record.queue_id) for record in records)])
        for record in records:
            metadata.put(QUEUES, key(record.vhost, record.name), encode(record))
        for queue_id, replica in replicas.items():
            metadata.delete(MARKS, str(queue_id))
            store.hard(queue_id, TERM, self._node)
            store.snapshot(queue_id, replica.applied, TERM, pack_state(alone, replica.snapshot()))
            self._journal.drop(queue_id)
        for queue_id, packed in states.items():
            metadata.delete(MARKS, str(queue_id))
            store.hard(queue_id, TERM, self._node)
            store.snapshot(queue_id, 1, TERM, packed)
            self._journal.drop(queue_id)
        epochs = epochs_in(metadata)
        view = TopologyView(
            broker.parts,
            began_at,
            exchanges=[decode(EXCHANGES, *row, ExchangeRecord) for row in metadata.items(EXCHANGES)],
            queues=records,
            bindings=[decode(BINDINGS, *row, BindingRecord) for row in metadata.items(BINDINGS)],
        )
        store.hard(GROUP, TERM, self._node)
        store.snapshot(
            GROUP, began_at, TERM, pack_state(alone, first_state(view.finish(), self._addresses, epochs))
        )
        for producer, _ in epochs:
            metadata.delete(PRODUCERS, producer)
        topology.note_applied(metadata, began_at)
        self._directory.note_founded(
            Founded(self._identities, name=self._node, origin=self._node, began_at=began_at)
        )


def _runs_of(machine: Machine) -> Iterator[Run]:
    """Yield all messages: those that are ready, those that wait, and dead letters that the queue holds."""
    yield from machine.ready.runs()
    yield from machine.delayed.runs()
    for letter, _ in machine.dead_lettering.values():
        yield letter


class _Copy:
    """One queue's messages, from the journal into entries."""

    def __init__(
        self,
        store: GroupStore,
        journal: Journal,
        record: QueueRecord,
        machine: Machine,
        node: str,
        now_ms: int,
        version: int,
    ) -> None:
        self.replica = QueueReplica(machine.settings)
        self.replica.machine = machine
        if version < machine.version:
            # What this node knows and others do not is given up: waits, for example.
            machine.begin_again()
        self.replica.now_ms = machine.last_used_ms = now_ms
        self._store = store
        self._record = record
        self._bodies = _Bodies(journal, record.queue_id)
        self._node = node
        self._index = 0
        #: Messages for the next entry.
        self._parts: list[Run] = []
        self._size = 0
        #: Bytes copied since the last transaction.
        self._step = 0

    def steps(self) -> Iterator[None]:
        machine = self.replica.machine
        runs = [part for run in _runs_of(machine) for part in run.cut()]
        runs.sort(key=lambda run: run.seqs.start)
        lost: dict[int, None] = {}
        for run in runs:
            for part in self._bodies.parts(run, lost):
                self._gather(part)
                if self._step >= STEP_BYTES:
                    self._step = 0
                    yield
        self._flush()
        self.replica.applied = max(1, self._index)
        if lost:
            logger.error(
                "queue '%s' lost %d messages, the first at %d: the disk has damaged them",
                *(self._record.name, len(lost), next(iter(lost))),
            )
            commands = [("lose", seq, seq) for seq in lost]
            machine.apply(Meta(self.replica.now_ms), commands, Effects(hands_max=0, expires_max=0))

    def _gather(self, part: Run) -> None:
        if self._parts and self._size + part.size > ENTRY_BYTES:
            self._flush()
        self._parts.append(part)
        self._size += part.size

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if not parts:
            return
        self._index += 1
        ordinal = 0
        for part in parts:
            self.replica.locations.add(part.seqs.start, len(part.seqs), self._index, ordinal)
            ordinal += len(part.seqs)
        batch = encode_batch(self._node, 0, 0, [("enqueue", part, None, 0) for part in parts])
        data = encode_entry(self.replica.now_ms, batch)
        self._store.append(self._record.queue_id, [Entry(self._index, TERM, NORMAL, data)])
        self._step += len(data)
        self._size = 0


class _Bodies:
    """Reads the bodies of one queue in the order of their positions, each record once."""

    def __init__(self, journal: Journal, queue_id: int) -> None:
        self._journal = journal
        self._queue_id = queue_id
        self._first = 0
        self._contents: list[bytes] = []

    def parts(self, run: Run, lost: dict[int, None]) -> Iterator[Run]:
        """Yield the messages of a run with their bodies, one record at a time; unreadable messages are
        `lost`.
        """
        start, stop = run.seqs.start, run.seqs.stop
        seq = start
        while seq < stop:
            if not self._find(seq):
                lost[seq] = None
                seq += 1
                continue
            low = seq - self._first
            contents = self._contents[low : low + stop - seq]
            part = run.part(seq - start, seq - start + len(contents))
            part.page_in(contents)
            yield from part.uniform()
            seq += len(contents)

    def _find(self, seq: int) -> bool:
        """Load the record of this message, if it is sound."""
        if self._first <= seq < self._first + len(self._contents):
            return True
        try:
            for record in self._journal.read(self._queue_id, seq, seq):
                if record.fault:
                    continue
                contents = codec.decode_contents(record.payload)
                if len(contents) == record.count:
                    self._first, self._contents = record.first_seq, contents
                    return True
        except codec.CodecError as error:
            logger.debug("%s", error)
        return False


async def _stored(commits: Commits) -> None:
    done = trio.Event()
    commits.request(done.set, to_store=True)
    await done.wait()
