"""Which worker a client belongs to: the one that has the queue it uses first.

A client that consumes from a queue, or publishes to it, is served fastest by the process that has the queue:
then no message crosses processes. So the first methods of each connection are looked at before they are
handled, and a connection whose queue is elsewhere is handed over, once.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from pamqp import commands

from amqp_server.broker.reply import PSEUDO_QUEUE
from amqp_server.cluster.membership.machines import machine_of, on_machine
from amqp_server.connection.state import State
from amqp_server.errors import AMQPError
from amqp_server.wire import frames, methods

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.connection.served import Served

#: Frames of one read that are looked at.
FRAMES_MAX: Final = 64
#: Reads after which a connection stays where it is.
READS_MAX: Final = 64


class Place(Enum):
    #: Nothing that was sent says where the client belongs.
    UNKNOWN = "unknown"
    #: It belongs here, or cannot go.
    HERE = "here"


def place_of(session: Served, data: bytes) -> str | Place:
    """Return the worker that has the queue which these methods of a client use, or that there is none."""
    if session.state is not State.RUNNING:
        return Place.UNKNOWN
    pos, end = 0, len(data)
    for _ in range(FRAMES_MAX):
        if end - pos < 7:
            break
        kind, number, size = frames.prefix.unpack_from(data, pos)
        after = pos + size + frames.OVERHEAD
        if after > end:
            break
        if kind == frames.METHOD and number:
            read = _READERS.get(data[pos + 7 : pos + 11])
            if read is not None:
                found = _read(session, read, data[pos + 7 : after - 1])
                if found is not Place.UNKNOWN:
                    return found
        pos = after
    return Place.UNKNOWN


Reader = Callable[["Served", bytes], "Queue | Place"]


def _read(session: Served, read: Reader, payload: bytes) -> str | Place:
    try:
        found = read(session, payload)
    except AMQPError:
        # The session answers it.
        return Place.HERE
    if isinstance(found, Place):
        return found
    if found.exclusive:
        return Place.HERE
    own = session.config.node
    if not found.members:
        return Place.HERE if found.node in (own, "") else found.node
    # A member of this machine serves its clients, whichever leads.
    return next((name for name in on_machine(machine_of(own), found.members) if name != own), Place.HERE)


def _declared(session: Served, payload: bytes) -> Queue | Place:
    method = methods.decode(payload)
    assert isinstance(method, commands.Queue.Declare)
    # A new queue is made where its client is.
    return _named(session, method.queue) or Place.HERE


def _consumed(session: Served, payload: bytes) -> Queue | Place:
    method = methods.decode(payload)
    assert isinstance(method, commands.Basic.Consume | commands.Basic.Get)
    return _named(session, method.queue) or Place.HERE


def _published(session: Served, payload: bytes) -> Queue | Place:
    method = methods.decode(payload)
    assert isinstance(method, commands.Basic.Publish)
    vhost = session.vhost
    assert vhost is not None
    if not method.exchange:
        return _named(session, method.routing_key) or Place.UNKNOWN
    if vhost.router.get(method.exchange) is None:
        return Place.HERE
    route = vhost.router.route_at_once(method.exchange, method.routing_key)
    queues = [] if route is None else [vhost.queues.get(name) for name in route.queues]
    # The first one: a message that goes to queues of several workers crosses in any case.
    return next((queue for queue in queues if queue is not None), Place.UNKNOWN)


def _named(session: Served, name: str) -> Queue | None:
    vhost = session.vhost
    if vhost is None or not name or name.startswith(PSEUDO_QUEUE):
        return None
    return vhost.queues.get(name)


_READERS: dict[bytes, Reader] = {
    b"\x00\x32\x00\x0a": _declared,
    b"\x00\x3c\x00\x14": _consumed,
    b"\x00\x3c\x00\x46": _consumed,
    b"\x00\x3c\x00\x28": _published,
}
