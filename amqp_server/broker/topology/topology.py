"""The topology as a state machine: vhosts, exchanges, queues, bindings, users and permissions.

Every node applies the same operations in the same order and so gets the same records. Side effects on hosts
of queues and on clients of this node change no record. The proposer checks limits; those of declarations are
checked again here, see room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from amqp_server.broker import room
from amqp_server.broker.access.users import last_administrator
from amqp_server.broker.declared import operations
from amqp_server.broker.declared.operations import Operation
from amqp_server.broker.declared.parameters import GLOBAL, TRACING, USER_LIMITS, ParameterRecord
from amqp_server.broker.declared.records import BindingRecord, ExchangeRecord, encoded
from amqp_server.broker.metadata import Metadata, decode, encode
from amqp_server.broker.topology import super_streams
from amqp_server.broker.topology.event_headers import of_parameter
from amqp_server.broker.topology.events import EVENT, MESSAGE_EVENT
from amqp_server.broker.topology.partitions import Partitions
from amqp_server.broker.topology.replication import Result
from amqp_server.broker.topology.restoring import restoring
from amqp_server.broker.topology.topology_snapshot import (
    TopologyRecords,
    TopologyView,
    all_of,
    decoded,
)
from amqp_server.broker.topology.vhost import binding_of, vhost_of
from exchanges.router import InvalidArgument, UnknownExchangeType
from quorum_queue.boundary import Fatal
from quorum_queue.machine import versions
from quorum_queue.steps import in_steps

if TYPE_CHECKING:
    from amqp_server.broker.in_parts.closed_sessions import ClosedSessions
    from amqp_server.broker.topology.parts import BrokerParts
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.broker.topology.sessions import Sessions
    from amqp_server.broker.topology.vhost import VHost

#: Metadata of a node of a cluster: the last index that its records contain, and an index that they lack
#: because it was given up.
TABLE, APPLIED, LACKS = "topology", "applied", "lacks"


class _Applied(msgspec.Struct, frozen=True):
    index: int


class Topology:
    def __init__(self, parts: BrokerParts, sessions: Sessions, closed: ClosedSessions) -> None:
        self._parts = parts
        self._sessions = sessions
        self._closed = closed
        #: Index of the operation that was applied last.
        self.applied = 0
        #: Index of an operation that this node has not applied, because no node can read it any more; else 0.
        self.lacks = 0
        self._queue_ids = count(1)
        self._version = versions.NEWEST
        #: Partitions under preparation, by the index of their operation.
        self._ready: dict[int, Partitions] = {}
        #: A snapshot that is being read in parts and will be restored, unless another one replaces it.
        self._reading: TopologyRecords | None = None

    def queue_ids_from(self, first: int) -> None:
        """On a node without a cluster, number new queues from this id on.

        In a cluster the log gives the ids.
        """
        self._queue_ids = count(first)

    def next_queue_id(self) -> int:
        return next(self._queue_ids)

    def apply(self, index: int, operation: Operation, user: str | None = None) -> Result:
        """Apply the operation at `index` of the log. `user` is the user on whose behalf this node proposed
        it; None: another node proposed it.

        Raises Fatal on any error: half a change leaves an unknown state.
        """
        events = self._parts.events
        before = None if events is None else events.user
        try:
            if events is not None:
                events.user = user
            result = _APPLY[type(operation)](self, index, operation)
            if events is not None:
                # One change may cause another one, which is applied within it.
                events.user = before
        except Exception as error:
            raise Fatal(
                f"the topology could not apply {type(operation).__name__} ({index}): {error!r}"
            ) from error
        self._note(max(self.applied, index))
        return result

    def prepare(
        self, index: int, operation: operations.DeclareSuperStream, then: Callable[[], object]
    ) -> None:
        """Do the preparatory work of an operation that will have this index in parts; then call `then`, which
        applies it.
        """
        vhost = self._vhost(operation.exchange.vhost)
        if vhost is None:
            then()
            return
        partitions = self._ready[index] = Partitions(vhost, index, operation)
        # The step that makes them visible comes last, in a turn that has time for it.
        in_steps(self._parts.turn, partitions.steps(), "a super stream could not be declared", then)

    def unprepare(self, index: int) -> None:
        """Drop the preparation for this index: the log has another operation there."""
        self._ready.pop(index, None)

    def lack(self, index: int) -> None:
        """Note that the operation with this index is given up, and is missing in the records."""
        self.lacks = index
        self._parts.metadata.put(TABLE, LACKS, encode(_Applied(index)))

    def came_to(self, index: int) -> None:
        """Note that the records contain the log up to this index."""
        self._note(max(self.applied, index))

    def _note(self, index: int) -> None:
        self.applied = index
        if self._parts.replication.clustered:
            note_applied(self._parts.metadata, self.applied)

    def recovered(self) -> None:
        """The records on disk were read: note which operations are in them."""
        for stored, value in self._parts.metadata.items(TABLE):
            index = decode(TABLE, stored, value, _Applied).index
            if stored == APPLIED:
                self.applied = index
            elif stored == LACKS:
                self.lacks = index

    def _tell(self, key: str, **headers: object) -> None:
        """Publish an event for a change; see amqp_server.broker.topology.events."""
        events = self._parts.events
        if events is not None:
            events.changed(key, headers)

    def _tell_parameter(self, what: str, record: ParameterRecord) -> None:
        if self._parts.events is not None:
            for key, headers in of_parameter(record, what):
                self._tell(key, **headers)

    def declare_event_exchange(self) -> None:
        """Declare the exchanges for events, if events are on and their vhost exists. In a cluster any node
        may do that: they are ordinary exchanges.
        """
        events = self._parts.events
        vhost = None if events is None else self._parts.vhosts.get(events.vhost)
        for name in (EVENT, MESSAGE_EVENT):
            if vhost is not None and vhost.router.get(name) is None:
                self._parts.propose(
                    operations.DeclareExchange(
                        ExchangeRecord(vhost.name, name, "topic", False, True, encoded({}), durable=True)
                    )
                )

    # -- vhosts and users ------------------------------------------------------------------------------------

    def _put_vhost(self, index: int, operation: operations.PutVhost) -> Result:
        record = operation.record
        new = self._parts.vhost_records.store(record)
        vhost_of(self._parts, record.name)
        if new:
            self._tell("vhost.created", name=record.name, description=record.description, tags=[*record.tags])
            if self._parts.events is not None and record.name == self._parts.events.vhost:
                self.declare_event_exchange()
        return Result(new)

    def _delete_vhost(self, index: int, operation: operations.DeleteVhost) -> Result:
        parts, name = self._parts, operation.name
        if name not in parts.vhost_records:
            return Result(False)
        parts.vhost_records.delete(name)
        parts.access.permissions.clear_vhost(name)
        self._closed.of_vhost(name)
        vhost = parts.vhosts.pop(name, None)
        if vhost is not None:
            vhost.close()
        parts.runtime.parameters.clear_vhost(name)
        parts.runtime.parameters.clear(GLOBAL, TRACING, name)
        self._tell("vhost.deleted", name=name)
        return Result(True)

    @property
    def takes_parameters(self) -> bool:
        """True if all nodes of the cluster can read parameters."""
        return self._version >= versions.PARAMETERS

    def _put_parameter(self, index: int, operation: operations.PutParameter) -> Result:
        record, parts = operation.record, self._parts
        if record.vhost and record.vhost not in parts.vhost_records:
            return Result(False, f"Virtual host '{record.vhost}' does not exist")
        self._tell_parameter("set", record)
        return Result(parts.runtime.parameters.store(record))

    def _clear_parameter(self, index: int, operation: operations.ClearParameter) -> Result:
        vhost, component, name = operation.vhost, operation.component, operation.name
        record = self._parts.runtime.parameters.get(vhost, component, name)
        if record is not None:
            self._tell_parameter("cleared", record)
        return Result(self._parts.runtime.parameters.clear(vhost, component, name))

    def _put_user(self, index: int, operation: operations.PutUser) -> Result:
        user, users = operation.user, self._parts.access.users
        if not (operation.forced or user.administers) and self._must_stay(user.name):
            return Result(False, last_administrator(user.name))
        before = users.get(user.name)
        users.store(user)
        if before is None:
            self._tell("user.created", name=user.name)
        elif before.password_hash != user.password_hash:
            self._tell(f"user.password.{'changed' if user.password_hash else 'cleared'}", name=user.name)
        if (() if before is None else before.tags) != user.tags:
            self._tell("user.tags.set", name=user.name, tags=[*user.tags])
        return Result(before is None)

    def _delete_user(self, index: int, operation: operations.DeleteUser) -> Result:
        parts, name = self._parts, operation.name
        if parts.access.users.get(name) is None:
            return Result(False)
        if not operation.forced and self._must_stay(name):
            return Result(False, last_administrator(name))
        for permission in parts.access.permissions.of_user(name):
            self._tell("permission.deleted", user=name, vhost=permission.vhost)
        parts.access.permissions.clear_user(name)
        parts.runtime.parameters.clear(GLOBAL, USER_LIMITS, name)
        parts.access.users.delete(name)
        self._tell("user.deleted", name=name)
        self._closed.close(
            [session for session in self._sessions if session.client.identity == name],
            f"user '{name}' is deleted",
        )
        return Result(True)

    def _replace_hash(self, index: int, operation: operations.ReplaceHash) -> Result:
        return Result(
            self._parts.access.users.replace_hash(operation.user, operation.before, operation.after)
        )

    def _must_stay(self, name: str) -> bool:
        # Checked here and not by the proposer: two nodes may delete one administrator each at the same time.
        return self._version >= versions.ADMINISTRATOR and self._parts.access.users.is_last_administrator(
            name
        )

    def _set_permission(self, index: int, operation: operations.SetPermission) -> Result:
        permission, parts = operation.permission, self._parts
        if parts.access.users.get(permission.user) is None or permission.vhost not in parts.vhost_records:
            return Result(False)
        new = parts.access.permissions.get(permission.user, permission.vhost) is None
        parts.access.permissions.store(permission)
        self._tell("permission.created", **msgspec.structs.asdict(permission))
        return Result(new)

    def _clear_permission(self, index: int, operation: operations.ClearPermission) -> Result:
        known = self._parts.access.permissions.get(operation.user, operation.vhost) is not None
        self._parts.access.permissions.clear(operation.user, operation.vhost)
        if known:
            self._tell("permission.deleted", user=operation.user, vhost=operation.vhost)
        return Result(known)

    def _set_topic_permission(self, index: int, operation: operations.SetTopicPermission) -> Result:
        permission, parts = operation.permission, self._parts
        if parts.access.users.get(permission.user) is None or permission.vhost not in parts.vhost_records:
            return Result(False)
        self._tell("topic.permission.created", **msgspec.structs.asdict(permission))
        return Result(parts.access.permissions.store_topic(permission))

    def _clear_topic_permission(self, index: int, operation: operations.ClearTopicPermission) -> Result:
        permissions = self._parts.access.permissions
        known = permissions.clear_topic(operation.user, operation.vhost, operation.exchange)
        if known:
            exchange = {"exchange": operation.exchange} if operation.exchange else {}
            self._tell("topic.permission.deleted", user=operation.user, vhost=operation.vhost, **exchange)
        return Result(known)

    # -- exchanges and bindings ------------------------------------------------------------------------------

    def _vhost(self, name: str) -> VHost | None:
        return vhost_of(self._parts, name) if name in self._parts.vhost_records else None

    def _declare_exchange(self, index: int, operation: operations.DeclareExchange) -> Result:
        vhost = self._vhost(operation.record.vhost)
        if vhost is None:
            return Result(False)
        record = operation.record
        if operation.room is not None and vhost.router.get(record.name) is None:
            refused = room.exchanges_refused(vhost, record.name, operation.room)
            if refused is not None:
                return Result(False, refused)
        try:
            return Result(vhost.put_exchange(record))
        except (InvalidArgument, UnknownExchangeType) as error:
            return Result(False, str(error))

    def _declare_super_stream(self, index: int, operation: operations.DeclareSuperStream) -> Result:
        exchange, first, partitions = operation.exchange, operation.first, operation.partitions
        vhost = self._vhost(exchange.vhost)
        ready = self._ready.pop(index, None)
        if vhost is None:
            return Result(False)
        name = exchange.name
        there = vhost.router.get(name)
        if (there is not None) != bool(first):
            # The proposer checks again what exists now.
            return Result(False)
        if there is not None and len(super_streams.partitions_of(vhost, there) or ()) != first:
            return Result(
                False, f"the partitions of super stream '{name}' in vhost '{vhost.name}' have just changed"
            )
        numbers = range(first, first + len(partitions))
        taken = super_streams.first_taken(vhost, name, numbers)
        if taken is not None:
            return Result(False, taken)
        if operation.room is not None:
            refused = room.super_stream_refused(vhost, name, operation.room, len(partitions))
            if refused is not None:
                return Result(False, refused)
        try:
            vhost.put_exchange(exchange)
        except (InvalidArgument, UnknownExchangeType) as error:
            return Result(False, str(error))
        vhost.put_partitions(Partitions(vhost, index, operation) if ready is None else ready)
        return Result(True)

    def _delete_exchange(self, index: int, operation: operations.DeleteExchange) -> Result:
        vhost = self._vhost(operation.vhost)
        if vhost is None or (operation.if_unused and vhost.router.in_use(operation.name)):
            return Result(False)
        return Result(vhost.remove_exchange(operation.name))

    def _bind(self, index: int, operation: operations.Bind) -> Result:
        vhost = self._vhost(operation.record.vhost)
        if vhost is None:
            return Result(False)
        if self._is_whole(vhost, operation.record):
            return Result(
                False, f"{super_streams.place_of(vhost, operation.record.source)} is a super stream"
            )
        if operation.room is not None and not vhost.router.has(binding_of(operation.record)):
            refused = room.bindings_refused(vhost, operation.record.source, operation.room)
            if refused is not None:
                return Result(False, refused)
        try:
            return Result(vhost.put_binding(operation.record))
        except InvalidArgument as error:
            return Result(False, str(error))

    def _unbind(self, index: int, operation: operations.Unbind) -> Result:
        vhost = self._vhost(operation.record.vhost)
        if vhost is None or self._is_whole(vhost, operation.record):
            return Result(False)
        return Result(vhost.remove_binding(operation.record))

    def _is_whole(self, vhost: VHost, record: BindingRecord) -> bool:
        """True if a super stream has taken the name of the source since this was proposed: its bindings are
        deleted with it.
        """
        return super_streams.has_partitions(vhost.router.get(record.source))

    # -- queues ----------------------------------------------------------------------------------------------

    def _declare_queue(self, index: int, operation: operations.DeclareQueue) -> Result:
        record = msgspec.structs.replace(operation.record, queue_id=index)
        vhost = self._vhost(record.vhost)
        if vhost is None:
            return Result(False)
        if operation.room is not None and record.name not in vhost.queues:
            refused = room.queues_refused(vhost, record.name, operation.room)
            if refused is not None:
                return Result(False, refused)
        return Result(vhost.put_queue(record))

    def _queue(self, vhost_name: str, name: str, queue_id: int) -> Queue | None:
        vhost = self._vhost(vhost_name)
        queue = vhost.queues.get(name) if vhost is not None else None
        return queue if queue is not None and queue.queue_id == queue_id else None

    def _delete_queue(self, index: int, operation: operations.DeleteQueue) -> Result:
        queue = self._queue(operation.vhost, operation.name, operation.queue_id)
        if queue is None:
            return Result(False)
        queue.vhost.remove_queue(queue)
        return Result(True)

    def _set_members(self, index: int, operation: operations.SetMembers) -> Result:
        queue = self._queue(operation.vhost, operation.name, operation.queue_id)
        if queue is None:
            return Result(False)
        record = queue.record
        keeps = self._version >= versions.FOUNDERS
        founders = record.founders or record.members if keeps else ()
        queue.vhost.set_members(queue, operation.members, operation.leader, founders)
        return Result(True)

    def _pause_queue(self, index: int, operation: operations.PauseQueue) -> Result:
        queue = self._queue(operation.vhost, operation.name, operation.queue_id)
        if queue is None:
            return Result(False)
        before = queue.record
        deliveries, publishes = operation.deliveries, operation.publishes
        record = msgspec.structs.replace(
            before,
            deliveries_paused=before.deliveries_paused if deliveries is None else deliveries,
            publishes_paused=before.publishes_paused if publishes is None else publishes,
        )
        if record == before:
            return Result(False)
        queue.vhost.put_record(queue, record)
        self._tell(
            "queue.paused" if record.is_paused else "queue.resumed",
            name=record.name,
            vhost=record.vhost,
            deliveries_paused=record.deliveries_paused,
            publishes_paused=record.publishes_paused,
        )
        return Result(True)

    def _protect_queue(self, index: int, operation: operations.ProtectQueue) -> Result:
        queue = self._queue(operation.vhost, operation.name, operation.queue_id)
        if queue is None or queue.record.protected_from_deletion == operation.protected:
            return Result(False)
        record = msgspec.structs.replace(queue.record, protected_from_deletion=operation.protected)
        queue.vhost.put_record(queue, record)
        return Result(True)

    def _node_down(self, index: int, operation: operations.NodeDown) -> Result:
        for vhost in list(self._parts.vhosts.values()):
            vhost.node_down(operation.node, operation.incarnation)
        return Result(True)

    def has_version(self, version: int) -> None:
        """The cluster has this version from the next operation on; see quorum_queue.machine.versions."""
        self._version = version

    # -- the whole state -------------------------------------------------------------------------------------

    def view(self) -> TopologyView:
        """Return a view of the current topology, to be encoded in parts; later changes are not in it."""
        parts = self._parts
        vhosts = [vhost for vhost in parts.vhosts.values() if vhost.name in parts.vhost_records]
        return TopologyView(
            parts,
            self.applied,
            exchanges=all_of(vhost.exchange_records() for vhost in vhosts),
            queues=all_of(vhost.queue_records() for vhost in vhosts),
            bindings=all_of(vhost.binding_records() for vhost in vhosts),
        )

    def snapshot(self) -> bytes:
        """Return all records, including transient ones: the same bytes on every node that has applied the
        same operations.
        """
        return self.view().finish()

    def snapshot_in_parts(self, then: Callable[[bytes], None]) -> None:
        """Call `then` with a snapshot of the current state, in a later turn if this one has no time."""
        view = self.view()
        in_steps(
            self._parts.turn,
            view.steps(),
            "a snapshot of the topology could not be made",
            lambda: then(view.finish()),
        )

    def is_behind(self, snapshot: bytes) -> bool:
        """True if the snapshot has an operation that was not applied here. Raises UnreadableSnapshot."""
        return self.applied < decoded(snapshot).applied

    def read_in_parts(self, snapshot: bytes, wanted: Callable[[], bool], then: Callable[[], None]) -> None:
        """Read a snapshot for `restore`, as long as it is wanted; then call `then`. Raises
        UnreadableSnapshot.
        """
        records = self._reading = TopologyRecords(snapshot)

        def steps() -> Iterator[None]:
            while wanted():
                if records.whole:
                    then()
                    return
                records.read_part()
                yield

        in_steps(self._parts.turn, steps(), "a snapshot of the topology could not be read")

    def restore(self, snapshot: bytes) -> None:
        """Change this node's topology to that of the snapshot, with as few changes as possible. Raises
        UnreadableSnapshot.

        Queues that are not in the snapshot are closed and their consumers cancelled; the others keep their
        hosts.
        """
        for _ in self._restoring(snapshot):
            pass

    def restore_in_parts(self, snapshot: bytes, then: Callable[[], object]) -> None:
        """Do the same in parts; then call `then`. Nothing may be applied meanwhile. Raises
        UnreadableSnapshot.
        """
        in_steps(
            self._parts.turn,
            self._restoring(snapshot),
            "a snapshot of the topology could not be restored",
            then,
        )

    def _restoring(self, snapshot: bytes) -> Iterator[None]:
        records, self._reading = self._reading, None
        if records is None or records.snapshot != snapshot:
            records = TopologyRecords(snapshot)
        while not records.whole:
            records.read_part()
            yield
        if records.applied <= self.applied and self._parts.replication.clustered:
            # A node that ends before all is done begins anew, with the snapshot on its disk: its records must
            # be older than that.
            note_applied(self._parts.metadata, records.applied - 1)
        yield from restoring(self._parts, records, self.applied, self._change)
        self._note(records.applied)
        if self.lacks:
            self.lack(0)
        self._parts.changed()

    def _change(self, operation: Operation) -> None:
        _APPLY[type(operation)](self, 0, operation)


def note_applied(metadata: Metadata, index: int) -> None:
    """Note on disk the index up to which the records go."""
    metadata.put(TABLE, APPLIED, encode(_Applied(index)))


_APPLY: dict[type, Callable[[Topology, int, Any], Result]] = {
    operations.PutVhost: Topology._put_vhost,
    operations.DeleteVhost: Topology._delete_vhost,
    operations.DeclareExchange: Topology._declare_exchange,
    operations.DeleteExchange: Topology._delete_exchange,
    operations.Bind: Topology._bind,
    operations.Unbind: Topology._unbind,
    operations.DeclareQueue: Topology._declare_queue,
    operations.DeleteQueue: Topology._delete_queue,
    operations.SetMembers: Topology._set_members,
    operations.PutUser: Topology._put_user,
    operations.DeleteUser: Topology._delete_user,
    operations.SetPermission: Topology._set_permission,
    operations.ClearPermission: Topology._clear_permission,
    operations.NodeDown: Topology._node_down,
    operations.DeclareSuperStream: Topology._declare_super_stream,
    operations.PutParameter: Topology._put_parameter,
    operations.ClearParameter: Topology._clear_parameter,
    operations.SetTopicPermission: Topology._set_topic_permission,
    operations.ClearTopicPermission: Topology._clear_topic_permission,
    operations.ReplaceHash: Topology._replace_hash,
    operations.PauseQueue: Topology._pause_queue,
    operations.ProtectQueue: Topology._protect_queue,
}
