"""Compaction or retention removes a segment while another thread reads it: that is no damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from persistence.streams.log import StreamLog, heads_of
from tests.persistence.streams.crashing import CrashingFiles
from tests.persistence.streams.test_compaction import compact, fill, opened

#: Keys of one in five messages are not seen again.
MESSAGES = [("abcde"[number % 5], b"%03d" % number) for number in range(60)]
READS = range(12)


class GoingFiles(CrashingFiles):
    """Calls something before one of the reads of segments."""

    def __init__(self) -> None:
        super().__init__()
        self.reads_left = -1
        self.happens: Callable[[], None] = lambda: None

    def read(self, path: Path, position: int, size: int) -> bytes:
        if path.suffix == ".segment":
            self.reads_left -= 1
            if self.reads_left == -1:
                self.happens()
        return super().read(path, position, size)


def going(reads: int, happens: Callable[[StreamLog], None]) -> StreamLog:
    """Return a log to whose segments something happens before this many reads of them are done."""
    files = GoingFiles()
    log = opened(files)
    fill(log, MESSAGES)
    assert len(log.segments) > 5
    files.happens = lambda: happens(log)
    files.reads_left = reads
    return log


def trim(log: StreamLog) -> None:
    log.trim(2)


def disappear(log: StreamLog) -> None:
    """The disk has lost a segment."""
    log.files.remove(log.path(log.segments[1].base, ".segment"))


@pytest.mark.parametrize("reads", READS)
def test_another_node_reads_what_is_compacted_meanwhile(reads: int) -> None:
    log = going(reads, compact)
    offset = log.segments[1].base + 1
    raw = log.read_raw(offset)
    assert raw.lost is None
    heads = [head for _, head in heads_of(raw.data)]
    assert heads[0].base <= offset < heads[0].stop and raw.stop == heads[-1].stop


@pytest.mark.parametrize("reads", READS)
def test_another_node_reads_what_is_trimmed_meanwhile(reads: int) -> None:
    log = going(reads, trim)
    offset = log.segments[1].base
    raw = log.read_raw(offset)
    # Messages before the first segment are gone; see StreamMemberHost.
    assert raw.lost is None or raw.lost.stop == log.segments[0].base == log.first_kept
    assert raw.data or raw.lost is not None


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("happens", [compact, trim])
def test_a_time_is_looked_up_meanwhile(reads: int, happens: Callable[[StreamLog], None]) -> None:
    log = going(reads, happens)
    wanted = log.segments[1].base + 3
    found = log.find(wanted * 1000)
    first = log.segments[0].base
    # A compacted segment has larger batches: the result may begin earlier.
    assert found in (wanted, first) or log.segments[0].stem and found <= wanted


@pytest.mark.parametrize("reads", READS)
def test_the_end_is_looked_up_meanwhile(reads: int) -> None:
    log = going(reads, lambda log: log.trim(len(log.segments)))
    assert log.last() in (57, 60)


def test_a_segment_that_is_missing_is_told_to_another_node() -> None:
    log = going(-1, disappear)
    disappear(log)
    segment = log.segments[1]
    raw = log.read_raw(segment.base)
    assert raw.lost is not None and (raw.lost.low, raw.lost.stop) == (segment.base, segment.stop)


def test_a_time_in_a_segment_that_is_missing_is_where_that_begins() -> None:
    """A reader that begins there finds the damage, and has it mended."""
    log = going(-1, disappear)
    disappear(log)
    segment = log.segments[1]
    assert log.find((segment.base + 3) * 1000) == segment.base
    assert log.read(segment.base).lost
