"""Settings that operators change at run time: parameters, and the policies and limits stored as parameters.

https://www.rabbitmq.com/docs/parameters
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from amqp_server.broker.declared.parameters import SHOVEL, TRACING, Parameters
from amqp_server.broker.topology.limits import Limits
from amqp_server.broker.topology.policies import Policies

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker


def _nothing() -> None: ...


class Runtime:
    """Runtime parameters, and the objects that follow their changes."""

    __slots__ = ("_broker", "limits", "parameters", "policies", "shovels_changed")

    def __init__(self, broker: Broker) -> None:
        config = broker.config
        self._broker = broker
        self.policies = Policies(
            broker,
            pattern_bytes_max=config.permission_pattern_bytes_max,
            match_ms=config.permission_match_ms,
            match_total_ms=config.permission_match_total_ms,
        )
        self.parameters = Parameters(
            broker.metadata,
            parameters_max=config.parameters_max,
            value_bytes_max=config.parameter_bytes_max,
            bytes_max=config.parameters_bytes_max,
            changed=self._changed,
        )
        self.limits = Limits(broker.sessions, self.parameters)
        #: Called when a shovel was defined, changed or cleared.
        self.shovels_changed: Callable[[], None] = _nothing

    def _changed(self, vhost: str, component: str, name: str) -> None:
        self.limits.changed(component)
        self.policies.changed(vhost, component, name)
        if component == SHOVEL:
            self.shovels_changed()
        if component == TRACING:
            for each in self._broker.vhosts.values():
                each.look_at_tracing()
