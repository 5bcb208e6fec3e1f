"""Ports for brokers that must not change: other programs learn them in advance, or use them after a restart.

The kernel may give a port that it chose to another process while its owner is down. These lie below those
from which the kernel chooses, and are taken from blocks that belong to one process each: a block is held by
an abstract Unix socket, which ends with its process and is seen in the same network namespace as the ports.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

HOST = "127.0.0.1"
BLOCK_PORTS = 64
#: The kernel's usual choice begins at 32768.
FIRST, END = 20_000, 32_768
KERNELS_CHOICE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Ports without a listener, which this process has not got before."""
    return [next(_PORTS) for _ in range(count)]


def free_port() -> int:
    return next(_PORTS)


def free_run(count: int) -> int:
    """The first of so many such ports in a row."""
    assert count <= BLOCK_PORTS
    first = last = next(_PORTS)
    while last - first < count - 1:
        port = next(_PORTS)
        if port != last + 1:
            first = port
        last = port
    return first


def _ports() -> Iterator[int]:
    for first in range(FIRST, _end(), BLOCK_PORTS):
        if _held(first):
            yield from (port for port in range(first, first + BLOCK_PORTS) if _free(port))
    raise AssertionError(f"no free port from {FIRST} on")


def _end() -> int:
    with suppress(OSError, ValueError):
        lowest = int(KERNELS_CHOICE.read_text().split()[0])
        # If the kernel may choose from nearly all ports, there is no better place.
        if lowest >= FIRST + 16 * BLOCK_PORTS:
            return min(END, lowest) - BLOCK_PORTS
    return END - BLOCK_PORTS


def _held(first: int) -> bool:
    """Take a block; False if another process has it."""
    if sys.platform != "linux":
        return True  # abstract sockets are Linux's
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0mqd-test-ports-{first}")
    except OSError:
        holder.close()
        return False
    # Held as long as this process lives; it needs no close.
    holder.detach()
    return True


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


_PORTS = _ports()
