"""Settings that operators change at run time: parameters, and the policies and limits stored as parameters.

https://www.rabbitmq.com/docs/parameters
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from amqp_server.broker.declared.parameters import SHOVEL, TRACING, Parameters
from amqp_server.broker.metadata import Metadata
from amqp_server.broker.topology.limits import OperatorLimits
from amqp_server.broker.topology.policies import Policies
from amqp_server.broker.topology.policy_changes import Followers
from amqp_server.config import Config
from amqp_server.turn import Turn


class Settable(Followers, Protocol):
    """A vhost."""

    def look_at_tracing(self) -> None:
        """Tracing may have been turned on or off."""


def _nothing() -> None: ...


class Runtime:
    """Runtime parameters, and the objects that follow their changes."""

    __slots__ = ("_vhosts", "limits", "parameters", "policies", "shovels_changed")

    def __init__(
        self,
        config: Config,
        metadata: Metadata,
        turn: Turn,
        vhosts: Mapping[str, Settable],
        counted: Callable[[int, str], int],
    ) -> None:
        """`counted` returns counts of clients over all nodes; see Sessions.counted."""
        self._vhosts = vhosts
        self.parameters = Parameters(
            metadata,
            parameters_max=config.parameters_max,
            value_bytes_max=config.parameter_bytes_max,
            bytes_max=config.parameters_bytes_max,
            changed=self._changed,
        )
        self.policies = Policies(
            turn,
            vhosts,
            self.parameters,
            pattern_bytes_max=config.permission_pattern_bytes_max,
            match_ms=config.permission_match_ms,
            match_total_ms=config.permission_match_total_ms,
        )
        self.limits = OperatorLimits(counted, self.parameters)
        #: Called when a shovel was defined, changed or cleared.
        self.shovels_changed: Callable[[], None] = _nothing

    def _changed(self, vhost: str, component: str, name: str) -> None:
        self.limits.changed(component)
        self.policies.changed(vhost, component, name)
        if component == SHOVEL:
            self.shovels_changed()
        if component == TRACING:
            for each in self._vhosts.values():
                each.look_at_tracing()
