"""Options that are allowed, and probably not what the operator wants: the log warns of them at the start."""

from __future__ import annotations

import os
from collections.abc import Iterator

from amqp_server.config import MIB, Config, machine_memory_bytes

#: Memory that a node takes before it has any client, and some room, bytes.
IDLE_BYTES = 64 * MIB


def doubts(config: Config) -> Iterator[str]:
    """Yield a text for each of them."""
    given = [name for name in ("tls_cert_file", "tls_key_file", "tls_ca_file") if getattr(config, name)]
    if given and not config.amqps:
        yield (
            f"{' and '.join(given)} given, but no amqps: there is no TLS listener. Add --amqps 0.0.0.0:5671, or leave "
            "the files out"
        )
    yield from _about_memory(config.memory_limit_bytes)
    try:
        space = os.statvfs(config.data_dir)
    except OSError:
        return
    size = space.f_blocks * space.f_frsize
    if config.disk_free_min_bytes > size:
        yield (
            f"disk_free_min_bytes is {config.disk_free_min_bytes}, and the file system of the data directory has "
            f"{size} bytes: publishers will always be blocked"
        )


def _about_memory(limit: int) -> Iterator[str]:
    machine = machine_memory_bytes()
    if limit < IDLE_BYTES:
        yield (
            f"memory_limit is {limit} bytes in force, and a node without clients takes about {IDLE_BYTES // MIB // 2} "
            f"MiB: publishers will be blocked soon, or at once. At least {IDLE_BYTES // MIB} MiB is reasonable"
        )
    elif limit > machine:
        yield (
            f"memory_limit is {limit} bytes, more than the {machine} bytes that this process may use: the system may "
            "end the node before the alarm is raised. Leave it out for 0.6 of them"
        )
