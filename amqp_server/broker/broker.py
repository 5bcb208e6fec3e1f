"""The broker of one node, without I/O: the state that all connections share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from amqp_server.broker.access.access import Access
from amqp_server.broker.alarms import Alarms
from amqp_server.broker.declared.operations import DeleteVhost, Operation, PutVhost, ReplaceHash
from amqp_server.broker.declared.vhosts import Vhosts
from amqp_server.broker.in_parts.changed_streams import ChangedStreams
from amqp_server.broker.in_parts.closed_sessions import ClosedSessions
from amqp_server.broker.in_parts.deletion_in_parts import DELETIONS, Dismantling, parts_of
from amqp_server.broker.in_parts.firehose import Firehose
from amqp_server.broker.in_parts.host_parts import HostParts
from amqp_server.broker.in_parts.lost_consumers import LostConsumers
from amqp_server.broker.in_parts.orphaned_queues import OrphanedQueues
from amqp_server.broker.memo import MemoBudget
from amqp_server.broker.message_status import Statuses
from amqp_server.broker.metadata import Metadata
from amqp_server.broker.object_counts import ObjectCounts
from amqp_server.broker.open_transactions import OpenTransactions
from amqp_server.broker.questions.cancels import Cancels
from amqp_server.broker.recovery.failures import Failures
from amqp_server.broker.recovery.stored_queue_time import TimeNotes
from amqp_server.broker.reply import Replies
from amqp_server.broker.timers import Timers
from amqp_server.broker.topology.events import INTERNAL, Events
from amqp_server.broker.topology.operator_settings import Runtime
from amqp_server.broker.topology.parts import BrokerParts, Hosts
from amqp_server.broker.topology.queue import Queue
from amqp_server.broker.topology.replication import Done, LocalReplication, Replication
from amqp_server.broker.topology.sessions import BrokerSession, Sessions
from amqp_server.broker.topology.topology import Topology
from amqp_server.broker.topology.vhost import VHost, vhost_of
from amqp_server.broker.transactions import LocalTransactions, Transactions
from amqp_server.config import Config
from amqp_server.logs import LineLimit
from amqp_server.turn import Turn
from quorum_queue.clock import Clock
from quorum_queue.deleted_host import DeletedHost
from quorum_queue.local_host import NodeServices
from quorum_queue.steps import Steps


class Broker:
    """Vhosts and their topology, users and permissions, sessions and alarms."""

    def __init__(
        self,
        config: Config,
        metadata: Metadata,
        clock: Clock,
        *,
        turn: Turn,
        timers: Timers,
        alarms: Alarms,
        services: NodeServices,
        hosts: Hosts,
        replication: Replication | None = None,
    ) -> None:
        """`replication` is None for a node without a cluster."""
        self.config = config
        self.metadata = metadata
        self.clock = clock
        self.turn = turn
        self.timers = timers
        self.alarms = alarms
        self.services = services
        self.hosts = hosts
        self.firehose = Firehose(turn)
        self.host_parts = HostParts(turn)
        self.lost_consumers = LostConsumers(turn)
        self.changed_streams = ChangedStreams(turn)
        self.orphaned_queues = OrphanedQueues(turn, self.propose)
        #: Generation of routes: raised by each change that may affect where a message goes, or whether it may
        #: go there.
        self.generation = 0
        #: A consumer has this timeout, ms; see amqp_server.connection.ack_timeout.
        self.timeout_noted: Callable[[int], None] = _nothing
        self.access = Access(config, metadata, clock, self.changed)
        self.access.permissions.changed_in = self._permissions_changed
        self.vhost_records = Vhosts(metadata, vhosts_max=config.vhosts_max, changed=self.changed)
        self.vhosts: dict[str, VHost] = {}
        #: None if events are turned off.
        self.events: Events | None = None
        if config.event_exchange_vhost:
            self.events = Events(
                turn,
                clock,
                self.vhosts,
                node=config.node,
                node_name=config.node_name,
                vhost=config.event_exchange_vhost,
                waiting_max=config.event_waiting_max,
                frame_max=config.frame_max_bytes,
            )
        self.counts = ObjectCounts(config.declared_budget_bytes)
        self.sessions = Sessions()
        self.runtime = Runtime(config, metadata, turn, self.vhosts, self.sessions.counted)
        self.log_limit = LineLimit(config.log_lines_max)
        self.memo = MemoBudget(config.memo_bytes_max, self._forget_memos)
        self.replies = Replies()
        local = LocalReplication(config.node)
        self.replication: Replication = replication or local
        self.open_transactions = OpenTransactions(
            config.node, config.tx_timeout_ms, clock, timers, turn.overdue
        )
        #: Set in a cluster.
        self.transactions: Transactions = LocalTransactions(
            metadata, config.tx_producers_max, self.open_transactions.shut_out
        )
        self.failures = Failures(config, clock, timers, hosts)
        self.time_notes = TimeNotes(metadata, services.queue_time, clock, timers, services.commits)
        self.closed_sessions = ClosedSessions(turn, self.sessions)
        self.parts = BrokerParts(
            config=config,
            metadata=metadata,
            clock=clock,
            turn=turn,
            timers=timers,
            access=self.access,
            counts=self.counts,
            vhost_records=self.vhost_records,
            vhosts=self.vhosts,
            events=self.events,
            runtime=self.runtime,
            replication=self.replication,
            hosts=hosts,
            host_parts=self.host_parts,
            changed_streams=self.changed_streams,
            lost_consumers=self.lost_consumers,
            failures=self.failures,
            deleted_host=DeletedHost(turn),
            propose=self.propose,
            changed=self.changed,
            generation=self._generation,
            exclusive_declared=self.exclusive_declared,
            exclusive_gone=self.exclusive_gone,
        )
        self.statuses = Statuses(self.parts, self.replies)
        self.cancels = Cancels(self.parts, self.replies)
        self.topology = Topology(self.parts, self.sessions, self.closed_sessions)
        local.topology = self.topology
        #: Why publishers are blocked here and on other nodes, as the sessions know it.
        self._blocked: tuple[str, dict[str, str]] = "", {}
        self._forgettings = Steps(turn, self._forget_each_memo, "memos could not be cleared")
        self._tellings = Steps(turn, self._tell_of_alarm, "clients could not be told of an alarm")
        alarms.subscribe(lambda: turn.run(self._tell_sessions))

    def changed(self) -> None:
        """The topology or a permission has changed: memos that depend on it are invalid."""
        self.generation += 1

    def _generation(self) -> int:
        return self.generation

    def _permissions_changed(self, vhost: str) -> None:
        """Members of consumer groups may no longer be permitted to read the groups' streams."""
        found = self.vhosts.get(vhost)
        if found is not None and found.groups:
            self.turn.run(self.changed_streams.tell, list(found.groups.values()))

    def _tell_sessions(self) -> None:
        """An alarm was raised or cleared."""
        changes = self.alarms.take_changes()
        if self.events is not None:
            self.events.alarms_changed(changes)
        blocked = self.alarms.reason, dict(self.alarms.elsewhere)
        if blocked == self._blocked:
            return
        self._blocked = blocked
        if self.alarms.active:
            self._forget_memos()
        self._tellings.begin()

    def _tell_of_alarm(self) -> Iterator[None]:
        # A session may continue with everything that the alarm has held back.
        for session in self.sessions:
            if self.sessions.get(session.number) is session:
                self.turn.contain(session, session.alarm_changed)
                yield

    def _forget_memos(self) -> None:
        if not self._forgettings.under_way:
            self._forgettings.begin()

    def _forget_each_memo(self) -> Iterator[None]:
        for session in self.sessions:
            if self.sessions.get(session.number) is session:
                session.forget_memos()
                yield

    # -- changes ---------------------------------------------------------------------------------------------

    def propose(self, operation: Operation, done: Done | None = None, user: str = INTERNAL) -> None:
        """Propose a change that was checked here, on behalf of this user; see replication.Replication."""
        propose = self.replication.propose
        if self.events is not None:
            propose = partial(self._propose_for, user)
        if isinstance(operation, DELETIONS):
            parts = parts_of(self.vhosts, operation)
            if parts is not None:
                if isinstance(operation, DeleteVhost):
                    self.closed_sessions.of_vhost(operation.name)
                Dismantling(self.turn, propose, parts, operation, done).begin()
                return
        propose(operation, done)

    def _propose_for(self, user: str, operation: Operation, done: Done | None = None) -> None:
        replication = self.replication
        before, replication.user = replication.user, user
        try:
            replication.propose(operation, done)
        finally:
            replication.user = before

    def close_sessions(self, sessions: Iterable[BrokerSession], reason: str) -> None:
        """Close these connections, as many in each turn as it has time for."""
        self.closed_sessions.close(sessions, reason)

    def exclusive_declared(self, queue: Queue) -> None:
        """An exclusive queue was declared. Delete it if its session has ended meanwhile."""
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

    # -- vhosts ----------------------------------------------------------------------------------------------

    def vhost(self, name: str) -> VHost:
        """Return the topology of a vhost that exists."""
        return vhost_of(self.parts, name)

    def add_vhost(
        self, name: str, description: str = "", tags: tuple[str, ...] = (), default_queue_type: str = ""
    ) -> bool:
        """Make a vhost, or change its description; return whether it is new. Raises VhostRefused."""
        record = self.vhost_records.prepare(name, description, tags, default_queue_type)
        new = name not in self.vhost_records
        self.propose(PutVhost(record))
        return new

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost with everything in it and close its connections. Raises NoSuchVhost."""
        self.vhost_records.require(name)
        self.propose(DeleteVhost(name))

    def replace_hash(self, user: str, before: str, after: str) -> None:
        """A user has logged in with a hash from RabbitMQ: replace it by a hash of mqd."""
        if self.topology.takes_parameters:
            self.turn.run(self.propose, ReplaceHash(user, before, after))

    def all_queues(self) -> Iterable[Queue]:
        for vhost in self.vhosts.values():
            yield from vhost.queues.values()


__all__ = ["Broker"]


def _nothing(timeout_ms: int) -> None: ...
