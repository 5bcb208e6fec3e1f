"""The broker of one node, without I/O: vhosts and their topology, users, alarms, and what the hosts of queues share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from amqp_server.broker.alarms import Alarms
from amqp_server.broker.dead_letter import DeadLetterSender
from amqp_server.broker.hosts import Hosts, LocalHosts
from amqp_server.broker.metadata import Metadata
from amqp_server.broker.operations import DeleteVhost, Operation, PutVhost
from amqp_server.broker.permissions import Permissions
from amqp_server.broker.queue import Queue
from amqp_server.broker.replication import Done, LocalReplication, Replication
from amqp_server.broker.reply import ReplyHost
from amqp_server.broker.timers import Timers
from amqp_server.broker.topology import Topology
from amqp_server.broker.users import Users
from amqp_server.broker.vhost import VHost
from amqp_server.broker.vhosts import Vhosts
from amqp_server.config import Config
from amqp_server.wire.content import Properties
from exchanges.router import Depends
from quorum_queue.local import NodeServices


class Broker:
    """Everything that connections share."""

    services: NodeServices

    def __init__(self, config: Config, metadata: Metadata, clock: Callable[[], int]) -> None:
        self.config = config
        self.metadata = metadata
        self.clock = clock
        self.timers = Timers()
        self.alarms = Alarms()
        #: Both are other ones in a cluster.
        self.replication: Replication = LocalReplication(self)
        self.hosts: Hosts = LocalHosts(self)
        self.topology = Topology(self)
        self.dead_letters = DeadLetterSender(self)
        #: Raised by whatever may change where a message goes or whether it may.
        self.generation = 0
        self.users = Users(
            metadata,
            loopback_users=config.loopback_users,
            users_max=config.users_max,
            login_memory_s=config.login_memory_s,
            login_memory_entries_max=config.login_memory_entries_max,
        )
        self.permissions = Permissions(
            metadata,
            changed=self.changed,
            pattern_bytes_max=config.permission_pattern_bytes_max,
            match_ms=config.permission_match_ms,
        )
        self.vhost_records = Vhosts(metadata, vhosts_max=config.vhosts_max, changed=self.changed)
        self.vhosts: dict[str, VHost] = {}
        self.queue_count = self.exchange_count = self.binding_count = self.channel_count = 0
        self._queue_ids = count(1)
        #: Sessions by their number.
        self.sessions: dict[int, Any] = {}
        self._session_ids = count(1)
        #: Confirms with answers to send at the end of the turn.
        self.answers: dict[Any, None] = {}
        #: Says whether anything that was changed is not on disk yet.
        self.unsynced: Callable[[], bool] = lambda: False
        #: Sessions that waited for an answer and have it: what came behind is to be handled.
        self.resuming: dict[Any, None] = {}
        #: Hosts with pending commands, to be applied at the end of the turn.
        self.dirty: dict[Any, None] = {}
        #: Direct reply-to consumers by token.
        self.reply_hosts: dict[str, ReplyHost] = {}
        #: Has the turn ended soon, when something changed outside of one; set by the edge.
        self.want_turn: Callable[[], None] = lambda: None
        #: Carries out what replicated queues and the topology ask for, and says whether there was anything; and sends
        #: what the turn has left for other nodes. Both are other ones in a cluster.
        self.replicate: Callable[[], bool] = lambda: False
        self.flush: Callable[[], None] = lambda: None
        #: Called before, for `flush` to be all that sends.
        self.hold: Callable[[], None] = lambda: None
        #: Counts up for exchanges that choose at random.
        self.nonce = 0

    def changed(self) -> None:
        """The topology or a permission has changed: what was remembered of it is void."""
        self.generation += 1

    def next_queue_id(self) -> int:
        return next(self._queue_ids)

    def queue_ids_from(self, first: int) -> None:
        self._queue_ids = count(first)

    def next_session_id(self) -> int:
        return next(self._session_ids)

    # -- changes ---------------------------------------------------------------------------------------------------

    def propose(self, operation: Operation, done: Done | None = None) -> None:
        """Have a change made that was checked here; see replication.Replication."""
        self.replication.propose(operation, done)

    def exclusive_declared(self, queue: Queue) -> None:
        """An exclusive queue is there now. If its session ended meanwhile, it goes again."""
        record, replication = queue.record, self.replication
        if (record.node, record.incarnation) != (replication.node, replication.incarnation):
            return
        session = self.sessions.get(record.owner)
        if session is None:
            queue.delete()
        else:
            session.exclusive_queues[queue] = None

    def exclusive_gone(self, queue: Queue) -> None:
        session = self.sessions.get(queue.record.owner)
        if session is not None:
            session.exclusive_queues.pop(queue, None)

    # -- vhosts ----------------------------------------------------------------------------------------------------

    def vhost(self, name: str) -> VHost:
        """Return the topology of a vhost that exists."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            vhost = self.vhosts[name] = VHost(self, name)
        return vhost

    def add_vhost(
        self, name: str, description: str = "", tags: tuple[str, ...] = (), default_queue_type: str = ""
    ) -> bool:
        """Make a vhost, or change what is told of it; return whether it is new. Raises VhostRefused."""
        record = self.vhost_records.prepare(name, description, tags, default_queue_type)
        new = name not in self.vhost_records
        self.propose(PutVhost(record))
        return new

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost with all in it and close its connections. Raises NoSuchVhost."""
        self.vhost_records.require(name)
        self.propose(DeleteVhost(name))

    def all_queues(self) -> Iterable[Queue]:
        for vhost in self.vhosts.values():
            yield from vhost.queues.values()

    # -- routing ---------------------------------------------------------------------------------------------------

    def route_all(self, vhost: VHost, exchange: str, keys: list[str], properties: Properties) -> list[str]:
        """Return the queues for a message with several routing keys (CC, BCC), each once."""
        message = routing_view(properties)
        names: dict[str, None] = {}
        for key in keys:
            self.nonce += 1
            for name in vhost.router.route(exchange, key, message, self.nonce).queues:
                names[name] = None
        return [name for name in names if name in vhost.queues]

    def run_dirty(self) -> None:
        """Apply what is pending, and what that makes pending."""
        while self.dirty:
            dirty, self.dirty = self.dirty, {}
            for host in dirty:
                host.turn()

    def _catch_up(self) -> None:
        while self.resuming:
            session, _ = self.resuming.popitem()
            session.catch_up()

    def end_turn(self) -> None:
        """Go on where an answer was awaited, apply what is pending, and answer the publishers."""
        self.hold()
        self._catch_up()
        self.run_dirty()
        while self.replicate() or self.resuming:
            self._catch_up()
            self.run_dirty()
        self.flush()
        answers, self.answers = self.answers, {}
        for confirms in answers:
            confirms.flush()


def routing_view(properties: Properties) -> dict[str, object]:
    """Return what exchanges may look at beside the routing key."""
    timestamp = properties.raw.get("timestamp")
    return {
        "headers": properties.headers,
        "message_id": properties.text("message_id"),
        "correlation_id": properties.text("correlation_id"),
        "timestamp": None if timestamp is None else int.from_bytes(timestamp, "big"),
    }


__all__ = ["Broker", "Depends", "routing_view"]
