"""The log of a stream: stored messages are read back, whatever crashes; damage is reported and never
served.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from persistence.streams import batch as batches
from persistence.streams import index
from persistence.streams.batch import Batch, Shape
from persistence.streams.files import DiskFiles, Files
from persistence.streams.log import Lost, SegmentPlace, Stored, StreamLog, Wanted, heads_of
from tests.persistence.streams.crashing import Crashed, CrashingFiles

HERE = Path("/streams/7")


def bodies(base: int, count: int, size: int = 10) -> list[bytes]:
    return [b"%08d" % offset + b"." * (size + offset % 3) for offset in range(base, base + count)]


def stored(
    base: int, count: int, time_ms: int = 0, size: int = 10, names: list[bytes | None] | None = None
) -> Stored:
    """Messages whose bodies are their offsets; `names` are their filter values."""
    items = bodies(base, count, size)
    shapes = [Shape(1, len(item), 1, 2, 3) for item in items]
    values: list[bytes | None] = [None]
    filters: list[int] = []
    if names is not None:
        values = list(dict.fromkeys(names))
        filters = [values.index(name) for name in names] if len(values) > 1 else []
    parts = batches.encode(base, time_ms or base, shapes, b"".join(items), values, filters)
    return Stored(base, base + count, time_ms or base, parts, sum(map(len, parts)))


def read_all(log: StreamLog, offset: int = 0, wanted: Wanted | None = None) -> tuple[list[int], list[Lost]]:
    """Return the offsets that a reader gets, each with the right body, and the offsets that are lost."""
    offsets: list[int] = []
    lost: list[Lost] = []
    place: SegmentPlace | None = None
    for _ in range(10_000):
        read = log.read(offset, place, wanted)
        lost += read.lost
        for each in read.batches:
            at = 0
            for number, shape in enumerate(each.shapes):
                assert shape.count == 1
                body = bytes(each.items[at : at + shape.size])
                assert int(body[:8]) == each.base + number, "a message under the offset of another one"
                offsets.append(each.base + number)
                at += shape.size
        if read.place.offset == offset and not read.batches and read.place == place:
            break
        if read.place.base < 0:
            break
        offset, place = read.place.offset, read.place
    return offsets, lost


def opened(files: Files, stop: int = 0, segment_bytes: int = 400) -> tuple[StreamLog, list[Lost]]:
    log = StreamLog(files, HERE, segment_bytes)
    return log, log.open(stop)


def filled(files: Files, count: int = 60, segment_bytes: int = 400) -> StreamLog:
    log, _ = opened(files, segment_bytes=segment_bytes)
    for base in range(0, count, 3):
        log.append([stored(base, 3)])
    return log


# -- what is stored is read ----------------------------------------------------------------------------------


def _view(batch: Batch) -> memoryview:
    return memoryview(batch.items)


@pytest.mark.parametrize("wanted", [None, Wanted(frozenset([b"few"]), unfiltered=False)])
def test_batches_that_are_read_keep_no_more_memory_than_they_count_as(wanted: Wanted | None) -> None:
    """They are views of a larger read: it also has the batch behind them, and messages that no filter
    matches.
    """
    log, _ = opened(CrashingFiles(), segment_bytes=1 << 30)
    for base in range(0, 100, 10):
        log.append([stored(base, 1, size=160_000, names=[b"few"])])
        for other in range(base + 1, base + 10):
            log.append([stored(other, 1, size=1_000, names=[b"most"])])
    offset, place = 0, None
    while offset < 100:
        read = log.read(offset, place, wanted)
        sources: dict[int, Any] = {id(items.obj): items.obj for items in map(_view, read.batches)}
        kept = sum([len(source) for source in sources.values()])
        assert kept <= 1.4 * sum(found.size for found in read.batches)
        offset, place = read.place.offset, read.place


def test_few_of_the_batches_that_do_not_become_smaller_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once one becomes smaller, all that follow are tried again; small ones always are."""
    tried: list[int] = []
    compressed = batches.compressed

    def noted(parts: Sequence[bytes], codec: str) -> Sequence[bytes]:
        tried.append(batches.decode_head(parts[0]).base)
        return compressed(parts, codec)

    monkeypatch.setattr(batches, "compressed", noted)
    log = StreamLog(CrashingFiles(), HERE, 1 << 20, codec="lz4")
    log.open(0)
    random_bytes = random.Random(1).randbytes
    bodies: list[bytes] = [random_bytes(9_000) for _ in range(100)]
    bodies += [b"text " * 2_000 for _ in range(20)]
    bodies += [random_bytes(600) for _ in range(30)]
    for base, body in enumerate(bodies):
        parts = batches.encode(base, base, [Shape(1, len(body), 1, 2, 3)], body, [None], [])
        log.append([Stored(base, base + 1, base, parts, sum(map(len, parts)))])
    assert tried[:8] == list(range(8))
    assert 16 < len([base for base in tried if base < 100]) < 24
    first_text = min(base for base in tried if base >= 100)
    assert first_text < 108
    assert [base for base in tried if base >= first_text] == list(range(first_text, 150))
    read = log.read(0, None, None)
    assert [bytes(each.items) for each in read.batches] == bodies[: len(read.batches)]
    assert log.size < 100 * 9_100 + 8 * 10_100 + 30 * 700 + 12 * 1_000


def test_what_was_appended_is_read_from_every_offset() -> None:
    log = filled(CrashingFiles())
    assert len(log.segments) > 5
    for offset in range(60):
        assert read_all(log, offset) == (list(range(offset - offset % 3, 60)), [])


def test_a_restart_knows_the_same() -> None:
    files = CrashingFiles()
    before = filled(files)
    after, lost = opened(files, 60)
    assert (after.segments, after.stop, lost) == (before.segments, 60, [])
    after.append([stored(60, 3)])
    assert read_all(after) == (list(range(63)), [])


def test_a_restart_reads_indexes_not_bodies() -> None:
    """Otherwise 20 GB would take minutes."""

    class Counting(CrashingFiles):
        read_bytes = 0

        def read(self, path: Path, position: int, size: int) -> bytes:
            data = super().read(path, position, size)
            self.read_bytes += len(data)
            return data

    files = Counting()
    log, _ = opened(files, segment_bytes=1_000_000)
    for base in range(0, 600, 3):
        log.append([stored(base, 3, size=10_000)])
    total = log.size
    files.read_bytes = 0
    after, _ = opened(files, 600, segment_bytes=1_000_000)
    assert after.segments == log.segments
    assert files.read_bytes < total / 20


def test_a_time_is_found() -> None:
    log, _ = opened(CrashingFiles())
    for base in range(0, 60, 3):
        log.append([stored(base, 3, time_ms=1000 + base // 6 * 100)])
    for time_ms in range(900, 2100, 25):
        wanted = [base for base in range(0, 60, 3) if 1000 + base // 6 * 100 >= time_ms]
        assert log.find(time_ms) == (wanted[0] if wanted else 60), time_ms
    assert log.last() == 57


@pytest.mark.parametrize("spacing", [64, index.SPACING_BYTES])
def test_a_time_of_a_damaged_batch_is_found(spacing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that begins there finds the damage, and another node may have the lost messages."""
    monkeypatch.setattr(index, "SPACING_BYTES", spacing)
    for damaged in range(0, 60, 3):
        files = CrashingFiles()
        log = filled(files, segment_bytes=900)
        segment = log.segment_of(damaged)
        assert segment is not None
        path = HERE / f"{segment.base:020}.segment"
        at = next(at for at, head in heads_of(bytes(files.now[path])) if head.base == damaged)
        files.now[path][at + 20] ^= 1
        # Batches have their offsets as times.
        for time_ms in range(damaged - 2, damaged + 1):
            assert log.find(time_ms) in (damaged, max(damaged - 3, 0)), (damaged, time_ms)
        assert log.find(damaged + 1) in (damaged, damaged + 3)


def test_an_empty_log_has_nothing() -> None:
    log, lost = opened(CrashingFiles())
    assert (log.find(0), log.last(), log.stop, lost) == (0, 0, 0, [])
    assert read_all(log) == ([], [])


def test_only_batches_that_match_are_read() -> None:
    files = CrashingFiles()
    log, _ = opened(files)
    names: list[bytes | None]
    for base in range(0, 60, 3):
        names = [b"a", b"b", b"a"] if base % 2 else [None, None, b"c"]
        log.append([stored(base, 3, names=names)])
    odd = [base + number for base in range(0, 60, 3) if base % 2 for number in range(3)]
    even = [offset for offset in range(60) if offset not in odd]
    assert read_all(log, wanted=Wanted(frozenset({b"b"}), unfiltered=False))[0] == odd
    assert read_all(log, wanted=Wanted(frozenset({b"c", b"x"}), unfiltered=False))[0] == even
    assert read_all(log, wanted=Wanted(frozenset({b"x"}), unfiltered=True))[0] == even
    assert read_all(log, wanted=Wanted(frozenset({b"x"}), unfiltered=False))[0] == []


def test_a_filter_that_nothing_matches_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.streams.reading.PASSED_MAX", 2)
    log = filled(CrashingFiles())
    log.append([stored(60, 3, names=[b"a"] * 3)])
    assert read_all(log, wanted=Wanted(frozenset({b"a"}), unfiltered=False)) == ([60, 61, 62], [])


# -- what goes -----------------------------------------------------------------------------------------------


def test_trimmed_segments_are_gone_and_a_reader_goes_on_at_the_first() -> None:
    files = CrashingFiles()
    log = filled(files)
    first = log.segments[3].base
    log.trim(3)
    assert read_all(log, 1) == (list(range(first, 60)), [])
    assert len([path for path in files.now if path.suffix == ".segment"]) == len(log.segments)
    after, _ = opened(files, 60)
    assert after.segments == log.segments


def test_a_stream_that_was_trimmed_completely_goes_on_at_its_offset() -> None:
    files = CrashingFiles()
    log = filled(files)
    log.trim(len(log.segments))
    assert read_all(log) == ([], [])
    after, lost = opened(files, 60)
    assert (after.stop, lost, after.size) == (60, [], 0)
    after.append([stored(60, 3)])
    assert read_all(after) == ([60, 61, 62], [])
    assert read_all(opened(files, 63)[0]) == ([60, 61, 62], [])


def test_a_full_disk_is_made_room_on(monkeypatch: pytest.MonkeyPatch) -> None:
    files = CrashingFiles()
    log = filled(files)

    def full(path: Path, position: int, parts: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(files, "write", full)
    first = log.segments[3].base
    log.trim(3)
    monkeypatch.undo()
    files.crash()
    after, lost = opened(files, 60)
    assert (lost, read_all(after)) == ([], (list(range(first, 60)), []))


def test_a_reader_whose_segment_goes_while_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    files = CrashingFiles()
    log = filled(files)
    place = log.read(0).place
    size = files.size

    def gone(path: Path) -> int:
        log.trim(2)
        files.size = size  # type: ignore[method-assign]
        return size(path)

    monkeypatch.setattr(files, "size", gone)
    read = log.read(4, None)
    assert read.lost == []
    assert read.batches[0].base == log.segments[0].base
    assert place.base == 0


# -- damage --------------------------------------------------------------------------------------------------


@given(st.integers(0, 1_000_000), st.integers(0, 7))
@example(3_021, 0)
def test_a_flipped_bit_is_told_and_never_served(where: int, bit: int) -> None:
    files = CrashingFiles()
    log = filled(files)
    paths = sorted(path for path in files.now if path.suffix == ".segment")
    total = sum(len(files.now[path]) for path in paths)
    where %= total
    for path in paths:
        if where < len(files.now[path]):
            files.now[path][where] ^= 1 << bit
            break
        where -= len(files.now[path])
    # A start tells the damage of the last segment.
    for reader, told_before in ((log, []), opened(files, 60)):
        offsets, lost = read_all(reader)
        told = {offset for each in [*told_before, *lost] for offset in range(each.low, each.stop)}
        assert told
        assert not told & set(offsets)
        assert told | set(offsets) == set(range(60))
        assert offsets == sorted(offsets)
    # And later messages have offsets of their own.
    reopened, _ = opened(files, 60)
    reopened.append([stored(60, 3)])
    assert read_all(reopened)[0][-3:] == [60, 61, 62]


@pytest.mark.parametrize("which", [0, 2, -1])
def test_a_deleted_segment_file_is_told(which: int) -> None:
    files = CrashingFiles()
    log = filled(files)
    segment = log.segments[which]
    files.remove(HERE / f"{segment.base:020}.segment")
    offsets, lost = read_all(log)
    assert [(each.low, each.stop) for each in lost] == [(segment.base, segment.stop)]
    assert offsets == [offset for offset in range(60) if not segment.base <= offset < segment.stop]


@pytest.mark.parametrize("how", ["empty", "garbage", "gone"])
def test_a_damaged_index_costs_nothing_but_time(how: str) -> None:
    files = CrashingFiles()
    log = filled(files)
    for path in [path for path in files.now if path.suffix == ".index"]:
        if how == "gone":
            files.remove(path)
        else:
            files.now[path][:] = b"" if how == "empty" else bytes(range(200))
    assert read_all(log) == (list(range(60)), [])
    assert read_all(log, 31)[0][0] == 30
    after, lost = opened(files, 60)
    assert lost == []
    assert (after.segments, read_all(after)) == (log.segments, (list(range(60)), []))


@pytest.mark.parametrize("position", [77, 10**6])
def test_an_index_that_points_past_the_tail_is_not_believed(position: int) -> None:
    files = CrashingFiles()
    log = filled(files, segment_bytes=1000)
    last = log.segments[-1]
    wrong = [index.Entry(last.base, last.base, 0), index.Entry(last.base + 3, last.base + 3, position)]
    files.now[HERE / f"{last.base:020}.index"][:] = b"".join(map(index.encode, wrong))
    after, lost = opened(files, 60, segment_bytes=1000)
    assert (lost, after.segments, read_all(after)) == ([], log.segments, (list(range(60)), []))


def test_a_segment_that_was_cut_short_is_told_and_its_offsets_are_not_used_again() -> None:
    files = CrashingFiles()
    log = filled(files)
    last = log.segments[-1]
    del files.now[HERE / f"{last.base:020}.segment"][-20:]
    after, lost = opened(files, 60)
    assert [(each.low, each.stop) for each in lost] == [(57, 60)]
    after.append([stored(60, 3)])
    assert read_all(after)[0] == [*range(57), 60, 61, 62]


# -- crashes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_what_a_start_counts_as_stored_is_synced(seed: int) -> None:
    """A process that was killed has written more than it has synced; then the power fails."""
    files = CrashingFiles()
    files.random = random.Random(seed)
    log = filled(files, 12, segment_bytes=100_000)
    files.left = 2
    with pytest.raises(Crashed):
        # The process writes, and does not finish the sync.
        log.append([stored(12, 3)])
    files.left = None
    after, _ = opened(files, 12, segment_bytes=100_000)
    assert after.stop == 15
    files.crash()
    again, lost = opened(files, 15, segment_bytes=100_000)
    assert (lost, read_all(again)) == ([], (list(range(15)), []))


def test_a_start_that_finds_nothing_new_writes_nothing() -> None:
    files = CrashingFiles()
    log = filled(files)
    files.left = 1
    after, lost = opened(files, 60)
    assert (after.segments, after.stop, lost) == (log.segments, 60, [])


# -- the real file system ------------------------------------------------------------------------------------


def test_on_a_real_disk(tmp_path: Path) -> None:
    log = StreamLog(DiskFiles(), tmp_path / "streams" / "1", 400)
    assert log.open(0) == []
    for base in range(0, 60, 3):
        log.append(
            [
                stored(base, 3),
            ]
            if base % 2
            else [stored(base, 1), stored(base + 1, 2)]
        )
    assert read_all(log) == (list(range(60)), [])
    log.trim(2)
    again = StreamLog(DiskFiles(), tmp_path / "streams" / "1", 400)
    assert again.open(60) == []
    assert again.segments == log.segments
    assert read_all(again)[0] == list(range(log.segments[0].base, 60))
    again.delete()
    assert not (tmp_path / "streams" / "1").exists()
