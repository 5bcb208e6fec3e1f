"""queue.declare, bind, unbind, purge, delete: checks in RabbitMQ's order, and its texts."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pamqp import base, commands

from amqp_server.broker import declared_memory
from amqp_server.broker.declared.argument_table import not_replicated
from amqp_server.broker.declared.arguments import Declaration, equivalence_error
from amqp_server.broker.declared.operations import DeclareQueue, DeleteQueue
from amqp_server.broker.declared.records import QueueRecord, encoded
from amqp_server.broker.reply import PSEUDO_QUEUE
from amqp_server.broker.room import told_room
from amqp_server.broker.topology import consumer_groups
from amqp_server.broker.topology.queue import Queue
from amqp_server.broker.topology.super_streams import super_stream_of
from amqp_server.channel.exchange_methods import (
    argument_types,
    change_binding,
    check_name,
    check_owner,
    locked,
)
from amqp_server.errors import HomeNodeDown, NotFound, NotImplemented_, PreconditionFailed, Unavailable
from amqp_server.streams.layout.consumer_start import Start, parse_moment, parse_start
from amqp_server.streams.local_host import StreamHost
from amqp_server.wire import methods
from exchanges.binding import Binding
from quorum_queue.host import DELETED
from quorum_queue.machine.seal import EMPTY, IN_USE, NOT_EMPTY, SEALED, UNUSED, Sealed
from quorum_queue.ports import Refused

if TYPE_CHECKING:
    from amqp_server.channel.channel import Channel

OFFSET = "x-stream-offset"
#: Count only messages before this time.
UNTIL = "x-stream-until"
#: Largest count of messages that a reply can hold.
LONG_MAX = 2**32 - 1


def find(channel: Channel, name: str) -> Queue:
    """Return a queue that this connection may use; an empty name stands for the queue declared last.

    Raises NotFound, ResourceLocked.
    """
    queue = _existing(channel, resolve_name(channel, name))
    # As in RabbitMQ, in this order.
    check_home(channel, queue)
    check_owner(channel, queue)
    return queue


def place_of(queue: Queue) -> str:
    """Return how RabbitMQ's errors name a queue."""
    return f"queue '{queue.name}' in vhost '{queue.vhost.name}'"


def not_served(queue: Queue, why: str) -> NotFound | Unavailable:
    """Return the error for a request that a queue has not taken: it is gone, or nobody serves it now."""
    if queue.deleted or why == DELETED.text:
        return NotFound(f"no {place_of(queue)}")
    return Unavailable(why)


def check_home(channel: Channel, queue: Queue) -> None:
    """Raise HomeNodeDown, as RabbitMQ does, if the only node that has the queue is down."""
    node = channel.broker.hosts.absent_home(queue)
    if node:
        durable = "durable " if queue.durable else ""
        raise HomeNodeDown(
            f"home node '{node}' of {durable}queue '{queue.name}' in vhost '{channel.vhost.name}' is down or inaccessible"
        )


def resolve_name(channel: Channel, name: str) -> str:
    """Return the name, or the name declared last if it is empty. Raises NotFound if nothing was declared."""
    if name:
        return name.replace("\r", "").replace("\n", "")
    if not channel.last_queue:
        raise NotFound("no previously declared queue")
    return channel.last_queue


def declare(channel: Channel, method: commands.Queue.Declare) -> None:
    if method.queue == PSEUDO_QUEUE or method.queue.startswith(PSEUDO_QUEUE + "."):
        if method.queue != PSEUDO_QUEUE and not _awaits_replies(channel, method.queue):
            raise NotFound(f"no queue '{method.queue}' in vhost '{channel.vhost.name}'")
        _declare_ok(channel, method, method.queue, 0, 1)
    elif method.passive:
        queue = _passive(channel, method.queue)
        _check_deduplication(channel, queue, dict(method.arguments or {}))
        if queue.type.leased_by_passive_declare:
            # RabbitMQ does not ask the members of a quorum queue for a passive declare, so its lease runs on.
            queue.used()
        arguments = method.arguments or {}
        if UNTIL in arguments and (OFFSET not in arguments or queue.type.is_group):
            raise PreconditionFailed(
                f"invalid arg '{UNTIL}' for {place_of(queue)}: it needs a stream, and '{OFFSET}'"
            )
        # For consumer groups this is a normal argument of the declaration, and a client may repeat it here.
        if OFFSET in arguments and not queue.type.is_group:
            _count_from(channel, method, queue)
        else:
            _declared(channel, method, queue)
    else:
        _declare(channel, method)


def _awaits_replies(channel: Channel, token: str) -> bool:
    """True if a client waits for replies with this token. For a client of another node, this node only knows
    whether that node can be reached.
    """
    return channel.broker.replies.get(token) is not None or channel.broker.hosts.reply(token) is not None


def _declare_ok(
    channel: Channel, method: commands.Queue.Declare, name: str, ready: int, consumers: int
) -> None:
    if not method.nowait:
        channel.connection.synced()
        channel.send(
            methods.make(commands.Queue.DeclareOk, queue=name, message_count=ready, consumer_count=consumers)
        )


def _declared(channel: Channel, method: commands.Queue.Declare, queue: Queue) -> None:
    """Answer a declare of an existing queue, with its counts of messages and consumers."""
    channel.last_queue = queue.name
    if not method.passive:
        channel.broker.counts.ended.queues_declared += 1

    def counted(refused: Refused | None = None) -> None:
        if queue.deleted:
            # It was deleted, or sealed, before the declare came to it.
            declare(channel, method)
            return
        if refused is not None:
            raise Unavailable(refused.text)
        # The queue may have moved meanwhile.
        host = queue.host
        _declare_ok(channel, method, queue.name, host.ready_count, host.consumer_count)

    channel.connection.after(queue.catch_up, counted)


def _count_from(channel: Channel, method: commands.Queue.Declare, queue: Queue) -> None:
    """Count the messages of a stream from an offset on that consumers can get now (capability
    stream_offsets).

    So a reader that keeps its own offset learns how far it may read, and whether retention has deleted
    messages that it needs. With a time, count the messages before the first batch that is not older
    (capability stream_timestamps). Raises PreconditionFailed.
    """
    host = channel.broker.host_parts.begun(queue)
    if not queue.type.is_stream or not isinstance(host, StreamHost):
        raise PreconditionFailed(
            f"invalid arg '{OFFSET}' for {place_of(queue)} of queue type rabbit_{queue.type.name}_queue"
        )
    types = argument_types(channel)
    start = parse_start(dict(method.arguments or {}), types, place_of(queue))
    if start.offset is None:
        raise PreconditionFailed(
            f"invalid arg '{OFFSET}' for {place_of(queue)}: it must be a number in a passive declare"
        )
    offset, arguments = start.offset, dict(method.arguments or {})
    until = parse_moment(arguments, types, place_of(queue), UNTIL) if UNTIL in arguments else None
    channel.last_queue = queue.name

    def ask(done: Callable[..., None]) -> None:
        def bounded(found: range | None) -> None:
            if until is None or found is None:
                done(found, None)
            else:
                host.place_of(Start(time_ms=until), partial(done, found))

        host.offsets(bounded)

    def told(found: range | None, place: int | Refused | None) -> None:
        if found is None or isinstance(place, Refused):
            raise PreconditionFailed(
                f"the offsets of {place_of(queue)} are not known on this node now: try again"
            )
        if not found.start <= offset <= found.stop:
            raise PreconditionFailed(
                f"no offset {offset} in {place_of(queue)}: its first is {found.start} and its next is {found.stop}"
            )
        count = max((found.stop if place is None else place) - offset, 0)
        _declare_ok(channel, method, queue.name, min(count, LONG_MAX), queue.host.consumer_count)

    channel.connection.after(ask, told)


def _check_deduplication(channel: Channel, queue: Queue, arguments: dict[str, object]) -> None:
    """Compare the argument that even a passive declare compares. Raises PreconditionFailed.

    A publisher cannot learn otherwise whether its duplicates are dropped (capability
    publisher_deduplication).
    """
    if arguments.get("x-deduplication") is True and not queue.settings.deduplicates:
        raise PreconditionFailed(
            f"inequivalent arg 'x-deduplication' for queue '{queue.name}' in vhost '{channel.vhost.name}': "
            "received 'true' but current is none"
        )


def _passive(channel: Channel, name: str) -> Queue:
    """Return an existing queue. Raises NotFound, also for an empty name, which elsewhere means the queue
    declared last.
    """
    if not name:
        raise NotFound(f"no queue '' in vhost '{channel.vhost.name}'")
    return find(channel, name)


def _declare(channel: Channel, method: commands.Queue.Declare) -> None:
    vhost, connection, broker = channel.vhost, channel.connection, channel.broker
    permissions = broker.access.permissions
    name = check_name("queue", method.queue)
    if not name:
        # Kept while a backend is asked whether the user may declare a queue of this name.
        name = channel.generated_name = channel.generated_name or _generated_name()
    arguments = dict(method.arguments or {})
    auto_delete, exclusive = bool(method.auto_delete), bool(method.exclusive)
    # An exclusive queue is deleted with its connection, so it cannot survive the end of the node.
    durable = bool(method.durable) and not exclusive
    types = argument_types(channel)
    default_type = vhost.default_queue_type if durable and not auto_delete else "classic"
    received = Declaration(durable, auto_delete, arguments, types, queue_type=default_type)
    permissions.check(connection.client.access, vhost.name, "queue", name, "configure")

    def declared() -> None:
        queue = _existing(channel, name)
        check_home(channel, queue)
        _check_equivalent(channel, queue, received, exclusive=exclusive)
        queue.used()
        _declared(channel, method, queue)

    if name in vhost.queues:
        declared()
        return
    vhost.check_queue(name)
    parsed = vhost.check_arguments(
        name,
        arguments,
        durable=durable,
        exclusive=exclusive,
        auto_delete=auto_delete,
        types=types,
        default_type=default_type,
    )
    if parsed.dead_letter_exchange is not None:
        permissions.check(connection.client.access, vhost.name, "queue", name, "read")
        permissions.check(
            connection.client.access, vhost.name, "exchange", parsed.dead_letter_exchange, "write"
        )
    if parsed.type.is_group:
        for stream in consumer_groups.check(vhost, name, parsed):
            permissions.check(connection.client.access, vhost.name, "queue", stream.name, "read")
    broker.counts.check_declared(declared_memory.of_queue(arguments))
    replication = broker.replication
    if parsed.type.is_stream and not replication.has_streams:
        raise NotImplemented_(
            f"queue '{name}' in vhost '{vhost.name}' is a stream, which needs a cluster whose nodes all "
            "run this version of mqd"
        )
    unknown = None
    if parsed.type.is_stream and replication.clustered:
        unknown = not_replicated(arguments, replication.version)
    if unknown is not None:
        raise NotImplemented_(
            f"streams in a cluster do not support '{unknown}': queue '{name}' in vhost '{vhost.name}'"
        )
    members = broker.hosts.place(parsed)
    record = QueueRecord(
        vhost.name,
        name,
        0,
        auto_delete,
        encoded(arguments),
        durable=durable,
        exclusive=exclusive,
        owner=connection.number if exclusive else 0,
        type=parsed.queue_type,
        node="" if members else broker.hosts.home(durable=durable and not exclusive) or replication.node,
        incarnation=0 if durable else replication.incarnation,
        members=members,
        leader=members[0] if members else "",
        deduplication_producers=broker.config.deduplication_producers_max,
    )

    def applied(error: str) -> None:
        if error:
            raise PreconditionFailed(error)
        # Another client may have declared one of this name first.
        declared()

    channel.generated_name = ""
    connection.propose(DeclareQueue(record, told_room(vhost)), applied)


def _existing(channel: Channel, name: str) -> Queue:
    """Return the queue of this name. Raises NotFound."""
    queue = channel.vhost.queues.get(name)
    if queue is None:
        raise NotFound(f"no queue '{name}' in vhost '{channel.vhost.name}'")
    return queue


def _check_equivalent(channel: Channel, queue: Queue, received: Declaration, *, exclusive: bool) -> None:
    """Compare the declaration with the existing queue. Raises PreconditionFailed, ResourceLocked."""
    if queue.exclusive != exclusive or (exclusive and not queue.owned_by(channel.connection.number)):
        raise locked(channel, queue)
    current = Declaration(queue.durable, queue.auto_delete, queue.arguments, queue_type=queue.type.name)
    text = equivalence_error("queue", queue.name, channel.vhost.name, received, current)
    if text is not None:
        raise PreconditionFailed(text)


def _generated_name() -> str:
    return "amq.gen-" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")


def bind(channel: Channel, method: commands.Queue.Bind) -> None:
    _change(channel, method, None if method.nowait else commands.Queue.BindOk(), add=True)


def unbind(channel: Channel, method: commands.Queue.Unbind) -> None:
    _change(channel, method, commands.Queue.UnbindOk(), add=False)


def _change(
    channel: Channel,
    method: commands.Queue.Bind | commands.Queue.Unbind,
    answer: base.Frame | None,
    *,
    add: bool,
) -> None:
    name = resolve_name(channel, method.queue)
    routing_key = method.routing_key
    if not routing_key and not method.queue:
        # If queue and routing key are both empty, the name of the queue declared last is the key (spec,
        # queue.bind, rule "routing-key").
        routing_key = name
    binding = Binding(method.exchange, name, "queue", routing_key, method.arguments or {})
    change_binding(channel, binding, answer, add=add)


def purge(channel: Channel, method: commands.Queue.Purge) -> None:
    name = resolve_name(channel, method.queue)
    access = channel.connection.client.access
    channel.broker.access.permissions.check(access, channel.vhost.name, "queue", name, "read")
    queue = find(channel, name)
    if queue.type.is_stream:
        raise NotImplemented_(f"queue.purge not supported by stream queues {place_of(queue)}")

    def purged(count: int | Refused) -> None:
        if isinstance(count, Refused):
            raise not_served(queue, count.text)
        if not method.nowait:
            channel.connection.synced()
            channel.send(commands.Queue.PurgeOk(count))

    channel.connection.after(queue.host.purge, purged)


def delete(channel: Channel, method: commands.Queue.Delete) -> None:
    vhost, connection = channel.vhost, channel.connection
    name = resolve_name(channel, method.queue)
    channel.broker.access.permissions.check(connection.client.access, vhost.name, "queue", name, "configure")
    queue = vhost.queues.get(name)

    def answer(count: int) -> None:
        if not method.nowait:
            connection.synced()
            channel.send(commands.Queue.DeleteOk(count))

    def deleted(count: int) -> None:
        answer(count)
        channel.deleted()

    if queue is None:
        answer(0)
        return
    check_owner(channel, queue)
    whole = super_stream_of(vhost, name)
    if whole is not None:
        raise PreconditionFailed(
            f"{place_of(queue)} is a partition of super stream '{whole}': delete that exchange instead"
        )
    queue.check_protection()
    if method.if_unused and queue.type.is_stream and channel.broker.replication.clustered:
        # A node of a cluster knows only its own consumers of a stream. RabbitMQ refuses if-unused for all
        # streams.
        raise NotImplemented_(
            f"cannot delete {place_of(queue)}. queue.delete operations with if-unused flag set are not supported by "
            "stream queues"
        )
    operation = DeleteQueue(vhost.name, name, queue.queue_id)

    def caught_up(done: Callable[[], None]) -> None:
        """Call `done` when this node knows what any client was told, or does not learn it in time."""
        left = 2

        def one(*_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        queue.catch_up(one)
        channel.broker.replication.catch_up(one)

    def counted() -> None:
        # An operator may have protected it on another node.
        queue.check_protection()
        remove(queue.host.ready_count)

    def decided(found: Sealed | Refused) -> None:
        if isinstance(found, Refused) or found.outcome != SEALED:
            channel.deleted()
        if isinstance(found, Refused):
            raise Unavailable(found.text)
        if found.outcome == IN_USE:
            raise PreconditionFailed(f"queue '{name}' in vhost '{vhost.name}' in use")
        if found.outcome == NOT_EMPTY:
            raise PreconditionFailed(f"queue '{name}' in vhost '{vhost.name}' not empty")
        remove(found.count)

    def remove(count: int) -> None:
        channel.deleting = queue

        def removed(error: str) -> None:
            # Answer afterwards: a client that has its answer may use the tags of its consumers again.
            connection.after(
                lambda done: channel.broker.lost_consumers.when_told(queue, done),
                lambda: deleted(count),
            )

        connection.propose(operation, removed)

    condition = (UNUSED if method.if_unused else 0) | (EMPTY if method.if_empty else 0)
    if not condition:
        connection.after(caught_up, counted)
        return

    def may_delete(majority: bool) -> None:
        if not majority:
            # A sealed queue would serve nobody until there is a majority that can delete it.
            raise Unavailable(
                f"cannot delete {place_of(queue)} on a condition: no majority of the cluster's nodes answers"
            )
        queue.check_protection()
        # Its home deletes a queue that it has sealed, perhaps before the answer is here.
        channel.deleting = queue
        connection.after(partial(queue.seal, condition), decided)

    connection.after(channel.broker.replication.catch_up, may_delete)
