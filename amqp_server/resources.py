"""Watches memory and disk, and raises the alarms."""

from __future__ import annotations

import os
from pathlib import Path

import trio

from amqp_server.broker.broker import Broker
from amqp_server.config import Config

INTERVAL_S = 0.5
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ResourceWatch:
    """Compares what the process uses with its limits twice a second."""

    def __init__(self, config: Config, broker: Broker, directory: Path) -> None:
        self._broker = broker
        self._directory = directory
        self.memory_limit_bytes = config.memory_limit_bytes
        self.disk_free_min_bytes = config.disk_free_min_bytes
        self.memory_bytes = self.disk_free_bytes = 0
        self.look()

    async def run(self) -> None:
        while True:
            await trio.sleep(INTERVAL_S)
            self.look()

    def look(self) -> None:
        """Measure, and raise or clear the alarms."""
        self.memory_bytes = private_memory_bytes()
        space = os.statvfs(self._directory)
        self.disk_free_bytes = space.f_bavail * space.f_frsize
        self._broker.alarms.set("memory", self.memory_bytes > self.memory_limit_bytes)
        self._broker.alarms.set("disk space", self.disk_free_bytes < self.disk_free_min_bytes)

    def set_memory_limit(self, limit_bytes: int) -> None:
        """Change the limit while the node runs."""
        self.memory_limit_bytes = limit_bytes
        self.look()


def private_memory_bytes() -> int:
    """Resident memory without mapped files, which the kernel can take back at any time."""
    with open("/proc/self/statm") as statm:
        _, resident, shared, *_ = statm.read().split()
    return (int(resident) - int(shared)) * _PAGE
