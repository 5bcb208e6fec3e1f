"""The segments of a manifest, of which only what has changed is made anew."""

from __future__ import annotations

from random import Random
from typing import Any, cast

from persistence.streams.remote.cache import ObjectCache
from persistence.streams.remote.manifest import Manifest, Range
from persistence.streams.remote.reading import RemoteSegments


def shown(manifest: Manifest, by: RemoteSegments | None = None) -> tuple[Any, ...]:
    segments = by or RemoteSegments(cast(Any, None), ObjectCache(0))
    segments.show(manifest)
    return segments.segments, segments.stop, dict(segments._objects.ranges)


def added(manifest: Manifest, random: Random) -> Manifest:
    first = manifest.stop + random.choice((0, 0, 3))
    more = Range(first, first + random.randint(1, 9), 100, 24, first, first, f"{random.random()}")
    found = manifest.with_range(manifest.stop, more, 0)
    assert found is not None
    return found


def test_whatever_has_changed_the_same_is_shown() -> None:
    random = Random(7)
    reader = RemoteSegments(cast(Any, None), ObjectCache(0))
    manifest = Manifest("identity", "archive")
    earlier = [manifest]
    for _ in range(500):
        what = random.random()
        if what < 0.5:
            for _ in range(random.randint(0, 3)):
                manifest = added(manifest, random)
        elif what < 0.8:
            manifest, _ = manifest.without_before(random.randint(manifest.first, manifest.stop))
        elif what < 0.9:
            # A snapshot has ranges of its own.
            manifest = Manifest("identity", "archive", tuple(Range(*each) for each in manifest.ranges))
        else:
            manifest = random.choice(earlier)
        earlier = [*earlier[-20:], manifest]
        assert shown(manifest, reader) == shown(manifest)


def test_what_has_not_changed_is_kept() -> None:
    random = Random(1)
    reader = RemoteSegments(cast(Any, None), ObjectCache(0))
    manifest = Manifest("identity", "archive")
    for _ in range(100):
        manifest = added(manifest, random)
    reader.show(manifest)
    before = reader.segments
    reader.show(added(manifest, random))
    assert all(one is other for one, other in zip(before, reader.segments, strict=False))
    assert len(reader.segments) == 101
