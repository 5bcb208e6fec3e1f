"""A deleted key never comes back: not by damage, nor by a repair, nor by what another copy still has."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from persistence.streams.batch import Head
from persistence.streams.compaction import EVERYTHING
from persistence.streams.log import SegmentPlace, StreamLog
from persistence.streams.passes import Passes
from persistence.streams.segment import Segment, heads_of
from tests.persistence.streams.crashing import CrashingFiles
from tests.persistence.streams.test_compaction import HERE, Message, compact, fill, of_batch, opened

#: Later than the time of all messages.
LATER_MS = 1 << 40
VALUE = b"v" * 60


def view(log: StreamLog) -> tuple[dict[str, int], bool]:
    """Return the table that a consumer makes of the stream, key to offset of its value; and whether it could
    read all of it.
    """
    table: dict[str, int] = {}
    place: SegmentPlace | None = None
    offset, whole = 0, True
    while True:
        result = log.read(offset, place)
        whole = whole and not result.lost
        for batch in result.batches:
            for at, item in sorted(of_batch(batch).items()):
                table.pop(item[:1].decode(), None)
                if len(item) > 1:
                    table[item[:1].decode()] = at
        place, offset = result.place, result.place.offset
        if place.base < 0:
            return table, whole


def truth(messages: list[Message]) -> dict[str, int]:
    table: dict[str, int] = {}
    for offset, (key, body) in enumerate(messages):
        table.pop(key, None)
        if body:
            table[key] = offset
    return table


def flip(log: StreamLog, segment: Segment, at: int) -> None:
    """Flip a bit of a segment; the second time repairs it."""
    path = log.path(segment.where, ".segment")
    log.files.now[path][at] ^= 1  # type: ignore[attr-defined]


#: The value of "a" is in the first segment, its tombstone in the second one.
MESSAGES: list[Message] = [
    *[(key, VALUE) for key in "abcxyz"],
    ("a", b""),
    *[(key, VALUE) for key in "defgh"],
    *[(key, VALUE) for key in "pqrpqrpqr"],
]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_tombstone_stays_while_a_segment_before_it_cannot_be_compacted(restarts: bool) -> None:
    files = CrashingFiles()
    log = opened(files)
    fill(log, MESSAGES)
    first = log.segments[0]
    assert first.stop == 6
    # In the batch of x, y and z, far from key a.
    flip(log, first, first.size - 20)
    for _ in range(3):
        compact(log, until_ms=LATER_MS, segment_bytes=400)
        table, whole = view(log)
        assert "a" not in table and not whole
        fill(log, [(key, VALUE) for key in "pqrpqr"])
        if restarts:
            log = opened(files, log.stop)
    assert log.sound_stop == 0 < log.clean_stop
    # It can be read again: value and tombstone go.
    flip(log, first, first.size - 20)
    compact(log, until_ms=LATER_MS, segment_bytes=400)
    compact(log, until_ms=LATER_MS, segment_bytes=400)
    assert b"a" not in {item[:1] for item in items(log).values()}
    assert log.sound_stop == log.clean_stop


def items(log: StreamLog) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    place: SegmentPlace | None = None
    offset = 0
    while True:
        result = log.read(offset, place)
        for batch in result.batches:
            found |= of_batch(batch)
        place, offset = result.place, result.place.offset
        if place.base < 0:
            return found


def test_when_the_damaged_segment_is_deleted_tombstones_go_again() -> None:
    log = opened(CrashingFiles())
    fill(log, MESSAGES)
    first = log.segments[0]
    flip(log, first, first.size - 20)
    compact(log, until_ms=LATER_MS, segment_bytes=400)
    assert 6 in items(log)
    log.trim(1)
    fill(log, [(key, VALUE) for key in "pqrpqr"])
    for _ in range(2):
        compact(log, until_ms=LATER_MS, segment_bytes=400)
    assert 6 not in items(log) and log.sound_stop == log.clean_stop


def test_a_directory_of_an_earlier_version_is_looked_at_from_its_beginning() -> None:
    """That version noted how far it had compacted, and not what it had left alone."""
    files = CrashingFiles()
    log = opened(files)
    fill(log, MESSAGES)
    log.compacted(log.sealed[-1].stop, 0, log.mends, alone_stop=0, now_ms=0, until_ms=0)
    files.remove(log.path("x", "").parent / "sound")
    log = opened(files, log.stop)
    assert log.sound_stop == 0 < log.clean_stop
    for _ in range(2):
        fill(log, [(key, VALUE) for key in "pqrpqr"])
        compact(log, until_ms=LATER_MS, segment_bytes=400)
    assert not {0, 6} & set(items(log))


class Copies:
    """Two members of a stream: as in a cluster, tombstones go when the other copy has compacted as far."""

    def __init__(self, chance: random.Random, *, agree: bool = True) -> None:
        self.chance = chance
        self.agree = agree
        self.logs = [opened(CrashingFiles(), segment_bytes=chance.choice([200, 400])) for _ in range(2)]
        self.messages: list[Message] = []
        self.flipped: list[tuple[StreamLog, Segment, int]] = []
        self.mended = self.removed = self.left_alone = 0

    def append(self) -> None:
        more: list[Message] = [
            (self.chance.choice("abcdefgh"), self.chance.choice([b"", VALUE, b"w"])) for _ in range(9)
        ]
        self.messages += more
        for log in self.logs:
            fill(log, more, each=self.chance.choice([1, 3]))

    def compact(self) -> None:
        log, other = self.chance.sample(self.logs, 2)
        before = len(items(log))
        compact(
            log,
            keys_max=self.chance.choice([3, 1000]),
            until_ms=LATER_MS,
            segment_bytes=self.chance.choice([300, 900]),
            sound_elsewhere=other.sound_stop if self.agree else EVERYTHING,
        )
        self.removed += before - len(items(log))
        self.left_alone += log.sound_stop < log.clean_stop

    def damage(self) -> None:
        log = self.chance.choice(self.logs)
        segments = [each for each in log.sealed if each.size]
        if segments and not self.flipped:
            segment = self.chance.choice(segments)
            at = self.chance.randrange(segment.size)
            flip(log, segment, at)
            self.flipped.append((log, segment, at))

    def repair(self) -> None:
        """The bytes can be read again; or the other copy sends what is damaged."""
        while self.flipped:
            log, segment, at = self.flipped.pop()
            if segment not in log.segments:
                continue
            if self.chance.random() < 0.3:
                flip(log, segment, at)
            else:
                self.mend(log, segment)

    def mend(self, log: StreamLog, segment: Segment) -> None:
        other = self.logs[1 - self.logs.index(log)]
        place: SegmentPlace | None = None
        offset = segment.base
        while offset < segment.stop:
            read = log.read(offset, place)
            for lost in read.lost:
                low, stop = max(lost.low, segment.base), min(lost.stop, segment.stop)
                while low < stop:
                    raw = other.read_raw(low)
                    assert raw.lost is None and raw.data
                    before = log.stop
                    log.mend(raw.data, low, stop)
                    assert log.stop == before
                    self.mended += 1
                    reached = max(last.stop for last in heads(raw.data))
                    low = max(reached, low + 1)
            place, offset = read.place, read.place.offset
            if place.base < 0:
                break

    def check(self) -> None:
        """Once nothing is damaged, both copies say what was published."""
        for log in self.logs:
            assert view(log) == (truth(self.messages), True)


def heads(data: bytes) -> Iterator[Head]:
    return (head for _, head in heads_of(data))


def run(seed: int, *, agree: bool = True) -> Copies:
    chance = random.Random(seed)
    copies = Copies(chance, agree=agree)
    acts: list[Callable[[], None]] = [copies.append, copies.compact, copies.damage, copies.repair]
    for _ in range(40):
        chance.choices(acts, [2, 4, 1, 1])[0]()
    copies.repair()
    copies.check()
    return copies


def test_what_another_copy_sends_is_compacted_again() -> None:
    copies = Copies(random.Random(1))
    log, other = copies.logs
    copies.messages = MESSAGES
    for each in copies.logs:
        fill(each, MESSAGES)
    compact(log, until_ms=LATER_MS, sound_elsewhere=other.sound_stop)
    assert 0 not in items(log) and 6 in items(log) and log.sound_stop == log.clean_stop > 6
    first = log.segments[0]
    flip(log, first, 20)
    # It sends the deleted value.
    copies.mend(log, first)
    assert 0 in items(log)
    copies.check()
    compact(other, until_ms=LATER_MS, sound_elsewhere=log.sound_stop)
    compact(log, until_ms=LATER_MS, sound_elsewhere=other.sound_stop)
    copies.check()
    assert 0 not in items(log)


def test_two_copies_by_chance() -> None:
    runs = [run(seed) for seed in range(40)]
    # Rare events were reached.
    assert sum(each.mended for each in runs) > 30
    assert sum(each.left_alone for each in runs) > 30
    assert all(each.removed for each in runs)


AGE_MS = 50


class SlowReader:
    """Makes a table of the stream, some messages at a time, from any copy; it takes at most AGE_MS."""

    def __init__(self, now_ms: int) -> None:
        self.begun_ms = now_ms
        self.table: dict[str, int] = {}
        self.next = 0

    def read(self, log: StreamLog, most: int) -> bool:
        """Read on; return whether it has come to the end."""
        found = sorted((at, item) for at, item in items(log).items() if at >= self.next)
        for at, item in found[:most]:
            self.table.pop(item[:1].decode(), None)
            if len(item) > 1:
                self.table[item[:1].decode()] = at
            self.next = at + 1
        return len(found) <= most


def slow_readers(seed: int) -> Copies:
    chance = random.Random(seed)
    copies = Copies(chance)
    readers: list[SlowReader] = []
    now_ms = finished = 0
    for _ in range(150):
        now_ms += chance.randrange(10)
        what = chance.random()
        if what < 0.3:
            copies.append()
        elif what < 0.6:
            log, other = chance.sample(copies.logs, 2)
            before = len(items(log))
            compact(
                *(log, 1000, now_ms - AGE_MS, chance.choice([300, 900])),
                sound_elsewhere=other.sound_stop,
                now_ms=now_ms,
            )
            copies.removed += before - len(items(log))
        elif what < 0.7:
            copies.damage()
            copies.repair()
        elif len(readers) < 4:
            readers.append(SlowReader(now_ms))
        for reader in list(readers):
            # Before a step of the loop could be too long for it, it reads the rest.
            late = now_ms - reader.begun_ms > AGE_MS - 20
            if reader.read(chance.choice(copies.logs), 1000 if late else chance.randrange(6)):
                assert reader.table == truth(copies.messages), (seed, now_ms)
                readers.remove(reader)
                finished += 1
    assert finished > 5
    return copies


def test_a_consumer_that_is_not_too_slow_sees_every_deletion() -> None:
    assert sum(slow_readers(seed).removed for seed in range(8)) > 400


def test_tombstones_whose_age_counts_from_their_write_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamLog, "alone_stop", lambda self, until_ms: EVERYTHING)
    with pytest.raises(AssertionError):
        for seed in range(20):
            slow_readers(seed)


# -- the file of the passes ----------------------------------------------------------------------------------


def passes_of(files: CrashingFiles) -> Passes:
    passes = Passes(files, HERE)
    passes.open()
    return passes


def test_passes_are_kept() -> None:
    files = CrashingFiles()
    passes = passes_of(files)
    for stop in range(10, 60, 10):
        passes.add(stop, stop * 100, 0)
    for found in (passes, passes_of(files)):
        assert [found.reached(at) for at in (0, 999, 1_000, 1_999, 2_000, 9_999)] == [0, 0, 10, 10, 20, 50]
    # A pass that has not come further counts from the earlier one; and time does not go back.
    passes.add(50, 9_000, 0)
    passes.add(60, 100, 0)
    assert [passes.reached(at) for at in (4_999, 5_000)] == [40, 60]
    # Those that are not needed any more are forgotten.
    passes.add(70, 7_000, 3_500)
    assert [passes_of(files).reached(at) for at in (2_999, 3_000, 4_000, 7_000)] == [0, 30, 40, 70]


def test_a_repair_ends_what_passes_had_reached() -> None:
    files = CrashingFiles()
    passes = passes_of(files)
    for stop in (10, 20, 30):
        passes.add(stop, stop * 100, 0)
    passes.cut(40)
    assert passes.reached(9_999) == 30
    passes.cut(15)
    for found in (passes, passes_of(files)):
        assert [found.reached(at) for at in (1_000, 1_999, 2_000, 9_999)] == [10, 10, 15, 15]
    passes.cut(0)
    assert passes_of(files).reached(9_999) == 0


def test_of_very_many_passes_those_of_a_short_time_count_as_one() -> None:
    files = CrashingFiles()
    passes = passes_of(files)
    for now in range(1, 4_000):
        passes.add(now, now, now - 1_000)
        # Not too early, and a little late.
        assert max(now - 1_010, 0) <= passes.reached(now - 1_000) <= max(now - 1_000, 0)
    assert files.size(HERE / "passes") < 2_500


def test_a_damaged_file_makes_tombstones_stay_longer() -> None:
    files = CrashingFiles()
    passes_of(files).add(10, 1_000, 0)
    for at in range(files.size(HERE / "passes")):
        files.now[HERE / "passes"][at] ^= 1
        assert passes_of(files).reached(9_999) == 0
        files.now[HERE / "passes"][at] ^= 1
    assert passes_of(files).reached(9_999) == 10
    del files.now[HERE / "passes"][20:]
    assert passes_of(files).reached(9_999) == 0


def test_copies_that_do_not_ask_each_other_are_found_out() -> None:
    with pytest.raises(AssertionError):
        for seed in range(200):
            run(seed, agree=False)
