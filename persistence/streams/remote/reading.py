"""Reads the messages of a stream from its object store, and goes on in its segments on the disk.

An object has the bytes of a segment, so it is read like one: `ObjectFiles` shows objects as files. Batches
and entries of indexes have checksums. What does not fit them, although it was whole when it was uploaded, is
a fault of the store and no loss: it is read again later.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from persistence.streams import index
from persistence.streams.log import StreamLog
from persistence.streams.reading import SegmentReader
from persistence.streams.remote.cache import ObjectCache
from persistence.streams.remote.manifest import Manifest, Range
from persistence.streams.remote.objects import Absent, Objects, Unavailable, Unknown
from persistence.streams.segment import INDEX, Lost, Raw, Read, Segment, SegmentPlace, Wanted


class Moved(Exception):
    """Messages left the disk while they were to be read there: the store has them."""


class ObjectFiles:
    """The ranges of a manifest as files. See persistence.streams.files.Files; nothing writes here."""

    def __init__(self, objects: Objects, cache: ObjectCache) -> None:
        self._objects = objects
        self._cache = cache
        #: By the stem of their files.
        self.ranges: dict[str, tuple[str, Range]] = {}

    def size(self, path: Path) -> int:
        range = self._range(path)[1]
        return range.index_bytes if path.suffix == INDEX else range.size

    def _range(self, path: Path) -> tuple[str, Range]:
        found = self.ranges.get(path.stem)
        if found is None:
            # Retention has deleted it.
            raise FileNotFoundError(path)
        return found

    def read(self, path: Path, position: int, size: int) -> bytes:
        """Raises FileNotFoundError, Unavailable."""
        key, range = self._range(path)
        start, end = (range.size, range.object_bytes) if path.suffix == INDEX else (0, range.size)
        wanted = max(min(size, end - start - position), 0)
        try:
            data = self._cache.read(self._objects, key, start + position, wanted, range.object_bytes)
        except Absent:
            self._range(path)
            raise
        if len(data) < wanted:
            raise Unavailable(f"{key} ends too early")
        return data

    def forget(self, stem: str) -> None:
        found = self.ranges.get(stem)
        if found is not None:
            self._cache.forget(found[0])

    def names(self, directory: Path) -> list[str]:
        raise NotImplementedError

    def make(self, directory: Path) -> None:
        raise NotImplementedError

    def write(self, path: Path, position: int, parts: Sequence[bytes]) -> None:
        raise NotImplementedError

    def sync(self, path: Path) -> None:
        raise NotImplementedError

    def sync_names(self, directory: Path) -> None:
        raise NotImplementedError

    def cut(self, path: Path, size: int) -> None:
        raise NotImplementedError

    def rename(self, path: Path, name: str) -> None:
        raise NotImplementedError

    def remove(self, path: Path) -> None:
        raise NotImplementedError

    def remove_all(self, directory: Path) -> None:
        raise NotImplementedError


class RemoteSegments(SegmentReader):
    """The ranges of a manifest as segments."""

    def __init__(self, objects: Objects, cache: ObjectCache) -> None:
        self._objects = ObjectFiles(objects, cache)
        super().__init__(self._objects, Path("remote"))
        #: The ranges of the manifest that is shown.
        self._shown: tuple[Range, ...] = ()

    def show(self, manifest: Manifest) -> None:
        """Show the ranges of this manifest from now on."""
        known, ranges = self._shown, manifest.ranges
        gone = known.index(ranges[0]) if ranges and ranges[0] in known else len(known)
        kept = len(known) - gone
        if ranges[:kept] != known[gone:]:
            gone, kept = len(known), 0
        fresh: list[Segment] = []
        # There may be many: only what has changed is made anew. A thread may see a new segment at once.
        for each in ranges[kept:]:
            stem = f"{each.first:020}-{each.stop:020}-{each.checksum}"
            self._objects.ranges[stem] = manifest.key(each), each
            fresh.append(Segment(each.first, each.size, each.stop, each.first_ms, each.last_ms, stem))
        before = self.segments
        self.segments = (*before[gone:], *fresh)
        self.stop, self._shown = manifest.stop, ranges
        left = {segment.stem for segment in fresh}
        for segment in before[:gone]:
            if segment.stem not in left:
                self._objects.ranges.pop(segment.stem, None)

    def _whole_index(self, segment: Segment) -> bytes:
        data = self.index_bytes(segment.where)
        if not index.is_whole(data, segment.stop, segment.size):
            # FileNotFoundError if it was deleted meanwhile.
            self.files.size(self.path(segment.where, INDEX))
            self._objects.forget(segment.stem)
            raise Unavailable(f"the index of {segment.stem} is damaged")
        return data

    def accepted(self, lost: list[Lost]) -> list[Lost]:
        """Raises Unavailable unless these messages were lost already when they were uploaded."""
        for each in lost:
            for segment in self.segments:
                if segment.base < each.stop and each.low < segment.stop:
                    found = self._objects.ranges.get(segment.stem)
                    if found is not None and not found[1].damaged:
                        self._objects.forget(segment.stem)
                        raise Unavailable(f"{found[0]} is damaged or missing: {each.why}")
        return lost


class TieredReader:
    """Reads a stream whose older messages are in a store, from any thread.

    The disk may lose segments meanwhile, which `log.segments` shows before their files are gone.
    """

    def __init__(self, log: StreamLog, objects: Objects, cache: ObjectCache) -> None:
        self._log = log
        self._remote = RemoteSegments(objects, cache)
        #: The stream has all messages from this offset on: what neither the disk nor the manifest has yet,
        #: will come. None: what both lack is lost.
        self.first_offset: int | None = None

    def show(self, manifest: Manifest) -> None:
        self._remote.show(manifest)

    @property
    def local_first(self) -> int:
        """The offset from which on the disk has messages."""
        segments = self._log.segments
        return segments[0].base if segments else self._log.stop

    def is_remote(self, offset: int) -> bool:
        """Return whether the store has this message, or the first one behind it, and the disk has not."""
        segments = self._remote.segments
        return bool(segments) and offset < min(self.local_first, segments[-1].stop)

    # -- the disk --------------------------------------------------------------------------------------------

    def read_local(
        self,
        offset: int,
        place: SegmentPlace | None = None,
        wanted: Wanted | None = None,
        *,
        undecoded: bool = False,
    ) -> Read:
        """See SegmentReader.read. Raises Moved."""
        read = self._log.read(offset, place, wanted, undecoded=undecoded)
        self._check_local(offset)
        return read

    def _check_local(self, offset: int) -> None:
        """Raise Moved or Unavailable if the disk did not have this offset until now."""
        if self.is_remote(offset):
            raise Moved
        if self.first_offset is not None and max(offset, self.first_offset) < self.local_first:
            raise Unknown("it is not known here yet where the messages are")

    def read_raw_local(self, offset: int) -> Raw:
        """See SegmentReader.read_raw. Raises Moved."""
        raw = self._log.read_raw(offset)
        self._check_local(offset)
        return raw

    # -- the store, and the disk behind it: these raise Unavailable ------------------------------------------

    def read(
        self,
        offset: int,
        place: SegmentPlace | None = None,
        wanted: Wanted | None = None,
        *,
        undecoded: bool = False,
    ) -> Read:
        """See SegmentReader.read."""
        while self.is_remote(offset):
            read = self._remote.read(offset, place, wanted, undecoded=undecoded)
            if read.batches or read.place.base >= 0:
                return read
            offset, place = read.place.offset, None
        try:
            return self.read_local(offset, place, wanted, undecoded=undecoded)
        except Moved:
            return self.read(offset, place, wanted, undecoded=undecoded)

    def read_raw(self, offset: int) -> Raw:
        """See SegmentReader.read_raw."""
        if self.is_remote(offset):
            raw = self._remote.read_raw(offset)
            if raw.lost is not None:
                self._remote.accepted([raw.lost])
            return raw
        try:
            return self.read_raw_local(offset)
        except Moved:
            return self.read_raw(offset)

    def is_remote_time(self, time_ms: int) -> bool:
        """Return whether the first batch at or after this time may be in the store only."""
        remote, segments = self._remote.segments, self._log.segments
        if not remote or remote[-1].last_ms < time_ms or remote[0].base >= self.local_first:
            return False
        return not segments or not segments[0].size or segments[0].first_ms >= time_ms

    def find_local(self, time_ms: int) -> int:
        """See SegmentReader.find. Raises Moved."""
        found = self._log.find(time_ms)
        if self.is_remote_time(time_ms):
            raise Moved
        return found

    def find(self, time_ms: int) -> int:
        """See SegmentReader.find."""
        while not self.is_remote_time(time_ms):
            with suppress(Moved):
                return self.find_local(time_ms)
        return self._remote.find(time_ms)

    def time_of(self, offset: int) -> int | None:
        """See SegmentReader.time_of."""
        if self.is_remote(offset):
            return self._remote.time_of(offset)
        return self._log.time_of(offset)

    def last(self) -> int:
        """See SegmentReader.last."""
        found = self._log.last()
        if found >= self._log.stop and self._remote.segments:
            return max(self._remote.last(), 0)
        return found


__all__ = ["Absent", "Moved", "RemoteSegments", "TieredReader"]
