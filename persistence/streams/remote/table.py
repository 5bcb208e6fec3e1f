"""A stream as a table: the names of its files in the object store, and what is asked of the process that
writes them.

Each range of a manifest has one file with its messages as rows. The name of a file follows from the range,
and all members of a stream have the same ranges. So any of them writes the same rows under the same name, and
no list of files is needed: what the directory has is the table. Files are written in the order of the ranges,
so a file exists if a later one does.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from persistence.streams.remote.manifest import Range
from persistence.streams.remote.objects import Found
from persistence.streams.segment import Segment

#: What all keys of tables begin with, and their extension.
TABLES: Final = "tables"
TABLE_FILE: Final = ".parquet"
#: The format of the files, as arguments and policies name it.
PARQUET: Final = "parquet"
#: Longer names of virtual hosts and streams are cut in keys, and get a digest.
NAME_BYTES_MAX: Final = 120
#: Characters of names that stand for themselves in keys. Object stores, file systems, shells and SQL take
#: them as they are; the first one must not be of those behind which files are hidden.
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
_HIDES: Final = frozenset(b"_.")


class TableName(NamedTuple):
    """The table of a stream."""

    #: The store's name in the configuration.
    remote: str
    vhost: str
    stream: str
    #: See persistence.streams.remote.manifest.
    identity: str

    @property
    def directory(self) -> str:
        return table_directory(self.vhost, self.stream)

    def key(self, first: int, stop: int) -> str:
        """Return the key of the file with the messages of these offsets."""
        return table_key(self.directory, self.identity, first, stop)


class Find(NamedTuple):
    """Find the offset behind the last message that the table has; -1 if it has none of these ranges."""

    table: TableName
    #: First offsets and offsets behind the last ones, rising.
    ranges: tuple[tuple[int, int], ...]


class Write(NamedTuple):
    """Write the file of a range, unless the store has it."""

    table: TableName
    range: Range
    #: Where the segments on the disk are, those that have messages of the range.
    directory: str
    segments: tuple[Segment, ...]


class Cut(NamedTuple):
    """The table forgets the messages before this offset; their files are deleted afterwards."""

    table: TableName
    before: int


class Drop(NamedTuple):
    """The stream is deleted, and so is its table."""

    table: TableName


Job = Find | Write | Cut | Drop
JOBS: Final[dict[str, type[Find] | type[Write] | type[Cut] | type[Drop]]] = {
    "find": Find,
    "write": Write,
    "cut": Cut,
    "drop": Drop,
}
_NAMES: Final = {kind: name for name, kind in JOBS.items()}
_front_decoder = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


def can_write_tables() -> bool:
    """Return whether the library for the files is installed; this does not load it."""
    from importlib.util import find_spec

    return find_spec("pyarrow") is not None


def encode_job(job: Job) -> bytes:
    return msgspec.msgpack.encode((_NAMES[type(job)], job))


def decode_job(data: bytes) -> Job:
    """Raises msgspec.MsgspecError, KeyError."""
    name, raw = _front_decoder.decode(data)
    return msgspec.msgpack.decode(raw, type=JOBS[name])


def table_directory(vhost: str, stream: str) -> str:
    """Return what the keys of a stream's table begin with."""
    return f"{TABLES}/{_as_part(vhost)}/{_as_part(stream)}"


def table_key(directory: str, identity: str, first: int, stop: int) -> str:
    return f"{directory}/{first:020}-{stop - first:010}-{identity}{TABLE_FILE}"


def identity_of_table(key: str) -> str:
    """Return the identity of the stream in the key of a file; empty if it is none of a table."""
    parts = key.removesuffix(TABLE_FILE).rpartition("/")[2].split("-", 2)
    return parts[2] if is_table_file(key) and len(parts) == 3 else ""


def offsets_of_table(key: str) -> tuple[int, int]:
    """Return the first offset and the one behind the last in the key of a file."""
    first, count, _ = key.rpartition("/")[2].split("-", 2)
    return int(first), int(first) + int(count)


def is_table_file(key: str) -> bool:
    return key.startswith(f"{TABLES}/") and key.endswith(TABLE_FILE)


def files_of(found: list[Found], identity: str) -> list[str]:
    """Return the keys of a stream's files among these objects."""
    return [each.key for each in found if identity_of_table(each.key) == identity]


def _as_part(name: str) -> str:
    """Return the name of a virtual host or stream as a part of a key: different ones for different names."""
    encoded = name.encode()
    parts: list[str] = []
    for at, byte in enumerate(encoded):
        plain = byte in _PLAIN and (at or byte not in _HIDES)
        parts.append(chr(byte) if plain else f"@{byte:02x}")
    joined = "".join(parts) or "@"
    if len(joined) <= NAME_BYTES_MAX:
        return joined
    return f"{joined[:NAME_BYTES_MAX]}@@{blake2b(encoded, digest_size=8).hexdigest()}"


__all__ = [
    "JOBS",
    "NAME_BYTES_MAX",
    "PARQUET",
    "TABLES",
    "TABLE_FILE",
    "Cut",
    "Drop",
    "Find",
    "Job",
    "TableName",
    "Write",
    "can_write_tables",
    "decode_job",
    "encode_job",
    "files_of",
    "identity_of_table",
    "is_table_file",
    "offsets_of_table",
    "table_directory",
    "table_key",
]
