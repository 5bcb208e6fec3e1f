"""The running broker as the HTTP API uses it.

Reading is quick and never awaits; a change waits until the node, or a majority of the cluster's nodes, has
made it. A refused change raises the AMQP error that a client would get. The handlers check permissions before
they call it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import trio

from amqp_server.broker.access.permissions import ITSELF
from amqp_server.broker.access.users import UserRefused
from amqp_server.broker.declared.operations import (
    ClearParameter,
    ClearPermission,
    ClearTopicPermission,
    DeleteUser,
    DeleteVhost,
    Operation,
    PutParameter,
    PutUser,
    PutVhost,
    SetPermission,
    SetTopicPermission,
)
from amqp_server.broker.declared.parameters import GLOBAL, TRACING, ParameterRecord
from amqp_server.broker.topology.replication import Result
from amqp_server.build import BUILD
from amqp_server.config import VERSION, Config
from amqp_server.errors import NotFound, Unavailable
from amqp_server.management.objects.internal_session import Direct
from amqp_server.management.objects.managed_bindings import ManagedBindings
from amqp_server.management.objects.managed_connections import ManagedConnections
from amqp_server.management.objects.managed_consumers import ManagedConsumers
from amqp_server.management.objects.managed_exchanges import ManagedExchanges
from amqp_server.management.objects.managed_groups import ManagedGroups
from amqp_server.management.objects.managed_messages import ManagedMessages
from amqp_server.management.objects.managed_node import ManagedNode
from amqp_server.management.objects.managed_offsets import ManagedOffsets
from amqp_server.management.objects.managed_queues import ManagedQueues
from amqp_server.management.objects.parallel_sessions import Together
from amqp_server.management.objects.proposals import Proposals
from amqp_server.management.request.identity import cluster_id
from amqp_server.management.request.other_nodes import Others

if TYPE_CHECKING:
    from amqp_server.app import Node


class ManagedBroker:
    """The broker for the management API; it changes the topology with the broker's own rights."""

    def __init__(self, node: Node) -> None:
        broker = node.broker
        self._node = node
        self._broker = broker
        self._proposals = Proposals(broker)
        #: None for a node without a cluster.
        self.cluster = node.administration
        self.others: Others | None = node.administration
        self.name = broker.config.node
        self.product = broker.config.announce_product
        self.version = VERSION
        #: The version that clients are told.
        self.announced_version = broker.config.announce_version
        #: Objects in one import of definitions; and bytes of an object or list in another body.
        self.definitions_max = broker.config.http_definitions_max
        self.definition_bytes_max = broker.config.http_definition_bytes_max
        self.json_bytes_max = broker.config.http_json_bytes_max
        self.build = BUILD
        self.users = broker.access.users
        #: Counts of logins by protocol.
        self.logins = broker.counts.ended.logins()
        self.permissions = broker.access.permissions
        self.vhosts = broker.vhost_records
        self.parameters = broker.runtime.parameters
        self.policies = broker.runtime.policies
        self.limits = broker.runtime.limits
        self.password_checks = node.password_checks
        self.authentication = node.authentication
        self.tokens = node.tokens
        self.log_limit = broker.log_limit
        self.node = ManagedNode(node)
        self.connections = ManagedConnections(node)
        self.queues = ManagedQueues(broker, node.administration)
        self.consumers = ManagedConsumers(broker, self.queues, self.connections)
        self.groups = ManagedGroups(broker)
        self.offsets = ManagedOffsets(broker)
        self.exchanges = ManagedExchanges(broker, self._proposals)
        self.bindings = ManagedBindings(broker, self.queues)
        self.messages = ManagedMessages(broker, self.node.synced)
        #: Held from the check that an administrator is left until the change is made.
        self.user_changes = trio.Lock()

    def cluster_name(self) -> str:
        """Return the name that an operator has set, or the name of the first node, which is the same on all
        nodes.
        """
        own = self.name if self.others is None else min([self.name, *self.others.names()])
        return self.parameters.cluster_name or own

    def cluster_id(self) -> str:
        return cluster_id(self._node)

    @property
    def cluster_version(self) -> int:
        """Return the version that all nodes know; see quorum_queue.machine.versions."""
        return self._broker.replication.version

    async def create_vhost(
        self, name: str, description: str, tags: tuple[str, ...], default_queue_type: str
    ) -> bool:
        """Return True if the vhost is new. Raises VhostRefused."""
        record = self.vhosts.prepare(name, description, tags, default_queue_type)
        return (await self._proposals.make(PutVhost(record))).changed

    async def delete_vhost(self, name: str) -> None:
        """Delete the vhost with everything in it; its connections are closed."""
        await self._proposals.make(DeleteVhost(name))

    async def put_user(
        self, name: str, password_hash: str, tags: Iterable[str], *, forced: bool = False
    ) -> bool:
        """Return True if the user is new. Raises UserRefused, also for the last administrator unless
        `forced`.
        """
        user = self.users.prepare(name, password_hash, tags)
        return (await self._change_user(PutUser(user, forced))).changed

    async def delete_user(self, name: str, *, forced: bool = False) -> None:
        """Delete the user with its permissions; its connections are closed. Raises UserRefused as `put_user`
        does.
        """
        await self._change_user(DeleteUser(name, forced))

    async def _change_user(self, operation: Operation) -> Result:
        result = await self._proposals.make(operation)
        if result.error:
            raise UserRefused(result.error)
        return result

    async def set_permission(self, user: str, vhost: str, configure: str, write: str, read: str) -> bool:
        """Return True if the user had none there. Raises InvalidPermission."""
        permission = self.permissions.prepare(user, vhost, configure, write, read)
        return (await self._proposals.make(SetPermission(permission))).changed

    async def clear_permission(self, user: str, vhost: str) -> None:
        await self._proposals.make(ClearPermission(user, vhost))

    async def set_topic_permission(self, user: str, vhost: str, exchange: str, write: str, read: str) -> bool:
        """Return True if the user had none there. Raises InvalidPermission."""
        permission = self.permissions.prepare_topic(user, vhost, exchange, write, read)
        self._require_parameters()
        return (await self._proposals.make(SetTopicPermission(permission))).changed

    async def clear_topic_permission(self, user: str, vhost: str, exchange: str) -> None:
        """Clear the topic permission for an exchange, or those for all exchanges if none is given."""
        self._require_parameters()
        await self._proposals.make(ClearTopicPermission(user, vhost, exchange))

    async def set_parameter(self, record: ParameterRecord) -> bool:
        """Return True if the parameter is new. It is in effect on this node on return."""
        return await self._change_parameter(PutParameter(record))

    async def clear_parameter(self, record: ParameterRecord) -> bool:
        """Return True if the parameter existed."""
        return await self._change_parameter(ClearParameter(*record.key))

    async def _change_parameter(self, operation: PutParameter | ClearParameter) -> bool:
        self._require_parameters()
        result = await self._proposals.make(operation)
        if result.error:
            raise NotFound(result.error)
        applied = trio.Event()
        self._broker.turn.run(self._broker.runtime.policies.when_applied, applied.set)
        await applied.wait()
        return result.changed

    @property
    def config(self) -> Config:
        return self._broker.config

    def shovel_statuses(self) -> list[dict[str, Any]]:
        """Return the statuses of the shovels that this node runs."""
        shovels = self._node.shovels
        return [] if shovels is None else list(shovels.statuses())

    def restart_shovel(self, vhost: str, name: str) -> bool:
        """Return True if this node runs the shovel."""
        shovels = self._node.shovels
        return shovels is not None and shovels.restart(vhost, name)

    def is_traced(self, vhost: str) -> bool:
        return self.parameters.get(GLOBAL, TRACING, vhost) is not None

    async def trace(self, vhost: str, *, on: bool) -> None:
        """Turn the firehose of a vhost on or off. Raises ParameterRefused."""
        if on and not self.is_traced(vhost):
            await self.set_parameter(self.parameters.prepare(GLOBAL, TRACING, vhost, True))
        elif not on and self.is_traced(vhost):
            await self._change_parameter(ClearParameter(GLOBAL, TRACING, vhost))

    @property
    def takes_parameters(self) -> bool:
        """True if all nodes of the cluster know parameters, policies and operations that came with them."""
        return self._broker.topology.takes_parameters

    def direct(self, vhost: str) -> Direct:
        """Return a connection of the management API itself, to declare several things."""
        return Direct(self._broker, vhost, ITSELF)

    def together(self) -> Together:
        """Return several such connections, to declare many things."""
        return Together(self._broker.turn, self.direct)

    def default_queue_type(self, vhost: str) -> str:
        return self._broker.vhost(vhost).default_queue_type

    def _require_parameters(self) -> None:
        if not self._broker.topology.takes_parameters:
            raise Unavailable("this needs a cluster whose nodes all run this version of mqd")
