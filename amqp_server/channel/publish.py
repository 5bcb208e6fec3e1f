"""Publishing: routes for the intake, the slow path for single messages, and handing over to the queues."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from pamqp import commands

from amqp_server.broker import message_status
from amqp_server.broker.access.http_permissions import AnswerAwaited
from amqp_server.broker.access.permissions import ITSELF
from amqp_server.broker.dead_letter import carbon_copies, parse_head
from amqp_server.broker.declared.argument_checks import TIME_MS_MAX
from amqp_server.broker.questions import cancels
from amqp_server.broker.reply import PSEUDO_QUEUE
from amqp_server.broker.routing_view import RoutingView
from amqp_server.broker.topology.consumer_groups import refuse_publish
from amqp_server.broker.traffic import SIZE_BOUNDS, MessageSizes
from amqp_server.channel import retries
from amqp_server.channel.confirms import Confirms, Copies, Lane, Mandatory, Mixed
from amqp_server.channel.deduplication import enqueue_named
from amqp_server.channel.routing import queues_of, route_of
from amqp_server.channel.tracing import trace_publish
from amqp_server.errors import AccessRefused, AMQPError, NotFound, NotImplemented_, PreconditionFailed
from amqp_server.streams.layout.large import LARGE_CONTENT_BYTES
from amqp_server.wire import confirm_level, content, frames, methods, tables
from amqp_server.wire.deliver import LARGE_BYTES
from amqp_server.wire.frames import short_string
from amqp_server.wire.intake import SMALL_FRAME, PublishRoute, Segment
from amqp_server.wire.message_groups import groups_of
from exchanges.delayed import DELAYED
from exchanges.router import Depends, Route
from quorum_queue.machine import versions
from quorum_queue.machine.attributes import MAJORITY, priority_of
from quorum_queue.machine.run import LargeRun, Run
from quorum_queue.ports import Preparing, Recipient

if TYPE_CHECKING:
    from amqp_server.broker.topology.parts import Hosts
    from amqp_server.broker.topology.queue import Queue, Taking, Target
    from amqp_server.channel.assembly import Assembly
    from amqp_server.channel.channel import Channel
    from amqp_server.channel.transactions.commit_answers import CommitOrigin

#: A wide publish goes to this many queues, or makes this many copies of messages, before the turn may end.
PART_QUEUES = 64
PART_COPIES = 64 * 1024
#: The same for messages that wait: most of them are a run of their own.
WAITING_AT_ONCE = 256
#: Keys in CC and BCC whose permission is asked for at once, where another server knows it.
KEYS_ASKED_MAX = 64
#: Where a framed content has the size of its body: behind the frame's header, class and weight.
BODY_SIZE_AT, BODY_SIZE_END = 11, 19
#: Large messages, which are prepared a piece at a time, are looked for among at most this many.
LARGE_AMONG = 16
#: Routes cached for one publish frame of an exchange that looks at headers.
RESOLVED_MAX = 4096
#: Routes of messages with longer headers are not cached.
RESOLVED_BYTES_MAX = 1024
#: Memory of each cached route without its headers, bytes.
RESOLVED_BYTES = 400


def make_route(channel: Channel, key: bytes, method: commands.Basic.Publish) -> PublishRoute:
    """Check and route a publish frame. Raises NotFound, AccessRefused, NotImplemented_."""
    if method.immediate:
        raise NotImplemented_("immediate=true")
    if method.exchange == retries.EXCHANGE:
        return retries.make_route(channel, key, method)
    connection, vhost, broker = channel.connection, channel.vhost, channel.broker
    exchange, routing_key = method.exchange, method.routing_key
    route = PublishRoute(
        key=key,
        channel=channel.number,
        publisher=channel,
        exchange=exchange,
        routing_key=routing_key,
        head=short_string(exchange) + short_string(routing_key),
        mandatory=bool(method.mandatory),
    )
    declared = vhost.router.get(exchange)
    route.counted = declared
    if declared is None:
        raise NotFound(f"no exchange '{exchange}' in vhost '{vhost.name}'")
    route.waits = declared.type == DELAYED
    broker.access.permissions.check(connection.client.access, vhost.name, "exchange", exchange, "write")
    if declared.internal:
        raise AccessRefused(f"cannot publish to internal exchange '{exchange}' in vhost '{vhost.name}'")
    if exchange and declared is not None and declared.routing_type == "topic":
        broker.access.permissions.check_topic(
            connection.client.access, vhost.name, exchange, routing_key, "write"
        )
    if not exchange:
        named = vhost.queues.get(routing_key)
        if named is not None and named.type.is_group:
            raise refuse_publish(named)
        route.targets = connection.incoming.targets(_named(channel, [routing_key]))
        return route
    found = vhost.router.route_at_once(exchange, routing_key)
    if found is None:
        # Nothing is known about what it depends on.
        route.resolve = _Resolver(channel, route, Depends.HEADERS | Depends.NONCE)
        return route
    if found.depends is Depends.KEY:
        route.targets = connection.incoming.targets(tuple(vhost.queues[name] for name in found.queues))
    else:
        route.resolve = _Resolver(channel, route, found.depends)
    return route


class Missing:
    """Stands for a queue that does not exist when a message is published to it. It may exist when the message
    is handed over, at the commit of a transaction or at the end of an alarm. See broker.queue.Target.
    """

    __slots__ = ("deleted", "delays", "group_header", "name", "published")

    def __init__(self, name: str) -> None:
        self.name = name
        self.published = 0
        self.deleted = True
        self.delays = False
        self.group_header = ""

    @property
    def host(self) -> Recipient:
        raise LookupError(self.name)


def _named(channel: Channel, names: Iterable[str]) -> tuple[Target, ...]:
    """Return the targets with these names, without duplicates: queues, or clients that wait for direct
    replies.
    """
    broker, queues = channel.broker, channel.vhost.queues
    found: dict[Target, None] = {}
    for name in names:
        if name.startswith(PSEUDO_QUEUE + "."):
            reply = broker.replies.get(name) or broker.hosts.reply(name)
            if reply is not None:
                found[reply] = None
        elif name == message_status.QUEUE:
            asks: Target = broker.statuses.target(channel.vhost, channel.connection.client)
            found[asks] = None
        elif name == cancels.QUEUE:
            cancelling: Target = broker.cancels.target(channel.vhost, channel.connection.client)
            found[cancelling] = None
        else:
            target: Target = queues.get(name) or Missing(name)
            found[target] = None
    return tuple(found)


class _Resolver:
    """Routes messages one by one if an exchange on their way looks at more than the key, or if the way is
    long.
    """

    __slots__ = ("_by_queues", "_channel", "_depends", "_known", "_known_bytes", "_route")

    def __init__(self, channel: Channel, route: PublishRoute, depends: Depends) -> None:
        self._channel = channel
        # Does not hold the route itself: the two would refer to each other, and only the collector would free
        # them.
        self._route = derived(route, ())
        self._depends = depends
        self._known: dict[bytes, PublishRoute] = {}
        self._known_bytes = 0
        #: Routes by their queues, for exchanges that do not look at the message.
        self._by_queues: dict[tuple[str, ...], PublishRoute] = {}

    def __call__(self, payload: bytes) -> PublishRoute | None:
        """Return the route of a message with this content header; None if that takes long."""
        channel, vhost = self._channel, self._channel.vhost
        if self._depends is Depends.NONCE:
            found = vhost.router.route_at_once(
                self._route.exchange, self._route.routing_key, None, vhost.next_nonce()
            )
            if found is not None and not found.depends & Depends.HEADERS:
                channel.connection.incoming.publisher.ahead = found.ahead
                return self._by_chance(found)
        memo_key = payload[12:]  # flags and properties; not the body's size
        route = self._known.get(memo_key)
        if route is not None:
            return route
        if channel.broker.turn.overdue():
            # Each message may match very many bindings.
            channel.connection.incoming.publisher.cut = True
        view = RoutingView(content.Properties.parse(payload, checked=True))
        found = vhost.router.route_at_once(
            self._route.exchange, self._route.routing_key, view, vhost.next_nonce()
        )
        return (
            None
            if found is None
            else self.learn(payload, found, queues_of(channel.vhost, found), current=True)
        )

    def passed(self, count: int) -> None:
        """So many messages went the way of the last one, without a call for each."""
        self._channel.vhost.skip_nonces(count)

    def learn(
        self, payload: bytes, found: Route, queues: tuple[Queue, ...], *, current: bool
    ) -> PublishRoute:
        """Return the route of a message with this content header, which was found to lead to these queues.
        Remember it if it is the route of all messages with equal properties, and `current`.
        """
        route = derived(self._route, self._channel.connection.incoming.targets(queues))
        memo_key = payload[12:]
        if current and not found.depends & Depends.NONCE and len(memo_key) <= RESOLVED_BYTES_MAX:
            remembered = self._channel.connection.incoming.remembered
            if len(self._known) >= RESOLVED_MAX:
                remembered(-self._known_bytes)
                self._known_bytes = 0
                self._known.clear()
            self._known[memo_key] = route
            size = RESOLVED_BYTES + len(memo_key)
            self._known_bytes += size
            remembered(size)
        return route

    def _by_chance(self, found: Route) -> PublishRoute:
        """Return the route of a message, if exchanges ignored the message and chose by a counter."""
        channel, mine, queues = self._channel, self._route, found.queues
        route = self._by_queues.get(queues)
        if route is None:
            route = derived(mine, channel.connection.incoming.targets(queues_of(channel.vhost, found)))
            remembered = channel.connection.incoming.remembered
            if len(self._by_queues) >= RESOLVED_MAX:
                remembered(-RESOLVED_BYTES * len(self._by_queues))
                self._by_queues.clear()
            self._by_queues[queues] = route
            remembered(RESOLVED_BYTES)
        return route


def derived(
    route: PublishRoute,
    targets: tuple[Target, ...],
    exchange: str | None = None,
    routing_key: str | None = None,
) -> PublishRoute:
    """Return the route of one message of `route`."""
    return PublishRoute(
        key=route.key,
        channel=route.channel,
        publisher=route.publisher,
        exchange=route.exchange if exchange is None else exchange,
        routing_key=route.routing_key if routing_key is None else routing_key,
        head=route.head,
        mandatory=route.mandatory,
        targets=targets,
        counted=route.counted,
        waits=route.waits,
    )


def _may_impersonate(channel: Channel) -> bool:
    client = channel.connection.client
    return client.access == ITSELF or channel.broker.access.impersonates(client.username, client.grant)


def slow_segment(channel: Channel, assembly: Assembly) -> Segment:
    """Make a segment of one message that was assembled frame by frame.

    Raises PreconditionFailed for a bad user-id, expiration, CC, BCC or x-confirm, or for a route that is too
    long; FrameError for malformed properties; RouteAwaited; for keys in CC and BCC AccessRefused and
    AnswerAwaited.
    """
    if assembly.route.exchange == retries.EXCHANGE:
        return retries.give_back(channel, assembly)
    connection = channel.connection
    username, frame_max = connection.client.username, connection.limits.frame_max
    route, payload, body_size = assembly.route, assembly.header, assembly.body_size
    assert payload is not None
    properties = content.Properties.parse(payload, connection.config.table_depth_max)
    user_id = properties.text("user_id")
    if user_id is not None and user_id != username and not _may_impersonate(channel):
        raise PreconditionFailed(
            f"user_id property set to '{user_id}' but authenticated user was '{username}'"
        )
    mode = properties.octet("delivery_mode")
    if mode is not None and mode not in (1, 2):
        raise PreconditionFailed(f"invalid message: {{delivery_mode_unknown,{mode}}}")
    ttl_ms = expiration_ms(properties.text("expiration"))
    headers = properties.headers
    copies = _copies(headers)
    if copies and route.counted is not None and route.counted.routing_type == "topic":
        _check_topics(channel, assembly, copies)
    level = _confirm_level(channel, properties)
    changed = _change(channel, properties, headers)
    if copies:
        keys = [route.routing_key, *copies]
        if route.exchange:
            found = route_of(channel, channel.vhost, assembly, route.exchange, keys, RoutingView(properties))
            target = derived(route, queues_of(channel.vhost, found))
        else:
            target = derived(route, _named(channel, keys))
    elif route.resolve is not None:
        target = _resolved(channel, assembly, payload, properties)
    else:
        target = route
    large = body_size > SMALL_FRAME - frames.OVERHEAD or len(payload) > SMALL_FRAME - 512
    item = assembly.whole()
    kept = properties.encode(body_size) if changed else payload
    if assembly.oversized:
        _, body = content.split(item)
        item = content.build(kept, body, channel.number, frame_max)
    elif changed and content.header_of(item) != kept:
        item = content.with_header(item, kept, channel.number)
    attributes = connection.incoming.publisher.attributes(
        properties.persistent, priority_of(properties.octet("priority")), ttl_ms, channel.number, large, level
    )
    segment = Segment(target, attributes)
    segment.contents.append(item)
    return segment


def _resolved(
    channel: Channel, assembly: Assembly, payload: bytes, properties: content.Properties
) -> PublishRoute:
    """Return the route of a message whose route is its own, or is long. Raises RouteAwaited,
    PreconditionFailed.
    """
    route, resolver = assembly.route, assembly.route.resolve
    assert isinstance(resolver, _Resolver)
    if assembly.walk is None:
        known = resolver(payload)
        if known is not None:
            return known
    found = route_of(
        channel, channel.vhost, assembly, route.exchange, [route.routing_key], RoutingView(properties)
    )
    queues = queues_of(channel.vhost, found)
    # If the topology has changed meanwhile, only this message goes this way.
    current = assembly.walked_at == channel.broker.generation
    if current and found.depends is Depends.KEY:
        # All messages with this frame go the same way.
        route.targets, route.resolve = channel.connection.incoming.targets(queues), None
        return route
    return resolver.learn(payload, found, queues, current=current)


def kept_header(channel: Channel, payload: bytes) -> bytes:
    """Return a content header as queues will have it. If it is valid and does not change until its body has
    arrived, the frames of a large body need not be moved.
    """
    try:
        properties = content.Properties.parse(payload, channel.connection.config.table_depth_max)
        if _change(channel, properties, properties.headers):
            return properties.encode(int.from_bytes(payload[4:12], "big"))
    except AMQPError:
        # The client gets this error when the message is complete.
        pass
    return payload


def _change(channel: Channel, properties: content.Properties, headers: dict[str, object] | None) -> bool:
    """Change the properties that a message does not keep; return whether any changed. Raises
    PreconditionFailed.
    """
    changed = False
    if headers and "BCC" in headers:
        properties.raw["headers"] = tables.replaced(properties.raw["headers"], {b"BCC": None})
        changed = True
    if properties.text("reply_to") == PSEUDO_QUEUE:
        if channel.reply_host is None:
            raise PreconditionFailed("fast reply consumer does not exist")
        properties.set_text("reply_to", channel.reply_host.name)
        changed = True
    return changed


def expiration_ms(text: str | None) -> int | None:
    """Parse an expiration property. Raises PreconditionFailed with RabbitMQ's texts."""
    if text is None:
        return None
    digits = text[1:] if text[:1] in "+-" and len(text) > 1 else text
    end = 0
    while end < len(digits) and digits[end].isascii() and digits[end].isdigit():
        end += 1
    if end == 0:
        raise PreconditionFailed(f"invalid expiration '{text}': no_integer")
    if end < len(digits):
        raise PreconditionFailed(f"invalid expiration '{text}': {{leftover_string,\"{digits[end:]}\"}}")
    number = int(text)
    if number < 0:
        raise PreconditionFailed(f"invalid expiration '{text}': {{value_negative,{number}}}")
    if number > TIME_MS_MAX:
        raise PreconditionFailed(f"invalid expiration '{text}': {{value_too_large,{number}}}")
    return number


def _confirm_level(channel: Channel, properties: content.Properties) -> int:
    """Return the confirm level of the message. Raises PreconditionFailed."""
    table = properties.raw.get("headers", b"")
    if confirm_level.FIELD not in table:
        return MAJORITY
    level = confirm_level.of_table(table, 0, len(table))
    if level == confirm_level.UNKNOWN:
        value = repr((properties.headers or {}).get(confirm_level.NAME.decode()))
        raise PreconditionFailed(f"invalid header x-confirm {value[:80]!r}: it must be 'leader' or 'all'")
    publisher = channel.connection.incoming.publisher
    publisher.knows_levels = channel.broker.replication.version >= versions.CONFIRM_LEVELS
    if level != MAJORITY and not publisher.knows_levels:
        raise PreconditionFailed(
            "header x-confirm needs a cluster whose nodes all run a version of mqd that knows it"
        )
    return level


def _copies(headers: dict[str, object] | None) -> list[str]:
    if not headers:
        return []
    for name in ("CC", "BCC"):
        if name in headers and not isinstance(headers[name], list):
            kind = tables.type_name(headers[name])
            raise PreconditionFailed(f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}')
    return carbon_copies(headers, "CC") + carbon_copies(headers, "BCC")


def _check_topics(channel: Channel, assembly: Assembly, keys: list[str]) -> None:
    """Check the keys in CC and BCC like the routing key, as RabbitMQ does from 4.0 on. Raises AccessRefused;
    AnswerAwaited, and the next call with the same message goes on there.
    """
    permissions, access = channel.broker.access.permissions, channel.connection.client.access
    vhost, exchange = channel.vhost.name, assembly.route.exchange
    awaited: list[AnswerAwaited] = []
    for place in range(assembly.checked, len(keys)):
        try:
            permissions.check_topic(access, vhost, exchange, keys[place], "write")
        except AnswerAwaited as question:
            if not awaited:
                assembly.checked = place
            awaited.append(question)
            if len(awaited) == KEYS_ASKED_MAX:
                break
    if awaited:
        raise awaited[0].with_(awaited[1:])
    assembly.checked = len(keys)


def publish(segment: Segment, commit: CommitOrigin | None = None) -> Sequence[Recipient]:
    """Hand the messages of a segment to the queues, which apply them at the end of the turn; return their
    hosts.
    """
    targets, origin, first, size = begin_publish(segment, commit)
    channel: Channel = segment.route.publisher
    if channel.vhost.tracing:
        for _ in trace_publish(channel, segment) or ():
            pass
    return _give(segment, targets, origin, first, size)


def publish_in_parts(segment: Segment) -> Iterator[object] | None:
    """Like `publish`, but many queues get the messages step by step, and copies for the firehose are made so,
    too: return an iterator whose steps do the rest.
    """
    targets, origin, first, size = begin_publish(segment, None)
    channel: Channel = segment.route.publisher
    copies = trace_publish(channel, segment) if channel.vhost.tracing else None
    if copies is not None:
        return chain(copies, hand_over(segment, targets, origin, first, size))
    if has_large(segment):
        return hand_over(segment, targets, origin, first, size)
    most = PART_COPIES if segment.waits is None else WAITING_AT_ONCE
    if len(targets) > PART_QUEUES or len(targets) * len(segment.contents) > most:
        return hand_over(segment, targets, origin, first, size)
    _give(segment, targets, origin, first, size)
    return None


def read_groups(segment: Segment) -> PreconditionFailed | None:
    """Read the groups of messages for queues with message groups. If one is bad, return the error; the
    segment keeps the messages before it.
    """
    error: PreconditionFailed | None = None
    targets = segment.route.targets
    for target in targets:
        header = target.group_header
        if not header:
            continue
        groups, bad = groups_of(segment.contents, header)
        if bad:
            segment.keep(len(groups))
            error = PreconditionFailed(
                f"invalid header '{header}', the group of a message for queue '{target.name}': {bad}"
            )
        if len(targets) == 1:
            segment.groups, segment.group_header = groups, header
    return error


def begin_publish(segment: Segment, commit: CommitOrigin | None) -> tuple[list[Target], Any, int, int]:
    """Number and count the messages; return the targets that get them, the origin that wants their answers,
    the first number, and their bytes.
    """
    route = segment.route
    channel: Channel = route.publisher
    contents = segment.contents
    count = len(contents)
    origin: Any
    confirms: Confirms | Lane | CommitOrigin | None
    origin = confirms = channel.confirms if commit is None else commit
    mix = segment.mix
    if mix is not None and channel.confirms is not None:
        if mix.answers is None:
            mix.answers = Mixed(channel.confirms, mix.turns, mix.count)
        origin = confirms = Lane(mix.answers, segment.lane)
    first = confirms.number(count) if confirms is not None else 0
    targets = _present(channel, route, count)
    sizes = channel.broker.counts.message_sizes
    if count > 1 and len(set(map(len, contents))) > 1:
        size = _count_each_size(sizes, contents)
    else:
        # A difference of bodies would be one that properties make up for: they count as of one size.
        item = contents[0]
        size, body = len(item) * count, int.from_bytes(item[BODY_SIZE_AT:BODY_SIZE_END], "big")
        sizes.by_bound[bisect_left(SIZE_BOUNDS, body)] += count
        sizes.bytes += body * count
    traffic, exchange = channel.traffic, route.counted
    traffic.publish += count
    exchange.published_in += count
    exchange.published_out += count * len(targets)
    if not targets:
        if not route.mandatory:
            traffic.drop_unroutable += count
        else:
            traffic.return_unroutable += count
            if channel.confirms is None:
                return_all(channel, route, contents, segment.heads)
            else:
                _return_in_order(channel, channel.confirms, segment, confirms, first)
                confirms = None
        if confirms is not None:
            confirms.confirmed(first, first + count - 1)
    if commit is not None and targets and segment.attributes.confirm_level != MAJORITY:
        origin = commit.await_answers(count)
    if route.mandatory and commit is None and confirms is not None:
        origin = Mandatory(origin)
    # To a transaction each refusal matters at once: answers of other queues may come after the commit.
    if confirms is not None and len(targets) > 1 and origin is not commit:
        return targets, Copies(origin, first, count, len(targets)), first, size
    return targets, origin, first, size


def _count_each_size(sizes: MessageSizes, contents: list[bytes]) -> int:
    """Count messages by the size of their bodies; return the bytes of all of them with their frames."""
    sizes.note_each([int.from_bytes(item[BODY_SIZE_AT:BODY_SIZE_END], "big") for item in contents])
    return sum(map(len, contents))


def _return_in_order(
    channel: Channel,
    answers: Confirms,
    segment: Segment,
    confirms: Confirms | Lane | CommitOrigin | None,
    first: int,
) -> None:
    """Return unroutable messages behind the answers to earlier ones, as far as these have come.

    The ack of each follows it at once, in a frame of its own: clients take an ack for that of the message
    that was returned last.
    """
    channel.broker.turn.apply()
    answers.flush()
    heads = segment.heads
    for number, item in enumerate(segment.contents):
        return_all(channel, segment.route, [item], None if heads is None else [heads[number]])
        if confirms is not None:
            confirms.confirmed(first + number, first + number)
        answers.flush()


def short_node(segments: Iterable[Segment], hosts: Hosts, short: Container[str]) -> str:
    """Return one of these nodes, which are short of memory or disk space, if a queue of these messages needs
    it; otherwise an empty string.
    """
    for segment in segments:
        queues = segment.route.publisher.vhost.queues
        for target in segment.route.targets:
            queue = queues.get(target.name)
            node = "" if queue is None or queue is not target else hosts.short_node(queue, short)
            if node:
                return node
    return ""


def hand_over(
    segment: Segment, targets: Sequence[Taking], origin: Any, first: int, size: int
) -> Iterator[Sequence[Recipient]]:
    """Hand the messages, which have `size` bytes, to the hosts of these targets, step by step; yield the
    hosts of each part.

    Turns may pass in between. A queue that moves meanwhile gets the messages at its new host.
    """
    count = len(targets)
    if has_large(segment):
        for index, target in enumerate(targets):
            made: dict[int, Preparing] = {}
            for _ in _make_ready(segment, target, made):
                yield ()
            yield _give(segment, [target], origin, first, size, last=index + 1 == count, made=made)
        return
    copies = PART_COPIES
    if segment.waits is not None:
        copies = WAITING_AT_ONCE
        if len(segment.contents) > WAITING_AT_ONCE:
            for index, target in enumerate(targets):
                if not _waits_in(segment, target):
                    yield _give(segment, [target], origin, first, size, last=index + 1 == count)
                    continue
                run = _run_of(segment, segment.contents.copy(), size)
                for host in _enqueue_waiting(target, run, origin, first, segment):
                    yield [host]
            return
    part = max(1, min(PART_QUEUES, copies // max(1, len(segment.contents))))
    for start in range(0, count, part):
        yield _give(segment, targets[start : start + part], origin, first, size, last=start + part >= count)


def has_large(segment: Segment) -> bool:
    """Return whether the segment has large messages, which take long if a queue encodes them differently."""
    contents = segment.contents
    # Most messages come with others of the same read; large ones are assembled, and come alone or almost
    # alone.
    return len(contents) <= LARGE_AMONG and max(map(len, contents)) > LARGE_CONTENT_BYTES


def _make_ready(segment: Segment, target: Taking, made: dict[int, Preparing]) -> Iterator[None]:
    """Let the host of a target encode the large messages, a piece at a time; put the results into `made`."""
    route, host = segment.route, target.host
    incoming = route.publisher.connection.incoming
    for number, framed in enumerate(segment.contents):
        if len(framed) <= LARGE_CONTENT_BYTES:
            continue
        head = route.head if segment.heads is None else segment.heads[number]
        ready = host.begin_large(framed, head, segment.attributes.channel)
        if ready is None:
            return
        made[id(framed)] = ready
        # The bytes are counted here until the host has the message.
        size = len(framed) + ready.size
        incoming.makes_ready(size)
        while ready.go_on():
            yield
        incoming.has_made_ready(size)


def _give(
    segment: Segment,
    targets: Sequence[Taking],
    origin: Any,
    first: int,
    size: int,
    *,
    last: bool = True,
    made: dict[int, Preparing] | None = None,
) -> list[Recipient]:
    """Hand the messages to the current hosts of these targets, and return the hosts. The last target of all
    gets the messages without a copy. `made` has the messages that these hosts have encoded.
    """
    route, contents = segment.route, segment.contents
    count, scheduled = len(contents), route.publisher.broker.turn.scheduled
    own = len(targets) - 1 if last else -1
    hosts: list[Recipient] = []
    for index, target in enumerate(targets):
        host = target.host
        hosts.append(host)
        given = contents if index == own else contents.copy()
        if made or segment.heads is not None or segment.kinds is not None:
            run = _run_of(segment, given, size, made, own=index == own)
        else:
            run = Run(range(count), given, route.head, segment.attributes, None, size)
        if segment.waits is not None and _waits_in(segment, target):
            for _ in _enqueue_waiting(target, run, origin, first, segment):
                pass
            continue
        if run.kinds is None and not (host.wants_ids or host.counts_bytes):
            host.pending.append(("enqueue", run, origin, first))
        else:
            _enqueue(host, run, origin, first, segment)
        scheduled[host] = None
    return hosts


def _waits_in(segment: Segment, target: Taking) -> bool:
    """Return whether the messages wait in this queue, as far as they wait."""
    return target.delays or segment.route.waits


def _run_of(
    segment: Segment,
    contents: list[bytes],
    size: int,
    made: dict[int, Preparing] | None = None,
    *,
    own: bool = False,
) -> Run:
    """Return the messages as a run of these contents. `own`: nobody else needs what the segment has."""
    head, count = segment.route.head, len(contents)
    run: Run
    if made:
        run = LargeRun(range(count), contents, head, segment.attributes, size, made)
    else:
        run = Run(range(count), contents, head, segment.attributes, None, size)
    if segment.heads is not None:
        run.heads = segment.heads if own else segment.heads.copy()
    if segment.kinds is not None:
        segment.fill_kinds()
        run.kinds, run.table = segment.kinds[:], segment.table
    return run


def _enqueue(host: Recipient, run: Run, origin: Any, first: int, segment: Segment, at: int = 0) -> None:
    """Hand the messages of a run to a host. `at`: place of the first of them in the segment."""
    if host.wants_ids:
        enqueue_named(host, run, origin, first, segment, at)
    elif host.counts_bytes or (run.kinds is not None and not host.takes_kinds):
        enqueue_in_parts(host, run, origin, first)
    else:
        host.pending.append(("enqueue", run, origin, first))


def _enqueue_waiting(
    target: Taking, run: Run, origin: Any, first: int, segment: Segment
) -> Iterator[Recipient]:
    """As `_enqueue`; neighbours that wait equally long are one run. Yield the host after some runs, and at
    the end.
    """
    waits, broker = segment.waits, segment.route.publisher.broker
    assert waits is not None
    count, start, runs = len(waits), 0, 0
    host = target.host
    now_ms = broker.services.queue_time.now_ms()
    while start < count:
        until, stop = waits[start], start + 1
        while stop < count and waits[stop] == until:
            stop += 1
        part = run if stop - start == count else run.part(start, stop)
        # Not less: an alarm or a transaction may have held it back.
        part.waits_until = max(0, until - now_ms)
        _enqueue(host, part, origin, first + start, segment, start)
        start, runs = stop, runs + 1
        if runs == WAITING_AT_ONCE and start < count:
            broker.turn.scheduled[host] = None
            yield host
            runs, host = 0, target.host
            now_ms = broker.services.queue_time.now_ms()
    broker.turn.scheduled[host] = None
    yield host


def _present(channel: Channel, route: PublishRoute, count: int) -> list[Target]:
    """Return the targets that messages were routed to, and count the messages there.

    If a queue was deleted since then, the queue that has its name now gets the messages, as in RabbitMQ.
    """
    targets: list[Target] = []
    for target in route.targets:
        if target.deleted:
            target = channel.vhost.queues.get(target.name)
            if target is None:
                continue
        target.published += count
        targets.append(target)
    return targets


def enqueue_in_parts(host: Recipient, run: Run, origin: Any, first: int) -> None:
    """Hand messages to a queue that does not take them as one run; see content.as_taken."""
    for part in content.as_taken(run, host):
        count = len(part.seqs)
        host.pending.append(("enqueue", part, origin, first))
        first += count


def return_all(
    channel: Channel, route: PublishRoute, contents: list[bytes], heads: list[bytes] | None = None
) -> None:
    """Return unroutable messages to their publisher (basic.return, 312)."""
    if heads is not None:
        for head, item in zip(heads, contents, strict=True):
            exchange, routing_key = parse_head(head)
            return_all(channel, derived(route, (), exchange, routing_key), [item])
        return
    returned = methods.make(
        commands.Basic.Return,
        reply_code=312,
        reply_text="NO_ROUTE",
        exchange=route.exchange,
        routing_key=route.routing_key,
    )
    method = frames.method_frame(channel.number, returned)
    put = channel.connection.outbox.put
    if sum(map(len, contents)) < LARGE_BYTES * len(contents):
        put(b"".join(method + item for item in contents))
        return
    for item in contents:
        put(method)
        put(item)
