"""The meaning of the operations on the topology, a second time and as plainly as possible: sets and
dictionaries, and no broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from amqp_server.broker.broker import Broker
from amqp_server.broker.declared import operations
from amqp_server.broker.declared.operations import Operation, Room
from amqp_server.broker.declared.records import BindingRecord, ExchangeRecord, QueueRecord
from amqp_server.wire import tables
from quorum_queue.machine import versions

#: Exchanges that every vhost has.
PREDECLARED = ("", "amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.rabbitmq.trace", "amq.topic")

Place = tuple[str, str]
Bound = tuple[str, str, str, str, str, str]


def bound(record: BindingRecord) -> Bound:
    """Return what a binding consists of: its ends, its key, and its arguments in a fixed order."""
    arguments = _sorted(tables.decode(record.arguments))
    return (record.vhost, record.source, record.kind, record.destination, record.routing_key, repr(arguments))


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [(name, _sorted(value[name])) for name in sorted(value)]
    return [_sorted(item) for item in value] if isinstance(value, list) else value


class Model:
    def __init__(self) -> None:
        self.vhosts: dict[str, Any] = {}
        self.users: dict[str, Any] = {}
        self.permissions: dict[Place, Any] = {}
        self.exchanges: dict[Place, ExchangeRecord] = {}
        self.queues: dict[Place, QueueRecord] = {}
        self.bindings: dict[Bound, None] = {}
        self.parameters: dict[tuple[str, str, str], Any] = {}
        self.topics: dict[tuple[str, str, str], Any] = {}
        #: Addresses of the nodes; a node without one is about to leave.
        self.nodes: dict[str, str] = {}
        self.version = versions.FIRST

    def state(self) -> dict[str, Any]:
        return {
            "vhosts": self.vhosts,
            "users": self.users,
            "permissions": self.permissions,
            "exchanges": self.exchanges,
            "queues": self.queues,
            "bindings": set(self.bindings),
            "parameters": self.parameters,
            "topics": self.topics,
        }

    def _last_administrator(self, name: str) -> bool:
        if self.version < versions.ADMINISTRATOR:
            return False
        return [each.name for each in self.users.values() if each.administers] == [name]

    def apply(self, index: int, operation: Operation) -> bool:
        """Apply the operation at `index`; return whether there was anything to change."""
        match operation:
            case operations.PutVhost(record):
                return _put(self.vhosts, record.name, record)
            case operations.DeleteVhost(name):
                return self._delete_vhost(name)
            case operations.PutUser(user, forced):
                if not (forced or user.administers) and self._last_administrator(user.name):
                    return False
                return _put(self.users, user.name, user)
            case operations.DeleteUser(name, forced):
                if not forced and self._last_administrator(name):
                    return False
                self.permissions = {at: each for at, each in self.permissions.items() if at[0] != name}
                self.topics = {at: each for at, each in self.topics.items() if at[0] != name}
                self.parameters.pop(("", "user-limits", name), None)
                return self.users.pop(name, None) is not None
            case operations.SetPermission(permission):
                known = permission.user in self.users and permission.vhost in self.vhosts
                return known and _put(self.permissions, (permission.user, permission.vhost), permission)
            case operations.ClearPermission(user, vhost):
                return self.permissions.pop((user, vhost), None) is not None
            case operations.DeclareExchange(exchange, room):
                at = (exchange.vhost, exchange.name)
                free = exchange.vhost in self.vhosts and not self._is_exchange(at)
                free = (
                    free and not self._leaves(exchange.node) and self._fits(exchange.vhost, room, exchanges=1)
                )
                return free and _put(self.exchanges, at, exchange)
            case operations.DeleteExchange(vhost, name, if_unused):
                used = any(each[:2] == (vhost, name) for each in self.bindings)
                return not (if_unused and used) and self._delete_whole((vhost, name))
            case operations.Bind(binding, room):
                fits = bound(binding) in self.bindings or self._fits(binding.vhost, room, bindings=1)
                return fits and not self._is_whole((binding.vhost, binding.source)) and self._bind(binding)
            case operations.Unbind(binding):
                whole = self._is_whole((binding.vhost, binding.source))
                return not whole and self._unbind([bound(binding)])
            case operations.DeclareQueue(queue, room):
                at = (queue.vhost, queue.name)
                members, leader = self._staying(queue.members, queue.leader)
                nowhere = self._leaves(queue.node) or (queue.members and not members)
                if queue.vhost not in self.vhosts or at in self.queues or nowhere:
                    return False
                if not self._fits(queue.vhost, room, queues=1):
                    return False
                queue = msgspec.structs.replace(queue, queue_id=index, members=members, leader=leader)
                if self.version == versions.FIRST:
                    queue = msgspec.structs.replace(queue, deduplication_producers=100_000)
                return _put(self.queues, at, queue)
            case operations.DeleteQueue(vhost, name, queue_id):
                found = self.queues.get((vhost, name))
                return found is not None and found.queue_id == queue_id and self._delete_queue((vhost, name))
            case operations.SetMembers(vhost, name, queue_id, members, leader):
                found = self.queues.get((vhost, name))
                members, leader = self._staying(members, leader)
                if found is None or found.queue_id != queue_id or not members:
                    return False
                founders = found.founders or found.members if self.version >= versions.FOUNDERS else ()
                self.queues[vhost, name] = msgspec.structs.replace(
                    found, members=members, leader=leader, founders=founders
                )
                return True
            case operations.PauseQueue(vhost, name, queue_id, deliveries, publishes):
                found = self.queues.get((vhost, name))
                if found is None or found.queue_id != queue_id:
                    return False
                deliveries = found.deliveries_paused if deliveries is None else deliveries
                publishes = found.publishes_paused if publishes is None else publishes
                self.queues[vhost, name] = msgspec.structs.replace(
                    found,
                    deliveries_paused=deliveries,
                    publishes_paused=publishes,
                )
                return self.queues[vhost, name] != found
            case operations.ProtectQueue(vhost, name, queue_id, protected):
                found = self.queues.get((vhost, name))
                if found is None or found.queue_id != queue_id:
                    return False
                self.queues[vhost, name] = msgspec.structs.replace(found, protected_from_deletion=protected)
                return found.protected_from_deletion != protected
            case operations.NodeDown(node, incarnation):
                return self._node_down(node, incarnation)
            case operations.PutParameter(record):
                known = not record.vhost or record.vhost in self.vhosts
                return known and _put(self.parameters, record.key, record)
            case operations.ClearParameter(vhost, component, name):
                return self.parameters.pop((vhost, component, name), None) is not None
            case operations.SetTopicPermission(topic):
                known = topic.user in self.users and topic.vhost in self.vhosts
                return known and _put(self.topics, (topic.user, topic.vhost, topic.exchange), topic)
            case operations.ReplaceHash(name, before, after):
                holder = self.users.get(name)
                if holder is None or holder.password_hash != before:
                    return False
                self.users[name] = msgspec.structs.replace(holder, password_hash=after)
                return True
            case operations.ClearTopicPermission(user, vhost, exchange):
                gone = [at for at in self.topics if at[:2] == (user, vhost) and exchange in ("", at[2])]
                for each in gone:
                    del self.topics[each]
                return bool(gone)
            case operations.DeclareSuperStream(exchange, first, partitions, room):
                count = len(partitions)
                fits = self._fits(
                    exchange.vhost, room, exchanges=0 if first else 1, queues=count, bindings=count
                )
                return fits and self._declare_super_stream(index, exchange, first, partitions)

    def _fits(
        self, vhost: str, room: Room | None, *, exchanges: int = 0, queues: int = 0, bindings: int = 0
    ) -> bool:
        """Return whether there is room for so many more."""
        if room is None:
            return True
        limits = self.parameters.get((vhost, "vhost-limits", "limits"))
        most = -1 if limits is None else limits.decoded.get("max-queues", -1)
        there = len([at for at in self.queues if at[0] == vhost])
        return (
            (not queues or most < 0 or there + queues <= most)
            and (not queues or len(self.queues) + queues <= room.queues)
            and (not exchanges or len(self.exchanges) + exchanges <= room.exchanges)
            and (not bindings or len(self.bindings) + bindings <= room.bindings)
        )

    def _declare_super_stream(
        self, index: int, exchange: ExchangeRecord, first: int, partitions: tuple[QueueRecord, ...]
    ) -> bool:
        at = (exchange.vhost, exchange.name)
        there = len([each for each in self.bindings if each[:2] == at]) if at in self.exchanges else 0
        placed = [self._staying(each.members, each.leader) for each in partitions]
        taken = [each for each in partitions if (each.vhost, each.name) in self.queues]
        if exchange.vhost not in self.vhosts or not all(members for members, _ in placed) or taken:
            return False
        if (at in self.exchanges) != bool(first) or there != first:
            return False
        self.exchanges.setdefault(at, exchange)
        for place, (record, (members, leader)) in enumerate(zip(partitions, placed, strict=True)):
            queue_id = (1 << 61) + (index << 14) + place
            self.queues[record.vhost, record.name] = msgspec.structs.replace(
                record, queue_id=queue_id, members=members, leader=leader
            )
            arguments = [("x-stream-partition-order", first + place)]
            self.bindings[
                record.vhost, exchange.name, "queue", record.name, str(first + place), repr(arguments)
            ] = None
        return True

    def _is_whole(self, at: Place) -> bool:
        """Return whether it is a super stream with partitions of its own."""
        found = self.exchanges.get(at)
        return (
            found is not None
            and found.type == "x-super-stream"
            and "x-partitions" in tables.decode(found.arguments)
        )

    def _delete_whole(self, at: Place) -> bool:
        if self._is_whole(at):
            for each in [each for each in self.bindings if each[:2] == at]:
                self._delete_queue((at[0], each[3]))
        return self._delete_exchange(at)

    def _leaves(self, node: str) -> bool:
        return self.nodes.get(node, "here") == ""

    def _staying(self, members: tuple[str, ...], leader: str) -> tuple[tuple[str, ...], str]:
        """Return those members, each once, that do not leave, and the node that leads them."""
        left: list[str] = []
        for name in members:
            if self.nodes.get(name) and name not in left:
                left.append(name)
        return tuple(left), leader if leader in left else left[0] if left else ""

    def _is_exchange(self, at: Place) -> bool:
        return at in self.exchanges or (at[0] in self.vhosts and at[1] in PREDECLARED)

    def _delete_vhost(self, name: str) -> bool:
        self.permissions = {at: each for at, each in self.permissions.items() if at[1] != name}
        self.exchanges = {at: each for at, each in self.exchanges.items() if at[0] != name}
        self.queues = {at: each for at, each in self.queues.items() if at[0] != name}
        self.bindings = {each: None for each in self.bindings if each[0] != name}
        self.parameters = {at: each for at, each in self.parameters.items() if at[0] != name}
        self.parameters.pop(("", "tracing", name), None)
        self.topics = {at: each for at, each in self.topics.items() if at[1] != name}
        return self.vhosts.pop(name, None) is not None

    def _bind(self, record: BindingRecord) -> bool:
        to = (record.vhost, record.destination)
        ends = self._is_exchange((record.vhost, record.source)) and (
            to in self.queues if record.kind == "queue" else self._is_exchange(to)
        )
        return ends and _put(self.bindings, bound(record), None)

    def _unbind(self, gone: list[Bound]) -> bool:
        """Remove bindings, and each auto-delete exchange that loses its last binding."""
        found = [each for each in gone if each in self.bindings]
        for each in found:
            del self.bindings[each]
        for vhost, source, *_ in found:
            exchange = self.exchanges.get((vhost, source))
            left = any(each[:2] == (vhost, source) for each in self.bindings)
            if exchange is not None and exchange.auto_delete and not left:
                self._delete_exchange((vhost, source))
        return bool(found)

    def _delete_exchange(self, at: Place) -> bool:
        if self.exchanges.pop(at, None) is None:
            return False
        self.bindings = {each: None for each in self.bindings if each[:2] != at}
        self._unbind(
            [each for each in self.bindings if (each[0], each[2], each[3]) == (at[0], "exchange", at[1])]
        )
        return True

    def _delete_queue(self, at: Place) -> bool:
        del self.queues[at]
        self._unbind(
            [each for each in self.bindings if (each[0], each[2], each[3]) == (at[0], "queue", at[1])]
        )
        return True

    def _node_down(self, node: str, incarnation: int) -> bool:
        for at, queue in list(self.queues.items()):
            stays = queue.durable and not queue.exclusive
            if queue.node == node and queue.incarnation <= incarnation and not stays:
                self._delete_queue(at)
        for at, exchange in list(self.exchanges.items()):
            if exchange.node and exchange.node == node and exchange.incarnation <= incarnation:
                self._delete_exchange(at)
        return True


def _put(table: dict[Any, Any], at: Any, value: Any) -> bool:
    new = at not in table
    table[at] = value
    return new


def state_of(broker: Broker) -> dict[str, Any]:
    """Return a broker's topology as the model has it."""
    vhosts = [vhost for vhost in broker.vhosts.values() if vhost.name in broker.vhost_records]
    return {
        "vhosts": {record.name: record for record in broker.vhost_records},
        "users": {user.name: user for user in broker.access.users},
        "permissions": {(each.user, each.vhost): each for each in broker.access.permissions.all()},
        "exchanges": {(each.vhost, each.name): each for vhost in vhosts for each in vhost.exchange_records()},
        "queues": {(each.vhost, each.name): each for vhost in vhosts for each in vhost.queue_records()},
        "bindings": {bound(each) for vhost in vhosts for each in vhost.binding_records()},
        "parameters": {record.key: record for record in broker.runtime.parameters},
        "topics": {
            (each.user, each.vhost, each.exchange): each for each in broker.access.permissions.topics()
        },
    }


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Return how two states differ, as text; empty if they do not."""
    for name, left in one.items():
        right = other[name]
        if left != right:
            if not isinstance(left, dict):
                return f"{name}: {sorted(left - right)} against {sorted(right - left)}"
            for each in {**left, **right}:
                if left.get(each) != right.get(each):
                    return f"{name}, {each}: {left.get(each)} against {right.get(each)}"
    return ""
