"""One virtual host: its exchanges, queues and bindings, and their records.

Methods named `check…` serve the proposer of a change. The other methods make changes, the same ones in the
same order on every node; see `topology`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING

import msgspec

from amqp_server.broker import declared_memory, room
from amqp_server.broker.declared.arguments import QueueArguments, parse_queue_arguments
from amqp_server.broker.declared.parameters import GLOBAL, TRACING
from amqp_server.broker.declared.queue_types import CLASSIC
from amqp_server.broker.declared.records import (
    BINDINGS,
    EXCHANGES,
    QUEUES,
    BindingRecord,
    ExchangeRecord,
    QueueRecord,
    arguments_of,
    encoded,
    key,
    shared,
    shared_table,
)
from amqp_server.broker.metadata import encode
from amqp_server.broker.topology.event_headers import of_binding, of_exchange
from amqp_server.broker.topology.queue import Queue
from amqp_server.broker.topology.super_streams import has_partitions, partitions_of
from amqp_server.broker.traffic import Traffic
from amqp_server.errors import PreconditionFailed
from amqp_server.wire import tables
from amqp_server.wire.frames import SHORT_STRING_MAX
from exchanges.binding import Binding, DestinationKind
from exchanges.local_random import LOCAL_RANDOM
from exchanges.router import Exchange, InvalidArgument, Router
from exchanges.topic import TopicMatcher, pattern_words
from persistence.streams.remote.table import can_write_tables
from quorum_queue.machine.machine import Machine
from quorum_queue.ports import Host

if TYPE_CHECKING:
    from amqp_server.broker.topology.partitions import Partitions
    from amqp_server.broker.topology.parts import BrokerParts

#: Maximum number of words # in a topic binding key on any node, for any configuration.
TOPIC_HASHES_MAX = 64
_NO_GROUPS: Mapping[str, Queue] = {}


class VHost:
    """The topology of one virtual host. Every change raises the generation of the topology."""

    def __init__(self, parts: BrokerParts, name: str) -> None:
        self.parts = parts
        self.name = name
        self.queues: dict[str, Queue] = {}
        #: The queues that are consumer groups.
        self.groups: dict[str, Queue] = {}
        #: Consumer groups by the stream or super stream that they read, then by name.
        self._groups_over: dict[str, dict[str, Queue]] = {}
        self.router = Router(
            self.queues.__contains__,
            is_here=partial(_is_here, parts, self.queues),
            vhost=name,
            any_words_max=TOPIC_HASHES_MAX,
            alternates_max=parts.config.alternates_max,
            steps_max=parts.config.routing_steps_max,
        )
        self.router.predeclare()
        for exchange in list(self.router.exchanges()):
            self._apply_policies(exchange.name)
        #: Node and incarnation with which transient exchanges end.
        self._exchange_homes: dict[str, tuple[str, int]] = {}
        #: Weights of exchanges that have arguments.
        self._exchange_weights: dict[str, int] = {}
        #: Counts of closed channels.
        self.traffic = Traffic()
        self.received_bytes = self.sent_bytes = 0
        #: A counter for exchanges that choose queues at random.
        self._nonce = 0
        #: True if copies of messages that clients publish and get go to amq.rabbitmq.trace.
        self.tracing = False
        self.look_at_tracing()

    def look_at_tracing(self) -> None:
        """Tracing may have been turned on or off."""
        self.tracing = self.parts.runtime.parameters.get(GLOBAL, TRACING, self.name) is not None

    @property
    def default_queue_type(self) -> str:
        record = self.parts.vhost_records.get(self.name)
        return (record.default_queue_type if record else "") or self.parts.config.default_queue_type

    def _kept(self, *, durable: bool) -> bool:
        """True if a record is stored. Transient records are stored only in a cluster, where other nodes rely
        on them.
        """
        return durable or self.parts.replication.clustered

    # -- routing ---------------------------------------------------------------------------------------------

    def next_nonce(self) -> int:
        self._nonce += 1
        return self._nonce

    def skip_nonces(self, count: int) -> None:
        """Skip nonces of messages that went the way of the one before."""
        self._nonce += count

    # -- exchanges -------------------------------------------------------------------------------------------

    def check_exchange(self, name: str, arguments: Mapping[str, object]) -> None:
        """Check that one more exchange is allowed. Raises PreconditionFailed, ResourceError."""
        room.check(room.exchanges_refused(self, name, room.room_of(self)))
        self.parts.counts.check_declared(declared_memory.of_exchange(arguments))

    def put_exchange(self, record: ExchangeRecord) -> bool:
        """Make an exchange; return whether it is new. Raises UnknownExchangeType, InvalidArgument."""
        if self.router.get(record.name) is not None:
            return False
        self.restore_exchange(record)
        if self._kept(durable=record.durable):
            self.parts.metadata.put(EXCHANGES, key(self.name, record.name), encode(record))
        self.parts.changed()
        if self.parts.events is not None:
            self._changed("exchange.created", of_exchange(record))
        return True

    def _changed(self, key: str, headers: Mapping[str, object]) -> None:
        """An object of the vhost was made or deleted, but not by recovery."""
        events = self.parts.events
        if events is not None:
            events.changed(key, {**headers, "vhost": self.name})

    def restore_exchange(self, record: ExchangeRecord) -> None:
        """Make an exchange from its record."""
        arguments = tables.decode(record.arguments)
        self.router.declare(
            record.name,
            record.type,
            durable=record.durable,
            auto_delete=record.auto_delete,
            internal=record.internal,
            arguments=arguments,
        )
        if record.node:
            self._exchange_homes[record.name] = record.node, record.incarnation
        self.parts.counts.exchanges += 1
        weight = declared_memory.of_exchange(arguments)
        self.parts.counts.declared_bytes += weight
        if arguments:
            self._exchange_weights[record.name] = weight
        self._apply_policies(record.name)

    def apply_exchange_policies(self, exchange: str) -> None:
        """Apply changed policies to an exchange, if it still exists."""
        if self.router.get(exchange) is not None and self._apply_policies(exchange):
            self.parts.changed()

    def _apply_policies(self, exchange: str) -> bool:
        """Give an exchange that was declared without an alternate exchange that of its policy. Return True if
        the alternate has changed.
        """
        definition = self.parts.runtime.policies.of_exchange(self.name, exchange).definition
        return self.router.set_alternate(exchange, definition.get("alternate-exchange"))

    def remove_exchange(self, name: str) -> bool:
        exchange = self.router.get(name)
        if exchange is None or exchange.predeclared:
            return False
        if has_partitions(exchange):
            for partition in partitions_of(self, exchange) or ():
                self.remove_queue(self.queues[partition], of_many=True)
        removed, also = self.router.delete(name)
        self._forget_bindings(removed)
        self._exchange_gone(name)
        self._exchanges_gone(also)
        self.parts.changed()
        return True

    def _exchange_gone(self, name: str) -> None:
        self._exchange_homes.pop(name, None)
        self.parts.counts.exchanges -= 1
        self.parts.counts.declared_bytes -= self._exchange_weights.pop(name, declared_memory.EXCHANGE)
        self.parts.metadata.delete(EXCHANGES, key(self.name, name))
        self._changed("exchange.deleted", {"name": name})

    def _exchanges_gone(self, names: list[str]) -> None:
        """Handle auto-delete exchanges that were deleted with their last binding."""
        for name in names:
            self._exchange_gone(name)

    def exchange_records(self) -> Iterator[ExchangeRecord]:
        """Return the records of the current exchanges, made while they are read. Later changes do not affect
        the set of exchanges.
        """
        homes, nowhere = self._exchange_homes, ("", 0)
        there = [
            (exchange, homes.get(exchange.name, nowhere))
            for exchange in self.router.exchanges()
            if not exchange.predeclared
        ]
        return starmap(self._exchange_record, there)

    def _exchange_record(self, exchange: Exchange, home: tuple[str, int]) -> ExchangeRecord:
        return ExchangeRecord(
            self.name,
            exchange.name,
            exchange.type,
            exchange.auto_delete,
            exchange.internal,
            encoded(exchange.arguments),
            exchange.durable,
            *home,
        )

    # -- bindings --------------------------------------------------------------------------------------------

    def check_binding(self, binding: Binding) -> None:
        """Check a new binding. Raises InvalidArgument, PreconditionFailed, ResourceError."""
        parts = self.parts
        room.check(room.bindings_refused(self, binding.source, room.room_of(self)))
        parts.counts.check_declared(declared_memory.of_binding(binding.routing_key, binding.arguments))
        source = self.router.get(binding.source)
        if source is not None and source.routing_type == LOCAL_RANDOM:
            self._check_local(binding)
        if source is not None and source.routing_type == "topic":
            count, most = binding.routing_key.split(".").count("#"), parts.config.topic_hashes_max
            if count > most:
                raise InvalidArgument(f"binding key has {count} '#' words, at most {most} are allowed")
            again = source.matcher.any_words_again if isinstance(source.matcher, TopicMatcher) else 0
            most = parts.config.topic_extra_hashes_max
            more = pattern_words(binding.routing_key).count("#") - 1
            if more > 0 and again + more > most:
                raise InvalidArgument(
                    f"the binding keys of the exchange have {again} extra '#' words (beyond the first in each "
                    f"key), at most {most} are allowed (topic_extra_hashes_max)"
                )

    def binding_record(self, binding: Binding) -> BindingRecord:
        return BindingRecord(
            self.name,
            binding.source,
            binding.destination,
            binding.kind,
            binding.routing_key,
            encoded(binding.arguments),
        )

    def put_binding(self, record: BindingRecord, *, of_many: bool = False) -> bool:
        """Bind, if source and destination exist; return whether the binding is new. Raises InvalidArgument.

        `of_many`: it is one of many bindings of its source, and the caller calls `streams_changed` once for
        all.
        """
        binding = self.restore_binding(record, of_many=of_many)
        if binding is None:
            return False
        if self._kept(durable=self._is_durable(binding)):
            self.parts.metadata.put(BINDINGS, record.key, encode(record))
        self.parts.changed()
        if self.parts.events is not None:
            self._changed("binding.created", of_binding(binding))
        return True

    def restore_binding(self, record: BindingRecord, *, of_many: bool = False) -> Binding | None:
        """Make a binding from its record; return None if it exists already, or if its source or destination
        does not exist.
        """
        ends = self.queues if record.kind == "queue" else self.router
        source, found = self.router.get(record.source), ends.get(record.destination)
        if source is None or found is None:
            return None
        # Use the strings of existing objects, to keep each name only once.
        key = found.name if record.routing_key == found.name else record.routing_key
        binding = Binding(source.name, found.name, _kind(record), key, shared_table(record.arguments))
        if not self.router.bind(binding):
            return None
        self.parts.counts.bindings += 1
        self.parts.counts.declared_bytes += declared_memory.of_binding(binding.routing_key, binding.arguments)
        if not of_many:
            self.streams_changed(binding.source)
        return binding

    def remove_binding(self, record: BindingRecord) -> bool:
        binding = binding_of(record)
        removed, also = self.router.unbind(binding)
        if removed:
            self._forget_bindings(removed)
            self._exchanges_gone(also)
            self.parts.changed()
        return bool(removed)

    def _is_durable(self, binding: Binding) -> bool:
        source = self.router.get(binding.source)
        if source is None or not source.durable:
            return False
        if binding.kind == "queue":
            queue = self.queues[binding.destination]
            return queue.durable and not queue.exclusive
        destination = self.router.get(binding.destination)
        return destination is not None and destination.durable

    def _forget_bindings(self, bindings: list[Binding]) -> None:
        self.parts.counts.bindings -= len(bindings)
        self.parts.counts.declared_bytes -= sum(
            [declared_memory.of_binding(binding.routing_key, binding.arguments) for binding in bindings]
        )
        for source in {binding.source for binding in bindings} if self.groups else ():
            self.streams_changed(source)
        for binding in bindings:
            self.parts.metadata.delete(BINDINGS, self.binding_record(binding).key)
            if self.parts.events is not None:
                self._changed("binding.deleted", of_binding(binding))

    def binding_records(self) -> Iterator[BindingRecord]:
        """Return the records of the current bindings; see `exchange_records`."""
        return map(self.binding_record, self.router.bindings())

    # -- queues ----------------------------------------------------------------------------------------------

    def check_arguments(
        self,
        name: str,
        arguments: Mapping[str, object],
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        types: Mapping[str, str],
        default_type: str,
    ) -> QueueArguments:
        """Parse the arguments of a new queue. Raises PreconditionFailed with RabbitMQ's texts."""
        key = arguments.get("x-dead-letter-routing-key")
        if isinstance(key, str) and len(key.encode()) > SHORT_STRING_MAX:
            # RabbitMQ accepts this argument, and then closes the channel of each consumer that gets such a
            # dead letter.
            raise PreconditionFailed(
                f"invalid arg 'x-dead-letter-routing-key' for queue '{name}' in vhost '{self.name}': a routing "
                f"key may have {SHORT_STRING_MAX} bytes at most"
            )
        parsed = parse_queue_arguments(
            name,
            self.name,
            arguments,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            types=types,
            default_type=default_type,
        )
        if parsed.remote is not None and parsed.remote not in self.parts.config.remotes:
            raise PreconditionFailed(
                f"invalid arg 'x-stream-remote' for queue '{name}' in vhost '{self.name}': no remote "
                f"'{parsed.remote}' in this node's option stream_remotes"
            )
        if parsed.table is not None and not can_write_tables():
            raise PreconditionFailed(
                f"invalid arg 'x-stream-table' for queue '{name}' in vhost '{self.name}': this node lacks the "
                "library pyarrow, which pip install 'mqd[table]' installs"
            )
        return parsed

    def _check_local(self, binding: Binding) -> None:
        """Raise InvalidArgument with RabbitMQ's texts for what is not bound to an exchange of this type."""
        if binding.routing_key:
            raise InvalidArgument(f"Non empty binding '{binding.routing_key}' key not permitted")
        if binding.kind != "queue":
            raise InvalidArgument("Destination not found")
        queue = self.queues[binding.destination]
        if queue.type is not CLASSIC:
            raise InvalidArgument(f"Queue type {queue.type.name} not valid for this exchange type")

    def check_queue(self, name: str) -> None:
        """Check that one more queue is allowed. Raises PreconditionFailed."""
        room.check(room.queues_refused(self, name, room.room_of(self)))

    def put_queue(self, record: QueueRecord, *, unknown: bool = True, of_many: bool = False) -> bool:
        """Make a queue; return whether it is new. `unknown`: this node has never had it.

        `of_many`: it is one of very many queues, whose hosts are made in parts.
        """
        if record.name in self.queues:
            return False
        queue = self.restore_queue(record, None, unknown=unknown, of_many=of_many)
        if self._begins_here(record):
            self.parts.counts.ended.queues_created += 1
        self._store_queue(queue)
        if self.parts.events is not None:
            self._changed("queue.created", queue.event_headers())
        if record.exclusive:
            self.parts.exclusive_declared(queue)
        self.parts.changed()
        return True

    def _begins_here(self, record: QueueRecord) -> bool:
        """True on the only node that counts this declaration or deletion of a queue."""
        return (record.leader or record.node) == self.parts.replication.node

    def _store_queue(self, queue: Queue) -> None:
        if self._kept(durable=queue.durable and not queue.exclusive):
            self.parts.metadata.put(QUEUES, key(self.name, queue.name), encode(queue.record))

    def restore_queue(
        self,
        record: QueueRecord,
        machine: Machine | None,
        marks: list[int] | None = None,
        *,
        unknown: bool = False,
        of_many: bool = False,
    ) -> Queue:
        """Make a queue from its record, with its messages if it has any."""
        queue = self.new_queue(record, unknown=unknown)
        queue.marks = marks or []
        self.queues[queue.name] = queue
        if queue.type.is_group:
            self.groups[queue.name] = queue
            self._groups_over.setdefault(queue.parsed.stream, {})[queue.name] = queue
        self.parts.counts.queues += 1
        self.parts.counts.paused_queues += record.is_paused
        self.parts.counts.declared_bytes += declared_memory.of_queue(queue.arguments)
        if of_many:
            self.parts.hosts.expect(queue)
            self.parts.host_parts.begin(queue, partial(self._make_host, queue, None))
        else:
            self.parts.turn.contain(queue, self._make_host, queue, machine)
        if queue.type.is_stream:
            self.streams_changed(queue.name)
        return queue

    def new_queue(self, record: QueueRecord, *, unknown: bool, parsed: QueueArguments | None = None) -> Queue:
        """Return a new queue for a record. `parsed` are its parsed arguments, if the caller has them."""
        record = shared(record)
        arguments = arguments_of(record)
        if parsed is None:
            # Not checked: an earlier version, or another node, may have accepted arguments that this one
            # would refuse.
            parsed = parse_queue_arguments(
                record.name,
                self.name,
                arguments,
                durable=record.durable,
                exclusive=record.exclusive,
                auto_delete=record.auto_delete,
                default_type=record.type,
                stored=True,
            )
        policies = self.parts.runtime.policies.of_queue(self.name, record.name, parsed.type)
        queue = Queue(self, record, parsed, arguments, policies)
        queue.unknown = unknown
        return queue

    def put_partitions(self, partitions: Partitions) -> None:
        """Make the partitions of a super stream and bind them; their hosts are made in parts."""
        parts, ready, queues = self.parts, partitions.finish(), list[Queue]()
        again = parts.generation() != partitions.generation
        for each in ready:
            queue = each.queue
            if again:
                # Policies may have changed since, or this may be another vhost of the same name.
                queue = self.new_queue(queue.record, unknown=True, parsed=queue.parsed)
            queues.append(queue)
            self.queues[queue.name] = queue
            if self._begins_here(queue.record):
                parts.counts.ended.queues_created += 1
            parts.metadata.put(QUEUES, each.queue_key, each.queue_stored)
            parts.hosts.expect(queue)
            self.router.bind(each.binding)
            parts.counts.declared_bytes += declared_memory.of_queue(queue.arguments)
            parts.counts.declared_bytes += declared_memory.of_binding(
                each.binding.routing_key, each.binding.arguments
            )
            parts.metadata.put(BINDINGS, each.binding_key, each.binding_stored)
        parts.counts.queues += len(ready)
        parts.counts.bindings += len(ready)
        for queue in queues:
            parts.host_parts.begin(queue, partial(self._make_host, queue, None))
        self.streams_changed(partitions.exchange)
        for queue in queues:
            self.streams_changed(queue.name)
        parts.changed()
        if parts.events is not None:
            for queue, each in zip(queues, ready, strict=True):
                self._changed("queue.created", queue.event_headers())
                self._changed("binding.created", of_binding(each.binding))

    def streams_changed(self, name: str) -> None:
        """A stream of this name, or a binding of this exchange, was made or removed: the partitions of groups
        over it may have changed.
        """
        groups = self._groups_over.get(name, _NO_GROUPS)
        if groups:
            self.parts.changed_streams.tell(groups.values())

    def is_read_by_groups(self, name: str) -> bool:
        """True if consumer groups read the stream or the exchange of this name."""
        return name in self._groups_over

    def _make_host(self, queue: Queue, machine: Machine | None) -> None:
        queue.host = self.parts.hosts.make(queue, machine)

    def set_members(
        self, queue: Queue, members: tuple[str, ...], leader: str, founders: tuple[str, ...]
    ) -> None:
        """Change the nodes of a replicated queue; see QueueRecord."""
        self.parts.host_parts.begun(queue)
        queue.record = msgspec.structs.replace(
            queue.record, members=members, leader=leader, founders=founders
        )
        self._store_queue(queue)
        # Routes name queues, so they stay valid when a queue moves.
        self.parts.turn.contain(queue, self.parts.hosts.changed, queue)

    def put_record(self, queue: Queue, record: QueueRecord) -> None:
        """Take another record of a queue, which stays where it is: an operator has paused or protected it."""
        if record == queue.record:
            return
        self.parts.host_parts.begun(queue)
        self.parts.counts.paused_queues += record.is_paused - queue.record.is_paused
        before, queue.record = queue.settings, shared(record)
        self._store_queue(queue)
        queue.renew()
        if queue.settings != before:
            self.parts.turn.contain(queue, self.parts.hosts.configure, queue)
        self.parts.changed()

    def remove_queue(self, queue: Queue, *, of_many: bool = False) -> None:
        """Delete a queue with its messages, and tell its consumers.

        `of_many`: it is one of very many queues, whose hosts are closed in parts.
        """
        if queue.deleted:
            return
        queue.deleted = True
        parts = self.parts
        if self._begins_here(queue.record):
            parts.counts.ended.queues_deleted += 1
        parts.counts.ended.published += queue.published
        if queue.traffic is not None:
            parts.counts.ended.by_type.setdefault(queue.type.name, Traffic()).add(queue.traffic)
        del self.queues[queue.name]
        if self.groups.pop(queue.name, None) is not None:
            over = self._groups_over[queue.parsed.stream]
            del over[queue.name]
            if not over:
                del self._groups_over[queue.parsed.stream]
        parts.counts.queues -= 1
        parts.counts.paused_queues -= queue.record.is_paused
        parts.counts.declared_bytes -= declared_memory.of_queue(queue.arguments)
        removed, also = self.router.remove_queue(queue.name)
        self._forget_bindings(removed)
        self._exchanges_gone(also)
        if self._kept(durable=queue.durable and not queue.exclusive):
            parts.metadata.delete(QUEUES, key(self.name, queue.name))
        if of_many:
            parts.host_parts.close(queue, partial(self._close_host, queue, queue.host))
        else:
            self._close_host(queue, queue.host)
        parts.failures.forget(queue)
        # Forget the timer: a lease may last for years.
        parts.timers.forget(queue)
        if queue.subscriptions:
            parts.lost_consumers.tell_last(queue, queue.host, list(queue.subscriptions.values()))
        if queue.exclusive:
            parts.exclusive_gone(queue)
        # Host and queue refer to each other: without this, only the garbage collector would free them, with
        # all their messages.
        queue.host = parts.deleted_host
        if queue.type.is_stream:
            self.streams_changed(queue.name)
        parts.changed()
        self._changed("queue.deleted", {"name": queue.name})

    def _close_host(self, queue: Queue, host: Host) -> None:
        host.close()
        self.parts.hosts.gone(queue)
        self.parts.timers.forget(host)

    def queue_records(self) -> Iterator[QueueRecord]:
        """Return the records of the current queues."""
        return iter([queue.record for queue in self.queues.values()])

    # -- what goes together ----------------------------------------------------------------------------------

    def node_down(self, node: str, incarnation: int) -> None:
        """Remove the objects that end with a node: its transient and exclusive queues and its transient
        exchanges.
        """
        for queue in self.queues_of(node, incarnation):
            self.remove_queue(queue)
        for name, (home, since) in list(self._exchange_homes.items()):
            if home == node and since <= incarnation:
                self.remove_exchange(name)

    def queues_of(self, node: str, incarnation: int) -> list[Queue]:
        """Return the queues that end with this start of a node, or with earlier ones."""
        return [
            queue
            for queue in self.queues.values()
            for record in [queue.record]
            if record.node == node
            and record.incarnation <= incarnation
            and not (record.durable and not record.exclusive)
        ]

    def close(self) -> None:
        """Delete all queues and exchanges of a vhost that is being deleted."""
        for queue in list(self.queues.values()):
            self.remove_queue(queue)
        for exchange in list(self.router.exchanges()):
            self.remove_exchange(exchange.name)


def _is_here(parts: BrokerParts, queues: Mapping[str, Queue], name: str) -> bool:
    """Return whether a queue is on this node, at any of its workers; a replicated one is on several. No
    method, so that a vhost is freed with its last reference.
    """
    queue = queues.get(name)
    return queue is not None and (not queue.record.node or parts.config.is_of_node(queue.record.node))


def binding_of(record: BindingRecord) -> Binding:
    return Binding(
        record.source,
        record.destination,
        _kind(record),
        record.routing_key,
        shared_table(record.arguments),
    )


def _kind(record: BindingRecord) -> DestinationKind:
    return "queue" if record.kind == "queue" else "exchange"


def vhost_of(parts: BrokerParts, name: str) -> VHost:
    """Return the topology of a vhost that exists."""
    vhost = parts.vhosts.get(name)
    if vhost is None:
        vhost = parts.vhosts[name] = VHost(parts, name)
    return vhost
