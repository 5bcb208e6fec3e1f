"""Watches memory and disk, and raises the alarms."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable
from math import inf
from pathlib import Path

import trio

from amqp_server.broker.alarms import Alarms
from amqp_server.config import Config

INTERVAL_S = 0.5
#: Above TRIM_FROM of the memory limit, free heap is given back each time it has grown by TRIM_STEP of the
#: limit.
TRIM_FROM = 0.4
TRIM_STEP = 0.04
#: Above the memory limit, garbage is looked for among all objects, once in this time: it takes up to a second.
COLLECT_EVERY_S = 600
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ResourceWatch:
    """Compares what the process uses with its limits twice a second."""

    def __init__(
        self, config: Config, alarms: Alarms, directory: Path, reusable_bytes: Callable[[], int] = lambda: 0
    ) -> None:
        self._alarms = alarms
        #: Room within the store's own files, which the file system counts as taken.
        self._reusable_bytes = reusable_bytes
        self._directory = directory
        self.memory_limit_bytes = config.memory_limit_bytes
        self.disk_free_min_bytes = config.disk_free_min_bytes
        self.memory_bytes = self.disk_free_bytes = 0
        self._trimmed_bytes = 0
        self._collected_at = -inf
        self.look()

    async def run(self) -> None:
        while True:
            await trio.sleep(INTERVAL_S)
            self.look()

    def look(self) -> None:
        """Measure, and raise or clear the alarms."""
        self.memory_bytes = self._memory_bytes()
        space = os.statvfs(self._directory)
        self.disk_free_bytes = space.f_bavail * space.f_frsize + self._reusable_bytes()
        self._alarms.set("memory", self.memory_bytes > self.memory_limit_bytes)
        self._alarms.set("disk space", self.disk_free_bytes < self.disk_free_min_bytes)

    def _memory_bytes(self) -> int:
        """Measure after giving back what is free: else holes in the heap would keep the alarm up for ever."""
        memory = private_memory_bytes()
        if memory < self.memory_limit_bytes * TRIM_FROM:
            self._trimmed_bytes = 0
        elif memory > self.memory_limit_bytes and self._collect():
            memory = private_memory_bytes()
        elif memory > min(self._trimmed_bytes + self.memory_limit_bytes * TRIM_STEP, self.memory_limit_bytes):
            give_back()
            memory = self._trimmed_bytes = private_memory_bytes()
        return memory

    def _collect(self) -> bool:
        """Look for old garbage before publishers are blocked; False if that was done not long ago."""
        now = time.monotonic()
        if now - self._collected_at < COLLECT_EVERY_S:
            return False
        self._collected_at = now
        gc.collect()
        give_back()
        return True

    def set_memory_limit(self, limit_bytes: int) -> None:
        """Change the limit while the node runs."""
        self.memory_limit_bytes = limit_bytes
        self.look()


def give_back() -> None:
    """Let the C library return free pages within its heap to the kernel; nothing, where it is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def private_memory_bytes() -> int:
    """Resident memory without mapped files, which the kernel can take back at any time."""
    with open("/proc/self/statm") as statm:
        _, resident, shared, *_ = statm.read().split()
    return (int(resident) - int(shared)) * _PAGE
