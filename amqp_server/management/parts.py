"""The parts of a node that the management API uses. The composition root makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from amqp_server.backpressure import Backpressure
    from amqp_server.broker.broker import Broker
    from amqp_server.cluster.administration import Administration
    from amqp_server.cluster.node import ClusterNode
    from amqp_server.config import Config
    from amqp_server.connection.login.authentication import Authentication
    from amqp_server.connection.login.password_checks import PasswordChecks
    from amqp_server.connection.login.tokens import Tokens
    from amqp_server.descriptors import Descriptors
    from amqp_server.draining import Draining
    from amqp_server.management.request.questions import Others
    from amqp_server.management.statistics.sampler import Sampler
    from amqp_server.resources import ResourceWatch
    from amqp_server.shovels.shovels import Shovels
    from amqp_server.startup.reload import Reload
    from amqp_server.streams.tiers.remotes import Remotes
    from persistence.commits.commit import Commit


@dataclass(frozen=True, kw_only=True)
class ManagedParts:
    config: Config
    broker: Broker
    commits: Commit
    resources: ResourceWatch
    reload: Reload
    draining: Draining
    backpressure: Backpressure
    descriptors: Descriptors
    password_checks: PasswordChecks
    authentication: Authentication
    tokens: Tokens | None
    #: None for a node without a cluster, as are the next two.
    cluster: ClusterNode | None
    administration: Administration | None
    others: Others | None
    #: Returns the words of Counted of another worker of this node, which is down; None for other nodes.
    counted_before: Callable[[str], Sequence[int] | None]
    #: Returns None until the node serves.
    shovels: Callable[[], Shovels | None]
    sampler: Sampler
    #: The object stores of streams.
    remotes: Remotes
    #: Addresses of the listeners by protocol, as RabbitMQ names them; empty for one that the node has not.
    addresses: Mapping[str, str]
    #: See Environment.node_id.
    node_id: str
    #: When the node began, s of the monotonic clock.
    began: float
    #: Begins an orderly shutdown.
    stop: Callable[[], None]
    #: Returns whether a client or another node could be served now.
    clients_wait: Callable[[], bool]
    #: Held from the check that an administrator is left until the change is made.
    user_changes: trio.Lock = field(default_factory=trio.Lock)
