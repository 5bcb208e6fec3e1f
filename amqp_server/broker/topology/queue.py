"""A queue in the topology: its name, its declaration, and the host that runs its machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from amqp_server.broker.declared.arguments import QueueArguments
from amqp_server.broker.declared.operations import DeleteQueue
from amqp_server.broker.declared.policy import NO_POLICY, AppliedPolicies, joined
from amqp_server.broker.declared.queue_types import QueueType
from amqp_server.broker.declared.records import QueueRecord
from amqp_server.broker.declared.settings import effective_settings, machine_settings
from amqp_server.broker.topology.event_headers import of_queue
from amqp_server.broker.topology.events import MESSAGE_EVENT
from amqp_server.broker.traffic import Traffic
from amqp_server.errors import ResourceLocked
from quorum_queue.empty import NO_DICT
from quorum_queue.machine.record.states import (
    REASONS,
    STATES,
)
from quorum_queue.machine.seal import EXPIRED, SEALED, UNUSED, Sealed
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.versions import SEALS
from quorum_queue.ports import Host, Recipient, Refused

if TYPE_CHECKING:
    from amqp_server.broker.topology.vhost import VHost

#: Without a majority, time after which the end of a queue is tried again, ms.
END_RETRY_MS: Final = 1_000


class Taking(Protocol):
    """What messages are handed to: a target, or the part that a transaction has in a queue."""

    @property
    def delays(self) -> bool:
        """True if messages may wait in it before they are delivered first."""

    @property
    def host(self) -> Recipient:
        """The current host: looked up for each hand-over, because queues move."""


class Target(Taking, Protocol):
    """Target of a route: a queue, or a client that waits for direct replies."""

    name: str
    #: True if it was deleted; another queue of its name may have been declared since.
    deleted: bool
    #: Number of messages that were handed to it.
    published: int
    #: The header that names a message's group; empty if it has no message groups.
    group_header: str


class Queue:
    """One declared queue. See Target, and quorum_queue.ports.Hosted."""

    __slots__ = (
        "_timer_set",
        "arguments",
        "auto_delete",
        "delays",
        "deleted",
        "durable",
        "effective",
        "exclusive",
        "group_header",
        "host",
        "last_used_ms",
        "marks",
        "name",
        "parsed",
        "policies",
        "published",
        "queue_id",
        "record",
        "subscriptions",
        "traffic",
        "type",
        "unknown",
        "vhost",
    )

    #: Replaced when the queue moves, and when its host fails.
    host: Host

    def __init__(
        self,
        vhost: VHost,
        record: QueueRecord,
        parsed: QueueArguments,
        arguments: Mapping[str, object],
        policies: AppliedPolicies = NO_POLICY,
    ) -> None:
        self.vhost = vhost
        self.record = record
        self.name = record.name
        self.queue_id = record.queue_id
        #: The declared arguments.
        self.parsed = parsed
        #: The policies that apply to it, and its arguments joined with them.
        self.policies = policies
        self.effective: QueueArguments = joined(parsed, policies.definition)
        self.arguments = arguments
        self.durable = record.durable
        self.auto_delete = record.auto_delete
        self.exclusive = record.exclusive
        #: The header that names a message's group; empty if the queue has no message groups.
        self.group_header = parsed.group_header
        #: True if messages may wait in it before they are delivered first.
        self.delays = parsed.delayed
        self.type: QueueType = parsed.type
        #: Slots of the delivered marks of a durable queue on this node, one for each priority level.
        self.marks: list[int] = []
        self.deleted = False
        #: True if this node has never had the queue before: neither its data nor a vote in its group.
        self.unknown = False
        #: Counts of messages that this node's clients published to it and got from it. None until a client
        #: gets a message.
        self.published = 0
        self.traffic: Traffic | None = None
        #: This node's subscriptions by their keys, in order of arrival.
        self.subscriptions: dict[Any, Any] = NO_DICT
        self.last_used_ms = 0
        #: True if a timer will check whether the lease has ended. The queue has only one timer, for any
        #: number of uses.
        self._timer_set = False

    @property
    def members(self) -> tuple[str, ...]:
        """The nodes of a replicated queue."""
        return self.record.members

    @property
    def node(self) -> str:
        """Home node of a queue that is not replicated."""
        return self.record.node

    @property
    def settings(self) -> Settings:
        """Settings of its machine."""
        config = self.vhost.parts.config
        return machine_settings(
            self.effective, self.record, config.message_status_window_ms, config.message_status_count
        )

    @property
    def declared_settings(self) -> Settings:
        """Settings of its machine without policies, and without options of this node."""
        return effective_settings(self.parsed, self.record.deduplication_producers)

    def apply_policies(self) -> None:
        """Apply changed policies."""
        parts = self.vhost.parts
        self.policies = parts.runtime.policies.of_queue(self.vhost.name, self.name, self.type)
        effective = joined(self.parsed, self.policies.definition)
        if effective != self.effective:
            self.effective = effective
            # The current timer may be too late now.
            self._timer_set = False
            parts.hosts.configure(self)
            parts.changed()

    def event_headers(self) -> dict[str, object]:
        # The node that tells of a queue has its owner.
        events, record = self.vhost.parts.events, self.record
        owner_pid = events.pid(record.owner) if events is not None and record.exclusive else ""
        return of_queue(record, self.type.name, self.arguments, owner_pid)

    def owned_by(self, session_number: int) -> bool:
        """True if this is an exclusive queue of the session with this number on this node."""
        record, replication = self.record, self.vhost.parts.replication
        return (
            record.exclusive
            and record.owner == session_number
            and record.node == replication.node
            and record.incarnation == replication.incarnation
        )

    def counted(self) -> Traffic:
        """Return the counters of its deliveries to clients of this node."""
        if self.traffic is None:
            self.traffic = Traffic()
        return self.traffic

    def used(self) -> None:
        """Restart the lease of an expiring queue."""
        if self.effective.expires_ms is not None:
            self.host.touch()

    def renew(self) -> None:
        """The host at the queue's home reports a use. See quorum_queue.ports.Hosted."""
        expires_ms = self.effective.expires_ms
        if expires_ms is not None:
            parts = self.vhost.parts
            self.last_used_ms = parts.clock.monotonic_ms()
            if not self._timer_set:
                self._timer_set = True
                parts.timers.wake(self, self.last_used_ms + expires_ms)

    def messages_changed(self, told: list[tuple[int, int, int, bytes]]) -> None:
        """See quorum_queue.ports.Hosted."""
        events = self.vhost.parts.events
        if events is None or not events.wants(MESSAGE_EVENT):
            return
        for state, reason, position, message_id in told:
            events.tell(
                f"message.{STATES[state]}",
                {
                    "message_id": message_id.decode(errors="replace"),
                    "queue": self.name,
                    "vhost": self.vhost.name,
                    "reason": REASONS[reason],
                    "position": position,
                },
                MESSAGE_EVENT,
            )

    def subscribe(self, key: Any, subscription: Any) -> None:
        """Note a subscription of this node."""
        if self.subscriptions is NO_DICT:
            self.subscriptions = {}
        self.subscriptions[key] = subscription

    def consumers_lost(self) -> None:
        """The link to the queue's home broke: cancel its consumers here, as if it had been deleted."""
        # Consumers that are not attached yet get separate answers.
        lost = [subscription for subscription in self.subscriptions.values() if subscription.attached]
        if lost:
            self.vhost.parts.lost_consumers.tell(self, lost)

    @property
    def disconnected_ms(self) -> int:
        return self.effective.disconnected_timeout_ms or 0

    def more_marks(self, count: int) -> list[int]:
        return self.vhost.parts.hosts.more_marks(self, count)

    def consumer_lost(self, key: Any) -> None:
        """A consumer here lost its place in the queue and did not get it back."""
        subscription = self.subscriptions.pop(key, None)
        if subscription is not None:
            subscription.queue_gone()

    def consumer_gone(self, left: int) -> None:
        """A consumer of any node has ended. An auto-delete queue is deleted with its last consumer."""
        self.renew()
        if self.auto_delete and not left:
            self.end_unused()

    def end_unused(self) -> None:
        """Delete an auto-delete queue that has had consumers, if it still has none."""
        if self.deleted or self.host.consumer_count or self.record.protected_from_deletion:
            return
        parts = self.vhost.parts
        if parts.replication.reaches_majority:
            self.host.seal(UNUSED, _nothing)
        else:
            # Nobody could delete the sealed queue, and it would serve nobody.
            parts.timers.wake(_UnusedEnd(self), parts.clock.monotonic_ms() + END_RETRY_MS)

    def wake(self) -> None:
        """Delete the queue if it was not used for the time of its lease (x-expires, or a policy)."""
        self._timer_set = False
        expires_ms = self.effective.expires_ms
        if self.deleted or expires_ms is None or self.host.consumer_count:
            return
        if self.record.protected_from_deletion:
            # Its lease begins anew when the protection is lifted.
            return
        parts = self.vhost.parts
        decides = parts.hosts.leader(self) if self.members else self.node
        if parts.replication.clustered and decides != parts.replication.node:
            # Only the leader, or the home, knows of all uses. This node was the leader once, or has heard of
            # a change of the queue.
            return
        ends_at = self.last_used_ms + expires_ms
        now_ms = parts.clock.monotonic_ms()
        if now_ms >= ends_at and parts.replication.reaches_majority:
            self.host.seal(EXPIRED, self._has_expired)
        else:
            # Without a majority nobody could delete the sealed queue.
            self._timer_set = True
            parts.timers.wake(self, ends_at if now_ms < ends_at else now_ms + END_RETRY_MS)

    def _has_expired(self, found: Sealed | Refused) -> None:
        if not isinstance(found, Sealed) or found.outcome != SEALED:
            # A client has used it meanwhile.
            self.renew()

    def host_failed(self, error: Exception) -> None:
        """The queue's host raised: stop the queue on this node, and restart it from its stored data."""
        self.vhost.parts.failures.add(self, error)

    def failed(self, error: Exception) -> None:
        """The queue's host could not be made. See amqp_server.turn.Unit."""
        self.host_failed(error)

    def catch_up(self, done: Callable[..., None]) -> None:
        """The same as `barrier`, for everything that clients of any node have had answers to. In a cluster
        without a majority `done` is called after a time, with what this node knows.
        """
        self.barrier(done, everywhere=True)

    def barrier(self, done: Callable[..., None], *, again: bool = True, everywhere: bool = False) -> None:
        """Call `done` when all commands submitted before are visible here, also if the queue moves or fails
        meanwhile.

        In that case their outcome is unknown: a caller that must know it asks the host itself. `again`: ask
        once more if the asked node is down or no longer has the queue; another node may serve it.
        """
        host = self.host

        def answered(refused: Refused | None = None) -> None:
            if refused is None:
                done()
            elif self.deleted:
                done(refused)
            elif self.host is not host:
                self.barrier(done, everywhere=everywhere)
            elif again:
                self.barrier(done, again=False, everywhere=everywhere)
            else:
                done(refused)

        (host.catch_up if everywhere else host.barrier)(answered)

    def seal(self, condition: int, done: Callable[[Sealed | Refused], None], *, again: bool = True) -> None:
        """Seal the queue if it meets the condition, also if it moves meanwhile; see
        quorum_queue.machine.seal. A sealed queue is deleted by its home or leader; `done` is called then.
        """
        host = self.host

        def gone(found: Sealed, *why: Refused) -> None:
            if self.deleted or not why:
                done(found)
            else:
                answered(why[0])

        def answered(found: Sealed | Refused) -> None:
            if isinstance(found, Sealed):
                if found.outcome == SEALED and not self.deleted:
                    # Not before clients of other nodes have what they took: the leader waits for that.
                    host.barrier(partial(gone, found))
                else:
                    done(found)
            elif self.deleted:
                done(Sealed(SEALED, 0))
            elif self.host is not host:
                self.seal(condition, done)
            elif again:
                self.seal(condition, done, again=False)
            else:
                done(found)

        knows_seals = self.vhost.parts.replication.version >= SEALS
        (host.seal if knows_seals else host.seal_here)(condition, answered)

    def sealed(self) -> None:
        self.delete()

    def delete(self) -> None:
        """Delete the queue; no caller waits for the result."""
        if not self.deleted:
            self.vhost.parts.propose(self.deletion)

    def check_protection(self) -> None:
        """Raise ResourceLocked, as RabbitMQ does, if an operator has protected the queue from deletion."""
        if self.record.protected_from_deletion:
            raise ResourceLocked(f"Cannot delete protected queue '{self.name}' in vhost '{self.vhost.name}'.")

    @property
    def deletion(self) -> DeleteQueue:
        return DeleteQueue(self.vhost.name, self.name, self.queue_id)


class _UnusedEnd:
    """The end of an auto-delete queue, when there is a majority. See amqp_server.broker.timers.Wakeable."""

    __slots__ = ("_queue",)

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def wake(self) -> None:
        self._queue.end_unused()

    def failed(self, error: Exception) -> None:
        self._queue.failed(error)


def _nothing(found: Sealed | Refused) -> None: ...
