"""An object store that is a directory, such as a mounted one.

Each object is a file of its own. It gets its name after its bytes are synced, so it is there whole or not at
all, after a crash as well.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Final

from persistence.streams.files import DiskFiles
from persistence.streams.remote.objects import Absent, Found, Unavailable

#: Extension of an object that is being written.
PARTIAL: Final = ".partial"


class FileObjects:
    """See Objects."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = DiskFiles()

    def put(self, key: str, parts: Iterator[bytes], size: int | None) -> None:
        path = self._directory / key
        partial = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}{PARTIAL}")
        try:
            self._make(path.parent)
            self._files.remove(partial)
            position = 0
            for part in parts:
                self._files.write(partial, position, [part])
                position += len(part)
            self._files.sync(partial)
            self._files.rename(partial, path.name)
            self._files.sync_names(path.parent)
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror or error}") from error

    def _make(self, directory: Path) -> None:
        """Create a directory and those above it, durably."""
        if not directory.is_dir():
            self._make(directory.parent)
            self._files.make(directory)

    def read(self, key: str, position: int, size: int) -> bytes:
        path = self._directory / key
        try:
            return self._files.read(path, position, size)
        except FileNotFoundError:
            raise Absent(f"{path} is missing") from None
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror or error}") from error

    def size(self, key: str) -> int | None:
        try:
            return self._files.size(self._directory / key)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{self._directory / key}: {error.strerror or error}") from error

    def delete(self, keys: Sequence[str]) -> None:
        try:
            for key in keys:
                path = self._directory / key
                self._files.remove(path)
                if not self._files.names(path.parent) and path.parent != self._directory:
                    # A stream that has no object needs no directory. Another thread may have removed it.
                    with suppress(FileNotFoundError):
                        path.parent.rmdir()
        except OSError as error:
            raise Unavailable(f"{self._directory}: {error.strerror or error}") from error

    def found(self, prefix: str) -> Iterator[Found]:
        directory = self._directory / prefix
        try:
            if not directory.exists():
                return
            for path in sorted(directory.rglob("*")):
                size = _size(path)
                if size is not None:
                    yield Found(path.relative_to(self._directory).as_posix(), size)
        except OSError as error:
            raise Unavailable(f"{directory}: {error.strerror or error}") from error


def _size(path: Path) -> int | None:
    """Return the size of a file; None for a directory, and for a file that another thread has deleted."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_size if S_ISREG(status.st_mode) else None


__all__ = ["FileObjects"]
