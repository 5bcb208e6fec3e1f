"""A message goes back to its queue, and waits there for as long as the client says.

basic.nack and basic.reject have no headers. So the client publishes a message to the exchange EXCHANGE, which
only exists as a name: its headers say which delivery of this channel goes back, and how long it waits. The
return takes effect where it stands among the acks of the channel; the publish is only there to be confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from pamqp import commands

from amqp_server.broker.reply import DirectTarget
from amqp_server.channel.delays import WAIT, delay_ms, refused, whole_number
from amqp_server.errors import PreconditionFailed
from amqp_server.wire import content
from amqp_server.wire.delay_fields import DELAY
from amqp_server.wire.frames import short_string
from amqp_server.wire.intake import PublishRoute, Segment
from exchanges.direct import DirectMatcher
from exchanges.router import Exchange
from quorum_queue.machine import versions
from quorum_queue.ports import Refused

if TYPE_CHECKING:
    from amqp_server.broker.topology.vhost import VHost
    from amqp_server.channel.assembly import Assembly
    from amqp_server.channel.connection import Connection
    from amqp_server.channel.unacked import Piece, Unacked

#: Where clients publish their requests. Who may consume may return: nobody needs a permission to write here.
EXCHANGE: Final = "amq.mqd.retry"
TAG: Final = "x-delivery-tag"
FAILED: Final = "x-failed"


class Holding(Protocol):
    """The channel that has the deliveries."""

    connection: Connection
    vhost: VHost
    number: int
    unacked: Unacked

    @property
    def tx(self) -> object | None:
        """Its open transaction, if its acks belong to transactions."""

    def settled(self, verb: str, pieces: list[Piece]) -> None: ...


class _OneByOne:
    """The slow path takes these messages: each stands in the order of the channel's acks."""

    def __call__(self, payload: bytes) -> PublishRoute | None:
        return None

    def passed(self, count: int) -> None:
        """No message goes the way of another one."""


def make_route(channel: Holding, key: bytes, method: commands.Basic.Publish) -> PublishRoute:
    """Return the route of a publish frame to EXCHANGE."""
    return _route(channel, key, method.routing_key, bool(method.mandatory), ())


def _route(
    channel: Holding, key: bytes, routing_key: str, mandatory: bool, targets: tuple[DirectTarget, ...]
) -> PublishRoute:
    return PublishRoute(
        key=key,
        channel=channel.number,
        publisher=channel,
        exchange=EXCHANGE,
        routing_key=routing_key,
        head=short_string(EXCHANGE) + short_string(routing_key),
        mandatory=mandatory,
        targets=targets,
        resolve=None if targets else _OneByOne(),
        counted=Exchange(EXCHANGE, "direct", DirectMatcher(), {}),
    )


def give_back(channel: Holding, assembly: Assembly) -> Segment:
    """Return the delivery that a message names to its queue; return the segment by which the publish is
    confirmed. Raises PreconditionFailed, and FrameError for malformed properties.
    """
    payload, route = assembly.header, assembly.route
    assert payload is not None
    properties = content.Properties.parse(payload, channel.connection.config.table_depth_max)
    headers = properties.headers or {}
    tag, wait_ms, failed = _tag(headers), delay_ms(_given(headers, DELAY, WAIT)), _failed(headers)
    if channel.tx is not None:
        raise PreconditionFailed(f"a channel with transactions takes no messages for exchange '{EXCHANGE}'")
    if channel.connection.broker.replication.version < versions.RETRY_WAITS:
        raise PreconditionFailed(
            f"exchange '{EXCHANGE}' needs a cluster whose nodes all run a version of mqd that knows it"
        )
    target = _Returned(channel)
    target.give_back(tag, wait_ms, failed=failed)
    attributes = channel.connection.incoming.publisher.attributes(False, 0, None, channel.number, False)
    to = _route(channel, route.key, route.routing_key, route.mandatory, (target,))
    segment = Segment(to, attributes)
    segment.contents.append(assembly.whole())
    return segment


def _tag(headers: Mapping[str, object]) -> int:
    what = "the delivery tag of the message"
    tag = whole_number(TAG, _given(headers, TAG, what), what)
    if tag <= 0:
        raise PreconditionFailed(f"unknown delivery tag {tag}")
    return tag


def _failed(headers: Mapping[str, object]) -> bool:
    failed = headers.get(FAILED, True)
    if isinstance(failed, bool):
        return failed
    raise refused(FAILED, failed, "it must be a boolean")


def _given(headers: Mapping[str, object], name: str, what: str) -> object:
    if name not in headers:
        raise PreconditionFailed(f"a message for exchange '{EXCHANGE}' needs the header {name}: {what}")
    return headers[name]


class _Returned(DirectTarget):
    """Confirms one return when its queue has it in its log."""

    def __init__(self, channel: Holding) -> None:
        super().__init__(EXCHANGE, channel.connection.broker.turn)
        self._channel = channel
        #: Whether the queue has taken it; None: not known yet.
        self._taken: bool | None = None
        #: Publishes that wait for that.
        self._waiting: list[tuple[Any, int]] = []

    def give_back(self, tag: int, wait_ms: int, *, failed: bool) -> None:
        """Raises PreconditionFailed."""
        channel = self._channel
        pieces = channel.unacked.take(tag, tag, strict=True)
        holder, low, high, _ = pieces[0]
        queue = holder.queue
        if not queue.type.knows_failures:
            channel.unacked.restore(pieces)
            raise PreconditionFailed(
                f"no message waits in queue '{queue.name}' in vhost '{channel.vhost.name}': it is no classic "
                "or quorum queue"
            )
        host = queue.host
        host.submit(("retry", holder.key, low, high, wait_ms, failed))
        channel.settled("retry", pieces)
        # Asked before anything else may happen to the host: commands on their way take it with them.
        host.barrier(self._applied)

    def _applied(self, refused: Refused | None = None) -> None:
        commits = self._channel.connection.broker.services.commits
        if refused is not None:
            self._answer(False)
        elif commits.unsynced:
            commits.request(self._stored)
        else:
            self._answer(True)

    def _stored(self) -> None:
        self._answer(True)

    def _answer(self, taken: bool) -> None:
        self._taken = taken
        waiting, self._waiting = self._waiting, []
        for origin, number in waiting:
            (origin.confirmed if taken else origin.refused)(number, number)

    def apply_pending(self) -> None:
        asked, self.pending = self.pending, []
        for _, _, origin, first in asked:
            if origin is not None:
                self._waiting.append((origin, first))
        if self._taken is not None:
            self._answer(self._taken)

    def failed(self, error: Exception) -> None:
        """Nothing is kept here that could be wrong."""
        self.pending = []


__all__ = ["EXCHANGE", "give_back", "make_route"]
