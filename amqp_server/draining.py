"""Takes a node out of service, and back: first its leaders go to other nodes, then its clients, some in each
step, so that neither the other nodes nor the clients get all of it at once.

The node stays a member of its queues. Nothing of this is stored: a node that restarts is in service.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import trio

from amqp_server.connection.sockets.listener import WITHIN, Server
from amqp_server.connection.state import State

if TYPE_CHECKING:
    from amqp_server.cluster.node import ClusterNode
    from amqp_server.connection.sockets.transport import Transport

logger = logging.getLogger("mqd.node")

#: RabbitMQ's text for the clients of such a node.
REASON: Final = "Node was put into maintenance mode"
#: Interval of steps while clients are being closed, and afterwards, s.
STEP_S: Final = 0.1
REST_S: Final = 1.0


class Draining:
    def __init__(self, server: Server, cluster: ClusterNode | None) -> None:
        self._server = server
        self._cluster = cluster
        self._config = server.config
        self._changed = trio.Event()
        self.drained = False
        #: Gets what an operator wants: True if the node is to be drained.
        self.tell: Callable[[bool], None] = lambda drained: None
        #: Groups that this node leads and others could lead; None if that is not known.
        self.leaders_left: int | None = None

    def drain(self) -> None:
        self.take(True)
        self.tell(True)

    def revive(self) -> None:
        self.take(False)
        self.tell(False)

    def take(self, drained: bool) -> None:
        """Drain or revive this process only."""
        if drained and not self.drained:
            self._begin()
        elif self.drained and not drained:
            self._end()

    def _begin(self) -> None:
        logger.warning("draining this node: leaders and connections go to other nodes until mqctl revive")
        self.drained = True
        self.leaders_left = None if self._cluster is not None else 0
        self._server.in_service = False
        self._change()

    def _end(self) -> None:
        logger.warning("this node is in service again")
        self.drained = False
        self.leaders_left = None
        self._server.in_service = True
        if self._cluster is not None:
            self._cluster.take_leaders()
        self._change()

    def _change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def run(self) -> None:
        while True:
            changed = self._changed
            if self.drained:
                with trio.move_on_after(self._config.drain_timeout_s):
                    await self._give_leaders_away(changed)
                await self._close_clients(changed)
            await changed.wait()

    async def _give_leaders_away(self, changed: trio.Event) -> None:
        while self.drained and self._step():
            await trio.sleep(STEP_S)

    async def _close_clients(self, changed: trio.Event) -> None:
        """Close connections, and hand over what elections leave to this node, until it is revived."""
        at_once = max(1, round(self._config.drain_connections_per_s * STEP_S))
        while not changed.is_set():
            found = list(self._clients())
            for transport in found[:at_once]:
                self._server.turn.run(transport.session.force_close, REASON)
            self._step()
            with trio.move_on_after(STEP_S if found else REST_S):
                await changed.wait()

    def _clients(self) -> Iterator[Transport]:
        for transport in list(self._server.transports):
            session = transport.session
            # Those within this process belong to shovels.
            if session.client.peer != WITHIN and session.state not in (State.CLOSING, State.CLOSED):
                yield transport

    @property
    def connections_left(self) -> int:
        return sum(1 for transport in self._server.transports if transport.session.client.peer != WITHIN)

    def _step(self) -> int:
        """Hand over some leaders; return how many are left."""
        left = self._cluster.give_leaders_away() if self._cluster is not None else 0
        self.leaders_left = left
        return left
