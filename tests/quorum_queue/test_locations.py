"""The places of bodies, checked against a dictionary of single messages."""

from __future__ import annotations

from typing import ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quorum_queue.machine import locations as locations_module
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.locations import BLOCK_SPANS, FEW, Locations


class LocationsComparison(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.locations = Locations()
        self.places: dict[int, tuple[int, int]] = {}
        #: Places settled since the last add.
        self.late: dict[int, tuple[int, int]] = {}
        self.next_seq, self.entry = 1, 0

    @rule(
        parts=st.lists(
            st.tuples(st.integers(1, 9), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=3
        )
    )
    def add(self, parts: list[tuple[int, int, int]]) -> None:
        self.entry += 1
        ordinal = 0
        for count, refused, gap in parts:
            # Some messages of the entry are refused; some positions are somewhere else, or nowhere.
            ordinal += refused
            self.next_seq += gap
            self.locations.add(self.next_seq, count, self.entry, ordinal)
            self.places.update(
                (self.next_seq + offset, (self.entry, ordinal + offset)) for offset in range(count)
            )
            self.next_seq += count
            ordinal += count
        self.late.clear()

    @rule(data=st.data(), step=st.integers(1, 4), count=st.integers(1, 30))
    def settle(self, data: st.DataObject, step: int, count: int) -> None:
        if not self.places:
            return
        start = data.draw(st.sampled_from(list(self.places)))
        stop = start
        while stop in self.places and (stop - start) // step < count:
            stop += step
        seqs = range(start, stop, step)
        before = {entry for entry, _ in self.places.values()}
        self.locations.forget(seqs)
        for seq in seqs:
            self.late[seq] = self.places.pop(seq)
        after = {entry for entry, _ in self.places.values()}
        released = {entry for entries in self.locations.released() for entry in entries}
        assert before - after <= released
        assert not released & after

    @rule()
    def restore(self) -> None:
        self.locations = Locations.restore(self.locations.snapshot())
        self.late.clear()

    @rule(data=st.data(), step=st.integers(1, 4), count=st.integers(1, 30))
    def find(self, data: st.DataObject, step: int, count: int) -> None:
        start = data.draw(st.integers(0, self.next_seq + 2))
        seqs = range(start, start + count * step, step)
        known = {**self.places, **self.late}
        if all(seq in known for seq in seqs):
            found = self.locations.find(seqs)
            singles = [(entry, ordinal) for entry, ordinals in found for ordinal in ordinals]
            assert singles == [known[seq] for seq in seqs]

    @invariant()
    def every_place_is_known(self) -> None:
        assert self.locations.pinned() == sorted({entry for entry, _ in self.places.values()})
        for seq, place in self.places.items():
            assert self.locations.find(range(seq, seq + 1)) == [(place[0], range(place[1], place[1] + 1))]


class SmallBlocksComparison(LocationsComparison):
    """Many blocks, which are swept often."""

    SIZES: ClassVar = {"BLOCK_SPANS": 4, "SWEEP_SPANS_MIN": 2, "FEW": 6}

    @initialize()
    def start(self) -> None:
        super().start()
        self.before = {name: getattr(locations_module, name) for name in self.SIZES}
        vars(locations_module).update(self.SIZES)

    def teardown(self) -> None:
        vars(locations_module).update(self.before)


TestLocations = LocationsComparison.TestCase
TestSmallBlocks = SmallBlocksComparison.TestCase
for each in (TestLocations, TestSmallBlocks):
    each.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def test_neighbours_of_one_entry_are_one_span() -> None:
    locations = Locations()
    locations.add(1, 5, 9, 0)
    locations.add(6, 5, 9, 5)
    assert len(locations) == 1
    locations.add(11, 5, 9, 11)
    locations.add(16, 5, 10, 0)
    assert len(locations) == 3


def test_what_nobody_has_is_not_found() -> None:
    locations = Locations()
    with pytest.raises(KeyError):
        locations.find(range(1, 2))
    locations.add(5, 5, 1, 0)
    locations.add(20, 5, 2, 0)
    for seqs in (range(4, 6), range(9, 11), range(19, 21), range(24, 26), range(8, 22), range(6, 31, 12)):
        with pytest.raises(KeyError):
            locations.find(seqs)
    assert locations.find(range(9, 21, 11)) == [(1, range(4, 5)), (2, range(1))]


def test_queues_that_are_empty_share_nothing_that_one_of_them_changes() -> None:
    one, other = Locations(), Locations.restore(Locations().snapshot())
    one.add(1, 5, 1, 0)
    other.add(1, 3, 2, 0)
    other.forget(range(1, 4))
    assert (one.pinned(), other.pinned(), Locations().pinned()) == ([1], [], [])
    assert (one.released(), other.released(), other.released()) == ([], [range(2, 3)], [])
    assert Locations.restore(other.snapshot()).find(range(0)) == []
    assert Locations.restore(one.snapshot()).find(range(1, 6)) == [(1, range(5))]
    assert len(Locations()) == 0


def test_spans_of_released_entries_are_swept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations_module, "SWEEP_SPANS_MIN", 4)
    locations = Locations()
    for entry in range(1, 1001):
        locations.add(10 * entry, 10, entry, 0)
        if entry != 7:
            locations.forget(range(10 * entry, 10 * entry + 10))
    assert len(locations) == 1
    assert len(locations.snapshot()) < 100
    assert sum(map(len, locations._blocks)) <= 10
    assert locations.find(range(70, 80)) == [(7, range(10))]


def test_damaged_locations_are_refused() -> None:
    locations = Locations()
    locations.add(1, 5, 1, 0)
    state = locations.snapshot()
    for cut in range(len(state)):
        with pytest.raises(CodecError):
            Locations.restore(state[:cut])


def test_whole_blocks_are_forgotten_at_once() -> None:
    """A purge of very many messages that came alone."""
    locations = Locations()
    count = 3 * FEW
    for entry in range(1, count + 1):
        locations.add(entry, 1, 2 * entry, 0)
    locations.forget(range(7, 8))
    copies = locations.blocks()
    locations.forget(range(8, count - 5))
    released = locations.released()
    assert len(released) < 3 * BLOCK_SPANS
    assert {2 * seq for seq in range(7, count - 5)} <= {entry for each in released for entry in each}
    assert locations.pinned() == [*range(2, 14, 2), *range(2 * (count - 5), 2 * count + 1, 2)]
    assert not any(locations.holds(entry) for each in released for entry in each)
    assert locations.find(range(8, 10)) == [(16, range(1)), (18, range(1))]
    locations.add(count + 1, 1, 2 * count + 2, 0)
    assert sum(map(len, locations._blocks)) < 3 * BLOCK_SPANS
    assert sum(block.left for block in copies) == count - 1
    with pytest.raises(KeyError):
        locations.forget(range(count - 5, count + FEW))


def test_what_a_block_has_of_old_entries_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few old messages stay of very many."""
    locations = Locations()
    count = 40 * BLOCK_SPANS
    for entry in range(1, count + 1):
        locations.add(entry, 1, entry, 0)
        if entry % 64:
            locations.forget(range(entry, entry + 1))
    assert locations.pinned() == list(range(64, count + 1, 64))
    assert sum(map(len, locations._blocks)) <= 4 * BLOCK_SPANS
    assert len(locations._blocks) <= 6
    for entry in range(64, count + 1, 64):
        assert locations.find(range(entry, entry + 1)) == [(entry, range(1))]
