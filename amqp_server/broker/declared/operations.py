"""Changes of the topology as data: a node proposes them, and all nodes apply them in the same order.

The proposer has checked the operation, limits included. When it is applied, only conditions that may have
changed in between are checked again; limits of declarations are among these (see amqp_server.broker.room).
"""

from __future__ import annotations

import msgspec

from amqp_server.broker.access.permissions import Permission, TopicPermission
from amqp_server.broker.access.users import User
from amqp_server.broker.declared.parameters import ParameterRecord
from amqp_server.broker.declared.records import BindingRecord, ExchangeRecord, QueueRecord
from amqp_server.broker.declared.vhosts import VhostRecord

#: First byte of each encoded operation, raised when the meaning of one changes.
OPERATION_VERSION = 1


class UnreadableOperation(ValueError):
    """The bytes are no operation that this version of the broker knows."""


class Room(msgspec.Struct, frozen=True, array_like=True):
    """The limits of the node that proposes a declaration, for all objects of the cluster."""

    queues: int
    exchanges: int
    bindings: int


class PutVhost(msgspec.Struct, frozen=True, array_like=True, tag=1):
    record: VhostRecord


class DeleteVhost(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Deletes a vhost with everything in it, and the permissions for it."""

    name: str


class DeclareExchange(msgspec.Struct, frozen=True, array_like=True, tag=3):
    record: ExchangeRecord
    #: From version ROOM on: limits that are checked again when it is applied; None: no limits.
    room: Room | None = None


class DeleteExchange(msgspec.Struct, frozen=True, array_like=True, tag=4):
    vhost: str
    name: str
    if_unused: bool = False


class Bind(msgspec.Struct, frozen=True, array_like=True, tag=5):
    record: BindingRecord
    #: See DeclareExchange.
    room: Room | None = None


class Unbind(msgspec.Struct, frozen=True, array_like=True, tag=6):
    record: BindingRecord


class DeclareQueue(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The record's id is ignored: the operation's index becomes the queue's id."""

    record: QueueRecord
    #: See DeclareExchange.
    room: Room | None = None


class DeleteQueue(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Deletes exactly this queue, not another one that has got its name since."""

    vhost: str
    name: str
    queue_id: int


class SetMembers(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Sets the members of a replicated queue."""

    vhost: str
    name: str
    queue_id: int
    members: tuple[str, ...]
    leader: str = ""


class PutUser(msgspec.Struct, frozen=True, array_like=True, tag=10):
    user: User
    #: True: accepted even if no administrator is left afterwards.
    forced: bool = False


class DeleteUser(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Deletes the user with its permissions."""

    name: str
    #: True: accepted even if no administrator is left afterwards.
    forced: bool = False


class SetPermission(msgspec.Struct, frozen=True, array_like=True, tag=12):
    permission: Permission


class ClearPermission(msgspec.Struct, frozen=True, array_like=True, tag=13):
    user: str
    vhost: str


class NodeDown(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """A node is down: its transient and exclusive queues and its transient exchanges are deleted.

    Those of later incarnations stay.
    """

    node: str
    incarnation: int


class DeclareSuperStream(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Declares an exchange with partitions, or adds partitions to one: all of it or nothing. See
    broker.super_streams.
    """

    exchange: ExchangeRecord
    #: Number of the first of these partitions; 0 if the exchange is new.
    first: int
    #: Their ids are ignored: the operation's index gives them.
    partitions: tuple[QueueRecord, ...]
    #: See DeclareExchange.
    room: Room | None = None


class PutParameter(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """From version PARAMETERS on. See amqp_server.broker.declared.parameters."""

    record: ParameterRecord


class ClearParameter(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """From version PARAMETERS on."""

    vhost: str
    component: str
    name: str


class SetTopicPermission(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """From version PARAMETERS on."""

    permission: TopicPermission


class ClearTopicPermission(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """From version PARAMETERS on. Without an exchange, for all exchanges."""

    user: str
    vhost: str
    exchange: str = ""


class ReplaceHash(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """From version PARAMETERS on. Replaces the hash by another one of the same password, if the user still
    has the earlier one.
    """

    user: str
    before: str
    after: str


class PauseQueue(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """From version PAUSES on. Pauses (True) or resumes (False) what exactly this queue hands out and takes;
    None leaves it as it is.
    """

    vhost: str
    name: str
    queue_id: int
    deliveries: bool | None = None
    publishes: bool | None = None


class ProtectQueue(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """From version PAUSES on. Protects exactly this queue from deletion, or lifts the protection."""

    vhost: str
    name: str
    queue_id: int
    protected: bool


Operation = (
    PutVhost
    | DeleteVhost
    | DeclareExchange
    | DeleteExchange
    | Bind
    | Unbind
    | DeclareQueue
    | DeleteQueue
    | SetMembers
    | PutUser
    | DeleteUser
    | SetPermission
    | ClearPermission
    | NodeDown
    | DeclareSuperStream
    | PutParameter
    | ClearParameter
    | SetTopicPermission
    | ClearTopicPermission
    | ReplaceHash
    | PauseQueue
    | ProtectQueue
)

_decoder = msgspec.msgpack.Decoder(Operation)


def encode(operation: Operation) -> bytes:
    return bytes((OPERATION_VERSION,)) + msgspec.msgpack.encode(operation)


def decode(data: bytes | memoryview) -> Operation:
    """Decode an operation. Raises UnreadableOperation."""
    version = bytes(data[:1])
    if version != bytes((OPERATION_VERSION,)):
        raise UnreadableOperation(f"an operation has version {version!r}, not {OPERATION_VERSION}")
    try:
        operation: Operation = _decoder.decode(data[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as failure:
        raise UnreadableOperation(f"an operation: {failure}") from None
    return operation
