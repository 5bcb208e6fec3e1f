"""Changes of the topology that the management API proposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

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


async def propose_all(broker: Broker, operations: Sequence[Operation]) -> list[Result | Refused]:
    """Make changes in this order, in one turn; return their results."""
    found: dict[int, Result | Refused] = {}
    answered, user = trio.Event(), ACTING.get()

    def told(at: int, result: Result | Refused) -> None:
        found[at] = result
        if len(found) == len(operations):
            answered.set()

    def ask() -> None:
        for at, operation in enumerate(operations):
            broker.propose(operation, partial(told, at), user)

    broker.turn.run(ask)
    await answered.wait()
    return [found[at] for at in range(len(operations))]


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
    await policies_applied(broker)
    return result.changed


async def policies_applied(broker: Broker) -> None:
    """Wait until all queues and exchanges of this node follow the current policies."""
    applied = trio.Event()
    broker.turn.run(broker.runtime.policies.when_applied, applied.set)
    await applied.wait()
