"""Stands in for the broker around a node's quorum queues: their declarations, timers, and the way of dead
letters.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from amqp_server.broker.declared.arguments import QueueArguments
from amqp_server.broker.declared.queue_types import QUORUM
from amqp_server.broker.declared.records import QueueRecord
from amqp_server.broker.declared.settings import effective_settings
from amqp_server.cluster.hosts import ClusterHosts
from quorum_queue.cluster.queues.member_host import GroupHost
from quorum_queue.machine.effects import Reason
from quorum_queue.machine.letters import Letter
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots import snapshot
from tests.quorum_queue.cluster.ledger import DEAD, Ledger

if TYPE_CHECKING:
    from tests.quorum_queue.cluster.node import SimulatedNode


class Declared:
    """A queue of the simulated cluster, the same for all nodes."""

    def __init__(self, queue_id: int, name: str, parsed: QueueArguments, target: str, ledger: Ledger) -> None:
        self.queue_id = queue_id
        self.name = name
        self.parsed = parsed
        #: The queue that gets its dead letters.
        self.target = target
        self.ledger = ledger
        #: The successive lists of members, each with the preferred leader in front.
        self.members: list[tuple[str, ...]] = []


class Event(NamedTuple):
    """The topology tells all nodes in the same order that a queue is there, or that it is deleted."""

    declared: Declared
    there: bool


class SimulatedQueue:
    """Stands in for the topology's queue."""

    host: Any
    #: Only classic queues have these.
    marks: tuple[()] = ()
    type = QUORUM

    def __init__(self, node: SimulatedNode, declared: Declared, version: int) -> None:
        self.declared = declared
        self.queue_id = declared.queue_id
        self.name = declared.name
        self.effective = declared.parsed
        self.vhost = SimpleNamespace(name="/")
        self.deleted = False
        self.node = ""
        self.on = node
        self.version = version
        self.leader = ""
        self.change(version)

    def change(self, version: int) -> None:
        self.version = version
        members = self.declared.members[version]
        self.record = QueueRecord(
            "/", self.name, self.queue_id, False, b"", members=members, leader=members[0]
        )

    @property
    def settings(self) -> Settings:
        return self.declared.ledger.settings

    @property
    def members(self) -> tuple[str, ...]:
        return self.record.members

    def host_failed(self, error: Exception) -> None:
        raise error

    def failed(self, error: Exception) -> None:
        raise error

    @property
    def disconnected_ms(self) -> int:
        return self.effective.disconnected_timeout_ms or 0

    def renew(self) -> None: ...

    def sealed(self) -> None:
        """Propose the deletion; the proposal is lost if the node crashes before it is applied."""
        self.on.deletions[self.declared] = None

    def messages_changed(self, told: list[tuple[int, int, int, bytes]]) -> None: ...

    def consumer_gone(self, left: int) -> None: ...

    def more_marks(self, count: int) -> list[int]:
        raise NotImplementedError

    def consumer_lost(self, key: Any) -> None:
        for client in self.on.clients:
            client.consumer_lost(key)

    def consumers_lost(self) -> None:
        for client in self.on.clients:
            client.consumers_lost(self)

    def delete(self) -> None:
        """Delete the queue as amqp_server.broker.topology.vhost does."""
        self.deleted = True
        self.host.close()
        self.on.hosts.gone(self)  # type: ignore[arg-type]
        self.consumers_lost()


class WatchedHost(GroupHost):
    """Shows the ledger each entry that it applies."""

    def _show(self, index: int, data: bytes | None) -> None:
        queue: Any = self.queue
        queue.declared.ledger.applied(
            self.replicas.node, index, data, self.replica.digest(), snapshot.digest(self.replica.machine)
        )

    def _perform(self, applied: Any, bodies: Any) -> None:
        self._show(applied.index, self._data)
        super()._perform(applied, bodies)

    def apply(self, index: int, data: bytes) -> None:
        self._data = data
        super().apply(index, data)

    def passed(self, index: int) -> None:
        super().passed(index)
        self._show(index, None)

    def _check(self) -> None:
        queue: Any = self.queue
        replica = self.replica
        queue.declared.ledger.same(
            self.replicas.node, replica.applied, replica.digest(), snapshot.digest(replica.machine)
        )

    def load(self, state: bytes) -> None:
        super().load(state)
        self._check()

    def restore(self, state: bytes) -> None:
        super().restore(state)
        queue: Any = self.queue
        queue.on.restored += 1
        self._check()


class WatchedHosts(ClusterHosts):
    def _group_host(self, queue: Any, *, late: bool = False) -> GroupHost:
        host = WatchedHost(
            queue,
            queue.queue_id,
            queue.settings,
            self._services,
            self._groups.replicas,
            declared=effective_settings(queue.declared.parsed),
        )
        self._groups.open(host, queue, late=late)
        self.grouped[queue.queue_id] = host
        return host


class Timers:
    def __init__(self) -> None:
        self.asked: list[tuple[int, Any]] = []

    def wake(self, host: Any, at_ms: int) -> None:
        self.asked.append((at_ms, host))

    def run(self, now_ms: int) -> None:
        due = [host for at_ms, host in self.asked if at_ms <= now_ms]
        self.asked = [(at_ms, host) for at_ms, host in self.asked if at_ms > now_ms]
        for host in due:
            host.wake()


class Letters:
    """Sends dead letters on to the one target of a queue, as the broker does through its exchanges."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node

    def dead_letter(
        self,
        queue: Any,
        run: Run,
        reason: Reason,
        done: Callable[[bool], None] | None,
        letter: Letter | None = None,
    ) -> None:
        assert run.contents is not None
        node = self._node
        host = node.queues[queue.declared.target].host
        origin = None if done is None else Answer(done, len(run.contents))
        dead = Run(range(len(run.contents)), list(run.contents), DEAD, Attributes(persistent=True))
        if letter is None:
            host.submit(("enqueue", dead, origin, 1))
        else:
            host.submit(("enqueue_letter", dead, origin, 1, letter))


class Answer:
    def __init__(self, done: Callable[[bool], None], count: int) -> None:
        self._done = done
        self._left = count
        self._taken = True

    def confirmed(self, first: int, last: int) -> None:
        self._left -= last - first + 1
        if not self._left:
            self._done(self._taken)

    def refused(self, first: int, last: int) -> None:
        self._taken = False
        self.confirmed(first, last)

    def gone(self, first: int, last: int) -> None:
        self.confirmed(first, last)


class Proposals:
    """Stands in for group 0: the simulation notes changes of members, and tells the nodes later."""

    def __init__(self, changed: Callable[[Any], None]) -> None:
        self._changed = changed

    def propose(self, operation: Any, done: Callable[[Any], None] | None = None) -> None:
        self._changed(operation)
        if done is not None:
            done(None)
