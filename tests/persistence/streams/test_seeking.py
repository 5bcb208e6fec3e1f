"""A seek waits for a cold disk twice at most: for one index, and for a part of one segment. Its result is
exact.
"""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.streams import index
from persistence.streams.log import StreamLog
from tests.persistence.streams.crashing import CrashingFiles
from tests.persistence.streams.test_log import HERE, opened, stored

PAGE = 4096


class Cold(CrashingFiles):
    """A disk that counts reads, except those of data that was read already: the kernel keeps that."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        self.known: set[tuple[Path, int]] = set()
        self.waits: list[tuple[Path, int]] = []

    def read(self, path: Path, position: int, size: int) -> bytes:
        data = super().read(path, position, size)
        pages = {
            (path, page) for page in range(position // PAGE, (position + max(len(data), 1) - 1) // PAGE + 1)
        }
        if pages - self.known:
            self.waits.append((path, len(data)))
            self.known |= pages
        return data


def seeks_wait(log: StreamLog, files: Cold, count: int, largest: int) -> None:
    chance = random.Random(7)
    stop, first_ms, last_ms = log.stop, log.segments[0].first_ms, log.segments[-1].last_ms
    for _ in range(count):
        files.forget()
        offset = chance.randrange(stop)
        batch = log.read(offset).batches[0]
        assert batch.base <= offset < batch.stop
        assert len(files.waits) <= 2 and max(size for _, size in files.waits) <= largest, files.waits
        files.forget()
        time_ms = chance.randint(first_ms, last_ms)
        batch = log.read(log.find(time_ms)).batches[0]
        assert batch.time_ms >= time_ms
        assert len(files.waits) <= 2 and max(size for _, size in files.waits) <= largest, files.waits


@pytest.mark.parametrize("size", [300, 3_000, 20_000, 87_000])
def test_a_seek_waits_for_one_index_and_one_part_of_a_segment(size: int) -> None:
    """Batches of 900 bytes to 261 KB."""
    files = Cold()
    log, _ = opened(files, segment_bytes=3_000_000)
    for base in range(0, min(20_000_000 // size, 4_000), 3):
        log.append([stored(base, 3, size=size)])
    assert len(log.segments) > 2 or size == 300
    seeks_wait(log, files, 100, 3 * 256 * 1024)


def test_batches_of_all_sizes() -> None:
    files = Cold()
    log, _ = opened(files, segment_bytes=3_000_000)
    chance = random.Random(1)
    while log.stop < 2_000:
        log.append([stored(log.stop, chance.randint(1, 9), size=chance.choice((50, 500, 5_000, 25_000)))])
    seeks_wait(log, files, 200, 3 * 256 * 1024)


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.sampled_from([1, 150, 300, 1_000]))
def test_every_offset_and_every_time_is_found(seed: int, spacing: int) -> None:
    """Whichever batches the index points at, and also where some of its entries are damaged."""
    chance = random.Random(seed)
    files = CrashingFiles()
    log, _ = opened(files, segment_bytes=1_500)
    batches: list[tuple[int, int, int]] = []
    time_ms = 100
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "SPACING_BYTES", spacing)
        for _ in range(40):
            count = chance.randint(1, 4)
            batches.append((log.stop, log.stop + count, time_ms))
            log.append([stored(log.stop, count, time_ms, size=chance.choice((5, 30, 90)))])
            time_ms += chance.choice((0, 1, 5))
        if chance.random() < 0.5:
            for segment in log.segments:
                data = files.now[HERE / f"{segment.base:020}.index"]
                if len(data) > 2 * index.ENTRY_BYTES:
                    data[chance.randrange(index.ENTRY_BYTES, len(data) - index.ENTRY_BYTES)] ^= 1
        for low, stop, _ in batches:
            for offset in range(low, stop):
                assert log.read(offset).batches[0].base == low
        for wanted in range(99, time_ms + 2):
            later = [low for low, _, at in batches if at >= wanted]
            assert log.find(wanted) == (later[0] if later else log.stop)
