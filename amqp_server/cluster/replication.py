"""Changes of the topology, made through group 0. See amqp_server.broker.topology.replication."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from amqp_server.broker.declared import operations
from amqp_server.broker.declared.operations import Operation
from amqp_server.broker.topology.events import INTERNAL
from amqp_server.broker.topology.replication import Done
from amqp_server.cluster.readiness import has_majority, obstacle
from amqp_server.cluster.topology_group import Catalog, Change, Proposal
from quorum_queue.clock import Clock
from quorum_queue.cluster.replica_group import Group
from quorum_queue.machine import versions
from quorum_queue.ports import Refused

#: Error text: a majority is linked, but slow.
_SLOW = "the cluster's nodes did not take it"


class _Waiting(NamedTuple):
    deadline_ms: int
    number: int
    done: Done


class ClusterReplication:
    clustered = True

    def __init__(self, node: str, incarnation: int, *, clock: Clock, timeout_ms: int) -> None:
        self.node = node
        self.incarnation = incarnation
        self.user = INTERNAL
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._waiting: deque[_Waiting] = deque()
        #: None until the node knows which cluster it belongs to.
        self.group: Group | None = None
        self._catalog: Catalog | None = None
        self._before_start: list[tuple[Proposal, Done | None]] = []

    @property
    def version(self) -> int:
        return versions.FIRST if self._catalog is None else self._catalog.version

    @property
    def reaches_majority(self) -> bool:
        return self.group is not None and has_majority(self.group)

    @property
    def leads(self) -> bool:
        """True if this node leads group 0."""
        return self.group is not None and self.group.is_leader

    @property
    def has_streams(self) -> bool:
        return self.version >= versions.STREAMS

    @property
    def has_super_streams(self) -> bool:
        return self.version >= versions.SUPER_STREAMS

    @property
    def has_groups(self) -> bool:
        return self._catalog is not None and self._catalog.version >= versions.GROUPS

    def propose(self, operation: Operation, done: Done | None = None) -> None:
        self.submit(Change(operations.encode(operation)), done)

    def submit(self, proposal: Proposal, done: Done | None = None) -> int:
        """Propose a change; see `propose`. Return the number of its batch, 0 before the start."""
        group, catalog = self.group, self._catalog
        if group is None or catalog is None:
            self._before_start.append((proposal, done))
            return 0
        number = group.next_number
        if self.user != INTERNAL:
            catalog.users[number] = self.user
        if done is not None:
            catalog.wait(number, done)
            self._waiting.append(_Waiting(self._clock.monotonic_ms() + self._timeout_ms, number, done))
        group.submit(catalog.batch(number, proposal))
        return number

    def catch_up(self, done: Callable[[bool], None]) -> None:
        if self.group is None:
            done(False)
        else:
            self.group.catch_up(done)

    def start(self, group: Group, catalog: Catalog) -> None:
        """The topology's group is open."""
        self.group, self._catalog = group, catalog
        before_start, self._before_start = self._before_start, []
        for proposal, done in before_start:
            self.submit(proposal, done)

    def tick(self) -> None:
        """Fail changes that have waited too long."""
        waiting, now, catalog = self._waiting, self._clock.monotonic_ms(), self._catalog
        while (
            catalog is not None
            and waiting
            and (waiting[0].deadline_ms <= now or not catalog.waits(waiting[0].number))
        ):
            first = waiting.popleft()
            if catalog.give_up(first.number):
                first.done(self._late())

    def _late(self) -> Refused:
        return Refused(
            f"the change was not applied in time: {obstacle(self.group) or _SLOW}. "
            "It may still take effect; try again when the nodes are back"
        )
