"""Hosts of queues on this node: the machine over no log, or over the journal.

A host gathers the commands of a turn, applies them as one batch, and carries out the effects: it journals
durable messages, delivers, confirms (after the sync if something was journalled), dead-letters, and forgets
settled messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Final

from quorum_queue.clock import Clock, QueueTime
from quorum_queue.dead_lettering import DeadLettering
from quorum_queue.empty import NO_DEQUE, NO_DICT, NO_LIST
from quorum_queue.freeing import Leftover
from quorum_queue.host import DELETED, Key, QueueHost, answer_publishes
from quorum_queue.journals import parts_journal
from quorum_queue.journals.deduplication_journal import FIRST_POSITION, NameJournal
from quorum_queue.journals.notes import encode_death, encode_note, mark_of
from quorum_queue.machine import codec
from quorum_queue.machine.attributes import RANK_MAX, RANK_PLAIN, rank_of
from quorum_queue.machine.effects import Effects, Reason
from quorum_queue.machine.machine import Command, Machine, Meta
from quorum_queue.machine.order.message_groups import gathered
from quorum_queue.machine.parts import Parts
from quorum_queue.machine.positions import Positions, ranges_of
from quorum_queue.machine.record.arrivals import Arrivals
from quorum_queue.machine.record.record import MessageRecord
from quorum_queue.machine.record.states import (
    Found,
)
from quorum_queue.machine.run import Run
from quorum_queue.machine.seal import Sealed
from quorum_queue.machine.settings import Settings
from quorum_queue.memory import MemoryBudget, ReadAhead
from quorum_queue.message_status import answers
from quorum_queue.message_status import journal as status_journal
from quorum_queue.message_status.journal import StatusJournal, Stored
from quorum_queue.pages import Pages
from quorum_queue.paging import NOTHING_ASKED, RECORD_BYTES_MAX, parts_of
from quorum_queue.ports import (
    Commits,
    ConsumerState,
    DeadLetters,
    Got,
    Hosted,
    Journal,
    Marks,
    NoTransactions,
    Order,
    Refused,
    Timers,
    Turn,
    Undecided,
)

#: Most messages that expire in one batch.
EXPIRES_MAX: Final = 2_048
#: Most deliveries of one batch. Each is a run: consumers of one channel get messages one by one.
HANDS_MAX: Final = 512
#: Confirms to give: channel, first and last message.
Waiting = list[tuple[Any, int, int]]


class NodeServices:
    """Objects that all hosts of the node share."""

    __slots__ = (
        "clock",
        "commits",
        "dead_letters",
        "journal",
        "marks",
        "memory",
        "pages",
        "queue_time",
        "read_ahead",
        "spill",
        "timers",
        "turn",
        "undecided",
    )

    def __init__(
        self,
        *,
        clock: Clock,
        queue_time: QueueTime,
        turn: Turn,
        memory: MemoryBudget,
        timers: Timers,
        dead_letters: DeadLetters,
        journal: Journal,
        spill: Journal,
        commits: Commits,
        marks: Marks,
        read_ahead: ReadAhead | None = None,
    ) -> None:
        self.clock = clock
        self.queue_time = queue_time
        self.turn = turn
        self.memory = memory
        self.timers = timers
        self.dead_letters = dead_letters
        self.journal = journal
        self.spill = spill
        self.commits = commits
        self.marks = marks
        self.pages = Pages()
        self.read_ahead = read_ahead or ReadAhead()
        #: In a cluster, who decides about parts of transactions.
        self.undecided: Undecided = NoTransactions()


class LocalHost(DeadLettering):
    """Runs one queue's machine on this node."""

    shares_windows = True
    takes_parts = True
    peeks = True

    def __init__(
        self,
        queue: Hosted,
        queue_id: int,
        machine: Machine,
        services: NodeServices,
        *,
        journalled: bool,
        marks: list[int] | None = None,
    ) -> None:
        QueueHost.__init__(self, queue, services.turn)
        self.queue_id = queue_id
        self.machine = machine
        self.services = services
        self.journalled = journalled
        #: Marks' slots, one for each priority level.
        self.marks: list[int] = marks or NO_LIST
        #: The last mark in each slot: consumers that take turns are served out of order, and a mark only
        #: rises.
        self._marked: list[int] = NO_LIST
        self.resident_bytes = 0
        #: Transient messages after this position are in memory only.
        self._spilled_to = -1
        self._warming = self._handed_out = 0
        self._asked = self._next = NOTHING_ASKED
        self._at_hand = None
        self._gets_waiting = NO_LIST
        self._wake_at: int | None = None
        self._durable_seq = machine.next_seq - 1
        #: Value at the end of the last batch.
        self._consumer_count = 0
        #: The batch that is being applied, until publishers have been answered.
        self._unanswered: list[Command] = NO_LIST
        #: Messages that came alone and are not on disk yet, by position, with their publishers: see
        #: `_confirm_acked`.
        self._lone: dict[int, Waiting] = NO_DICT
        #: Batches whose publishers wait for the disk.
        self._batches_waiting = 0
        self._held_letters = None
        self._letters_waiting = NO_DEQUE
        self._letters_asked = self._letters_cold = 0
        self._letters_under_way = False
        #: Number of pending seals.
        self._seals = 0
        #: Settings to take before the next batch.
        self._wanted: Settings | None = None
        self._letter_wide = None
        dedup = machine.dedup
        self._names = (
            NameJournal(services.journal, queue_id, dedup) if journalled and dedup is not None else None
        )
        if journalled and machine.record is not None:
            self._begin_record(machine.record)
        elif machine.stale_record:
            services.journal.settle(queue_id, machine.stale_record)
        if machine.ready.count or machine.delayed.count:
            # The journal does not tell when they came.
            machine.arrivals = Arrivals.restored([], [], services.queue_time.now_ms())
        services.memory.register(self)
        if machine.dead_lettering:
            self._wake_by(services.clock.monotonic_ms())
        if len(machine.parts):
            services.undecided.has_parts(self)
            # The rest of these will not come: who sends it has been told that the node has stopped.
            self.pending += [
                ("resolve", part.transaction, False) for part in machine.parts.all() if not part.prepared
            ]
            services.turn.schedule(self)

    def _begin_record(self, record: MessageRecord) -> None:
        """Write the record to the journal from now on."""
        stored: Stored | None = record.stored
        if not record.since_ms and self.machine.next_seq > 1 and (stored is None or stored.is_empty):
            # Nobody has recorded the messages before.
            record.since_ms = self.services.queue_time.now_ms()
        record.stored = None
        record.journal = StatusJournal(self.services.journal, self.queue_id, record, stored)
        if stored is not None:
            machine = self.machine
            present = [
                (run.seqs, run.redelivered) for run in chain(machine.ready.runs(), machine.delayed.runs())
            ]
            for part in self.machine.parts.all():
                present += [(run.seqs, False) for run, _ in part.enqueued]
                present += [(run.seqs, True) for _, runs in part.settled for run in runs]
            record.recovered(present, self.services.queue_time.now_ms())

    # -- what it holds ---------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        return self.machine.settings

    # As in QueueHost, but read for each publish.

    @property
    def takes_kinds(self) -> bool:
        return True

    @property
    def counts_bytes(self) -> bool:
        return self.machine.settings.max_length_bytes is not None

    @property
    def may_refuse(self) -> bool:
        wanted = self._wanted
        return self.machine.settings.may_refuse or (wanted is not None and wanted.may_refuse)

    @property
    def wants_ids(self) -> bool:
        settings = self.machine.settings
        return (
            settings.deduplication_window_ms is not None
            or settings.message_status_window_ms is not None
            or bool(settings.group_header)
        )

    @property
    def ready_count(self) -> int:
        """Ready messages, without those of a transaction that is not complete: nobody sees a part of it."""
        machine = self.machine
        ready = machine.ready
        return ready.count - ready.count_from(machine.held_from) if machine.holds else ready.count

    @property
    def ready_bytes(self) -> int:
        return self.machine.ready.bytes + self.machine.delayed.bytes

    @property
    def delayed_count(self) -> int:
        return self.machine.delayed.count

    def counts(self) -> tuple[int, int, int, int]:
        machine = self.machine
        ready = self.ready_count if machine.holds else machine.ready.count
        return machine.consumers.count, ready, machine.unacked_count, machine.delayed.count

    def order(self) -> Order:
        return Order.of(self.machine, self.services.queue_time.now_ms())

    def ms_until(self, time_ms: int) -> int:
        return time_ms - self.services.queue_time.now_ms()

    def oldest_age_ms(self) -> int | None:
        return self.machine.oldest_age_ms(self.services.queue_time.now_ms())

    def came_ms(self, position: int) -> int | None:
        return self.machine.arrivals.surely_came(position)

    @property
    def unacked_count(self) -> int:
        return self.machine.unacked_count

    @property
    def unacked_bytes(self) -> int:
        return self.machine.unacked_bytes

    @property
    def consumer_count(self) -> int:
        return self.machine.consumers.count

    @property
    def parts(self) -> Parts:
        return self.machine.parts

    def consumers(self) -> Iterator[ConsumerState]:
        consumers = self.machine.consumers
        active = consumers.active if consumers.single_active else None
        for consumer in list(consumers.attached()):
            yield ConsumerState(
                consumer.key,
                consumer.no_ack,
                consumer.exclusive,
                consumer.prefetch,
                consumer.priority,
                active is None or active is consumer,
            )

    def can_settle(self, key: Key, low: int, high: int) -> bool:
        # A consumer that was cancelled is known until its last delivery is settled.
        return key in self.machine.consumers.by_key

    # -- commands --------------------------------------------------------------------------------------------

    def apply_pending(self) -> None:
        """Apply all pending commands as one batch and carry out the effects; then the commands that became
        pending meanwhile.
        """
        self._handed_out = 0
        if self._has_letters and self.ended != "failed":
            self._send_waiting_letters()
            if self.ended and not self._has_letters:
                self._drop_stored()
        if self._wanted is not None and not self.ended and not self.machine.holds:
            self._take_settings(self._wanted)
        while self.pending:
            if self.ended:
                self._refuse_pending()
                break
            if self.machine.sealed:
                # The queue is deleted soon: then its clients are answered.
                return
            commands, self.pending = self.pending, []
            if self._seals:
                commands = self._up_to_seal(commands)
            self._unanswered = commands
            if self._gets_waiting:
                self._forget_gets(commands)
            # Bodies on disk are read first, which may take some time: see Paging.
            effects = Effects(
                wants_enqueued=self.journalled,
                in_memory=True,
                expires_max=EXPIRES_MAX,
                hands_max=HANDS_MAX,
                wants_acked=bool(self._lone),
            )
            now_ms, held = self.services.queue_time.now_ms(), self.machine.holds > 0
            self.machine.apply(Meta(now_ms), commands, effects)
            self._perform(effects, now_ms)
            if held and not self.machine.holds:
                self._send_waiting_letters()
                if self._wanted is not None and not self.ended:
                    self._take_settings(self._wanted)
                self._unheld()
            count = self.machine.consumers.count
            if count != self._consumer_count:
                gone = count < self._consumer_count
                self._consumer_count = count
                if gone:
                    self.queue.consumer_gone(count)
            if effects.seals:
                self._answer_seals(effects)
            # Commands are pending again: a dead letter came straight back, or its targets have taken it.
        if self.ended or not self.machine.sealed:
            self._pass_all()

    def seal(self, condition: int, done: Callable[[Sealed | Refused], None]) -> None:
        if not self.ended:
            self._seals += 1
        self._seal_in_order(condition, done)

    def _up_to_seal(self, commands: list[Command]) -> list[Command]:
        """Return the commands up to the first seal; leave the others pending."""
        for index, command in enumerate(commands):
            if command[0] == "seal":
                self._seals -= 1
                self.pending = commands[index + 1 :]
                return commands[: index + 1]
        return commands

    def _answer_seals(self, effects: Effects) -> None:
        for token, found in effects.seals:
            self._answer_seal(token, found)
        if self.machine.sealed and not self.ended:
            self.queue.sealed()

    def configure(self, settings: Settings) -> None:
        # While a transaction is being committed the queue stays as it is: it must not refuse a part of it.
        self._wanted = settings
        self._turn.schedule(self)
        # It may expire now, or earlier.
        self.queue.renew()

    def _take_settings(self, settings: Settings) -> None:
        """Give the machine new settings, in a batch of their own."""
        self._wanted = None
        machine, before, record = self.machine, self.machine.dedup, self.machine.record
        effects = Effects(
            in_memory=True, expires_max=EXPIRES_MAX, hands_max=HANDS_MAX, wants_acked=bool(self._lone)
        )
        now_ms = self.services.queue_time.now_ms()
        machine.apply(Meta(now_ms), [("configure", settings)], effects)
        if machine.dedup is not before and self.journalled:
            if self._names is not None:
                self._names.end()
            self._names = None
            if machine.dedup is not None:
                # Behind all positions that were ever used: some may still lie in the journal.
                machine.dedup.next_position = FIRST_POSITION + (now_ms << 16)
                self._names = NameJournal(self.services.journal, self.queue_id, machine.dedup)
        if machine.record is not record and self.journalled:
            if record is not None and record.journal is not None:
                record.journal.end()
            if machine.record is not None:
                # Behind all positions that were ever used, as above.
                machine.record.stored = Stored(status_journal.FIRST_POSITION + (now_ms << 16))
                self._begin_record(machine.record)
        self._perform(effects, now_ms)

    def message_status(self, message_id: bytes, done: Callable[[Found | Refused], None]) -> None:
        def passed(*why: Refused) -> None:
            if why or self.ended:
                done(why[0] if why else Refused(self.ended_text))
                return
            services = self.services
            now_ms, wall_ms = services.queue_time.now_ms(), services.clock.wall_ms()
            done(answers.answer(self.machine, message_id, now_ms, wall_ms))

        self.barrier(passed)

    def hold(self) -> None:
        if not self.ended:
            self.machine.hold()

    def unhold(self) -> None:
        if not self.ended and self.machine.holds:
            self.submit(("unhold",))

    def purge(self, done: Callable[[int | Refused], None]) -> None:
        if self.ended or not self.machine.holds:
            QueueHost.purge(self, done)
        else:
            # It takes all of a transaction that is being committed: a part of it would stay otherwise.
            self._wait_unheld(done, partial(QueueHost.purge, self, done))

    def catch_up(self, done: Callable[..., None]) -> None:
        if self.ended or not self.machine.holds:
            self.barrier(done)
        else:
            # The client of a transaction may have its commit-ok already, and counts what it published.
            self._wait_unheld(done, partial(self.barrier, done))

    def _wait_unheld(self, waits: Callable[..., None], then: Callable[[], None]) -> None:
        asking = self.begin_asking()
        asking.held = [*asking.held, (waits, then)]

    def _unheld(self) -> None:
        if self.asking.held:
            held, self.asking.held = self.asking.held, NO_LIST
            for _, then in held:
                then()

    def touch(self) -> None:
        self.queue.renew()

    def barrier(self, done: Callable[..., None]) -> None:
        if self.pending or self._wanted is not None or (self.machine.sealed and not self.ended):
            self.begin_asking().barriers.append((0, done))
            self._turn.schedule(self)
        else:
            done()

    def wake(self) -> None:
        """A time that the machine asked for has come."""
        self._wake_at = None
        if not self.ended:
            if self.machine.dead_lettering:
                self._retry_dead_letters()
            self.submit(("tick",))

    def close(self) -> None:
        """The queue is deleted, with its messages."""
        self._send_waiting_letters()
        self.ended = "deleted"
        self._release()
        if not self._has_letters:
            self._drop_stored()
        # Messages that died before the deletion leave as dead letters in later turns.
        self._refuse_pending()
        self._refuse_askers(DELETED)

    def _drop_stored(self) -> None:
        self.services.pages.forget(self.queue_id)
        if self._spilled_to >= 0:
            self.services.spill.drop(self.queue_id)
        if self.journalled:
            self.services.journal.drop(self.queue_id)
            self.services.commits.request()

    def stop(self, why: Refused) -> None:
        """Stop serving, and keep the journal."""
        self.ended = "failed"
        if self._letter_wide is not None:
            self._letter_wide.end()
        self._release()
        if self._spilled_to >= 0:
            self.services.spill.drop(self.queue_id)
        unanswered, self._unanswered = self._unanswered, NO_LIST
        answer_publishes(unanswered, gone=False)
        self._refuse_pending()
        self._refuse_askers(why)

    def _release(self) -> None:
        """Release memory and other shared resources."""
        services = self.services
        services.memory.forget(self)
        services.memory.unsent.forget(self)
        services.pages.forget(self.queue_id)
        services.memory.used -= self.resident_bytes
        self.resident_bytes = 0
        Leftover(self.machine, self._turn).free()

    def _refuse_pending(self) -> None:
        """A message for a deleted queue goes to no queue, and is not refused."""
        commands, self.pending = self.pending, []
        answer_publishes(commands, gone=self.ended == "deleted")

    # -- effects ---------------------------------------------------------------------------------------------

    def _perform(self, effects: Effects, now_ms: int) -> None:
        services = self.services
        self.resident_bytes += effects.accepted_bytes
        services.memory.used += effects.accepted_bytes
        wrote = False
        if effects.enqueued:
            if self.machine.ready.strict and len(self.marks) == 1:
                self._mark_ranks(effects.enqueued)
            wrote = self._journal_enqueued(effects.enqueued)
        if effects.names and self._names is not None:
            self._names.note(now_ms, effects.names)
            wrote = True
        if self.machine.record is not None:
            wrote = self._note_record(self.machine.record) or wrote
        if self.asking.attaching:
            self._answer_attached(effects)
        if effects.deliveries:
            self._handed_out += effects.burst_bytes
            self._deliver(effects)
        if self.journalled:
            for run in effects.returned:
                wrote = self._annotate(run, 0) or wrote
            for due_ms, run in effects.delayed:
                wrote = self._annotate(run, due_ms) or wrote
        if effects.dead_letters:
            if self.journalled and self.machine.dead_lettering:
                wrote = self._annotate_deaths(effects.dead_letters) or wrote
            self._send_dead_letters(effects)
        if effects.settled:
            withdrawn = self._confirm_acked(effects.acked) if effects.acked else -1
            wrote = self._forget(effects.settled, withdrawn) or wrote
        self._unanswered = NO_LIST
        if effects.pended or effects.prepared or effects.parts_gone or effects.resolved:
            wrote = self._parts_changed(effects) or wrote
        # The first copy of a duplicate may still wait for its sync.
        self._confirm(effects, wrote or bool(effects.duplicates))
        for origin, first, last in effects.refused:
            if origin is not None:
                origin.refused(first, last)
        for key in effects.got_nothing:
            self._got(key, None)
        for token, count in effects.purged:
            self._purged(token, count)
        if effects.more:
            services.timers.wake(self, 0)
        if effects.wake_at is not None:
            self._wake_by(effects.wake_at - services.queue_time.ahead_ms)
        if services.memory.used > services.memory.budget_bytes:
            services.memory.relieve()
        if effects.gets_waiting:
            self._gets_waiting = [*self._gets_waiting, *effects.gets_waiting]
        self._read_ahead(wanted=effects.paged_out)

    def _parts_changed(self, effects: Effects) -> bool:
        """Store parts of transactions and what has become of them, and tell those who wait for that once it
        is on disk; return whether the journal was written.
        """
        services, machine = self.services, self.machine
        if self.journalled:
            # Its messages are in the journal, and without this they would count as sent after a restart.
            for transaction in dict.fromkeys(effects.pended + [each[1] for each in effects.prepared]):
                part = machine.parts.by_id.get(transaction)
                if part is not None:
                    parts_journal.note(services.journal, self.queue_id, machine.parts, part)
            parts_journal.forget(services.journal, self.queue_id, effects.parts_gone)
        if len(machine.parts):
            services.undecided.has_parts(self)
        prepared, resolved = effects.prepared, effects.resolved

        def stored() -> None:
            for token, _, outcome in prepared:
                if token is not None:
                    self.answer_prepare(token, outcome)
            if resolved:
                services.undecided.resolved(self.queue_id, resolved)

        if self.journalled:
            services.commits.request(stored)
        else:
            stored()
        return self.journalled

    def _note_record(self, record: MessageRecord) -> bool:
        """Write what has become of messages, and tell those that want to know; return whether the journal was
        written.
        """
        if record.told:
            told, record.told = record.told, []
            self.queue.messages_changed(told)
        return record.journal is not None and record.journal.note()

    def _annotate(self, run: Run, due_ms: int) -> bool:
        """Write the counts of returned messages, and until when they wait; return whether anything was
        written.
        """
        if not run.attributes.persistent:
            return False
        note = encode_note(run, due_ms)
        for span in ranges_of(run.seqs):
            self.services.journal.annotate_all(self.queue_id, span, note)
        return True

    def _annotate_deaths(self, letters: list[tuple[Run, Reason]]) -> bool:
        """Write which messages are dead letters that the queue holds: consumers must not get them again after
        a restart. Return whether anything was written.
        """
        wrote = False
        for run, reason in letters:
            seq = run.seqs.start
            if seq in self.machine.dead_lettering and run.attributes.persistent:
                self.services.journal.annotate(self.queue_id, seq, encode_death(run, reason))
                wrote = True
        return wrote

    def _forget_gets(self, commands: list[Command]) -> None:
        """Answer no gets of a channel that closes."""
        gone = [command[1] for command in commands if command[0] == "detach"]
        waiting = self._gets_waiting
        self._gets_waiting = [command for command in waiting if command[1].key not in gone]
        for command in waiting:
            if command[1].key in gone:
                self._got(command[1].key, None)

    def _answer_attached(self, effects: Effects) -> None:
        refused = dict(effects.attach_refused)
        for key in list(self.asking.attaching):
            self._attached(key, refused.get(key))

    def _deliver(self, effects: Effects) -> None:
        turn = self._turn
        asking = self.asking.getting
        getting = [each[0].key for each in effects.deliveries if each[0].key in asking] if asking else []
        deliveries = effects.deliveries
        self._load_deliveries(deliveries)
        if self.journalled:
            for consumer, run, _ in deliveries:
                # Messages before one that is picked out were not delivered.
                if run.attributes.persistent and not (run.redelivered or consumer.position):
                    self._mark(run)
        if self.machine.grouped is not None and not getting:
            deliveries = gathered(deliveries)
        for consumer, run, first_id in deliveries:
            if consumer.key in getting:
                getting.remove(consumer.key)
                self._got(consumer.key, Got(run, first_id))
            else:
                turn.deliver(consumer.sink, consumer, run, first_id)
        for key in getting:
            # The disk has lost the message for this get.
            self._got(key, None)

    def _journal_enqueued(self, runs: list[Run]) -> bool:
        """Write the persistent runs, batches of neighbours in one record."""
        batch: list[Run] = []
        size = 0
        wrote = False
        for run in runs:
            if not run.attributes.persistent:
                continue
            for part in parts_of(run):
                part_size = codec.size(part)
                if batch and (batch[-1].seqs.stop != part.seqs.start or size + part_size > RECORD_BYTES_MAX):
                    self._append(batch)
                    batch, size = [], 0
                batch.append(part)
                size += part_size
            wrote = True
        if batch:
            self._append(batch)
        return wrote

    def _append(self, batch: list[Run]) -> None:
        first, stop = batch[0].seqs.start, batch[-1].seqs.stop
        encoded = codec.encode(batch)
        self.services.journal.append(self.queue_id, first, stop - first, encoded, codec.HEAD_PARTS)

    def _mark_ranks(self, enqueued: list[Run]) -> None:
        """Get a mark for each rank before the first message of another rank than most: its record is written
        together with the message.
        """
        if all(
            rank_of(attributes.priority) == RANK_PLAIN
            for run in enqueued
            for attributes in run.table or (run.attributes,)
        ):
            return
        slots = self.queue.more_marks(RANK_MAX)
        # A mark of all messages that were here before.
        before = self.services.marks.get(self.marks[0])
        if before > 0:
            for slot in slots[1:]:
                self.services.marks.mark(slot, before)
        self.marks, self._marked = slots, NO_LIST

    def _mark(self, run: Run) -> None:
        level = mark_of(run.attributes.priority, len(self.marks), strict=self.machine.ready.strict)
        if level < 0:
            return
        if not self._marked:
            # A message that waited may be delivered first behind later ones, of which the marks know.
            self._marked = [max(0, self.services.marks.get(slot)) for slot in self.marks]
        if run.seqs[-1] > self._marked[level]:
            self._marked[level] = run.seqs[-1]
            self.services.marks.mark(self.marks[level], run.seqs[-1])

    def _confirm(self, effects: Effects, wrote: bool) -> None:
        """Confirm transient messages at once, and the others after the sync."""
        waiting: Waiting = []
        for origin, first, last, persistent in effects.confirmed:
            if origin is None:
                continue
            if self.journalled and persistent:
                waiting.append((origin, first, last))
            else:
                origin.confirmed(first, last)
        if not wrote:
            return
        if not waiting and not effects.enqueued:
            self.services.commits.request()
            return
        durable_seq = self.machine.next_seq - 1
        lone = self._seq_of_lone(effects.enqueued, waiting)
        if lone >= 0:
            if self._lone is NO_DICT:
                self._lone = {}
            self._lone[lone] = waiting
        if waiting:
            self._batches_waiting += 1

        def done() -> None:
            if lone >= 0:
                self._lone.pop(lone, None)
            self._durable_seq = max(self._durable_seq, durable_seq)
            if waiting:
                self._batches_waiting -= 1
            for origin, first, last in waiting:
                origin.confirmed(first, last)
            if self.services.memory.used > self.services.memory.budget_bytes:
                self.services.memory.relieve()

        # The message is with a consumer, and may be acked before the write begins.
        alone = (self.queue_id, lone) if lone >= 0 and effects.deliveries else None
        self.services.commits.request(done, alone=alone)

    def _seq_of_lone(self, enqueued: list[Run], waiting: Waiting) -> int:
        """Return the position of a message that came alone and is the only one of its queue that waits for
        the disk, or -1.
        """
        if (
            # Behind other messages, its confirm would be out of order and need a frame of its own.
            self._batches_waiting
            # Deduplication needs the name on disk, and the record the id, whatever happens to the message.
            or self._names is not None
            or self.machine.record is not None
            or len(waiting) != 1
            or waiting[0][1] != waiting[0][2]
            or len(enqueued) != 1
            or len(enqueued[0].seqs) != 1
        ):
            return -1
        return enqueued[0].seqs.start

    def _confirm_acked(self, acked: list[Run]) -> int:
        """Confirm messages that came alone and were acked before they were on disk: the copy on disk is not
        needed.

        So a publisher that waits for each confirm need not wait for a sync if the consumer is faster. Return
        the position of a message that was withdrawn from the journal, or -1.
        """
        withdrawn = -1
        for run in acked:
            for seq in [each for each in self._lone if each in run.seqs]:
                waiting = self._lone.pop(seq)
                for origin, first, last in waiting:
                    origin.confirmed(first, last)
                # `done` of the commit finds the list empty.
                waiting.clear()
                self._batches_waiting -= 1
                if len(run.seqs) == 1 and self.services.journal.withdraw(self.queue_id, seq):
                    withdrawn = seq
        return withdrawn

    def _forget(self, settled: list[Run], withdrawn: int = -1) -> bool:
        """Delete the entries of settled messages and give their memory back; say whether the journal was
        written.

        The journal no longer has the message at the position `withdrawn`.
        """
        services = self.services
        wrote = False
        if self.ended:
            # The queue's whole journal is deleted when the last dead letters have left.
            return False
        scattered: list[Positions] = []
        for run in settled:
            if run.in_memory:
                self.resident_bytes -= run.size
                services.memory.used -= run.size
            seqs = run.seqs
            if self.journalled and run.attributes.persistent:
                if isinstance(seqs, Positions):
                    scattered.append(seqs)
                elif withdrawn < 0 or seqs.start != withdrawn or len(seqs) > 1:
                    services.journal.settle(self.queue_id, seqs)
                    wrote = True
            elif seqs.start <= self._spilled_to:
                for span in ranges_of(seqs):
                    services.spill.settle(self.queue_id, span)
        if scattered:
            services.journal.settle_scattered(self.queue_id, sorted(chain.from_iterable(scattered)))
            wrote = True
        return wrote
