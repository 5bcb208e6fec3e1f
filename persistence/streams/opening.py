"""Finds a stream's segments at a start.

It reads sealed segments from one file (summaries.py), or from their indexes if that file lacks them, and
reads the end of the last segment. The journal knows up to which offset everything is stored: damage after
this offset comes from a crash, and is cut off. Damage before it is the disk's.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path

from persistence.errors import FULL
from persistence.streams import batch as batches
from persistence.streams import index
from persistence.streams.batch import HEAD_BYTES, Damaged, Head
from persistence.streams.files import Files
from persistence.streams.index import Entry
from persistence.streams.segment import INDEX, NEW, SEGMENT, Lost, Segment, Where, Writing, spaced
from persistence.streams.segment_files import SegmentFiles
from persistence.streams.summaries import Summaries

logger = logging.getLogger("mqd.streams")


class Opening(SegmentFiles):
    """One start. `first`: segments before this offset were about to be removed."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        summaries: Summaries,
        first: int,
        stored_stop: int,
        *,
        mendable: bool,
    ) -> None:
        super().__init__(files, directory)
        self.lost: list[Lost] = []
        #: The newest compaction.
        self.generation = 0
        self.writing = Writing()
        names = files.names(directory)
        found = self._found(names, first)
        self._remove_remains(names, found)
        self.segments = self._all_sealed(found, summaries)
        if found:
            last, self.writing = self._open_last(*found[-1], stored_stop, mendable=mendable)
            self.segments.append(last)

    def _found(self, names: list[str], first: int) -> list[tuple[int, str]]:
        """Return the bases of the existing segments, and their names if compaction has made them."""
        plain: list[int] = []
        compacted: list[tuple[int, int, int, str]] = []
        for name in names:
            if name.endswith(SEGMENT):
                stem = name.removesuffix(SEGMENT)
                base, *more = map(int, stem.split("-"))
                if more:
                    compacted.append((more[1], base, more[0], stem))
                else:
                    plain.append(base)
        found: list[tuple[int, str]] = []
        replaced: list[range] = []
        for generation, base, stop, stem in sorted(compacted, reverse=True):
            self.generation = max(self.generation, generation)
            if not any(base in each for each in replaced):
                replaced.append(range(base, stop))
                found.append((base, stem))
        found += [(base, "") for base in plain if not any(base in each for each in replaced)]
        return sorted(each for each in found if each[0] >= first)

    def _remove_remains(self, names: list[str], found: list[tuple[int, str]]) -> None:
        """Remove the leftovers of a crash: segments that were being trimmed or had been compacted, unfinished
        segments of a compaction, and indexes without a segment.

        None of them may come back when `first`, or a segment of that name, is written again.
        """
        known = {self.path(stem or base, suffix).name for base, stem in found for suffix in (SEGMENT, INDEX)}
        remains = [name for name in names if name.endswith((SEGMENT, INDEX, NEW)) and name not in known]
        for name in remains:
            self.files.remove(self.directory / name)
        if remains:
            self.files.sync_names(self.directory)

    def _all_sealed(self, found: list[tuple[int, str]], summaries: Summaries) -> list[Segment]:
        """Return all segments except the last one."""
        known = summaries.read() if len(found) > 1 else {}
        segments: list[Segment] = []
        looked: list[Segment] = []
        for (base, stem), (following, _) in pairwise(found):
            segment = known.get(stem or base)
            if segment is None or not self._is_believable(segment, following):
                segment = self._sealed(base, stem, following)
                looked.append(segment)
            segments.append(segment)
        if looked:
            summaries.add(looked)
        summaries.tidy(segments)
        return segments

    def _is_believable(self, segment: Segment, following: int) -> bool:
        return segment.stop == following and segment.size == self.files.size(
            self.path(segment.where, SEGMENT)
        )

    def _sealed(self, base: int, stem: str, following: int | None = None) -> Segment:
        """A segment that gets no more batches; the next one begins at `following`."""
        where = stem or base
        path = self.path(where, INDEX)
        try:
            entries = index.decode(self.files.read(path, 0, index.ENTRY_BYTES))
            entries += index.decode(
                self.files.read(path, self.files.size(path) - index.ENTRY_BYTES, index.ENTRY_BYTES)
            )
        except (OSError, ValueError):
            entries = []
        seal = entries[1] if len(entries) == 2 and entries[1].kind == index.SEAL else None
        if seal is not None and (following is None or seal.offset <= following):
            return Segment(base, seal.position, seal.offset, entries[0].time_ms, seal.time_ms, stem)
        logger.warning("the index of %s is damaged and was rebuilt", self.path(where, SEGMENT))
        return self._index_anew(base, stem, following)

    def _index_anew(self, base: int, stem: str, following: int | None) -> Segment:
        """Build the index of a sealed segment again, from the heads of its batches.

        Behind the batches before `following` is what a full disk has refused in part: the stream went on
        without it, in another segment, and gave its offsets to other messages.
        """
        where = stem or base
        path = self.path(where, SEGMENT)
        size = self.files.size(path)
        entries, first_ms = self.entries_anew(where, base, size, following)
        seal = entries[-1]
        if seal.position < size:
            logger.info("%s: removed %d bytes at the end that were never stored", path, size - seal.position)
            self.files.cut(path, seal.position)
        self._keep_index(where, entries)
        return Segment(base, seal.position, seal.offset, first_ms, seal.time_ms, stem)

    def _keep_index(self, where: Where, entries: list[Entry]) -> bool:
        """Write an index; return whether the disk had room. Without an index, a search reads through the
        segment.
        """
        try:
            self.write_index(where, entries)
        except OSError as error:
            if error.errno not in FULL:
                raise
            logger.warning("the disk is full: %s", error)
            # Its old content may be wrong.
            self.files.remove(self.path(where, INDEX))
            return False
        return True

    def _open_last(
        self, base: int, stem: str, stored_stop: int, *, mendable: bool
    ) -> tuple[Segment, Writing]:
        if stem:
            # The part after it is missing.
            return self._sealed(base, stem), Writing()
        path = self.path(base, SEGMENT)
        size = self.files.size(path)
        data = self.index_bytes(base)
        entries = index.decode(data)
        if entries and entries[-1].kind == index.SEAL and entries[-1].position == size:
            seal = entries[-1]
            return Segment(base, size, seal.offset, entries[0].time_ms, seal.time_ms), Writing()
        entries = self._believable(base, [entry for entry in entries if entry.kind == index.BATCH], size)
        position, expected, last_ms = 0, base, 0
        if entries:
            position, expected, last_ms = entries[-1].position, entries[-1].offset, entries[-1].time_ms
        found: list[tuple[int, Head]] = []
        end = position
        for at, head, sound in self.heads(base, position, expected, size, whole=True):
            if (not sound or at > end) and expected >= stored_stop:
                break
            if at > end or head.base > expected:
                self.lost.append(Lost(expected, head.base, f"{path} is damaged at {end}"))
            if not sound:
                self.lost.append(Lost(head.base, head.stop, f"{path} is damaged at {at}"))
            found.append((at, head))
            end, expected, last_ms = at + head.size, head.stop, head.time_ms
        sealed = False
        unsynced = expected > stored_stop
        if expected >= stored_stop or mendable:
            if end < size:
                why = "were not synced" if expected >= stored_stop else "are damaged"
                logger.info("%s: removed %d bytes at the end that %s", path, size - end, why)
                self.files.cut(path, end)
                unsynced = True
        else:
            self.lost.append(Lost(expected, stored_stop, f"{path} is damaged from {end} on"))
            end, sealed = size, True
        if unsynced:
            # Sound data that was perhaps not synced counts as stored from now on.
            self.files.sync(path)
        entries += spaced(found, entries[-1].position if entries else -1)
        first_ms = entries[0].time_ms if entries else 0
        if b"".join(map(index.encode, entries)) != data and not self._keep_index(base, entries):
            entries = []
        indexed = entries[-1].position if entries else -1
        writing = Writing(len(entries) * index.ENTRY_BYTES, indexed, sealed)
        return Segment(base, end, expected, first_ms, last_ms), writing

    def _believable(self, base: int, entries: list[Entry], size: int) -> list[Entry]:
        """Drop entries at the end that point beyond the segment, or not at their batch."""
        while entries:
            last = entries[-1]
            if last.position < size:
                try:
                    data = self.files.read(self.path(base, SEGMENT), last.position, HEAD_BYTES)
                    if batches.decode_head(data).base == last.offset:
                        break
                except Damaged:
                    pass
            entries.pop()
        return entries
