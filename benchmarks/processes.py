"""CPU time and memory of a broker: all processes of its session, all threads, read from /proc."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# Indices after the command's closing parenthesis in /proc/PID/stat; see proc(5).
SESSION, UTIME, STIME = 3, 11, 12


def members(session: int) -> list[int]:
    """Every process of a session, so also those that a start script has started."""
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if (stat := _stat(pid)) and int(stat[SESSION]) == session]


def cpu_seconds(pids: list[int]) -> float:
    stats = [stat for pid in pids if (stat := _stat(pid))]
    return sum(int(stat[UTIME]) + int(stat[STIME]) for stat in stats) / TICKS


def machine_cpu_seconds() -> float:
    """User and system time of everything on this machine since it started; see proc(5), /proc/stat."""
    user, nice, system = (PROC / "stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / TICKS


def own_cpu_seconds() -> float:
    """CPU time of this process and its ended children."""
    return sum(os.times()[:4])


def rss_bytes(pids: list[int]) -> int:
    return sum(_rss(pid) for pid in pids)


def anonymous_bytes(pids: list[int]) -> int:
    """Private memory, without mapped files."""
    return sum(_status_bytes(pid, "RssAnon") for pid in pids)


def _status_bytes(pid: int, field: str) -> int:
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _stat(pid: int) -> list[str]:
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _rss(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "statm").read_text().split()[1]) * PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0
