"""A log that crashes at any write, whose disk fills up, and that is trimmed; and bugs that would lose
something, which this test finds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.streams import index
from persistence.streams.index import Entry
from persistence.streams.log import Stored, StreamLog
from persistence.streams.opening import Opening
from persistence.streams.segment import INDEX, SEGMENT, Segment, Writing
from tests.persistence.streams.crashing import Crashed, CrashingFiles
from tests.persistence.streams.test_log import opened, read_all, stored

ROUNDS = 25
SEEDS = 250
UNDONE_SEEDS = 10
#: Seeds within which a bug must be found.
MUTATION_SEEDS = 1_000


class World:
    """The journal has everything that the log has not reported as stored; after each crash both together have
    everything.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.files = CrashingFiles()
        self.files.random = self.random
        self.log, _ = opened(self.files)
        self.journal: list[Stored] = []
        #: Messages that a full disk refused; the same writes are tried again.
        self.waiting: list[Stored] = []
        self.stop = self.stored_stop = self.first = 0

    def run(self) -> None:
        for _ in range(ROUNDS):
            self.disturb()
            try:
                self.work()
                # A reader writes as well, if it finds no index.
                self.check()
            except Crashed:
                self.restart()
                self.check()
        self.files.room = self.files.left = None
        if self.waiting:
            self.append()
        self.check()
        if self.stop and self.first < self.log.stop:
            assert read_all(self.log)[0][-1] == self.log.stop - 1

    def disturb(self) -> None:
        chance, files = self.random, self.files
        files.left = chance.randint(1, 8) if chance.random() < 0.3 else None
        if chance.random() < 0.3:
            files.room = None if files.room is not None else files.used + chance.choice((0, 20, 60, 200, 600))

    def work(self) -> None:
        chance, log = self.random, self.log
        for _ in range(chance.randint(0, 4)):
            count = chance.randint(1, 4)
            self.journal.append(stored(self.stop, count))
            self.stop += count
        if not self.waiting and self.journal and chance.random() < 0.8:
            self.waiting = self.journal[: chance.randint(1, len(self.journal))]
        if self.waiting:
            self.append()
        if log.segments and log.segments[-1].size and chance.random() < 0.2:
            count = chance.randint(1, len(log.segments))
            self.first = max(self.first, log.segments[count - 1].stop)
            log.trim(count)

    def append(self) -> None:
        try:
            self.log.append(self.waiting)
        except OSError as error:
            assert error.errno == 28 and self.files.room is not None
            return
        self.waiting = []
        self.stored_stop = self.log.stop
        self.journal = [each for each in self.journal if each.base >= self.stored_stop]

    def restart(self) -> None:
        self.files.crash()
        self.waiting = []
        self.log, lost = opened(self.files, self.stored_stop)
        assert lost == []
        assert self.stored_stop <= self.log.stop <= self.stop
        self.journal = [each for each in self.journal if each.base >= self.log.stop]
        self.stored_stop = self.log.stop

    def check(self) -> None:
        log, first = self.log, self.first
        offsets, lost = read_all(log)
        assert lost == []
        # A crash may leave segments that were being removed.
        begin = offsets[0] if offsets else log.stop
        assert begin <= max(first, log.stop) and (
            not offsets or begin <= first or begin == log.segments[0].base
        )
        assert offsets == list(range(begin, log.stop))
        for offset in self.random.sample(offsets, min(len(offsets), 3)):
            assert read_all(log, offset)[0][0] <= offset
        assert [each.base for each in self.journal] == sorted(each.base for each in self.journal)
        assert not self.journal or self.journal[0].base == log.stop


@pytest.mark.parametrize("spacing", [64, index.SPACING_BYTES])
def test_nothing_that_was_journalled_is_lost_at_any_write(
    spacing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SPACING_BYTES", spacing)
    for seed in range(SEEDS):
        World(seed).run()


@given(st.integers(0, 1 << 32))
def test_nor_with_other_seeds(seed: int) -> None:
    World(seed).run()


def test_segments_that_a_full_disk_has_undone_leave_no_hole() -> None:
    """The machine goes down while they are undone, or in the next try: what of them comes back is followed by
    what the journal has.
    """
    parts = [stored(base, 3) for base in range(3, 30, 3)]
    for seed, left in product(range(UNDONE_SEEDS), range(1, 60)):
        files = CrashingFiles()
        files.random = random.Random(seed)
        log, _ = opened(files)
        log.append([stored(0, 3)])
        files.room = 1_500
        files.left = left
        with pytest.raises((OSError, Crashed)):
            log.append(parts)
            pytest.fail("the disk has room for all")
        with suppress(OSError, Crashed):
            log.append(parts)
        files.crash()
        log, lost = opened(files, 3)
        assert lost == []
        assert read_all(log) == ([*range(log.stop)], [])


class Mutation(NamedTuple):
    name: str
    places: Sequence[tuple[Any, str, Callable[..., Any]]]


def index_first(self: StreamLog, segment: Segment, writing: Writing, parts: list[Stored]) -> Writing:
    """Entries of the index reach the disk before the batches they point at."""
    if not parts:
        return writing
    start = position = segment.size - sum(each.size for each in parts)
    entries: list[bytes] = []
    for each in parts:
        entries.append(index.encode(Entry(each.base, each.time_ms, position)))
        position += each.size
    path = self.path(segment.base, INDEX)
    self.files.write(path, writing.index_bytes, entries)
    self.files.sync(path)
    self.files.sync_names(self.directory)
    path = self.path(segment.base, SEGMENT)
    self.files.write(path, start, [part for each in parts for part in each.parts])
    self.files.sync(path)
    return Writing(writing.index_bytes + len(entries) * index.ENTRY_BYTES, 0, sealed=False)


def believed(self: Opening, base: int, entries: list[Entry], size: int) -> list[Entry]:
    """A start believes an index without checks."""
    return entries


def unsynced(self: CrashingFiles, path: Any) -> None:
    """Segments count as stored before they are on the disk."""
    if path.suffix != SEGMENT:
        self.synced[path] = bytes(self.now[path])


def nothing_noted(self: StreamLog, name: str, offset: int) -> bool:
    """Trimmed messages may come back."""
    return True


_append: Any = StreamLog.append


def counts_at_once(self: StreamLog, parts: Sequence[Stored]) -> None:
    """Messages that a full disk has refused count as stored."""
    try:
        _append(self, parts)
    except OSError:
        self.stop = parts[-1].stop


_index_anew: Any = Opening._index_anew


def believes_all(self: Opening, base: int, stem: str, following: int | None) -> Segment:
    """What a full disk has refused in part is there again after a start."""
    found: Segment = _index_anew(self, base, stem, None)
    return found


MUTATIONS = (
    Mutation(
        "an index points past the tail",
        [(StreamLog, "_write", index_first), (Opening, "_believable", believed)],
    ),
    Mutation("segments count before they are synced", [(CrashingFiles, "sync", unsynced)]),
    Mutation("what is trimmed comes back", [(StreamLog, "_note", nothing_noted)]),
    Mutation("what a full disk refuses counts", [(StreamLog, "append", counts_at_once)]),
    Mutation("what a full disk refuses comes back", [(Opening, "_index_anew", believes_all)]),
)


@pytest.mark.pure
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, attribute, mutant in mutation.places:
        monkeypatch.setattr(place, attribute, mutant)
    for seed in range(MUTATION_SEEDS):
        try:
            World(seed).run()
        except (Exception, Crashed):  # noqa: BLE001  whatever comes of it is a find
            return
    raise AssertionError(f"{mutation.name}: nothing is amiss in {MUTATION_SEEDS} seeds")
