"""The files of a stream's table (docs/tables.md): their names, and which of them have the offsets of a range.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

EXTENSION = ".parquet"
#: In the names of directories: what stands for itself, but for the first character of the second kind.
_OTHER = re.compile(rb"[^A-Za-z0-9_.-]|\A[_.]")
#: Longer names are cut, and end with a digest.
NAME_BYTES_MAX, DIGEST_BYTES = 120, 8
#: First offset, number of offsets, identity of the stream.
_NAME = re.compile(r"(\d{20})-(\d{10,})-(.+)" + re.escape(EXTENSION))


class TableFile(NamedTuple):
    """Has the messages of the offsets from `first` to the one before `stop`."""

    path: str
    first: int
    stop: int
    #: Names the stream: one of the same name that was declared again has another one.
    identity: str


class Part(NamedTuple):
    """Offsets up to `end`, which is not one of them, that are read from one place."""

    start: int
    end: int
    #: None: from the broker.
    file: TableFile | None


def directory_of(vhost: str, queue: str) -> str:
    """Return the directory of a stream's table in its store."""
    return f"tables/{_part(vhost)}/{_part(queue)}"


def _part(name: str) -> str:
    raw = name.encode()
    text = _OTHER.sub(lambda match: b"@%02x" % match[0][0], raw).decode() or "@"
    if len(text) <= NAME_BYTES_MAX:
        return text
    return f"{text[:NAME_BYTES_MAX]}@@{blake2b(raw, digest_size=DIGEST_BYTES).hexdigest()}"


def file_of(path: str) -> TableFile | None:
    """Return the file of a path; None if it is none of a table."""
    found = _NAME.fullmatch(path.rpartition("/")[2])
    if found is None:
        return None
    first = int(found[1])
    return TableFile(path, first, first + int(found[2]), found[3])


def within(start: int, end: int, files: Sequence[TableFile]) -> tuple[TableFile, ...]:
    """Return the files that have any of these offsets, by their offsets."""
    return tuple(sorted((each for each in files if each.first < end and each.stop > start), key=_first))


def _first(file: TableFile) -> int:
    return file.first


def parts(start: int, end: int, files: Sequence[TableFile]) -> list[Part]:
    """Return where each offset of a range is read, each once and in order: in a file if there is one."""
    found: list[Part] = []
    at = start
    for file in within(start, end, files):
        low, high = max(file.first, at), min(file.stop, end)
        if low >= high:
            continue
        if at < low:
            found.append(Part(at, low, None))
        found.append(Part(low, high, file))
        at = high
    if at < end:
        found.append(Part(at, end, None))
    return found


__all__ = ["Part", "TableFile", "directory_of", "file_of", "parts", "within"]
