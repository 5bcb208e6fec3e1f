"""A sector that the disk cannot read is zeros to the reader of a file, unless the whole disk may be gone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from persistence.streams.files import SECTOR_BYTES, DiskFiles
from persistence.streams.log import StreamLog
from tests.persistence.streams.test_log import read_all, stored

SIZE = 10 * SECTOR_BYTES + 100
CONTENT = bytes(range(1, 256)) * (SIZE // 255 + 1)


class BadSectors:
    """The disk cannot read these sectors of these files, or of any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sectors: set[int] = set()
        self.files: set[int] = set()
        self._pread = os.pread
        monkeypatch.setattr(os, "pread", self.pread)

    def pread(self, file: int, size: int, position: int) -> bytes:
        about = os.fstat(file)
        if self.files and about.st_ino not in self.files:
            return self._pread(file, size, position)
        for sector in range(position // SECTOR_BYTES, -(-(position + size) // SECTOR_BYTES)):
            if sector in self.sectors and sector * SECTOR_BYTES < about.st_size:
                # As in the kernel: the bytes before the sector are read, and the next read of the sector
                # fails.
                size = sector * SECTOR_BYTES - position
                if size <= 0:
                    raise OSError(errno.EIO, "for the test")
                break
        return self._pread(file, size, position)


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> BadSectors:
    return BadSectors(monkeypatch)


@pytest.mark.parametrize("sectors", [{0}, {3}, {3, 4, 7}, {10}, set(range(1, 11)), set(range(10))])
def test_the_rest_is_read(tmp_path: Path, bad: BadSectors, sectors: set[int]) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT[:SIZE])
    expected = bytearray(CONTENT[:SIZE])
    bad.sectors = sectors
    for sector in sectors:
        start = sector * SECTOR_BYTES
        expected[start : start + SECTOR_BYTES] = bytes(len(expected[start : start + SECTOR_BYTES]))
    files = DiskFiles()
    for position, size in (
        (0, SIZE),
        (0, 10 * SIZE),
        (5, 1),
        (3 * SECTOR_BYTES + 7, 48),
        (SECTOR_BYTES - 1, 8200),
    ):
        assert files.read(path, position, size) == bytes(expected[position : position + size]), (
            position,
            size,
        )
    assert files.read(path, SIZE, 10) == b""


def test_a_disk_that_reads_nothing_has_failed(tmp_path: Path, bad: BadSectors) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT[:SIZE])
    bad.sectors = set(range(11))
    for position, size in ((0, SIZE), (5, 1), (3 * SECTOR_BYTES, 10)):
        with pytest.raises(OSError, match="nothing of it can be read"):
            DiskFiles().read(path, position, size)


def test_a_stream_is_read_around_a_bad_sector(tmp_path: Path, bad: BadSectors) -> None:
    """The log reports the damage, and the data can be put back."""
    log = StreamLog(DiskFiles(), tmp_path, 1 << 30)
    log.open(0)
    parts = [stored(base, 3, size=400) for base in range(0, 90, 3)]
    log.append(parts)
    bad.sectors = {4}
    offsets, lost = read_all(log)
    missed = sorted(set(range(90)) - set(offsets))
    assert missed and {offset for each in lost for offset in range(each.low, each.stop)} == set(missed)
    again = StreamLog(DiskFiles(), tmp_path, 1 << 30)
    again.open(90, mendable=True)
    assert sorted(set(range(90)) - set(read_all(again)[0])) == missed
    damaged = [each for each in parts if missed[0] <= each.base <= missed[-1]]
    bad.sectors = set()
    again.mend(b"".join(part for each in damaged for part in each.parts))
    assert read_all(again) == (list(range(90)), [])


def test_notes_on_a_bad_sector_are_made_anew(tmp_path: Path, bad: BadSectors) -> None:
    log = StreamLog(DiskFiles(), tmp_path, 400)
    log.open(0)
    for base in range(0, 60, 3):
        log.append([stored(base, 3)])
    log.trim(2)
    bad.files = {(tmp_path / name).stat().st_ino for name in ("first", "sealed")}
    bad.sectors = {0}
    again = StreamLog(DiskFiles(), tmp_path, 400)
    assert again.open(60) == []
    assert read_all(again) == (list(range(log.segments[0].base, 60)), [])
