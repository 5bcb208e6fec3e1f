"""Room for more queues, exchanges and bindings: one place decides, for every way to make them.

The proposer of a declaration asks here before it proposes it, and every node asks again when it applies it:
two nodes may take the last place at the same moment. All nodes have to decide alike then, so they compare
with the limits in the operation, which are those of its proposer, and not with limits of their own. See
docs/adr/0043-room-for-declarations.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.broker.declared.operations import Room
from amqp_server.errors import PreconditionFailed
from quorum_queue.machine import versions

if TYPE_CHECKING:
    from amqp_server.broker.topology.vhost import VHost


def room_of(vhost: VHost) -> Room:
    """Return the limits of this node."""
    config = vhost.parts.config
    return Room(config.queues_max, config.exchanges_max, config.bindings_max)


def told_room(vhost: VHost) -> Room | None:
    """Return the limits for an operation; None while a node of the cluster does not know them."""
    return room_of(vhost) if vhost.parts.replication.version >= versions.ROOM else None


def queues_refused(vhost: VHost, name: str, room: Room, count: int = 1) -> str | None:
    """Return the error if the vhost or the cluster has no room for `count` more queues, in RabbitMQ's words.
    `name` is that of the queue, or of the super stream.
    """
    parts = vhost.parts
    limit = parts.runtime.limits.queues_of_vhost(vhost.name)
    if 0 <= limit < len(vhost.queues) + count:
        return f"cannot declare queue '{name}': queue limit in vhost '{vhost.name}' ({limit}) is reached"
    if parts.counts.queues + count > room.queues:
        return f"cannot declare queue '{name}': queue limit in cluster ({room.queues}) is reached"
    return None


def exchanges_refused(vhost: VHost, name: str, room: Room) -> str | None:
    """Return the error if the cluster has no room for another exchange, in RabbitMQ's words."""
    if vhost.parts.counts.exchanges < room.exchanges:
        return None
    return f"cannot declare exchange '{name}' in vhost '{vhost.name}': exchange limit of {room.exchanges} is reached"


def bindings_refused(vhost: VHost, source: str, room: Room, count: int = 1) -> str | None:
    """Return the error if the cluster has no room for `count` more bindings."""
    if vhost.parts.counts.bindings + count <= room.bindings:
        return None
    return f"cannot bind to exchange '{source}' in vhost '{vhost.name}': binding limit of {room.bindings} is reached"


def super_stream_refused(vhost: VHost, name: str, room: Room, count: int) -> str | None:
    """Return the error if there is no room for a super stream, or for `count` more partitions of it."""
    new = vhost.router.get(name) is None
    return (
        (exchanges_refused(vhost, name, room) if new else None)
        or queues_refused(vhost, name, room, count)
        or bindings_refused(vhost, name, room, count)
    )


def check(refused: str | None) -> None:
    """Raises PreconditionFailed if there is an error."""
    if refused is not None:
        raise PreconditionFailed(refused)


__all__ = [
    "bindings_refused",
    "check",
    "exchanges_refused",
    "queues_refused",
    "room_of",
    "super_stream_refused",
    "told_room",
]
