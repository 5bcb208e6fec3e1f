"""Manifests by chance, against what was added and what was deleted; and the decisions that follow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from persistence.streams.remote.checking import compare
from persistence.streams.remote.manifest import (
    Manifest,
    Range,
    deleted_before,
    due_ms,
    next_upload,
    trimmed_before,
)
from persistence.streams.remote.objects import Found
from persistence.streams.retention import RetentionLimits
from persistence.streams.segment import Segment

NONE = RetentionLimits()


def range_of(first: int, stop: int, checksum: str = "c") -> Range:
    return Range(first, stop, (stop - first) * 10, 32, first, stop, checksum)


def segment_of(base: int, stop: int) -> Segment:
    return Segment(base, (stop - base) * 10, stop, base, stop)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 9), st.integers(0, 60))))
def test_ranges_rise_and_do_not_overlap(steps: list[tuple[int, int, int, int]]) -> None:
    manifest, first_offset = Manifest("i", "r"), 0
    for after, first, count, deleted in steps:
        added = manifest.with_range(after, range_of(first, first + count), first_offset)
        if added is not None:
            assert first >= max(manifest.stop, first_offset)
            assert not manifest.ranges or after == manifest.stop
            assert added.ranges[:-1] == manifest.ranges
            manifest = added
        elif not manifest.ranges:
            assert first < first_offset
        if deleted > first_offset and deleted % 3 == 0:
            first_offset = deleted
            left, removed = manifest.without_before(deleted)
            assert (*removed, *left.ranges) == manifest.ranges
            assert all(each.stop <= deleted for each in removed)
            assert all(each.stop > deleted for each in left.ranges)
            manifest = left
        stops = [0, *(each.stop for each in manifest.ranges)]
        assert all(each.first >= stop for each, stop in zip(manifest.ranges, stops, strict=False))


#: Ends of consecutive segments, and how many of them the store has.
TIERS = st.tuples(
    st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 12), st.integers(0, 12)
)


def tiers_of(sizes: list[int], uploaded: int, local: int) -> tuple[tuple[Range, ...], list[Segment]]:
    """Return ranges and segments: the last segment is being written; the disk has what the store lacks."""
    stops = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    pairs = list(zip([0, *stops], stops, strict=False))
    uploaded = min(uploaded, len(pairs) - 1)
    begin = min(local, uploaded)
    return (
        tuple([range_of(low, stop) for low, stop in pairs[:uploaded]]),
        [segment_of(low, stop) for low, stop in pairs[begin:]],
    )


@given(TIERS, st.integers(1, 300), st.integers(0, 100))
def test_what_may_leave(tiers: tuple[list[int], int, int], most: int, now_ms: int) -> None:
    ranges, segments = tiers_of(*tiers)
    stop = ranges[-1].stop if ranges else 0
    for limits in (RetentionLimits(max_bytes=most), RetentionLimits(max_age_ms=most % 50 + 1)):
        offset = trimmed_before(segments, stop, limits, now_ms)
        # Only what the store has leaves the disk, and never the segment that is written.
        assert offset <= stop and offset <= segments[-1].base
        left = [each for each in segments if each.stop > offset]
        if limits.max_bytes is not None and sum(each.size for each in left) > most:
            assert left[0].stop > stop or len(left) == 1
        deleted = deleted_before(ranges, segments, limits, now_ms)
        total: list[Range | Segment] = [*ranges, *(each for each in segments if each.stop > stop)]
        kept = [each for each in total if each.stop > deleted]
        if limits.max_bytes is not None:
            assert sum(each.size for each in kept) <= most or len(kept) == 1
            gone = [each for each in total if each.stop <= deleted]
            assert not gone or sum(each.size for each in [gone[-1], *kept]) > most
        due = due_ms(ranges, segments, limits, NONE)
        if limits.max_age_ms is not None and not deleted:
            assert due is not None and due > now_ms
    assert trimmed_before(segments, stop, NONE, now_ms) == 0


@given(TIERS)
def test_the_next_upload_is_the_oldest_that_the_store_lacks(tiers: tuple[list[int], int, int]) -> None:
    ranges, segments = tiers_of(*tiers)
    stop = ranges[-1].stop if ranges else 0
    found = next_upload(segments[:-1], stop, 0)
    lacking = [each for each in segments[:-1] if each.stop > stop]
    assert found == (lacking[0] if lacking else None)


def test_objects_are_compared_with_the_manifest() -> None:
    manifest = Manifest("i", "r", (range_of(0, 10), range_of(10, 20), range_of(20, 30)))
    keys = [manifest.key(each) for each in manifest.ranges]
    late, ahead = range_of(10, 25, "other"), range_of(30, 40)
    found = [
        Found(keys[0], manifest.ranges[0].object_bytes),
        Found(keys[1], 5),
        Found(manifest.key(late), 9),
        Found(manifest.key(ahead), 9),
        Found("i/notes.txt", 1),
        Found("other/key", 1),
    ]
    compared = compare(manifest, 0, found)
    assert compared.missing == keys[1:]
    assert compared.orphans == [manifest.key(late)]
    assert compared.unfinished == [manifest.key(ahead), "i/notes.txt"]
    empty = Manifest("i", "r")
    assert compare(empty, 0, found).orphans == []
    assert len(compare(empty, 30, found).orphans) == 3
