"""The firehose: copies of what clients publish and get in a vhost, for the exchange amq.rabbitmq.trace.

As in RabbitMQ the keys are `publish.EXCHANGE` and `deliver.QUEUE`, the body is the message's, and the headers
have the rest. Messages from that exchange are not traced again. A copy is made only if a queue is bound for
it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from amqp_server.broker.dead_letter import carbon_copies, parse_head
from amqp_server.wire import content, frames, tables
from amqp_server.wire.content import PROPERTIES, Properties
from amqp_server.wire.frames import FRAME_BYTES_MIN, SHORT_STRING_MAX, short_string
from exchanges.router import AT_ONCE, NOWHERE, RoutingTooLong, walked
from quorum_queue.machine.run import Attributes, Run

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.topology.vhost import VHost
    from amqp_server.channel.connection import Connection
    from amqp_server.wire.intake import Mix, Segment

TRACE = "amq.rabbitmq.trace"
#: Copies that are made before the turn may end.
COPIES_AT_ONCE: Final = 16


class Traced(Protocol):
    """The channel whose messages are copied; callers ask before whether its vhost is traced."""

    connection: Connection
    broker: Broker
    vhost: VHost
    number: int


class Copy(NamedTuple):
    """A copy for some queues."""

    targets: tuple[str, ...]
    framed: bytes
    head: bytes
    attributes: Attributes


def trace_publish(
    channel: Traced, segment: Segment, later: list[Copy] | None = None
) -> Iterator[None] | None:
    """Copy messages that are handed to their queues. Return an iterator that makes some copies at each step;
    None if another segment makes the copies of these. `later` gets the copies if it is not known yet whether
    the messages are published; see `give_copies`.
    """
    if segment.mix is None:
        return _in_parts(_copies_of(channel, segment, 0, len(segment.contents), later))
    # The first segment of messages that alternate between queues makes the copies for all of them.
    return None if segment.lane else _in_parts(_copies_of_mix(channel, segment.mix, later))


def give_copies(vhost: VHost, copies: list[Copy]) -> Iterator[None]:
    """Hand copies that were made before to their queues, some in each step."""

    def each() -> Iterator[None]:
        for copy in copies:
            _give(vhost, copy)
            yield

    return _in_parts(each())


def _in_parts(copies: Iterator[None]) -> Iterator[None]:
    for number, _ in enumerate(copies, 1):
        if number % COPIES_AT_ONCE == 0:
            yield


def _copies_of_mix(channel: Traced, mix: Mix, later: list[Copy] | None) -> Iterator[None]:
    """Copy messages that alternate between queues."""
    told = [0] * len(mix.lanes)
    for index in range(0, len(mix.turns), 2):
        lane, stop = mix.turns[index], mix.turns[index + 1]
        yield from _copies_of(channel, mix.lanes[lane], told[lane], stop, later)
        told[lane] = stop


def _copies_of(
    channel: Traced, segment: Segment, start: int, stop: int, later: list[Copy] | None
) -> Iterator[None]:
    route, queues = segment.route, channel.vhost.queues
    routed = [each.name for each in route.targets if not each.deleted or each.name in queues]
    for index in range(start, stop):
        exchange, routing_key = route.exchange, route.routing_key
        if segment.heads is not None:
            exchange, routing_key = parse_head(segment.heads[index])
        key = f"publish.{exchange}"
        targets = yield from _targets(channel, key)
        if targets:
            item = segment.contents[index]
            copy = _copy(channel, targets, key, exchange, routing_key, item, {"routed_queues": routed})
            if later is None:
                _give(channel.vhost, copy)
            else:
                later.append(copy)
        yield


def trace_run(channel: Traced, queue: str, run: Run) -> Iterator[None]:
    """Copy messages that a client gets. Return an iterator that makes some copies at each step."""
    if run.contents is None or channel.vhost.router.route_at_once(TRACE, f"deliver.{queue}") == NOWHERE:
        return iter(())
    # A copy of the run: the queue changes its own when messages are acked.
    heads = [run.head] * len(run.contents) if run.heads is None else run.heads.copy()
    told = (
        (*parse_head(head), run.redelivered, item)
        for head, item in zip(heads, run.contents.copy(), strict=True)
    )
    return _in_parts(_copies_of_delivered(channel, queue, told))


def trace_frames(channel: Traced, queue: str, data: bytes) -> Iterator[None]:
    """Copy messages of a stream that a client gets; `data` has the frames."""
    return _in_parts(_copies_of_delivered(channel, queue, _deliveries(data)))


def _copies_of_delivered(
    channel: Traced, queue: str, told: Iterable[tuple[str, str, bool, bytes]]
) -> Iterator[None]:
    """Yield exchange, routing key, redelivered, and the content's frames of each message."""
    targets = yield from _targets(channel, f"deliver.{queue}")
    for exchange, routing_key, redelivered, item in told if targets else ():
        _deliver(channel, targets, queue, exchange, routing_key, item, redelivered=redelivered)
        yield


def _targets(channel: Traced, key: str) -> Generator[None, None, tuple[str, ...]]:
    """Return the queues for copies with this key, after some steps if their route is long."""
    router = channel.vhost.router
    found = router.route_at_once(TRACE, key)
    if found is None:
        try:
            found = yield from walked(router.begin(TRACE, (key,)), AT_ONCE // COPIES_AT_ONCE)
        except RoutingTooLong:
            found = NOWHERE
    return found.queues


def _deliveries(data: bytes) -> Iterator[tuple[str, str, bool, bytes]]:
    """Go through frames of basic.deliver and its contents: exchange, routing key, redelivered, and the
    content's frames.
    """
    position, end = 0, len(data)
    while position < end:
        _, _, size = frames.prefix.unpack_from(data, position)
        method = data[position + 7 : position + 7 + size]
        start = position = position + 7 + size + 1
        while position < end and data[position] != frames.METHOD:
            _, _, size = frames.prefix.unpack_from(data, position)
            position += 7 + size + 1
        # Behind class and method, the consumer's tag and the delivery tag.
        flag = 4 + 1 + method[4] + 8
        exchange, routing_key = parse_head(method[flag + 1 :])
        yield exchange, routing_key, bool(method[flag]), data[start:position]


def _deliver(
    channel: Traced,
    targets: tuple[str, ...],
    queue: str,
    exchange: str,
    routing_key: str,
    item: bytes,
    *,
    redelivered: bool,
) -> None:
    if exchange != TRACE:
        more: dict[str, object] = {"redelivered": int(redelivered)}
        _give(channel.vhost, _copy(channel, targets, f"deliver.{queue}", exchange, routing_key, item, more))


def _copy(
    channel: Traced,
    targets: tuple[str, ...],
    key: str,
    exchange: str,
    routing_key: str,
    item: bytes,
    more: dict[str, object],
) -> Copy:
    vhost, client, broker = channel.vhost, channel.connection.client, channel.broker
    payload, body = content.split(item)
    properties = Properties.parse(payload, checked=True)
    copies = carbon_copies(properties.headers or {}, "CC")
    told: dict[str, object] = {
        "exchange_name": exchange,
        "routing_keys": [routing_key, *copies],
        "node": broker.replication.node,
        "vhost": vhost.name,
        "connection": client.name,
        "channel": channel.number,
        "user": client.username,
    }
    headers = tables.replaced(tables.encode(told | more), {b"properties": b"F" + _table(properties)})
    frame_max = broker.config.frame_max_bytes
    header = Properties({"headers": headers}).encode(len(body))
    framed = content.build(header, body, 1, frame_max)
    small = len(body) + 8 <= FRAME_BYTES_MIN and len(header) + 8 <= FRAME_BYTES_MIN
    attributes = Attributes(False, 0, None, 1, FRAME_BYTES_MIN if small else frame_max)
    head = short_string(TRACE) + short_string(key.encode(errors="surrogateescape")[:SHORT_STRING_MAX])
    return Copy(targets, framed, head, attributes)


def _give(vhost: VHost, copy: Copy) -> None:
    for name in copy.targets:
        if name not in vhost.queues:
            # It was deleted while copies waited for their turn.
            continue
        host = vhost.queues[name].host
        run = Run(range(1), [copy.framed], copy.head, copy.attributes)
        if host.counts_bytes:
            run = content.by_overhead(run)[0]
        # Copies have no ids of their own.
        host.submit(("enqueue_known", run, None, 1, []) if host.records else ("enqueue", run, None, 1))


def _table(properties: Properties) -> bytes:
    """Return the properties of a message as a table."""
    told: dict[str, object] = {}
    for name in PROPERTIES:
        if name not in properties.raw or name == "headers":
            continue
        if name in ("delivery_mode", "priority"):
            told[name] = properties.octet(name)
        elif name == "timestamp":
            told[name] = int.from_bytes(properties.raw[name], "big")
        else:
            told[name] = properties.text(name)
    table = tables.encode(told)
    headers = properties.raw.get("headers")
    # The headers are copied as bytes: they may be nested as deep as a table can be.
    return table if headers is None else tables.replaced(table, {b"headers": b"F" + headers})
