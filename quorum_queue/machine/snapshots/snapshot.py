"""The whole state of a machine, and of the replica around it, as bytes; and its digest.

It has no bodies, only their sizes: the host knows where bodies are. A million messages are a few hundred
runs, each a few fields and columns of numbers (see quorum_queue.machine.snapshots.columns).

A snapshot is made in parts, because a million messages take longer than a turn may: `View` refers to
everything when it is begun, and encodes some of it at each call, while the machine goes on (see
quorum_queue.machine.snapshots.frozen). `Reading` builds a replica's state in parts, too.

    from versions.COLUMNS on: MARK | parts, each a u32 with its length, a byte that says what it has, and
    MessagePack: HEAD, then BLOCKS, READY, LETTERS, CONSUMER and its HELD, IDS, PRODUCERS, PART, RECORD,
    DELAYED, and END

Before, it is one object in MessagePack, with a record for each stretch of messages that differ in their size
only; the bytes are those that earlier releases write and read.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from hashlib import blake2b
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

import msgspec

from quorum_queue.machine import locations as places
from quorum_queue.machine import versions
from quorum_queue.machine.arrays import packed, unpacked
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Reason
from quorum_queue.machine.locations import Block, Locations
from quorum_queue.machine.machine import Machine
from quorum_queue.machine.parts import Part
from quorum_queue.machine.positions import Positions, Seqs, seqs_of
from quorum_queue.machine.record.arrivals import Arrivals
from quorum_queue.machine.run import KINDS_MAX, Run
from quorum_queue.machine.snapshots.columns import column, numbers_of
from quorum_queue.machine.snapshots.frozen import Held
from quorum_queue.machine.snapshots.records import (
    Head,
    OldMachine,
    OldRun,
    StoredBlock,
    StoredConsumer,
    StoredPart,
    StoredRun,
)
from quorum_queue.machine.snapshots.states import DedupState, ReplicaState

#: First byte of a snapshot in parts. MessagePack never uses it.
MARK: Final = 0xC1
HEAD, BLOCKS, READY, LETTERS, CONSUMER, HELD, IDS, PRODUCERS, END, PART, RECORD, DELAYED = range(1, 13)
_SECTION: Final = struct.Struct(">IB")
#: Messages, and runs or other records, after which a part ends.
PART_MESSAGES = 8192
PART_RUNS = 256
PART_BLOCKS = 8
PART_NAMES = 4096

_encode = msgspec.msgpack.Encoder().encode
_old_machine: Final = msgspec.msgpack.Decoder(OldMachine)
_old_run: Final = msgspec.msgpack.Decoder(OldRun)
_consumer: Final = msgspec.msgpack.Decoder(StoredConsumer)
_dedup: Final = msgspec.msgpack.Decoder(DedupState | None)
_replica: Final = msgspec.msgpack.Decoder(ReplicaState)
_head: Final = msgspec.msgpack.Decoder(Head)
_blocks: Final = msgspec.msgpack.Decoder(list[StoredBlock])
#: Fields of a consumer before versions.COLUMNS.
OLD_CONSUMER_FIELDS: Final = 12
_ready: Final = msgspec.msgpack.Decoder(list[StoredRun])
_letters: Final = msgspec.msgpack.Decoder(list[tuple[Reason, StoredRun]])
_held: Final = msgspec.msgpack.Decoder(list[tuple[int, StoredRun]])
_delayed: Final = msgspec.msgpack.Decoder(list[tuple[int, StoredRun]])
_ids: Final = msgspec.msgpack.Decoder(list[tuple[bytes, int]])
_part: Final = msgspec.msgpack.Decoder(StoredPart)
_record: Final = msgspec.msgpack.Decoder(list[Any])
_producers: Final = msgspec.msgpack.Decoder(list[tuple[bytes, int, int]])
_ERRORS = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, struct.error)


class Own(NamedTuple):
    """The state of a replica beside its machine; see quorum_queue.machine.replicated."""

    applied: int = 0
    now_ms: int = 0
    #: Node, incarnation and number of the last batches.
    batches: list[tuple[str, int, int]] = []
    gap: list[str] | None = None


class View:
    """A machine, and the replica around it, at the moment when this is made."""

    __slots__ = (
        "_active",
        "_arrivals",
        "_blocks",
        "_columns",
        "_consumers",
        "_dead",
        "_delayed",
        "_head",
        "_ids",
        "_letters",
        "_machine",
        "_moment",
        "_own",
        "_parts",
        "_pauses",
        "_pended",
        "_producers",
        "_record",
        "_runs",
        "_scanned",
        "_sealed",
        "_steps",
    )

    def __init__(self, machine: Machine, own: Own | None = None, locations: Locations | None = None) -> None:
        self._machine = machine
        self._own = Own() if own is None else own
        self._blocks: list[Block] = [] if locations is None else locations.blocks()
        self._moment = machine.frozen.begin()
        self._head = (machine.version, machine.settings, machine.next_seq, machine.last_used_ms)
        self._letters = machine.letters.state()
        self._sealed = machine.sealed
        self._scanned = 0 if machine.grouped is None else machine.grouped.scanned
        self._pauses = machine.pauses
        self._arrivals = list(machine.arrivals.positions), list(machine.arrivals.times)
        #: There are few, for a moment: they are encoded at once.
        self._pended = [_encode(_stored_part(part)) for part in machine.parts.all()]
        self._runs: list[Run] = list(machine.ready.runs())
        self._delayed = list(machine.delayed.items()) if machine.delayed.count else []
        self._dead = list(machine.dead_lettering.values())
        self._consumers = machine.consumers.in_turn()
        self._active = machine.consumers.active
        dedup = machine.dedup
        self._ids: dict[bytes, int] | None = None if dedup is None else dedup.ids()
        self._producers: dict[bytes, tuple[int, int]] = {} if dedup is None else dedup.producers()
        self._record = None if machine.record is None else machine.record.view()
        #: What is encoded so far; before versions.COLUMNS the columns of the locations are separate.
        self._parts: list[bytes] = []
        self._columns: list[list[bytes]] = [[] for _ in range(6)]
        old = machine.version < versions.COLUMNS
        self._steps: Iterator[None] = self._encode_old() if old else self._encode()

    def go_on(self) -> bool:
        """Encode a part; return False if everything is encoded."""
        for _ in self._steps:
            return True
        self.end()
        return False

    def end(self) -> None:
        """The machine need not keep this moment any more."""
        self._machine.frozen.end(self._moment)

    def machine(self) -> bytes:
        """Return the snapshot of the machine, once everything is encoded."""
        return b"".join(self._parts)

    def replica(self) -> bytes:
        """Return the snapshot of the replica, once everything is encoded."""
        version, own = self._head[0], self._own
        if version >= versions.COLUMNS:
            return b"".join(self._parts)
        located = [_array(6)]
        for column_parts in self._columns:
            located += (_binary(sum(map(len, column_parts))), *column_parts)
        return b"".join(
            (
                _array(7),
                *map(_encode, (version, own.applied, own.now_ms, own.batches)),
                _binary(sum(map(len, located))),
                *located,
                _binary(sum(map(len, self._parts))),
                *self._parts,
                _encode(own.gap),
            )
        )

    # -- from versions.COLUMNS on ----------------------------------------------------------------------------

    def _put(self, kind: int, what: Any) -> None:
        self._put_encoded(kind, _encode(what))

    def _put_encoded(self, kind: int, data: bytes) -> None:
        self._parts += (_SECTION.pack(len(data), kind), data)

    def _encode(self) -> Iterator[None]:
        self._parts.append(bytes((MARK,)))
        more = self._sealed, self._scanned, self._arrivals, self._pauses
        self._put(HEAD, Head(*self._head, self._letters, *self._own, *more))
        for at in range(0, len(self._blocks), PART_BLOCKS):
            self._put(BLOCKS, [_stored_block(block) for block in self._blocks[at : at + PART_BLOCKS]])
            yield
        for runs in self._portions(self._runs):
            self._put(READY, list(map(_stored, runs)))
            yield
        for at in range(0, len(self._dead), PART_RUNS):
            self._put(LETTERS, [(reason, _stored(run)) for run, reason in self._dead[at : at + PART_RUNS]])
            yield
        for consumer in self._consumers:
            held = self._moment.held(consumer)
            self._put(CONSUMER, _stored_consumer(consumer, held, consumer is self._active))
            at = 0
            for runs in self._portions(held.runs):
                self._put(HELD, list(_cut(held.starts[at : at + len(runs)], runs)))
                at += len(runs)
                yield
            if len(self._parts) % PART_RUNS < 2:
                yield
        if self._ids is not None:
            yield from self._encode_names()
        for data in self._pended:
            self._put_encoded(PART, data)
        if self._record is not None:
            for part in self._record.parts():
                self._put(RECORD, part)
                yield
        at = 0
        for runs in self._portions([run for _, run in self._delayed]):
            due = [due_ms for due_ms, _ in self._delayed[at : at + len(runs)]]
            self._put(DELAYED, list(zip(due, map(_stored, runs), strict=True)))
            at += len(runs)
            yield
        self._put(END, None)

    def _encode_names(self) -> Iterator[None]:
        assert self._ids is not None
        ids, producers = iter(self._ids.items()), iter(self._producers.items())
        while names := list(islice(ids, PART_NAMES)):
            self._put(IDS, names)
            yield
        while found := list(islice(producers, PART_NAMES)):
            self._put(PRODUCERS, [(key, *last) for key, last in found])
            yield

    def _portions(self, runs: list[Run]) -> Iterator[list[Run]]:
        """Yield the runs as they were, so many at a time as make a part."""
        at, end = 0, len(runs)
        while at < end:
            portion: list[Run] = []
            messages = 0
            while at < end and messages < PART_MESSAGES and len(portion) < PART_RUNS:
                run = self._moment.run(runs[at])
                messages += len(run.seqs)
                portion.append(run)
                at += 1
            yield portion

    # -- before ----------------------------------------------------------------------------------------------

    def _encode_old(self) -> Iterator[None]:
        version = self._head[0]
        for number, block in enumerate(self._blocks):
            for into, part in zip(self._columns, places.flat(block), strict=True):
                into.append(part)
            if not number % PART_BLOCKS:
                yield
        parts = self._parts
        parts.append(_array(9 if version >= versions.LETTERS else 8))
        parts += map(_encode, self._head)
        at, count = len(parts), 0
        parts.append(b"")
        for runs in self._portions(self._runs):
            for run in runs:
                olds = list(_old_runs(run))
                count += len(olds)
                parts += map(_encode, olds)
                yield
        parts[at] = _array(count)
        parts.append(_array(len(self._dead)))
        for number, (run, reason) in enumerate(self._dead):
            parts.append(_encode((reason, *_old_runs(run))))
            if not number % PART_RUNS:
                yield
        parts.append(_array(len(self._consumers)))
        for consumer in self._consumers:
            held = self._moment.held(consumer)
            record = _encode(_stored_consumer(consumer, held, consumer is self._active))
            # The last of the fields of these versions is an array, empty here; behind it is the position.
            parts += (_array(OLD_CONSUMER_FIELDS), record[1:-2])
            at, count = len(parts), 0
            parts.append(b"")
            for runs in self._portions(held.runs):
                for start, run in zip(islice(held.starts, count, None), runs, strict=False):
                    first = start
                    for old in _old_runs(run):
                        parts.append(_encode((first, old)))
                        first += old.count
                count += len(runs)
                yield
            parts[at] = _array(len(parts) - at - 1)
        if self._ids is None:
            parts.append(_encode(None))
        else:
            producers = [(key, *last) for key, last in self._producers.items()]
            parts.append(_encode(DedupState(list(self._ids.items()), producers)))
        if version >= versions.LETTERS:
            parts.append(_encode(self._letters))


def encode(machine: Machine) -> bytes:
    """Return everything but bodies, sinks and windows, as the version of the machine has it."""
    view = View(machine)
    while view.go_on():
        pass
    return view.machine()


def decode(data: bytes | memoryview) -> Machine:
    """Build a machine from the result of `encode`; the host has to restore sinks and windows. Raises
    CodecError.
    """
    reading = Reading(data, replica=False)
    while reading.go_on():
        pass
    return reading.machine


class Reading:
    """Builds a machine, and what the replica around it has, from a snapshot, in parts."""

    __slots__ = ("_data", "_steps", "locations", "machine", "own")

    #: Complete once `go_on` has returned False.
    machine: Machine

    def __init__(self, data: bytes | memoryview, *, replica: bool = True) -> None:
        self._data = memoryview(data)
        self.own = Own()
        self.locations = Locations()
        if len(self._data) and self._data[0] == MARK:
            self._steps: Iterator[None] = self._read()
        elif replica:
            self._steps = self._read_old_replica()
        else:
            self._steps = self._read_old(self._data)

    def go_on(self) -> bool:
        """Read a part; return False if everything is read. Raises CodecError."""
        try:
            for _ in self._steps:
                return True
        except _ERRORS as error:
            raise CodecError(f"no snapshot of a queue: {error}") from error
        return False

    def _begin(self, machine: Machine) -> None:
        self.machine = machine

    def _read(self) -> Iterator[None]:
        data, at, end = self._data, 1, len(self._data)
        begun = False
        consumer: Consumer | None = None
        while True:
            size, kind = _SECTION.unpack_from(data, at)
            at += _SECTION.size
            part = data[at : at + size]
            at += size
            if at > end or (kind == HEAD) is begun:
                raise CodecError("a snapshot ends inside a part, or has no head")
            if kind == HEAD:
                self._read_head(part)
                begun = True
            elif kind == BLOCKS:
                for stored in _blocks.decode(part):
                    self.locations.put(_block(stored))
            elif kind == READY:
                for run in map(_run, _ready.decode(part)):
                    _put_ready(self.machine, run)
            elif kind == LETTERS:
                for reason, saved in _letters.decode(part):
                    self.machine.hold_letter(_run(saved), reason)
            elif kind == CONSUMER:
                consumer = _restore_consumer(self.machine, _consumer.decode(part))
            elif kind == HELD:
                if consumer is None:
                    raise CodecError("messages of no consumer")
                for first, saved in _held.decode(part):
                    _hold(self.machine, consumer, first, _run(saved))
            elif kind in (IDS, PRODUCERS):
                self._read_names(kind, part)
            elif kind == PART:
                _put_part(self.machine, _part.decode(part))
            elif kind == RECORD:
                if self.machine.record is not None:
                    self.machine.record.restored(_record.decode(part))
            elif kind == DELAYED:
                for due_ms, saved in _delayed.decode(part):
                    self.machine.delay(due_ms, _run(saved))
            elif kind == END:
                if at != end:
                    raise CodecError("a snapshot goes on behind its end")
                return
            else:
                raise CodecError(f"a part of kind {kind}")
            yield

    def _read_head(self, part: memoryview) -> None:
        head = _head.decode(part)
        check_version(head.version)
        self.own = Own(head.applied, head.now_ms, head.batches, head.gap)
        machine = Machine(head.settings, head.next_seq, version=head.version)
        machine.last_used_ms = head.last_used_ms
        machine.letters.restore(head.letters)
        machine.sealed, machine.pauses = head.sealed, head.pauses
        if machine.grouped is not None:
            machine.grouped.scanned = head.scanned
        positions, times = head.arrivals
        machine.arrivals = Arrivals.restored(positions, times, head.now_ms)
        self._begin(machine)

    def _read_names(self, kind: int, part: memoryview) -> None:
        dedup = self.machine.dedup
        if dedup is None:
            return
        if kind == IDS:
            dedup.ids_restored(_ids.decode(part))
        else:
            dedup.producers_restored(_producers.decode(part))

    def _read_old_replica(self) -> Iterator[None]:
        state = _replica.decode(self._data)
        check_version(state.version)
        self.own = Own(state.applied, state.now_ms, state.batches, state.gap)
        located = places.Restoring(state.locations)
        self.locations = located.locations
        while located.go_on():
            yield
        yield from self._read_old(memoryview(state.machine))

    def _read_old(self, data: memoryview) -> Iterator[None]:
        state = _old_machine.decode(data)
        check_version(state.version)
        machine = Machine(state.settings, state.next_seq, version=state.version)
        machine.letters.restore(state.letters)
        machine.last_used_ms = state.last_used_ms
        self._begin(machine)
        for number, raw in enumerate(state.ready, 1):
            _put_ready(machine, _run_of_old(raw))
            if not number % PART_RUNS:
                yield
        for number, (reason, raw) in enumerate(state.dead_lettering, 1):
            machine.hold_letter(_run_of_old(raw), reason)
            if not number % PART_RUNS:
                yield
        for saved in state.consumers:
            fields = _consumer.decode(saved)
            consumer = _restore_consumer(machine, fields)
            for number, (first, raw) in enumerate(fields.held, 1):
                _hold(machine, consumer, first, _run_of_old(raw))
                if not number % PART_RUNS:
                    yield
        found = _dedup.decode(state.dedup)
        if machine.dedup is not None and found is not None:
            machine.dedup.restore(found)


def check_version(version: int) -> None:
    """Raises CodecError for a snapshot of a newer version than this mqd's."""
    if not versions.FIRST <= version <= versions.NEWEST:
        raise CodecError(f"a snapshot has version {version}, this mqd reads versions up to {versions.NEWEST}")


def digest(machine: Machine) -> bytes:
    """16 bytes that are equal on replicas in the same state, however runs
    are cut and whatever is in memory.
    """
    digest = blake2b(digest_size=16)
    settings = asdict(machine.settings)
    if machine.version < versions.PRIORITIES:
        # What an older version wrote does not tell.
        del settings["strict"]
    fields = settings, machine.next_seq, machine.last_used_ms
    digest.update(repr(fields).encode())
    _digest_ready(digest.update, machine.ready.runs())
    for run, reason in machine.dead_lettering.values():
        digest.update(reason.encode())
        _digest_singly(digest.update, run, 0)
    for consumer in machine.consumers.in_turn():
        held = Held.of(consumer)
        digest.update(_encode(_stored_consumer(consumer, held, consumer is machine.consumers.active)))
        for first, run in zip(consumer.checkout.starts, consumer.checkout.runs, strict=True):
            _digest_singly(digest.update, run, first)
    if machine.dedup is not None:
        digest.update(_encode(machine.dedup.state()))
    if machine.version >= versions.LETTERS:
        digest.update(_encode((machine.version, machine.letters.state())))
    for part in machine.parts.all():
        _digest_part(digest.update, part)
    if machine.record is not None:
        machine.record.digest(digest.update)
    for due_ms, run in machine.delayed.items():
        _digest_singly(digest.update, run, due_ms, step=0)
    if machine.grouped is not None:
        digest.update(repr(machine.grouped.scanned).encode())
    if machine.sealed:
        digest.update(b"sealed")
    if machine.pauses:
        digest.update(b"paused %d" % machine.pauses)
    return digest.digest()


def sizes_of(run: Run) -> array[int]:
    """Return the size of each content, whether they are in memory or not."""
    if run.contents is not None:
        return array("I", map(len, run.contents))
    assert run.sizes is not None
    return run.sizes


def _stored(run: Run) -> StoredRun:
    deadlines, kinds, seqs = run.deadlines, run.kinds, run.seqs
    return StoredRun(
        seqs.start,
        len(seqs),
        seqs.step,
        column(sizes_of(run)),
        run.head if run.heads is None else b"",
        run.heads,
        run.attributes,
        None if kinds is None else bytes(kinds),
        # Other runs may have made the table longer.
        None if kinds is None or run.table is None else run.table[: max(kinds) + 1],
        run.expires_at if deadlines is None else None,
        None if deadlines is None else column(deadlines),
        run.redelivered,
        run.attempts,
        run.acquired,
        run.waits_until,
        column(list(seqs)) if isinstance(seqs, Positions) else None,
    )


def _cut(starts: list[int], runs: list[Run]) -> Iterator[tuple[int, StoredRun]]:
    """Yield what a consumer holds, with delivery ids, in runs whose positions are ranges."""
    for start, run in zip(starts, runs, strict=True):
        for part in run.cut():
            yield start, _stored(part)
            start += len(part.seqs)


def _run(stored: StoredRun) -> Run:
    """Raises CodecError, ValueError, OverflowError."""
    count = stored.count
    run = _run_with(stored, numbers_of(stored.sizes, max(count, 0), "I"))
    if stored.deadlines is not None:
        run.deadlines = numbers_of(stored.deadlines, count, "q")
        run.expires_at = min(run.deadlines)
    if stored.kinds is not None:
        table = stored.table or []
        if len(stored.kinds) != count or max(stored.kinds) >= len(table) or len(table) > KINDS_MAX:
            raise CodecError("the kinds of a run's messages do not fit together")
        run.kinds, run.table = bytearray(stored.kinds), table
    return run


def _run_with(stored: StoredRun | OldRun, sizes: array[int]) -> Run:
    """Return a run with these sizes, as far as both records say the same."""
    count = stored.count
    positions = stored.positions if isinstance(stored, StoredRun) else None
    if count < 1 or (stored.step < 1 and positions is None) or len(sizes) != count:
        raise CodecError("a run in a snapshot does not fit together")
    if stored.heads is not None and len(stored.heads) != count:
        raise CodecError(f"a run of {count} messages has the routing of {len(stored.heads)}")
    seqs: Seqs
    if positions is None:
        seqs = range(stored.start, stored.start + count * stored.step, stored.step)
    else:
        numbers = list(numbers_of(positions, count, "q"))
        if any(later <= number for number, later in pairwise(numbers)):
            raise CodecError("the positions of a run in a snapshot do not ascend")
        seqs = seqs_of(numbers)
    run = Run(seqs, None, stored.head, stored.attributes, stored.expires_at, sum(sizes))
    run.sizes, run.heads = sizes, stored.heads
    run.redelivered, run.attempts = stored.redelivered, stored.attempts
    if isinstance(stored, StoredRun):
        run.acquired = stored.acquired
        run.waits_until = stored.waits_until
    return run


def _old_runs(run: Run) -> Iterator[OldRun]:
    """Yield the records of stretches of messages that differ in their size and routing only."""
    sizes, deadlines, kinds, heads, seqs = sizes_of(run), run.deadlines, run.kinds, run.heads, run.seqs
    count, low = len(seqs), 0
    while low < count:
        high = low + 1
        if deadlines is None and kinds is None:
            high = count
        else:
            while (
                high < count
                and (deadlines is None or deadlines[high] == deadlines[low])
                and (kinds is None or kinds[high] == kinds[low])
            ):
                high += 1
        part = sizes if high - low == count else sizes[low:high]
        yield OldRun(
            seqs[low],
            high - low,
            seqs.step,
            part[0] if part.count(part[0]) == len(part) else packed(part),
            run.head if heads is None else b"",
            None if heads is None else heads[low:high],
            run.attributes_of(low),
            run.due_of(low),
            run.redelivered,
            run.attempts,
        )
        low = high


def _run_of_old(raw: msgspec.Raw) -> Run:
    old = _old_run.decode(raw)
    if isinstance(old.sizes, bytes):
        return _run_with(old, unpacked("I", old.sizes))
    return _run_with(old, array("I", [old.sizes]) * old.count)


def _stored_block(block: Block) -> StoredBlock:
    block = places.closed(block)
    return StoredBlock(
        block.first,
        block.entry,
        len(block),
        column(block.firsts),
        column(block.counts),
        column(block.entries),
        column(block.ordinals),
        column(block.live),
    )


def _block(stored: StoredBlock) -> Block:
    """Raises ValueError, OverflowError."""
    block, count = Block(), stored.count
    if count < 1:
        raise ValueError("a block of nothing")
    block.first, block.entry = stored.first, stored.entry
    block.firsts = numbers_of(stored.firsts, count, "q")
    block.counts = numbers_of(stored.counts, count, "q")
    block.entries = numbers_of(stored.entries, count, "q")
    block.ordinals = numbers_of(stored.ordinals, count, "q")
    block.live = numbers_of(stored.live, count, "q")
    block.left = sum(block.live)
    block.close()
    places.check(block)
    return block


def _stored_consumer(consumer: Consumer, held: Held, active: bool) -> StoredConsumer:
    return StoredConsumer(
        consumer.key,
        consumer.channel,
        consumer.no_ack,
        held.own_prefetch,
        held.window_limit,
        consumer.priority,
        consumer.exclusive,
        held.paused,
        held.attached,
        active,
        held.next_id,
        [],
        consumer.position,
    )


def _put_ready(machine: Machine, run: Run) -> None:
    # With message groups, all of them come in the order of their positions.
    if run.redelivered and machine.grouped is None:
        machine.ready.put_back([run])
    else:
        machine.ready.push(run)


def _restore_consumer(machine: Machine, fields: StoredConsumer) -> Consumer:
    consumer = Consumer(
        _hashable(fields.key),
        no_ack=fields.no_ack,
        prefetch=fields.own_prefetch,
        priority=fields.priority,
        exclusive=fields.exclusive,
        channel=_hashable(fields.channel),
        window_limit=fields.window_limit,
        position=fields.position,
    )
    consumer.paused, consumer.next_id = fields.paused, fields.next_id
    if fields.attached:
        machine.consumers.attach(consumer)
    else:
        consumer.attached = False
        machine.consumers.keep(consumer)
    if fields.active:
        machine.consumers.active = consumer
    return consumer


def _hold(machine: Machine, consumer: Consumer, first: int, run: Run) -> None:
    consumer.checkout.add(first, run)
    if machine.grouped is not None:
        machine.grouped.hold(run, consumer)
    machine.unacked_bytes += run.counted_bytes
    machine.unacked_count += len(run.seqs)


def _stored_part(part: Part) -> StoredPart:
    return StoredPart(
        part.transaction,
        part.came,
        part.late,
        part.prepared,
        part.participants,
        part.since_ms,
        [(_stored(run), names) for run, names in part.enqueued],
        [(verb, list(map(_stored, runs))) for verb, runs in part.settled],
    )


def _put_part(machine: Machine, stored: StoredPart) -> None:
    part = Part(stored.transaction, stored.since_ms)
    part.came, part.late, part.prepared = stored.came, stored.late, stored.prepared
    part.participants = stored.participants
    for saved, names in stored.enqueued:
        run = _run(saved)
        if names is not None and len(names) != len(run.seqs):
            raise CodecError("the names of a part's messages do not fit together")
        part.add_messages(run, names)
    for verb, saved_runs in stored.settled:
        if verb not in ("settle", "return", "fail", "discard"):
            raise CodecError(f"a part of a transaction does {verb!r}")
        runs = list(map(_run, saved_runs))
        part.add_settled(verb, runs)
        if machine.grouped is not None:
            for run in runs:
                machine.grouped.block(run)
    machine.parts.put(part)
    machine.unacked_count += part.unacked_count
    machine.unacked_bytes += part.unacked_bytes


def _digest_part(update: Callable[[bytes], None], part: Part) -> None:
    fields = part.transaction, part.came, part.late, part.prepared, part.participants, part.since_ms
    update(repr(fields).encode())
    for run, names in part.enqueued:
        update(repr(names).encode())
        _digest_singly(update, run, 0)
    for verb, runs in part.settled:
        update(verb.encode())
        for run in runs:
            _digest_singly(update, run, 0)


def _array(count: int) -> bytes:
    """Return the MessagePack head of an array."""
    if count < 16:
        return bytes((0x90 | count,))
    return struct.pack(">BH", 0xDC, count) if count < 1 << 16 else struct.pack(">BI", 0xDD, count)


def _binary(count: int) -> bytes:
    """Return the MessagePack head of so many bytes."""
    if count < 1 << 8:
        return struct.pack(">BB", 0xC4, count)
    return struct.pack(">BH", 0xC5, count) if count < 1 << 16 else struct.pack(">BI", 0xC6, count)


def _hashable(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


def _digest_ready(update: Callable[[bytes], None], runs: Iterable[Run]) -> None:
    """Feed the ready messages as the longest stretches that share everything but their size."""
    shared: tuple[Any, ...] = ()
    start = stop = 0
    parts: list[bytes] = []

    def end() -> None:
        if parts:
            update(repr((start, stop, shared)).encode())
            update(b"".join(parts))

    for run in runs:
        sizes = packed(sizes_of(run))
        for low, high in _alike(run) if run.seqs.step == 1 else _each(run):
            fields = (run.head_of(low), *_shared(run, low))
            if fields != shared or run.seqs[low] != stop:
                end()
                shared, start, parts = fields, run.seqs[low], []
            stop = run.seqs[high - 1] + 1
            parts.append(sizes[4 * low : 4 * high])
    end()


def _each(run: Run) -> Iterator[tuple[int, int]]:
    for index in range(len(run.seqs)):
        yield index, index + 1


def _alike(run: Run) -> Iterator[tuple[int, int]]:
    """Cut a run wherever anything but the size changes."""
    count = len(run.seqs)
    heads, deadlines, kinds = run.heads, run.deadlines, run.kinds
    if heads is None and deadlines is None and kinds is None:
        yield 0, count
        return
    low = 0
    for index in range(1, count):
        if (
            (heads is not None and heads[index] != heads[low])
            or (deadlines is not None and deadlines[index] != deadlines[low])
            or (kinds is not None and kinds[index] != kinds[low])
        ):
            yield low, index
            low = index
    yield low, count


def _digest_singly(update: Callable[[bytes], None], run: Run, first_id: int, step: int = 1) -> None:
    """Feed messages one by one, each with its delivery id, or all with the same number (`step` 0)."""
    sizes = sizes_of(run)
    for low, high in _alike(run):
        shared = _shared(run, low)
        if run.waits_until:
            shared = (*shared, run.waits_until)
        for index in range(low, high):
            seq = run.seqs[index]
            update(repr((first_id + step * index, seq, sizes[index], run.head_of(index), *shared)).encode())


def _shared(run: Run, index: int) -> tuple[Any, ...]:
    """The attributes of a message without the frame size: a run keeps the largest, so it depends on the
    cut.
    """
    attributes = tuple(run.attributes_of(index)._replace(frame_bytes=0))
    return attributes, run.due_of(index), run.redelivered, run.attempts, run.acquired
