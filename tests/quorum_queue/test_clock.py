"""The queue time: it outlives processes, and no setting of a wall clock makes it jump, go back, or stand
still.
"""

from __future__ import annotations

from quorum_queue.clock import GUESSED, KNOWN, RESTORED, SLEW, QueueTime, TimeNote
from tests.clocks import ManualClock

HOUR_MS = 3_600_000
WALL_MS = 1_700_000_000_000


def test_it_begins_as_wall_time_and_goes_with_the_monotonic_clock() -> None:
    clock = ManualClock(5_000, WALL_MS)
    time = QueueTime(clock)
    assert (time.now_ms(), time.trust) == (WALL_MS, GUESSED)
    for shift_ms in (-HOUR_MS, 5 * HOUR_MS):
        clock.shift_ms += shift_ms
        clock.now_ms += 10
    assert time.now_ms() == WALL_MS + 20


def test_the_time_in_which_no_process_was_there_is_told_by_the_wall_clock() -> None:
    note = TimeNote(2_000, WALL_MS)
    # The monotonic clock begins anywhere.
    time = QueueTime(ManualClock(77, WALL_MS + 500), note)
    assert (time.now_ms(), time.trust) == (2_500, RESTORED)
    assert QueueTime(ManualClock(77, WALL_MS - HOUR_MS), note).now_ms() == 2_000


def test_a_node_that_starts_takes_over_the_time_of_one_that_serves() -> None:
    for note in (None, TimeNote(WALL_MS + HOUR_MS, WALL_MS)):
        for told in (WALL_MS - 10, WALL_MS + 3 * HOUR_MS):
            time = QueueTime(ManualClock(0, WALL_MS), note)
            before = time.now_ms()
            assert time.heard(KNOWN, told) == told - before
            assert (time.now_ms(), time.trust) == (told, KNOWN)


def test_of_nodes_that_start_at_once_those_with_a_note_decide_and_the_earliest_of_them() -> None:
    clock = ManualClock(0, WALL_MS)
    time = QueueTime(clock, TimeNote(WALL_MS, WALL_MS))
    assert time.heard(GUESSED, WALL_MS - HOUR_MS) == 0
    assert time.heard(RESTORED, WALL_MS + HOUR_MS) == 0
    assert time.heard(RESTORED, WALL_MS - 50) == -50
    fresh = QueueTime(clock)
    assert fresh.heard(RESTORED, WALL_MS + HOUR_MS) == HOUR_MS
    assert fresh.trust == RESTORED


def test_a_node_that_serves_catches_up_slowly_and_never_goes_back() -> None:
    clock = ManualClock(0, WALL_MS)
    time = QueueTime(clock)
    time.serves()
    for trust in (GUESSED, RESTORED, KNOWN):
        assert time.heard(trust, WALL_MS - HOUR_MS) == 0
    passed = 0
    for _ in range(100):
        clock.now_ms += 1_000
        passed += 1_000
        assert time.heard(KNOWN, WALL_MS + HOUR_MS) == 1_000 // SLEW
    assert time.now_ms() == WALL_MS + passed + passed // SLEW
    # Only a short way is left.
    clock.now_ms += 1_000
    assert time.heard(KNOWN, time.now_ms() + 3) == 3
