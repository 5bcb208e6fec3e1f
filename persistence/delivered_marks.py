"""The last delivered message of each queue, in a mapped file.

A message that was delivered and not acked must come back flagged redelivered, even after kill -9, and a
commit for each delivery would cost far too much. A store into a shared mapping survives the process at once,
without a system call. Only a crash of the machine can lose the marks of the last second; then a flag may be
missing, never a message.

A slot is 8 aligned bytes, little-endian: 0 free, 1 taken and nothing marked, otherwise the sequence number
plus 2.
"""

import mmap
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

SLOT = struct.Struct("<Q")
GROW_SLOTS = 512
TAKEN = 1
FIRST = 2
NOTHING = -1


class DeliveredMarks:
    """Slots are numbered from 0; the caller remembers the slot of each queue."""

    def __init__(self, path: str | os.PathLike[str], *, sync: Callable[[int], None] = os.fsync) -> None:
        """`sync` syncs a file, including stores through its mapping, and releases the interpreter's lock.

        `mmap.flush` keeps that lock while it waits for the disk: a stalled disk would stop the loop as well.
        """
        self._sync = sync
        #: True if some marks may not be on disk yet.
        self.changed = True
        self._file = os.open(Path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        size = os.fstat(self._file).st_size
        slots = max(-(-size // SLOT.size), GROW_SLOTS)
        self._allot(slots)
        self._map = mmap.mmap(self._file, slots * SLOT.size)
        self._free = [slot for slot in range(slots - 1, -1, -1) if not self._value(slot)]

    def close(self) -> None:
        self._sync(self._file)
        self._map.close()
        os.close(self._file)

    def mark(self, slot: int, seq: int) -> None:
        """Note that all messages up to `seq` were delivered at least once."""
        SLOT.pack_into(self._map, slot * 8, seq + FIRST)
        self.changed = True

    def get(self, slot: int) -> int:
        """The last mark, or -1."""
        return max(self._value(slot) - FIRST, NOTHING)

    def allocate(self) -> int:
        if not self._free:
            self._grow()
        slot = self._free.pop()
        SLOT.pack_into(self._map, slot * SLOT.size, TAKEN)
        self.changed = True
        return slot

    def free(self, slot: int) -> None:
        if self._value(slot):
            SLOT.pack_into(self._map, slot * SLOT.size, 0)
            self._free.append(slot)
            self.changed = True

    def retain(self, slots: Iterable[int]) -> None:
        """After a restart: keep these slots, which queues use, and free all others."""
        self.changed = True
        keep = set(slots)
        while keep and max(keep) >= self._slots():
            self._grow()
        self._free = []
        for slot in range(self._slots() - 1, -1, -1):
            if slot not in keep:
                SLOT.pack_into(self._map, slot * SLOT.size, 0)
                self._free.append(slot)
            elif not self._value(slot):
                SLOT.pack_into(self._map, slot * SLOT.size, TAKEN)

    def flush(self) -> None:
        """Write to disk, in case the machine fails. Runs in a thread; the next call writes later changes."""
        self.changed = False
        self._sync(self._file)

    def _value(self, slot: int) -> int:
        value: int = SLOT.unpack_from(self._map, slot * SLOT.size)[0]
        return value

    def _slots(self) -> int:
        return len(self._map) // SLOT.size

    def _grow(self) -> None:
        slots = self._slots()
        more = max(slots, GROW_SLOTS)
        self._allot(slots + more)
        grown = mmap.mmap(self._file, (slots + more) * SLOT.size)
        self._map.close()
        self._map = grown
        self._free[:0] = range(slots + more - 1, slots - 1, -1)

    def _allot(self, slots: int) -> None:
        # A store into a hole of the file on a full disk would kill the process (SIGBUS), so the blocks are
        # taken now.
        os.posix_fallocate(self._file, 0, slots * SLOT.size)
