"""The file system as a stream's log uses it. A thread makes the calls; a test replaces it by a disk that
fails.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

#: No link is followed, and no FIFO waited for.
_OWN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
#: Maximum number of buffers that the kernel takes in one call.
PARTS_MAX = 512
#: The unit in which a disk can or cannot read.
SECTOR_BYTES = 4096


class Files(Protocol):
    """All methods raise OSError."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory; none if the directory does not exist."""

    def make(self, directory: Path) -> None:
        """Create a directory durably."""

    def size(self, path: Path) -> int: ...

    def read(self, path: Path, position: int, size: int) -> bytes:
        """Return fewer bytes only at the end of the file.

        Bytes that the disk cannot read are zeros: checksums show that.
        """

    def write(self, path: Path, position: int, parts: Sequence[bytes]) -> None:
        """Write; create the file if it is missing."""

    def sync(self, path: Path) -> None:
        """Sync the file's bytes."""

    def sync_names(self, directory: Path) -> None:
        """Sync the creation and removal of files in this directory."""

    def cut(self, path: Path, size: int) -> None: ...

    def rename(self, path: Path, name: str) -> None:
        """Rename a synced file within its directory; it replaces a file of that name."""

    def remove(self, path: Path) -> None:
        """Remove a file. A missing file is no error."""

    def remove_all(self, directory: Path) -> None: ...


class DiskFiles:
    """The real ones."""

    def names(self, directory: Path) -> list[str]:
        try:
            return os.listdir(directory)
        except FileNotFoundError:
            return []

    def make(self, directory: Path) -> None:
        if not directory.is_dir():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.sync_names(directory.parent)

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def read(self, path: Path, position: int, size: int) -> bytes:
        file = os.open(path, os.O_RDONLY | _OWN)
        try:
            return _read(file, position, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return _readable(file, position, size)
        finally:
            os.close(file)

    def write(self, path: Path, position: int, parts: Sequence[bytes]) -> None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | _OWN, 0o600)
        try:
            for start in range(0, len(parts), PARTS_MAX):
                some = parts[start : start + PARTS_MAX]
                size = sum(map(len, some))
                done = os.pwritev(file, some, position)
                position += done
                if done < size:
                    rest = memoryview(b"".join(some))[done:]
                    while rest:
                        done = os.pwrite(file, rest, position)
                        position += done
                        rest = rest[done:]
        finally:
            os.close(file)

    def sync(self, path: Path) -> None:
        file = os.open(path, os.O_RDWR | _OWN)
        try:
            os.fdatasync(file)
        finally:
            os.close(file)

    def sync_names(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def cut(self, path: Path, size: int) -> None:
        os.truncate(path, size)

    def rename(self, path: Path, name: str) -> None:
        path.replace(path.parent / name)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_all(self, directory: Path) -> None:
        if directory.exists():
            shutil.rmtree(directory)
            self.sync_names(directory.parent)


def _read(file: int, position: int, size: int) -> bytes:
    data = os.pread(file, size, position)
    if len(data) == size or not data:
        return data
    parts = [data]
    while data and (size := size - len(data)):
        position += len(data)
        data = os.pread(file, size, position)
        parts.append(data)
    return b"".join(parts)


def _readable(file: int, position: int, size: int) -> bytes:
    """Read, sector by sector, all sectors that the disk can read. Raises OSError if it can read nothing else
    of the file either: then perhaps the whole disk is gone, not only this data.
    """
    total = os.fstat(file).st_size
    end = min(position + size, total)
    parts: list[bytes] = []
    readable = False
    while position < end:
        count = min(SECTOR_BYTES - position % SECTOR_BYTES, end - position)
        found = _sector(file, position, count)
        readable = readable or found is not None
        parts.append(bytes(count) if found is None else found)
        position += count
    others = (end - size - SECTOR_BYTES, end, 0, total - 1)
    if not readable and all(_sector(file, at, 1) is None for at in others if 0 <= at < total):
        raise OSError(errno.EIO, "nothing of it can be read")
    return b"".join(parts)


def _sector(file: int, position: int, size: int) -> bytes | None:
    """Return the bytes of a sector; None if the disk cannot read it."""
    try:
        return os.pread(file, size, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None
