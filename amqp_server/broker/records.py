"""Records of exchanges, queues and bindings: what every node knows of them, and how they stand on disk."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from amqp_server.errors import PreconditionFailed
from amqp_server.wire import tables

QUEUES, EXCHANGES, BINDINGS = "queues", "exchanges", "bindings"
#: Table of what only this node knows of a queue: its slots of the delivered marks.
MARKS = "marks"
#: Producers with a sequence that a queue remembers, unless the node where it is declared is configured otherwise.
DEDUPLICATION_PRODUCERS = 100_000
#: Arguments that thousands of queues share are kept once, if they are not larger than this, bytes…
SHARED_BYTES_MAX = 1024
#: …or too diverse.
SHARED_MAX = 1024
#: A table without fields is only its length.
EMPTY_TABLE_BYTES = 4


class QueueRecord(msgspec.Struct, frozen=True):
    vhost: str
    name: str
    queue_id: int
    auto_delete: bool
    arguments: bytes
    durable: bool = True
    exclusive: bool = False
    #: Number of the session that an exclusive queue belongs to, at `node` in its `incarnation`.
    owner: int = 0
    #: classic or quorum, where the arguments do not say it.
    type: str = "classic"
    #: Home node of a queue that is not replicated.
    node: str = ""
    #: Incarnation of that node, for a queue that goes with it.
    incarnation: int = 0
    #: Nodes of a replicated queue.
    members: tuple[str, ...] = ()
    #: Node that is to lead it.
    leader: str = ""
    #: Producers with a sequence that it remembers, by the configuration of the node where it was declared: all nodes
    #: must remember the same.
    deduplication_producers: int = DEDUPLICATION_PRODUCERS
    #: The nodes that it was declared on, if its members have changed since: its group began with them.
    founders: tuple[str, ...] = ()


def shared(record: QueueRecord) -> QueueRecord:
    """Return the record with what other queues have alike as one and the same object."""
    arguments = record.arguments
    return msgspec.structs.replace(
        record,
        vhost=sys.intern(record.vhost),
        arguments=_arguments(arguments)[0] if len(arguments) <= SHARED_BYTES_MAX else arguments,
        type=sys.intern(record.type),
        node=sys.intern(record.node),
        members=_members(record.members),
        founders=_members(record.founders),
        leader=sys.intern(record.leader),
    )


def arguments_of(record: QueueRecord) -> Mapping[str, object]:
    """Return the arguments of a queue, not to be changed: other queues may have them, too."""
    return shared_table(record.arguments)


def shared_table(arguments: bytes) -> Mapping[str, object]:
    """Return the table, not to be changed: the same one to all that have the same arguments."""
    return _arguments(arguments)[1] if len(arguments) <= SHARED_BYTES_MAX else tables.decode(arguments)


@lru_cache(maxsize=SHARED_MAX)
def _arguments(encoded: bytes) -> tuple[bytes, Mapping[str, object]]:
    return encoded, tables.decode(encoded)


@lru_cache(maxsize=SHARED_MAX)
def _members(members: tuple[str, ...]) -> tuple[str, ...]:
    return members


class ExchangeRecord(msgspec.Struct, frozen=True):
    vhost: str
    name: str
    type: str
    auto_delete: bool
    internal: bool
    arguments: bytes
    durable: bool = True
    #: The node that a transient exchange goes with, in this incarnation.
    node: str = ""
    incarnation: int = 0


class BindingRecord(msgspec.Struct, frozen=True):
    vhost: str
    source: str
    destination: str
    kind: str
    routing_key: str
    arguments: bytes

    @property
    def key(self) -> str:
        """Return what the record is stored under: the same for all records of one binding.

        The order of the arguments is not a part of the binding. Records of earlier versions may be stored as they came.
        """
        arguments = self.arguments
        if len(arguments) > EMPTY_TABLE_BYTES:
            arguments = tables.encode(_ordered_table(tables.decode(arguments)))
        return key(self.vhost, self.source, self.destination, self.kind, self.routing_key, arguments.hex())


def _ordered_table(table: Mapping[str, object]) -> dict[str, object]:
    return {name: _ordered(table[name]) for name in sorted(table)}


def _ordered(value: object) -> object:
    """Return what is the same for all values that exchanges.field.token takes for the same."""
    if isinstance(value, Mapping):
        return _ordered_table(value)
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    if isinstance(value, float):
        # There are two zeros and many NaNs.
        return value + 0.0 if value == value else math.nan
    return value


class MarksRecord(msgspec.Struct, frozen=True):
    slots: list[int]


def encoded(arguments: Mapping[str, object]) -> bytes:
    """Encode arguments as the field table that they were. Raises PreconditionFailed for what has no type."""
    try:
        return tables.encode(arguments)
    except tables.TableError as error:
        raise PreconditionFailed(f"arguments that cannot be stored: {error}") from None


def key(*names: str) -> str:
    """A digest, because names may be longer than a key of LMDB."""
    text = "".join(f"{len(name)}:{name}" for name in names)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()
