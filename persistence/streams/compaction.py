"""Compaction: of sealed segments, only the latest message of each key stays. Run by a thread of its own.

A pass reads the messages since the last pass and notes the last offset of each key (`Latest`), as far as its
memory reaches. Then it rewrites the segments up to there, from the oldest on, without the messages that a
later one replaces: small neighbouring segments become one. Each new segment replaces the old ones as soon as
it is on disk (StreamLog.replace). So a crash leaves the old ones or the new one, and the next pass begins
again with the part that was not noted as compacted.

Messages keep their offsets. A batch contains the offsets of its messages and the range of offsets that it
stands for, so compacted messages do not look like lost ones. If a segment is replaced while it is read, the
reader looks up its offset in the new one.

A message with an empty body is a tombstone: it says that the key has no value. It is removed some time after
the messages that it replaces: passes.py says why, and from when that time counts. Batches with tombstones are
not merged with others, so they keep their time.

A group of segments with damage stays as it is, with messages that later ones replace. So tombstones after it
stay, too, until it can be read or retention has deleted it: without them its keys would come back.
`StreamLog.sound_stop` is the offset before which no replaced message is left. Where other nodes have the same
stream, a tombstone stays until this holds for all of them, because a member that repairs its segments takes
messages from any other member.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from persistence.streams import batch as batches
from persistence.streams.batch import COUNT_MAX, Batch, Shape
from persistence.streams.log import Ended, Segment, SegmentPlace, StreamLog
from persistence.streams.rewritten import Rewritten

#: A batch is closed when it has so many bytes; so many are written at once.
BATCH_BYTES = 256 * 1024
WRITE_BYTES = 1024 * 1024
#: An offset after all others.
EVERYTHING = 1 << 63


class Stopped(Exception):
    """The node ends."""


class Keys(Protocol):
    """Knows the content of messages, which belongs to the upper layer."""

    def keys(self, batch: Batch) -> Sequence[bytes | None]:
        """Return the key of each message; None for a message without a key, which stays."""

    def is_tombstone(self, shape: Shape) -> bool:
        """Return whether messages of this shape have no body."""


class Throttle:
    """Limits the bytes that a thread reads and writes, and lets other threads work in between."""

    def __init__(self, bytes_per_s: int, stopping: threading.Event | None = None) -> None:
        self._bytes_per_s = bytes_per_s
        self._stopping = stopping or threading.Event()

    def spent(self, size: int) -> None:
        """Wait for the time that so many bytes should take. Raises Stopped."""
        if self._stopping.wait(size / self._bytes_per_s):
            raise Stopped


class Latest:
    """Offset of the latest message of each key, up to `stop`."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self.offsets: dict[bytes, int] = {}
        self.stop = 0

    def add(self, batch: Batch, keys: Sequence[bytes | None]) -> bool:
        """Add a batch; return whether there is memory for another one."""
        base = batch.base
        offsets = (
            range(base, batch.stop) if batch.offsets is None else [base + each for each in batch.offsets]
        )
        self.offsets.update(zip(keys, offsets, strict=True))  # type: ignore[arg-type]
        self.offsets.pop(None, None)  # type: ignore[call-overload]
        self.stop = batch.stop
        return len(self.offsets) < self._keys_max


class Pass:
    """The work of one pass: these segments are rewritten, each group as one segment."""

    __slots__ = ("groups", "latest", "mends", "sound_stop")

    def __init__(
        self, latest: Latest, groups: list[tuple[Segment, ...]], sound_stop: int, mends: int
    ) -> None:
        self.latest = latest
        self.groups = groups
        #: Before this offset no replaced message is left once the groups up to there were rewritten.
        self.sound_stop = sound_stop
        #: Number of repairs of the log before the pass began.
        self.mends = mends

    def left_alone(self, group: Sequence[Segment]) -> None:
        """A group stays as it is, with the messages that later ones replace."""
        self.sound_stop = min(self.sound_stop, group[0].base)


def is_due(log: StreamLog, dirty_percent: int) -> bool:
    """Return whether sealed segments have enough new data."""
    sealed = log.sealed
    dirty = sum([segment.size for segment in sealed if segment.stop > log.clean_stop])
    return bool(dirty) and dirty * 100 >= dirty_percent * sum([segment.size for segment in sealed])


def plan(log: StreamLog, keys: Keys, keys_max: int, segment_bytes: int, throttle: Throttle) -> Pass:
    """Find the last offset of each key. Raises Stopped, OSError."""
    mends, sealed = log.mends, log.sealed
    begin = log.clean_stop
    if log.sound_stop < begin and _is_readable(log, log.sound_stop, throttle):
        # The last passes have left segments alone that can be read again, or are gone.
        begin = log.sound_stop
    sound = begin <= log.sound_stop
    latest = Latest(keys_max)
    latest.stop = begin
    stop = sealed[-1].stop if sealed else 0
    place, offset = None, begin
    while offset < stop:
        read = log.read(offset, place)
        throttle.spent(read.read_bytes)
        for batch in read.batches:
            if batch.base >= stop:
                break
            if not latest.add(batch, keys.keys(batch)):
                stop = latest.stop
                break
        place, offset = read.place, read.place.offset
        if place.base < 0:
            break
    if latest.stop < stop:
        # Its end is damaged, or all its messages were compacted away.
        latest.stop = stop
    groups = _groups([each for each in sealed if each.base < latest.stop], segment_bytes)
    return Pass(latest, groups, latest.stop if sound else log.sound_stop, mends)


def _is_readable(log: StreamLog, offset: int, throttle: Throttle) -> bool:
    """Return whether the first segment with offsets from this one on has no damage. Raises Stopped,
    OSError.
    """
    segment = next((each for each in log.sealed if each.stop > offset), None)
    if segment is None:
        return True
    place, offset = None, segment.base
    while offset < segment.stop:
        read = log.read(offset, place)
        throttle.spent(read.read_bytes)
        if any(each.low < segment.stop for each in read.lost):
            return False
        place, offset = read.place, read.place.offset
        if place.base < 0:
            break
    return True


def _groups(segments: Sequence[Segment], segment_bytes: int) -> list[tuple[Segment, ...]]:
    groups: list[list[Segment]] = []
    size = 0
    for segment in segments:
        last = groups[-1] if groups else None
        # Offsets between two segments are lost, and readers must notice that.
        if last is not None and size + segment.size <= segment_bytes and last[-1].stop == segment.base:
            last.append(segment)
            size += segment.size
        else:
            groups.append([segment])
            size = segment.size
    return [tuple(group) for group in groups]


def rewrite(
    log: StreamLog,
    group: Sequence[Segment],
    present: Pass,
    keys: Keys,
    tombstones_until_ms: int,
    codec: str,
    throttle: Throttle,
    *,
    sound_elsewhere: int = EVERYTHING,
) -> Segment | None:
    """Rewrite the next group of a pass; return the segment that should replace it, None if it should stay.

    Removes tombstones that have been alone since `tombstones_until_ms`, up to the offset `sound_elsewhere`:
    the least `sound_stop` of other copies. Raises Stopped, Ended, OSError, and leaves nothing on the disk
    then.
    """
    new = log.rewritten(group[0].base, group[-1].stop)
    alone_stop = log.alone_stop(tombstones_until_ms)
    kept = _Kept(present, keys, min(present.sound_stop, sound_elsewhere, alone_stop))
    try:
        if _is_rewritten(log, group, new, present, kept, codec, throttle):
            return new.finish()
        new.drop()
    except Exception:
        # Each try has a file of its own: on a full disk such files would take all space that becomes free.
        with suppress(Ended, OSError):
            new.drop()
        raise
    return None


def _is_rewritten(
    log: StreamLog,
    group: Sequence[Segment],
    new: Rewritten,
    present: Pass,
    kept_of: _Kept,
    codec: str,
    throttle: Throttle,
) -> bool:
    """Write the remaining messages of a group; return whether the result should replace it. Raises Stopped,
    Ended, OSError.
    """

    def write(parts: list[Sequence[bytes]]) -> None:
        throttle.spent(new.append(parts))

    base, stop = group[0].base, group[-1].stop
    writer = _Writer(base, codec, write)
    place: SegmentPlace | None = None
    offset, gone = base, 0
    while offset < stop:
        read = log.read(offset, place)
        throttle.spent(read.read_bytes)
        changed = log.mends != present.mends or any(each not in log.segments for each in group)
        if read.lost or changed:
            # Damage has to stay visible. What another node has sent may not be compacted.
            present.left_alone(group)
            return False
        for batch in read.batches:
            if batch.base < stop:
                kept, dead = kept_of(batch)
                gone += batch.count - len(kept)
                writer.add(batch, kept, alone=dead)
        place, offset = read.place, read.place.offset
        if place.base < 0:
            break
    if len(group) == 1 and not gone:
        return False
    writer.close(stop)
    return True


class _Kept:
    """Tells which messages of a batch stay."""

    def __init__(self, present: Pass, keys: Keys, tombstones_stop: int) -> None:
        self._newest = present.latest.offsets
        self._keys = keys
        self._stop = tombstones_stop

    def __call__(self, batch: Batch) -> tuple[list[int], bool]:
        """Return which messages of a batch stay, and whether a tombstone is among them."""
        offsets = range(batch.count) if batch.offsets is None else batch.offsets
        newest, base = self._newest, batch.base
        tombstones = self._tombstones(batch)
        kept: list[int] = []
        dead = False
        for number, (key, offset) in enumerate(zip(self._keys.keys(batch), offsets, strict=True)):
            if key is not None:
                if newest.get(key, -1) > base + offset:
                    continue
                if number in tombstones:
                    if base + offset < self._stop:
                        continue
                    dead = True
            kept.append(number)
        return kept, dead

    def _tombstones(self, batch: Batch) -> set[int]:
        found: set[int] = set()
        number = 0
        for shape in batch.shapes:
            if self._keys.is_tombstone(shape):
                found.update(range(number, number + shape.count))
            number += shape.count
        return found


class _Writer:
    """Makes batches of the remaining messages."""

    def __init__(self, base: int, codec: str, write: Callable[[list[Sequence[bytes]]], None]) -> None:
        self._base = base
        self._codec = codec
        self._write = write
        self._done: list[Sequence[bytes]] = []
        self._done_bytes = self._time_ms = 0
        #: True if the open batch must not get more messages.
        self._alone = False
        self._begin()

    def _begin(self) -> None:
        self._items: list[bytes | memoryview] = []
        self._shapes: list[Shape] = []
        self._values: dict[bytes | None, int] = {}
        self._filters: list[int] = []
        self._offsets: list[int] = []
        self._size = 0

    def add(self, batch: Batch, kept: Sequence[int], *, alone: bool) -> None:
        """Add these messages of a batch."""
        if kept:
            size = len(batch.items) * len(kept) // batch.count
            full = self._size + size > BATCH_BYTES or len(self._offsets) + len(kept) > COUNT_MAX
            if self._offsets and (full or alone or self._alone):
                self._end(batch.base)
            self._alone = alone
            self._put(batch, kept)
        if kept or not self._offsets:
            self._time_ms = batch.time_ms

    def _put(self, batch: Batch, kept: Sequence[int]) -> None:
        items = memoryview(batch.items)
        low = batch.base - self._base
        numbers = [self._values.setdefault(value, len(self._values)) for value in batch.values]
        at = number = place = 0
        for shape in batch.shapes:
            end, start = number + shape.count, place
            while place < len(kept) and kept[place] < end:
                first = at + (kept[place] - number) * shape.size
                self._items.append(items[first : first + shape.size])
                place += 1
            count = place - start
            if count:
                last = self._shapes[-1] if self._shapes else None
                if last is not None and last[1:] == shape[1:]:
                    self._shapes[-1] = last._replace(count=last.count + count)
                else:
                    self._shapes.append(shape._replace(count=count))
                self._size += count * shape.size
            number, at = end, at + shape.count * shape.size
        for each in kept:
            self._filters.append(numbers[batch.filters[each] if batch.filters else 0])
            self._offsets.append(low + (each if batch.offsets is None else batch.offsets[each]))

    def _end(self, stop: int) -> None:
        """Close a batch; the next one has the offsets from `stop` on."""
        values = list(self._values) or [None]
        parts = batches.encode(
            self._base,
            self._time_ms,
            self._shapes,
            b"".join(self._items),
            values,
            self._filters if len(values) > 1 else [],
            span=stop - self._base,
            offsets=self._offsets,
        )
        packed = batches.compressed(parts, self._codec)
        self._done.append(packed)
        self._done_bytes += sum(map(len, packed))
        self._base, self._alone = stop, False
        self._begin()
        if self._done_bytes >= WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        done, self._done, self._done_bytes = self._done, [], 0
        if done:
            self._write(done)

    def close(self, stop: int) -> None:
        """Write the rest; the segment ends here."""
        if stop > self._base:
            self._end(stop)
        self._flush()


__all__ = [
    "EVERYTHING",
    "Ended",
    "Keys",
    "Latest",
    "Pass",
    "Stopped",
    "Throttle",
    "is_due",
    "plan",
    "rewrite",
]
