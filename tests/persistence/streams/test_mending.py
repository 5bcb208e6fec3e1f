"""The log of a stream that has peers: damaged or missing messages are put back, and the end of a log is
filled.
"""

from pathlib import Path

import pytest

from persistence.streams.batch import Damaged, decode, encode
from persistence.streams.cutting import within
from persistence.streams.log import Lost, Stored, StreamLog, heads_of
from tests.persistence.streams.crashing import CrashingFiles
from tests.persistence.streams.test_log import HERE, filled, read_all, stored

COUNT = 60


def mendable(files: CrashingFiles, stop: int = COUNT) -> StreamLog:
    log = StreamLog(files, HERE, 400)
    log.open(stop, mendable=True)
    return log


def whole(offset: int = 0, stop: int = COUNT) -> bytes:
    """Return another member's batches from an offset on, up to a stop."""
    return b"".join(part for base in range(offset, stop, 3) for part in stored(base, 3).parts)


def mended(log: StreamLog, low: int, stop: int) -> None:
    """Mend as a host does: with whole batches, a few at a time."""
    low -= low % 3
    while low < stop:
        part = min(low + 6, stop + -stop % 3)
        log.mend(whole(low, part))
        low = part


def same(files: CrashingFiles, other: CrashingFiles) -> bool:
    def segments(found: CrashingFiles) -> dict[Path, bytes]:
        return {path: bytes(data) for path, data in found.now.items() if path.suffix == ".segment"}

    return segments(files) == segments(other)


def test_raw_batches_fill_another_log_with_the_same_bytes() -> None:
    files, others = CrashingFiles(), CrashingFiles()
    log, other = filled(files), StreamLog(others, HERE, 400)
    other.open(0, mendable=True)
    while other.stop < COUNT:
        raw = log.read_raw(other.stop)
        assert raw.lost is None
        parts = [
            Stored(head.base, head.stop, head.time_ms, [raw.data[at : at + head.size]], head.size)
            for at, head in heads_of(raw.data)
            if head.base >= other.stop
        ]
        other.append(parts)
    assert same(files, others)
    assert log.read_raw(COUNT).data == b""
    # This offset is in the middle of a batch: the whole batch comes.
    assert next(heads_of(log.read_raw(31).data))[1].base == 30


@pytest.mark.parametrize("lost_power", [False, True])
def test_every_flipped_bit_is_mended(lost_power: bool) -> None:
    sound = CrashingFiles()
    filled(sound)
    paths = sorted(path for path in sound.now if path.suffix == ".segment")
    for path in paths:
        for at in range(0, len(sound.now[path]), 7):
            files = CrashingFiles()
            log = filled(files)
            files.now[path][at] ^= 1 << at % 8
            if lost_power:
                files.synced[path] = bytes(files.now[path])
                files.crash()
                log = mendable(files)
                assert log.stop == COUNT or path == paths[-1]
                for base in range(log.stop, COUNT, 3):
                    log.append([stored(base, 3)])
            _, lost = read_all(log)
            for each in lost:
                assert log.read_raw(each.low).lost is not None
                mended(log, each.low, each.stop)
            assert read_all(log) == ([*range(COUNT)], [])
            assert same(files, sound)


def test_behind_damage_that_stays_everything_is_read() -> None:
    """No member may have what is damaged. A reader finds the next batch as other nodes' questions do, also if
    the index has no entry behind the damage: otherwise it would ask for sound messages again and again.
    """
    files = CrashingFiles()
    log = filled(files)
    segment = log.segments[1]
    path = log.path(segment.where, ".segment")
    files.now[path][3] ^= 1
    for offset in range(segment.base, segment.stop):
        raw = log.read_raw(offset)
        read = log.read(offset)
        if raw.lost is None:
            assert read.lost == [] and read.batches[0].base <= offset < read.batches[0].stop
        else:
            assert [(each.low, each.stop) for each in read.lost] == [(raw.lost.low, raw.lost.stop)]
    assert log.read_raw(segment.base).lost == Lost(segment.base, segment.base + 3, f"{path} is damaged")


@pytest.mark.parametrize("lost_power", [False, True])
def test_what_others_have_in_other_batches_is_put_between(lost_power: bool) -> None:
    """Peers have compressed or compacted in another way: their batches begin and end elsewhere, and have
    other sizes.
    """
    sound = CrashingFiles()
    filled(sound)
    for path in sorted(path for path in sound.now if path.suffix == ".segment"):
        for at in range(0, len(sound.now[path]), 37):
            files = CrashingFiles()
            log = filled(files)
            files.now[path][at] ^= 1 << at % 8
            files.synced[path] = bytes(files.now[path])
            for _ in range(4):
                _, lost = read_all(log)
                for each in [*lost, *[Lost(*gap, "") for gap in log.gaps(0)]]:
                    low = each.low - each.low % 6
                    parts = [stored(base, 6).parts for base in range(low, each.stop, 6)]
                    log.mend(b"".join(part for each in parts for part in each), each.low, each.stop)
                if lost_power:
                    files.crash()
                    log = mendable(files)
                    for base in range(log.stop, COUNT, 3):
                        log.append([stored(base, 3)])
            assert read_all(log) == ([*range(COUNT)], []) and log.gaps(0) == []
            log.append([stored(COUNT, 3)])
            again = mendable(files, COUNT + 3)
            assert read_all(again) == ([*range(COUNT + 3)], []) and again.gaps(0) == []


@pytest.mark.parametrize("segment_bytes", [1, 1000])
def test_a_batch_of_the_same_size_that_stands_for_more_is_cut(segment_bytes: int) -> None:
    """A batch of which compaction has left nothing has the same size for any number of offsets."""
    files = CrashingFiles()
    log = StreamLog(files, HERE, segment_bytes)
    log.open(0, mendable=True)
    log.append([emptied(0, 12), emptied(12, 30), emptied(30, 33), stored(33, 3)])
    for base, position in ((0, 0), (12, 48), (30, 96)):
        path = HERE / f"{base if segment_bytes == 1 else 0:020}.segment"
        files.now[path][0 if segment_bytes == 1 else position] ^= 1
    for low, stop, base, end in ((0, 12, 0, 30), (12, 30, 0, 20), (20, 30, 14, 31), (30, 33, 30, 33)):
        log.mend(b"".join(emptied(base, end).parts), low, stop)
    assert read_all(log) == ([33, 34, 35], []) and log.gaps(0) == []
    assert [segment.stop for segment in log.segments[:-1]] == [segment.base for segment in log.segments[1:]]
    offset = 0
    while offset < log.stop:
        raw = log.read_raw(offset)
        for _, head in heads_of(raw.data):
            assert (head.base, raw.lost) == (offset, None)
            offset = head.stop


def emptied(base: int, stop: int) -> Stored:
    """Return a batch of which compaction has left nothing."""
    parts = encode(base, 1_000 + base, [], b"", [None], [], span=stop - base, offsets=[])
    return Stored(base, stop, 1_000 + base, parts, sum(map(len, parts)))


def test_batches_are_cut_to_what_is_wanted() -> None:
    data = b"".join(part for base in (0, 6, 12) for part in stored(base, 6).parts)
    heads = list(heads_of(data))
    assert within(data, heads, 0, 18) == data
    for low, stop in ((0, 1), (3, 9), (5, 6), (7, 17), (6, 12)):
        cut = within(data, heads, low, stop)
        found = list(heads_of(cut))
        assert (found[0][1].base, found[-1][1].stop) == (low, stop)
        whole = [decode(head, cut, at) for at, head in found]
        offsets = [
            batch.base + each
            for batch in whole
            for each in (range(batch.count) if batch.offsets is None else batch.offsets)
        ]
        assert offsets == [*range(low, stop)]
        # Once more, with the batch that was just cut.
        again = within(cut, found, low, stop - 1) if stop - low > 1 else b""
        assert not again or list(heads_of(again))[-1][1].stop == stop - 1


@pytest.mark.parametrize("restarts", [False, True])
def test_every_lost_segment_comes_back(restarts: bool) -> None:
    sound = CrashingFiles()
    bases = [segment.base for segment in filled(sound).segments]
    assert len(bases) > 5
    for number, base in enumerate(bases):
        files = CrashingFiles()
        log = filled(files)
        path = HERE / f"{base:020}.segment"
        del files.now[path], files.synced[path]
        files.names_synced.discard(path)
        if restarts:
            log = mendable(files)
        if restarts and number == len(bases) - 1:
            # The end of the log is filled, not mended.
            assert log.stop == base
            log.append([stored(each, 3) for each in range(base, COUNT, 3)])
        elif restarts:
            stop = bases[number + 1]
            assert log.gaps(0) == [(base, stop)]
            mended(log, base, stop)
        else:
            _, lost = read_all(log)
            for each in lost:
                mended(log, each.low, each.stop)
        assert log.gaps(0) == []
        assert read_all(log) == ([*range(COUNT)], [])
        again = mendable(files)
        assert again.gaps(0) == [] and again.stop == COUNT
        assert read_all(again) == ([*range(COUNT)], [])
        again.append([stored(COUNT, 3)])
        assert read_all(again)[0] == [*range(COUNT + 3)]


def test_a_gap_is_filled_across_a_crash() -> None:
    files = CrashingFiles()
    bases = [segment.base for segment in filled(files, 300, 2000).segments]
    path = HERE / f"{bases[1]:020}.segment"
    del files.now[path], files.synced[path]
    log = mendable(files, 300)
    ((low, stop),) = log.gaps(0)
    mended(log, low, low + 6)
    files.crash()
    log = mendable(files, 300)
    ((low, rest),) = log.gaps(0)
    assert rest == stop and low > bases[1]
    mended(log, low, stop)
    assert read_all(log) == ([*range(300)], [])


def test_a_reset_begins_anew_at_an_offset() -> None:
    files = CrashingFiles()
    log = filled(files)
    log.reset(90)
    assert (log.stop, log.gaps(90)) == (90, [])
    files.crash()
    log = mendable(files, 90)
    assert log.stop == 90
    log.append([stored(90, 3)])
    assert read_all(log)[0] == [90, 91, 92]
    assert [path.name for path in sorted(files.now) if path.suffix == ".segment"] == [f"{90:020}.segment"]


def test_damaged_batches_are_not_taken() -> None:
    log = filled(CrashingFiles())
    data = bytearray(whole(0, 6))
    data[-1] ^= 1
    with pytest.raises(Damaged):
        log.mend(bytes(data))
    with pytest.raises(Damaged):
        log.mend(whole(0, 3) + whole(6, 9))
