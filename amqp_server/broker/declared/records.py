"""Records of exchanges, queues and bindings, which every node has and stores."""

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
#: Table of this node's own records of queues: slots of the delivered marks.
MARKS = "marks"
#: Default number of producers with a sequence that a queue remembers.
DEDUPLICATION_PRODUCERS = 100_000
#: Arguments that thousands of queues share are kept once, if they are not larger than this number of bytes…
SHARED_BYTES_MAX = 1024
#: …or too diverse.
SHARED_MAX = 1024
#: Encoded length of a table without fields.
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
    #: The queue type, if the arguments do not name it.
    type: str = "classic"
    #: Home node of a queue that is not replicated.
    node: str = ""
    #: Incarnation of that node, for a queue that ends with that incarnation.
    incarnation: int = 0
    #: Nodes of a replicated queue.
    members: tuple[str, ...] = ()
    #: The preferred leader.
    leader: str = ""
    #: Number of producers with a sequence that the queue remembers. All nodes must remember the same, so the
    #: configuration of the node where the queue was declared decides.
    deduplication_producers: int = DEDUPLICATION_PRODUCERS
    #: The first members of its group, if the members have changed since.
    founders: tuple[str, ...] = ()
    #: True if an operator has paused it: it hands out nothing, or takes no messages from clients.
    deliveries_paused: bool = False
    publishes_paused: bool = False
    #: True if an operator has to lift the protection before anybody can delete it.
    protected_from_deletion: bool = False

    @property
    def is_paused(self) -> bool:
        return self.deliveries_paused or self.publishes_paused


def shared(record: QueueRecord) -> QueueRecord:
    """Return the record with shared objects for values that other queues also have."""
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
    """Return the arguments of a queue. Do not change them: other queues may share them."""
    return shared_table(record.arguments)


def shared_table(arguments: bytes) -> Mapping[str, object]:
    """Return one shared table for all queues with these arguments. Do not change it."""
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
    #: The node and incarnation with which a transient exchange ends.
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
        """Return the key of the record: the same for all records of one binding.

        The order of the arguments is not a part of the binding. Earlier versions may have stored records
        under unordered arguments.
        """
        arguments = self.arguments
        if len(arguments) > EMPTY_TABLE_BYTES:
            arguments = tables.encode(_ordered_table(tables.decode(arguments)))
        return key(self.vhost, self.source, self.destination, self.kind, self.routing_key, arguments.hex())


def _ordered_table(table: Mapping[str, object]) -> dict[str, object]:
    return {name: _ordered(table[name]) for name in sorted(table)}


def _ordered(value: object) -> object:
    """Return the same value for all field values with the same exchanges.field.token."""
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
    """Encode arguments as a field table. Raises PreconditionFailed for values without an AMQP type."""
    try:
        return tables.encode(arguments)
    except tables.TableError as error:
        raise PreconditionFailed(f"arguments that cannot be stored: {error}") from None


def key(*names: str) -> str:
    """Return a digest as the key, because names may be longer than a key of LMDB."""
    text = "".join(f"{len(name)}:{name}" for name in names)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()
