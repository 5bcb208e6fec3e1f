"""exchange.declare, delete, bind, unbind: checks in RabbitMQ's order, and its texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pamqp import base, commands

from amqp_server.broker.declared.arguments import Declaration, equivalence_error
from amqp_server.broker.declared.operations import Bind, DeclareExchange, DeleteExchange, Operation, Unbind
from amqp_server.broker.declared.records import ExchangeRecord, encoded
from amqp_server.broker.room import told_room
from amqp_server.broker.topology.consumer_groups import feeds_groups, refuse_publish
from amqp_server.broker.topology.queue import Queue
from amqp_server.broker.topology.super_streams import (
    COMPARED,
    PARTITIONS,
    check_count,
    check_known,
    declaration,
    has_partitions,
    partition_name,
    partitions_of,
)
from amqp_server.errors import (
    AccessRefused,
    CommandInvalid,
    NotFound,
    NotImplemented_,
    PreconditionFailed,
    ResourceLocked,
)
from amqp_server.wire import tables
from exchanges.binding import Binding
from exchanges.delayed import DELAYED
from exchanges.registry import EXCHANGE_TYPES
from exchanges.router import Exchange, InvalidArgument
from exchanges.super_stream import SUPER_STREAM
from quorum_queue.machine import versions
from quorum_queue.steps import Steps

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
    """Return the exchange of this name. Raises NotFound."""
    exchange = channel.vhost.router.get(name)
    if exchange is None:
        raise NotFound(f"no exchange '{name}' in vhost '{channel.vhost.name}'")
    return exchange


def argument_types(channel: Channel) -> dict[str, str]:
    """Return the field types of the arguments of the current declare or consume, which pamqp does not keep.

    These methods begin with a ticket and short strings (queue.declare has one, exchange.declare and
    basic.consume have two), then one octet of bits, then the table.
    """
    payload = channel.raw
    offset = 6 + 1 + payload[6]
    if payload[1] != 50:
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
        if dict(method.arguments or {}).get("x-deduplication") is True:
            _check_deduplication(channel, method, name)
        else:
            _declared(channel, method)
    else:
        _declare(channel, method, name)


def _check_deduplication(channel: Channel, method: commands.Exchange.Declare, name: str) -> None:
    """Do the check of queue_methods for all queues that this exchange reaches by its current bindings, and
    answer the method.
    """
    reached: list[list[str] | None] = []

    def steps() -> Iterator[None]:
        reached.append((yield from channel.vhost.router.reachable_queues(name)))

    def done() -> None:
        _check_reached(channel, name, reached[0])
        _declared(channel, method)

    def begin(answer: Callable[..., None]) -> None:
        # There may be 100,000 exchanges behind this one.
        Steps(channel.broker.turn, steps, "the queues behind an exchange could not be found", answer).begin()

    channel.connection.after(begin, done)


def _check_reached(channel: Channel, name: str, queues: list[str] | None) -> None:
    """Check the queues behind an exchange. Raises PreconditionFailed, also if there is no queue."""
    vhost = channel.vhost
    problem = f"inequivalent arg 'x-deduplication' for exchange '{name}' in vhost '{vhost.name}': received 'true' but"
    if queues is None:
        raise PreconditionFailed(f"{problem} the default exchange is behind it")
    if not queues:
        raise PreconditionFailed(f"{problem} no queue is bound")
    for queue in queues:
        found = vhost.queues.get(queue)
        if found is not None and not found.settings.deduplicates:
            raise PreconditionFailed(f"{problem} queue '{queue}' has none")


def _declared(channel: Channel, method: commands.Exchange.Declare) -> None:
    if not method.nowait:
        channel.connection.synced()
        channel.send(commands.Exchange.DeclareOk())


def _declare(channel: Channel, method: commands.Exchange.Declare, name: str) -> None:
    vhost, user = channel.vhost, channel.connection.client.access
    permissions = channel.broker.access.permissions
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
    if vhost.router.get(name) is not None:
        _check_equivalent(channel, name, received)
        _declared(channel, method)
        return
    check_name("exchange", name)
    alternate = arguments.get("alternate-exchange")
    if isinstance(alternate, str):
        permissions.check(user, vhost.name, "exchange", name, "read")
        permissions.check(user, vhost.name, "exchange", alternate, "write")
    vhost.check_exchange(name, arguments)
    replication = channel.broker.replication
    record = ExchangeRecord(
        vhost.name,
        name,
        method.exchange_type,
        received.auto_delete,
        received.internal,
        encoded(arguments),
        received.durable,
        *(("", 0) if received.durable else (replication.node, replication.incarnation)),
    )

    def applied(error: str) -> None:
        if error:
            raise PreconditionFailed(error)
        # Another client may have declared one of this name first.
        _check_equivalent(channel, name, received)
        _declared(channel, method)

    if method.exchange_type == DELAYED and replication.version < versions.DELAYS:
        raise NotImplemented_(
            f"exchange '{name}' in vhost '{vhost.name}' has the type {DELAYED}, which needs a cluster whose "
            "nodes all run this version of mqd"
        )
    operation: Operation = DeclareExchange(record, told_room(vhost))
    if method.exchange_type == SUPER_STREAM:
        check_known(vhost, name)
    if method.exchange_type == SUPER_STREAM and PARTITIONS in arguments:
        count = check_count(vhost, name, arguments[PARTITIONS], received.types)
        for number in range(count):
            permissions.check(user, vhost.name, "queue", partition_name(name, number), "configure")
        operation = declaration(vhost, record, arguments, received.types)
    channel.connection.propose(operation, applied)


def _check_equivalent(channel: Channel, name: str, received: Declaration) -> None:
    """Compare the declaration with the existing exchange. Raises PreconditionFailed, and NotFound if the
    exchange was deleted meanwhile.
    """
    exchange = existing(channel, name)
    arguments = exchange.arguments
    compared: tuple[str, ...] = ()
    if exchange.type == SUPER_STREAM:
        compared = COMPARED
        if has_partitions(exchange):
            present = len(partitions_of(channel.vhost, exchange) or ())
            if received.arguments.get(PARTITIONS) == present:
                # Equal to the current state or to the declaration: the super stream may have got more
                # partitions since.
                arguments = {**arguments, PARTITIONS: present}
    current = Declaration(
        durable=exchange.durable,
        auto_delete=exchange.auto_delete,
        arguments=arguments,
        type=exchange.type,
        internal=exchange.internal,
        queue_type="stream",
    )
    text = equivalence_error("exchange", name, channel.vhost.name, received, current, compared)
    if text is not None:
        raise PreconditionFailed(text)


def delete(channel: Channel, method: commands.Exchange.Delete) -> None:
    vhost = channel.vhost
    name = method.exchange.replace("\r", "").replace("\n", "")
    if name == "":
        raise AccessRefused(DEFAULT_REFUSED)
    if name.startswith("amq."):
        raise AccessRefused(f"deletion of system exchange '{name}' in vhost '{vhost.name}' not allowed")
    channel.broker.access.permissions.check(
        channel.connection.client.access, vhost.name, "exchange", name, "configure"
    )

    def partitions() -> Sequence[str]:
        exchange = vhost.router.get(name)
        if exchange is None or not has_partitions(exchange):
            return ()
        return partitions_of(vhost, exchange) or ()

    for partition in partitions():
        channel.broker.access.permissions.check(
            channel.connection.client.access, vhost.name, "queue", partition, "configure"
        )

    def check_protection() -> None:
        for partition in partitions():
            if partition in vhost.queues:
                vhost.queues[partition].check_protection()

    check_protection()

    def check() -> bool:
        """Return whether there is an exchange to delete. Raises PreconditionFailed."""
        there = vhost.router.get(name) is not None
        if there and method.if_unused and vhost.router.in_use(name):
            raise PreconditionFailed(f"exchange '{name}' in vhost '{vhost.name}' in use")
        return there

    def applied(error: str = "") -> None:
        # The exchange may have come into use meanwhile.
        check()
        if not method.nowait:
            channel.connection.synced()
            channel.send(commands.Exchange.DeleteOk())

    operation = DeleteExchange(vhost.name, name, bool(method.if_unused))

    def caught_up(majority: bool) -> None:
        # An operator may have protected a partition on another node.
        check_protection()
        channel.connection.propose(operation, applied)

    if not check():
        applied()
    elif partitions():
        channel.connection.after(channel.broker.replication.catch_up, caught_up)
    else:
        channel.connection.propose(operation, applied)


def bind(channel: Channel, method: commands.Exchange.Bind) -> None:
    _change(channel, method, commands.Exchange.BindOk(), add=True)


def unbind(channel: Channel, method: commands.Exchange.Unbind) -> None:
    _change(channel, method, commands.Exchange.UnbindOk(), add=False)


def _change(
    channel: Channel,
    method: commands.Exchange.Bind | commands.Exchange.Unbind,
    answer: base.Frame,
    *,
    add: bool,
) -> None:
    arguments = method.arguments or {}
    binding = Binding(method.source, method.destination, "exchange", method.routing_key, arguments)
    change_binding(channel, binding, None if method.nowait else answer, add=add)


def change_binding(channel: Channel, binding: Binding, answer: base.Frame | None, *, add: bool) -> None:
    """Bind or unbind, for queues and exchanges alike (rabbit_channel's binding_action), and answer."""
    vhost, connection = channel.vhost, channel.connection
    permissions = channel.broker.access.permissions
    if binding.source == "" or (binding.kind == "exchange" and binding.destination == ""):
        raise AccessRefused(DEFAULT_REFUSED)
    permissions.check(connection.client.access, vhost.name, binding.kind, binding.destination, "write")
    permissions.check(connection.client.access, vhost.name, "exchange", binding.source, "read")
    source = vhost.router.get(binding.source)
    if source is not None and source.routing_type == "topic":
        key = binding.routing_key
        permissions.check_topic(connection.client.access, vhost.name, binding.source, key, "read")
    _check_ends(channel, binding, add=add)
    if add and feeds_groups(vhost, binding.source, binding.kind, binding.destination):
        permissions.check(connection.client.access, vhost.name, "queue", binding.destination, "read")
    if has_partitions(vhost.router.get(binding.source)):
        raise PreconditionFailed(
            f"exchange '{binding.source}' in vhost '{vhost.name}' is a super stream that was declared with "
            f"'{PARTITIONS}': nothing but its partitions is bound to it"
        )
    group = vhost.groups.get(binding.destination) if add and binding.kind == "queue" else None
    if group is not None:
        raise refuse_publish(group)

    def applied(error: str = "") -> None:
        if error:
            raise PreconditionFailed(error)
        if add:
            # One of its ends may have been deleted meanwhile.
            _check_ends(channel, binding, add=True)
        if answer is not None:
            connection.synced()
            channel.send(answer)

    there = vhost.router.has(binding)
    if there is add:
        applied()
    elif add:
        try:
            vhost.check_binding(binding)
        except InvalidArgument as invalid:
            raise PreconditionFailed(str(invalid)) from None
        connection.propose(Bind(vhost.binding_record(binding), told_room(vhost)), applied)
    else:
        connection.propose(Unbind(vhost.binding_record(binding)), applied)


def _check_ends(channel: Channel, binding: Binding, *, add: bool) -> None:
    """Check source and destination of a binding. Raises NotFound, ResourceLocked."""
    if add:
        existing(channel, binding.source)
    if binding.kind == "queue":
        _check_queue(channel, binding, add=add)
    elif add:
        existing(channel, binding.destination)


def _check_queue(channel: Channel, binding: Binding, *, add: bool) -> None:
    """Check the queue of a binding. Raises NotFound, ResourceLocked. As in RabbitMQ an unbind of a binding
    that does not exist is not checked.
    """
    vhost = channel.vhost
    queue = vhost.queues.get(binding.destination)
    if queue is None:
        if add:
            raise NotFound(f"no queue '{binding.destination}' in vhost '{vhost.name}'")
    elif add or vhost.router.has(binding):
        check_owner(channel, queue)


def check_owner(channel: Channel, queue: Queue) -> None:
    """Raises ResourceLocked for the exclusive queue of another connection."""
    if queue.exclusive and not queue.owned_by(channel.connection.number):
        raise locked(channel, queue)


def locked(channel: Channel, queue: Queue) -> ResourceLocked:
    return ResourceLocked(
        f"cannot obtain exclusive access to locked queue '{queue.name}' in vhost '{channel.vhost.name}'. It could be "
        "originally declared on another connection or the exclusive property value does not match that of the "
        "original declaration."
    )
