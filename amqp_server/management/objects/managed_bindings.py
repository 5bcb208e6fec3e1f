"""Bindings as the management API shows and changes them."""

from __future__ import annotations

from collections.abc import Iterator

from pamqp import base, commands

from amqp_server.broker.access.permissions import ITSELF
from amqp_server.broker.broker import Broker
from amqp_server.broker.topology.consumer_groups import feeds_groups
from amqp_server.management.objects.internal_session import Direct
from amqp_server.management.objects.views import BindingView
from amqp_server.wire import methods
from exchanges.binding import Binding, DestinationKind


class ManagedBindings:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def views(self, vhost: str) -> Iterator[BindingView]:
        router = self._broker.vhost(vhost).router
        yield from self.from_exchange(vhost, "")
        for exchange in list(router.exchanges()):
            if exchange.name:
                yield from self.from_exchange(vhost, exchange.name)

    def from_exchange(self, vhost: str, source: str) -> Iterator[BindingView]:
        if not source:
            # Every queue is bound to the default exchange by its name; this binding cannot be removed.
            queues = list(self._broker.vhost(vhost).queues.values())
            return (_default_binding(vhost, queue.name) for queue in queues if not queue.deleted)
        found = self._broker.vhost(vhost).router.bindings(source=source)
        return (_binding(vhost, binding) for binding in found)

    def to_destination(self, vhost: str, kind: DestinationKind, destination: str) -> Iterator[BindingView]:
        topology = self._broker.vhost(vhost)
        if kind == "queue" and destination in topology.queues:
            yield _default_binding(vhost, destination)
        for binding in topology.router.bindings(kind=kind, destination=destination):
            yield _binding(vhost, binding)

    def feeds_groups(self, vhost: str, source: str, kind: DestinationKind, destination: str) -> bool:
        """See broker.consumer_groups."""
        return feeds_groups(self._broker.vhost(vhost), source, kind, destination)

    async def add(self, vhost: str, binding: BindingView) -> bool:
        return await self._change(vhost, binding, commands.Queue.Bind, commands.Exchange.Bind)

    async def remove(self, vhost: str, binding: BindingView) -> bool:
        return await self._change(vhost, binding, commands.Queue.Unbind, commands.Exchange.Unbind)

    async def _change(
        self,
        vhost: str,
        binding: BindingView,
        of_queue: type[commands.Queue.Bind | commands.Queue.Unbind],
        of_exchange: type[commands.Exchange.Bind | commands.Exchange.Unbind],
    ) -> bool:
        key, arguments = binding.routing_key, dict(binding.arguments)
        method: base.Frame
        if binding.destination_type == "queue":
            method = methods.make(
                of_queue,
                queue=binding.destination,
                exchange=binding.source,
                routing_key=key,
                arguments=arguments,
            )
        else:
            method = methods.make(
                of_exchange,
                destination=binding.destination,
                source=binding.source,
                routing_key=key,
                arguments=arguments,
            )
        with Direct(self._broker, vhost, ITSELF) as direct:
            await direct.ask(method)
        return True


def _default_binding(vhost: str, queue: str) -> BindingView:
    return BindingView(source="", vhost=vhost, destination=queue, destination_type="queue", routing_key=queue)


def _binding(vhost: str, binding: Binding) -> BindingView:
    return BindingView(
        source=binding.source,
        vhost=vhost,
        destination=binding.destination,
        destination_type=binding.kind,
        routing_key=binding.routing_key,
        arguments=dict(binding.arguments),
    )
