"""A consumer group on one of its nodes.

The commands of its consumers go, in batches, into the log that all these nodes share, and take effect when
the nodes apply them: see quorum_queue.consumer_groups.replica. The leader coordinates: it watches the
streams, and proposes which messages to hand to which member. The consumer's node reads the messages that the
consumer was given; see group_reading.

A consumer's node reports up to which message the consumer was sent its messages: from time to time, and
before the consumer leaves. So messages that no consumer can have seen come to the next consumer as new, and
all others come as redelivered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from amqp_server.streams.consumer_groups import snapshots
from amqp_server.streams.consumer_groups.coordinator import Coordinator, all_caught_up
from amqp_server.streams.consumer_groups.dead_letters import Letters
from amqp_server.streams.consumer_groups.deliveries import Deliveries
from amqp_server.streams.consumer_groups.effects import GroupEffects
from amqp_server.streams.consumer_groups.entry_steps import EntrySteps
from amqp_server.streams.consumer_groups.member_reading import Due, Taker
from amqp_server.streams.consumer_groups.options import RETRY_MS, GroupOptions
from amqp_server.streams.consumer_groups.requests import InUse, Requests
from amqp_server.streams.consumer_groups.stuck_members import MemberWatch
from amqp_server.streams.consumer_groups.takers import ClientTaker, GetTaker
from quorum_queue.cluster import read_index
from quorum_queue.cluster.kept_entries import NOTHING_KEPT, KeptEntries
from quorum_queue.cluster.queues.deferred_host import DeferredHost
from quorum_queue.cluster.replica_group import Foresee
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.consumer_groups.entries import (
    CodecError,
    Command,
    decode_entry,
    encode_batch,
    encode_entry,
)
from quorum_queue.consumer_groups.partition import UNKNOWN
from quorum_queue.consumer_groups.parts import GroupParts
from quorum_queue.errors import Unreadable
from quorum_queue.host import Key, answer_publishes
from quorum_queue.local_host import NodeServices
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.machine import ENQUEUES
from quorum_queue.machine.seal import Sealed
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import Got, Hosted, Refused
from quorum_queue.raft.members import Members

logger = logging.getLogger("mqd.groups")

#: Commands in one batch.
_COMMANDS_MAX = 1_000
#: Commands of clients.
_ASKED = frozenset(
    {
        *ENQUEUES,
        "attach",
        "detach",
        "discard",
        "get",
        "pause",
        "prefetch",
        "purge",
        "return",
        "settle",
        "tick",
        "touch",
        "window",
    }
)


class ConsumerGroupMemberHost(GroupEffects):
    """The host of a consumer group, and the state machine of its Raft group."""

    single = False
    takes_parts = True
    foresee: Foresee | None = None
    counts_bytes = False
    wants_ids = False
    holds_dead_letters = False

    def __init__(
        self,
        queue: Hosted,
        queue_id: int,
        services: NodeServices,
        options: GroupOptions,
        settings: Settings,
        replicas: Replicas,
        *,
        streams: Callable[[], list[Any]],
        has_heard_of: Callable[[int], bool],
    ) -> None:
        """`streams` returns the current partitions of the topology; `has_heard_of` returns whether the
        topology of this node has reached a queue's declaration.
        """
        super().__init__(queue, services.turn)
        self.queue_id = queue_id
        self.options = options
        self.replicas = replicas
        self.replica = self.new_replica()
        self._services = services
        self._settings = settings
        self._streams = streams
        self.own = replicas.own_in(queue_id)
        self._ahead_ms = -(1 << 62)
        self.entry = EntrySteps(self, services.turn)
        self._requests = Requests(self)
        #: Barriers of clients that declared the group, and wait until its first offsets are known.
        self._beginning: list[Callable[..., None]] = []
        self._deliveries = Deliveries(self)
        #: When a stream is tried again; below zero if not.
        self._retry_at = -1
        #: The leader looks for consumers of lost nodes after it has applied this entry.
        self._gone_after = 0
        # State that only the leader has.
        self._coordinator = Coordinator(self, streams, has_heard_of)
        self._letters = Letters(self, services)
        self.watch = MemberWatch(self)

    def contain(self, sink: Any, call: Callable[..., None], *arguments: Any) -> None:
        """Call; an error fails the client's connection, not the group."""
        self._turn.contain(sink, call, *arguments)

    # -- commands --------------------------------------------------------------------------------------------

    def apply_pending(self) -> None:
        if self.ended:
            self._refuse_pending()
            return
        self._deliveries.read_on()
        self._letters.go_on()
        if self.group.is_leader:
            self._coordinator.coordinate()
            if self.replica.dead:
                self._letters.bury()
            self.watch.look_out()
        if self.pending or self._pending_barriers:
            self._send_pending()

    @property
    def _has_begun(self) -> bool:
        """Return whether the group's position in each stream is known: `next` means the time of the
        declaration.
        """
        replica = self.replica
        return replica.known and all(each.cursor != UNKNOWN for each in replica.group.partitions.values())

    def barrier(self, done: Callable[..., None]) -> None:
        if self.ended or self._has_begun:
            super().barrier(done)
        else:
            self._beginning.append(done)

    def catch_up(self, done: Callable[..., None]) -> None:
        """The counts of a group depend on its own log, and on the ends of its streams."""

        def caught_up(refused: Refused | None = None) -> None:
            if refused is not None:
                done(refused)
            else:
                all_caught_up(list(self.stream_hosts().values()), done)

        read_index.catch_up(self, caught_up)

    @property
    def parts(self) -> GroupParts:
        return self.replica.parts

    def seal(self, condition: int, done: Callable[[Sealed | Refused], None]) -> None:
        self._seal_in_order(condition, done)

    def _passed(self, number: int) -> None:
        if not self.replica.sealed:
            # Otherwise clients are answered when the group is deleted.
            super()._passed(number)

    def _sent(self, number: int, *, applied: bool) -> None:
        super()._sent(number, applied=applied and not self.replica.sealed)

    def _send_pending(self) -> None:
        node, incarnation = self.own
        group = self.group
        commands: list[Command] = []
        for command in self._outgoing():
            if command[0] == "settle":
                _settle(commands, command)
            else:
                commands += self._in_log(command)
        for start in range(0, len(commands), _COMMANDS_MAX):
            part = commands[start : start + _COMMANDS_MAX]
            number = group.next_number
            self._requests.sent(number, part)
            group.submit(encode_batch(node, incarnation, number, part))
        last = group.next_number - 1
        self._coordinator.sent(last)
        self._sent(last, applied=not group.flights)

    def _in_log(self, command: Command) -> list[Command]:
        """Return the commands for the log."""
        verb = command[0]
        if verb == "pend" and command[2][0] in ENQUEUES:
            # It is refused, as a publish would be: a part of the transaction is missing.
            return []
        if verb in ENQUEUES:
            # The default exchange routed this publish here; other routes to a group are refused earlier.
            token = command[2]
            if token is not None:
                publish = self._publishes.pop(token, None)
                if publish is not None:
                    publish.origin.refused(publish.first, publish.last)
            return []
        if verb == "attach":
            consumer = command[1]
            self._deliveries.takers[consumer.key] = ClientTaker(self, consumer)
            return [("attach", consumer.key, _prefetch(consumer), consumer.next_id)]
        if verb == "get":
            consumer = command[1]
            takers = self._deliveries.takers
            takers[consumer.key] = GetTaker(self, consumer, takers.get(consumer.key))
            return [("get", consumer.key, consumer.next_id)]
        if verb in ("window", "prefetch"):
            consumer = self._consumers.get(command[1])
            if consumer is None:
                return []
            if verb == "window":
                limit = command[2]
                consumer.limit(consumer.own_prefetch, limit if isinstance(limit, int) else limit.limit)
            else:
                consumer.limit(command[2], consumer.window_limit)
            return [("limit", consumer.key, _prefetch(consumer))]
        if verb == "pause":
            self._deliveries.pause(command[1], paused=command[2])
            return []
        if verb == "detach":
            return self._detach(command[1], gone=command[2])
        if verb in ("tick", "touch"):
            return []
        if verb == "purge" and len(command) == 2:
            self._requests.look_for_ends("purge", command[1])
            return []
        if verb == "seal" and len(command) == 3:
            self._requests.look_for_ends(*command)
            return []
        return [command]

    def _detach(self, key: Key, *, gone: bool) -> list[Command]:
        """Stop sending to this consumer: messages that were not sent to it go to others as new."""
        deliveries = self._deliveries
        deliveries.takers.pop(key, None)
        next_id = self._next_ids.get(key)
        commands: list[Command] = []
        if next_id is not None:
            unsent = [(low, stop) for low, stop in deliveries.unsent(key) if low < next_id]
            commands = [("unsent", key, low, stop - 1) for low, stop in unsent]
            commands.append(("sent", key, next_id))
        deliveries.drop(key)
        if gone:
            self._next_ids.pop(key, None)
            # No client waits for its gets any more.
            self.asking.getting.pop(key, None)
        commands.append(("detach", key, gone))
        return commands

    def _outgoing(self) -> list[Command]:
        # The base class forgets the next ids of consumers that leave, which must be reported first.
        known = dict(self._next_ids) if any(each[0] == "detach" for each in self.pending) else {}
        commands = super()._outgoing()
        for key, next_id in known.items():
            self._next_ids.setdefault(key, next_id)
        return commands

    def sent(self, taker: Taker, due: Due, count: int) -> None:
        """Note that a client was sent this number of messages of a due."""
        taker.sent[due.stream_id] = next_id = due.first + count
        if next_id > self._next_ids.get(taker.key, 0):
            self._next_ids[taker.key] = next_id

    def got(self, key: Key, got: Got) -> None:
        self._got(key, got)

    @property
    def partition_count(self) -> int:
        return len(self.replica.group.partitions)

    def partitions_changed(self) -> None:
        """A stream was declared or deleted, or a super stream has got partitions."""
        self._coordinator.stale = True
        self.schedule()

    def move(
        self,
        places: Iterable[tuple[int, int]],
        done: Callable[[Refused | InUse | None], None],
        *,
        if_unused: bool = False,
    ) -> None:
        """Continue at these offsets of streams. The group forgets the messages that members hold of these
        streams.

        `if_unused`: not if the group has members then. From versions.SEALS on.
        """
        self._requests.move(self._token(), places, done, if_unused=if_unused)

    # -- the state machine of the group ----------------------------------------------------------------------

    @property
    def awaited(self) -> bool:
        return bool(self._sinks)

    def encode(self, batches: list[bytes]) -> bytes:
        self._keep_time()
        return encode_entry(self._services.clock.monotonic_ms() + self.time_ahead_ms, batches)

    def apply(self, index: int, data: bytes) -> Callable[[], object] | None:
        return self.entry.apply(self._applying(index, data), partial(self._applied, index))

    def _applying(self, index: int, data: bytes) -> Iterator[None]:
        try:
            now_ms, found = decode_entry(data)
            yield from self.replica.applying(index, now_ms, found, self.own)
        except CodecError as error:
            raise Unreadable(
                f"entry {index} of its log can't be read by this version of mqd: {error}"
            ) from None

    def _applied(self, index: int) -> None:
        self._keep_time()
        self._perform(self.replica.effects)
        if self._gone_after:
            self._look_for_gone(index)

    def passed(self, index: int) -> None:
        self.replica.applied = index
        if self._gone_after:
            self._look_for_gone(index)

    def passed_over(self, index: int) -> None:
        self.replica.passed_over(index)
        logger.error("%s: entry %d is given up, and its contents are lost", self.title, index)

    def entries_applied(self) -> None:
        if self.ended:
            return
        if self._beginning and self._has_begun:
            beginning, self._beginning = self._beginning, []
            for done in beginning:
                self.barrier(done)
        group = self.replica.group
        if not self.group.is_leader:
            group.freed.clear()
            group.roomy.clear()
        leads = self.group.is_leader and self._coordinator.has_to_lead()
        if self._deliveries.handed or self.pending or leads:
            self.schedule()

    @property
    def keeps(self) -> KeptEntries:
        return NOTHING_KEPT

    def covered(self, applied: int) -> int:
        return applied

    def snapshot_in_parts(self, then: Callable[[bytes], None]) -> None:
        snapshots.encode_in_parts(self, self._turn, then)

    @property
    def fills_itself(self) -> bool:
        return False

    def fill(self, state: bytes, peer: str, wanted: Callable[[], bool], then: Callable[[], None]) -> None:
        snapshots.read_in_parts(self, self._turn, state, wanted, then)

    def come_to(self, state: bytes, then: Callable[[], None]) -> None:
        then()

    def begin(self) -> None:
        """Called when the group is open."""
        if self.own != self.replicas.own:
            # The member failed or left before: the first batch of this incarnation ends the earlier one.
            self.group.submit(encode_batch(*self.own, self.group.next_number, []))

    # -- time ------------------------------------------------------------------------------------------------

    def overdue(self) -> bool:
        """True if the turn has lasted long enough."""
        return self._turn.overdue()

    def retry(self) -> None:
        if not self.ended and self._retry_at < 0:
            self._retry_at = self._services.clock.monotonic_ms() + RETRY_MS
            self._services.timers.wake(self, self._retry_at)

    def wake(self) -> None:
        if self.ended:
            return
        now, timers = self._services.clock.monotonic_ms(), self._services.timers
        if 0 <= self._retry_at <= now:
            self._retry_at = -1
            self._coordinator.stale = True
            self.schedule()
        self.watch.wake(now)
        for at_ms in (self._retry_at, self.watch.at_ms):
            if at_ms >= 0:
                timers.wake(self, at_ms)

    def wake_at(self, at_ms: int) -> None:
        self._services.timers.wake(self, at_ms)

    # -- leaders and members ---------------------------------------------------------------------------------

    def leader_changed(self) -> None:
        self._coordinator.begin_anew()
        self.watch.begin_anew()
        self._letters.close()
        if self.group.is_leader:
            self._coordinator.stale = True
            self.gone_members()
            self.schedule()
            if len(self.replica.parts):
                self._services.undecided.has_parts(self)
            if self.replica.sealed:
                # The last leader may have failed before it could delete the group.
                self.queue.sealed()
        else:
            self._coordinator.close()

    def members_changed(self, members: Members) -> None:
        if self.group.is_leader:
            self.gone_members()
        elif self.group.flights:
            # This node may have been no member for a while; the leader has taken no batches from it then.
            self.group.sent_to = ("", 0)
            self.replicas.touch(self.group)

    def gone_members(self) -> None:
        """As the leader, propose to remove consumers of nodes that are down or no members, and of earlier
        incarnations.

        Their earlier commands may still be in progress, and are applied first.
        """
        self._gone_after = max(1, self.group.core.last_index + len(self.group.inbox))
        self._look_for_gone(self.replica.applied)

    def let_go(self, node: str, incarnation: int) -> None:
        """A node's member of this group has failed: remove its consumers, up to this start of the node."""
        if any(name == node and start <= incarnation for name, start in self.replica.nodes()):
            self.submit(("node_down", node, incarnation))

    def _look_for_gone(self, applied: int) -> None:
        group = self.group
        on_the_way = bool(group.inbox) or applied < group.core.last_index
        if not group.is_leader or (applied < self._gone_after and on_the_way):
            return
        self._gone_after = 0
        incarnations, members = self.replicas.incarnations, group.core.members.everyone()
        for node, incarnation in self.replica.nodes():
            known = incarnations.get(node, incarnation)
            if known is None or known > incarnation or node not in members:
                self.submit(("node_down", node, incarnation))

    # -- the end ---------------------------------------------------------------------------------------------

    def hand_over(self, to: DeferredHost, *, failed: bool = False) -> None:
        self._pending_barriers += self._beginning
        self._beginning = []
        # Commands of this member itself are not handed over.
        self.pending = [command for command in map(_as_asked, self.pending) if command[0] in _ASKED]
        self.entry.stop()
        self.replicas.leave(self.queue_id)
        super().hand_over(to, failed=failed)

    def _release(self) -> None:
        self.entry.stop()
        self._deliveries.close()
        self._letters.close()
        self._coordinator.close()
        if self.ended == "failed":
            self.replicas.stop(self.group)
        else:
            self.replicas.close(self.group)

    def _refuse_askers(self, why: Refused) -> None:
        super()._refuse_askers(why)
        beginning, self._beginning = self._beginning, []
        for passed in beginning:
            passed(why)
        self._requests.refuse_moves(why)

    def _refuse_pending(self) -> None:
        pending, self.pending = self.pending, []
        answer_publishes(pending, gone=False)

    def closed(self) -> None:
        # These objects refer to each other: break the reference cycles.
        self.entry.let_go()
        snapshots.drop(self, self._turn, self.replica)
        del self.group
        self._deliveries.let_go()
        self._coordinator.let_go()
        self._letters.let_go()
        self._requests.let_go()
        self.watch.let_go()


def _as_asked(command: Command) -> Command:
    return command[:2] if command[0] == "purge" else command


def _settle(commands: list[Command], command: Command) -> None:
    """Add an ack. Consecutive acks are merged."""
    _, key, low, high = command
    if commands:
        last = commands[-1]
        if last[0] == "settle" and last[1] == key and last[3] == low - 1:
            commands[-1] = ("settle", key, last[2], high)
            return
    commands.append(command)


def _prefetch(consumer: Consumer) -> int:
    """Return how many messages a consumer may hold."""
    window = consumer.window
    if window is not None and not consumer.window_limit:
        consumer.limit(consumer.own_prefetch, getattr(window, "limit", 0))
    return 0 if consumer.no_ack else consumer.prefetch


__all__ = ["ConsumerGroupMemberHost"]
