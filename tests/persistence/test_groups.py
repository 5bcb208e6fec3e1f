"""One suite over both stores: generated histories of Raft groups against plain dictionaries."""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import initialize, rule

import persistence.record
import persistence.replica_logs.logs
import persistence.replica_logs.writer
import persistence.transaction
from persistence.commits.stepped import SteppedCommit
from persistence.errors import EntryLost
from persistence.record import count_chunks
from persistence.replica_logs.logs import Groups
from persistence.replica_logs.record import ENTRY_HEAD, INLINE_BYTES, RecoveredGroup, StoredEntry
from tests.persistence.histories import IN_LMDB, IN_MEMORY, Histories, InLmdb, InMemory
from tests.stores.memory import MemoryEnvironment

GROUPS = st.sampled_from([0, 1, (1 << 64) - 1])
BODIES = st.binary(max_size=20) | st.integers(0, 5000).map(lambda size: b"b" * size)


@dataclass
class Model:
    """A group, kept in dictionaries."""

    entries: dict[int, StoredEntry] = field(default_factory=dict)
    terms: dict[int, int] = field(default_factory=dict)  # of all indexes ever seen, with their present terms
    hard: tuple[int, str] = 0, ""
    snapshot: tuple[int, int, bytes] | None = None
    last: int = 0

    @property
    def first(self) -> int:
        return self.snapshot[0] + 1 if self.snapshot else 1

    def log(self) -> dict[int, StoredEntry]:
        return {index: entry for index, entry in self.entries.items() if index >= self.first}

    def is_empty(self) -> bool:
        return not self.entries and self.hard == (0, "") and self.snapshot is None

    def cut(self, index: int) -> None:
        self.entries = {each: entry for each, entry in self.entries.items() if each < index}
        self.last = index - 1

    def recovered(self, group: int) -> RecoveredGroup:
        stored: list[range] = []
        for index in sorted(self.entries):
            if stored and stored[-1].stop == index:
                stored[-1] = range(stored[-1].start, index + 1)
            else:
                stored.append(range(index, index + 1))
        terms: list[tuple[int, int]] = []
        for index, entry in sorted(self.log().items()):
            if not terms or terms[-1][1] != entry.term:
                terms.append((index, entry.term))
        kinds: dict[int, list[int]] = {}
        for index, entry in sorted(self.log().items()):
            if entry.kind:
                kinds.setdefault(entry.kind, []).append(index)
        snapshot = self.snapshot[:2] if self.snapshot else None
        return RecoveredGroup(group, *self.hard, snapshot, self.first, self.last, terms, stored, kinds, [])


def recovered(groups: Groups) -> dict[int, RecoveredGroup]:
    return {group.group: group for group in groups.recover()}


class Rules(Histories):
    environment: Any
    groups: Groups

    @initialize()
    def begin(self) -> None:
        self.present: dict[int, Model] = {}
        self.durable: dict[int, Model] = {}
        self.ahead = False
        self.open()

    def begin_on(self, environment: Any) -> None:
        self.groups = Groups(environment)

    def model(self, group: int) -> Model:
        return self.present.setdefault(group, Model())

    @rule(
        group=GROUPS,
        back=st.sampled_from([0, 0, 0, 1, 2, 9]),
        count=st.integers(1, 6),
        newer=st.booleans(),
        body=BODIES,
    )
    def append(self, group: int, back: int, count: int, newer: bool, body: bytes) -> None:
        model = self.model(group)
        first = max(model.last + 1 - back, model.first)
        term = model.terms.get(model.last, 0) + (newer or first <= model.last)
        entries = [StoredEntry(first + at, term, at % 3, body + b"%d" % at) for at in range(count)]
        self.groups.append(group, entries)
        model.cut(first)
        for entry in entries:
            model.entries[entry.index] = entry
            model.terms[entry.index] = term
        model.last = first + count - 1

    @rule(group=GROUPS, back=st.integers(0, 5))
    def truncate(self, group: int, back: int) -> None:
        model = self.model(group)
        index = max(model.last + 1 - back, model.first)
        self.groups.truncate(group, index)
        model.cut(index)

    @rule(group=GROUPS, term=st.integers(0, (1 << 64) - 1), vote=st.sampled_from(["", "n1", "knoten-ü"]))
    def hard(self, group: int, term: int, vote: str) -> None:
        self.groups.hard(group, term, vote)
        self.model(group).hard = term, vote

    @rule(group=GROUPS, share=st.integers(0, 4), state=BODIES, parts=st.booleans())
    def snapshot(self, group: int, share: int, state: bytes, parts: bool) -> None:
        model = self.model(group)
        index = model.first - 1 + (model.last - model.first + 1) * share // 4
        term = model.terms.get(index, 0)
        self.groups.snapshot(group, index, term, [state[:5], state[5:]] if parts else state)
        model.snapshot = index, term, state

    @rule(group=GROUPS, back=st.integers(0, 4), beyond=st.integers(1, 5), state=BODIES)
    def install(self, group: int, back: int, beyond: int, state: bytes) -> None:
        """Install a snapshot from another node, after which the log begins anew."""
        model = self.model(group)
        commit = max(model.last - back, model.first - 1)
        index, term = model.last + beyond, model.terms.get(model.last, 0) + 1
        self.groups.truncate(group, commit + 1)
        self.groups.snapshot(group, index, term, state)
        model.cut(commit + 1)
        model.terms.update((each, term) for each in range(commit + 1, index + 1))
        model.snapshot = index, term, state
        model.last = index

    @rule(group=GROUPS, indexes=st.lists(st.integers(1, 40), max_size=4, unique=True), body=BODIES)
    def keep(self, group: int, indexes: list[int], body: bytes) -> None:
        model = self.model(group)
        entries = [
            StoredEntry(index, model.terms[index], 0, body) for index in indexes if index <= model.last
        ]
        self.groups.keep(group, entries)
        model.entries.update((entry.index, entry) for entry in entries)

    @rule(
        group=GROUPS,
        spans=st.lists(
            st.tuples(st.integers(0, 12), st.integers(0, 25), st.sampled_from([1, 1, 2, -1, -3])), max_size=4
        ),
    )
    def drop_entries(self, group: int, spans: list[tuple[int, int, int]]) -> None:
        model = self.model(group)
        ranges = []
        for back, length, step in spans:
            stop = max(model.first - back, 0)
            span = range(max(stop - length, 0), stop, abs(step))
            ranges.append(span if step > 0 else span[::-1])
        self.groups.drop_entries(group, ranges)
        for span in ranges:
            for index in span:
                model.entries.pop(index, None)

    @rule(group=GROUPS)
    def drop(self, group: int) -> None:
        self.groups.drop(group)
        self.present[group] = Model()

    @rule()
    def next_layer(self) -> None:
        self.environment.pending.close_layer()

    @rule()
    def commit(self) -> None:
        self.environment.flush()
        self.committed()
        self.check_nothing_is_left_behind()

    def check_nothing_is_left_behind(self) -> None:
        pass

    @rule()
    def commit_to_the_log(self) -> None:
        """The store gets it later, or at the next start."""
        if not self.log_all():
            self.commit()
        self.durable = deepcopy(self.present)

    @rule()
    def commit_merged(self) -> None:
        """Commit all layers in one transaction, as after a full disk, perhaps with an erasure left half
        done.
        """
        pending = self.environment.pending
        layer = pending.take_for_store(oldest=True)
        pending.merge(pending.behind())
        transaction = self.environment.transaction(layer)
        for _ in transaction.apply():
            pass
        transaction.commit()
        transaction.finish()
        pending.remove(layer)
        self.committed()

    def committed(self) -> None:
        self.durable = deepcopy(self.present)
        self.ahead = False
        assert self.groups.pending_bytes == 0
        self.check_durable()

    @rule()
    def commit_erasures_ahead(self) -> None:
        """As on a full disk: the oldest layer does not fit, and layers that only erase go ahead of it."""
        pending = self.environment.pending
        # That layer has data that only the write-ahead log has.
        logged = pending.take_for_store(oldest=True).sequence > 0
        erasing = pending.erasures(pending.behind(), self.environment.groups.snapshot_index)
        transaction = self.environment.transaction(erasing)
        for _ in transaction.apply():
            pass
        transaction.commit()
        transaction.finish()
        pending.give_back()
        self.ahead = True
        if not logged:
            self.check_durable()

    @rule()
    def abort(self) -> None:
        pending = self.environment.pending
        transaction = self.environment.transaction(pending.take_for_store(oldest=True))
        for _ in transaction.apply():
            pass
        transaction.abort()
        pending.give_back()

    @rule()
    def crash(self) -> None:
        self.crash_store()
        self.check_durable()
        if self.ahead:
            # Entries erased ahead lie below the snapshots, and only those may be missing.
            for number, model in self.durable.items():
                for index in range(1, model.first):
                    try:
                        self.groups.read_one(number, index)
                    except EntryLost:
                        model.entries.pop(index, None)
            self.ahead = False
            self.check_durable()
        self.present = deepcopy(self.durable)

    def check_durable(self) -> None:
        found = recovered(self.groups)
        for number in found:
            # Recovery returns where logs end; the disk returns the same for each log.
            first, last = self.groups._store.bounds(number)
            assert (found[number].first_index - 1, found[number].last_index) == (first, last)
        expected = {
            number: model.recovered(number) for number, model in self.durable.items() if not model.is_empty()
        }
        if not self.ahead:
            # A vote of "" in term 0 is the same as none.
            assert {n: group for n, group in found.items() if n in expected} == expected
            for number in found.keys() - expected.keys():
                assert found[number] == Model().recovered(number)
            return
        for number, group in expected.items():
            there = found.get(number, Model().recovered(number))
            log = [span for span in there.stored if span.start >= group.first_index]
            assert (there.term, there.vote, there.snapshot) == (group.term, group.vote, group.snapshot)
            assert (there.last_index, there.terms, there.lost) == (group.last_index, group.terms, [])
            assert there.kinds == group.kinds
            assert sum(map(len, log)) <= group.last_index - group.first_index + 1
            assert all(index in self.durable[number].entries for span in there.stored for index in span)

    @rule(group=GROUPS, low=st.integers(1, 30), length=st.integers(0, 30), max_bytes=st.integers(0, 9000))
    def read(self, group: int, low: int, length: int, max_bytes: int) -> None:
        entries = self.model(group).entries
        expected: list[StoredEntry] = []
        lost = None
        for index in range(low, low + length):
            if expected and sum(len(e.data) for e in expected) >= max_bytes:
                break
            if index not in entries:
                lost = index
                break
            if expected and sum(len(e.data) for e in expected) + len(entries[index].data) > max_bytes:
                break
            expected.append(entries[index])
        try:
            found = self.groups.read(group, low, low + length - 1, max_bytes)
        except EntryLost as error:
            assert (error.group, error.index) == (group, lost)
        else:
            assert lost is None
            assert found == expected

    @rule(group=GROUPS)
    def read_state(self, group: int) -> None:
        assert self.groups.read_state(group) == self.model(group).snapshot
        assert self.groups.last_index(group) == self.model(group).last


class MemoryRules(InMemory, Rules):
    pass


class LmdbRules(InLmdb, Rules):
    bounds = (
        (persistence.record, "CHUNK_BYTES", 1000),
        (persistence.replica_logs.writer, "ERASE_KEYS_MAX", 2),
        (persistence.replica_logs.logs, "LOOKUPS_MAX", 3),
        (persistence.transaction, "STEP_WORK", 1000),
    )

    def check_nothing_is_left_behind(self) -> None:
        """Once everything is erased, there is no chunk without its entry, and no entry that nothing refers
        to.
        """
        tables, snapshot = self.environment.tables, self.environment.snapshot()
        stored = [entry for model in self.present.values() for entry in model.entries.values()]
        large = [e for e in stored if len(e.data) > INLINE_BYTES - ENTRY_HEAD.size]
        states = [model.snapshot[2] for model in self.present.values() if model.snapshot]
        assert snapshot.stat(tables.entries)["entries"] == len(stored)
        assert snapshot.stat(tables.entry_chunks)["entries"] == sum(count_chunks(len(e.data)) for e in large)
        assert snapshot.stat(tables.entry_erasures)["entries"] == 0
        assert snapshot.stat(tables.snapshots)["entries"] == len(states)
        assert snapshot.stat(tables.snapshot_chunks)["entries"] == sum(count_chunks(len(s)) for s in states)


TestMemory = MemoryRules.TestCase
TestMemory.settings = IN_MEMORY
TestLmdb = LmdbRules.TestCase
TestLmdb.settings = IN_LMDB


def test_steps_of_a_simulated_disk() -> None:
    """A commit under way at a crash is gone, one that ended is there, and done() comes only at the end."""
    environment = MemoryEnvironment()
    groups, disk = Groups(environment), SteppedCommit(environment)
    done: list[str] = []
    groups.append(1, [StoredEntry(1, 1, 0, b"a")])
    disk.request(lambda: done.append("a"))
    assert disk.begin() and not disk.begin()
    groups.append(1, [StoredEntry(2, 1, 0, b"b")])
    disk.request(lambda: done.append("b"))
    assert done == []
    disk.end()
    assert done == ["a"] and disk.waits()
    assert disk.begin()
    environment.crash()
    groups, disk = Groups(environment), SteppedCommit(environment)
    assert not disk.waits() and done == ["a"]
    assert (groups.last_index(1), environment.incarnation) == (1, 2)
    groups.append(1, [StoredEntry(2, 2, 0, b"c")])
    assert disk.begin()
    disk.end()
    assert groups.read(1, 1, 2, 100) == [(1, 1, 0, b"a"), (2, 2, 0, b"c")]
