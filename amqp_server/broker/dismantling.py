"""Deletes what has very much in it: first its parts, some in each turn, then itself.

One change of the topology is one step, which nobody can interrupt: an exchange with 100,000 bindings takes most of a
second. So its bindings are unbound one after the other before it is deleted, as a client could do it. A node of a cluster
deletes it at once: there every part would be an entry of the topology's log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from amqp_server.broker.operations import DeleteExchange, DeleteQueue, DeleteVhost, Operation, Unbind
from amqp_server.broker.replication import Done
from amqp_server.broker.super_streams import has_partitions
from amqp_server.turn import Turn
from quorum_queue.boundary import Fatal

if TYPE_CHECKING:
    from amqp_server.broker.vhost import VHost
    from exchanges.binding import Binding

#: What may have very many parts.
DELETIONS = (DeleteVhost, DeleteExchange, DeleteQueue)
#: Bindings and queues from which on the parts are deleted first.
PARTS_MIN = 500


class Dismantling:
    """One deletion that is under way."""

    def __init__(
        self,
        turn: Turn,
        propose: Callable[[Operation, Done | None], None],
        parts: Iterator[Operation],
        operation: Operation,
        done: Done | None,
    ) -> None:
        self._turn = turn
        self._propose = propose
        self._parts = parts
        self._operation = operation
        self._done = done

    def go_on(self) -> None:
        """Delete parts until the turn is overdue; at the end, what they belonged to."""
        for part in self._parts:
            self._propose(part, None)
            if self._turn.overdue():
                self._turn.later(self, self.go_on)
                return
        self._propose(self._operation, self._done)

    def failed(self, error: Exception) -> None:
        """See amqp_server.turn.Unit."""
        raise Fatal(f"{self._operation} could not be applied: {error!r}") from error


def parts_of(vhosts: dict[str, VHost], operation: Operation) -> Iterator[Operation] | None:
    """Return what is to be deleted before this; None if it is little, or nothing."""
    if isinstance(operation, DeleteVhost):
        vhost = vhosts.get(operation.name)
        return _parts_of_vhost(vhost) if vhost is not None else None
    if isinstance(operation, (DeleteExchange, DeleteQueue)):
        vhost = vhosts.get(operation.vhost)
        if vhost is None or (isinstance(operation, DeleteExchange) and operation.if_unused):
            # It has none if it is unused, and stays otherwise.
            return None
        if isinstance(operation, DeleteQueue):
            queue = vhost.queues.get(operation.name)
            if queue is None or queue.queue_id != operation.queue_id:
                return None
            bindings = vhost.router.bindings_of("queue", operation.name)
        elif has_partitions(vhost.router.get(operation.name)):
            # Its partitions go with it, and are known by their bindings.
            return None
        else:
            bindings = vhost.router.bindings_of("exchange", operation.name)
        return _unbinds(vhost, bindings) if len(bindings) >= PARTS_MIN else None
    return None


def _unbinds(vhost: VHost, bindings: list[Binding]) -> Iterator[Operation]:
    for binding in bindings:
        yield Unbind(vhost.binding_record(binding))


def _parts_of_vhost(vhost: VHost) -> Iterator[Operation] | None:
    queues, exchanges = list(vhost.queues.values()), list(vhost.router.exchanges())
    if len(queues) + len(exchanges) + vhost.router.binding_count < PARTS_MIN:
        return None

    def parts() -> Iterator[Operation]:
        yield from _unbinds(vhost, vhost.router.bindings())
        for queue in queues:
            yield queue.deletion
        for exchange in exchanges:
            if not exchange.predeclared:
                yield DeleteExchange(vhost.name, exchange.name)

    return parts()
