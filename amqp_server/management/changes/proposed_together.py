"""Changes of the topology that are proposed many at a time: in a cluster each would take a round of its nodes
by itself.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import trio

from amqp_server.broker.access.users import UserRefused
from amqp_server.broker.declared.operations import Operation, PutParameter, PutUser
from amqp_server.errors import NotFound, Unavailable
from amqp_server.management.changes.proposals import policies_applied, propose_all, require_version
from quorum_queue.machine import versions
from quorum_queue.ports import Refused

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker

#: Changes that are proposed in one turn.
AT_ONCE = 64


class ProposedTogether:
    """Gathers changes of objects that do not depend on one another. `finish` makes the last ones."""

    def __init__(self, broker: Broker, user_changes: trio.Lock) -> None:
        """`user_changes` is held while users are changed."""
        self._broker = broker
        self._user_changes = user_changes
        self._gathered: list[tuple[Operation, AbstractContextManager[None]]] = []

    async def add(self, operation: Operation, naming: AbstractContextManager[None]) -> None:
        """Make this change, now or with later ones. Errors are raised within `naming`, by this call or a
        later one: then the changes before it are made, and so are some of those after it.
        """
        self._gathered.append((operation, naming))
        if len(self._gathered) >= AT_ONCE or not self._have_room():
            await self.finish()

    def _have_room(self) -> bool:
        """True if one more change of this kind exceeds no limit: a check of the next one does not count the
        changes that are not made yet.
        """
        broker, gathered = self._broker, self._gathered
        sizes = [len(each.record.value) for each, _ in gathered if isinstance(each, PutParameter)]
        users = sum([isinstance(each, PutUser) for each, _ in gathered])
        return (not sizes or broker.runtime.parameters.has_room_after(len(sizes), sum(sizes))) and (
            not users or broker.access.users.has_room_after(users)
        )

    async def finish(self) -> None:
        """Make the changes that are not made yet."""
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        broker, operations = self._broker, [operation for operation, _ in gathered]
        parameters = any(isinstance(each, PutParameter) for each in operations)
        if parameters:
            require_version(broker, versions.PARAMETERS)
        users = any(isinstance(each, PutUser) for each in operations)
        async with self._user_changes if users else nullcontext():
            results = await propose_all(broker, operations)
        if parameters:
            await policies_applied(broker)
        for (operation, naming), result in zip(gathered, results, strict=True):
            with naming:
                if isinstance(result, Refused):
                    raise Unavailable(result.text)
                if result.error:
                    is_parameter = isinstance(operation, PutParameter)
                    raise NotFound(result.error) if is_parameter else UserRefused(result.error)


__all__ = ["AT_ONCE", "ProposedTogether"]
