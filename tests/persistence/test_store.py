"""One suite over both stores: a generated history against a model of single messages."""

from random import Random
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

import persistence.commits.layer
import persistence.record
import persistence.transaction
from persistence.journal import Journal
from tests.persistence.histories import IN_LMDB, IN_MEMORY, Histories, InLmdb, InMemory

QUEUES = st.integers(1, 3)
PAYLOADS = st.binary(max_size=40) | st.integers(0, 3000).map(lambda size: bytes(size))


class Model:
    """Queues as plain sets of messages; `submitted` runs ahead of `durable`."""

    def __init__(self) -> None:
        self.batches: dict[int, dict[int, tuple[int, bytes]]] = {}
        self.left: dict[int, set[int]] = {}
        self.notes: dict[int, dict[int, bytes]] = {}
        self.states: dict[int, bytes] = {}
        self.entries: dict[tuple[str, str], bytes] = {}

    def copy(self) -> "Model":
        model = Model()
        model.batches = {queue_id: dict(batches) for queue_id, batches in self.batches.items()}
        model.left = {queue_id: set(seqs) for queue_id, seqs in self.left.items()}
        model.notes = {queue_id: dict(notes) for queue_id, notes in self.notes.items()}
        model.states = dict(self.states)
        model.entries = dict(self.entries)
        return model

    def recovered(self) -> dict[int, Any]:
        found = {}
        for queue_id in {*self.batches, *self.notes, *self.states}:
            left = self.left.get(queue_id, set())
            records = {
                first: (count, payload, {seq for seq in range(first, first + count) if seq not in left})
                for first, (count, payload) in self.batches.get(queue_id, {}).items()
                if any(seq in left for seq in range(first, first + count))
            }
            notes = self.notes.get(queue_id, {})
            state = self.states.get(queue_id)
            if records or notes or state is not None:
                found[queue_id] = state, notes, records
        return found


def recovered(journal: Journal) -> dict[int, Any]:
    found = {}
    for queue in journal.recover():
        records = {}
        for record in queue.records:
            assert not record.corrupt
            gone = {seq for seqs in record.settled for seq in seqs}
            assert len(gone) < record.count
            records[record.first_seq] = record.count, bytes(record.payload), gone
        found[queue.queue_id] = queue.state, queue.annotations, records
    return found


class Rules(Histories):
    """Rules submit to the store and to the model; commit makes the model's present its past."""

    environment: Any
    journal: Journal

    @initialize()
    def begin(self) -> None:
        self.present = Model()
        self.durable = Model()
        self.next_seq = {1: 0, 2: 0, 3: 1 << 40}
        self.open()

    def begin_on(self, environment: Any) -> None:
        self.journal = Journal(environment)

    @rule(
        queue_id=QUEUES,
        count=st.integers(1, 9),
        payload=PAYLOADS,
        gap=st.integers(0, 2),
        head_parts=st.integers(0, 2) | st.none(),
    )
    def append(
        self, queue_id: int, count: int, payload: bytes, gap: int, head_parts: int | None = None
    ) -> None:
        first = self.next_seq[queue_id] + gap
        self.next_seq[queue_id] = first + count
        if head_parts is None:
            self.journal.append(queue_id, first, count, payload)
        else:
            self.journal.append(queue_id, first, count, [payload[:7], payload[7:]], head_parts)
        self.present.batches.setdefault(queue_id, {})[first] = count, payload
        self.present.left.setdefault(queue_id, set()).update(range(first, first + count))

    @rule(
        queue_id=QUEUES,
        back=st.integers(0, 60),
        length=st.integers(1, 5) | st.integers(1, 60),
        step=st.integers(1, 3),
    )
    def settle(self, queue_id: int, back: int, length: int, step: int) -> None:
        start = max(self.next_seq[queue_id] - back, 0)
        seqs = range(start, min(start + length, self.next_seq[queue_id]), step)
        self.journal.settle(queue_id, seqs)
        self.present.left.setdefault(queue_id, set()).difference_update(seqs)
        notes = self.present.notes.get(queue_id, {})
        for seq in seqs:
            notes.pop(seq, None)

    @rule(queue_id=QUEUES, random=st.randoms(use_true_random=False), share=st.floats(0.1, 1))
    def settle_scattered(self, queue_id: int, random: Random, share: float) -> None:
        left = self.present.left.get(queue_id, set())
        if not left:
            return
        seqs = sorted(seq for seq in left if random.random() < share)
        self.journal.settle_scattered(queue_id, seqs)
        left.difference_update(seqs)
        notes = self.present.notes.get(queue_id, {})
        for seq in seqs:
            notes.pop(seq, None)

    @precondition(lambda self: any(self.present.left.values()))
    @rule(data=st.data(), value=st.binary(max_size=5))
    def annotate(self, data: st.DataObject, value: bytes) -> None:
        queue_id = data.draw(st.sampled_from(sorted(k for k, v in self.present.left.items() if v)))
        seq = data.draw(st.sampled_from(sorted(self.present.left[queue_id])))
        self.journal.annotate(queue_id, seq, value)
        self.present.notes.setdefault(queue_id, {})[seq] = value

    @rule(
        queue_id=QUEUES,
        back=st.integers(0, 60),
        length=st.integers(1, 5) | st.integers(1, 60),
        step=st.integers(1, 2),
        value=st.binary(max_size=1),
    )
    def annotate_all(self, queue_id: int, back: int, length: int, step: int, value: bytes) -> None:
        """Several in a row, of which none is settled."""
        left = self.present.left.get(queue_id, set())
        start = max(self.next_seq[queue_id] - back, 0)
        count = 0
        while count < length and start + count * step in left:
            count += 1
        if count:
            seqs = range(start, start + count * step, step)
            self.journal.annotate_all(queue_id, seqs, value)
            self.present.notes.setdefault(queue_id, {}).update(dict.fromkeys(seqs, value))

    @rule(queue_id=QUEUES, value=st.binary(max_size=5))
    def state(self, queue_id: int, value: bytes) -> None:
        self.journal.state(queue_id, value)
        self.present.states[queue_id] = value

    @rule(queue_id=QUEUES, random=st.randoms(use_true_random=False))
    def traffic(self, queue_id: int, random: Random) -> None:
        """A stretch of ordinary traffic: the rules alone seldom hit the same record several times."""
        for _ in range(20):
            left = sorted(self.present.left.get(queue_id, ()))
            step = random.choice(
                ["append", "settle", "settle", "settle", "annotate", "several", "commit", "log"]
            )
            if step == "commit":
                self.commit()
            elif step == "log":
                self.commit_to_the_log()
            elif step == "append" or not left:
                self.append(queue_id, random.randint(1, 9), b"t" * random.randint(0, 1500), 0)
            elif step == "annotate":
                seq = random.choice(left)
                self.journal.annotate(queue_id, seq, b"t")
                self.present.notes.setdefault(queue_id, {})[seq] = b"t"
            elif step == "several":
                back = self.next_seq[queue_id] - random.choice(left)
                self.annotate_all(queue_id, back, random.randint(1, 9), 1, random.choice([b"m", b"n"]))
            else:
                back = self.next_seq[queue_id] - random.choice(left[:20])
                self.settle(queue_id, back, random.randint(1, 4), random.choice([1, 1, 2]))

    @rule(queue_id=QUEUES, again=st.booleans())
    def drop(self, queue_id: int, again: bool) -> None:
        self.journal.drop(queue_id)
        for table in (self.present.batches, self.present.left, self.present.notes, self.present.states):
            table.pop(queue_id, None)
        if again:
            self.next_seq[queue_id] = 0

    @rule(
        table=st.sampled_from("ab"),
        key=st.sampled_from(["", "x", "é" * 200, "é" * 201, "x" * 600]),
        value=st.binary(max_size=3),
    )
    def put(self, table: str, key: str, value: bytes) -> None:
        self.environment.put(table, key, value)
        self.present.entries[table, key] = value

    @rule(table=st.sampled_from("ab"), key=st.sampled_from(["", "x", "é" * 200, "é" * 201, "x" * 600]))
    def delete(self, table: str, key: str) -> None:
        self.environment.delete(table, key)
        self.present.entries.pop((table, key), None)

    @rule()
    def close_layer(self) -> None:
        """The turn is over, and its changes are large."""
        self.environment.pending.close_layer()

    @rule()
    def commit(self) -> None:
        self.environment.flush()
        self.durable = self.present.copy()
        assert self.journal.pending_bytes == 0
        assert recovered(self.journal) == self.durable.recovered()

    @rule()
    def commit_to_the_log(self) -> None:
        """The store gets it later, or at the next start."""
        if not self.log_all():
            self.commit()
        self.durable = self.present.copy()

    @rule()
    def commit_first_layer(self) -> None:
        """Commit one transaction only, so that an erasure may be left half done."""
        store = self.environment
        layer = store.pending.take_for_store(oldest=True)
        store.pending.merge(store.pending.behind())
        transaction = store.transaction(layer)
        for _ in transaction.apply():
            pass
        transaction.commit()
        transaction.finish()
        store.pending.remove(layer)
        self.durable = self.present.copy()
        assert recovered(self.journal) == self.durable.recovered()

    @rule()
    def abort(self) -> None:
        """A transaction that is undone changes nothing, and its layer is still there."""
        store = self.environment
        transaction = store.transaction(store.pending.take_for_store(oldest=True))
        for _ in transaction.apply():
            pass
        transaction.abort()
        store.pending.give_back()

    @rule()
    def crash(self) -> None:
        self.crash_store()
        self.present = self.durable.copy()
        for queue_id, batches in self.durable.batches.items():
            end = max((first + count for first, (count, _) in batches.items()), default=0)
            self.next_seq[queue_id] = max(self.next_seq[queue_id], end)
        assert recovered(self.journal) == self.durable.recovered()

    @rule(queue_id=QUEUES, back=st.integers(0, 60), length=st.integers(0, 30))
    def read(self, queue_id: int, back: int, length: int) -> None:
        first = max(self.next_seq[queue_id] - back, 0)
        records = self.journal.read(queue_id, first, first + length)
        starts = [record.first_seq for record in records]
        assert starts == sorted(set(starts))
        batches = self.present.batches.get(queue_id, {})
        for record in records:
            assert record.first_seq <= first + length and record.first_seq + record.count > first
            assert batches[record.first_seq] == (record.count, record.payload)
        left = self.present.left.get(queue_id, set())
        for seq in range(first, first + length + 1):
            if seq in left:
                assert any(record.first_seq <= seq < record.first_seq + record.count for record in records)

    @invariant()
    def metadata_is_read_as_submitted(self) -> None:
        for table in "ab":
            expected = {key: value for (name, key), value in self.present.entries.items() if name == table}
            assert dict(self.environment.items(table)) == expected
            for key, value in expected.items():
                assert self.environment.get(table, key) == value
        assert self.environment.get("a", "none") is None


class MemoryRules(InMemory, Rules):
    pass


class LmdbRules(InLmdb, Rules):
    bounds = (
        (persistence.commits.layer, "FORGET_MIN", 1),
        (persistence.record, "CHUNK_BYTES", 1000),
        (persistence.transaction, "ERASE_KEYS_MAX", 2),
        (persistence.transaction, "STEP_WORK", 1000),
    )


TestMemory = MemoryRules.TestCase
TestMemory.settings = IN_MEMORY
TestLmdb = LmdbRules.TestCase
TestLmdb.settings = IN_LMDB
