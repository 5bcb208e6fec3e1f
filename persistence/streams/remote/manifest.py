"""What a stream has in its object store, and the decisions that follow from it. Pure.

A manifest has a range for each object: consecutive messages, rising and without overlap. A range enters it
after its object is complete in the store, and leaves it before the object is deleted. So each range has its
object, unless the store loses it. An object without a range is an orphan.

A key has the identity of the stream, which is drawn when its manifest begins, and a checksum of the object.
So two objects of one key have the same bytes, and no upload replaces another one's object by a different one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from persistence.streams.retention import RetentionLimits, outdated
from persistence.streams.segment import Segment

#: Extension of the objects.
OBJECT = ".segment"


class Range(NamedTuple):
    """The messages of one object: the bytes of a segment, and those of its index behind them."""

    first: int
    #: The offset after its last message.
    stop: int
    #: Bytes of its batches, and bytes of its index.
    size: int
    index_bytes: int
    #: Times of its first and its last batch.
    first_ms: int
    last_ms: int
    checksum: str
    #: True if some of its messages were lost before it was uploaded.
    damaged: bool = False

    @property
    def object_bytes(self) -> int:
        return self.size + self.index_bytes


class Manifest:
    """Is not changed: a thread may read it while the stream has a later one."""

    __slots__ = ("identity", "ranges", "remote", "size")

    def __init__(self, identity: str, remote: str, ranges: tuple[Range, ...] = ()) -> None:
        """`identity` names the stream in the store, `remote` the store in the configuration."""
        self.identity = identity
        self.remote = remote
        self.ranges = ranges
        #: Bytes of all objects.
        self.size = sum([each.object_bytes for each in ranges])

    @property
    def first(self) -> int:
        """The first offset; 0 if there is no range."""
        return self.ranges[0].first if self.ranges else 0

    @property
    def stop(self) -> int:
        """The offset after the last message; 0 if there is no range."""
        return self.ranges[-1].stop if self.ranges else 0

    def key(self, range: Range) -> str:
        """Return the key of the object of a range."""
        return object_key(self.identity, range)

    def with_range(self, after: int, range: Range, first_offset: int) -> Manifest | None:
        """Return the manifest with a range at its end; None if the range does not belong there.

        `after` is the end of the manifest that the uploader knew: if another node has added a range since,
        this one would overlap it. Messages before `first_offset` are deleted.
        """
        if self.ranges and after != self.stop:
            return None
        if not max(self.stop, first_offset) <= range.first < range.stop:
            return None
        return Manifest(self.identity, self.remote, (*self.ranges, range))

    def without_before(self, offset: int) -> tuple[Manifest, tuple[Range, ...]]:
        """Return the manifest without the ranges that end at this offset or before, and these ranges."""
        count = 0
        while count < len(self.ranges) and self.ranges[count].stop <= offset:
            count += 1
        if not count:
            return self, ()
        return Manifest(self.identity, self.remote, self.ranges[count:]), self.ranges[:count]


def object_key(identity: str, range: Range) -> str:
    return f"{identity}/{range.first:020}-{range.stop - 1:020}-{range.checksum}{OBJECT}"


def next_upload(sealed: Sequence[Segment], manifest_stop: int, first_offset: int) -> Segment | None:
    """Return the oldest segment of which the store lacks messages; `sealed` segments no longer change."""
    stop = max(manifest_stop, first_offset)
    for segment in sealed:
        if segment.size and segment.stop > stop:
            return segment
    return None


def deleted_before(
    ranges: Sequence[Range], segments: Sequence[Segment], limits: RetentionLimits, now_ms: int
) -> int:
    """Return the offset before which the retention of the whole stream deletes everything, in the store and
    on the disk; 0 if it deletes nothing.
    """
    held = _held(ranges, segments)
    count = outdated(held, limits, now_ms)
    return held[count - 1].stop if count else 0


def trimmed_before(
    segments: Sequence[Segment], manifest_stop: int, limits: RetentionLimits, now_ms: int
) -> int:
    """Return the offset before which segments may leave the disk because of the limits for the disk; 0 if all
    stay. The store has these messages.
    """
    if limits.max_age_ms is None and limits.max_bytes is None:
        return 0
    count = min(outdated(segments, limits, now_ms), len(segments) - 1)
    while count > 0 and segments[count - 1].stop > manifest_stop:
        count -= 1
    return segments[count - 1].stop if count > 0 else 0


def due_ms(
    ranges: Sequence[Range],
    segments: Sequence[Segment],
    total: RetentionLimits,
    local: RetentionLimits,
) -> int | None:
    """Return when something has to be deleted next because of its age; None for never.

    A segment that is due on the disk and not in the store yet waits for its upload.
    """
    found: list[int] = []
    held = _held(ranges, segments)
    if total.max_age_ms is not None and held and held[0].size:
        found.append(held[0].last_ms + total.max_age_ms)
    stop = ranges[-1].stop if ranges else 0
    if local.max_age_ms is not None and len(segments) > 1 and segments[0].stop <= stop:
        found.append(segments[0].last_ms + local.max_age_ms)
    return min(found, default=None)


def _held(ranges: Sequence[Range], segments: Sequence[Segment]) -> list[Range | Segment]:
    """Return everything that the stream has, each message once but for segments that only partly are in the
    store.
    """
    stop = ranges[-1].stop if ranges else 0
    return [*ranges, *(each for each in segments if each.stop > stop or not (each.size or ranges))]


__all__ = [
    "OBJECT",
    "Manifest",
    "Range",
    "deleted_before",
    "due_ms",
    "next_upload",
    "object_key",
    "trimmed_before",
]
