"""A start reads one small file about the sealed segments, and no index; whatever is wrong with that file."""

import copy
import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from persistence.streams import summaries
from persistence.streams.log import Segment, StreamLog
from persistence.streams.summaries import NAME, RECORD_BYTES, Summaries
from tests.persistence.streams.crashing import Crashed, CrashingFiles
from tests.persistence.streams.test_log import HERE, filled, opened, read_all, stored

SEALED = HERE / NAME


class Counting(CrashingFiles):
    """Notes which files are read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Path] = []

    def read(self, path: Path, position: int, size: int) -> bytes:
        self.reads.append(path)
        return super().read(path, position, size)


def paths(log: StreamLog, suffix: str) -> list[Path]:
    return [log.path(segment.where, suffix) for segment in log.segments]


def test_a_start_reads_no_index_of_a_sealed_segment() -> None:
    counts = []
    for count in (60, 180):
        files = Counting()
        log = filled(files, count)
        files.reads.clear()
        after, lost = opened(files, count)
        assert (after.segments, lost) == (log.segments, [])
        assert not set(files.reads) & {*paths(log, ".index")[:-1], *paths(log, ".segment")[:-1]}
        counts.append(len(files.reads))
    assert counts[0] == counts[1]


def test_a_directory_of_an_older_mqd_gets_the_file() -> None:
    files = Counting()
    log = filled(files)
    sealed = bytes(files.now[SEALED])
    files.remove(SEALED)
    assert opened(files, 60)[0].segments == log.segments
    assert bytes(files.now[SEALED]) == sealed
    files.reads.clear()
    assert opened(files, 60)[0].segments == log.segments
    assert paths(log, ".index")[0] not in files.reads


@pytest.mark.parametrize("how", ["cut", "flipped", "zeros", "longer"])
def test_a_torn_file_costs_a_look_at_indexes(how: str) -> None:
    whole = CrashingFiles()
    log = filled(whole)
    for at in range(len(whole.now[SEALED])):
        files = copy.deepcopy(whole)
        data = files.now[SEALED]
        if how == "cut":
            del data[at:]
        elif how == "flipped":
            data[at] ^= 1 << at % 8
        elif how == "zeros":
            data[at:] = bytes(len(data) - at)
        else:
            data += b"?" * (at % RECORD_BYTES)
        after, lost = opened(files, 60)
        assert (after.segments, lost) == (log.segments, [])
        # The start has added the missing records, where a later start finds them.
        known = Summaries(files, HERE).read()
        assert [known.get(segment.base) for segment in log.sealed] == list(log.sealed)


def test_a_file_that_is_older_than_the_segments() -> None:
    files = CrashingFiles()
    log = filled(files, 30)
    old = bytearray(files.now[SEALED])
    for base in range(30, 60, 3):
        log.append([stored(base, 3)])
    log.trim(2)
    files.now[SEALED] = old
    after, lost = opened(files, 60)
    assert (after.segments, lost) == (log.segments, [])


@pytest.mark.parametrize("field", ["stop", "size"])
def test_a_record_of_an_earlier_segment_of_that_name_is_not_believed(field: str) -> None:
    """An older mqd, which knows nothing of the file, has deleted the segment and filled it again."""
    files = CrashingFiles()
    log = filled(files)
    first = log.segments[0]
    Summaries(files, HERE).tidy(())
    known = Summaries(files, HERE)
    known.read()
    known.add([first._replace(**{field: getattr(first, field) + 3})])
    after, _ = opened(files, 60)
    assert after.segments == log.segments


def test_the_file_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "GONE_MAX", 5)
    files = CrashingFiles()
    log, _ = opened(files)
    for base in range(0, 900, 3):
        log.append([stored(base, 3)])
        if len(log.segments) > 4:
            log.trim(2)
        assert len(files.now.get(SEALED, b"")) <= (2 * 5 + 5 + 2) * RECORD_BYTES
    assert opened(files, 900)[0].segments == log.segments


def test_a_disk_that_refuses_the_file_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    files = CrashingFiles()
    write = files.write

    def refuse(path: Path, position: int, parts: list[bytes]) -> None:
        if path == SEALED:
            raise OSError(28, "no space left")
        write(path, position, parts)

    monkeypatch.setattr(files, "write", refuse)
    log = filled(files)
    assert opened(files, 60)[0].segments == log.segments
    assert SEALED not in files.now


@settings(max_examples=80)
@given(st.integers(0, 1 << 32))
@example(26_424_804)
def test_a_start_finds_with_the_file_what_it_finds_without(seed: int) -> None:
    """After kill -9 and power loss at any write, and after the log was deleted, and filled again with other
    sizes.
    """
    chance = random.Random(seed)
    files = CrashingFiles()
    files.random = chance
    log, _ = opened(files)
    stop = 0
    for _ in range(25):
        if chance.random() < 0.4:
            files.left = chance.randint(1, 12)
        try:
            for _ in range(chance.randint(0, 4)):
                count = chance.randint(1, 4)
                log.append([stored(log.stop, count, size=chance.choice((10, 10, 13)))])
            if len(log.segments) > 1 and chance.random() < 0.3:
                log.trim(chance.randint(1, len(log.segments) - 1))
            if chance.random() < 0.1:
                log.reset(chance.randint(0, 5))
                stop = log.stop
        except Crashed:
            if chance.random() < 0.5:
                files.crash()
        files.left = None
        stop = min(stop, log.stop)
        bare = copy.deepcopy(files)
        bare.now.pop(SEALED, None)
        without = StreamLog(bare, HERE, 400)
        without.open(stop, mendable=True)
        log = StreamLog(files, HERE, 400)
        log.open(stop, mendable=True)
        assert log.segments == without.segments
        stop = log.stop


# -- indexes are looked at later -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gone", "empty", "cut", "garbage"])
def test_the_first_look_makes_a_damaged_index_anew(how: str, caplog: pytest.LogCaptureFixture) -> None:
    files = Counting()
    log = filled(files)
    path, segment = paths(log, ".index")[2], log.segments[2]
    sound = bytes(files.now[path])
    if how == "gone":
        files.remove(path)
    else:
        files.now[path][:] = {"empty": b"", "cut": sound[:-5], "garbage": bytes(range(200))}[how]
    after, lost = opened(files, 60)
    assert (lost, after.segments) == ([], log.segments)
    assert bytes(files.now.get(path, b"")) != sound
    assert after.read(segment.stop - 1).batches[0].stop == segment.stop
    assert bytes(files.now[path]) == sound
    assert "was rebuilt" in caplog.text
    files.reads.clear()
    caplog.clear()
    assert after.find(segment.last_ms) == segment.stop - 3
    assert "was rebuilt" not in caplog.text


def test_an_index_is_not_made_anew_of_a_segment_that_goes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    files = CrashingFiles()
    log = filled(files)
    segment = log.segments[0]
    files.remove(log.path(segment.base, ".index"))
    heads = log.heads

    def trimmed(*given, **more):  # type: ignore[no-untyped-def]
        found = list(heads(*given, **more))
        log.trim(1)
        return iter(found)

    monkeypatch.setattr(log, "heads", trimmed)
    log.read(segment.stop - 1)
    assert not [path for path in files.now if path.name.startswith(f"{segment.base:020}")]


def test_neither_segment_nor_index_is_there() -> None:
    files = CrashingFiles()
    log = filled(files)
    segment: Segment = log.segments[2]
    log.remove(segment.where)
    for offset in (segment.base, segment.base + 1, segment.stop - 1):
        offsets, lost = read_all(log, offset)
        assert offsets == [*range(segment.stop, 60)]
        assert [(each.low, each.stop) for each in lost] == [(offset, segment.stop)]
    assert log.find(segment.last_ms) == segment.base
    assert log.time_of(segment.stop - 1) == segment.first_ms
    raw = log.read_raw(segment.base + 1).lost
    assert raw is not None and raw.stop == segment.stop
