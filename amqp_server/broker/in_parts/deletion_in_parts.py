"""Deletes large objects: first their parts, some in each turn, then the object.

One change of the topology is one step that cannot be interrupted, and deleting an exchange with 100,000
bindings takes most of a second. So its bindings are first removed one by one, as a client could do it. In a
cluster each part is an entry of the topology's log. The next parts are proposed when this node has applied
some, and every node applies as many in a turn as it has time for (quorum_queue.cluster.replicas).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from amqp_server.broker.declared.operations import (
    DeleteExchange,
    DeleteQueue,
    DeleteVhost,
    NodeDown,
    Operation,
    Unbind,
)
from amqp_server.broker.topology.replication import Done, Result
from amqp_server.broker.topology.super_streams import has_partitions, partitions_of
from amqp_server.broker.topology.vhost import binding_of
from amqp_server.turn import Turn
from quorum_queue.ports import Refused
from quorum_queue.steps import Steps

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.broker.topology.vhost import VHost
    from exchanges.binding import Binding

#: Deletions that may have very many parts.
DELETIONS = (DeleteVhost, DeleteExchange, DeleteQueue, NodeDown, Unbind)
#: With more bindings than this, parts are deleted first; a queue counts as QUEUE_BINDINGS bindings.
BINDINGS_MIN, QUEUE_BINDINGS = 500, 10
#: Maximum number of parts that are proposed and not applied yet.
PROPOSED_MAX = 128


class Dismantling:
    """One deletion in progress."""

    def __init__(
        self,
        turn: Turn,
        propose: Callable[[Operation, Done | None], None],
        parts: Iterator[Operation | None],
        operation: Operation,
        done: Done | None,
    ) -> None:
        """A part may be None: the next one is still looked for."""
        self._propose = propose
        self._parts = parts
        self._operation = operation
        self._done = done
        self._proposed = 0
        self._steps = Steps(turn, self._delete_parts, f"{operation} could not be applied")
        #: True while no part is proposed before some were applied.
        self._waits = False
        #: True when the deletion of the object itself was proposed.
        self._over = False

    def begin(self) -> None:
        """Delete parts; at the end, delete the object."""
        self._steps.begin()

    def _delete_parts(self) -> Iterator[None]:
        for part in self._parts:
            if self._over:
                return
            if part is not None:
                self._proposed += 1
                self._propose(part, self._applied)
            if self._proposed >= PROPOSED_MAX:
                self._waits = True
                return
            yield
        self._end()

    def _applied(self, result: Result | Refused) -> None:
        self._proposed -= 1
        if isinstance(result, Refused):
            # There is no majority. A waiting caller gets this error from the whole deletion; without a
            # caller, the deletion is proposed until it is applied.
            self._end()
        elif self._waits and self._proposed <= PROPOSED_MAX // 2:
            self._waits = False
            self._steps.begin_later()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._propose(self._operation, self._done)


def parts_of(vhosts: dict[str, VHost], operation: Operation) -> Iterator[Operation | None] | None:
    """Return the parts to delete before this object; None if they are few."""
    if isinstance(operation, DeleteVhost):
        vhost = vhosts.get(operation.name)
        return _parts_of_vhost(vhost) if vhost is not None else None
    if isinstance(operation, NodeDown):
        return _queues_of_node(vhosts, operation)
    if isinstance(operation, Unbind):
        vhost = vhosts.get(operation.record.vhost)
        if vhost is None:
            return None
        binding = binding_of(operation.record)
        return _cascading(vhost, [binding]) if vhost.router.has(binding) else None
    if isinstance(operation, (DeleteExchange, DeleteQueue)):
        vhost = vhosts.get(operation.vhost)
        if vhost is None or (isinstance(operation, DeleteExchange) and operation.if_unused):
            # An unused exchange has no bindings; a used one is not deleted.
            return None
        if isinstance(operation, DeleteQueue):
            queue = vhost.queues.get(operation.name)
            if queue is None or queue.queue_id != operation.queue_id:
                return None
            bindings = vhost.router.bindings_of("queue", operation.name)
        elif has_partitions(vhost.router.get(operation.name)):
            # Its partitions are deleted with it, and found by their bindings: keep those.
            return None
        else:
            bindings = vhost.router.bindings_of("exchange", operation.name)
        if len(bindings) >= BINDINGS_MIN:
            return _unbinds(vhost, bindings)
        return _cascading(vhost, bindings)
    return None


def _cascading(vhost: VHost, removed: list[Binding]) -> Iterator[Operation | None] | None:
    """Return the parts of auto-delete exchanges that go with these bindings, and with each other: a chain of
    them may be as long as there are exchanges. The last ones go first, so that each goes alone.
    """
    router = vhost.router
    steps = router.cascade(removed)
    found = list(islice(steps, BINDINGS_MIN))
    if len(found) < BINDINGS_MIN:
        return None

    def parts() -> Iterator[Operation | None]:
        for name in steps:
            found.append(name)
            yield None
        for name in reversed(found):
            if name is not None:
                yield from _unbinds(vhost, router.bindings_from(name))
            yield None

    return parts()


def _unbinds(vhost: VHost, bindings: list[Binding]) -> Iterator[Operation | None]:
    # Each is freed when it is done: to free 100,000 of them at the end would be a long step.
    bindings.reverse()
    while bindings:
        binding = bindings.pop()
        yield from _cascading(vhost, [binding]) or ()
        yield Unbind(vhost.binding_record(binding))


def _deletions(queues: list[Queue]) -> Iterator[Operation | None]:
    queues.reverse()
    while queues:
        queue = queues.pop()
        if not queue.deleted:
            bindings = queue.vhost.router.bindings_of("queue", queue.name)
            if len(bindings) >= BINDINGS_MIN:
                yield from _unbinds(queue.vhost, bindings)
            else:
                yield from _cascading(queue.vhost, bindings) or ()
            yield queue.deletion


def _queues_of_node(vhosts: dict[str, VHost], operation: NodeDown) -> Iterator[Operation | None] | None:
    """Return deletions of queues only: a deletion of an exchange has only its name, and another exchange of
    that name may have been declared since.
    """
    queues = [
        queue for vhost in vhosts.values() for queue in vhost.queues_of(operation.node, operation.incarnation)
    ]
    return _deletions(queues) if len(queues) * QUEUE_BINDINGS >= BINDINGS_MIN else None


def _parts_of_vhost(vhost: VHost) -> Iterator[Operation | None] | None:
    queues, exchanges = list(vhost.queues.values()), list(vhost.router.exchanges())
    if QUEUE_BINDINGS * len(queues) + len(exchanges) + vhost.router.binding_count < BINDINGS_MIN:
        return None

    def parts() -> Iterator[Operation | None]:
        # Super streams are deleted as a whole, with their bindings: this node may end before it has proposed
        # everything.
        whole = {exchange.name: exchange for exchange in exchanges if has_partitions(exchange)}
        partitions = {name for exchange in whole.values() for name in partitions_of(vhost, exchange) or ()}
        for name in whole:
            yield DeleteExchange(vhost.name, name)
        for exchange in exchanges:
            if exchange.name not in whole:
                yield from _unbinds(vhost, vhost.router.bindings_from(exchange.name))
            yield None
        if partitions:
            queues[:] = [queue for queue in queues if queue.name not in partitions]
        yield from _deletions(queues)
        for exchange in exchanges:
            if not exchange.predeclared and exchange.name not in whole:
                yield DeleteExchange(vhost.name, exchange.name)

    return parts()
