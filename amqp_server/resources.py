"""Watches memory and disk, and raises the alarms."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Protocol

import trio

from amqp_server.broker.alarms import Alarms
from amqp_server.config import Config
from amqp_server.descriptors import Descriptors
from persistence import own_process

INTERVAL_S = 0.5
#: Above the share NEAR_SHARE of the limit, memory is checked PARTS times more often, because it may run out
#: between two looks.
PARTS, NEAR_SHARE = 10, 1 / 3
#: Free heap goes back to the kernel when memory has changed by this much since the last time and has stopped
#: growing.
TRIM_STEP_BYTES = 32 << 20
#: Growth between two looks that is ignored, bytes.
TRIM_NOISE_BYTES = 1 << 20
#: Interval between two returns of heap, s. It gets longer while a load takes the returned memory again at
#: once.
TRIM_WAIT_S, TRIM_WAIT_MAX_S = 5.0, 80.0
#: Minimum interval between two looks into the heap, in s and as a multiple of the duration of a look: with
#: very many holes a look takes about 10 ms, during which no other thread gets memory.
LOOK_WAIT_S, LOOK_SHARE = 5.0, 1000
#: Above the memory limit the garbage collector looks at all objects, once in this interval, s: that takes up
#: to a second.
COLLECT_EVERY_S = 600


class OtherProcesses(Protocol):
    """The other processes of this node. See workers.worker."""

    def note_memory(self, size: int) -> int:
        """Note the memory of this process; return that of all others, bytes."""


class ResourceWatch:
    """Compares the memory, disk and descriptors of the process with its limits twice a second."""

    def __init__(
        self,
        config: Config,
        alarms: Alarms,
        directory: Path,
        reusable_bytes: Callable[[], int] = lambda: 0,
        descriptors: Descriptors | None = None,
        others: OtherProcesses | None = None,
    ) -> None:
        """`others` are the other processes of the node, if it has several: memory is one limit for all."""
        self._alarms = alarms
        self._descriptors = descriptors
        self._others = others
        #: Memory of the node's other processes at the last look.
        self.others_memory_bytes = 0
        #: Free space within the store's files, which the file system counts as used.
        self._reusable_bytes = reusable_bytes
        self._directory = directory
        self.memory_limit_bytes = config.memory_limit_bytes
        self.disk_free_min_bytes = config.disk_free_min_bytes
        self.memory_bytes = self.disk_free_bytes = 0
        self._heap = Heap(private_memory_bytes(), used_heap()[0])
        self._collected_at = -inf
        self.look()

    async def run(self) -> None:
        while True:
            await self._pause()
            memory = private_memory_bytes()
            trim = memory + self.others_memory_bytes > self.memory_limit_bytes or await self._is_due(memory)
            if trim:
                # Takes about 10 ms if there is much to give back.
                memory, used = await trio.to_thread.run_sync(left_after_giving_back)
                self._heap.given_back(memory, used, trio.current_time())
            self.look(trimmed=trim)
            if self._descriptors is not None:
                self._descriptors.look()

    async def _is_due(self, memory_bytes: int) -> bool:
        """True if free heap should be given back now."""
        heap = self._heap
        if heap.due(memory_bytes, trio.current_time()):
            return True
        if not heap.wants_a_look(memory_bytes, trio.current_time()):
            return False
        used, seconds = await trio.to_thread.run_sync(used_heap)
        return heap.looked(private_memory_bytes(), used, seconds, trio.current_time())

    async def _pause(self) -> None:
        """Wait until the next look is due: sooner when memory has run out. A
        client may send a GB a second.
        """
        limit = self.memory_limit_bytes - self.others_memory_bytes
        if not NEAR_SHARE * limit < self.memory_bytes <= limit:
            await trio.sleep(INTERVAL_S)
            return
        for _ in range(PARTS):
            await trio.sleep(INTERVAL_S / PARTS)
            if private_memory_bytes() > limit:
                return

    def look(self, *, trimmed: bool = False) -> None:
        """Measure, and raise or clear the alarms."""
        self.memory_bytes = private_memory_bytes()
        if self._others is not None:
            self.others_memory_bytes = self._others.note_memory(self.memory_bytes)
        others = self.others_memory_bytes
        if self.memory_bytes + others > self.memory_limit_bytes and (self._collect() or not trimmed):
            # First free holes in the heap and old garbage: they are no reason for an alarm.
            give_back()
            self.memory_bytes = private_memory_bytes()
        space = os.statvfs(self._directory)
        self.disk_free_bytes = space.f_bavail * space.f_frsize + self._reusable_bytes()
        used, limit = self.memory_bytes + others, self.memory_limit_bytes
        self._alarms.set("memory", used > limit, f"{used} bytes used, limit {limit} (memory_limit)")
        free, least = self.disk_free_bytes, self.disk_free_min_bytes
        self._alarms.set(
            "disk space", free < least, f"{free} bytes free, limit {least} (disk_free_min_bytes)"
        )

    def _collect(self) -> bool:
        """Collect old garbage before publishers are blocked; return False if that was done recently."""
        now = time.monotonic()
        if now - self._collected_at < COLLECT_EVERY_S:
            return False
        self._collected_at = now
        gc.collect()
        return True

    def set_memory_limit(self, limit_bytes: int) -> None:
        """Change the limit while the node runs."""
        self.memory_limit_bytes = limit_bytes
        self.look()


class Heap:
    """Decides when free heap goes back to the kernel. The C library keeps all free memory below any block in
    use: after some large messages that may be hundreds of MiB, which an idle broker would keep for ever.
    """

    def __init__(self, memory_bytes: int, used_bytes: int) -> None:
        """`memory_bytes` is the memory at the start of the process, `used_bytes` the used heap in it."""
        self._last_bytes = memory_bytes
        #: Memory after heap was last given back, or the minimum since then.
        self._floor_bytes = memory_bytes
        #: The maximum of used heap since then: memory freed since leaves holes.
        self._peak_bytes = memory_bytes
        #: The minimum of resident unused memory since then, bytes: pages that cannot be given back.
        self._unused_bytes = max(0, memory_bytes - used_bytes)
        self._next_s = self._look_s = -inf
        self._wait_s = TRIM_WAIT_S

    def due(self, memory_bytes: int, now_s: float) -> bool:
        """True if heap should be given back now. Call this at regular intervals."""
        grows = memory_bytes > self._last_bytes + TRIM_NOISE_BYTES
        self._last_bytes = memory_bytes
        self._floor_bytes = min(self._floor_bytes, memory_bytes)
        self._peak_bytes = max(self._peak_bytes, memory_bytes)
        moved = max(memory_bytes - self._floor_bytes, self._peak_bytes - memory_bytes)
        return not grows and moved >= TRIM_STEP_BYTES and self._in_time(now_s)

    def _in_time(self, now_s: float) -> bool:
        """True if the last time was long enough ago; then the next time is scheduled."""
        if now_s < self._next_s:
            return False
        # Short intervals after a quiet time, long ones under a load that takes the memory again.
        quiet = now_s > self._next_s + 2 * self._wait_s
        self._wait_s = TRIM_WAIT_S if quiet else min(2 * self._wait_s, TRIM_WAIT_MAX_S)
        return True

    def wants_a_look(self, memory_bytes: int, now_s: float) -> bool:
        """True if `looked` should be called with the size of the used heap. Memory freed between blocks that
        stay in use does not show in the resident memory.
        """
        return (
            now_s >= max(self._look_s, self._next_s) and memory_bytes >= self._unused_bytes + TRIM_STEP_BYTES
        )

    def looked(self, memory_bytes: int, used_bytes: int, seconds: float, now_s: float) -> bool:
        """Note how much of the heap is used, found in `seconds`; True if heap should be given back now."""
        self._look_s = now_s + min(max(LOOK_WAIT_S, LOOK_SHARE * seconds), TRIM_WAIT_MAX_S)
        unused = memory_bytes - used_bytes
        self._unused_bytes = min(self._unused_bytes, max(0, unused))
        return unused - self._unused_bytes >= TRIM_STEP_BYTES and self._in_time(now_s)

    def given_back(self, memory_bytes: int, used_bytes: int, now_s: float) -> None:
        """Note the memory that is left, and how much of it is used heap."""
        self._last_bytes = self._floor_bytes = self._peak_bytes = memory_bytes
        self._unused_bytes = max(0, memory_bytes - used_bytes)
        self._next_s = now_s + self._wait_s


class _Mallinfo2(ctypes.Structure):
    """See mallinfo(3); bytes."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


# Looked up once: each CDLL makes its own classes, and only the garbage collector frees them.
_libc = ctypes.CDLL(None)
_mallinfo2 = getattr(_libc, "mallinfo2", None)
if _mallinfo2 is not None:
    _mallinfo2.restype = _Mallinfo2
_malloc_trim = getattr(_libc, "malloc_trim", None)


def used_heap() -> tuple[int, float]:
    """Return the bytes that the C library has handed out, and how long it took to count them, s; 0 if the
    library does not support it.
    """
    if _mallinfo2 is None:
        return 0, 0.0
    began = time.monotonic()
    found = _mallinfo2()
    return int(found.uordblks + found.hblkhd), time.monotonic() - began


def give_back() -> None:
    """Let glibc return free pages within its heap to the kernel; does nothing with another C library."""
    if _malloc_trim is not None:
        _malloc_trim(0)


def left_after_giving_back() -> tuple[int, int]:
    """Give free heap back. Return the remaining memory and the maximum of used heap meanwhile, bytes.

    Memory freed while this runs leaves holes, too. If these counted as pages that cannot be given back, they
    would stay for ever.
    """
    before, _ = used_heap()
    give_back()
    memory = private_memory_bytes()
    after, _ = used_heap()
    return memory, max(before, after)


def private_memory_bytes() -> int:
    """Resident memory without mapped files: the kernel can reclaim those at any time."""
    resident, shared = own_process.resident_bytes()
    return resident - shared
