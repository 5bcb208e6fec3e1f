"""Where queues run: which host a queue gets, and what this node alone knows of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from amqp_server.broker.arguments import QueueArguments
from amqp_server.broker.metadata import encode
from amqp_server.broker.queue import Queue, settings_of
from amqp_server.broker.records import MARKS, MarksRecord
from quorum_queue.local import LocalHost
from quorum_queue.machine.machine import Machine
from quorum_queue.ports import Host

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker


class Hosts(Protocol):
    """Given to the broker by whoever puts the node together."""

    def make(self, queue: Queue, machine: Machine | None) -> Host:
        """Return the host of a queue; `machine` has what was on disk of one that runs here."""

    def place(self, parsed: QueueArguments) -> tuple[str, ...]:
        """Choose the nodes of a new queue: several, its leader first, or none for one that is not replicated."""

    def changed(self, queue: Queue) -> None:
        """The queue's members are others now; it may need another host."""

    def gone(self, queue: Queue) -> None:
        """The queue is deleted; its host has been closed."""

    def leader(self, queue: Queue) -> str:
        """Return the node that leads a replicated queue as far as is known here; empty if none does."""

    def absent_home(self, queue: Queue) -> str:
        """Return the one node that the queue is on if it cannot be reached, else nothing."""

    def reply(self, token: str) -> Any | None:
        """Return what takes direct replies to a client of another node that can be reached; see broker.reply."""


class LocalHosts:
    """A node that is alone runs them all."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def make(self, queue: Queue, machine: Machine | None) -> Host:
        return local_host(self._broker, queue, machine)

    def place(self, parsed: QueueArguments) -> tuple[str, ...]:
        return ()

    def changed(self, queue: Queue) -> None:
        pass

    def gone(self, queue: Queue) -> None:
        pass

    def leader(self, queue: Queue) -> str:
        return ""

    def absent_home(self, queue: Queue) -> str:
        return ""

    def reply(self, token: str) -> Any | None:
        return None


def local_host(broker: Broker, queue: Queue, machine: Machine | None = None) -> LocalHost:
    """Make the host of a queue that lives here. One that is durable gets slots of the delivered marks."""
    journalled = queue.durable and not queue.exclusive
    if journalled and not queue.marks:
        marks = broker.services.marks
        queue.marks = [marks.allocate() for _ in range((queue.parsed.max_priority or 0) + 1)]
        broker.metadata.put(MARKS, str(queue.queue_id), encode(MarksRecord(queue.marks)))
    queue.renew()
    return LocalHost(
        queue,
        queue.queue_id,
        machine or Machine(settings_of(queue.parsed)),
        broker.services,
        journalled=journalled,
        marks=queue.marks,
    )


def forget_marks(broker: Broker, queue: Queue) -> None:
    """The queue is gone, and so is what this node alone knew of it."""
    if queue.marks:
        broker.metadata.delete(MARKS, str(queue.queue_id))
        for slot in queue.marks:
            broker.services.marks.free(slot)
        queue.marks = []
