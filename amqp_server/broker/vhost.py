"""One virtual host: its exchanges, queues and bindings, and the durable ones among them on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from amqp_server.broker.arguments import QueueArguments, parse_queue_arguments
from amqp_server.broker.metadata import decode, encode
from amqp_server.broker.queue import Queue, settings_of
from amqp_server.errors import PreconditionFailed, ResourceError
from amqp_server.wire import tables
from exchanges.binding import Binding
from exchanges.router import Exchange, Router
from quorum_queue.local import LocalHost
from quorum_queue.machine.machine import Machine

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker

QUEUES, EXCHANGES, BINDINGS = "queues", "exchanges", "bindings"


class QueueRecord(msgspec.Struct, frozen=True):
    vhost: str
    name: str
    queue_id: int
    auto_delete: bool
    arguments: bytes
    marks: list[int]


class ExchangeRecord(msgspec.Struct, frozen=True):
    vhost: str
    name: str
    type: str
    auto_delete: bool
    internal: bool
    arguments: bytes


class BindingRecord(msgspec.Struct, frozen=True):
    vhost: str
    source: str
    destination: str
    kind: str
    routing_key: str
    arguments: bytes


class VHost:
    """The topology of one virtual host. Every change raises the broker's generation."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.queues: dict[str, Queue] = {}
        self.router = Router(
            self.queues.__contains__, vhost=name, any_words_max=broker.config.topic_hashes_max
        )
        self.router.predeclare()

    # -- exchanges -------------------------------------------------------------------------------------------------

    def declare_exchange(
        self,
        name: str,
        kind: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Mapping[str, object],
    ) -> Exchange:
        """Make an exchange that isn't there. Raises UnknownExchangeType, InvalidArgument, ResourceError."""
        broker = self.broker
        if broker.exchange_count >= broker.config.exchanges_max:
            raise ResourceError(
                f"there are {broker.exchange_count} exchanges, no more are allowed (exchanges_max)"
            )
        exchange = self.router.declare(
            name, kind, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
        )
        broker.exchange_count += 1
        if durable:
            record = ExchangeRecord(self.name, name, kind, auto_delete, internal, encoded(arguments))
            broker.metadata.put(EXCHANGES, _key(self.name, name), encode(record))
        broker.changed()
        return exchange

    def delete_exchange(self, name: str) -> None:
        gone = self.router.bindings(source=name) + self.router.bindings(destination=name, kind="exchange")
        exchange = self.router.get(name)
        also = self.router.delete(name)
        self._forget_bindings(gone)
        if exchange is not None:
            self._exchange_gone(name)
        self._exchanges_gone(also)
        self.broker.changed()

    def _exchange_gone(self, name: str) -> None:
        self.broker.exchange_count -= 1
        self.broker.metadata.delete(EXCHANGES, _key(self.name, name))

    def _exchanges_gone(self, names: list[str]) -> None:
        """Auto-delete exchanges that went with their last binding; their own incoming bindings went too."""
        for name in names:
            self._exchange_gone(name)
            for key, record in self._binding_records():
                if record.destination == name and record.kind == "exchange":
                    self.broker.metadata.delete(BINDINGS, key)

    # -- bindings --------------------------------------------------------------------------------------------------

    def bind(self, binding: Binding) -> None:
        """Raises InvalidArgument, ResourceError."""
        broker = self.broker
        if broker.binding_count >= broker.config.bindings_max:
            raise ResourceError(
                f"there are {broker.binding_count} bindings, no more are allowed (bindings_max)"
            )
        if not self.router.bind(binding):
            return
        broker.binding_count += 1
        if self._is_durable(binding):
            record = BindingRecord(
                self.name,
                binding.source,
                binding.destination,
                binding.kind,
                binding.routing_key,
                encoded(binding.arguments),
            )
            broker.metadata.put(BINDINGS, self._binding_key(binding), encode(record))
        broker.changed()

    def unbind(self, binding: Binding) -> None:
        existed, also = self.router.unbind(binding)
        if existed:
            self._forget_bindings([binding])
            self._exchanges_gone(also)
            self.broker.changed()

    def _is_durable(self, binding: Binding) -> bool:
        source = self.router.get(binding.source)
        if source is None or not source.durable:
            return False
        if binding.kind == "queue":
            queue = self.queues[binding.destination]
            return queue.durable and not queue.exclusive
        destination = self.router.get(binding.destination)
        return destination is not None and destination.durable

    def _binding_key(self, binding: Binding) -> str:
        arguments = encoded(binding.arguments).hex()
        return _key(
            self.name, binding.source, binding.destination, binding.kind, binding.routing_key, arguments
        )

    def _binding_records(self) -> list[tuple[str, BindingRecord]]:
        metadata = self.broker.metadata
        return [
            (key, record)
            for key, value in metadata.items(BINDINGS)
            for record in [decode(BINDINGS, key, value, BindingRecord)]
            if record.vhost == self.name
        ]

    def _forget_bindings(self, bindings: list[Binding]) -> None:
        self.broker.binding_count -= len(bindings)
        for binding in bindings:
            self.broker.metadata.delete(BINDINGS, self._binding_key(binding))

    # -- queues ----------------------------------------------------------------------------------------------------

    def parse_arguments(
        self,
        name: str,
        arguments: Mapping[str, object],
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        types: Mapping[str, str],
    ) -> QueueArguments:
        """Raises PreconditionFailed with RabbitMQ's texts."""
        return parse_queue_arguments(
            name,
            self.name,
            arguments,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            types=types,
        )

    def declare_queue(
        self,
        name: str,
        parsed: QueueArguments,
        arguments: Mapping[str, object],
        *,
        durable: bool,
        auto_delete: bool,
        owner: Any = None,
    ) -> Queue:
        """Make a queue that isn't there. Raises ResourceError."""
        broker = self.broker
        if broker.queue_count >= broker.config.queues_max:
            raise ResourceError(f"there are {broker.queue_count} queues, no more are allowed (queues_max)")
        queue = Queue(
            self,
            name,
            broker.next_queue_id(),
            parsed,
            arguments,
            durable=durable,
            auto_delete=auto_delete,
            owner=owner,
        )
        journalled = durable and owner is None
        if journalled:
            marks = broker.services.marks
            queue.marks = [marks.allocate() for _ in range((parsed.max_priority or 0) + 1)]
            record = QueueRecord(
                self.name, name, queue.queue_id, auto_delete, encoded(arguments), queue.marks
            )
            broker.metadata.put(QUEUES, _key(self.name, name), encode(record))
        self._add(queue, Machine(settings_of(parsed)), journalled=journalled)
        queue.used(broker.clock())
        broker.changed()
        return queue

    def _add(self, queue: Queue, machine: Machine, *, journalled: bool) -> None:
        queue.host = LocalHost(
            queue,
            queue.queue_id,
            machine,
            self.broker.services,
            journalled=journalled,
            marks=queue.marks,
        )
        self.queues[queue.name] = queue
        self.broker.queue_count += 1

    def delete_queue(self, queue: Queue) -> int:
        """Delete a queue with all that it holds; its consumers are told. Returns how many messages were ready."""
        if queue.deleted:
            return 0
        queue.deleted = True
        broker = self.broker
        ready: int = queue.host.machine.ready.count
        del self.queues[queue.name]
        broker.queue_count -= 1
        removed, also = self.router.remove_queue(queue.name)
        self._forget_bindings(removed)
        self._exchanges_gone(also)
        if queue.host.journalled:
            broker.metadata.delete(QUEUES, _key(self.name, queue.name))
            for slot in queue.marks:
                broker.services.marks.free(slot)
        queue.host.close()
        for subscription in list(queue.subscriptions.values()):
            subscription.queue_gone()
        queue.subscriptions.clear()
        if queue.owner is not None:
            queue.owner.exclusive_queues.pop(queue, None)
        broker.changed()
        return ready

    # -- start and end ---------------------------------------------------------------------------------------------

    def restore_exchange(self, record: ExchangeRecord) -> None:
        self.router.declare(
            record.name,
            record.type,
            durable=True,
            auto_delete=record.auto_delete,
            internal=record.internal,
            arguments=tables.decode(record.arguments),
        )
        self.broker.exchange_count += 1

    def restore_queue(self, record: QueueRecord, machine: Machine | None) -> Queue:
        """Bring a durable queue back, with its messages where it has any."""
        arguments = tables.decode(record.arguments)
        parsed = self.parse_arguments(
            record.name, arguments, durable=True, exclusive=False, auto_delete=record.auto_delete, types={}
        )
        queue = Queue(
            self,
            record.name,
            record.queue_id,
            parsed,
            arguments,
            durable=True,
            auto_delete=record.auto_delete,
        )
        queue.marks = record.marks
        self._add(queue, machine or Machine(settings_of(parsed)), journalled=True)
        queue.used(self.broker.clock())
        return queue

    def restore_binding(self, record: BindingRecord) -> None:
        binding = Binding(
            record.source,
            record.destination,
            "queue" if record.kind == "queue" else "exchange",
            record.routing_key,
            tables.decode(record.arguments),
        )
        if self.router.get(record.source) is not None and (
            record.kind != "queue" or record.destination in self.queues
        ):
            self.router.bind(binding)
            self.broker.binding_count += 1

    def close(self) -> None:
        """The vhost is deleted: all its queues go."""
        for queue in list(self.queues.values()):
            self.delete_queue(queue)
        for exchange in list(self.router.exchanges()):
            if not exchange.predeclared and self.router.get(exchange.name) is not None:
                self.delete_exchange(exchange.name)


def encoded(arguments: Mapping[str, object]) -> bytes:
    """Encode arguments as the field table that they were. Raises PreconditionFailed for what has no type."""
    try:
        return tables.encode(arguments)
    except tables.TableError as error:
        raise PreconditionFailed(f"arguments that cannot be stored: {error}") from None


def _key(*names: str) -> str:
    """A digest, because names may be longer than a key of LMDB."""
    text = "".join(f"{len(name)}:{name}" for name in names)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()
