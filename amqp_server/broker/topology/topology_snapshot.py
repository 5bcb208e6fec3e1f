"""A snapshot of the topology: all its records as bytes, the same on every node that has applied the same
operations.

Ten thousand queues take some tens of milliseconds to encode, so it is done in parts, and other clients have
their turns in between. `TopologyView` is the topology at one moment. It has its own lists of references to
immutable objects (records, bindings), so changes applied meanwhile are not in it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from amqp_server.broker.access.permissions import Permission, TopicPermission
from amqp_server.broker.access.users import User
from amqp_server.broker.declared.parameters import ParameterRecord
from amqp_server.broker.declared.records import (
    DEDUPLICATION_PRODUCERS,
    BindingRecord,
    ExchangeRecord,
    QueueRecord,
)
from amqp_server.broker.declared.vhosts import VhostRecord

if TYPE_CHECKING:
    from amqp_server.broker.topology.parts import BrokerParts

#: First byte of a snapshot.
SNAPSHOT_VERSION = 1
#: Number of fields of the first version's snapshots.
SNAPSHOT_TABLES = 7
#: Records encoded between two checks whether the turn is overdue.
PART_RECORDS = 128
#: Defaults of the fields that later versions added at the end of records. Until the cluster has such a
#: version, the fields must have these values; see amqp_server.cluster.topology_group.
LATER_FIELDS: dict[type, tuple[object, ...]] = {
    QueueRecord: (DEDUPLICATION_PRODUCERS, (), False, False, False),
    VhostRecord: (False,),
}
#: Limits of MessagePack's three forms of an array.
_FIXED_MAX, _SHORT_MAX = 0x0F, 0xFFFF
_SHORT, _LONG = struct.Struct(">BH"), struct.Struct(">BI")

Record = TypeVar("Record", bound=msgspec.Struct)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


class UnreadableSnapshot(ValueError):
    """The bytes are no snapshot that this version of the broker knows."""


class TopologyState(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot: sorted rows with the records' fields. They are decoded one by one."""

    applied: int
    vhosts: list[msgspec.Raw]
    users: list[msgspec.Raw]
    permissions: list[msgspec.Raw]
    exchanges: list[msgspec.Raw]
    queues: list[msgspec.Raw]
    bindings: list[msgspec.Raw]
    #: From version PARAMETERS on. Empty fields at the end are left out, so that earlier versions can read it.
    parameters: list[msgspec.Raw] = []
    topic_permissions: list[msgspec.Raw] = []


class TopologyView:
    """These exchanges, queues and bindings, and the vhosts, users and permissions of now.

    The iterables are read later: they must not show changes made in the meantime.
    """

    def __init__(
        self,
        parts: BrokerParts,
        applied: int,
        *,
        exchanges: Iterable[ExchangeRecord],
        queues: Iterable[QueueRecord],
        bindings: Iterable[BindingRecord],
    ) -> None:
        access, runtime = parts.access, parts.runtime
        self._applied = applied
        #: Iterators in the order of TopologyState.
        self._left: list[Iterator[msgspec.Struct]] = [
            iter(list(parts.vhost_records)),
            iter(list(access.users)),
            iter(list(access.permissions.all())),
            iter(exchanges),
            iter(queues),
            iter(bindings),
            iter(list(runtime.parameters)),
            iter(list(access.permissions.topics())),
        ]
        #: The encoded parts: for each table its number of rows, and the rows.
        self._tables: list[tuple[int, list[bytes]]] = []
        #: Rows of the table that is being encoded, sorted part by part; then the iterator that merges them.
        self._sorted: list[list[tuple[Any, ...]]] = []
        self._merged: Iterator[tuple[Any, ...]] | None = None
        self._count = 0
        self._rows: list[bytes] = []

    @property
    def whole(self) -> bool:
        """True if everything is encoded."""
        return not self._left

    def steps(self) -> Iterator[None]:
        """Encode a part in each step."""
        while self._left:
            self._encode_part()
            yield

    def finish(self) -> bytes:
        """Encode the rest now; return the snapshot."""
        while self._left:
            self._encode_part()
        tables = self._tables
        while not tables[-1][0] and len(tables) >= SNAPSHOT_TABLES:
            # The index is one more field.
            tables = tables[:-1]
        parts = [bytes((SNAPSHOT_VERSION,)), _array(1 + len(tables)), _encode(self._applied)]
        for count, rows in tables:
            parts.append(_array(count))
            parts += rows
        return b"".join(parts)

    def _encode_part(self) -> None:
        if self._merged is None:
            rows = sorted(map(_row, islice(self._left[0], PART_RECORDS)))
            if rows:
                self._sorted.append(rows)
            else:
                self._merged = merge(*self._sorted)
            return
        encoded = [_encode(row) for row in islice(self._merged, PART_RECORDS)]
        self._count += len(encoded)
        self._rows.append(b"".join(encoded))
        if not encoded:
            self._tables.append((self._count, self._rows))
            del self._left[0]
            self._sorted, self._merged, self._count, self._rows = [], None, 0, []


def all_of(parts: Iterable[Iterator[Record]]) -> Iterator[Record]:
    """Return the records of all vhosts. All iterators are made before the first one is read."""
    return chain.from_iterable(list(parts))


def decoded(snapshot: bytes) -> TopologyState:
    """Decode a snapshot. Raises UnreadableSnapshot."""
    if snapshot[:1] != bytes((SNAPSHOT_VERSION,)):
        raise UnreadableSnapshot(f"a snapshot has version {snapshot[:1]!r}, not {SNAPSHOT_VERSION}")
    try:
        return msgspec.msgpack.decode(snapshot[1:], type=TopologyState)
    except (msgspec.MsgspecError, UnicodeDecodeError) as failure:
        raise UnreadableSnapshot(f"a snapshot: {failure}") from None


class TopologyRecords:
    """The records of a snapshot, decoded in parts."""

    def __init__(self, snapshot: bytes) -> None:
        """Begin to decode a snapshot. Raises UnreadableSnapshot."""
        state = decoded(snapshot)
        self.snapshot = snapshot
        self.applied = state.applied
        self.vhosts: list[VhostRecord] = []
        self.users: list[User] = []
        self.permissions: list[Permission] = []
        self.exchanges: list[ExchangeRecord] = []
        self.queues: list[QueueRecord] = []
        self.bindings: list[BindingRecord] = []
        self.parameters: list[ParameterRecord] = []
        self.topic_permissions: list[TopicPermission] = []
        self._left = [
            _reading(VhostRecord, state.vhosts, self.vhosts),
            _reading(User, state.users, self.users),
            _reading(Permission, state.permissions, self.permissions),
            _reading(ExchangeRecord, state.exchanges, self.exchanges),
            _reading(QueueRecord, state.queues, self.queues),
            _reading(BindingRecord, state.bindings, self.bindings),
            _reading(ParameterRecord, state.parameters, self.parameters),
            _reading(TopicPermission, state.topic_permissions, self.topic_permissions),
        ]

    @property
    def whole(self) -> bool:
        """True if all records are made."""
        return not self._left

    def read_part(self) -> None:
        """Make some records. Raises UnreadableSnapshot."""
        if not self._left[0](PART_RECORDS):
            del self._left[0]

    def finish(self) -> None:
        """Make the others. Raises UnreadableSnapshot."""
        while self._left:
            self.read_part()


def _reading(kind: type[Record], rows: list[msgspec.Raw], into: list[Record]) -> Callable[[int], bool]:
    """Return a function that decodes the given number of further records of one table, and returns whether
    there may be more.
    """
    left = iter(rows)

    def read(count: int) -> bool:
        part = [_record(kind, row) for row in islice(left, count)]
        into.extend(part)
        return bool(part)

    return read


def _record(kind: type[Record], encoded: msgspec.Raw) -> Record:
    """Decode a record. Raises UnreadableSnapshot."""
    names, row = kind.__struct_fields__, _decode(encoded)
    if len(row) > len(names):
        raise UnreadableSnapshot(f"a {kind.__name__} has fields that this version of mqd does not know")
    return msgspec.convert(dict(zip(names, row, strict=False)), kind)


def _row(record: msgspec.Struct) -> tuple[Any, ...]:
    """Return the fields of a record, without later fields at the end that have their defaults: nodes of an
    earlier version only read rows with the length that they know.
    """
    row = msgspec.structs.astuple(record)
    for default in reversed(LATER_FIELDS.get(type(record), ())):
        if row[-1] != default:
            break
        row = row[:-1]
    return row


def _array(count: int) -> bytes:
    """Return the MessagePack head of an array of `count` objects."""
    if count <= _FIXED_MAX:
        return bytes((0x90 | count,))
    return _SHORT.pack(0xDC, count) if count <= _SHORT_MAX else _LONG.pack(0xDD, count)


__all__ = [
    "LATER_FIELDS",
    "TopologyRecords",
    "TopologyView",
    "UnreadableSnapshot",
    "all_of",
    "decoded",
]
