"""The effects of a consumer group's log on this node's clients, when entries are applied or a snapshot
replaces them.
"""

from __future__ import annotations

import logging

from amqp_server.streams.consumer_groups import snapshots
from amqp_server.streams.consumer_groups.coordinator import Coordinator
from amqp_server.streams.consumer_groups.dead_letters import Letters
from amqp_server.streams.consumer_groups.entry_steps import EntrySteps
from amqp_server.streams.consumer_groups.requests import InUse, Requests
from amqp_server.streams.consumer_groups.stuck_members import MemberWatch
from amqp_server.streams.consumer_groups.view import GroupView
from quorum_queue.cluster.queues import events
from quorum_queue.cluster.queues.guests import Guest
from quorum_queue.cluster.queues.member_host import UNKNOWN
from quorum_queue.cluster.queues.parts import UNKNOWN_PART, applied_parts
from quorum_queue.cluster.snapshots.state_of import unreadable
from quorum_queue.consumer_groups.entries import CodecError
from quorum_queue.consumer_groups.replica import Applied, GroupReplica
from quorum_queue.host import Key
from quorum_queue.local_host import NodeServices
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.seal import SEALED, Sealed
from quorum_queue.ports import Refused

logger = logging.getLogger("mqd.groups")

_MOVED_UNKNOWN = Refused("it is not known whether the group was moved; try again")


class GroupEffects(GroupView):
    """The part of the group's host that performs these effects. See ConsumerGroupMemberHost."""

    _services: NodeServices
    _requests: Requests
    _coordinator: Coordinator
    _letters: Letters
    watch: MemberWatch
    entry: EntrySteps
    queue_id: int
    #: How far the time of the group is ahead of this node's clock.
    _ahead_ms: int
    #: A snapshot of the leader that was read, and its replica.
    read: tuple[bytes, GroupReplica] | None = None

    def schedule(self) -> None:
        """Schedule this host's work for this turn."""
        if not self.ended:
            self._turn.schedule(self)

    # -- snapshots -------------------------------------------------------------------------------------------

    def _keep_time(self) -> None:
        """Continue the group's time from its last entry, even if this node's queue time is behind that."""
        ahead_ms = self.replica.now_ms - self._services.clock.monotonic_ms()
        if ahead_ms > self._ahead_ms:
            self._ahead_ms = ahead_ms

    @property
    def time_ahead_ms(self) -> int:
        return max(self._ahead_ms, self._services.queue_time.ahead_ms)

    def last_own_batch(self) -> int:
        return self.replica.order.number_of(*self.own)

    def load(self, state: bytes) -> None:
        """Start from this node's own snapshot. Raises Unreadable."""
        self.replica = self._restored(state)
        self._keep_time()

    def new_replica(self) -> GroupReplica:
        options = self.options
        return GroupReplica(options.delivery_limit, dead_letters=options.dead_letters)

    def _restored(self, state: bytes) -> GroupReplica:
        """Return the replica of a snapshot, which may have been read before."""
        read, self.read = self.read, None
        if read is not None and read[0] == state:
            return read[1]
        options = self.options
        try:
            return GroupReplica.restore(state, options.delivery_limit, dead_letters=options.dead_letters)
        except CodecError as error:
            raise unreadable(error) from None

    def restore(self, state: bytes) -> None:
        """Jump to a snapshot from the leader, and hand out the messages that the group gave this node's
        consumers meanwhile.
        """
        self.entry.stop()
        before, self.replica = self.replica, self._restored(state)
        snapshots.drop(self, self._turn, before)
        self._keep_time()
        self._deliveries.forget_all()
        last_own = self.last_own_batch()
        group, own = self.replica.group, self.own
        asked = self._requests.until(last_own)
        on_the_way = self._requests.keys("attach")
        on_the_way += [each[1].key for each in self.pending if each[0] == "attach"]
        for verb, key in asked:
            if verb == "attach" and (*own, *key) in group.members:
                self._attached(key, None)
            elif verb == "attach" and key not in self._consumers:
                self._attached(key, "the consumer is gone")
            elif verb == "purge":
                self._purged(key, 0)
            elif verb == "move":
                self._requests.has_moved(key)
            elif verb == "move_unused":
                self._requests.has_moved(key, _MOVED_UNKNOWN)
            elif verb == "prepare":
                self.answer_prepare(key, UNKNOWN_PART)
            elif verb == "seal":
                self._answer_seal(key, Sealed(SEALED, 0) if self.replica.sealed else UNKNOWN)
        for key, consumer in list(self._consumers.items()):
            if (*own, *key) not in group.members and key not in on_the_way:
                self._attach_again(key, consumer)
        self._deliveries.restore(own)
        self._answer_getters()
        self._passed(last_own)
        self.schedule()

    def _answer_getters(self) -> None:
        """Answer the gets whose answers were in entries that a snapshot replaces."""
        own = self.own
        for key in list(self.asking.getting):
            whole = (*own, *key)
            coming = self._requests.keys("get").count(key)
            coming += sum(each.key == whole for each in self._deliveries.handed)
            coming += self.replica.getting.get(whole, (0, 0))[1]
            coming += sum(each[0] == "get" and each[1].key == key for each in self.pending)
            while len(self.asking.getting.get(key, ())) > coming:
                self._got(key, None)

    # -- effects ---------------------------------------------------------------------------------------------

    def _perform(self, applied: Applied) -> None:
        number = applied.numbers[-1] if applied.numbers else 0
        if applied.missed:
            self._missed(applied.missed)
        if number:
            self._answer(applied, number)
        for stream_id in applied.forgotten:
            self._forget(stream_id)
        for key in applied.gone:
            self._consumer_gone(key[2:])
        for key in applied.lost:
            self._consumer_lost(key[2:])
        self._deliveries.handed += applied.handed
        for key in applied.got_nothing:
            self._got(key[2:], None)
        for token, count in applied.purged:
            self._purged(token, count)
        for token in applied.moved:
            self._requests.has_moved(token)
        for token, members in applied.in_use:
            self._requests.has_moved(token, InUse(members))
        applied_parts(self, applied, self._services.undecided)
        for token, found in applied.seals:
            self._answer_seal(token, found)
        if number:
            self._passed(number)
        if applied.sealed and self.group.is_leader:
            self.queue.sealed()

    def _answer(self, applied: Applied, number: int) -> None:
        """Answer the requests in own batches up to this one, which were applied."""
        refused = {key[2:]: reason for key, reason in applied.attached}
        for verb, key in self._requests.until(number):
            if verb == "attach":
                if refused.get(key) is not None:
                    self._deliveries.takers.pop(key, None)
                self._attached(key, refused.get(key))
        self._coordinator.applied(number)
        self.watch.applied(number, self._services.clock.monotonic_ms())

    def _missed(self, batches: range) -> None:
        """The commands of this node's clients in these batches are lost: answer the clients, or attach
        consumers again.
        """
        for verb, key in self._requests.until(batches[-1]):
            if verb == "purge":
                self._purged(key, 0)
            elif verb in ("move", "move_unused"):
                self._requests.has_moved(key, _MOVED_UNKNOWN)
            elif verb == "prepare":
                self.answer_prepare(key, UNKNOWN_PART)
            elif verb == "seal":
                self._answer_seal(key, UNKNOWN)
            elif verb == "get":
                self._got(key, None)
            elif key in self._consumers:
                self._attach_again(key, self._consumers[key])
            else:
                self._attached(key, "the consumer is gone")

    def _forget(self, stream_id: int) -> None:
        """Messages of a stream that were handed out before count as held by no consumer."""
        self._deliveries.forget(stream_id)
        self._letters.forget(stream_id)

    def _consumer_gone(self, key: Key) -> None:
        """The group treated this node as down: attach the consumer again, without messages."""
        self._deliveries.not_sent(key)
        self._returned[key] = self._next_ids.get(key, 0)
        for _ in range(len(self.asking.getting.get(key, ()))):
            self._got(key, None)
        consumer = self._consumers.get(key)
        if consumer is not None:
            self._attach_again(key, consumer)

    def _attach_again(self, key: Key, consumer: Consumer) -> None:
        consumer.next_id = self._returned[key] = self._next_ids.get(key, 0)
        self.submit(("attach", consumer))

    def _consumer_lost(self, key: Key) -> None:
        """A consumer has lost its place in the group for good: cancel it."""
        logger.warning(
            "%s: consumer '%s' has not acked for %d ms, or the stream is gone: it is cancelled",
            *(self.title, key[-2], self.options.consumer_timeout_ms),
        )
        self._deliveries.not_sent(key)
        self._deliveries.takers.pop(key, None)
        consumer = self._consumers.pop(key, None)
        if consumer is None:
            return
        sink = consumer.sink
        if isinstance(sink, Guest):
            sink.tell(events.ATTACHED, key[2:], "the consumer has lost its place in the group")
        else:
            self.queue.consumer_lost(key)


__all__ = ["GroupEffects"]
