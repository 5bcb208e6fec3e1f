"""Streams of whole nodes under seeded chance: publishers and readers, crashes, lost disks, damages, members
that change.

`python -m tests.amqp_server.cluster.simulation.streams --seed N` runs one and prints its result (`--trace`
all that happened); `--seeds A:B` runs many. What must hold:

- An offset has the same message on all members, and for every reader, forever.
- A reader gets one offset after the other, whatever happens to nodes; it skips only what retention has
  deleted. A member deletes only what an entry of the log says that a majority has.
- A confirmed message is there once; a message that was published and not confirmed is there once at most. If
  the publisher asked for the leader's confirm only, the message may be lost with this leader.
- At rest all members have all messages from the first offset on, and the same state. Where nothing is
  compacted, they have them in the same batches, byte by byte before these are compressed.
- Where duplicates are dropped, a message that is published again is there once, whatever happened to it the
  first time.
- Where members compact, the latest message of each key is there, and only messages that a later one replaces
  are missing.
- A name never goes back, nor past the messages that its consumers have acked; at rest a consumer with a name
  has come to the end, and so has the name.
- The object store has what the manifest of a stream says, and no object replaces another one. Whatever the
  store and the nodes did, every message is readable at its offset on all members, on the disk or there.
- A super stream is there with all its partitions, or not at all, on every node and at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from amqp_server.broker.declared.operations import DeclareQueue, DeleteExchange, Operation, SetMembers
from amqp_server.broker.declared.records import ExchangeRecord, QueueRecord, encoded
from amqp_server.broker.topology.queue import Queue
from amqp_server.broker.topology.super_streams import declaration, growth, partitions_of
from amqp_server.streams.beginnings import NO_MAJORITY
from amqp_server.streams.layout.consumer_start import COMMITTED, NAMES_FULL, Start
from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.group_headers import offsets_of
from amqp_server.streams.layout.layouts import FILTER
from amqp_server.streams.layout.stored_delivery import StoredReader
from amqp_server.streams.local_host import StreamOptions
from amqp_server.streams.members.host import StreamMemberHost
from amqp_server.streams.members.replica import Applied
from amqp_server.wire import content
from persistence.streams import batch as batches
from persistence.streams import index
from persistence.streams.batch import Batch, Damaged, StoredBatch, decode, decode_head
from persistence.streams.compression import LZ4, NONE, ZSTD
from persistence.streams.log import Wanted, heads_of
from persistence.streams.remote.manifest import Manifest
from persistence.streams.remote.table import identity_of_table, offsets_of_table
from quorum_queue.machine import versions
from quorum_queue.machine.attributes import ALL, ATTRIBUTES, LEADER, MAJORITY
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.dedup import Sequence, id_of, sequence_of
from quorum_queue.machine.run import Run
from tests import seeds
from tests.amqp_server.cluster.simulation.at_rest import check_groups
from tests.amqp_server.cluster.simulation.cluster import Cluster, by_hand
from tests.amqp_server.cluster.simulation.node import SimulatedNode
from tests.amqp_server.cluster.simulation.silences import Silences
from tests.quorum_queue.cluster.levels import check_reached
from tests.stores.objects import SimulatedObjects
from tests.turns import Violation

STEPS = 1200
EPOCH = 300
NAME = "s"
#: A super stream, which is declared and deleted again and again.
WHOLE = "w"
PARTITIONS_MAX = 6
#: Names that a stream keeps.
NAMES = 2
BODY_BYTES = 12
#: Kinds of persistent messages, by confirm level.
PERSISTENT = tuple(kind(persistent=True) for kind in ATTRIBUTES)
#: Class 60, weight 0, then the size of the body, no properties.
HEADER = b"\x00\x3c\x00\x00" + BODY_BYTES.to_bytes(8, "big") + b"\x00\x00"


class StreamLedger:
    """The contents of one stream."""

    def __init__(self) -> None:
        #: Where messages are compacted: the last offset of each key.
        self.latest: dict[bytes, int] = {}
        self.bodies: dict[int, bytes] = {}
        self.offsets: dict[bytes, int] = {}
        self.times: dict[int, int] = {}
        #: The batches by their first offsets.
        self.batches: dict[int, tuple[Any, ...]] = {}
        self.published: dict[bytes, None] = {}
        self.confirmed: dict[bytes, None] = {}
        #: Messages confirmed by a leader alone, each with its term, or 0 if nobody knows it.
        self.led: dict[bytes, int] = {}
        #: The index of the entry with each message.
        self.entries: dict[bytes, int] = {}
        #: All messages below this offset that a majority had are confirmed, or are never.
        self.confirmed_stop = 0
        #: Retention has deleted everything below this offset.
        self.first = 0
        #: Entries that a majority has say that everything below this offset is to be deleted.
        self.outdated = 0
        self.count: dict[str, int] = {}

    def note(self, what: str, count: int = 1) -> None:
        self.count[what] = self.count.get(what, 0) + count

    def see(self, who: str, offset: int, body: bytes) -> None:
        if body not in self.published:
            raise Violation(f"{who}: offset {offset} has {body!r}, which nobody has published")
        if self.bodies.setdefault(offset, body) != body:
            raise Violation(f"{who}: offset {offset} has {body!r}, and had {self.bodies[offset]!r}")
        if self.offsets.setdefault(body, offset) != offset:
            raise Violation(f"{who}: {body!r} is at {offset} and at {self.offsets[body]}")
        key = key_of(body)
        self.latest[key] = max(offset, self.latest.get(key, 0))

    def see_batch(self, who: str, batch: Batch) -> None:
        told = (
            batch.stop,
            batch.time_ms,
            batch.shapes,
            bytes(batch.items),
            batch.values,
            tuple(batch.filters),
        )
        if self.batches.setdefault(batch.base, told) != told:
            raise Violation(
                f"{who} has another batch at {batch.base}: {told}, not {self.batches[batch.base]}"
            )
        self.note("batches compared")

    def may_be_gone(self, offset: int) -> bool:
        """True if a later message has the same key."""
        body = self.bodies.get(offset)
        return body is not None and self.latest[key_of(body)] > offset


def key_of(body: bytes) -> bytes:
    """Return the routing key: a few keys have very many messages."""
    return b"%d" % (int(body[-4:]) % 7)


def head_of(body: bytes) -> bytes:
    key = key_of(body)
    return b"\x00" + bytes((len(key),)) + key


class Origin:
    """A publisher of one turn."""

    def __init__(
        self,
        ledger: StreamLedger,
        bodies: list[bytes],
        level: int = MAJORITY,
        node: SimulatedNode | None = None,
        queue: Queue | None = None,
    ) -> None:
        """`level` is the confirm level; for any other than the majority, node and queue say where the
        messages were published.
        """
        self._ledger = ledger
        self._bodies = bodies
        self._level = level
        self._node = node
        self._queue = queue

    def confirmed(self, first: int, last: int) -> None:
        if self._level != MAJORITY:
            self._look(self._bodies[first : last + 1])
        if self._level == LEADER:
            return
        for number in range(first, last + 1):
            body = self._bodies[number]
            self._ledger.confirmed[body] = None
            stop = self._ledger.offsets.get(body, -1) + 1
            self._ledger.confirmed_stop = max(self._ledger.confirmed_stop, stop)
        self._ledger.note("confirmed", last + 1 - first)

    def _look(self, bodies: list[bytes]) -> None:
        ledger, node, queue = self._ledger, self._node, self._queue
        assert node is not None and queue is not None
        host = queue.host
        group = host.group if isinstance(host, StreamMemberHost) and not host.ended else None
        if self._level == LEADER:
            ledger.note("confirmed by the leader", len(bodies))
            ledger.led.update(dict.fromkeys(bodies, 0 if group is None else group.core.term))
            ledger.note(
                "confirmed before a majority has it", sum(body not in ledger.offsets for body in bodies)
            )
            return
        ledger.note("confirmed by all", len(bodies))
        if group is not None and group.is_leader:
            check_reached(group, max(ledger.entries[body] for body in bodies), node.replicas_of_all())

    def refused(self, first: int, last: int) -> None:
        self._ledger.note("refused", last + 1 - first)

    def gone(self, first: int, last: int) -> None:
        self.confirmed(first, last)


class Program:
    """A publishing program, which numbers its messages."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.next = 0
        #: Numbers published, and not confirmed as far as the program has looked.
        self.pending: list[int] = []

    def body(self, number: int) -> bytes:
        return self.name + b"%0*d" % (BODY_BYTES - len(self.name), number)


class Reader:
    """A consumer at some node. See amqp_server.streams.local_host.Sink."""

    for_group = False
    user = "guest"

    def __init__(
        self,
        simulation: StreamSimulation,
        name: str,
        number: int,
        start: Start,
        wanted: Wanted | None = None,
    ) -> None:
        self._simulation = simulation
        self.wanted = wanted
        self.name = name
        self.number = number
        self.timed = number % 3 == 0
        self.batches = wanted is None and number % 3 == 1
        self.start = start
        #: The next offset, once it is known.
        self.next = start.offset
        self.node: SimulatedNode | None = None
        self.incarnation = 0
        #: For `next`: the end of what was confirmed when it came, and the number of messages that were
        #: published when it had its answer.
        self.low = self.published = 0

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.number, 1, self.name, 1)

    def attach(self, node: SimulatedNode, queue: Queue) -> None:
        """Begin at a node, or continue there."""
        self.node, self.incarnation = node, node.incarnation
        if self.next is not None:
            self.start = Start(offset=self.next)
        self.low = self._simulation.stream.confirmed_stop
        consumer = Consumer(self.key, prefetch=5, sink=self)
        node.turn.run(queue.host.attach, consumer, self.answered)
        node.end_turn()

    def answered(self, refused: str | None) -> None:
        """Called when it is attached, or can't be."""
        self.published = len(self._simulation.stream.published)
        if refused == NO_MAJORITY:
            self._simulation.stream.note("refused without a majority")
            self.node = None

    @property
    def is_attached(self) -> bool:
        return self.node is not None and self.node.alive and self.node.incarnation == self.incarnation

    def deliver_batch(self, consumer: Any, reader: BatchReader, count: int, first_id: int) -> None:
        simulation = self._simulation
        source, messages = reader, count
        if isinstance(reader, StoredReader):
            source = decoded(reader)
            messages = source.left
            simulation.stream.note("batches delivered")
        bodies = bodies_of(source.batch)[source.index :]
        for offset, body in zip(offsets_of(source, messages), bodies, strict=False):
            self._expect(offset)
            if not self._wants(body):
                raise Violation(f"reader {self.name} gets {body!r}, and wants {self.wanted}")
            simulation.stream.see(f"reader {self.name}", offset, body)
            self.next = offset + 1
        reader.skip(count)
        simulation.stream.note("delivered", messages)
        simulation.acks.append((self, self.incarnation, first_id, count))

    def _expect(self, offset: int) -> None:
        expected = self.next
        if expected is None:
            self._expect_first(offset)
            return
        if offset < expected:
            raise Violation(f"reader {self.name} goes back to {offset} from {expected}")
        simulation = self._simulation
        first = max(simulation.first_offset(), simulation.stream.first)
        missed = [
            each
            for each in range(max(expected, first), offset)
            if self._wants(simulation.stream.bodies[each]) and not simulation.may_be_gone(each)
        ]
        if missed:
            raise Violation(f"reader {self.name} skips {missed} from {expected} to {offset}")

    def _expect_first(self, offset: int) -> None:
        simulation, begins_ms = self._simulation, self.start.time_ms
        stream = simulation.stream
        if self.start.name == "next":
            self._expect_next(offset)
        if begins_ms is None:
            return
        # It may skip only messages that are older.
        missed = [
            each
            for each in range(simulation.first_offset(), offset)
            if stream.times[each] >= begins_ms
            and self._wants(stream.bodies[each])
            and not simulation.may_be_gone(each)
        ]
        if missed:
            raise Violation(f"reader {self.name} begins at {offset} for {begins_ms}, without {missed}")
        stream.note("begun at a time")

    def _expect_next(self, offset: int) -> None:
        """The reader gets nothing that was confirmed before it came, and all that was published after its
        answer.
        """
        stream = self._simulation.stream
        if offset < self.low:
            raise Violation(f"reader {self.name} begins at {offset}, and {self.low} messages were confirmed")
        missed = [
            each
            for each in map(stream.offsets.get, islice(stream.published, self.published, None))
            if each is not None
            and self._simulation.first_offset() <= each < offset
            and self._wants(stream.bodies[each])
            and not self._simulation.may_be_gone(each)
        ]
        if missed:
            raise Violation(f"reader {self.name} begins at {offset}, without {missed}")
        stream.note("begun at next")

    def _wants(self, body: bytes) -> bool:
        if self.wanted is None:
            return True
        value = value_of(body)
        return self.wanted.unfiltered if value is None else value in self.wanted.values

    @property
    def has_read(self) -> int:
        """The offset behind the last message that the reader has got, and behind those that its filter leaves
        out, or that may be gone.
        """
        simulation = self._simulation
        bodies, offset = simulation.stream.bodies, max(self.next or 0, simulation.first_offset())
        while offset in bodies and (simulation.may_be_gone(offset) or not self._wants(bodies[offset])):
            offset += 1
        return offset

    def passed(self, offset: int) -> None: ...

    def began(self, offset: int) -> None:
        """This reader reads for nobody else."""

    def failed(self, error: Exception) -> None:
        raise error

    def acks(self, first_id: int) -> None:
        """This reader remembers its place itself."""


class NamedReader(Reader):
    """A consumer that continues where its name is. It stays on its node; another consumer takes the name
    over.
    """

    def __init__(self, simulation: StreamSimulation, name: str, number: int) -> None:
        start = Start(COMMITTED, group=name, otherwise=Start("first"))
        super().__init__(simulation, name, number, start)
        #: Offsets behind deliveries, by their first ids.
        self._ends: dict[int, int] = {}

    def deliver_batch(self, consumer: Any, reader: BatchReader, count: int, first_id: int) -> None:
        super().deliver_batch(consumer, reader, count, first_id)
        assert self.next is not None
        self._ends[first_id] = self.next

    def _expect(self, offset: int) -> None:
        if self.next is None:
            acked = self._simulation.acked_to.get(self.name, 0)
            if offset <= acked:
                self.next = offset
                return
            self.next = acked
        super()._expect(offset)

    @property
    def has_read(self) -> int:
        if self.next is None:
            # The name may be at the end.
            self.next = self._simulation.acked_to.get(self.name)
            found, self.next = super().has_read, None
            return found
        return super().has_read

    def acks(self, first_id: int) -> None:
        acked = self._simulation.acked_to
        acked[self.name] = max(acked.get(self.name, 0), self._ends[first_id])


class ThirdReader(NamedReader):
    """A consumer with a name for which there is no place."""

    def __init__(self, simulation: StreamSimulation, number: int) -> None:
        super().__init__(simulation, "three", number)
        self.answers: list[str | None] = []

    def answered(self, refused: str | None) -> None:
        self.answers.append(refused)
        if refused is None:
            raise Violation(f"reader {self.number} has a name for which there is no place")
        self._simulation.stream.note("names refused", refused == NAMES_FULL)

    def deliver_batch(self, consumer: Any, reader: BatchReader, count: int, first_id: int) -> None:
        raise Violation(f"reader {self.number} gets messages without its name")


def decoded(reader: StoredReader) -> BatchReader:
    """Return a reader of a stored batch's messages, at the first one that its consumer wants."""
    stored = reader.batch
    assert isinstance(stored, StoredBatch)
    data = stored.front + bytes(stored.items)
    found = BatchReader(decode(decode_head(data), data))
    found.skip(reader.skipped)
    return found


def value_of(body: bytes) -> bytes | None:
    """Return the filter value: some messages have none."""
    key = key_of(body)
    return key if int(key) % 3 else None


def header_of(body: bytes) -> bytes:
    """Return the content header's payload."""
    value = value_of(body)
    if value is None:
        return HEADER
    fields = bytes((len(FILTER),)) + FILTER + b"S" + len(value).to_bytes(4, "big") + value
    return HEADER[:-2] + b"\x20\x00" + len(fields).to_bytes(4, "big") + fields


def bodies_of(batch: Batch) -> list[bytes]:
    """Return the bodies of a batch's messages, which stand at the end of their items."""
    found: list[bytes] = []
    items, at = bytes(batch.items), 0
    for shape in batch.shapes:
        for _ in range(shape.count):
            at += shape.size
            found.append(items[at - 1 - BODY_BYTES : at - 1])
    return found


def _offsets_at(data: bytes, at: int) -> range | None:
    """Return the offsets of the batch that has this byte of a segment; None if there is damage before it."""
    try:
        for start, head in heads_of(data):
            if start <= at < start + head.size:
                return range(head.base, head.stop)
    except Damaged:
        pass
    return None


class StreamSimulation(Cluster):
    def __init__(
        self,
        seed: int,
        *,
        steps: int = STEPS,
        trace: Callable[[str], None] | None = None,
        remote: bool | None = None,
    ) -> None:
        """`remote`: whether old segments go to an object store; by chance unless given."""
        random = Random(seed)
        #: The object store of old segments, if they go to one, and what chooses when it fails.
        self.objects = SimulatedObjects()
        self.weather = Random(f"weather {seed}")
        names = "abcd"[: random.choice((3, 4, 4))]
        rates = {name: random.choice((0.8, 1.0, 1.0, 1.2)) for name in names}
        self.trouble = random.choice((0.0, 0.3, 1.0, 1.0))
        super().__init__(names, names, random=random, rates=rates, trace=trace)
        #: In some of the runs.
        self.silences = Silences(self, Random(f"silences {seed}"), self.publish) if seed % 4 == 2 else None
        self.steps = steps
        #: The probability that a thread with something to write or read goes on in a step.
        self.threads = random.choice((1.0, 1.0, 0.3, 0.05))
        #: By stream id; the first one stays.
        self.ledgers: dict[int, StreamLedger] = {}
        self.main = 0
        self.readers: list[Reader] = []
        #: Deliveries that are yet to be acked: reader, start of its node, first one, count.
        self.acks: list[tuple[Reader, int, int, int]] = []
        self.number = 0
        #: Consumers with names, each with the offset up to which it has acked.
        self.named_readers: list[NamedReader] = []
        self.acked_to: dict[str, int] = {}
        self.third_readers: list[ThirdReader] = []
        #: By member, the offsets that its names have come to.
        self._seen_names: dict[StreamMemberHost, dict[str, int]] = {}
        #: Offsets that were damaged on each node, until all are whole again.
        self.damaged: dict[str, list[range]] = {}
        for node in self.nodes.values():
            node.snapshot_entries = 3
            # Some turns are only long enough for one or two hosts.
            node.turn_lasts = random.choice((inf, inf, 3.0))
            # Some members compress a stream that is declared without compression, each in its own way.
            node.stream_options = StreamOptions(
                segment_bytes=900,
                flush_bytes=400,
                flush_ms=300,
                codec=random.choice((NONE, ZSTD, LZ4)),
                names_max=NAMES,
            )
        self.mend()
        self.settle()
        bytes_max: dict[str, object] = {"x-max-length-bytes": 4000}
        limits = random.choice(({}, {}, bytes_max, bytes_max, {"x-max-age": "9s"}))
        #: Segments have few messages, and some have as many entries in their indexes as large ones.
        self.index_spacing_bytes = random.choice((64, index.SPACING_BYTES))
        #: Publishers give their messages ids, and publish again those that they are not sure of.
        self.named = random.random() < 0.6
        table: dict[str, object] = {"x-deduplication": True} if self.named else {}
        #: Members keep only the latest message of each key, when they have time for that.
        self.compacts = random.random() < 0.5
        if self.compacts:
            table["x-stream-compaction"] = "key"
        wanted = self.weather.random() < 0.4 if remote is None else remote
        if remote:
            self.compacts = False
            table.pop("x-stream-compaction", None)
        self.remote = wanted and not self.compacts
        if self.remote:
            table["x-stream-remote"] = "archive"
            table["x-stream-local-max-length-bytes"] = self.weather.choice((1, 2000))
            for node in self.nodes.values():
                node.stores["archive"] = self.objects
            if remote and Random(f"table {seed}").random() < 0.6:
                table["x-stream-table"] = "parquet"
        codec = random.choice((NONE, ZSTD, LZ4, ""))
        if codec:
            table["x-stream-compression"] = codec
        self.programs = [Program(b"p%d" % number) for number in range(3)]
        self._declare({"x-queue-type": "stream"} | limits | table)

    def _declare(self, arguments: dict[str, object]) -> None:
        members = tuple(self.random.sample(self.names, 3))
        node = self.serving[0]
        record = QueueRecord(
            "/", NAME, 0, False, encoded(arguments), type="stream", members=members, leader=members[0]
        )
        node.turn.run(node.broker.propose, DeclareQueue(record))
        node.end_turn()
        self.settle()
        queue = self.queue(node)
        assert queue is not None
        self.main = queue.queue_id

    # -- what there is ---------------------------------------------------------------------------------------

    @property
    def stream(self) -> StreamLedger:
        """Return the ledger of the stream that stays."""
        return self.ledger_of(self.main)

    def may_be_gone(self, offset: int) -> bool:
        """Return whether compaction may have taken this message of the stream that stays."""
        return self.compacts and self.stream.may_be_gone(offset)

    def ledger_of(self, queue_id: int) -> StreamLedger:
        return self.ledgers.setdefault(queue_id, StreamLedger())

    def queue(self, node: SimulatedNode, name: str = NAME) -> Queue | None:
        return node.broker.vhost("/").queues.get(name) if node.alive and node.serving else None

    def members(self, queue_id: int = 0) -> list[tuple[SimulatedNode, StreamMemberHost]]:
        found = []
        for node in self.running:
            host = node.cluster.hosts.grouped.get(queue_id or self.main)
            if isinstance(host, StreamMemberHost):
                found.append((node, host))
        return found

    def first_offset(self, queue_id: int = 0) -> int:
        """The highest offset that retention has deleted up to, as far as any member knows. After a start, a
        member's segments may begin behind what it has read of its log.
        """
        stream = self.ledger_of(queue_id or self.main)
        first = max((host.first_offset for _, host in self.members(queue_id)), default=0)
        stream.first = max(stream.first, first)
        return stream.first

    def check_retention(self) -> None:
        """Check that no member has deleted messages before a majority has the entry that says so: another
        leader may not know of it.
        """
        for node, host in self.members():
            if host.tier is None and host.log.first_kept > self.stream.outdated:
                raise Violation(
                    f"{node.name} has no messages before {host.log.first_kept}, and all are to have those from "
                    f"{self.stream.outdated} on"
                )

    # -- steps -----------------------------------------------------------------------------------------------

    def one_step(self) -> None:
        random = self.random
        action = random.random()
        node = self.nodes[random.choice(self.names)]
        if action < 0.40:
            for _ in range(random.choice((1, 2, 6))):
                places = self.network.places()
                if places:
                    self.log(self.network.go_on(*random.choice(places), random.choice((1, 2, 4, 8))))
        elif action < 0.56:
            self.step_disk(node)
            self.step_disk(self.nodes[random.choice(self.names)])
        elif action < 0.66:
            if random.random() < self.threads:
                self.step_read(node)
        elif action < 0.75:
            self.tick(node)
        elif action < 0.82:
            if self.named and random.random() < 0.4:
                self.go_on_publishing(node)
            else:
                self.publish(node)
        elif action < 0.84:
            self.use_super_stream(node)
        elif action < 0.90:
            if random.random() < 0.3:
                self.read_named(node)
                self.read_third(node)
            else:
                self.read(node)
        elif action < 0.93:
            self.connect(*random.sample(self.names, 2))
            if random.random() < 0.2:
                self.unblock()
        elif action < 0.955:
            self.start(node)
        elif action < 0.965:
            self.change_members(node)
        elif random.random() < self.trouble * 0.5:
            self.make_trouble(random.random(), node)
        if self.silences is not None and self.silences.chance(0.003 * self.trouble):
            self.silences.strike()
        if self.remote and self.weather.random() < 0.02 * self.trouble:
            self.change_weather()
        self.ack()
        self.first_offset()
        self.check_retention()
        self.check_whole()
        if self.remote:
            self._check_present()

    def change_weather(self) -> None:
        """The object store fails, in one way or another, or works again."""
        objects, what = self.objects, self.weather.choice(("away", "halves", "deaf", "lies", ""))
        objects.away, objects.halves = what == "away", what == "halves"
        objects.deaf, objects.lies = what == "deaf", what == "lies"
        self.log(f"the object store: {what or 'works'}")

    def mend(self) -> None:
        self.objects.away = self.objects.halves = self.objects.deaf = self.objects.lies = False
        super().mend()

    def use_super_stream(self, node: SimulatedNode) -> None:
        """The super stream is declared, gets messages and more partitions, and is deleted."""
        if not (node.alive and node.serving) or "/" not in node.broker.vhosts:
            return
        vhost, random = node.broker.vhost("/"), self.random
        exchange = vhost.router.get(WHOLE)
        operation: Operation
        if exchange is None:
            if not node.broker.replication.has_super_streams:
                return
            count = random.choice((1, 2, 3))
            arguments: dict[str, object] = {"x-partitions": count, "x-initial-cluster-size": 3}
            record = ExchangeRecord("/", WHOLE, "x-super-stream", False, False, encoded(arguments), True)
            operation = declaration(vhost, record, arguments, {})
            what = "a super stream is declared"
        else:
            partitions = partitions_of(vhost, exchange) or []
            chance = random.random()
            if chance < 0.8:
                self.publish(node, random.choice(partitions))
                return
            if chance < 0.9 and len(partitions) < PARTITIONS_MAX:
                operation, what = growth(vhost, WHOLE, random.choice((1, 2))), "partitions are added"
            else:
                operation, what = DeleteExchange("/", WHOLE), "a super stream is deleted"
        self.note(what)
        node.turn.run(node.broker.propose, operation)
        node.end_turn()

    def check_whole(self) -> None:
        """Check that every node has the super stream with all its partitions, or nothing of it."""
        for node in self.serving:
            vhost = node.broker.vhost("/")
            exchange = vhost.router.get(WHOLE)
            partitions = [] if exchange is None else partitions_of(vhost, exchange) or []
            expected = [f"{WHOLE}-{number}" for number in range(len(partitions))]
            there = sorted(name for name in vhost.queues if name.startswith(f"{WHOLE}-"))
            if partitions != expected or there != expected or (exchange is not None and not there):
                raise Violation(f"{node.name} has the partitions {partitions} of the streams {there}")

    def publish(self, node: SimulatedNode, name: str = NAME) -> None:
        queue = self.queue(node, name)
        if queue is None:
            return
        stream = self.ledger_of(queue.queue_id)
        count = self.random.choice((1, 1, 2, 10, 40))
        bodies = [b"%012d" % (self.number + each) for each in range(count)]
        self.number += count
        if name == NAME and self.named and self.random.random() < 0.5:
            bodies = self._again(stream) + bodies
        count = len(bodies)
        stream.published.update(dict.fromkeys(bodies))
        contents = [content.build(header_of(body), body, 1, 4096) for body in bodies]
        run = self._run(bodies, contents)
        level = self.random.choice((MAJORITY, MAJORITY, LEADER, ALL))
        run.attributes = PERSISTENT[level]
        self.log(f"{node.name}: publishes {bodies[0]!r} and {count - 1} more to {name}, level {level}")
        origin = Origin(stream, bodies, level, node, queue)
        command: tuple[Any, ...] = ("enqueue", run, origin, 0)
        if name == NAME and self.named and queue.host.wants_ids:
            command = ("enqueue_once", run, origin, 0, list(map(id_of, bodies)))
        node.turn.run(queue.host.submit, command)
        node.end_turn()

    def _run(self, bodies: list[bytes], contents: list[bytes]) -> Run:
        heads = list(map(head_of, bodies))
        run = Run(range(len(bodies)), contents, heads[0], PERSISTENT[MAJORITY])
        if len(set(heads)) > 1:
            run.heads = heads
        return run

    def _again(self, stream: StreamLedger) -> list[bytes]:
        """Return some messages that were published before, in their order: of the last ones, or of those that
        nobody has confirmed.
        """
        # Messages of programs have other bodies.
        every = [body for body in stream.published if body.isdigit()]
        published = [body for body in every if body not in stream.confirmed]
        if self.random.random() < 0.5 or not published:
            published = every
        start = self.random.randrange(max(len(published) - 60, 0), len(published) or 1)
        again = published[start : start + self.random.choice((1, 5, 30))]
        if again:
            self.stream.note("published again", len(again))
        return again

    def go_on_publishing(self, node: SimulatedNode) -> None:
        """A program publishes again what nobody has confirmed, and new messages, each with its number."""
        queue = self.queue(node)
        if queue is None or not queue.host.wants_ids:
            return
        program = self.random.choice(self.programs)
        stream = self.stream
        program.pending = [
            number for number in program.pending if program.body(number) not in stream.confirmed
        ]
        again = len(program.pending)
        if again < 80:
            # In order, however many are not confirmed: a gap would make the first ones duplicates.
            more = self.random.choice((1, 3, 20))
            program.pending += range(program.next, program.next + more)
            program.next += more
        numbers = range(program.pending[0], program.next)
        bodies = [program.body(number) for number in numbers]
        stream.published.update(dict.fromkeys(bodies))
        stream.note("published again", again)
        names = Sequence.from_first(sequence_of(program.name, numbers[0]), len(numbers))
        contents = [content.build(header_of(body), body, 1, 4096) for body in bodies]
        run = self._run(bodies, contents)
        self.log(f"{node.name}: {program.name!r} publishes {numbers}, {again} of them again")
        node.turn.run(queue.host.submit, ("enqueue_once", run, Origin(stream, bodies), 0, names))
        node.end_turn()

    def read_named(self, node: SimulatedNode, name: str = "") -> NamedReader | None:
        """A new consumer takes a name."""
        queue = self.queue(node)
        if queue is None or node.broker.replication.version < versions.STREAM_NAMES:
            return None
        reader = NamedReader(
            self, name or self.random.choice(("one", "two")), 10_000 + len(self.named_readers)
        )
        self.named_readers.append(reader)
        self.stream.note("names taken")
        self.log(f"{node.name}: reader {reader.number} takes the name {reader.name}")
        reader.attach(node, queue)
        return reader

    def read_third(self, node: SimulatedNode) -> None:
        """A consumer wants a third name, when a member knows that there are enough already."""
        queue = self.queue(node)
        if queue is not None and any(len(host.replica.names) == NAMES for _, host in self.members()):
            reader = ThirdReader(self, 20_000 + len(self.third_readers))
            self.third_readers.append(reader)
            self.log(f"{node.name}: reader {reader.number} wants a third name")
            reader.attach(node, queue)

    def check_names(self, host: StreamMemberHost) -> None:
        seen = self._seen_names.setdefault(host, {})
        if len(host.replica.names) > NAMES or not seen.keys() <= host.replica.names.keys():
            raise Violation(f"there were the names {list(seen)}, and now {list(host.replica.names)}")
        for name, kept in host.replica.names.items():
            if kept.offset < seen.get(name, -1):
                raise Violation(f"{name} goes back to {kept.offset} from {seen[name]}")
            acked = max(self.acked_to.get(name, 0), self.first_offset())
            if not all(self.may_be_gone(offset) for offset in range(acked, kept.offset)):
                raise Violation(
                    f"{name} is at {kept.offset}, and has acked up to {self.acked_to.get(name, 0)}"
                )
            seen[name] = kept.offset

    def read(self, node: SimulatedNode) -> None:
        """Add a reader, or have one continue at another node."""
        queue = self.queue(node)
        if queue is None:
            return
        lost = [reader for reader in self.readers if not reader.is_attached]
        if lost:
            self.log(f"{node.name}: reader {lost[0].name} goes on at {lost[0].next}")
            lost[0].attach(node, queue)
        elif len(self.readers) < 5:
            before_ms = self.random.choice((0, 500, 2000, 10_000))
            time_ms = max(self.stream.times.values(), default=0) - before_ms
            starts = (
                *(Start("first"), Start("next"), Start("last"), Start(offset=0), Start(ago_ms=2000)),
                *(Start(time_ms=time_ms), Start(time_ms=time_ms)),
            )
            wanted = self.random.choice((None, None, Wanted(frozenset((b"1", b"4")), unfiltered=True)))
            if self.random.random() < 0.2:
                wanted = Wanted(frozenset((b"2",)), unfiltered=False)
            start = self.random.choice(starts)
            reader = Reader(self, f"r{len(self.readers)}", len(self.readers), start, wanted)
            self.readers.append(reader)
            self.log(f"{node.name}: reader {reader.name} begins with {reader.start}")
            reader.attach(node, queue)

    def ack(self) -> None:
        acks, self.acks = self.acks, []
        for reader, incarnation, first_id, count in acks:
            node = reader.node
            if node is None or not node.alive or node.incarnation != incarnation:
                continue
            queue = self.queue(node)
            if queue is not None:
                reader.acks(first_id)
                node.turn.run(queue.host.submit, ("settle", reader.key, first_id, first_id + count - 1))
                node.end_turn()

    def change_members(self, node: SimulatedNode) -> None:
        queue = self.queue(node)
        if queue is None or self.wounded or self.damaged:
            return
        members = tuple(self.random.sample(self.names, self.random.choice((2, 3, 3))))
        self.note("members change")
        operation = SetMembers("/", NAME, queue.queue_id, members, members[0])
        node.turn.run(node.broker.propose, operation)
        node.end_turn()

    def make_trouble(self, which: float, node: SimulatedNode) -> None:
        random, network = self.random, self.network
        if which < 0.22:
            self.crash(node)
        elif which < 0.35:
            self.note("the power fails")
            for each in self.running:
                self.crash(each)
            for each in self.nodes.values():
                if random.random() < 0.7:
                    self.start(each)
            for one in self.names:
                self.connect(one, random.choice([name for name in self.names if name != one]))
        elif which < 0.5 and network.sessions:
            session = random.choice(network.sessions)
            self.note("links break")
            network.close(session, random.choice(session.ends))
        elif which < 0.65:
            self.note("partitions")
            for other in self.names:
                if other != node.name and random.random() < 0.8:
                    network.blocked[node.name, other] = network.blocked[other, node.name] = None
        elif which < 0.8:
            self.hand_over(node)
        elif which < 0.9:
            self.note("the disk is full")
            if random.random() < 0.5:
                node.disk.faults.full = random.choice((1, 2))
            else:
                self.fill(node)
        else:
            self.flip(node)

    def hand_over(self, node: SimulatedNode) -> None:
        if not node.alive:
            return
        for group in [group for group in node.cluster.replicas.groups.values() if group.is_leader]:
            to = self.random.choice(group.core.members.voters)
            if to != node.name and node.cluster.maintenance.transfer(group, to):
                self.note("leaders hand over")
                node.end_turn()

    def files(self, node: SimulatedNode) -> list[Path]:
        """Return the segments of the stream that is read by all."""
        found = [path for path in node.files.now if path.parent.name == str(self.main)]
        return sorted(path for path in found if path.suffix == ".segment" and node.files.now[path])

    def fill(self, node: SimulatedNode) -> None:
        """Leave little or no room for segments, until a later call makes room again."""
        files = node.files
        files.room = None if files.room is not None else files.used + self.random.choice((0, 30, 300, 2000))
        self.stream.note("no room for segments", files.room is not None)
        self.log(f"{node.name}: segments may have {files.room} bytes and have {files.used}")

    def flip(self, node: SimulatedNode) -> None:
        """A bit of a segment flips. Several nodes may be damaged, each in another place: of every message
        some copy stays whole.
        """
        if self.wounded or not node.alive or self.unrest():
            return
        files = self.files(node)
        if not files:
            return
        path = self.random.choice(files)
        data = node.files.now[path]
        at = self.random.randrange(len(data))
        offsets = _offsets_at(bytes(data), at)
        if offsets is None or any(
            offsets.start < each.stop and each.start < offsets.stop
            for name, found in self.damaged.items()
            if name != node.name
            for each in found
        ):
            return
        data[at] ^= 1 << self.random.randrange(8)
        node.files.synced[path] = bytes(data)
        self.damaged.setdefault(node.name, []).append(offsets)
        self.stream.note("bits flipped")
        self.stream.note("two nodes damaged", len(self.damaged) == 2)
        self.log(f"{node.name}: a bit of {path} flips at {at}, in {offsets}")

    def lose_files(self, node: SimulatedNode) -> None:
        """A node that is down loses a segment, or its whole disk."""
        if self.wounded or self.damaged or self.unrest():
            return
        queue = self.queue(node)
        if queue is None or len(queue.members) < 3:
            return
        if self.random.random() < 0.4:
            for _ in range(self.random.choice((1, 4))):
                self.flip(self.nodes[self.random.choice(self.names)])
            return
        files = self.files(node)
        self.crash(node)
        if self.random.random() < 0.5:
            self.stream.note("disks lost")
            self.wounded = node.name
            self.wiped[node.name] = None
            node.replace_disk()
        elif files:
            path = self.random.choice(files)
            node.files.now.pop(path, None)
            node.files.synced.pop(path, None)
            node.files.names_synced.discard(path)
            self.damaged[node.name] = [range(1 << 60)]
            self.stream.note("segments lost")
            self.log(f"{node.name}: {path} is deleted")

    # -- the run ---------------------------------------------------------------------------------------------

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Note each entry that any member applies: retention may delete its messages before anybody has read
        them.
        """
        place: Any = StreamMemberHost
        take = place._take
        entries: Any = index
        spacing = index.SPACING_BYTES

        def watched(host: StreamMemberHost, applied: Applied) -> None:
            stream = self.ledger_of(host.queue_id)
            for each in applied.batches:
                for offset, body in enumerate(bodies_of(each.batch), each.batch.base):
                    stream.see(host.replicas.node, offset, body)
                    stream.times[offset] = each.batch.time_ms
                    stream.entries.setdefault(body, host.replica.applied)
            stream.outdated = max(stream.outdated, host.replica.first_offset)
            take(host, applied)
            if host.queue_id == self.main:
                self.check_names(host)

        place._take = watched
        entries.SPACING_BYTES = self.index_spacing_bytes
        try:
            yield
        finally:
            place._take = take
            entries.SPACING_BYTES = spacing

    def run(self) -> None:
        with by_hand(), self._watching():
            for step in range(self.steps):
                self.step = step
                self.one_step()
                if step % EPOCH == EPOCH - 1:
                    self.come_to_rest()
                    if self.trouble and self.random.random() < 0.7:
                        self.lose_files(self.nodes[self.random.choice(self.names)])
            self.come_to_rest()
            for node in self.nodes.values():
                node.end_tasks()

    def come_to_rest(self) -> None:
        self.log("everything works again")
        self.mend()
        self.settle()
        if self.silences is not None and self.trouble and self.silences.chance(0.5):
            # Groups are idle, and no link begins anew afterwards unless it has to.
            self.silences.strike()
            self.settle()
        self._read_all()
        self.settle()
        self.check()
        self.wounded = ""
        self.damaged.clear()

    def _read_all(self) -> None:
        """All readers come to the end; new readers read everything on each node, so that damage is found and
        mended.
        """
        number = 100 + self.step * 20
        whole = [
            Reader(self, f"all at {node.name} {self.step}", number + each, Start("first"))
            for each, node in enumerate(self.serving)
        ]
        # At rest nobody may have found the damage yet.
        time_ms = self.random.choice([*self.stream.times.values()] or [0])
        since = [
            Reader(
                self,
                f"since {time_ms} at {node.name} {self.step}",
                number + 10 + each,
                Start(time_ms=time_ms),
            )
            for each, node in enumerate(self.serving)
        ]
        named = [self.read_named(self.random.choice(self.serving), name) for name in ("one", "two")]
        for node, reader in zip(self.serving * 2, since + whole, strict=True):
            queue = self.queue(node)
            assert queue is not None
            reader.attach(node, queue)
        for reader in self.readers:
            if not reader.is_attached:
                node = self.random.choice(self.serving)
                queue = self.queue(node)
                assert queue is not None
                reader.attach(node, queue)
        for _ in range(400):
            self.work_off()
            self.ack()
            for node in self.running:
                self.tick(node)
            self.work_off()
            stop = max((host.replica.next_offset for _, host in self.members()), default=0)
            behind = [reader.name for reader in (*whole, *self.readers) if reader.has_read < stop]
            late = [name for name in behind if not self._begins_later(name)]
            late += [each.name for each in named if each is not None and each.has_read < stop]
            # An ack counts for nothing if the name was taken over before. Who took it reads those messages
            # again, if retention has left them.
            late += [
                f"{name} at {node.name}"
                for node, host in self.members()
                for name, kept in host.replica.names.items()
                if max(kept.offset, self.first_offset()) < self.acked_to.get(name, 0)
            ]
            filling = [
                host.queue.name
                for node in self.running
                for host in node.cluster.hosts.grouped.values()
                if isinstance(host, StreamMemberHost) and host.missing_count
            ]
            tables = [
                f"{node.name} at {host.tier.table.next_offset} of {host.tier.stop}"
                for node, host in self.members()
                if host.tier is not None
                and host.tier.table_manifest is not None
                and host.tier.ranges
                and (host.tier.table.next_offset or 0) < host.tier.stop
            ]
            if not (late or filling or self.acks or tables):
                break
        else:
            raise Violation(f"readers do not come to the end at {stop}: {late}, {filling}, {tables}")
        for third in self.third_readers:
            if third.is_attached and not third.answers:
                raise Violation(f"reader {third.number} waits for an answer")
        for reader in since + whole:
            assert reader.node is not None
            queue = self.queue(reader.node)
            if reader.is_attached and queue is not None:
                reader.node.turn.run(queue.host.submit, ("detach", reader.key, True))
                reader.node.end_turn()

    def _begins_later(self, name: str) -> bool:
        """A reader that has got nothing yet has begun at the end, or there are no messages."""
        found = [reader for reader in self.readers if reader.name == name]
        if not found:
            return not self.stream.bodies or max(self.stream.bodies) < self.first_offset()
        reader = found[0]
        return reader.next is None or (reader.start.offset is not None and not self.stream.bodies)

    def check(self) -> None:
        for queue in self.serving[0].broker.vhost("/").queues.values():
            if queue.type.is_stream:
                self._check_stream(queue)
        self.check_whole()
        check_groups(self)
        self.stream.note("checked")

    def _check_stream(self, queue: Queue) -> None:
        members, stream = self.members(queue.queue_id), self.ledger_of(queue.queue_id)
        if sorted(node.name for node, _ in members) != sorted(queue.members):
            raise Violation(f"{[node.name for node, _ in members]} are members, not {queue.members}")
        states = {(host.replica.next_offset, host.replica.digest()) for _, host in members}
        if len(states) != 1:
            raise Violation(f"members of {queue.name} have come to different states: {states}")
        for node, host in members:
            self._check_member(node, host, stream)
        self._check_objects(members[0][1])
        first, stop = self.first_offset(queue.queue_id), members[0][1].replica.next_offset
        for body in stream.confirmed:
            offset = stream.offsets.get(body)
            if offset is None or offset >= stop:
                raise Violation(f"{body!r} was confirmed and is not there")
        term = max(host.group.core.term for _, host in members)
        for body, led in stream.led.items():
            if body not in stream.offsets or stream.offsets[body] >= stop:
                if led >= term:
                    raise Violation(
                        f"{body!r} was confirmed by the leader of term {led}, which leads, and is lost"
                    )
                stream.note("lost with its leader")
        stream.led.clear()
        for offset in range(first, stop):
            if offset not in stream.bodies:
                raise Violation(f"nobody has seen offset {offset} of {queue.name}")
        if queue.name != NAME:
            self.stream.note("confirmed in partitions", len(stream.confirmed))

    def _check_present(self) -> None:
        """Check that the objects of all ranges exist that no member has seen deleted, at any time."""
        for node, host in self.members():
            manifest = host.replica.manifest
            if manifest is None:
                continue
            for each in manifest.ranges:
                if each.stop > self.stream.first and manifest.key(each) not in self.objects.objects:
                    raise Violation(f"{node.name} has the range {each} without its object")

    def _check_objects(self, host: StreamMemberHost) -> None:
        """Check that the object store has what the manifest says, and that no object was replaced."""
        if self.objects.replaced:
            raise Violation(f"objects were replaced by others: {self.objects.replaced}")
        manifest = host.replica.manifest
        if manifest is None:
            return
        stop = 0
        for each in manifest.ranges:
            if each.first < stop:
                raise Violation(f"ranges of the manifest overlap at {each.first}")
            stop = each.stop
            if len(self.objects.objects.get(manifest.key(each), b"")) != each.object_bytes:
                raise Violation(f"the object of the range {each} is missing, or not whole")
        if host.tier is not None and host.tier.table_format is not None:
            self._check_table(manifest)
        self.stream.note("ranges in the store", len(manifest.ranges))
        self.stream.note("away from the disk", host.local_first_offset - host.first_offset)

    def _check_table(self, manifest: Manifest) -> None:
        """Check that files have the messages of all ranges, each once. A node that was killed while it wrote
        may have left a file of messages that were deleted.
        """
        found = sorted(
            offsets_of_table(key)
            for key in self.objects.objects
            if identity_of_table(key) == manifest.identity
        )
        for (_, stop), (first, _) in pairwise(found):
            if first < stop:
                raise Violation(f"files of the table overlap at {first}")
        due = [(each.first, each.stop) for each in manifest.ranges]
        if due and found[len(found) - len(due) :] != due:
            raise Violation(f"the table has the files {found}, and the manifest the ranges {due}")
        self.stream.note("files of tables", len(found))

    def _check_member(self, node: SimulatedNode, host: StreamMemberHost, stream: StreamLedger) -> None:
        """Check that this member has all messages, whole."""
        if host.missing_count or host.lost_count:
            raise Violation(
                f"{node.name} lacks {host.missing_count}, and has lost {host.lost_count} messages"
            )
        offset = host.first_offset
        reader = None if host.tier is None else host.tier.reader
        read_raw = host._log.read_raw if reader is None else reader.read_raw
        found: list[Batch] = []
        while offset < host.stored_offset:
            raw = read_raw(offset)
            if raw.lost is not None:
                raise Violation(f"{node.name}: {raw.lost}")
            for at, head in heads_of(raw.data):
                found.append(batches.decode(head, raw.data, at))
            offset = raw.stop
        found += [each.batch for each in host._tail]
        expected = host.first_offset
        for batch in found:
            if batch.stop <= expected:
                continue
            if batch.base > expected:
                raise Violation(f"{node.name} has a gap from {expected} to {batch.base}")
            if host.compacting is None:
                stream.see_batch(node.name, batch)
            there = range(batch.count) if batch.offsets is None else batch.offsets
            for number, body in zip(there, bodies_of(batch), strict=True):
                stream.see(node.name, batch.base + number, body)
            kept = {batch.base + number for number in there}
            for offset in range(max(expected, batch.base), batch.stop):
                if offset not in kept and not (host.compacting is not None and stream.may_be_gone(offset)):
                    raise Violation(f"{node.name} has no message {offset}, and none of its key comes later")
            expected = batch.stop
        if host.compacting is not None:
            self.stream.note("passes of compaction", host.compacting.passes)
        if expected != host.replica.next_offset:
            raise Violation(f"{node.name} ends at {expected}, not at {host.replica.next_offset}")


def run(
    seed: int,
    *,
    steps: int = STEPS,
    trace: Callable[[str], None] | None = None,
    remote: bool | None = None,
) -> StreamSimulation:
    with by_hand():
        simulation = StreamSimulation(seed, steps=steps, trace=trace, remote=remote)
    simulation.run()
    return simulation


def _told(simulation: StreamSimulation) -> list[str]:
    return [f"{simulation.stream.count}", f"{simulation.ledger.count}"]


if __name__ == "__main__":
    seeds.main(run, _told, steps=STEPS)
