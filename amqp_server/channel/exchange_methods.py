"""exchange.declare, delete, bind, unbind: checks in RabbitMQ's order, and its texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pamqp import commands

from amqp_server.broker.arguments import Declaration, equivalence_error
from amqp_server.broker.queue import Queue
from amqp_server.errors import AccessRefused, CommandInvalid, NotFound, PreconditionFailed, ResourceLocked
from amqp_server.wire import tables
from exchanges.binding import Binding, DestinationKind
from exchanges.registry import EXCHANGE_TYPES
from exchanges.router import Exchange, InvalidArgument

if TYPE_CHECKING:
    from amqp_server.channel.channel import Channel

DEFAULT_REFUSED = "operation not permitted on the default exchange"


def check_name(kind: str, name: str) -> str:
    """Return the name without line breaks. Raises AccessRefused for the reserved prefix."""
    name = name.replace("\r", "").replace("\n", "")
    if name.startswith("amq."):
        raise AccessRefused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")
    return name


def existing(channel: Channel, name: str) -> Exchange:
    """Raises NotFound."""
    exchange = channel.vhost.router.get(name)
    if exchange is None:
        raise NotFound(f"no exchange '{name}' in vhost '{channel.vhost.name}'")
    return exchange


def argument_types(channel: Channel) -> dict[str, str]:
    """Return the field types of the arguments of the declare being handled, which pamqp does not tell.

    queue.declare and exchange.declare begin with a ticket and short strings, then one octet of bits, then the table.
    """
    payload = channel.raw
    offset = 6 + 1 + payload[6]
    if payload[1] == 40:
        offset += 1 + payload[offset]
    try:
        return tables.types(payload[offset + 1 :])
    except (tables.TableError, IndexError):
        return {}


def declare(channel: Channel, method: commands.Exchange.Declare) -> None:
    name = method.exchange.replace("\r", "").replace("\n", "")
    if not method.passive and method.exchange_type not in EXCHANGE_TYPES:
        raise CommandInvalid(f"unknown exchange type '{method.exchange_type}'")
    if name == "":
        raise AccessRefused(DEFAULT_REFUSED)
    if method.passive:
        existing(channel, name)
    else:
        _declare(channel, method, name)
    if not method.nowait:
        channel.session.synced()
        channel.send(commands.Exchange.DeclareOk())


def _declare(channel: Channel, method: commands.Exchange.Declare, name: str) -> None:
    vhost, user = channel.vhost, channel.session.username
    permissions = channel.broker.permissions
    arguments = dict(method.arguments or {})
    received = Declaration(
        durable=bool(method.durable),
        auto_delete=bool(method.auto_delete),
        arguments=arguments,
        types=argument_types(channel),
        type=method.exchange_type,
        internal=bool(method.internal),
    )
    permissions.check(user, vhost.name, "exchange", name, "configure")
    exchange = vhost.router.get(name)
    if exchange is None:
        check_name("exchange", name)
        alternate = arguments.get("alternate-exchange")
        if isinstance(alternate, str):
            permissions.check(user, vhost.name, "exchange", name, "read")
            permissions.check(user, vhost.name, "exchange", alternate, "write")
        try:
            vhost.declare_exchange(
                name,
                method.exchange_type,
                durable=bool(method.durable),
                auto_delete=bool(method.auto_delete),
                internal=bool(method.internal),
                arguments=arguments,
            )
        except InvalidArgument as error:
            raise PreconditionFailed(str(error)) from None
        return
    current = Declaration(
        durable=exchange.durable,
        auto_delete=exchange.auto_delete,
        arguments=exchange.arguments,
        type=exchange.type,
        internal=exchange.internal,
    )
    text = equivalence_error("exchange", name, vhost.name, received, current)
    if text is not None:
        raise PreconditionFailed(text)


def delete(channel: Channel, method: commands.Exchange.Delete) -> None:
    vhost = channel.vhost
    name = method.exchange.replace("\r", "").replace("\n", "")
    if name == "":
        raise AccessRefused(DEFAULT_REFUSED)
    if name.startswith("amq."):
        raise AccessRefused(f"deletion of system exchange '{name}' in vhost '{vhost.name}' not allowed")
    channel.broker.permissions.check(channel.session.username, vhost.name, "exchange", name, "configure")
    exchange = vhost.router.get(name)
    if exchange is not None:
        if method.if_unused and vhost.router.in_use(name):
            raise PreconditionFailed(f"exchange '{name}' in vhost '{vhost.name}' in use")
        vhost.delete_exchange(name)
    if not method.nowait:
        channel.session.synced()
        channel.send(commands.Exchange.DeleteOk())


def bind(channel: Channel, method: commands.Exchange.Bind) -> None:
    change_binding(
        channel, "exchange", method.destination, method.source, method.routing_key, method.arguments, add=True
    )
    if not method.nowait:
        channel.session.synced()
        channel.send(commands.Exchange.BindOk())


def unbind(channel: Channel, method: commands.Exchange.Unbind) -> None:
    change_binding(
        channel,
        "exchange",
        method.destination,
        method.source,
        method.routing_key,
        method.arguments,
        add=False,
    )
    if not method.nowait:
        channel.session.synced()
        channel.send(commands.Exchange.UnbindOk())


def change_binding(
    channel: Channel,
    kind: DestinationKind,
    destination: str,
    source: str,
    routing_key: str,
    arguments: Mapping[str, object] | None,
    *,
    add: bool,
) -> None:
    """Bind or unbind, for queues and exchanges alike (rabbit_channel's binding_action)."""
    vhost, session = channel.vhost, channel.session
    permissions = channel.broker.permissions
    if source == "" or (kind == "exchange" and destination == ""):
        raise AccessRefused(DEFAULT_REFUSED)
    permissions.check(session.username, vhost.name, kind, destination, "write")
    permissions.check(session.username, vhost.name, "exchange", source, "read")
    binding = Binding(source, destination, kind, routing_key, arguments or {})
    if add:
        existing(channel, source)
    if kind == "queue":
        _check_queue(channel, binding, add=add)
    elif add:
        existing(channel, destination)
    if not add:
        vhost.unbind(binding)
        return
    try:
        vhost.bind(binding)
    except InvalidArgument as error:
        raise PreconditionFailed(str(error)) from None


def _check_queue(channel: Channel, binding: Binding, *, add: bool) -> None:
    """Raises NotFound, ResourceLocked. As in RabbitMQ nothing is checked for an unbind of what is not bound."""
    vhost = channel.vhost
    queue = vhost.queues.get(binding.destination)
    if queue is None:
        if add:
            raise NotFound(f"no queue '{binding.destination}' in vhost '{vhost.name}'")
    elif add or binding in vhost.router.bindings(destination=queue.name, kind="queue"):
        check_owner(channel, queue)


def check_owner(channel: Channel, queue: Queue) -> None:
    """Raises ResourceLocked for the exclusive queue of another connection."""
    if queue.owner is not None and queue.owner is not channel.session:
        raise locked(channel, queue)


def locked(channel: Channel, queue: Queue) -> ResourceLocked:
    return ResourceLocked(
        f"cannot obtain exclusive access to locked queue '{queue.name}' in vhost '{channel.vhost.name}'. It could be "
        "originally declared on another connection or the exclusive property value does not match that of the "
        "original declaration."
    )
