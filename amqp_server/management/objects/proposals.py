"""Changes of the topology that the management API proposes."""

from __future__ import annotations

import trio

from amqp_server.broker.broker import Broker
from amqp_server.broker.declared.operations import Operation
from amqp_server.broker.topology.events import ACTING
from amqp_server.broker.topology.replication import Result
from amqp_server.errors import Unavailable
from quorum_queue.ports import Refused


class Proposals:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def make(self, operation: Operation) -> Result:
        """Make a change and return its result. Raises Unavailable."""
        answers: list[Result | Refused] = []
        answered = trio.Event()

        def done(result: Result | Refused) -> None:
            answers.append(result)
            answered.set()

        self._broker.turn.run(self._broker.propose, operation, done, ACTING.get())
        await answered.wait()
        (result,) = answers
        if isinstance(result, Refused):
            raise Unavailable(result.text)
        return result
