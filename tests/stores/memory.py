"""The store in memory, for tests and simulations: the same interface, and failures on demand.

It keeps single messages rather than records with masks, so that it is obviously correct; the tests compare
LMDB with it. `crash` is a restart: uncommitted changes are lost.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random

from persistence import settled
from persistence.commits import layer_codec
from persistence.commits.flush import flush
from persistence.commits.layer import Layer, Pending, QueueChanges
from persistence.errors import CommitFailed, StorageFull
from persistence.metadata import Metadata
from persistence.ports import Job
from persistence.record import Record, RecoveredQueue, RecoveredRecord, pack
from tests.stores.memory_groups import MemoryGroups

FAULT = "does not match its checksum"


@dataclass
class Faults:
    """Commits that fail: the next `full` ones for lack of space, further ones at random, by the seed."""

    full: int = 0
    full_share: float = 0.0
    seed: int = 0
    fails: bool = False  # the next commit fails for good
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)

    def strike(self) -> None:
        if self.fails:
            raise CommitFailed("the disk is broken, as was asked for")
        if self.full > 0:
            self.full -= 1
            raise StorageFull("the disk is full, as was asked for")
        if self.random.random() < self.full_share:
            raise StorageFull("the disk is full, as the seed has it")


@dataclass
class MemoryQueue:
    records: dict[int, tuple[int, list[bytes], int]] = field(default_factory=dict)
    gone: dict[int, set[int]] = field(default_factory=dict)  # settled messages of records that are left
    annotations: dict[int, bytes] = field(default_factory=dict)
    state: bytes | None = None
    damaged: set[int] = field(default_factory=set)  # first numbers of records whose bodies are

    def copy(self) -> "MemoryQueue":
        gone = {first_seq: set(seqs) for first_seq, seqs in self.gone.items()}
        return MemoryQueue(dict(self.records), gone, dict(self.annotations), self.state, set(self.damaged))

    def is_empty(self) -> bool:
        return not (self.records or self.annotations) and self.state is None


class MemoryReader:
    """Replaces page_reader.PageReader: a test says which reads wait for the disk, and when the disk has the
    data.
    """

    def __init__(self) -> None:
        self.waits: Callable[[], bool] = lambda: False
        self.waiting: list[Callable[[], None]] = []

    def warm(self, done: Callable[[], None]) -> bool:
        if not self.waits():
            return True
        self.waiting.append(done)
        return False

    def step(self) -> Callable[[], None]:
        """The disk has the data that was requested first: return the calls to make in a turn."""
        return self.waiting.pop(0)


class MemoryStore(Metadata):
    def __init__(self, faults: Faults | None = None) -> None:
        self.pending = Pending()
        self.reader = MemoryReader()
        self.faults = faults or Faults()
        self.queues: dict[int, MemoryQueue] = {}
        self.groups = MemoryGroups(self.faults.random, self.reader.warm)
        self.entries: dict[bytes, tuple[str, bytes]] = {}
        self.writing = False
        #: Number of records for which the write-ahead log has room; 0 means no log.
        self.log_records_max = 0
        self._log: dict[int, bytes] = {}
        self._log_sequence = 0

    def close(self) -> None:
        pass

    def crash(self) -> None:
        """The process dies and restarts from the durable state."""
        self.pending = Pending()
        self.reader.waiting.clear()
        self.groups.crash()
        self.writing = False
        self._replay()

    def flush(self) -> None:
        flush(self)

    def transaction(self, layer: Layer) -> "MemoryTransaction":
        return MemoryTransaction(self, layer)

    def log_record(self, layer: Layer) -> Callable[[], None] | None:
        if len(self._log) >= self.log_records_max:
            return None
        self._log_sequence += 1
        layer.sequence = self._log_sequence
        return partial(self._write_record, layer.sequence, layer_codec.encode(layer))

    def _write_record(self, sequence: int, content: bytes) -> None:
        self.faults.strike()
        self._log[sequence] = content

    @property
    def log_is_half_full(self) -> bool:
        return 2 * len(self._log) >= self.log_records_max

    def log_stored(self, sequence: int) -> None:
        self._log = {at: content for at, content in self._log.items() if at > sequence}

    def _replay(self) -> None:
        layer = Layer()
        for content in self._log.values():
            layer.absorb(layer_codec.decode(content))
        transaction = MemoryTransaction(self, layer)
        for _ in transaction.apply():
            pass
        transaction.finish()
        self._log.clear()

    def has_erasures(self) -> bool:
        return False

    def enlarge(self) -> bool:
        return False

    def tend(self) -> Callable[[], None] | None:
        return None

    def records(self, queue_id: int, first_seq: int, last_seq: int) -> list[Record]:
        queue = self.queues.get(queue_id, MemoryQueue())
        return [
            Record(first, count, b"", FAULT)
            if first in queue.damaged
            else Record(first, count, b"".join(parts))
            for first, (count, parts, _) in sorted(queue.records.items())
            if first <= last_seq and first + count > first_seq
        ]

    def warm(self, queue_id: int, spans: list[tuple[int, int]], done: Callable[[], None]) -> bool:
        return self.reader.warm(done)

    def warm_queue(self, queue_id: int, bodies_from: int, done: Callable[[], None]) -> bool:
        return self.reader.warm(done)

    def flip(self, queue_id: int, seq: int) -> range:
        """A bit flips in the body of the record that holds this message.
        Return the messages of the record.
        """
        queue = self.queues[queue_id]
        for first, (count, _, _) in queue.records.items():
            if first <= seq < first + count:
                queue.damaged.add(first)
                return range(first, first + count)
        raise ValueError(f"queue {queue_id} has no record of message {seq} on disk")

    def recover(self) -> Iterator[RecoveredQueue]:
        for queue_id, queue in sorted(self.queues.items()):
            yield RecoveredQueue(queue_id, queue.state, dict(queue.annotations), _recover(queue_id, queue))

    def recover_queue(self, queue_id: int) -> RecoveredQueue | None:
        queue = self.queues.get(queue_id)
        if queue is None:
            return None
        return RecoveredQueue(queue_id, queue.state, dict(queue.annotations), _recover(queue_id, queue))

    def _fetch(self, stored: bytes) -> bytes | None:
        return self.entries[stored][1] if stored in self.entries else None

    def _scan(self, prefix: bytes) -> Iterable[tuple[bytes, tuple[str, bytes]]]:
        return [(stored, entry) for stored, entry in self.entries.items() if stored.startswith(prefix)]


class MemoryEnvironment(MemoryStore):
    """Replaces environment.Environment."""

    def __init__(self, faults: Faults | None = None, node_id: str = "memory") -> None:
        super().__init__(faults)
        self.node_id = node_id
        self.incarnation = 1
        self.spill = MemoryStore()

    def crash(self) -> None:
        super().crash()
        self.incarnation += 1
        self.spill = MemoryStore()


class MemoryTransaction:
    def __init__(self, store: MemoryStore, layer: Layer) -> None:
        if store.writing:
            raise RuntimeError("a write transaction runs already")
        store.writing = True
        self._store = store
        self._layer = layer
        self._queues = dict(store.queues)
        self._entries = dict(store.entries)

    def apply(self) -> Iterator[Job | None]:
        for stored, (key, value) in self._layer.metadata.items():
            if value is None:
                self._entries.pop(stored, None)
            else:
                self._entries[stored] = key, value
        for queue_id, changes in self._layer.queues.items():
            queue = self._queues.get(queue_id, MemoryQueue())
            queue = MemoryQueue() if changes.dropped else queue.copy()
            _apply(queue, changes)
            if queue.is_empty():
                self._queues.pop(queue_id, None)
            else:
                self._queues[queue_id] = queue
            yield None

    def commit(self) -> None:
        self._store.faults.strike()

    def finish(self) -> None:
        self._store.queues = self._queues
        self._store.entries = self._entries
        self._store.groups.apply(self._layer)
        self._store.writing = False
        if self._layer.sequence:
            self._store.log_stored(self._layer.sequence)

    def abort(self) -> None:
        self._store.writing = False


def _apply(queue: MemoryQueue, changes: QueueChanges) -> None:
    for first_seq, count, payload, head_parts in changes.appends:
        parts = [payload] if isinstance(payload, bytes) else payload
        queue.records[first_seq] = count, parts, head_parts
    for start, stop, note in changes.span_notes:
        queue.annotations.update(dict.fromkeys(range(start, stop), note))
    queue.annotations.update(changes.annotations)
    if changes.state is not None:
        queue.state = changes.state
    starts, stops = settled.merge(changes.starts, changes.stops)
    for first_seq, (count, _, _) in list(queue.records.items()):
        gone = queue.gone.setdefault(first_seq, set())
        gone.update(
            seq for seq in range(first_seq, first_seq + count) if settled.contains(starts, stops, seq)
        )
        if len(gone) == count:
            del queue.records[first_seq], queue.gone[first_seq]
            queue.damaged.discard(first_seq)
    for seq in list(queue.annotations):
        if settled.contains(starts, stops, seq):
            del queue.annotations[seq]


def _recover(queue_id: int, queue: MemoryQueue) -> Iterator[RecoveredRecord]:
    for first_seq, (count, parts, head_parts) in sorted(queue.records.items()):
        key, head, chunks = pack(queue_id, first_seq, count, parts, head_parts)
        body = {chunk_key: memoryview(value) for chunk_key, value in chunks}
        if first_seq in queue.damaged and body:
            body = {chunk_key: memoryview(bytes(value)[:-1]) for chunk_key, value in body.items()}
        elif first_seq in queue.damaged:
            head = head[:-1]
        bits = sum(1 << (seq - first_seq) for seq in queue.gone.get(first_seq, ()))
        yield RecoveredRecord(key, memoryview(head), body.get, settled.ranges(first_seq, bits))
