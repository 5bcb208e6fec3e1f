"""Changes of the topology that the management API proposes."""

from __future__ import annotations

from collections.abc import Callable

import trio

from amqp_server.broker.broker import Broker
from amqp_server.broker.declared.operations import ClearParameter, Operation, PutParameter
from amqp_server.broker.declared.parameters import ParameterRecord
from amqp_server.broker.topology.events import ACTING
from amqp_server.broker.topology.replication import Result
from amqp_server.errors import NotFound, Unavailable
from amqp_server.management.changes.answers import answers_of
from quorum_queue.machine import versions
from quorum_queue.ports import Refused


async def propose(broker: Broker, operation: Operation) -> Result:
    """Make a change and return its result. Raises Unavailable."""

    def ask(done: Callable[[Result | Refused], None]) -> None:
        broker.propose(operation, done, ACTING.get())

    (result,) = await answers_of(broker.turn, ask)
    if isinstance(result, Refused):
        raise Unavailable(result.text)
    return result


def require_version(broker: Broker, version: int) -> None:
    """Raises Unavailable if nodes may be there that do not know this version; see
    quorum_queue.machine.versions.
    """
    if broker.replication.version < version:
        raise Unavailable("this needs a cluster whose nodes all run this version of mqd")


async def set_parameter(broker: Broker, record: ParameterRecord) -> bool:
    """Return True if the parameter is new. It is in effect on this node on return."""
    return await _change(broker, PutParameter(record))


async def clear_parameter(broker: Broker, record: ParameterRecord) -> bool:
    """Return True if the parameter existed."""
    return await _change(broker, ClearParameter(*record.key))


async def _change(broker: Broker, operation: PutParameter | ClearParameter) -> bool:
    require_version(broker, versions.PARAMETERS)
    result = await propose(broker, operation)
    if result.error:
        raise NotFound(result.error)
    applied = trio.Event()
    broker.turn.run(broker.runtime.policies.when_applied, applied.set)
    await applied.wait()
    return result.changed
