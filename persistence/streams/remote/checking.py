"""Compares the objects of a store with the manifests of streams. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from persistence.streams.remote.manifest import OBJECT, Manifest
from persistence.streams.remote.objects import Found


class Compared(NamedTuple):
    """Of one stream. All lists have keys."""

    #: Objects that the manifest has, and the store has not, or not whole.
    missing: list[str]
    #: Objects that the manifest has not, and never will have.
    orphans: list[str]
    #: Objects behind the manifest: an upload is in progress, or was interrupted and comes again.
    unfinished: list[str]


def compare(manifest: Manifest, first_offset: int, found: Iterable[Found]) -> Compared:
    """Compare a stream's manifest with all objects of a store. The manifest gets no range of messages before
    `first_offset`.
    """
    sizes = {each.key: each.size for each in found if identity_of(each.key) == manifest.identity}
    missing: list[str] = []
    for each in manifest.ranges:
        key = manifest.key(each)
        if sizes.pop(key, -1) != each.object_bytes:
            missing.append(key)
    stop = max(manifest.stop, first_offset)
    orphans = [key for key in sizes if last_of(key) < stop]
    return Compared(missing, orphans, [key for key in sizes if last_of(key) >= stop])


def identity_of(key: str) -> str:
    return key.partition("/")[0]


def last_of(key: str) -> int:
    """Return the last offset in a key; a number above all offsets if the key is none of a stream."""
    parts = key.partition("/")[2].removesuffix(OBJECT).split("-")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else 1 << 63


__all__ = ["Compared", "compare", "identity_of"]
