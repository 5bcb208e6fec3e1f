"""Attributes of messages. Not compiled, because msgspec decodes them; see docs/compiled.md."""

from __future__ import annotations

from typing import NamedTuple


class Attributes(NamedTuple):
    """What the machine and the edge must know about a message without decoding it. Shared by whole runs."""

    persistent: bool = False
    priority: int = 0
    #: Per-message time to live in ms, from the expiration property.
    ttl_ms: int | None = None
    #: Channel number that the content frames carry.
    channel: int = 1
    #: Largest frame among the content frames, in bytes.
    frame_bytes: int = 4096
    #: Bytes of each content that a limit in bytes does not count (set only for queues with such a limit).
    overhead: int = 0
