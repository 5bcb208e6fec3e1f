"""Gives mapped pages back to the kernel.

Every page of the LMDB file that was read stays in this process's resident set, although the kernel holds it
in its page cache anyway and can drop it there at any time. Operators and memory limits judge by the resident
set, so above a bound the mapping lets go of its pages. This is harmless at any time: the map is shared and
read-only (LMDB writes with pwrite), a page that is needed again is found in the page cache or on disk.

Linux only: there is no /proc/self/maps elsewhere, and then nothing is done.
"""

import ctypes
import sys
from pathlib import Path
from typing import Final

from persistence import own_process
from persistence.own_process import PAGE_BYTES

LINUX = sys.platform == "linux"
MADV_DONTNEED: Final = 4
# The kernel maps about this much around a touched page, as far as it is in memory.
FAULT_BYTES: Final = 256 * 1024
# A kernel that keeps files in large folios maps a whole one.
FOLIO_BYTES: Final = 2 * 1024 * 1024

if LINUX:
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def resident_shared_bytes() -> int:
    """Resident pages of mapped files, all files together."""
    if not LINUX:
        return 0
    return own_process.resident_bytes()[1]


def mapped_ranges(path: Path) -> list[tuple[int, int, int]]:
    """Where this file is mapped, shared: first address, the one after the last, offset in the file."""
    if not LINUX:
        return []
    name = str(path.resolve())
    found = []
    for line in own_process.maps.read().decode(errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=5)
        # A private mapping would lose the bytes that were written to it.
        if len(fields) == 6 and fields[5] == name and fields[1].endswith("s"):
            start, stop = (int(number, 16) for number in fields[0].split("-"))
            found.append((start, stop, int(fields[2], 16)))
    return found


def drop_mapped_pages(path: Path) -> None:
    """Take the pages of this file out of the resident set."""
    if not LINUX:
        return
    size = (path.stat().st_size + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
    for start, stop, offset in mapped_ranges(path):
        # The map is far larger than the file; there is nothing after the file's end.
        length = min(stop - start, max(size - offset, 0))
        if length and _libc.madvise(start, length, MADV_DONTNEED) != 0:
            raise OSError(ctypes.get_errno(), "madvise", str(path))
