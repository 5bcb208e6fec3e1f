"""Reads pages that are not in memory in a thread, before LMDB reads them on the loop's thread.

LMDB reads through a map of its file: if a page is not in the page cache, the thread that touches it stands
still until the disk has delivered it, and on the loop's thread the whole node does. So `warm` first checks
(mincore) whether all pages of some keys are in memory. If not, a thread reads them once, with pread, and
discards the bytes: then they are in the page cache, and LMDB finds them there.

Each store has one thread, which does one job after the other, and one buffer: memory does not grow with the
requests. A commit uses its own thread (`ahead`), so that it does not wait for the read-ahead of queues.
"""

import ctypes
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio
from outcome import Outcome

from persistence.loop_calls import to_this_loop
from persistence.own_process import PAGE_BYTES
from persistence.pages.page_release import LINUX, mapped_ranges
from persistence.pages.pages import DAMAGES, KeyRange, Others, Read, Span, pieces, to_delete, value_spans
from persistence.worker import Worker

#: Bytes that the thread reads at once.
READ_BYTES = 256 * 1024
#: Pages of keys that are located at a time, ahead of deletions.
LEAVES_AHEAD = 8
#: A call of `ahead` takes as long as a write of so many bytes does.
AHEAD_BYTES = 24 * 1024
#: Bytes checked by one call of mincore.
LOOK_BYTES = 4 * 1024 * 1024

if LINUX:
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


class Ahead:
    """The next keys of a walk."""

    __slots__ = ("job", "last")

    def __init__(self, last: bytes | None = None) -> None:
        #: The last located key; None if all were located.
        self.last = last
        #: Reads them from disk and sets `last`; for a thread. None if they are in memory.
        self.job: Callable[[], None] | None = None


class _Cold(Exception):
    """A page is not in memory."""


class PageReader:
    """All calls on the loop's thread. Unless `run` runs, everything counts as being in memory."""

    def __init__(self, data_file: Path) -> None:
        self._data_file = data_file
        self._file = os.open(data_file, os.O_RDONLY | os.O_CLOEXEC)
        #: Address of LMDB's map of the file. If it is unknown, every page may be cold.
        self._address = self._mapped_bytes = 0
        self._pages = ctypes.create_string_buffer(LOOK_BYTES // PAGE_BYTES)
        self._buffer = bytearray(READ_BYTES)
        self._worker: Worker[None] | None = None
        #: Jobs that wait for the thread, and callbacks to call.
        self._waiting: deque[Callable[[], None]] = deque()
        self._given: deque[Callable[[], None]] = deque()
        self._called = trio.Event()
        self.find_map()

    async def run(self, in_turn: Callable[..., None]) -> None:
        """Call the callbacks, each in a turn of the node, until cancelled. Exceptions of a turn are raised
        here.
        """
        worker = self._worker = Worker(["pages"], to_this_loop(), self._done)
        try:
            while True:
                await self._called.wait()
                self._called = trio.Event()
                while self._given:
                    in_turn(self._given.popleft())
        finally:
            self._worker = None
            self._waiting.clear()
            worker.stop()

    def close(self) -> None:
        # The thread may still read from a file that gets this number, but discards the bytes.
        os.close(self._file)

    def find_map(self) -> None:
        """LMDB has mapped the file again: find the address."""
        self._address = self._mapped_bytes = 0
        for start, stop, offset in mapped_ranges(self._data_file):
            if offset == 0:
                self._address, self._mapped_bytes = start, stop - start

    def warm(self, ranges: list[KeyRange], done: Callable[[], None]) -> bool:
        """True if these keys can be read without a wait for the disk. If not, `done` is called in a turn when
        they can.

        Data that waits for the next commit is in memory, and not located.
        """
        if self._worker is None or self._at_hand(ranges):
            return True
        file = self._file
        self._waiting.append(done)
        self._worker.give(lambda: self._touch(file, ranges))
        return False

    def ahead(self, keys: KeyRange, others: Others) -> Ahead:
        """Check whether the first of these keys can be deleted without a wait for the disk."""
        try:
            last, spans = to_delete(self._read_resident, keys, others, LEAVES_AHEAD)
        except _Cold:
            pass
        except (OSError, *DAMAGES):
            # The later read through LMDB reports the error.
            return Ahead()
        else:
            if all(self._resident(*span) for span in pieces(spans, LOOK_BYTES)):
                return Ahead(last)
        ahead = Ahead()
        ahead.job = partial(self._touch_first, ahead, keys, others)
        return ahead

    def _at_hand(self, ranges: list[KeyRange]) -> bool:
        try:
            spans = value_spans(self._read_resident, ranges)
        except _Cold:
            return False
        except (OSError, *DAMAGES):
            # The later read through LMDB reports the error.
            return True
        return all(self._resident(*span) for span in pieces(spans, LOOK_BYTES))

    def _read_resident(self, offset: int, size: int) -> bytes:
        if not self._resident(offset, size):
            raise _Cold
        return os.pread(self._file, size, offset)

    def _resident(self, offset: int, size: int) -> bool:
        if offset + size > self._mapped_bytes:
            return False
        pages = -(-size // PAGE_BYTES)
        if _libc.mincore(self._address + offset, size, self._pages) != 0:
            return False
        return b"\0" not in self._pages.raw[:pages]

    def _touch(self, file: int, ranges: list[KeyRange]) -> None:
        """Read these pages from disk. Runs in the thread; of the loop's objects it only uses the buffer."""
        try:
            _read(file, value_spans(_reading(file), ranges), self._buffer)
        except (OSError, *DAMAGES):
            # As above.
            return

    def _touch_first(self, ahead: Ahead, keys: KeyRange, others: Others) -> None:
        """The same for the first of these keys, in another thread."""
        with suppress(OSError, *DAMAGES):
            ahead.last, spans = to_delete(_reading(self._file), keys, others, LEAVES_AHEAD)
            _read(self._file, spans, bytearray(READ_BYTES))

    def _done(self, outcome: Outcome[None]) -> None:
        """Called by the loop: must not raise."""
        if self._waiting:
            self._given.append(self._waiting.popleft())
            self._called.set()


def _reading(file: int) -> Read:
    return lambda offset, size: os.pread(file, size, offset)


def _read(file: int, spans: list[Span], into: bytearray) -> None:
    """Read these pages from disk."""
    for offset, size in spans:
        # Announce all of them at once, so that the disk may choose the order.
        os.posix_fadvise(file, offset, size, os.POSIX_FADV_WILLNEED)
    with memoryview(into) as buffer:
        for offset, size in pieces(spans, READ_BYTES):
            os.preadv(file, [buffer[:size]], offset)
