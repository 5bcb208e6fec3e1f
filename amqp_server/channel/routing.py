"""The routes of messages that pass very many exchanges, or have very many keys: they are found in parts.

A route of a few hundred steps is found at once. A longer one is walked over several turns, in which other
clients have theirs; its publisher waits, so the order of its messages stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from amqp_server.broker.awaited import Awaited
from amqp_server.errors import PreconditionFailed
from exchanges.matcher import Message
from exchanges.router import AT_ONCE, Route, RoutingTooLong, Walk
from quorum_queue.steps import in_later_steps

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.broker.topology.vhost import VHost
    from amqp_server.channel.assembly import Assembly
    from amqp_server.channel.connection import Connection


class Publishing(Protocol):
    """The channel of a message, which waits for its route."""

    connection: Connection
    broker: Broker
    closing: bool
    closed: bool


class RouteAwaited(Awaited):
    """The route of a message is not known yet."""

    def __init__(self, channel: Publishing, walk: Walk, size: int) -> None:
        super().__init__()
        self._channel = channel
        self._walk = walk
        self._size = size

    def begin(self, done: Callable[[], None]) -> None:
        """The bytes of the message are counted as its connection's meanwhile."""
        channel = self._channel
        channel.connection.incoming.makes_ready(self._size)
        in_later_steps(channel.broker.turn, self._walk_on(), "a message could not be routed", done)

    def _walk_on(self) -> Iterator[None]:
        channel = self._channel
        while not (channel.closing or channel.closed or self._is_found()):
            yield
        # A connection that was lost counts nothing any more.
        channel.connection.incoming.has_made_ready(self._size)

    def _is_found(self) -> bool:
        try:
            return self._walk.go_on(AT_ONCE)
        except RoutingTooLong:
            # The method begins again, and then has this error.
            return True


def route_of(
    channel: Publishing,
    vhost: VHost,
    assembly: Assembly,
    exchange: str,
    keys: Sequence[str],
    view: Message | None,
) -> Route:
    """Route a complete message. Raises RouteAwaited if that takes long: the next call with the same message
    continues. Raises PreconditionFailed if it takes too long.
    """
    walk = assembly.walk
    if walk is None:
        walk = assembly.walk = vhost.router.begin(exchange, keys, view, vhost.next_nonce())
        assembly.walked_at = channel.broker.generation
    try:
        done = walk.go_on(AT_ONCE)
    except RoutingTooLong as error:
        raise PreconditionFailed(
            f"the route of a message to exchange '{exchange}' in vhost '{vhost.name}' takes more than "
            f"{error.args[0]} steps (routing_steps_max)"
        ) from None
    if not done:
        raise RouteAwaited(channel, walk, sum(map(len, assembly.framed)))
    return walk.route


def queues_of(vhost: VHost, route: Route) -> tuple[Queue, ...]:
    """Return the queues of a route. Some may have been deleted while it was found."""
    queues = vhost.queues
    found = [queues.get(name) for name in route.queues]
    return tuple([queue for queue in found if queue is not None])


__all__ = ["RouteAwaited", "queues_of", "route_of"]
