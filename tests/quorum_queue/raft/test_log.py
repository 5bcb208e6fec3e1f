"""The log by itself: terms, truncation, durability, and the entries in memory."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from quorum_queue.raft.log import Log
from quorum_queue.raft.members import Members
from quorum_queue.raft.messages import Entry
from tests.quorum_queue.raft.disk import Disk, Snapshot, Write

ALL = 1 << 30


def a_disk() -> Disk:
    return Disk(Snapshot(0, 0, Members(("a",)), b""))


def entries(first: int, *terms: int) -> list[Entry]:
    return [Entry(first + at, term, 0, b"%d" % (first + at)) for at, term in enumerate(terms)]


def test_terms_are_known_without_the_entries() -> None:
    log = Log(a_disk(), snapshot_index=3, snapshot_term=1, last_index=9, terms=[(2, 1), (5, 2), (8, 4)])
    assert [log.term_at(index) for index in range(2, 11)] == [-1, 1, 1, 2, 2, 2, 4, 4, -1]
    assert (log.last_term, log.stable_index) == (4, 9)
    log.compact(6)
    assert [log.term_at(index) for index in range(5, 10)] == [-1, 2, 2, 4, 4]
    log.compact(9)
    assert (log.term_at(9), log.last_term, log.last_index) == (4, 4, 9)
    log.append(entries(10, 4))
    assert log.term_at(10) == 4


def test_a_late_write_makes_nothing_stable_that_was_replaced() -> None:
    log = Log(a_disk())
    log.append(entries(1, 1, 1, 1))
    log.take()
    log.append(entries(2, 2))
    log.take()
    assert log.written(3, 1)
    assert log.stable_index == 1
    assert log.written(2, 2)
    assert log.stable_index == 2


def test_a_late_write_makes_nothing_stable_that_came_back() -> None:
    """The same entries come again, after others in their place: the disk will first cut off what it just
    wrote.
    """
    log = Log(a_disk())
    log.append(entries(1, 1, 1))
    log.take()
    log.append(entries(2, 2))
    log.take()
    log.append(entries(2, 1, 3))
    log.take()
    assert log.written(2, 1)
    assert log.stable_index == 1
    assert not log.written(2, 2)
    assert log.written(3, 3)
    assert log.stable_index == 3


def test_writes_that_nobody_asked_for_change_nothing() -> None:
    log = Log(a_disk())
    log.append(entries(1, 1))
    assert not log.written(1, 1)
    log.take()
    assert not log.written(1, 2)
    assert log.written(1, 1)
    assert not log.written(1, 1)


def test_where_logs_may_agree() -> None:
    log = Log(a_disk(), last_index=9, terms=[(1, 1), (4, 3), (7, 5)])
    assert [log.last_before_conflict(9, term) for term in range(7)] == [0, 3, 3, 6, 6, 9, 9]
    assert log.last_before_conflict(20, 5) == 9
    assert log.last_before_conflict(5, 3) == 5


def test_a_lost_entry_is_told_once_and_what_is_before_it_is_read() -> None:
    disk = a_disk()
    disk.log = {entry.index: entry for entry in entries(1, 1, 1, 1, 1)}
    disk.broken = [3]
    log = Log(disk, last_index=4, terms=[(1, 1)])
    log.came(1, 4)
    assert [entry.index for entry in log.read(1, 4, ALL)] == [1, 2]
    assert (log.lost, log.newly_lost) == ((3,), (3,))
    log.newly_lost = ()
    assert log.read(3, 4, ALL) == ()
    assert log.newly_lost == ()
    assert [entry.index for entry in log.read(4, 4, ALL)] == [4]
    disk.broken = []
    log.found(3, log.term_at(3))
    log.came(1, 4)
    assert [entry.index for entry in log.read(1, 4, ALL)] == [1, 2, 3, 4]


def test_what_is_on_the_disk_is_asked_for_before_it_is_read() -> None:
    disk = a_disk()
    disk.log = {entry.index: entry for entry in entries(1, *[1] * 200)}
    log = Log(disk, last_index=200, terms=[(1, 1)])
    assert log.read(1, 200, ALL) == log.read(3, 200, ALL) == ()
    assert list(log.newly_asked) == [(1, 64)]
    assert log.waits(64) and not log.waits(65)
    assert log.read(100, 200, ALL) == ()
    assert list(log.newly_asked) == [(1, 64), (100, 163)]
    log.came(1, 64)
    assert [entry.index for entry in log.read(1, 200, ALL)] == list(range(1, 65))
    # Another reader of the same entries asks again: the disk may have dropped them meanwhile.
    assert log.read(1, 200, ALL) == ()
    assert list(log.newly_asked) == [(1, 64), (100, 163), (1, 64)]


def test_a_large_entry_goes_by_itself() -> None:
    log = Log(a_disk())
    log.append([Entry(1, 1, 0, bytes(50)), Entry(2, 1, 0, bytes(500)), Entry(3, 1, 0, b"")])
    assert [[entry.index for entry in log.read(low, 3, 60)] for low in (1, 2, 3)] == [[1], [2], [3]]


def test_what_is_not_durable_stays_in_memory() -> None:
    log = Log(a_disk())
    log.append(entries(1, 1, 1))
    log.trim(2, 0, 2)
    log.take()
    assert len(log.read(1, 2, ALL)) == 2
    log.written(2, 1)
    log.trim(2, 0, 2)
    assert (log._cache, log._cache_bytes) == ((), 0)


operations = st.lists(
    st.tuples(st.sampled_from(["append", "replace", "take", "write", "trim", "compact"]), st.integers(0, 9)),
    max_size=40,
)


@given(operations)
def test_against_a_list(steps: list[tuple[str, int]]) -> None:
    """`model` is the log as a list; what `stable_index` covers must be on the disk as it is in the model."""
    disk = a_disk()
    log = Log(disk)
    model: list[Entry] = []
    term = 1
    for verb, number in steps:
        if verb == "append":
            new = [Entry(len(model) + 1 + at, term, 0, bytes([number])) for at in range(number % 3 + 1)]
            model += new
            log.append(new)
        elif verb == "replace":
            term += 1
            first = max(log.snapshot_index + 1, len(model) - number % 4)
            del model[first - 1 :]
            new = [Entry(first, term, 0, b"r")]
            model += new
            log.append(new)
        elif verb == "take":
            taken = log.take()
            if taken:
                disk.pending.append(Write(entries=taken))
        elif verb == "write" and disk.pending:
            write = disk.write_one()
            log.written(write.entries[-1].index, write.entries[-1].term)
        elif verb == "trim":
            log.trim(log.stable_index - number % 3, 150, log.stable_index)
        elif verb == "compact":
            log.compact(max(log.snapshot_index, log.stable_index - number))
        assert log.last_index == len(model)
        for entry in model[log.snapshot_index :]:
            assert log.term_at(entry.index) == entry.term
            assert entry.index > log.stable_index or disk.log[entry.index] == entry
        low = log.snapshot_index + 1
        found: list[Entry] = []
        while low + len(found) <= log.last_index:
            found += log.read(low + len(found), log.last_index, 3)
            for span in log.newly_asked:
                log.came(*span)
            log.newly_asked = ()
        assert found == model[log.snapshot_index :]
        assert log.lost == ()


def a_log_with(*holes: int) -> Log:
    return Log(a_disk(), last_index=8, terms=[(1, 1), (4, 2), (7, 5)], holes=holes, term_bound=6)


def test_the_term_of_a_hole_is_known_between_entries_of_one_term() -> None:
    assert a_log_with(2, 5).vague == ()
    assert a_log_with(1).vague == ()
    assert (a_log_with(3).vague, a_log_with(3).last_term) == ((3,), 5)
    # 6 is read, so 4 and 5 have its term or an earlier one.
    assert a_log_with(2, 3).vague == (2, 3)
    assert (a_log_with(8).vague, a_log_with(8).last_term) == ((8,), 6)


def test_what_is_found_tells_the_terms_around_it() -> None:
    log = a_log_with(2, 3)
    log.found(3, 2)
    assert [log.term_at(index) for index in range(1, 9)] == [1, 1, 2, 2, 2, 2, 5, 5]
    assert (log.lost, log.vague) == ((2,), (2,))
    log.found(2, 1)
    assert (log.lost, log.vague) == ((), ())
    log = a_log_with(2, 3)
    log.found(3, 1)
    assert (log.lost, log.vague) == ((2,), ())


def test_the_end_of_a_log_that_cannot_be_read() -> None:
    log = a_log_with(7, 8)
    assert (log.anchor(7), log.last_term) == (9, 6)
    log.found(7, 6)
    assert (log.vague, log.last_term, log.term_at(7)) == ((8,), 6, 6)
    log.truncate(8)
    assert (log.vague, log.last_index, log.last_term) == ((), 7, 6)
