"""Changes the topology of a node to that of a snapshot, in steps.

A node that was away while very many queues were declared has to make them all; meanwhile its clients have
their turns. They see a topology between the two: what is in both stays throughout, and what is new comes
before anything goes, so that a message finds a queue if its binding was moved from one queue to another. Only
an object whose name stands for another one now goes earlier, in the same step in which the other one comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from amqp_server.broker.declared import operations
from amqp_server.broker.declared.operations import Operation
from amqp_server.broker.declared.records import BindingRecord, ExchangeRecord, QueueRecord
from amqp_server.broker.topology.vhost import VHost, vhost_of
from quorum_queue.queue_ids import index_of, is_partition

if TYPE_CHECKING:
    from amqp_server.broker.topology.parts import BrokerParts
    from amqp_server.broker.topology.topology_snapshot import TopologyRecords

#: Objects that are compared, and objects that are made or removed, in one step.
COMPARED_MAX: Final = 256
CHANGED_MAX: Final = 8


def restoring(
    parts: BrokerParts, records: TopologyRecords, applied: int, change: Callable[[Operation], None]
) -> Iterator[None]:
    """Restore these records. `applied` is the index of the operation that the node has applied last; `change`
    applies an operation without an index.
    """
    yield from _access(parts, records, change)
    queues: dict[int, QueueRecord] = {}
    exchanges: dict[ExchangeRecord, None] = {}
    bindings: dict[BindingRecord, None] = {}
    for at in _slices(len(records.queues)):
        queues.update([(record.queue_id, record) for record in records.queues[at]])
        yield
    for at in _slices(len(records.exchanges)):
        exchanges.update(dict.fromkeys(records.exchanges[at]))
        yield
    for at in _slices(len(records.bindings)):
        bindings.update(dict.fromkeys(records.bindings[at]))
        yield
    yield from _exchanges(parts, exchanges)
    yield from _queues(parts, records, applied)
    yield from _bindings(parts, bindings)
    yield from _remove_the_gone(parts, exchanges, queues, bindings)
    # Others may have been deleted with an auto-delete exchange whose last binding was removed.
    yield from _exchanges(parts, exchanges)
    if parts.counts.bindings != len(bindings):
        yield from _bindings(parts, bindings)


class _Pace:
    """Says when a step is long enough."""

    __slots__ = ("_compared", "changed")

    def __init__(self) -> None:
        self._compared = self.changed = 0

    def is_enough(self) -> bool:
        """One more object was looked at."""
        self._compared += 1
        if self._compared < COMPARED_MAX and self.changed < CHANGED_MAX:
            return False
        self._compared = self.changed = 0
        return True


def _slices(count: int) -> Iterator[slice]:
    for start in range(0, count, COMPARED_MAX):
        yield slice(start, start + COMPARED_MAX)


def _access(
    parts: BrokerParts, records: TopologyRecords, change: Callable[[Operation], None]
) -> Iterator[None]:
    """Restore vhosts, users, permissions and parameters."""
    yield from _vhosts(parts, records, change)
    users = {user.name: user for user in records.users}
    permissions = {(each.user, each.vhost): each for each in records.permissions}
    parameters = {record.key: record for record in records.parameters}
    topics = dict.fromkeys(records.topic_permissions)
    yield
    access, pace = parts.access, _Pace()
    for user in list(access.users):
        if user.name not in users:
            change(operations.DeleteUser(user.name, forced=True))
            pace.changed += 1
        if pace.is_enough():
            yield
    for user in records.users:
        if access.users.get(user.name) != user:
            access.users.store(user)
            pace.changed += 1
        if pace.is_enough():
            yield
    for permission in list(access.permissions.all()):
        if (permission.user, permission.vhost) not in permissions:
            access.permissions.clear(permission.user, permission.vhost)
            pace.changed += 1
        if pace.is_enough():
            yield
    for permission in records.permissions:
        if access.permissions.get(permission.user, permission.vhost) != permission:
            access.permissions.store(permission)
            pace.changed += 1
        if pace.is_enough():
            yield
    for parameter in list(parts.runtime.parameters):
        if parameter.key not in parameters:
            parts.runtime.parameters.clear(*parameter.key)
            pace.changed += 1
        if pace.is_enough():
            yield
    for parameter in records.parameters:
        pace.changed += parts.runtime.parameters.store(parameter)
        if pace.is_enough():
            yield
    for topic in list(access.permissions.topics()):
        if topic not in topics:
            access.permissions.clear_topic(topic.user, topic.vhost, topic.exchange)
            pace.changed += 1
        if pace.is_enough():
            yield
    for topic in records.topic_permissions:
        pace.changed += access.permissions.store_topic(topic)
        if pace.is_enough():
            yield


def _vhosts(
    parts: BrokerParts, records: TopologyRecords, change: Callable[[Operation], None]
) -> Iterator[None]:
    vhosts, pace = {record.name: record for record in records.vhosts}, _Pace()
    for known in list(parts.vhost_records):
        if known.name not in vhosts:
            vhost = parts.vhosts.get(known.name)
            if vhost is not None:
                yield from _emptied(vhost)
            change(operations.DeleteVhost(known.name))
            yield
    for record in records.vhosts:
        if parts.vhost_records.get(record.name) != record:
            change(operations.PutVhost(record))
            pace.changed += 1
        if pace.is_enough():
            yield


def _emptied(vhost: VHost) -> Iterator[None]:
    """Remove the queues of a vhost that goes."""
    pace = _Pace()
    for queue in list(vhost.queues.values()):
        vhost.remove_queue(queue)
        pace.changed += 1
        if pace.is_enough():
            yield


def _exchanges(parts: BrokerParts, exchanges: dict[ExchangeRecord, None]) -> Iterator[None]:
    """Make the exchanges that are missing, instead of others of the same names."""
    there: dict[ExchangeRecord, None] = {}
    pace = _Pace()
    for vhost in list(parts.vhosts.values()):
        for record in vhost.exchange_records():
            there[record] = None
            if pace.is_enough():
                yield
    for record in exchanges:
        if record not in there:
            vhost = vhost_of(parts, record.vhost)
            vhost.remove_exchange(record.name)
            vhost.put_exchange(record)
            pace.changed += 1
        if pace.is_enough():
            yield


def _queues(parts: BrokerParts, records: TopologyRecords, applied: int) -> Iterator[None]:
    """Make the queues that are missing, instead of others of the same names; the others get their records."""
    pace = _Pace()
    for record in records.queues:
        vhost = vhost_of(parts, record.vhost)
        queue = vhost.queues.get(record.name)
        if queue is not None and queue.queue_id != record.queue_id:
            vhost.remove_queue(queue)
            queue = None
        if queue is None:
            unknown = index_of(record.queue_id) > applied
            vhost.put_queue(record, unknown=unknown, of_many=is_partition(record.queue_id))
            pace.changed += 1
        elif queue.record != record:
            if _places(queue.record) != _places(record):
                vhost.set_members(queue, record.members, record.leader, record.founders)
            vhost.put_record(queue, record)
            pace.changed += 1
        if pace.is_enough():
            yield


def _places(record: QueueRecord) -> tuple[object, ...]:
    """Return the fields that a change of members changes."""
    return record.members, record.leader, record.founders


def _bindings(parts: BrokerParts, bindings: dict[BindingRecord, None]) -> Iterator[None]:
    """Make the bindings that are missing."""
    there: dict[BindingRecord, None] = {}
    pace = _Pace()
    for vhost in list(parts.vhosts.values()):
        for record in vhost.binding_records():
            there[record] = None
            if pace.is_enough():
                yield
    for record in bindings:
        if record not in there:
            vhost_of(parts, record.vhost).put_binding(record)
            pace.changed += 1
        if pace.is_enough():
            yield


def _remove_the_gone(
    parts: BrokerParts,
    exchanges: dict[ExchangeRecord, None],
    queues: dict[int, QueueRecord],
    bindings: dict[BindingRecord, None],
) -> Iterator[None]:
    """Remove what is not in the snapshot."""
    pace = _Pace()
    for vhost in list(parts.vhosts.values()):
        for binding in list(vhost.router.bindings()):
            record = vhost.binding_record(binding)
            if record not in bindings:
                pace.changed += vhost.remove_binding(record)
            if pace.is_enough():
                yield
        for queue in list(vhost.queues.values()):
            if queue.queue_id not in queues:
                vhost.remove_queue(queue)
                pace.changed += 1
            if pace.is_enough():
                yield
        for exchange in vhost.exchange_records():
            if exchange not in exchanges:
                pace.changed += vhost.remove_exchange(exchange.name)
            if pace.is_enough():
                yield


__all__ = ["CHANGED_MAX", "COMPARED_MAX", "restoring"]
