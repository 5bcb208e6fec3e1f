"""A quorum queue on one of its members.

The commands of this node's clients go, in batches, into the log that all members share, and take effect here
when this member applies them: then this node confirms to its own publishers and delivers to its own
consumers, from its own copy of the bodies. The leader also does the work that only one member may do: it
sends dead letters (see dead_letters), and proposes entries that depend on a clock or on the state of the
other nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from quorum_queue.cluster import read_index
from quorum_queue.cluster.kept_entries import KeptEntries
from quorum_queue.cluster.queues import contents, dead_letters
from quorum_queue.cluster.queues.body_prefetch import DeliveryWarming, LetterWarming, Peeking, spans
from quorum_queue.cluster.queues.deferred_host import DeferredHost, cut, without_larger
from quorum_queue.cluster.queues.last_messages import LastMessages
from quorum_queue.cluster.queues.parts import UNKNOWN_PART, Prepared, applied_parts, when_all_have_it
from quorum_queue.cluster.replica_group import Foresee, Group
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.cluster.snapshots import state_of
from quorum_queue.cluster.snapshots.ranges import joined, parted
from quorum_queue.empty import NO_LIST
from quorum_queue.errors import Unreadable
from quorum_queue.held_letters import HeldLetters
from quorum_queue.host import DELETED, Key, Peeked
from quorum_queue.local_host import NodeServices
from quorum_queue.machine import replicated, versions
from quorum_queue.machine.attributes import LEADER, PROMISED
from quorum_queue.machine.bodies import Bodies
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.machine import ENQUEUES
from quorum_queue.machine.parts import Parts
from quorum_queue.machine.peeking import Look
from quorum_queue.machine.replicated import Applied, QueueReplica
from quorum_queue.machine.run import Run
from quorum_queue.machine.seal import SEALED, Sealed
from quorum_queue.machine.settings import Settings
from quorum_queue.message_status import answers
from quorum_queue.ports import ConsumerState, Hosted, Order, Refused
from quorum_queue.raft.members import Members
from quorum_queue.unsent_bytes import LARGE_BYTES

logger = logging.getLogger("mqd.quorum_queue")

#: Answer to a client whose seal may have been applied or not.
UNKNOWN = Refused("it is not known whether the queue met the condition; try again")
#: How long a sealed queue waits, ms, until all members have delivered what was taken before the seal.
LAST_DELIVERIES_MS = 1_000
#: Messages that one step of a search looks at: here each body is found in its entry.
SEARCHED_MAX = 250


class GroupHost(DeferredHost):
    """The host of a quorum queue, and the state machine of its group."""

    __slots__ = (
        "_ahead_ms",
        "_asked",
        "_configured",
        "_gone_after",
        "_gone_at",
        "_own",
        "_released",
        "_seal_known",
        "_wake_at",
        "_warming",
        "dead_letter_parts",
        "dead_letters_waiting",
        "dead_letters_warming",
        "deliveries_waiting",
        "group",
        "held_letters",
        "queue_id",
        "read",
        "replica",
        "replicas",
        "services",
    )

    #: For mypyc; see `closed`.
    __deletable__ = ("group", "_warming", "dead_letters_warming")

    group: Group
    single = False
    takes_parts = True
    peeks = True
    foresee: Foresee | None = None

    def __init__(
        self,
        queue: Hosted,
        queue_id: int,
        settings: Settings,
        services: NodeServices,
        replicas: Replicas,
        *,
        declared: Settings | None = None,
    ) -> None:
        """`declared` are the settings with which the machine began when the queue was declared, if `settings`
        differ: a member that reads the log from its beginning must begin with them.
        """
        super().__init__(queue, services.turn)
        replicas.finish_messages(queue_id)
        self.queue_id = queue_id
        self.services = services
        self.replicas = replicas
        self.replica = QueueReplica(settings if declared is None else declared)
        #: A snapshot of another node that was read in parts, and its replica.
        self.read: tuple[bytes, QueueReplica] | None = None
        #: The wanted settings of the queue; the machine has the present ones.
        self._configured = settings
        self._own = replicas.own_in(queue_id)
        #: How far the group's time is ahead of the monotonic clock, at least.
        self._ahead_ms = -(1 << 62)
        #: By the monotonic clock.
        self._wake_at: int | None = None
        #: Attaches, gets and purges under way: batch, verb, key or token.
        self._asked: list[tuple[int, str, Any]] = NO_LIST
        #: Deliveries that wait for a body that is being read or is lost, and all later ones, with the
        #: locations of their bodies.
        self.deliveries_waiting: list[tuple[Consumer, Run, int, contents.Places]] = []
        self._warming = DeliveryWarming(self)
        self._released: list[range] = NO_LIST
        #: The leader looks for consumers of nodes that are gone once it has applied this entry.
        self._gone_after = 0
        #: It looks again then, by the monotonic clock; 0: consumers of no node that is down wait for that.
        self._gone_at = 0
        #: As the leader of a sealed queue: members with a later entry of the log know that it is sealed; or
        #: 0.
        self._seal_known = 0
        #: Dead letters on their way to their targets, by position.
        self.held_letters: HeldLetters | None = None
        #: The remaining steps of a letter with many targets, to be taken before the next letter.
        self.dead_letter_parts: Iterator[bool] | None = None
        #: Dead letters that wait for a body, and all later ones.
        self.dead_letters_waiting: list[dead_letters.Waiting] = NO_LIST
        self.dead_letters_warming = LetterWarming(self)

    # -- quorum_queue.ports.Host -----------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        return self.replica.machine.settings

    @property
    def takes_kinds(self) -> bool:
        # Its machine has this version before it takes them; see `_send_pending`.
        return self.replicas.version() >= versions.KINDS

    @property
    def ready_count(self) -> int:
        return self.replica.machine.ready.count

    @property
    def ready_bytes(self) -> int:
        machine = self.replica.machine
        return machine.ready.bytes + machine.delayed.bytes

    @property
    def delayed_count(self) -> int:
        return self.replica.machine.delayed.count

    def counts(self) -> tuple[int, int, int, int]:
        machine = self.replica.machine
        return machine.consumers.count, machine.ready.count, machine.unacked_count, machine.delayed.count

    def order(self) -> Order:
        now_ms = self.services.clock.monotonic_ms() + self._time_ahead_ms
        return Order.of(self.replica.machine, now_ms)

    def oldest_age_ms(self) -> int | None:
        return self.replica.machine.oldest_age_ms(self.services.clock.monotonic_ms() + self._time_ahead_ms)

    def came_ms(self, position: int) -> int | None:
        return self.replica.machine.arrivals.surely_came(position)

    @property
    def unacked_count(self) -> int:
        return self.replica.machine.unacked_count

    @property
    def unacked_bytes(self) -> int:
        return self.replica.machine.unacked_bytes

    @property
    def consumer_count(self) -> int:
        return self.replica.machine.consumers.count

    @property
    def parts(self) -> Parts:
        return self.replica.machine.parts

    def consumers(self) -> Iterator[ConsumerState]:
        consumers = self.replica.machine.consumers
        active = consumers.active if consumers.single_active else None
        for consumer in list(consumers.attached()):
            yield ConsumerState(
                consumer.key,
                consumer.no_ack,
                consumer.exclusive,
                consumer.own_prefetch,
                consumer.priority,
                not consumers.single_active or consumer is active,
            )

    def _send_pending(self) -> None:
        node, incarnation = self._own
        group = self.group
        self.pending = without_larger(self.pending, self.replicas.message_bytes_max)
        version = self.replicas.version()
        if self.pending and self.replica.machine.version < version:
            # A new queue behaves as the present version does from its first message on.
            self.pending.insert(0, ("version", version))
        paused = self.settings.publishes_paused or self._configured.publishes_paused
        promises = version >= versions.PAUSES and not paused
        for commands in cut(self._outgoing(), self.replicas.options.batch_bytes):
            number, early = group.next_number, False
            for command in commands:
                verb = command[0]
                if verb == "attach" or verb == "get":
                    self._note_asked(number, verb, command[1].key)
                elif verb == "purge" or verb == "seal" or verb == "prepare":
                    self._note_asked(number, verb, command[1])
                elif verb in ENQUEUES and command[2] is not None:
                    publish = self._publishes[command[2]]
                    publish.batch = number
                    if promises and publish.level == LEADER:
                        publish.level = PROMISED
                    early = early or publish.level == self._early_level
            batch = b"".join(replicated.encode_batch(node, incarnation, number, commands, promises=promises))
            group.submit(batch, self._synced if early else None)
        self._sent(group.next_number - 1, applied=not group.flights)

    def configure(self, settings: Settings) -> None:
        self._configured = settings
        self._configure()
        if self.group.is_leader:
            # It may expire now, or earlier.
            self.queue.renew()

    def _configure(self) -> None:
        """As the leader, propose the settings, so that they hold for all members from the same entry on."""
        if not self.group.is_leader:
            return
        present = self.settings
        # The machine keeps these as declared.
        wanted = replace(
            self._configured,
            priority_max=present.priority_max,
            single_active_consumer=present.single_active_consumer,
        )
        if wanted != present:
            self.submit(("configure", wanted))

    def _when_all(self, done: Prepared) -> Prepared:
        return when_all_have_it(self, done)

    def seal(self, condition: int, done: Callable[[Sealed | Refused], None]) -> None:
        if self.replica.machine.version >= versions.SEALS:
            self._seal_in_order(condition, done)
        else:
            # Members of earlier versions do not know seals: look at least at everything that the log has now.
            self.submit(("tick",))
            self.barrier(partial(self._seal_behind, condition, done))

    def _seal_behind(
        self, condition: int, done: Callable[[Sealed | Refused], None], refused: Refused | None = None
    ) -> None:
        """The log has come so far; it may have come to a version with seals."""
        if refused is None and self.replica.machine.version >= versions.SEALS:
            self._seal_in_order(condition, done)
        else:
            self.seal_here(condition, done)

    def catch_up(self, done: Callable[..., None]) -> None:
        read_index.catch_up(self, done)

    @property
    def records(self) -> bool:
        # Only entries of this version have ids.
        return self.settings.records and self.replicas.version() >= versions.RECORD

    def message_status(self, message_id: bytes, done: answers.Done) -> None:
        def known() -> None:
            clock = self.services.clock
            self._keep_time()
            now_ms = clock.monotonic_ms() + self._time_ahead_ms
            done(answers.answer(self.replica.machine, message_id, now_ms, clock.wall_ms()))

        self._when_known(known, done)

    def ms_until(self, time_ms: int) -> int:
        return time_ms - self.services.clock.monotonic_ms() - self._time_ahead_ms

    def peek(self, look: Look, done: Peeked) -> None:
        if look.search is not None:
            look = look._replace(most=min(look.most, SEARCHED_MAX))
        self._when_known(Peeking(self, look, done).see, done)

    def _when_known(self, then: Callable[[], None], refused: Callable[[Refused], None]) -> None:
        """Call `then` after everything that clients of any node have had answers to."""

        def passed(*why: Refused) -> None:
            if why or self.ended:
                refused(why[0] if why else Refused(self.ended_text))
            else:
                then()

        def caught_up(known: bool) -> None:
            if known or self.ended:
                self.barrier(passed)
            else:
                refused(answers.NO_MAJORITY)

        if self.ended:
            passed()
        else:
            read_index.begin(self.group, caught_up)

    def touch(self) -> None:
        if self.settings.expires_ms is not None:
            self.submit(("touch",))

    def hand_over(self, to: DeferredHost, *, failed: bool = False) -> None:
        self.replicas.leave(self.queue_id)
        super().hand_over(to, failed=failed)

    def _release(self) -> None:
        if self.ended != "deleted" or not self.replica.machine.sealed:
            self.deliveries_waiting.clear()
        letters = self.dead_letters_waiting or self.dead_letter_parts is not None
        if self.ended != "failed" and (letters or self.deliveries_waiting):
            self.replicas.close(self.group, keep=True)
            LastMessages(self, dead_letters.hand_over).begin()
            return
        self.dead_letters_waiting.clear()
        self.dead_letter_parts = None
        self.replicas.bodies.drop_group(self.queue_id)
        if self.ended == "failed":
            self.replicas.stop(self.group)
        else:
            self.replicas.close(self.group)

    def _refuse_askers(self, why: Refused) -> None:
        getting = self.asking.getting
        owed = {each[0].key[2:] for each in self.deliveries_waiting if self.ended == "deleted"}
        kept = {key: getting.pop(key) for key in owed if key in getting}
        super()._refuse_askers(why)
        if kept:
            self.begin_asking().getting.update(kept)

    def when_over(self, then: Callable[[], None]) -> None:
        if self.ended == "deleted" and self.deliveries_waiting:
            self.replicas.last_messages[self.queue_id].when_over(then)
        else:
            then()

    def by_place(self) -> Iterator[tuple[Consumer, Run, int, contents.Places]]:
        """Yield the deliveries that wait, cut into parts that each lie in one entry."""
        for each in self.deliveries_waiting:
            yield from _by_place(*each)

    def deliver_last(self, consumer: Consumer, first_id: int, run: Run) -> None:
        """Deliver a message of a queue that is deleted; without its body it is lost."""
        if run.contents is None:
            self._got(consumer.key[2:], None)
        else:
            self._deliver(consumer.key[2:], consumer, run, first_id)

    def all_delivered(self) -> None:
        """The last message of a deleted queue has left."""
        if self.deliveries_waiting:
            self.deliveries_waiting.clear()
            self._refuse_askers(DELETED)

    def closed(self) -> None:
        self.services.memory.unsent.forget(self)
        # Break the cycles: only the collector would free them, and all messages with them.
        del self.group, self._warming, self.dead_letters_warming

    def begin(self) -> None:
        """The group is open."""
        if self._own != self.replicas.own:
            # The member failed or left before. The first batch of this start ends the earlier one, of which a
            # get or a consumer may still be under way: nothing here would know its messages.
            self.submit(("tick",))

    # -- levels of confirmation ------------------------------------------------------------------------------

    @property
    def _early_level(self) -> int:
        """The level of publishes that the leader may confirm: those that the log takes in any case."""
        return PROMISED if self.replicas.version() >= versions.PAUSES else LEADER

    def _synced(self, number: int) -> None:
        """The leader has this node's batches up to this one on its disk."""
        if self._may_refuse:
            # Only the log decides whether the queue has room for them.
            return
        synced: list[int] = []
        early_level = self._early_level
        for token, publish in self._publishes.items():
            if not 0 < publish.batch <= number:
                break
            if publish.level == early_level:
                synced.append(token)
        for token in synced:
            publish = self._publishes[token]
            self._confirmed(token, publish.first, publish.last)

    @property
    def _waits_for_all(self) -> bool:
        return True

    def _answer_when_all(self, origin: Any, first: int, last: int, *, refused: bool) -> None:
        self.group.when_all(self.replica.applied, origin, first, last, refused=refused)

    def _refuse_publishes(self) -> None:
        self.group.answer_unreached(confirm=self.ended == "deleted")
        super()._refuse_publishes()

    # -- the state machine of the group ----------------------------------------------------------------------

    @property
    def title(self) -> str:
        return f"queue '{self.queue.name}' in vhost '{self.queue.vhost.name}'"

    @property
    def awaited(self) -> bool:
        return bool(self._sinks)

    def encode(self, batches: list[bytes]) -> bytes:
        self._keep_time()
        now_ms = self.services.clock.monotonic_ms()
        return replicated.encode_entry(now_ms + self._time_ahead_ms, batches)

    def _keep_time(self) -> None:
        """Continue the group's time from its last entry, even if this node's queue time is behind that."""
        ahead_ms = self.replica.now_ms - self.services.clock.monotonic_ms()
        if ahead_ms > self._ahead_ms:
            self._ahead_ms = ahead_ms

    @property
    def _time_ahead_ms(self) -> int:
        return max(self._ahead_ms, self.services.queue_time.ahead_ms)

    def apply(self, index: int, data: bytes) -> None:
        try:
            entry = replicated.decode_entry(data)
        except CodecError as error:
            raise Unreadable(
                f"entry {index} of its log can't be read by this version of mqd: {error}"
            ) from None
        if entry.bodies.count:
            self.replicas.bodies.put(self.queue_id, index, entry.bodies, len(data))
        applied = self.replica.apply(index, entry, self._own)
        self._keep_time()
        record = self.replica.machine.record
        if record is not None and record.told:
            told, record.told = record.told, []
            if self.group.is_leader:
                self.queue.messages_changed(told)
        self._perform(applied, entry.bodies)

    def passed(self, index: int) -> None:
        self.replica.applied = index
        if self._gone_after:
            self._look_for_gone(index)

    def passed_over(self, index: int) -> None:
        self.replica.passed_over(index)
        logger.error("%s: entry %d is given up, and its contents are lost", self.title, index)
        self.passed(index)

    def lose_bodies(self, indexes: list[int]) -> None:
        if self.replica.machine.version < versions.LOSSES:
            logger.error("%s: cannot give up entries before all nodes run this version of mqd", self.title)
            return
        locations = self.replica.locations
        count = sum(map(locations.count_of, indexes))
        logger.error("%s: %d messages of %d entries are given up", self.title, count, len(indexes))
        for index in indexes:
            for seqs in locations.positions(index):
                self.submit(("lose", seqs[0], seqs[-1]))

    @property
    def keeps(self) -> KeptEntries:
        return self

    def covered(self, applied: int) -> int:
        return applied

    def fill(self, state: bytes, peer: str, wanted: Callable[[], bool], then: Callable[[], None]) -> None:
        state_of.read_in_parts(self, state, wanted, then)

    @property
    def fills_itself(self) -> bool:
        return False

    def snapshot_in_parts(self, then: Callable[[bytes], None]) -> None:
        state_of.encode_in_parts(self, then)

    def kept(self, low: int) -> list[range]:
        pinned = list(self.replica.locations.pinned_from(low))
        if not self._reads_later:
            return pinned
        return joined(
            [*pinned, *(range(index, index + 1) for index in self._awaited_entries() if index >= low)]
        )

    def holds(self, index: int) -> bool:
        return self.replica.locations.holds(index)

    @property
    def _reads_later(self) -> bool:
        """Return whether deliveries or dead letters wait for their bodies."""
        return bool(self.deliveries_waiting or self.dead_letters_waiting)

    def _awaited_entries(self) -> dict[int, None]:
        """The entries that deliveries and dead letters wait for. Their messages may be settled already."""
        awaited = dict.fromkeys(index for *_, places in self.deliveries_waiting for index, _ in places)
        for each in self.dead_letters_waiting:
            awaited.update(dict.fromkeys(index for index, _ in each.places))
        return awaited

    def kept_in(self, state: bytes) -> list[range]:
        return list(self._restored(state).locations.pinned_from(0))

    def released(self) -> list[range]:
        # `apply` gets them from every entry.
        released, self._released = self._released, NO_LIST
        if released and self._reads_later:
            awaited = joined(range(index, index + 1) for index in self._awaited_entries())
            released, self._released = parted(released, awaited)
        for entries in released:
            self.replicas.bodies.drop_range(self.queue_id, entries)
        return released

    def last_own_batch(self) -> int:
        return self.replica.order.number_of(*self._own)

    def load(self, state: bytes) -> None:
        """Start from this node's own snapshot. Raises Unreadable."""
        self.replica = self._restored(state)
        self._keep_time()

    def come_to(self, state: bytes, then: Callable[[], None]) -> None:
        then()

    def restore(self, state: bytes) -> None:
        """Jump to a snapshot from the leader, and deliver what the group assigned to this node's consumers
        meanwhile.

        Raises Unreadable.
        """
        before = self.replica.machine
        self.replica, self.read = self._restored(state), None
        paused = before.pauses != self.replica.machine.pauses
        refused = before.settings.may_refuse or self._may_refuse or paused
        self._keep_time()
        self.replicas.bodies.drop_group(self.queue_id)
        self.deliveries_waiting.clear()
        last_own = self.last_own_batch()
        asked = self._asked_until(last_own)
        self._catch_up_consumers(asked)
        for token, publish in list(self._publishes.items()):
            if publish.batch <= last_own:
                self._confirmed(token, publish.first, publish.last, refused=refused)
        for verb, key in asked:
            if verb == "purge":
                self._purged(key, 0)
            elif verb == "prepare":
                self.answer_prepare(key, UNKNOWN_PART)
            elif verb == "seal":
                self._answer_seal(key, Sealed(SEALED, 0) if self.replica.machine.sealed else UNKNOWN)
        for key in list(self.asking.getting):
            coming = sum(asked[1:] == ("get", key) for asked in self._asked)
            coming += sum(held[0].key[2:] == key for held in self.deliveries_waiting)
            coming += sum(command[0] == "get" and command[1].key == key for command in self.pending)
            while len(self.asking.getting.get(key, ())) > coming:
                self._got(key, None)
        self._passed(last_own)
        if self.pending:
            self._turn.schedule(self)

    def _restored(self, state: bytes) -> QueueReplica:
        """Return the replica of a snapshot, which may have been read before. Raises Unreadable."""
        if self.read is not None and self.read[0] == state:
            return self.read[1]
        try:
            return QueueReplica.restore(state)
        except CodecError as error:
            raise state_of.unreadable(error) from None

    def _catch_up_consumers(self, asked: list[tuple[str, Any]]) -> None:
        """Deliver to this node's consumers the messages that they hold by the
        snapshot and have not got yet.
        """
        by_key = self.replica.machine.consumers.by_key
        for verb, key in asked:
            held = by_key.get((*self._own, *key)) if verb == "attach" else None
            if held is not None and held.attached:
                self._attached(key, None)
            elif verb == "attach" and key in self._consumers:
                # The consumer was refused, and will be again; or it was removed since.
                self._attach_again(key, self._consumers[key])
            elif verb == "attach":
                self._attached(key, "the consumer is gone")
        on_the_way = [key for _, verb, key in self._asked if verb == "attach"]
        on_the_way += [command[1].key for command in self.pending if command[0] == "attach"]
        for key, consumer in self._consumers.items():
            held = by_key.get((*self._own, *key))
            if (held is None or not held.attached) and key not in on_the_way:
                self._attach_again(key, consumer)
        for key in self._sinks:
            # Includes cancelled consumers, and clients that get messages one by one.
            held = by_key.get((*self._own, *key))
            known = self._next_ids.get(key, 0)
            if held is not None:
                for first, run in zip(held.checkout.starts, held.checkout.runs, strict=True):
                    if first >= known:
                        copy = run.every(0, 1)
                        self.deliveries_waiting.append((held, copy, first, self.replica.find(copy.seqs)))
        self.deliver_waiting()

    def _passed(self, number: int) -> None:
        if not self.replica.machine.sealed:
            # Otherwise clients are answered when the queue is deleted.
            super()._passed(number)

    def _sent(self, number: int, *, applied: bool) -> None:
        super()._sent(number, applied=applied and not self.replica.machine.sealed)

    def _note_asked(self, number: int, verb: str, what: Any) -> None:
        if self._asked is NO_LIST:
            self._asked = []
        self._asked.append((number, verb, what))

    def _asked_until(self, last_own: int) -> list[tuple[str, Any]]:
        """Take the requests of batches up to this one."""
        found: list[tuple[str, Any]] = []
        while self._asked and self._asked[0][0] <= last_own:
            found.append(self._asked.pop(0)[1:])
        return found

    @property
    def _may_refuse(self) -> bool:
        """True if the queue may have refused messages, because it was full or paused."""
        return self.settings.may_refuse or self._configured.publishes_paused

    def leader_changed(self) -> None:
        self._seal_known = 0
        if not self.group.is_leader:
            return
        machine = self.replica.machine
        dead_letters.begin_to_lead(self)
        dead_letters.send_held(self)
        if machine.due_ms is not None:
            self.wake_at(self._due_ms(machine.due_ms))
        self.queue.renew()
        self.gone_members()
        self._configure()
        self._delete_sealed()
        if len(machine.parts):
            self.services.undecided.has_parts(self)
        if machine.ready.count and machine.consumers.count:
            # The last leader may have failed before it could propose the next tick.
            self.submit(("tick",))

    def _delete_sealed(self) -> None:
        """As the leader, delete the queue if it is sealed. The last leader may have failed before that.

        The topology's log may reach a member before the end of the queue's log does, and clients of that
        member may still have to get messages that they took before the seal. So the deletion begins when all
        members in reach have an entry that tells them how far the log is committed.
        """
        if self.replica.machine.sealed and not self._seal_known:
            self._seal_known = self.group.core.last_index
            self.submit(("tick",))
            self.wake_at(self.services.clock.monotonic_ms() + LAST_DELIVERIES_MS)

    def _tell_all_of_seal(self, applied: int) -> None:
        if applied > self._seal_known:
            self._seal_known = 0
            self.group.when_all(applied, _Deletion(self.queue), 1, 1)

    def members_changed(self, members: Members) -> None:
        if self.group.is_leader:
            self.gone_members()
        elif self.group.flights:
            # This node may have been no member for a while; in that time the leader took nothing from it.
            self.group.sent_to = ("", 0)
            self.replicas.touch(self.group)

    # -- effects ---------------------------------------------------------------------------------------------

    def _perform(self, applied: Applied, bodies: Bodies) -> None:
        number = applied.batches[-1] if applied.batches else 0
        if applied.configured:
            # Other settings may be wanted meanwhile.
            self._configure()
        if applied.missed:
            self._missed(applied.missed)
        if self._asked and number:
            refused = {key[2:]: reason for key, reason in applied.attach_refused}
            for verb, key in self._asked_until(number):
                if verb == "attach":
                    self._attached(key, refused.get(key))
        if applied.deliveries:
            find = self.replica.find
            for consumer, run, first_id in applied.deliveries:
                self.deliveries_waiting.append((consumer, run, first_id, find(run.seqs)))
        if applied.refused:
            self._answer_each(applied)
        else:
            for token, first, last in applied.confirmed:
                self._confirmed(token, first, last)
        for key in applied.got_nothing:
            self._got(key[2:], None)
        for token, count in applied.purged:
            self._purged(token, count)
        applied_parts(self, applied, self.services.undecided)
        for token, found in applied.seals:
            self._answer_seal(token, found)
        if applied.consumers_gone:
            self._consumers_gone(dict.fromkeys(applied.consumers_gone))
        if applied.released:
            self._released = self._released + applied.released if self._released else applied.released
        if applied.dead_letters:
            dead_letters.send_applied(self, applied)
        if self.group.is_leader:
            self._lead(applied)
        if number:
            self._passed(number)
        if self.pending:
            self._turn.schedule(self)

    def _missed(self, batches: range) -> None:
        """The commands of this node's clients in these batches are lost: answer them, or attach consumers
        again.
        """
        for token, publish in list(self._publishes.items()):
            if publish.batch in batches:
                self._confirmed(token, publish.first, publish.last, refused=True)
        for verb, key in self._asked_until(batches[-1]):
            if verb == "purge":
                self._purged(key, 0)
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

    def _consumers_gone(self, gone: dict[Key, None]) -> None:
        """Drop these consumers' undelivered messages, which others get; only those that need no ack stay
        theirs.
        """
        held, self.deliveries_waiting = self.deliveries_waiting, []
        for each in held:
            if each[0].no_ack or each[0].key not in gone:
                self.deliveries_waiting.append(each)
            else:
                self._got(each[0].key[2:], None)
        for key in gone:
            self._returned[key[2:]] = self._next_ids.get(key[2:], 0)
            attached = self._consumers.get(key[2:])
            if attached is not None:
                self._attach_again(key[2:], attached)

    def _answer_each(self, applied: Applied) -> None:
        """Answer for the messages of each publish in their order."""
        answers = [(*answer, False) for answer in applied.confirmed]
        answers += [(*answer, True) for answer in applied.refused]
        for token, first, last, refused in sorted(answers):
            self._confirmed(token, first, last, refused=refused)

    def _lead(self, applied: Applied) -> None:
        if applied.more:
            self.pending.append(("tick",))
        if applied.wake_at is not None:
            self.wake_at(self._due_ms(applied.wake_at))
        if applied.used:
            self.queue.renew()
        if self._seal_known:
            self._tell_all_of_seal(applied.index)
        if applied.sealed:
            self._delete_sealed()
        if self._gone_after:
            self._look_for_gone(applied.index)

    def _attach_again(self, key: Key, consumer: Consumer) -> None:
        """Attach a consumer again: the group considered this node down and requeued its messages, but the
        consumer still exists.
        """
        consumer.next_id = self._returned[key] = self._next_ids.get(key, 0)
        for held, run, first_id, _ in self.deliveries_waiting:
            if held.key[2:] == key:
                # It gets these messages first.
                consumer.next_id = first_id + len(run.seqs)
        self.submit(("attach", consumer))

    def _due_ms(self, at_ms: int) -> int:
        """Convert a time of the group to the monotonic clock."""
        return at_ms - self._time_ahead_ms

    def wake_at(self, at_ms: int) -> None:
        """Be woken at this time of the monotonic clock, or before it."""
        if self._wake_at is None or at_ms < self._wake_at:
            self._wake_at = at_ms
            self.services.timers.wake(self, at_ms)

    def wake(self) -> None:
        """A timer of the machine is due, or a dead letter is to be sent again."""
        self._wake_at = None
        if self.ended or not self.group.is_leader:
            return
        dead_letters.send_held(self)
        if self._gone_at and self.services.clock.monotonic_ms() >= self._gone_at:
            self.gone_members()
        if self.replica.machine.sealed:
            # A member is slow.
            self.queue.sealed()
        self.submit(("tick",))

    # -- bodies ----------------------------------------------------------------------------------------------

    def send_letters(self) -> None:
        dead_letters.send_waiting(self)

    def entries_applied(self) -> None:
        if self.read is not None and self.group.receiving is None:
            # It was given up.
            self.read = None
        if self.deliveries_waiting:
            self.deliver_waiting()

    def deliver_waiting(self) -> None:
        if self.ended:
            return
        if self.group.behind:
            # A node that was unreachable first learns what happened to its consumers meanwhile.
            return
        unsent = self.services.memory.unsent
        while self.deliveries_waiting:
            consumer, run, first_id, places = self.deliveries_waiting[0]
            if run.size > LARGE_BYTES and unsent.full:
                unsent.wait(self, partial(self._turn.contain, self, self.deliver_waiting))
                return
            try:
                found = contents.find(self, places, self.deliver_waiting, self._warming.waits)
            except contents.BodyGone:
                del self.deliveries_waiting[0]
                if len(places) > 1:
                    self.deliveries_waiting[:0] = _by_place(consumer, run, first_id, places)
                else:
                    self._got(consumer.key[2:], None)
                continue
            if found is None:
                return
            del self.deliveries_waiting[0]
            run.contents = found
            self._deliver(consumer.key[2:], consumer, run, first_id)
        if self._warming.given:
            self._warming.given = {}
            self._read_ahead()
        if self.pending:
            self._turn.schedule(self)

    def _read_ahead(self) -> None:
        """Let the disk read the next bodies while these are delivered."""
        ready = self.replica.machine.ready
        if ready.count and self.replica.machine.consumers.count:
            find = self.replica.find
            runs = ready.paged_out(0, self.replicas.options.read_ahead_bytes)
            ahead = dict.fromkeys(index for run in runs for index, _ in find(run.seqs))
            self.replicas.store.warm(self.queue_id, spans(ahead), _nothing)

    # -- nodes -----------------------------------------------------------------------------------------------

    def gone_members(self) -> None:
        """As the leader, propose the end of consumers of nodes that are down or no members, and of earlier
        starts.

        Their earlier commands may still be on their way into the log or through it, and are applied first.
        """
        # Waiting batches become at most as many entries.
        self._gone_after = max(1, self.group.core.last_index + len(self.group.inbox))
        self._look_for_gone(self.replica.applied)

    def let_go(self, node: str, incarnation: int) -> None:
        """A node's member of this group has failed: remove its consumers, up to this start of the node."""
        if any(name == node and start <= incarnation for name, start in self.replica.members()):
            self.submit(("node_down", node, incarnation))

    def _look_for_gone(self, applied: int) -> None:
        group = self.group
        on_the_way = bool(group.inbox) or applied < group.core.last_index
        if not group.is_leader or (applied < self._gone_after and on_the_way):
            return
        self._gone_after = self._gone_at = 0
        incarnations, members = self.replicas.incarnations, group.core.members.everyone()
        for node, incarnation in self.replica.members():
            known = incarnations.get(node, incarnation)
            if known is None and node in members and self._may_come_back(node):
                continue
            if known is None or known > incarnation or node not in members:
                self.submit(("node_down", node, incarnation))

    def _may_come_back(self, node: str) -> bool:
        """True if the consumers of an unreachable node keep their messages for now; then look again later."""
        disconnected_ms = self.queue.disconnected_ms
        if not disconnected_ms:
            return False
        now_ms = self.services.clock.monotonic_ms()
        until_ms = self.replicas.down_since.setdefault(node, now_ms) + disconnected_ms
        if until_ms <= now_ms:
            return False
        self._gone_at = until_ms if not self._gone_at else min(self._gone_at, until_ms)
        self.wake_at(until_ms)
        return True


class _Deletion:
    """Deletes a sealed queue; waits like a publisher."""

    def __init__(self, queue: Hosted) -> None:
        self._queue = queue

    def confirmed(self, first: int, last: int) -> None:
        self._queue.sealed()

    def refused(self, first: int, last: int) -> None:
        """This node does not lead any more: another leader may have it deleted already."""
        self._queue.sealed()

    def gone(self, first: int, last: int) -> None:
        self._queue.sealed()


def _nothing() -> None: ...


def _by_place(
    consumer: Consumer, run: Run, first_id: int, places: contents.Places
) -> list[tuple[Consumer, Run, int, contents.Places]]:
    """Cut a run into parts that each lie in one entry."""
    parts: list[tuple[Consumer, Run, int, contents.Places]] = []
    for place in places:
        count = len(place[1])
        part = run if count == len(run.seqs) else run.take(count)
        parts.append((consumer, part, first_id, [place]))
        first_id += count
    return parts
