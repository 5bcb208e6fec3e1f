"""Keys and values of the metadata: small named tables of strings to bytes (vhosts, queues, bindings, users
…).

LMDB keys are bounded (511 bytes), ours are not: a binding names a queue, an exchange and a routing key. A
long key is stored as its beginning and its SHA-256; the value always contains the key itself.
"""

import struct
from collections.abc import Iterable, Iterator
from hashlib import sha256

from persistence.commits.layer import Pending
from persistence.record import seal, unseal

KEY_BYTES_MAX = 480
ABOUT = "about"
LENGTH = struct.Struct(">I")


def table_prefix(table: str) -> bytes:
    return table.encode() + b"\0"


def stored_key(table: str, key: str) -> bytes:
    name = table_prefix(table) + key.encode("utf-8", "surrogatepass")
    if len(name) <= KEY_BYTES_MAX:
        return name
    return name[: KEY_BYTES_MAX - 32] + sha256(name).digest()


def pack_entry(stored: bytes, key: str, value: bytes) -> bytes:
    name = key.encode("utf-8", "surrogatepass")
    return seal(stored, LENGTH.pack(len(name)) + name + value)


def unpack_entry(stored: bytes, entry: bytes | memoryview) -> tuple[str, bytes]:
    content = unseal(stored, entry, lambda: f"the metadata entry {stored!r}")
    (length,) = LENGTH.unpack_from(content)
    start = LENGTH.size
    return content[start : start + length].decode("utf-8", "surrogatepass"), content[start + length :]


class Metadata:
    """Written with the next commit, read as submitted. A store adds reads of the durable state."""

    pending: Pending

    def put(self, table: str, key: str, value: bytes) -> None:
        self.pending.open.metadata[stored_key(table, key)] = key, value

    def delete(self, table: str, key: str) -> None:
        self.pending.open.metadata[stored_key(table, key)] = key, None

    def get(self, table: str, key: str) -> bytes | None:
        stored = stored_key(table, key)
        for layer in reversed(self.pending.layers):
            if stored in layer.metadata:
                return layer.metadata[stored][1]
        return self._fetch(stored)

    def items(self, table: str) -> Iterator[tuple[str, bytes]]:
        """All present entries of the table, ordered by key."""
        prefix = table_prefix(table)
        entries: dict[bytes, tuple[str, bytes | None]] = dict(self._scan(prefix))
        for layer in self.pending:
            for stored, entry in layer.metadata.items():
                if stored.startswith(prefix):
                    entries[stored] = entry
        return iter([(key, value) for _, (key, value) in sorted(entries.items()) if value is not None])

    def about(self, name: str) -> bytes | None:
        """Notes about the data directory itself, such as the cluster that it belongs to."""
        return self.get(ABOUT, name)

    def set_about(self, name: str, value: bytes) -> None:
        self.put(ABOUT, name, value)

    def _fetch(self, stored: bytes) -> bytes | None:
        raise NotImplementedError

    def _scan(self, prefix: bytes) -> Iterable[tuple[bytes, tuple[str, bytes]]]:
        raise NotImplementedError
