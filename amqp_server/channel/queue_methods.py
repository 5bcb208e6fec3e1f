"""queue.declare, bind, unbind, purge, delete: checks in RabbitMQ's order, and its texts."""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING

from pamqp import commands

from amqp_server.broker.arguments import Declaration, equivalence_error
from amqp_server.broker.queue import Queue
from amqp_server.broker.reply import PSEUDO_QUEUE
from amqp_server.channel.exchange_methods import (
    argument_types,
    change_binding,
    check_name,
    check_owner,
    locked,
)
from amqp_server.errors import NotFound, PreconditionFailed
from amqp_server.wire import methods

if TYPE_CHECKING:
    from amqp_server.channel.channel import Channel


def find(channel: Channel, name: str) -> Queue:
    """Return a queue that this connection may touch; the last declared for an empty name.

    Raises NotFound, ResourceLocked.
    """
    name = resolve_name(channel, name)
    queue = channel.vhost.queues.get(name)
    if queue is None:
        raise NotFound(f"no queue '{name}' in vhost '{channel.vhost.name}'")
    check_owner(channel, queue)
    return queue


def resolve_name(channel: Channel, name: str) -> str:
    """Raises NotFound for an empty name when nothing was declared."""
    if name:
        return name.replace("\r", "").replace("\n", "")
    if not channel.last_queue:
        raise NotFound("no previously declared queue")
    return channel.last_queue


def declare(channel: Channel, method: commands.Queue.Declare) -> None:
    if method.queue == PSEUDO_QUEUE:
        queue_name, ready, consumers = PSEUDO_QUEUE, 0, 1
    elif method.queue.startswith(PSEUDO_QUEUE + "."):
        if method.queue not in channel.broker.reply_hosts:
            raise NotFound(f"no queue '{method.queue}' in vhost '{channel.vhost.name}'")
        queue_name, ready, consumers = method.queue, 0, 1
    else:
        queue = _passive(channel, method.queue) if method.passive else _declare(channel, method)
        if not (method.passive and queue.type == "quorum"):
            # RabbitMQ does not ask the members of a quorum queue for a passive declare, so its lease runs on.
            queue.used(channel.broker.clock())
        channel.last_queue = queue.name
        queue_name, ready, consumers = queue.name, queue.host.machine.ready.count, len(queue.subscriptions)
    if not method.nowait:
        channel.session.synced()
        answer = methods.make(
            commands.Queue.DeclareOk, queue=queue_name, message_count=ready, consumer_count=consumers
        )
        channel.send(answer)


def _passive(channel: Channel, name: str) -> Queue:
    """Raises NotFound, also for an empty name, which elsewhere means the queue declared last."""
    if not name:
        raise NotFound(f"no queue '' in vhost '{channel.vhost.name}'")
    return find(channel, name)


def _declare(channel: Channel, method: commands.Queue.Declare) -> Queue:
    vhost, session = channel.vhost, channel.session
    permissions = channel.broker.permissions
    name = check_name("queue", method.queue) or _generated_name()
    arguments = dict(method.arguments or {})
    auto_delete, exclusive = bool(method.auto_delete), bool(method.exclusive)
    # What goes with its connection cannot outlive the node.
    durable = bool(method.durable) and not exclusive
    types = argument_types(channel)
    permissions.check(session.username, vhost.name, "queue", name, "configure")
    queue = vhost.queues.get(name)
    if queue is not None:
        _check_equivalent(
            channel, queue, Declaration(durable, auto_delete, arguments, types), exclusive=exclusive
        )
        return queue
    parsed = vhost.parse_arguments(
        name, arguments, durable=durable, exclusive=exclusive, auto_delete=auto_delete, types=types
    )
    if parsed.dead_letter_exchange is not None:
        permissions.check(session.username, vhost.name, "queue", name, "read")
        permissions.check(session.username, vhost.name, "exchange", parsed.dead_letter_exchange, "write")
    queue = vhost.declare_queue(
        name,
        parsed,
        arguments,
        durable=durable,
        auto_delete=auto_delete,
        owner=session if exclusive else None,
    )
    if exclusive:
        session.exclusive_queues[queue] = None
    return queue


def _check_equivalent(channel: Channel, queue: Queue, received: Declaration, *, exclusive: bool) -> None:
    """Raises PreconditionFailed, ResourceLocked."""
    if queue.owner is not (channel.session if exclusive else None):
        raise locked(channel, queue)
    current = Declaration(queue.durable, queue.auto_delete, queue.arguments)
    text = equivalence_error("queue", queue.name, channel.vhost.name, received, current)
    if text is not None:
        raise PreconditionFailed(text)


def _generated_name() -> str:
    return "amq.gen-" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")


def bind(channel: Channel, method: commands.Queue.Bind) -> None:
    _change(channel, method, add=True)
    if not method.nowait:
        channel.session.synced()
        channel.send(commands.Queue.BindOk())


def unbind(channel: Channel, method: commands.Queue.Unbind) -> None:
    _change(channel, method, add=False)
    channel.session.synced()
    channel.send(commands.Queue.UnbindOk())


def _change(channel: Channel, method: commands.Queue.Bind | commands.Queue.Unbind, *, add: bool) -> None:
    name = resolve_name(channel, method.queue)
    routing_key = method.routing_key
    if not routing_key and not method.queue:
        # Both left out: the queue's name is the key (spec, queue.bind, rule "routing-key").
        routing_key = name
    change_binding(channel, "queue", name, method.exchange, routing_key, method.arguments, add=add)


def purge(channel: Channel, method: commands.Queue.Purge) -> None:
    name = resolve_name(channel, method.queue)
    channel.broker.permissions.check(channel.session.username, channel.vhost.name, "queue", name, "read")
    queue = find(channel, name)
    count = queue.host.machine.ready.count
    queue.host.submit(("purge",))
    if not method.nowait:
        channel.session.synced()
        channel.send(commands.Queue.PurgeOk(count))


def delete(channel: Channel, method: commands.Queue.Delete) -> None:
    vhost = channel.vhost
    name = resolve_name(channel, method.queue)
    channel.broker.permissions.check(channel.session.username, vhost.name, "queue", name, "configure")
    queue = vhost.queues.get(name)
    count = 0
    if queue is not None:
        check_owner(channel, queue)
        if method.if_unused and queue.subscriptions:
            raise PreconditionFailed(f"queue '{name}' in vhost '{vhost.name}' in use")
        if method.if_empty and queue.host.machine.ready.count:
            raise PreconditionFailed(f"queue '{name}' in vhost '{vhost.name}' not empty")
        count = vhost.delete_queue(queue)
    if not method.nowait:
        channel.session.synced()
        channel.send(commands.Queue.DeleteOk(count))
