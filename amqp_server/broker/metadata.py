"""A store of named records for users, permissions and vhosts, all of them read at start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

import msgspec

Record = TypeVar("Record", bound=msgspec.Struct)


class Metadata(Protocol):
    """Tables of records. A put or delete reaches the disk with the next commit."""

    def put(self, table: str, key: str, value: bytes) -> None: ...

    def delete(self, table: str, key: str) -> None: ...

    def items(self, table: str) -> Iterable[tuple[str, bytes]]: ...


#: First byte of each record, raised when the meaning of a record changes.
RECORD_VERSION = 1


class UnreadableRecord(Exception):
    """A record that this version of the broker cannot read."""


def encode(record: msgspec.Struct) -> bytes:
    return bytes((RECORD_VERSION,)) + msgspec.json.encode(record)


def decode(table: str, key: str, value: bytes, kind: type[Record]) -> Record:
    if value[:1] != bytes((RECORD_VERSION,)):
        raise UnreadableRecord(f"record {key!r} of {table} has version {value[:1]!r}, not {RECORD_VERSION}")
    try:
        return msgspec.json.decode(value[1:], type=kind)
    except msgspec.MsgspecError as failure:
        raise UnreadableRecord(f"record {key!r} of {table}: {failure}") from None
