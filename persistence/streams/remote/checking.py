"""Compares the objects of a store with the manifests of streams. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from persistence.streams.remote.manifest import OBJECT, Manifest
from persistence.streams.remote.objects import Found
from persistence.streams.remote.table import identity_of_table, is_table_file, offsets_of_table, table_key


class Compared(NamedTuple):
    """Of one stream. All lists have keys."""

    #: Objects that the manifest has, and the store has not, or not whole.
    missing: list[str]
    #: Objects that the manifest has not, and never will have.
    orphans: list[str]
    #: Objects behind the manifest: an upload is in progress, or was interrupted and comes again.
    unfinished: list[str]
    #: Number of files of its table.
    table_files: int


def compare(
    manifest: Manifest,
    first_offset: int,
    found: Iterable[Found],
    table: str = "",
    table_stop: int = 0,
) -> Compared:
    """Compare a stream's manifest with all objects of a store. The manifest gets no range of messages before
    `first_offset`. Files of the stream's table are in the directory `table`, and the table has all messages
    before `table_stop`.
    """
    sizes = {each.key: each.size for each in found if identity_of(each.key) == manifest.identity}
    files = {key for key in sizes if is_table_file(key)}
    for key in files:
        del sizes[key]
    missing: list[str] = []
    for each in manifest.ranges:
        key = manifest.key(each)
        if sizes.pop(key, -1) != each.object_bytes:
            missing.append(key)
    stop = max(manifest.stop, first_offset)
    orphans = [key for key in sizes if last_of(key) < stop]
    unfinished = [key for key in sizes if last_of(key) >= stop]
    due = {table_key(table, manifest.identity, each.first, each.stop): each for each in manifest.ranges}
    missing += [key for key, each in due.items() if each.stop <= table_stop and key not in files]
    # A file that another node writes may be of a range that this one does not know yet.
    orphans += sorted(key for key in files - due.keys() if offsets_of_table(key)[1] <= stop)
    return Compared(missing, orphans, unfinished, len(files & due.keys()))


def identity_of(key: str) -> str:
    """Return the identity of the stream that an object belongs to; if to none, the first part of the key."""
    return identity_of_table(key) or key.partition("/")[0]


def last_of(key: str) -> int:
    """Return the last offset in a key; a number above all offsets if the key is none of a stream."""
    parts = key.partition("/")[2].removesuffix(OBJECT).split("-")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else 1 << 63


__all__ = ["Compared", "compare", "identity_of"]
