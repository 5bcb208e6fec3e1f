"""Options for the streams of a node."""

from __future__ import annotations

from typing import NamedTuple

from amqp_server.streams.compacting import Compaction
from persistence.streams.compression import NONE
from persistence.streams.retention import RetentionLimits


class Tiering(NamedTuple):
    """Where a stream's segments go, and what stays on the disk."""

    #: A remote's name in the configuration; None: segments go nowhere.
    remote: str | None = None
    local: RetentionLimits = RetentionLimits()
    #: The format of the files that show the stream as a table; None: it has no table.
    table: str | None = None


class StreamOptions:
    """Options for the streams of a node; see the fields of amqp_server.config of the same names."""

    __slots__ = (
        "begin_timeout_ms",
        "codec",
        "compaction_dirty_percent",
        "compaction_memory_bytes",
        "flush_batches",
        "flush_bytes",
        "flush_ms",
        "limits",
        "names_max",
        "read_bytes_max",
        "segment_bytes",
        "segment_bytes_min",
        "tombstone_age_ms",
    )

    def __init__(
        self,
        *,
        segment_bytes: int = 500_000_000,
        segment_bytes_min: int = 1,
        limits: RetentionLimits | None = None,
        flush_batches: int = 128,
        flush_bytes: int = 1 << 20,
        flush_ms: int = 5_000,
        read_bytes_max: int = 256 << 20,
        codec: str = NONE,
        compaction_dirty_percent: int = 50,
        compaction_memory_bytes: int = 64 << 20,
        tombstone_age_ms: int = 86_400_000,
        names_max: int = 1_000,
        begin_timeout_ms: int = 10_000,
    ) -> None:
        self.begin_timeout_ms = begin_timeout_ms
        self.names_max = names_max
        self.compaction_dirty_percent = compaction_dirty_percent
        self.compaction_memory_bytes = compaction_memory_bytes
        #: For streams declared without x-stream-tombstone-age.
        self.tombstone_age_ms = tombstone_age_ms
        #: For streams declared without x-stream-compression.
        self.codec = codec
        self.segment_bytes = segment_bytes
        self.segment_bytes_min = segment_bytes_min
        #: For streams declared without limits.
        self.limits = limits or RetentionLimits()
        self.flush_batches = flush_batches
        self.flush_bytes = flush_bytes
        self.flush_ms = flush_ms
        self.read_bytes_max = read_bytes_max

    def segment_size(self, declared: int | None) -> int:
        """Return the size of the segments of a stream that was declared with this one, if with any. Tiny ones
        would be as many files as messages.
        """
        return max(declared, self.segment_bytes_min) if declared else self.segment_bytes

    def flushes(self, batches: int, size: int) -> bool:
        """Return whether a stream has so many batches or bytes in the journal that they should move to its
        segment.
        """
        return size >= self.flush_bytes or batches >= self.flush_batches

    def compaction(self, by: str | None, tombstone_age_ms: int | None) -> Compaction | None:
        """Return the compaction settings of a stream with these arguments."""
        if by is None:
            return None
        return Compaction(
            by,
            self.tombstone_age_ms if tombstone_age_ms is None else tombstone_age_ms,
            self.compaction_memory_bytes,
            self.compaction_dirty_percent,
        )
