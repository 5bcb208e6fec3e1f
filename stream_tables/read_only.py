"""The files of a broker's segments, for another process: it must not change them."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from persistence.streams.files import DiskFiles


class ReadOnlyFiles:
    """See persistence.streams.files.Files. Whatever would change something raises OSError."""

    def __init__(self) -> None:
        self._files = DiskFiles()

    def names(self, directory: Path) -> list[str]:
        return self._files.names(directory)

    def size(self, path: Path) -> int:
        return self._files.size(path)

    def read(self, path: Path, position: int, size: int) -> bytes:
        return self._files.read(path, position, size)

    def make(self, directory: Path) -> None:
        raise _refused(directory)

    def write(self, path: Path, position: int, parts: Sequence[bytes]) -> None:
        raise _refused(path)

    def sync(self, path: Path) -> None:
        raise _refused(path)

    def sync_names(self, directory: Path) -> None:
        raise _refused(directory)

    def cut(self, path: Path, size: int) -> None:
        raise _refused(path)

    def rename(self, path: Path, name: str) -> None:
        raise _refused(path)

    def remove(self, path: Path) -> None:
        raise _refused(path)

    def remove_all(self, directory: Path) -> None:
        raise _refused(directory)


def _refused(path: Path) -> OSError:
    return OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


__all__ = ["ReadOnlyFiles"]
