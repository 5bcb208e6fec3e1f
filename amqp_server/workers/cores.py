"""How many workers a node has, and had."""

from __future__ import annotations

import os
from pathlib import Path

from amqp_server.config import AUTO, WORKERS_MAX, Config
from persistence.environment import WORKERS

#: The quota of the control group (version 2): µs of CPU, or max, and the period, µs.
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def workers_of(config: Config) -> int:
    """Return the number of workers that a node with this configuration starts."""
    if config.workers != AUTO:
        return int(config.workers)
    return min(max(1, cores() - config.reserve_cores), WORKERS_MAX)


def cores() -> int:
    """Return the cores that this process may use: those that it may run on, or fewer if its control group
    gets less time.
    """
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = QUOTA.read_text().split()
        return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):
        return allowed


def workers_on_disk(config: Config) -> int:
    """Return how many workers have data in the data directory."""
    directory = Path(config.data_dir) / WORKERS
    if not directory.is_dir():
        return 1
    return 1 + max((int(each.name) for each in directory.iterdir() if each.name.isdigit()), default=0)
