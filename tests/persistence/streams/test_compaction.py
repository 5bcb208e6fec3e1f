"""Compaction: which messages stay, what readers see meanwhile, and that no crash loses anything."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from persistence.streams import batch as batches
from persistence.streams import compaction
from persistence.streams.batch import Batch, Shape
from persistence.streams.compaction import Throttle
from persistence.streams.log import SegmentPlace, Stored, StreamLog, Wanted
from tests.persistence.streams.crashing import Crashed, CrashingFiles

HERE = Path("/stream")
#: Item: one byte of key (0: none), then the body.
Message = tuple[str, bytes]


class Keys:
    def keys(self, batch: Batch) -> Sequence[bytes | None]:
        found: list[bytes | None] = []
        at = 0
        for shape in batch.shapes:
            for _ in range(shape.count):
                key = bytes(batch.items[at : at + 1])
                found.append(None if key == b"." else key)
                at += shape.size
        return found

    def is_tombstone(self, shape: Shape) -> bool:
        return shape.size == 1


def stored(base: int, messages: list[Message], time_ms: int) -> Stored:
    items = [key.encode() + body for key, body in messages]
    shapes = [Shape(1, len(item), 0, 0, 0) for item in items]
    values: list[bytes | None] = list(dict.fromkeys(key.encode() for key, _ in messages))
    filters = [values.index(key.encode()) for key, _ in messages] if len(values) > 1 else []
    parts = batches.encode(base, time_ms, shapes, b"".join(items), values, filters, [b"n%d" % base])
    return Stored(base, base + len(items), time_ms, parts, sum(map(len, parts)))


def opened(files: CrashingFiles, stop: int = 0, segment_bytes: int = 400, codec: str = "none") -> StreamLog:
    log = StreamLog(files, HERE, segment_bytes, codec=codec)
    assert log.open(stop) == []
    return log


def fill(log: StreamLog, messages: list[Message], each: int = 3) -> None:
    """Append messages in batches of this size; batch n has the time n · 1000."""
    for first in range(0, len(messages), each):
        base = log.stop
        log.append([stored(base, messages[first : first + each], base * 1000)])


def compact(
    log: StreamLog,
    keys_max: int = 1000,
    until_ms: int = -1,
    segment_bytes: int = 2000,
    codec: str = "none",
    sound_elsewhere: int = compaction.EVERYTHING,
    now_ms: int = 0,
) -> None:
    """Tombstones go that have been alone since `until_ms`; the pass ends at `now_ms`."""
    throttle = Throttle(1 << 40)
    plan = compaction.plan(log, Keys(), keys_max, segment_bytes, throttle)
    for group in plan.groups:
        new = compaction.rewrite(
            log, group, plan, Keys(), until_ms, codec, throttle, sound_elsewhere=sound_elsewhere
        )
        if new is not None:
            assert log.replace(group, new)
    log.compacted(
        *(plan.latest.stop, plan.sound_stop, plan.mends),
        alone_stop=sound_elsewhere,
        now_ms=now_ms,
        until_ms=until_ms,
    )


def read(log: StreamLog, offset: int = 0) -> dict[int, bytes]:
    """Return all messages from an offset on, by their offsets; check that nothing is lost."""
    found: dict[int, bytes] = {}
    place: SegmentPlace | None = None
    while True:
        result = log.read(offset, place)
        assert result.lost == []
        for batch in result.batches:
            found |= of_batch(batch)
        place, offset = result.place, result.place.offset
        if place.base < 0:
            return {each: item for each, item in found.items() if each >= 0}


def of_batch(batch: Batch) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = number = 0
    for shape in batch.shapes:
        for _ in range(shape.count):
            low = number if batch.offsets is None else batch.offsets[number]
            item = bytes(batch.items[at : at + shape.size])
            # The filter value stays with its message.
            assert batch.values[batch.filters[number] if batch.filters else 0] == item[:1]
            found[batch.base + low] = item
            number, at = number + 1, at + shape.size
    assert not found or batch.base <= min(found) <= max(found) < batch.stop
    return found


def expected(messages: list[Message], sealed: int) -> dict[int, bytes]:
    """Return the messages that must be there: in sealed segments the latest of each key."""
    latest = {key: offset for offset, (key, _) in enumerate(messages[:sealed])}
    return {
        offset: key.encode() + body
        for offset, (key, body) in enumerate(messages)
        if offset >= sealed or key == "." or latest[key] == offset
    }


def some(seed: int, count: int, keys: str = "abcde.") -> list[Message]:
    chance = random.Random(seed)
    return [(chance.choice(keys), b"%d" % chance.randint(0, 10**6)) for _ in range(count)]


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_the_latest_of_each_key_stays_with_its_offset(codec: str) -> None:
    files = CrashingFiles()
    log = opened(files, codec=codec)
    messages = some(1, 120)
    fill(log, messages)
    segments = len(log.segments)
    assert segments > 8 and compaction.is_due(log, 50)
    sealed = log.sealed[-1].stop
    compact(log, codec=codec)
    wanted = expected(messages, sealed)
    assert read(log) == wanted and len(wanted) < 60
    assert not compaction.is_due(log, 50)
    # From any offset or time on, no later message is left out.
    for offset in range(0, 121, 7):
        assert {each: item for each, item in read(log, offset).items() if each >= offset} == {
            each: item for each, item in wanted.items() if each >= offset
        }
        found = log.find(offset * 1000)
        assert {each for each in wanted if each - each % 3 >= offset} <= set(read(log, found))
    # A restart finds the same messages, and nothing else is left of the old segments.
    after = opened(files, 120, codec=codec)
    assert after.segments == log.segments and after.clean_stop == sealed
    assert len([path for path in files.now if path.suffix]) == 2 * len(log.segments)


def test_passes_follow_each_other_and_small_segments_become_one() -> None:
    log = opened(CrashingFiles())
    messages: list[Message] = []
    for number in range(12):
        more = some(number, 30)
        messages += more
        fill(log, more)
        compact(log)
        assert read(log) == expected(messages, log.sealed[-1].stop)
    assert len(log.sealed) < 6


def test_more_keys_than_fit_in_memory_take_several_passes() -> None:
    log = opened(CrashingFiles())
    messages = some(3, 150, "abcdefghijklmnopqrstuvwxyz")
    fill(log, messages)
    sealed, passes = log.sealed[-1].stop, 0
    while log.clean_stop < sealed:
        before = log.clean_stop
        compact(log, keys_max=5)
        passes += 1
        assert log.clean_stop > before
        # Up to there, each key is left once where the pass has looked.
        kept = read(log)
        assert all(kept[offset] == item for offset, item in expected(messages, sealed).items())
    assert passes > 3
    latest: dict[str, int] = {}
    for offset, (key, _) in enumerate(messages[:sealed]):
        latest[key] = offset
    assert set(latest.values()) <= set(read(log))


def test_tombstones_go_when_they_are_old_enough() -> None:
    log = opened(CrashingFiles(), segment_bytes=150)
    fill(
        log, [("a", b"1"), ("b", b"1"), ("c", b"1"), ("a", b""), ("b", b"2"), ("d", b""), *some(1, 9, "xyz")]
    )
    fill(log, some(2, 9, "xyz"))
    # However old they are, consumers have time to see them after the values are gone.
    compact(log, until_ms=1 << 40, now_ms=3_000)
    fill(log, some(4, 9, "xyz"))
    compact(log, until_ms=2_999, now_ms=5_000)
    assert {offset: item for offset, item in read(log).items() if offset < 6} == {
        2: b"c1",
        3: b"a",
        4: b"b2",
        5: b"d",
    }
    fill(log, some(3, 9, "xyz"))
    compact(log, until_ms=3_000)
    assert {offset: item for offset, item in read(log).items() if offset < 6} == {2: b"c1", 4: b"b2"}


def test_batches_with_tombstones_keep_their_time() -> None:
    log = opened(CrashingFiles(), segment_bytes=150)
    fill(log, [("a", b"1"), ("b", b"1"), ("c", b"1"), ("a", b""), ("p", b"1"), ("q", b"1")])
    for number in range(10):
        fill(log, some(number, 6, "xyz"))
        compact(log, until_ms=2_999, now_ms=3_000 + number)
    assert [batch.time_ms for batch in log.read(0).batches if 3 in of_batch(batch)] == [3_000]
    fill(log, some(11, 6, "xyz"))
    compact(log, until_ms=3_000, now_ms=4_000)
    assert 3 not in read(log) and {1, 2, 4, 5} <= set(read(log))


def test_a_segment_of_which_nothing_is_left_is_no_hole() -> None:
    log = opened(CrashingFiles(), segment_bytes=60)
    messages: list[Message] = [("a", b"%d" % number) for number in range(40)]
    fill(log, messages, each=1)
    sealed = log.sealed[-1].stop
    compact(log, segment_bytes=1)
    assert len(log.sealed) > 5
    assert read(log) == expected(messages, sealed)
    for offset in range(41):
        read(log, offset)
        log.find(offset * 1000)
    assert opened(log.files, 40, 60).segments == log.segments  # type: ignore[arg-type]
    compact(log)
    assert read(log) == expected(messages, sealed)


def test_a_reader_goes_on_undisturbed() -> None:
    messages = some(5, 200, "abcdefgh")
    for stop_at in range(0, 30, 3):
        log = opened(CrashingFiles(), segment_bytes=300)
        fill(log, messages, each=2)
        throttle = Throttle(1 << 40)
        plan = compaction.plan(log, Keys(), 1000, 900, throttle)
        seen: dict[int, bytes] = {}
        place: SegmentPlace | None = None
        offset = step = 0
        groups = iter(plan.groups)
        while True:
            result = log.read(offset, place)
            assert result.lost == []
            for batch in result.batches:
                for each, item in of_batch(batch).items():
                    if each >= offset:
                        assert each not in seen and (not seen or each > max(seen))
                        seen[each] = item
                offset = batch.stop
                break
            else:
                offset = result.place.offset
            place = result.place if result.place.offset == offset else None
            step += 1
            if step > stop_at and (group := next(groups, None)) is not None:
                new = compaction.rewrite(log, group, plan, Keys(), -1, "none", throttle)
                assert new is None or log.replace(group, new)
            if result.place.base < 0:
                break
        wanted = expected(messages, log.sealed[-1].stop)
        assert wanted.items() <= seen.items()
        assert seen.items() <= {n: k.encode() + b for n, (k, b) in enumerate(messages)}.items()


class Replacing(CrashingFiles):
    """Makes a call as soon as a file was read."""

    def __init__(self) -> None:
        super().__init__()
        self.path: Path | None = None
        self.then: Callable[[], None] = lambda: None

    def read(self, path: Path, position: int, size: int) -> bytes:
        data = super().read(path, position, size)
        if path == self.path:
            self.path = None
            self.then()
        return data


@pytest.mark.parametrize("wanted", [None, Wanted(frozenset({b"x"}), unfiltered=False)])
def test_a_segment_is_replaced_while_it_is_read(wanted: Wanted | None) -> None:
    """Nothing is left of the segment, or nothing that the reader wants: the reader goes on behind it, and
    skips nothing else.
    """
    messages: list[Message] = [("." if number % 7 == 3 else "a", b"%d" % number) for number in range(40)]
    messages += [("x", b"last"), ("a", b"41")]
    for number in range(12):
        files = Replacing()
        log = opened(files, segment_bytes=60)
        fill(log, messages, each=1)
        compact(log, segment_bytes=1)
        segment = log.sealed[number]
        files.path, files.then = log.path(segment.where, ".segment"), lambda log=log: compact(log)  # type: ignore[misc]
        found: dict[int, bytes] = {}
        place, offset = None, segment.base
        while True:
            result = log.read(offset, place, wanted)
            assert result.lost == []
            for batch in result.batches:
                found |= of_batch(batch)
            place, offset = result.place, result.place.offset
            if place.base < 0:
                break
        assert files.path is None and segment not in log.segments
        after = {each: item for each, item in read(log).items() if wanted is None or item[:1] == b"x"}
        assert {each: item for each, item in after.items() if each >= segment.base}.items() <= found.items()


def test_retention_is_faster() -> None:
    files = CrashingFiles()
    log = opened(files)
    fill(log, some(1, 120))
    throttle = Throttle(1 << 40)
    plan = compaction.plan(log, Keys(), 1000, 2000, throttle)
    new = compaction.rewrite(log, plan.groups[0], plan, Keys(), -1, "none", throttle)
    assert new is not None
    log.trim(1)
    assert not log.replace(plan.groups[0], new)
    left = read(log)
    assert min(left) == log.segments[0].base > 0
    assert not [path for path in files.now if path.suffix == ".new" or "-" in path.name]


def test_retention_deletes_no_more_than_it_wanted_before_a_pass() -> None:
    """After retention has chosen the segments, and before its thread deletes them, a pass merges them with
    others that must stay.
    """
    log = opened(CrashingFiles())
    fill(log, some(1, 120))
    throttle = Throttle(1 << 40)
    first = log.segments[0]
    plan = compaction.plan(log, Keys(), 1000, 2000, throttle)
    assert len(plan.groups[0]) > 1
    new = compaction.rewrite(log, plan.groups[0], plan, Keys(), -1, "none", throttle)
    assert new is not None and log.replace(plan.groups[0], new)
    before = read(log)
    log.trim_to(first.stop)
    assert log.segments[0] == new and read(log) == before
    log.trim_to(new.stop)
    assert log.segments[0].base == new.stop


def test_a_log_that_is_gone_is_not_written() -> None:
    log = opened(CrashingFiles())
    fill(log, some(1, 120))
    throttle = Throttle(1 << 40)
    plan = compaction.plan(log, Keys(), 1000, 2000, throttle)
    log.delete()
    with pytest.raises(compaction.Ended):
        compaction.rewrite(log, plan.groups[0], plan, Keys(), -1, "none", throttle)
    assert not log.files.now  # type: ignore[attr-defined]


def test_what_is_damaged_stays_as_it_is() -> None:
    files = CrashingFiles()
    log = opened(files)
    fill(log, some(1, 120))
    bad = log.segments[1]
    path = HERE / f"{bad.base:020}.segment"
    files.now[path][bad.size - 1] ^= 1
    before = bytes(files.now[path])
    compact(log, segment_bytes=500)
    assert bytes(files.now[path]) == before and bad in log.segments
    assert log.clean_stop == log.sealed[-1].stop
    assert log.read(bad.base).lost or log.read(bad.base, log.read(bad.base).place).lost


@pytest.mark.parametrize("twice", [False, True], ids=["the first pass", "a later pass"])
def test_a_crash_at_any_step_leaves_the_old_or_the_new(twice: bool) -> None:
    messages = some(7, 90)
    steps = 0
    while True:
        steps += 1
        files = CrashingFiles()
        files.random = random.Random(steps)
        log = opened(files)
        fill(log, messages[:60])
        if twice:
            compact(log)
        fill(log, messages[60:])
        wanted = expected(messages, log.sealed[-1].stop)
        all_there = {offset: key.encode() + body for offset, (key, body) in enumerate(messages)}
        files.left = steps
        try:
            compact(log)
        except Crashed:
            pass
        else:
            break
        files.crash()
        log = opened(files, 90)
        found = read(log)
        assert wanted.items() <= found.items() <= all_there.items()
        # And then it can be compacted.
        compact(log)
        assert read(log) == wanted
        assert not [path for path in files.now if path.suffix == ".new"]
    assert steps > 20
