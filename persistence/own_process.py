"""What /proc says about this process.

The node reads these files again and again, so they stay open: when its descriptors are used up, it could not
open them.
"""

from __future__ import annotations

import errno
import os
import resource
from typing import Final

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Stands for a limit of open files that there is none of.
UNLIMITED: Final = 1 << 30
#: Errors of calls that open something while the process, or the machine, has no descriptor or memory for it:
#: later they may succeed.
SHORT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_READ_BYTES: Final = 1 << 16


class ProcFile:
    """A file of /proc, opened when it is read first."""

    __slots__ = ("_file", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = -1

    def read(self) -> bytes:
        """Return its present content. Raises OSError."""
        if self._file < 0:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        parts, size = [], 0
        while part := os.pread(self._file, _READ_BYTES, size):
            parts.append(part)
            size += len(part)
        return b"".join(parts)


_statm = ProcFile("/proc/self/statm")
#: The mappings of this process.
maps = ProcFile("/proc/self/maps")


def resident_bytes() -> tuple[int, int]:
    """Return the resident memory of the process, and the share of mapped files in it. Raises OSError."""
    _, resident, shared, *_ = _statm.read().split()
    return int(resident) * PAGE_BYTES, int(shared) * PAGE_BYTES


def files_limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def open_files() -> int:
    """Return how many descriptors are in use; the limit if there is none left to count them with."""
    try:
        # Linux 6.2 and later say it without a list.
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return files_limit()
