"""Exchanges as the management API shows and changes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import trio
from pamqp import commands

from amqp_server.broker.access.permissions import ITSELF
from amqp_server.broker.broker import Broker
from amqp_server.broker.routing_view import RoutingView
from amqp_server.broker.topology.super_streams import growth, partitions_of
from amqp_server.errors import PreconditionFailed
from amqp_server.management.objects.internal_session import Direct, encode_properties
from amqp_server.management.objects.proposals import Proposals
from amqp_server.management.objects.views import ExchangeView
from amqp_server.management.statistics.stats import Stats
from amqp_server.wire import methods
from exchanges.explained import Explanation, explain
from exchanges.router import Exchange, RoutingTooLong


class ManagedExchanges:
    def __init__(self, broker: Broker, proposals: Proposals) -> None:
        self._broker = broker
        self._proposals = proposals

    def views(self, vhost: str, stats: Stats | None = None) -> Iterator[ExchangeView]:
        router = self._broker.vhost(vhost).router
        return (self._exchange(vhost, exchange, stats) for exchange in list(router.exchanges()))

    def count(self, vhost: str) -> int:
        return self._broker.vhost(vhost).router.exchange_count

    def find(self, vhost: str, name: str, stats: Stats | None = None) -> ExchangeView | None:
        exchange = self._broker.vhost(vhost).router.get(name)
        return None if exchange is None else self._exchange(vhost, exchange, stats)

    def has(self, vhost: str, name: str) -> bool:
        return self._broker.vhost(vhost).router.get(name) is not None

    def _exchange(self, vhost: str, exchange: Exchange, stats: Stats | None = None) -> ExchangeView:
        policies = self._broker.runtime.policies.of_exchange(vhost, exchange.name)
        return ExchangeView(
            name=exchange.name,
            vhost=vhost,
            type=exchange.type,
            durable=exchange.durable or exchange.predeclared,
            auto_delete=exchange.auto_delete,
            internal=exchange.internal,
            arguments=dict(exchange.arguments),
            policy=None if policies.policy is None else policies.policy.name,
            operator_policy=None if policies.operator_policy is None else policies.operator_policy.name,
            effective_policy_definition=dict(policies.definition),
            user_who_performed_action="rmq-internal" if exchange.predeclared else "",
            partitions=partitions_of(self._broker.vhost(vhost), exchange),
            stats={} if stats is None else stats.exchange(exchange),
        )

    async def declare(
        self,
        vhost: str,
        name: str,
        type: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Mapping[str, object],
    ) -> bool:
        """Return True if the exchange is new."""
        new = self._broker.vhost(vhost).router.get(name) is None
        with Direct(self._broker, vhost, ITSELF) as direct:
            await direct.ask(
                methods.make(
                    commands.Exchange.Declare,
                    exchange=name,
                    exchange_type=type,
                    durable=durable,
                    auto_delete=auto_delete,
                    internal=internal,
                    arguments=dict(arguments),
                )
            )
        return new

    async def delete(self, vhost: str, name: str, *, if_unused: bool) -> None:
        with Direct(self._broker, vhost, ITSELF) as direct:
            await direct.ask(methods.make(commands.Exchange.Delete, exchange=name, if_unused=if_unused))

    async def add_partitions(self, vhost: str, name: str, more: int) -> None:
        """Add partitions to a super stream. Raises AMQPError as a declare does."""
        result = await self._proposals.make(growth(self._broker.vhost(vhost), name, more))
        if result.error:
            raise PreconditionFailed(result.error)

    async def explain(
        self, vhost: str, exchange: str, routing_key: str, properties: Mapping[str, object]
    ) -> Explanation:
        """Return which queues a message would reach, and why. Raises PreconditionFailed for invalid
        properties, and for a message that would be refused because its way is too long.
        """
        encoded = encode_properties(properties, self._broker.config.table_depth_max)
        router = self._broker.vhost(vhost).router
        steps = explain(router, exchange, routing_key, RoutingView(encoded))
        try:
            while True:
                next(steps)
                await trio.lowlevel.checkpoint()
        except StopIteration as end:
            told: Explanation = end.value
            return told
        except RoutingTooLong as error:
            raise PreconditionFailed(
                f"the way takes more than {error.args[0]} steps (routing_steps_max)"
            ) from None
