"""The parts of a broker that its vhosts and queues use, so that none of them names the broker."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from amqp_server.broker.topology.events import INTERNAL

if TYPE_CHECKING:
    from amqp_server.broker.access.access import Access
    from amqp_server.broker.declared.arguments import QueueArguments
    from amqp_server.broker.declared.operations import Operation
    from amqp_server.broker.declared.vhosts import Vhosts
    from amqp_server.broker.metadata import Metadata
    from amqp_server.broker.object_counts import ObjectCounts
    from amqp_server.broker.timers import Timers
    from amqp_server.broker.topology.events import Events
    from amqp_server.broker.topology.operator_settings import Runtime
    from amqp_server.broker.topology.queue import Queue, Target
    from amqp_server.broker.topology.replication import Done, Replication
    from amqp_server.broker.topology.vhost import VHost
    from amqp_server.config import Config
    from amqp_server.turn import Turn
    from quorum_queue.clock import Clock
    from quorum_queue.deleted_host import DeletedHost
    from quorum_queue.machine.machine import Machine
    from quorum_queue.ports import Host


class Hosts(Protocol):
    """Given to the broker's constructor."""

    def make(self, queue: Queue, machine: Machine | None) -> Host:
        """Return the host of a queue. `machine` is the recovered machine of a queue that runs here, if there
        is one.
        """

    def place(self, parsed: QueueArguments) -> tuple[str, ...]:
        """Choose the nodes of a new queue, its leader first; an unreplicated queue has none."""

    def home(self, *, durable: bool) -> str:
        """Choose the node of a new queue that is not replicated; empty for this one."""

    def place_all(self, parsed: QueueArguments, count: int) -> list[tuple[str, ...]]:
        """Choose the nodes of `count` new queues that belong together, spread over all nodes."""

    def expect(self, queue: Queue) -> None:
        """This queue is declared; `make` or `gone` is called for it in a later step."""

    def changed(self, queue: Queue) -> None:
        """The queue's members have changed; it may need another host."""

    def more_marks(self, queue: Queue, count: int) -> list[int]:
        """Give a queue on this node so many more slots of delivered marks; return all of them."""

    def configure(self, queue: Queue) -> None:
        """The queue's settings have changed; see Queue.effective."""

    def gone(self, queue: Queue) -> None:
        """The queue is deleted; its host has been closed."""

    def leader(self, queue: Queue) -> str:
        """Return the leader of a replicated queue as far as this node knows; empty if there is none."""

    def absent_home(self, queue: Queue) -> str:
        """Return the home node of the queue if it cannot be reached; otherwise an empty string."""

    def short_node(self, queue: Queue, short: Container[str]) -> str:
        """Return one of these nodes, which are short of memory or disk space, if the queue must get no more
        messages because of it; otherwise an empty string.
        """

    def reply(self, token: str) -> Target | None:
        """Return the target for direct replies to a client of another reachable node; see broker.reply."""

    def stop(self, queue: Queue, reason: str) -> None:
        """The queue's host has failed: end it, keep the stored data, and let another host replace it."""

    def is_stopped(self, queue: Queue) -> bool:
        """Return whether the queue failed on this node and is stopped here."""

    def revive(self, queue: Queue, attempt: int, done: Callable[[], None]) -> None:
        """Restart a stopped queue from its stored data; call back when it serves."""


class HostMaker(Protocol):
    """See in_parts.host_parts."""

    def begin(self, queue: Queue, make: Callable[[], object]) -> None:
        """Make the host of a queue, now or soon."""

    def begun(self, queue: Queue) -> Host:
        """Return the host of a queue; make it now if it does not exist yet."""

    def close(self, queue: Queue, close: Callable[[], object]) -> None:
        """Close the host of a deleted queue, now or soon."""


class StreamNotices(Protocol):
    """See in_parts.changed_streams."""

    def tell(self, groups: Iterable[Queue]) -> None:
        """Let these groups look for their partitions, now or soon."""


class LossNotices(Protocol):
    """See in_parts.lost_consumers."""

    def tell(self, queue: Queue, subscriptions: list[Any]) -> None:
        """Tell these subscriptions that the queue is gone, now or soon."""

    def tell_last(self, queue: Queue, host: Host, subscriptions: list[Any]) -> None:
        """Tell them when the host of the deleted queue has handed them all that is theirs."""


class FailedQueues(Protocol):
    """See recovery.failures."""

    def add(self, queue: Queue, error: Exception) -> None:
        """Note that a queue's host has raised. Raises nothing."""

    def forget(self, queue: Queue) -> None:
        """The queue is deleted."""


class Propose(Protocol):
    """See Broker.propose."""

    def __call__(self, operation: Operation, done: Done | None = None, user: str = INTERNAL) -> None: ...


@dataclass(frozen=True, kw_only=True)
class BrokerParts:
    """Made before the broker, which puts them together."""

    config: Config
    metadata: Metadata
    clock: Clock
    turn: Turn
    timers: Timers
    access: Access
    counts: ObjectCounts
    vhost_records: Vhosts
    vhosts: dict[str, VHost]
    #: None if events are turned off.
    events: Events | None
    runtime: Runtime
    replication: Replication
    hosts: Hosts
    host_parts: HostMaker
    changed_streams: StreamNotices
    lost_consumers: LossNotices
    failures: FailedQueues
    #: Stands in for the hosts of deleted queues.
    deleted_host: DeletedHost
    propose: Propose
    #: Raises the generation of the topology, and returns it; see Broker.generation.
    changed: Callable[[], None]
    generation: Callable[[], int]
    #: An exclusive queue was declared, or is gone.
    exclusive_declared: Callable[[Queue], None]
    exclusive_gone: Callable[[Queue], None]


__all__ = ["BrokerParts", "Hosts"]
