"""Decides which segments have to be deleted, by age and by size. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Segment(Protocol):
    @property
    def size(self) -> int: ...

    @property
    def last_ms(self) -> int:
        """Time of its last batch."""


class RetentionLimits(NamedTuple):
    """None is no limit."""

    max_age_ms: int | None = None
    max_bytes: int | None = None


def outdated(segments: Sequence[Segment], limits: RetentionLimits, now_ms: int) -> int:
    """Return how many segments, from the oldest on, have to be deleted.

    The last one is deleted by age only: the size limit always keeps the segment that is being written. An
    empty one stays: it holds the next offset of the stream.
    """
    gone = 0
    if limits.max_age_ms is not None:
        while gone < len(segments) and segments[gone].size:
            if segments[gone].last_ms + limits.max_age_ms > now_ms:
                break
            gone += 1
    if limits.max_bytes is not None:
        left = sum([segment.size for segment in segments[gone:]])
        while gone < len(segments) - 1 and left > limits.max_bytes:
            left -= segments[gone].size
            gone += 1
    return gone


def due_ms(segments: Sequence[Segment], limits: RetentionLimits) -> int | None:
    """Return when the oldest segment has to be deleted because of its age; None for never."""
    if limits.max_age_ms is None or not segments or not segments[0].size:
        return None
    return segments[0].last_ms + limits.max_age_ms
