"""The shovels that a node runs: of all shovels that the parameters define, those assigned to this node."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import trio

from amqp_server.broker.broker import Broker
from amqp_server.broker.declared.parameters import SHOVEL, ParameterRecord
from amqp_server.descriptors import Descriptors
from amqp_server.shovels.budget import Budget
from amqp_server.shovels.definition import InvalidShovel, parse
from amqp_server.shovels.dial import Local
from amqp_server.shovels.shovel import Shovel

logger = logging.getLogger("mqd.shovel")

#: Time between two checks of which node runs which shovel, s.
LOOK_S = 1.0
#: Time between two attempts to clear the parameter of a completed shovel, s.
CLEAR_S = 1.0

Key = tuple[str, str]
#: Returns whether this node runs the shovel of this vhost and name.
Keeper = Callable[[str, str], bool]


def always(vhost: str, name: str) -> bool:
    """A node without a cluster runs all shovels."""
    return True


class _Running:
    def __init__(self, record: ParameterRecord, shovel: Shovel) -> None:
        self.record = record
        self.shovel = shovel


class Shovels:
    """Runs the shovels of a node; see shovel.Surroundings."""

    def __init__(
        self,
        broker: Broker,
        local: Local,
        keeper: Keeper,
        clear: Callable[[ParameterRecord], Awaitable[object]],
        cluster_name: Callable[[], str],
        descriptors: Descriptors,
    ) -> None:
        """`clear` clears a parameter. Raises AMQPError."""
        self.config = broker.config
        self.local = local
        self.log_limit = broker.log_limit
        self.cluster_name = cluster_name
        self.descriptors = descriptors
        self.budget = Budget(self.config.shovels_budget_bytes, self.config.unfinished_timeout_s)
        self._parameters = broker.runtime.parameters
        self._keeper = keeper
        self._clear = clear
        self._running: dict[Key, _Running] = {}
        #: Shovels that were stopped and have not ended yet.
        self._ending: dict[Key, Shovel] = {}
        self._changed = trio.Event()
        self._stale = True
        self._records: list[ParameterRecord] = []
        broker.runtime.shovels_changed = self._look_soon

    def _look_soon(self) -> None:
        self._stale = True
        self._changed.set()

    async def run(self) -> None:
        """Run shovels until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._changed = trio.Event()
                self._look(nursery)
                with trio.move_on_after(LOOK_S):
                    await self._changed.wait()

    def _look(self, nursery: trio.Nursery) -> None:
        if self._stale:
            self._stale = False
            self._records = [record for record in self._parameters if record.component == SHOVEL]
        wanted = {
            (record.vhost, record.name): record
            for record in self._records
            if self._keeper(record.vhost, record.name)
        }
        for key, running in list(self._running.items()):
            if wanted.get(key) != running.record:
                del self._running[key]
                if not running.shovel.over.is_set():
                    self._ending[key] = running.shovel
                    running.shovel.stop()
        for key, record in wanted.items():
            # The earlier shovel of this name may still hold the queue.
            if key not in self._running and key not in self._ending:
                self._start(nursery, key, record)

    def _start(self, nursery: trio.Nursery, key: Key, record: ParameterRecord) -> None:
        try:
            definition = parse(record.name, record.decoded, uris_max=self.config.shovel_uris_max)
        except InvalidShovel as invalid:
            # Another version of mqd has set the parameter.
            logger.error("shovel '%s' in vhost '%s': %s", record.name, record.vhost, invalid)
            return
        shovel = Shovel(record.vhost, record.name, definition, self)
        self._running[key] = _Running(record, shovel)
        nursery.start_soon(self._run, key, shovel)

    async def _run(self, key: Key, shovel: Shovel) -> None:
        try:
            await shovel.run()
        except Exception:
            # A defect of mqd must not affect the node's clients.
            logger.exception("shovel '%s' in vhost '%s': internal error", shovel.name, shovel.vhost)
        if self._ending.get(key) is shovel:
            del self._ending[key]
            self._changed.set()

    # -- for shovels -----------------------------------------------------------------------------------------

    async def completed(self, shovel: Shovel) -> None:
        """Clear the parameter of the shovel, unless it was set again meanwhile."""
        key = shovel.vhost, shovel.name
        while True:
            running = self._running.get(key)
            if running is None or running.shovel is not shovel:
                return
            try:
                await self._clear(running.record)
            except Exception as error:  # noqa: BLE001 - usually no majority now
                logger.warning("shovel '%s' in vhost '%s' can't be cleared yet: %s", *reversed(key), error)
                await trio.sleep(CLEAR_S)
            else:
                logger.info("shovel '%s' in vhost '%s' was deleted: %s", *reversed(key), shovel.reason)
                return

    # -- for management --------------------------------------------------------------------------------------

    def statuses(self) -> Iterator[dict[str, Any]]:
        for running in list(self._running.values()):
            yield {"node": self.config.node} | running.shovel.status()

    def restart(self, vhost: str, name: str) -> bool:
        """Return True if this node runs the shovel."""
        running = self._running.get((vhost, name))
        if running is None:
            return False
        running.shovel.restart()
        return True


__all__ = ["Shovels", "always"]
