"""The queue machine: one deterministic state machine for classic and quorum queues.

Only `apply(meta, commands, effects)` changes it. Time and identity come with `meta` and the commands; effects
come back as data in `effects`. The machine uses no clock and no randomness, iterates no sets, hashes nothing,
and raises no exception for expected outcomes. Compare rabbit_fifo in RabbitMQ and ra_machine in ra.

Commands are tuples whose first field names them:

    ("enqueue", run_without_numbers, origin, first)   first is the publisher's number of its first message
    ("enqueue_letter", run, origin, first, Letter)    one dead letter; from versions.LETTERS on it is taken
                                                      once
    ("enqueue_once", run, origin, first, names)       names are bytes or None, one for each message, or a
                                                      Sequence; see dedup
    ("enqueue_known", run, origin, first, ids)        their message-ids, empty for none; names may follow; see
                                                      record. Dead letters may have an id, too
    ("attach", Consumer) ("detach", key, requeue) ("pause", key, paused) ("prefetch", key, count)
    ("window", key, Window)                           on a replica: the window's limit, 0 for none
    ("settle", key, low, high)                        done with these deliveries
    ("return", key, low, high)                        put them back to their places
    ("fail", key, low, high)                          the same, and their delivery counts as failed
    ("retry", key, low, high, wait_ms, failed)        the same, but they wait that long; from
                                                      versions.RETRY_WAITS on
    ("discard", key, low, high)                       rejected: to the dead-letter exchange
    ("get", Consumer)                                 basic.get: hand one message to this consumer; from
                                                      versions.PICKS on it may want the one at a position,
                                                      from versions.CANCELS on one that waits
    ("purge", token) ("configure", Settings) ("tick",) ("dead_lettered", low, high)
    ("touch",)                                        a client used the queue: its lease starts anew
    ("node_down", node, incarnation)                  removes its consumers, up to this start of the node
    ("version", number)                               behave as this version does from now on; see versions
    ("lose", low, high)                               no disk has the bodies at these positions any more
    ("unhold",)                                       on one node only: a transaction is complete
    ("seal", token, condition)                        if it holds, take nothing any more; see seal
    ("pend", transaction, command)                    a command of a part of a transaction; see parts
    ("prepare", token, transaction, count, queues, level)
                                                      the part is complete: it has so many commands; it takes
                                                      effect at once if the transaction has no other queues
    ("resolve", transaction, committed)               the part takes effect, or nothing of it does
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, NamedTuple

from quorum_queue.empty import NO_DICT
from quorum_queue.machine import versions
from quorum_queue.machine.attributes import PROMISED
from quorum_queue.machine.consumers import Checkout, Consumer, Consumers
from quorum_queue.machine.dedup import Dedup, Sequence
from quorum_queue.machine.effects import GONE, NO_LIMIT, Effects, Reason
from quorum_queue.machine.letters import LETTER_CHANNEL, Letter, Letters
from quorum_queue.machine.order.deadlines import NO_DEADLINES
from quorum_queue.machine.order.delayed import NO_DELAYED, Delayed, wait_ms
from quorum_queue.machine.order.group_walk import Walk
from quorum_queue.machine.order.level import Level
from quorum_queue.machine.order.message_groups import GroupedReady, without_groups
from quorum_queue.machine.parts import FULL, INCOMPLETE, LATE, PAUSED, READY, Part, Parts, TransactionId
from quorum_queue.machine.ready import Ready
from quorum_queue.machine.record.arrivals import NO_ARRIVALS, Arrivals
from quorum_queue.machine.record.record import MessageRecord
from quorum_queue.machine.record.states import (
    ABORTED,
    ACKNOWLEDGED,
    DEAD_LETTERED,
    DELIVERED,
    DROPPED,
    DUPLICATE,
    EXPIRED,
    LOST,
    MAX_LENGTH,
    MAX_LENGTH_BYTES,
    OF_DEATH,
    PENDING,
    PURGED,
    QUEUED,
    REFUSED_BYTES,
    REFUSED_LENGTH,
    REFUSED_PAUSED,
    TTL,
)
from quorum_queue.machine.run import NEVER, Attributes, Run
from quorum_queue.machine.seal import SEALED, Sealed, outcome
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots.frozen import Frozen

Command = tuple[Any, ...]
#: Verbs of commands that bring messages: (verb, run, origin, first, …).
ENQUEUES = ("enqueue", "enqueue_once", "enqueue_letter", "enqueue_known")

#: Most messages delivered in one batch; the rest waits for the next one, so that the machine notices full
#: consumers.
BURST_MESSAGES: Final = 4096
BURST_BYTES: Final = 1 << 20
#: Behind all positions.
BEHIND_ALL: Final = 1 << 62
#: The latest deadline, ms.
LATEST_MS: Final = (1 << 62) - 1


#: One for all queues, as in quorum_queue.empty.
NO_POSITIONS: Final = range(0)
#: Most messages that one entry of a log drops because they have expired or exceed a limit, beyond those that
#: it brings.
DROPS_MAX: Final = 4096
#: Most messages whose wait ends in one batch; before versions.KINDS, runs.
DUE_MAX: Final = 2048
#: Attributes as they are in a queue, by those that messages came with.
_deadlined: Final[dict[Attributes, Attributes]] = {}
_persistent: Final[dict[Attributes, Attributes]] = {}
MEMO_MAX: Final = 256


class Meta(NamedTuple):
    """Context of a batch."""

    #: Time of the batch in ms.
    now_ms: int


class Machine:
    """State of one queue."""

    __slots__ = (
        "arrivals",
        "consumers",
        "dead_lettering",
        "dedup",
        "delayed",
        "frozen",
        "grouped",
        "held_bytes",
        "held_from",
        "holds",
        "last_used_ms",
        "letters",
        "next_seq",
        "parts",
        "pauses",
        "ready",
        "record",
        "sealed",
        "settings",
        "stale_record",
        "unacked_bytes",
        "unacked_count",
        "unlimited",
        "version",
    )

    def __init__(self, settings: Settings, next_seq: int = 1, *, version: int = versions.NEWEST) -> None:
        self.settings = settings
        self.version = version
        self.next_seq = next_seq
        #: When messages came. Not part of the state that replicas compare.
        self.arrivals: Arrivals = NO_ARRIVALS
        #: The moments of which snapshots are being made.
        self.frozen = Frozen()
        strict = settings.strict and version >= versions.PRIORITIES and not settings.group_header
        self.ready = Ready(settings.priority_max, self.frozen, strict=strict)
        #: `ready`, if the queue has message groups.
        self.grouped: GroupedReady | None = None
        #: Messages that came back and wait before they are ready again.
        self.delayed: Delayed = NO_DELAYED
        self.consumers = Consumers(single_active=settings.single_active_consumer, keeper=self.frozen)
        self.unacked_count = self.unacked_bytes = 0
        #: Dead letters that wait until their targets have them, by position (at-least-once only).
        self.dead_lettering: dict[int, tuple[Run, Reason]] = NO_DICT
        #: Their bytes, as a limit counts them.
        self.held_bytes = 0
        #: Time when a client last used the queue.
        self.last_used_ms = 0
        self.dedup = _dedup(settings)
        #: What became of messages, if the queue keeps a record.
        self.record: MessageRecord | None = None
        self._configure_record(0)
        #: Positions in a journal of a record that the queue does not keep any more. Not part of the state.
        self.stale_record = NO_POSITIONS
        #: Dead letters that came from other queues.
        self.letters = Letters()
        #: True if the queue will be deleted: it takes nothing any more.
        self.sealed = False
        #: How often publishes were paused: who has missed entries sees that some may have been refused.
        self.pauses = 0
        #: Parts of transactions that are not decided.
        self.parts = Parts()
        #: Messages from this position on are not handed out, and do not die, before the transactions of this
        #: many holders are complete. Only on one node: never in a log.
        self.held_from = BEHIND_ALL
        self.holds = 0
        #: True if a limit was not enforced because of that.
        self.unlimited = False
        self._be_as_set()

    def hold(self) -> None:
        """Hand out no messages that come from now on, until "unhold"."""
        self.holds += 1
        if self.holds == 1:
            self.held_from = self.next_seq

    def _unhold(self, meta: Meta, command: Command, effects: Effects) -> None:
        self.holds -= 1
        if not self.holds:
            self.held_from = BEHIND_ALL

    def apply(self, meta: Meta, commands: Iterable[Command], effects: Effects) -> None:
        """Apply a batch of commands in order."""
        self.run(meta, commands, effects)
        self.finish(meta, effects)

    def run(self, meta: Meta, commands: Iterable[Command], effects: Effects) -> None:
        """Apply a part of a batch; `finish` ends the batch."""
        if self.record is not None:
            self.record.now_ms = meta.now_ms
        for command in commands:
            _APPLY[command[0]](self, meta, command, effects)

    def finish(self, meta: Meta, effects: Effects) -> None:
        """Hand out ready messages to consumers with room."""
        if self.record is not None:
            self.record.now_ms = meta.now_ms
        if self.delayed.count:
            self._end_waits(meta, effects)
        self._assign(meta, effects, effects.hands_max)
        if self.delayed.count or self.ready.deadlines is not NO_DEADLINES:
            self._be_woken(effects)
        if self.unlimited and (self.held_from != BEHIND_ALL or effects.more):
            # The limit holds when transactions are complete, and consumers have what they have room for.
            return
        self.unlimited = False
        if self.settings.overflow == "drop-head":
            # An earlier batch may have had too many to drop, or the wait of some is over.
            before = self.ready.count
            self._drop_over_limit(effects)
            if self.ready.count != before:
                self._expire(meta, effects)
                if self.delayed.count:
                    self._be_woken(effects)
        if self.grouped is not None and self.grouped.may_go_on:
            effects.more = True

    def _be_woken(self, effects: Effects) -> None:
        """Say when the next message may expire, or a wait ends."""
        if not self.ready.count:
            # There may be very many queues that had messages once.
            self.ready.deadlines = NO_DEADLINES
        for at_ms in (self._looks_at_ms, self.delayed.next_ms):
            if at_ms is not None and (effects.wake_at is None or at_ms < effects.wake_at):
                effects.wake_at = at_ms

    def oldest_age_ms(self, now_ms: int) -> int | None:
        """Return the age of the oldest ready message, or somewhat more (see arrivals); None if there is none.
        If nobody knows when a message came, its age is at least this one.
        """
        # Lists ask for each of very many queues.
        if self.grouped is not None:
            head = self.grouped.head()
            heads = [] if head is None else [head.seqs.start]
        else:
            heads = [
                runs.chunks[0][0].seqs.start
                for level in self.ready.levels
                for runs in (level.returned, level.main)
                if runs.chunks
            ]
        came_ms = self.arrivals.time_of(min(heads)) if heads else None
        return None if came_ms is None else max(now_ms - came_ms, 0)

    @property
    def due_ms(self) -> int | None:
        """The time when the next message may expire, or a wait ends; effects of the last batch have it,
        too.
        """
        found = self.delayed.next_ms
        for due in [self._looks_at_ms] if self.expires_exactly else self._due_heads():
            if due is not None and (found is None or due < found):
                found = due
        return found

    @property
    def _looks_at_ms(self) -> int | None:
        """The time when to look for messages that have expired behind others."""
        return self.ready.deadlines.next_ms if self.expires_exactly and self.ready.count else None

    def _due_heads(self) -> list[int | None]:
        """Return the deadlines of messages of which the next one may expire."""
        if not self.ready.strict:
            head = self.ready.head()
            return [] if head is None else [head.due]
        heads = [level.head() for level in self.ready.levels]
        return [head.due for head in heads if head is not None]

    @property
    def expires_exactly(self) -> bool:
        """True if messages expire behind others, too."""
        return self.version >= versions.EXACT_EXPIRY

    def _end_waits(self, meta: Meta, effects: Effects) -> None:
        """Make messages ready whose wait is over."""
        by_runs = self.version < versions.KINDS
        runs = self.delayed.take(meta.now_ms, DUE_MAX, by_runs=by_runs)
        if runs:
            fresh = [run for run in runs if run.waits_until]
            returned = [run for run in runs if not run.waits_until]
            for run in fresh:
                if self.frozen.active:
                    self.frozen.keep(run)
                run.waits_until = 0
            count = len(runs) if by_runs else sum([len(run.seqs) for run in runs])
            if fresh and not by_runs and self.grouped is None:
                # Those that are due one after the other lie between one another.
                fresh = list(fresh[0].join_all(fresh[1:]))
            for run in fresh:
                self.ready.insert(run, self.held_from)
            if returned:
                self._unblock(returned)
                self.ready.put_back(returned)
            if count == DUE_MAX:
                effects.more = True
            if not self.delayed.count:
                self.delayed = NO_DELAYED

    def _use(self, meta: Meta, effects: Effects) -> None:
        self.last_used_ms = meta.now_ms
        effects.used = True

    # -- publishing ------------------------------------------------------------------------------------------

    def _enqueue(self, meta: Meta, command: Command, effects: Effects) -> None:
        if self.sealed:
            return
        _, run, origin, first = command
        settings = self.settings
        if settings.publishes_paused and _may_be_refused(run, origin):
            if self.record is not None:
                self.record.noted(run.seqs, DROPPED, REFUSED_PAUSED)
            effects.refused.append((origin, first, first + len(run.seqs) - 1))
        elif settings.max_length is None and settings.max_length_bytes is None:
            self._accept(meta, run, effects)
            effects.confirmed.append((origin, first, first + len(run.seqs) - 1, run.attributes.persistent))
        elif settings.overflow == "drop-head":
            self._accept(meta, run, effects)
            effects.confirmed.append((origin, first, first + len(run.seqs) - 1, run.attributes.persistent))
            self._assign(meta, effects)
            self._drop_over_limit(effects, len(run.seqs))
        else:
            self._enqueue_or_refuse(meta, run, origin, first, effects)

    def _enqueue_once(self, meta: Meta, command: Command, effects: Effects) -> None:
        """Take the new messages, and confirm the duplicates as if they were new."""
        _, rest, origin, first, names = command
        dedup, settings = self.dedup, self.settings
        if dedup is None or self.sealed:
            self._enqueue(meta, ("enqueue", rest, origin, first), effects)
            return
        dedup.expire(meta.now_ms, effects.names, whole=self.version < versions.EXPIRY_IN_PARTS)
        # A queue that may refuse messages takes them one by one: it does not remember refused ones.
        may_refuse = settings.may_refuse
        if isinstance(names, Sequence) and not may_refuse:
            self._enqueue_sequence(meta, rest, origin, first, names, effects)
            return
        ids = names.each() if isinstance(names, Sequence) else names
        persistent = rest.attributes.persistent or settings.keeps_all
        count, start = len(ids), 0
        while start < count:
            fresh = dedup.is_new(ids[start], meta.now_ms)
            stop = start + 1
            if fresh and not may_refuse:
                self._remember(dedup, ids[start], persistent, meta, effects)
                while stop < count and dedup.is_new(ids[stop], meta.now_ms):
                    self._remember(dedup, ids[stop], persistent, meta, effects)
                    stop += 1
            part = rest if stop == count else rest.take(stop - start)
            if fresh:
                next_seq = self.next_seq
                self._enqueue(meta, ("enqueue", part, origin, first + start), effects)
                if may_refuse and self.next_seq > next_seq:
                    self._remember(dedup, ids[start], persistent, meta, effects)
            else:
                effects.duplicates += 1
                if self.record is not None:
                    self.record.noted(part.seqs, DUPLICATE, 0)
                # Confirm it like a persistent message: the first one may be persistent.
                effects.confirmed.append((origin, first + start, first + start, True))
            start = stop

    def _enqueue_sequence(
        self, meta: Meta, run: Run, origin: Any, first: int, names: Sequence, effects: Effects
    ) -> None:
        """Take a sequence of one producer: its duplicates come before its new messages."""
        dedup = self.dedup
        assert dedup is not None
        count = len(names)
        taken = dedup.taken_of(names, meta.now_ms)
        if taken:
            effects.duplicates += taken
            effects.confirmed.append((origin, first, first + taken - 1, True))
            if self.record is not None:
                self.record.noted(run.seqs[:taken], DUPLICATE, 0)
            if taken == count:
                return
            run.take(taken)
        persistent = run.attributes.persistent or self.settings.keeps_all
        self._remember(dedup, names.last, persistent, meta, effects)
        self._enqueue(meta, ("enqueue", run, origin, first + taken), effects)

    def _remember(
        self, dedup: Dedup, name: bytes | None, persistent: bool, meta: Meta, effects: Effects
    ) -> None:
        if name is not None:
            if persistent:
                effects.names.append((name, True))
            dedup.take(name, meta.now_ms, effects.names)

    def _enqueue_known(self, meta: Meta, command: Command, effects: Effects) -> None:
        """Take messages whose ids the record wants."""
        run, origin, first, ids = command[1], command[2], command[3], command[4]
        record = self.record
        if record is not None:
            record.begin(ids, run.seqs.start)
        if len(command) > 5:
            self._enqueue_once(meta, ("enqueue_once", run, origin, first, command[5]), effects)
        else:
            self._enqueue(meta, ("enqueue", run, origin, first), effects)
        if record is not None:
            record.end()

    def _enqueue_letter(self, meta: Meta, command: Command, effects: Effects) -> None:
        """Take a dead letter unless it is a duplicate; confirm it in either case."""
        run, origin, first, letter = command[1], command[2], command[3], command[4]
        # A letter may come with its id.
        plain: Command = ("enqueue", run, origin, first)
        if len(command) > 5:
            plain = ("enqueue_known", run, origin, first, command[5])
        if self.version < versions.LETTERS or self.sealed:
            _APPLY[plain[0]](self, meta, plain, effects)
        elif self.letters.is_new(letter):
            next_seq = self.next_seq
            _APPLY[plain[0]](self, meta, plain, effects)
            if self.next_seq > next_seq:
                # A letter that a full queue refuses is sent again, and must be new then.
                self.letters.take(letter)
        else:
            effects.duplicates += 1
            effects.confirmed.append((origin, first, first, True))

    def _raise_version(self, meta: Meta, command: Command, effects: Effects) -> None:
        before, self.version = self.version, max(self.version, command[1])
        if before < versions.PRIORITIES <= self.version:
            # Only quorum queues have versions. A snapshot or an entry of an older version does not tell.
            self.settings = replace(self.settings, strict=True)
        self._configure_record(meta.now_ms)
        self._be_as_set()

    def begin_again(self) -> None:
        """Be a queue of the first version: all messages are ready, in the order in which they came."""
        # Messages of different priorities lie between one another.
        runs = [part for run in (*self.ready.clear(), *self.delayed.clear()) for part in run.cut()]
        self.version = versions.FIRST
        self.ready, self.grouped = Ready(self.settings.priority_max, self.frozen), None
        self.ready.put_back([run for run in runs if run.redelivered])
        for run in sorted(runs, key=attrgetter("seqs.start")):
            if not run.redelivered:
                run.waits_until = 0
                self.ready.push(run)

    @property
    def counts_failures(self) -> bool:
        """True if failed deliveries are counted apart from returns."""
        return self.settings.strict and self.version >= versions.FAILURES

    def _be_as_set(self) -> None:
        """Order messages by their ranks, or hand them out by groups, if the queue does that from now on."""
        if self.settings.group_header:
            if self.grouped is None and self.version >= versions.MESSAGE_GROUPS:
                self._be_grouped()
        elif self.settings.strict and self.version >= versions.PRIORITIES and not self.ready.strict:
            self.ready.be_strict()

    def _be_grouped(self) -> None:
        runs = sorted(self.ready.clear(), key=attrgetter("seqs.start"))
        self.ready = self.grouped = GroupedReady(self.frozen)
        for run in runs:
            self.ready.push(run)
        for consumer in self.consumers.in_turn():
            for run in consumer.checkout.runs:
                self.grouped.hold(run, consumer)

    def _accept(self, meta: Meta, run: Run, effects: Effects) -> None:
        """Take the messages, and put them at the end, or let them wait."""
        self._number(meta, run, effects)
        if run.waits_until:
            self.delay(run.waits_until, run)
        else:
            self.ready.push(run, self.held_from)

    def _put(self, meta: Meta, run: Run) -> None:
        """Put messages that were never delivered to their positions, or let them wait."""
        if run.waits_until > meta.now_ms:
            self.delay(run.waits_until, run)
        else:
            run.waits_until = 0
            self.ready.insert(run, self.held_from)

    def _number(self, meta: Meta, run: Run, effects: Effects) -> None:
        """Number the messages, and set their deadline."""
        count = len(run.seqs)
        first = self.next_seq
        self.next_seq = first + count
        if meta.now_ms >= self.arrivals.next_ms:
            if self.arrivals is NO_ARRIVALS:
                self.arrivals = Arrivals()
            # A damaged time in an entry must not be one that no column can hold.
            self.arrivals.note(first, min(meta.now_ms, LATEST_MS))
        if effects.places is not None:
            effects.places.append((first, count, run.seqs.start))
        if self.record is not None:
            self.record.taken(first, count, run.seqs.start)
        run.seqs = range(first, first + count)
        begins_ms = meta.now_ms
        if run.waits_until:
            if self.version >= versions.DELAYS:
                begins_ms = run.waits_until = min(begins_ms + run.waits_until, LATEST_MS)
            else:
                run.waits_until = 0
        if run.kinds is not None:
            self._set_deadlines(run, begins_ms)
        else:
            attributes, ttl_ms = run.attributes, self.settings.message_ttl_ms
            if ttl_ms is not None or attributes.ttl_ms is not None:
                run.expires_at = _deadline(ttl_ms, attributes.ttl_ms, begins_ms)
            if attributes.ttl_ms is not None and self.version >= versions.COLUMNS:
                run.attributes = attributes = _without_ttl(attributes)
            if self.settings.keeps_all and not attributes.persistent:
                run.attributes = _as_persistent(attributes)
        effects.accepted_bytes += run.size
        if effects.wants_enqueued:
            effects.enqueued.append(_as_accepted(run))

    def _set_deadlines(self, run: Run, begins_ms: int) -> None:
        """Set the deadlines of messages with different attributes, whose life begins then."""
        kinds, table = run.kinds, run.table
        assert kinds is not None and table is not None
        ttl = self.settings.message_ttl_ms
        dues = [_deadline(ttl, attributes.ttl_ms, begins_ms) for attributes in table]
        if len(set(dues)) > 1:
            times = [NEVER if due is None else due for due in dues]
            run.deadlines = array("q", list(map(times.__getitem__, kinds)))
            run.expires_at = min(run.deadlines)
        else:
            run.expires_at = dues[0]
        keeps_all = self.settings.keeps_all
        without = [_without_ttl(attributes) for attributes in table]
        run.set_kinds(list(map(_as_persistent, without)) if keeps_all else without)

    def _drop_over_limit(self, effects: Effects, new: int = 0) -> None:
        """Drop what exceeds the limits: at most as many messages as are new, and as this batch may drop in
        addition.
        """
        settings, ready = self.settings, self.ready
        if self.holds:
            # Consumers will take messages before the queue is too long.
            self.unlimited = True
            return
        while ready.count:
            over = 0 if settings.max_length is None else self._kept_count() - settings.max_length
            limit = MAX_LENGTH
            if over <= 0:
                limit = MAX_LENGTH_BYTES
                if settings.max_length_bytes is None or self._kept_bytes() <= settings.max_length_bytes:
                    return
                head = ready.head()
                assert head is not None
                over = head.count_of_bytes(self._kept_bytes() - settings.max_length_bytes)
            may = new + effects.expires_left
            if may <= 0:
                effects.more = True
                return
            dropped = ready.drop_head(min(over, may))
            count = len(dropped.seqs)
            effects.expires_left -= max(count - new, 0)
            new = max(new - count, 0)
            self._discard(dropped, "maxlen", effects, limit)

    def _kept_count(self) -> int:
        """Return how many messages a limit counts: those that are ready, and those that will be again."""
        return self.ready.count + self.delayed.count

    def _kept_bytes(self) -> int:
        return self.ready.bytes + self.delayed.bytes

    def _promised(self) -> tuple[int, int]:
        """Return how many messages, and bytes of bodies, the queue keeps beside those: parts of transactions
        have them, or they are dead letters whose targets have not taken them. A queue that refuses messages
        counts them, and is not empty; if it drops its oldest messages, that would make more of them.
        """
        parts = self.parts
        if not self.dead_lettering or self.version < versions.HELD_COUNT:
            return parts.count, parts.message_bytes
        return parts.count + len(self.dead_lettering), parts.message_bytes + self.held_bytes

    def _enqueue_or_refuse(self, meta: Meta, run: Run, origin: Any, first: int, effects: Effects) -> None:
        """Take the messages that fit, one by one near the limit, and refuse the others."""
        if self.expires_exactly:
            # What has expired takes no room.
            self._expire(meta, effects)
        settings = self.settings
        limit = settings.max_length_bytes
        sizes = _counted_sizes(run) if limit is not None and self.version >= versions.FITTING else None
        rest: Run | None = run
        at = 0
        while rest is not None:
            room = refused = len(rest.seqs)
            if settings.max_length is not None:
                kept = self._kept_count() + self._promised()[0]
                room = min(room, settings.max_length - kept + self._awaited())
            reason = REFUSED_LENGTH if room <= 0 else REFUSED_BYTES
            if limit is not None and room > 0:
                if sizes is None:
                    room = min(room, 1 if self._kept_bytes() + self._promised()[1] < limit else 0)
                else:
                    left = limit - self._waiting_bytes()
                    fits = total = 0
                    while fits < room and total + sizes[at + fits] <= left:
                        total += sizes[at + fits]
                        fits += 1
                    room = fits
                    if not room:
                        # A smaller message behind them may fit.
                        refused = 1
                        while at + refused < len(sizes) and sizes[at + refused] > left:
                            refused += 1
            count = room if room > 0 else refused
            part = rest if count >= len(rest.seqs) else rest.take(count)
            at += count
            rest = None if part is rest else rest
            if room > 0:
                self._accept(meta, part, effects)
                effects.confirmed.append((origin, first, first + count - 1, part.attributes.persistent))
                self._assign(meta, effects)
            else:
                if self.record is not None:
                    lettered = settings.overflow == "reject-publish-dlx" and settings.dead_letter
                    self.record.noted(part.seqs, DEAD_LETTERED if lettered else DROPPED, reason)
                if settings.overflow == "reject-publish-dlx":
                    start = part.seqs.start
                    part.seqs = range(-start, -start - count, -1)
                    effects.dead_letters.append((part, "maxlen"))
                effects.refused.append((origin, first, first + count - 1))
            first += count

    def _waiting_bytes(self) -> int:
        """Return the bytes that a limit counts, without ready messages that are held and that consumers have
        room for.
        """
        promised = self._promised()[1]
        if self.holds and self._awaited() >= self.ready.count:
            return self.delayed.bytes + promised
        return self._kept_bytes() + promised

    def _awaited(self) -> int:
        """Return how many of the held messages consumers have room for."""
        if not self.holds:
            return 0
        takers = [] if self.settings.deliveries_paused else self.consumers.takers(1 << 30)[0]
        return min(self.ready.count, sum(taker.room() for taker in takers))

    # -- handing out -----------------------------------------------------------------------------------------

    def _assign(self, meta: Meta, effects: Effects, hands_max: int = 1 << 62) -> None:
        """Hand ready messages to consumers with room, in turns, and drop expired ones."""
        if self.grouped is not None:
            self._assign_grouped(self.grouped, meta, effects, hands_max)
            return
        ready, consumers = self.ready, self.consumers
        served = self._serves
        while ready.count:
            hands_left = hands_max - len(effects.deliveries)
            if (
                effects.burst_messages >= BURST_MESSAGES
                or effects.burst_bytes >= BURST_BYTES
                or hands_left <= 0
            ):
                effects.more = served and bool(consumers.takers(1)[0])
                break
            level = ready.head_level(self.held_from)
            if level is None:
                # All that is left belongs to transactions that are not complete.
                return
            head = level.head()
            assert head is not None
            length = len(head.seqs)
            if head.expires_at is not None and head.expires_at <= meta.now_ms:
                over = head.over(self._limit(head, meta))
                if over:
                    if not self._drop_expired(level, over, effects, whole=False):
                        return
                    continue
                length = head.before_over(self._limit(head, meta))
            if not served:
                break
            length = min(length, BURST_MESSAGES - effects.burst_messages)
            takers, one_by_one = consumers.takers(length)
            if not takers:
                break
            if head.contents is None and effects.in_memory:
                effects.paged_out = True
                break
            if effects.burst_bytes + head.size > BURST_BYTES:
                length = min(length, _fitting(head, BURST_BYTES - effects.burst_bytes))
            if len(takers) == 1 and not one_by_one:
                self._hand(takers[0], ready.pop(level, min(takers[0].room(), length)), effects)
                consumers.served(takers[0])
                continue
            turns = len(takers)
            if turns > hands_left:
                turns = length = hands_left
            share = min(min(taker.room() for taker in takers), -(-length // turns))
            if one_by_one:
                share = 1
            run = ready.pop(level, min(share * turns, length))
            count = len(run.seqs)
            if count == 1:
                self._hand(takers[0], run, effects)
            else:
                for index in range(min(turns, count)):
                    self._hand(takers[index], run.every(index, turns), effects)
            consumers.served(takers[(count - 1) % len(takers)])
        self._expire(meta, effects)

    @property
    def _serves(self) -> bool:
        """True if consumers may get messages. Those of a queue whose deliveries are paused stay, and messages
        expire as if there were none.
        """
        return self.consumers.count > 0 and not self.settings.deliveries_paused

    def _assign_grouped(
        self, ready: GroupedReady, meta: Meta, effects: Effects, hands_max: int = 1 << 62
    ) -> None:
        """As `_assign`, by message groups."""
        ready.begin()
        while ready.count and self._serves:
            if len(effects.deliveries) < hands_max:
                most, most_bytes = BURST_MESSAGES - effects.burst_messages, BURST_BYTES - effects.burst_bytes
                walk = Walk(ready, self.consumers)
                if walk.go(self.held_from, meta.now_ms, most, most_bytes, in_memory=effects.in_memory):
                    self._hand_shares(walk, effects)
            found = ready.next(self.consumers, self.held_from)
            if found is None:
                break
            if (
                effects.burst_messages >= BURST_MESSAGES
                or effects.burst_bytes >= BURST_BYTES
                or len(effects.deliveries) >= hands_max
            ):
                effects.more = True
                break
            head, length = found.run, found.count
            if head.expires_at is not None and head.expires_at <= meta.now_ms:
                limit = self._limit(head, meta)
                over = min(head.over(limit), length)
                if over:
                    over = self._may_drop(over, effects)
                    if not over:
                        return
                    self._discard(ready.take(found, over), "expired", effects)
                    continue
                length = min(length, head.before_over(limit))
            if head.contents is None and effects.in_memory:
                effects.paged_out, ready.wanted = True, head
                break
            length = min(length, BURST_MESSAGES - effects.burst_messages, found.consumer.room())
            if effects.burst_bytes + head.size > BURST_BYTES:
                length = min(length, _fitting(head, BURST_BYTES - effects.burst_bytes))
            self._hand(found.consumer, ready.take(found, length), effects)
        self._expire(meta, effects)

    def _limit(self, head: Run, meta: Meta) -> int:
        """Return the deadline up to which the messages of the head must not be delivered any more.

        A message with a TTL of 0 is delivered if a consumer waits for it when it arrives, but not when it is
        returned.
        """
        too_late = head.redelivered and self.version >= versions.RETURNED
        return meta.now_ms if too_late else meta.now_ms - 1

    def _drop_expired(self, level: Level, over: int, effects: Effects, *, whole: bool) -> bool:
        """Drop what has expired at the head of a level, unless `whole` as much as this batch may drop; return
        False if it may drop nothing more.
        """
        if not whole:
            over = self._may_drop(over, effects)
        if over:
            self._discard(self.ready.pop(level, over), "expired", effects)
        return over > 0

    def _may_drop(self, over: int, effects: Effects) -> int:
        """Return how many of so many expired messages this batch may drop; count them."""
        may = min(over, effects.expires_left)
        if may <= 0:
            effects.more = True
            return 0
        effects.expires_left -= may
        return may

    def _hand(self, consumer: Consumer, run: Run, effects: Effects) -> None:
        first_id = self._send(consumer, run, effects)
        if consumer.no_ack:
            return
        count = len(run.seqs)
        if self.grouped is not None:
            self.grouped.hold(run, consumer)
        consumer.checkout.add(first_id, run)
        self.unacked_count += count
        self.unacked_bytes += run.counted_bytes
        if consumer.window is not None:
            consumer.window.use(count)

    def _hand_shares(self, walk: Walk, effects: Effects) -> None:
        """Hand out what consumers got in a walk through messages of many groups."""
        for consumer, run in walk.runs():
            first_id = self._send(consumer, run, effects)
            if not consumer.no_ack:
                consumer.checkout.add_counted(first_id, run)
                self.unacked_count += len(run.seqs)
                self.unacked_bytes += run.counted_bytes

    def _send(self, consumer: Consumer, run: Run, effects: Effects) -> int:
        """Let a consumer have messages, which are settled if it sends no acks. Return the first delivery
        id.
        """
        first_id = consumer.next_id
        count = len(run.seqs)
        effects.burst_messages += count
        effects.burst_bytes += run.size
        if self.frozen.active:
            self.frozen.keep_consumer(consumer)
        consumer.next_id = first_id + count
        if self.record is not None:
            self.record.changed(run.seqs, ACKNOWLEDGED if consumer.no_ack else DELIVERED, 0, consumer.key)
        delivered = _as_delivered(run)
        if self.grouped is not None:
            without_groups(delivered)
        effects.deliveries.append((consumer, delivered, first_id))
        if consumer.no_ack:
            effects.settled.append(run)
        return first_id

    def _expire(self, meta: Meta, effects: Effects, *, whole: bool = False) -> None:
        """Drop expired messages, and say when the next one will be due.

        Unlike in RabbitMQ a message expires at its time wherever it stands. Up to version 8 it expired only
        at the head: in a priority queue behind no other message, and in a queue with strict priorities at the
        head of its rank.
        """
        ready = self.ready
        if self.version >= versions.EXACT_EXPIRY:
            if effects.expires_left <= 0 and not whole:
                effects.more = True
            elif ready.deadlines is not NO_DEADLINES:
                self._expire_exactly(meta, effects, whole=whole)
            return
        if self.grouped is not None:
            self._expire_grouped(self.grouped, meta, effects, whole=whole)
            return
        if ready.strict and len(ready.levels) > 1:
            self._expire_ranks(meta, effects, whole=whole)
            return
        while ready.count:
            level = ready.head_level(self.held_from)
            head = level.head() if level is not None else None
            due = None if head is None else head.due
            if level is None or head is None or due is None:
                return
            if due > meta.now_ms:
                effects.wake_at = due
                return
            if not self._drop_expired(level, head.over(meta.now_ms), effects, whole=whole):
                return

    def _expire_exactly(self, meta: Meta, effects: Effects, *, whole: bool) -> None:
        """Drop expired messages, unless `whole` as many as this batch may drop."""
        due_ms = self._looks_at_ms
        if due_ms is None or due_ms > meta.now_ms:
            return
        most = NO_LIMIT if whole else effects.expires_left
        for run in self.ready.take_expired(meta.now_ms, self.held_from, most):
            if not whole:
                effects.expires_left -= len(run.seqs)
            self._discard(run, "expired", effects)
        # Whether there are more must not depend on what else was here before.
        effects.more = effects.more or effects.expires_left <= 0

    def _expire_grouped(self, ready: GroupedReady, meta: Meta, effects: Effects, *, whole: bool) -> None:
        """Drop expired messages at the head of a queue with message groups."""
        while (head := ready.head()) is not None and head.seqs.start < self.held_from:
            due = head.due
            if due is None:
                return
            if due > meta.now_ms:
                effects.wake_at = due
                return
            over = head.over(meta.now_ms)
            if not whole:
                over = self._may_drop(over, effects)
            if not over:
                return
            self._discard(ready.drop_head(over), "expired", effects)

    def _expire_ranks(self, meta: Meta, effects: Effects, *, whole: bool) -> None:
        """Drop expired messages at the head of each rank."""
        ready, wake_at = self.ready, NEVER
        for level in reversed(ready.levels):
            while (head := level.head()) is not None and head.seqs.start < self.held_from:
                due = head.due
                if due is None:
                    break
                if due > meta.now_ms:
                    wake_at = min(wake_at, due)
                    break
                if not self._drop_expired(level, head.over(meta.now_ms), effects, whole=whole):
                    return
        if wake_at < NEVER:
            effects.wake_at = wake_at

    def _get(self, meta: Meta, command: Command, effects: Effects) -> None:
        self._use(meta, effects)
        if self.delayed.count:
            self._end_waits(meta, effects)
        self._expire(meta, effects, whole=True)
        consumer: Consumer = command[1]
        if consumer.position:
            self._pick(meta, consumer, effects)
            return
        if self.grouped is not None:
            self._get_grouped(self.grouped, consumer, command, effects)
            return
        level = self.ready.head_level(self.held_from)
        head = level.head() if level is not None else None
        if level is not None and head is not None and not self.settings.deliveries_paused:
            if head.contents is None and effects.in_memory:
                effects.paged_out = True
                effects.gets_waiting.append(command)
                return
            if not consumer.no_ack:
                consumer = self.consumers.known(consumer)
            self._hand(consumer, self.ready.pop(level, 1), effects)
        else:
            effects.got_nothing.append(consumer.key)

    def _get_grouped(
        self, ready: GroupedReady, consumer: Consumer, command: Command, effects: Effects
    ) -> None:
        found = None
        if not self.settings.deliveries_paused:
            getter = self.consumers.by_key.get(consumer.key, consumer)
            found = ready.next(self.consumers, self.held_from, getter)
        if found is None:
            effects.got_nothing.append(consumer.key)
            return
        if found.run.contents is None and effects.in_memory:
            effects.paged_out, ready.wanted = True, found.run
            effects.gets_waiting.append(command)
            return
        if not consumer.no_ack:
            consumer = self.consumers.known(consumer)
        self._hand(consumer, ready.take(found, 1), effects)

    def _pick(self, meta: Meta, consumer: Consumer, effects: Effects) -> None:
        """Hand out the message at the position that this getter wants, if it is ready."""
        picked, position = None, consumer.position
        if consumer.due_ms:
            picked = self._pick_waiting(meta, consumer)
        elif self.version >= versions.PICKS and position < self.held_from:
            picked = self.ready.pick(position, meta.now_ms)
        if picked is None:
            effects.got_nothing.append(consumer.key)
        else:
            self._hand(consumer if consumer.no_ack else self.consumers.known(consumer), picked, effects)

    def _pick_waiting(self, meta: Meta, consumer: Consumer) -> Run | None:
        """Take the message that this getter wants out of those that wait. Coming back, it waits again."""
        if self.version < versions.CANCELS:
            return None
        picked = self.delayed.pick(consumer.due_ms, consumer.position, meta.now_ms)
        if picked is not None:
            if not picked.waits_until:
                self._unblock([picked])
            picked.waits_until = consumer.due_ms
            if not self.delayed.count:
                self.delayed = NO_DELAYED
        return picked

    # -- settling --------------------------------------------------------------------------------------------

    def _take(self, command: Command, effects: Effects, *, cut: bool = True) -> list[Run]:
        """Take deliveries from the consumer that holds them, unless `cut` is False in runs whose positions
        are a range.
        """
        _, key, low, high = command
        consumer = self.consumers.by_key.get(key)
        if consumer is None:
            return []
        if self.frozen.active:
            self.frozen.keep_consumer(consumer)
        if high >= consumer.next_id:
            # Who leaves gives back what this batch delivers, too.
            _own_contents(effects)
        runs = consumer.checkout.take(low, high)
        self._taken(consumer, runs)
        return runs if self.grouped is None or not cut else [part for run in runs for part in run.cut()]

    def _taken(self, consumer: Consumer, runs: list[Run]) -> None:
        count = 0
        for run in runs:
            count += len(run.seqs)
            self.unacked_bytes -= run.counted_bytes
        self.unacked_count -= count
        if self.grouped is not None:
            self.grouped.release(runs, consumer)
        if consumer.window is not None:
            consumer.window.use(-count)
        if consumer.full:
            self.consumers.has_room(consumer)
        if not consumer.attached and not consumer.checkout.count:
            self.consumers.by_key.pop(consumer.key, None)
            if self.grouped is not None:
                self.grouped.leave(consumer)

    def _unblock(self, runs: list[Run]) -> None:
        """Messages of these groups wait for nothing more."""
        if self.grouped is not None:
            for run in runs:
                self.grouped.unblock(run)

    def _settle(self, meta: Meta, command: Command, effects: Effects) -> None:
        runs = self._take(command, effects, cut=False)
        effects.settled += runs
        if self.record is not None:
            for run in runs:
                self.record.changed(run.seqs, ACKNOWLEDGED)
        if effects.wants_acked:
            effects.acked += runs

    def _return(self, meta: Meta, command: Command, effects: Effects) -> None:
        self._come_back(meta, command, effects, failed=False)

    def _fail(self, meta: Meta, command: Command, effects: Effects) -> None:
        self._come_back(meta, command, effects, failed=True)

    def _retry(self, meta: Meta, command: Command, effects: Effects) -> None:
        own_ms: int | None = command[4]
        if self.version < versions.RETRY_WAITS:
            own_ms = None
        self._come_back(meta, command[:4], effects, failed=command[5], own_ms=own_ms)

    def _come_back(
        self, meta: Meta, command: Command, effects: Effects, *, failed: bool, own_ms: int | None = None
    ) -> None:
        consumer = self.consumers.by_key.get(command[1])
        runs = self._take(command, effects)
        if consumer is not None and consumer.position:
            self._put_picked(meta, runs, effects)
        else:
            self._give_back(meta, runs, effects, failed=failed, own_ms=own_ms)

    def _put_picked(self, meta: Meta, runs: list[Run], effects: Effects) -> None:
        """Put picked messages back to their places: nobody has seen them."""
        for run in runs:
            if self.frozen.active:
                self.frozen.keep(run)
            if self.record is not None:
                self.record.changed(run.seqs, QUEUED)
            due_ms = run.waits_until
            if run.redelivered:
                # It waits for a retry; see `_end_waits`.
                run.waits_until = 0
            if due_ms > meta.now_ms:
                self.delay(due_ms, run)
            elif run.redelivered:
                self.ready.put_back([run])
            else:
                self._put(meta, run)
        if runs and self.settings.overflow == "drop-head":
            self._drop_over_limit(effects)

    def _give_back(
        self, meta: Meta, runs: list[Run], effects: Effects, *, failed: bool, own_ms: int | None = None
    ) -> None:
        """Take messages back from a consumer, for others or to wait: as the settings say, or, if given, for
        `own_ms`.
        """
        settings, strict = self.settings, self.counts_failures
        limit = settings.delivery_limit
        waits = settings.retry_type != "disabled" and self.version >= versions.RETRIES or own_ms is not None
        kept: list[Run] = []
        for run in runs:
            if self.frozen.active:
                self.frozen.keep(run)
            run.redelivered = True
            # It was picked while it waited, and its ack belonged to a transaction that came to nothing.
            run.waits_until = 0
            if strict:
                run.acquired += 1
            if strict or waits:
                run.attempts += failed
            elif limit is not None:
                run.attempts += 1
            if limit is not None and run.attempts > limit:
                self._discard(run, "delivery_limit", effects)
                continue
            if self.record is not None:
                self.record.changed(run.seqs, QUEUED)
            wait = self._wait_ms(run, own_ms, failed=failed) if waits else 0
            if wait:
                for part, due_ms in self._waiting(run, min(meta.now_ms + wait, LATEST_MS)):
                    effects.delayed.append((due_ms, _as_delivered(part)))
                    self.delay(due_ms, part)
                continue
            if strict or waits or limit is not None:
                effects.returned.append(_as_delivered(run))
            kept.append(run)
        if kept:
            self.ready.put_back(kept)
        if (kept or self.delayed.count) and self.settings.overflow == "drop-head":
            self._drop_over_limit(effects)

    def _wait_ms(self, run: Run, own_ms: int | None, *, failed: bool) -> int:
        return wait_ms(self.settings, run.attempts, failed=failed) if own_ms is None else own_ms

    def _waiting(self, run: Run, until_ms: int) -> Iterator[tuple[Run, int]]:
        """Yield messages that came back with the time until which they wait: they expire while they wait."""
        expires_at = run.expires_at
        if not self.expires_exactly or expires_at is None or expires_at >= until_ms:
            yield run, until_ms
        elif run.deadlines is None:
            yield run, expires_at
        else:
            for single in run.singles():
                due_ms = single.due
                yield single, until_ms if due_ms is None else min(until_ms, due_ms)

    def delay(self, due_ms: int, run: Run) -> None:
        """Let messages wait until this time: those that came back, or new ones."""
        if self.delayed is NO_DELAYED:
            self.delayed = Delayed(self.frozen)
        if self.grouped is not None and not run.waits_until:
            self.grouped.block(run)
        # The walk through message groups wants neighbours.
        self.delayed.add(due_ms, run, gaps=self.version >= versions.KINDS and self.grouped is None)

    def _reject(self, meta: Meta, command: Command, effects: Effects) -> None:
        runs = self._take(command, effects)
        for run in runs:
            self._discard(run, "rejected", effects)

    def _discard(self, run: Run, reason: Reason, effects: Effects, limit: int = 0) -> None:
        """Discard messages without an ack. `limit`: the one that they exceeded, as the record has it."""
        if self.record is not None:
            why = limit or OF_DEATH[reason]
            state = DEAD_LETTERED if self.settings.dead_letter else EXPIRED if why == TTL else DROPPED
            self.record.changed(run.seqs, state, why)
        if not self.settings.dead_letter:
            effects.settled.append(run)
            return
        if not self.settings.dead_letter_at_least_once:
            effects.dead_letters.append((run, reason))
            effects.settled.append(run)
            return
        for single in run.singles():
            effects.dead_letters.append((single, reason))
            self.hold_letter(single, reason)

    def hold_letter(self, letter: Run, reason: Reason) -> None:
        """Keep a dead letter until its targets have it."""
        if self.dead_lettering is NO_DICT:
            self.dead_lettering = {}
        self.dead_lettering[letter.seqs.start] = (letter, reason)
        self.held_bytes += letter.counted_bytes

    def _let_letter_go(self, seq: int) -> Run:
        letter, _ = self.dead_lettering.pop(seq)
        self.held_bytes -= letter.counted_bytes
        return letter

    def _dead_lettered(self, meta: Meta, command: Command, effects: Effects) -> None:
        """The targets have got these dead letters."""
        _, low, high = command
        wanted = range(low, high + 1) if high - low < len(self.dead_lettering) else list(self.dead_lettering)
        for seq in wanted:
            if low <= seq <= high and seq in self.dead_lettering:
                effects.settled.append(self._let_letter_go(seq))

    def take_positions(self, low: int, high: int) -> list[Run]:
        """Take the messages with these positions that are ready or wait."""
        taken = self.ready.take_positions(low, high)
        if self.delayed.count:
            waited = self.delayed.take_positions(low, high)
            self._unblock([run for run in waited if not run.waits_until])
            taken += waited
        return taken

    def _lose(self, meta: Meta, command: Command, effects: Effects) -> None:
        """Remove messages whose bodies are lost, wherever they are: they cannot be delivered."""
        _, low, high = command
        _own_contents(effects)
        lost = self.take_positions(low, high)
        for consumer in self.consumers.in_turn():
            if self.frozen.active:
                self.frozen.keep_consumer(consumer)
            held = consumer.checkout.take_positions(low, high)
            if held:
                self._taken(consumer, held)
                lost += held
        if len(self.parts):
            taken, acked = self.parts.take_positions(low, high)
            self._unblock(acked)
            lost += taken + acked
            self.unacked_count -= len(acked)
            self.unacked_bytes -= sum([run.counted_bytes for run in acked])
        for seq in [seq for seq in self.dead_lettering if low <= seq <= high]:
            lost.append(self._let_letter_go(seq))
        effects.settled += lost
        self._dropped(lost, LOST)

    def _dropped(self, runs: list[Run], reason: int) -> None:
        if self.record is not None:
            for run in runs:
                self.record.changed(run.seqs, DROPPED, reason)

    # -- parts of transactions -------------------------------------------------------------------------------

    def _pend(self, meta: Meta, command: Command, effects: Effects) -> None:
        """Take a command of a transaction's part, of which nobody sees anything."""
        if self.sealed or self.version < versions.TRANSACTIONS:
            return
        _, transaction, inner = command
        part = self.parts.of(transaction, meta.now_ms)
        part.came += 1
        effects.pended.append(transaction)
        verb = inner[0]
        if verb not in ENQUEUES:
            runs = self._take(inner, effects)
            if self.grouped is not None:
                for run in runs:
                    self.grouped.block(run)
            part.add_settled(verb, runs)
            count = 0
            for run in runs:
                count += len(run.seqs)
                self.unacked_bytes += run.counted_bytes
            self.unacked_count += count
            part.late = part.late or count != inner[3] - inner[2] + 1
            return
        run, record, found = inner[1], self.record, None
        if verb == "enqueue_once":
            found = inner[4]
        elif verb == "enqueue_known":
            found = inner[5] if len(inner) > 5 else None
            if record is not None:
                record.begin(inner[4], run.seqs.start)
        names: list[bytes | None] | None = None
        if found is not None and self.dedup is not None:
            names = list(found.each()) if isinstance(found, Sequence) else found
        self._number(meta, run, effects)
        if record is not None:
            record.changed(run.seqs, PENDING)
            record.end()
        self.parts.add_messages(part, run, names)

    def _prepare(self, meta: Meta, command: Command, effects: Effects) -> None:
        """Answer whether the queue takes the part; if not, forget it."""
        _, token, transaction, count, participants, _ = command
        part = self.parts.by_id.get(transaction)
        outcome = READY
        if part is None:
            # A sealed queue is deleted, with all that it has.
            outcome = READY if self.sealed else INCOMPLETE
        elif part.came != count:
            outcome = INCOMPLETE
        elif part.late:
            outcome = LATE
        elif part.count and self.settings.publishes_paused:
            outcome = PAUSED
        elif not self._has_room_for_parts(part):
            outcome = FULL
        elif participants:
            part.prepared, part.participants = True, list(participants)
        else:
            # The transaction is over this queue alone.
            self._take_effect(meta, part, effects)
        if outcome != READY:
            self._undo(meta, transaction, effects)
        effects.prepared.append((token, transaction, outcome))

    def _has_room_for_parts(self, part: Part) -> bool:
        """Return whether the queue has room for all parts; it only refuses one with messages."""
        settings = self.settings
        if settings.overflow == "drop-head" or not part.count:
            return True
        count, size = self._promised()
        if settings.max_length is not None and self._kept_count() + count > settings.max_length:
            return False
        limit = settings.max_length_bytes
        return limit is None or self._kept_bytes() + size <= limit

    def _resolve(self, meta: Meta, command: Command, effects: Effects) -> None:
        """The transaction is decided: its part takes effect, or nothing of it does."""
        _, transaction, committed = command
        effects.resolved.append(transaction)
        part = self.parts.by_id.get(transaction)
        if part is None:
            return
        if committed:
            self._take_effect(meta, part, effects)
        else:
            self._undo(meta, transaction, effects)

    def _take_effect(self, meta: Meta, part: Part, effects: Effects) -> None:
        """Let the messages of a part into the queue, then do what it does with deliveries."""
        self._let_out(part, effects)
        record = self.record
        for run, names in part.enqueued:
            if record is not None:
                record.changed(run.seqs, QUEUED)
            if names is None:
                self._put(meta, run)
            else:
                self._insert_once(meta, run, names, effects)
        for verb, runs in part.settled:
            if verb == "settle":
                effects.settled += runs
                if record is not None:
                    for run in runs:
                        record.changed(run.seqs, ACKNOWLEDGED)
                if effects.wants_acked:
                    effects.acked += runs
            elif verb != "discard":
                self._give_back(meta, runs, effects, failed=verb == "fail")
            else:
                for run in runs:
                    self._discard(run, "rejected", effects)

    def _insert_once(self, meta: Meta, run: Run, names: list[bytes | None], effects: Effects) -> None:
        """Bring in the messages that the queue has not taken since they were pended."""
        dedup = self.dedup
        if dedup is None:
            self._put(meta, run)
            return
        dedup.expire(meta.now_ms, effects.names, whole=False)
        persistent = run.attributes.persistent
        for single, name in zip(run.singles(), names, strict=True):
            if dedup.is_new(name, meta.now_ms):
                self._remember(dedup, name, persistent, meta, effects)
                self._put(meta, single)
            else:
                effects.duplicates += 1
                effects.settled.append(single)
                if self.record is not None:
                    self.record.changed(single.seqs, DUPLICATE)

    def _undo(self, meta: Meta, transaction: TransactionId, effects: Effects) -> None:
        """Forget a part: its messages never were in the queue, and the deliveries that it acks go back."""
        part = self.parts.by_id.get(transaction)
        if part is None:
            return
        self._let_out(part, effects)
        effects.settled += [pended.run for pended in part.enqueued]
        if self.record is not None:
            for run, _ in part.enqueued:
                self.record.changed(run.seqs, ABORTED)
        for _, runs in part.settled:
            # That the transaction came to nothing is no failure of the messages that it took.
            self._give_back(meta, runs, effects, failed=False)

    def _let_out(self, part: Part, effects: Effects) -> None:
        self.parts.take(part.transaction)
        for _, runs in part.settled:
            self._unblock(runs)
        self.unacked_count -= part.unacked_count
        self.unacked_bytes -= part.unacked_bytes
        if part.position >= 0:
            effects.parts_gone.append(part.position)

    # -- consumers and settings ------------------------------------------------------------------------------

    def _attach(self, meta: Meta, command: Command, effects: Effects) -> None:
        consumer: Consumer = command[1]
        self._use(meta, effects)
        if self.sealed:
            effects.attach_refused.append((consumer.key, GONE))
        elif consumer.key in self.consumers.by_key:
            effects.attach_refused.append((consumer.key, "key in use"))
        elif self.consumers.exclusive_count or (
            consumer.exclusive and (self.consumers.count or self.settings.single_active_consumer)
        ):
            effects.attach_refused.append((consumer.key, "exclusive"))
        else:
            self.consumers.attach(consumer)

    def _detach(self, meta: Meta, command: Command, effects: Effects) -> None:
        _, key, requeue = command
        self._use(meta, effects)
        consumer = self.consumers.by_key.get(key)
        if consumer is not None:
            self._let_go(meta, consumer, effects, requeue=requeue, failed=True)

    def _let_go(
        self, meta: Meta, consumer: Consumer, effects: Effects, *, requeue: bool, failed: bool
    ) -> None:
        key = consumer.key
        if self.frozen.active:
            self.frozen.keep_consumer(consumer)
        self.consumers.detach(consumer)
        if requeue:
            # Use copies: this batch's deliveries have not been sent yet, and returned runs are joined with
            # others.
            runs = [run.every(0, 1) for run in consumer.checkout.take_all()]
            self._taken(consumer, runs)
            if self.grouped is not None:
                runs = [part for run in runs for part in run.cut()]
            if consumer.position:
                self._put_picked(meta, runs, effects)
            else:
                self._give_back(meta, runs, effects, failed=failed)
        self.consumers.by_key.pop(key, None)
        if self.grouped is not None and not consumer.checkout.count:
            self.grouped.leave(consumer)
        if consumer.checkout.count:
            # Move it to the end: in the order of detaching, as in a snapshot.
            self.consumers.keep(consumer)

    def _node_down(self, meta: Meta, command: Command, effects: Effects) -> None:
        _, node, incarnation = command
        for part in self.parts.of_starts(node, incarnation):
            # The rest of it will not come.
            self._undo(meta, part.transaction, effects)
        for consumer in self.consumers.in_turn():
            if consumer.key[0] == node and consumer.key[1] <= incarnation:
                self._use(meta, effects)
                effects.consumers_gone.append(consumer.key)
                # That a node is down is no failure of a delivery.
                self._let_go(meta, consumer, effects, requeue=True, failed=False)

    def _asked(self, meta: Meta, command: Command, effects: Effects) -> None:
        """A question that only a host on one node answers: in a log it must not stop those who read it."""

    def _touch(self, meta: Meta, command: Command, effects: Effects) -> None:
        self._use(meta, effects)

    def _changing(self, key: Any) -> Consumer | None:
        """Return a known consumer that is about to change."""
        consumer = self.consumers.by_key.get(key)
        if consumer is not None and self.frozen.active:
            self.frozen.keep_consumer(consumer)
        return consumer

    def _pause(self, meta: Meta, command: Command, effects: Effects) -> None:
        consumer = self._changing(command[1])
        if consumer is not None:
            consumer.paused = command[2]
            self.consumers.has_room(consumer)

    def _prefetch(self, meta: Meta, command: Command, effects: Effects) -> None:
        consumer = self._changing(command[1])
        if consumer is not None:
            consumer.limit(command[2], consumer.window_limit)
            self.consumers.has_room(consumer)

    def _window(self, meta: Meta, command: Command, effects: Effects) -> None:
        consumer = self._changing(command[1])
        if consumer is None:
            return
        if isinstance(command[2], int):
            consumer.limit(consumer.own_prefetch, command[2])
        else:
            consumer.window = command[2]
        self.consumers.has_room(consumer)

    def _purge(self, meta: Meta, command: Command, effects: Effects) -> None:
        self._use(meta, effects)
        if len(command) > 1:
            effects.purged.append((command[1], self._kept_count()))
        waited = self.delayed.clear()
        self._unblock([run for run in waited if not run.waits_until])
        cleared = [*self.ready.clear(), *waited]
        self._dropped(cleared, PURGED)
        effects.settled += cleared

    def _configure(self, meta: Meta, command: Command, effects: Effects) -> None:
        self.pauses += command[1].publishes_paused and not self.settings.publishes_paused
        # Keep the declared values of settings on which the state depends.
        self.settings = replace(
            command[1],
            priority_max=self.settings.priority_max,
            single_active_consumer=self.settings.single_active_consumer,
            strict=self.settings.strict or command[1].strict,
            group_header=self.settings.group_header,
        )
        self._be_as_set()
        if self.dedup is None or not self.settings.deduplicates:
            self.dedup = _dedup(self.settings)
        else:
            self.dedup.configure(self.settings)
        self._configure_record(meta.now_ms)
        if self.dead_lettering and not self.settings.dead_letter and self.version >= versions.UNHELD:
            # They have no target any more.
            effects.settled += [run for run, _ in self.dead_lettering.values()]
            self.dead_lettering.clear()
            self.held_bytes = 0
        if self.settings.overflow == "drop-head":
            self._drop_over_limit(effects)
        effects.configured = True

    def _configure_record(self, now_ms: int) -> None:
        """Begin or end the record, or give it its limits, as the settings say."""
        if not self.settings.records or self.version < versions.RECORD:
            self.record = None
        elif self.record is None:
            # A queue that has taken nothing yet knows all.
            self.record = MessageRecord(self.settings, now_ms, now_ms if self.next_seq > 1 else 0)
        else:
            self.record.configure(self.settings)

    def _seal(self, meta: Meta, command: Command, effects: Effects) -> None:
        _, token, condition = command
        self._expire(meta, effects, whole=True)
        lease_ms = self.settings.expires_ms
        found = SEALED
        if not self.sealed:
            found = outcome(
                condition,
                consumers=self.consumers.count,
                ready=self._kept_count() + self._promised()[0] + self._picked_count(),
                expired=lease_ms is not None and meta.now_ms >= self.last_used_ms + lease_ms,
            )
        effects.seals.append((token, Sealed(found, self._kept_count())))
        self.sealed = self.sealed or found == SEALED

    def _picked_count(self) -> int:
        """Return how many messages somebody has picked, who gives back what he does not move."""
        if self.version < versions.HELD_COUNT:
            return 0
        return sum([each.checkout.count for each in self.consumers.by_key.values() if each.position])

    def _tick(self, meta: Meta, command: Command, effects: Effects) -> None:
        """Time has passed; `apply` expires due messages."""
        if self.record is not None:
            self.record.forget()


def _deadline(ttl_ms: int | None, own_ms: int | None, begins_ms: int) -> int | None:
    """Return when a message expires whose life begins then, None for never: the shorter time counts."""
    if own_ms is not None and (ttl_ms is None or own_ms < ttl_ms):
        ttl_ms = own_ms
    # A damaged time in an entry must not be a deadline that no column can hold.
    return None if ttl_ms is None else min(begins_ms + ttl_ms, LATEST_MS)


def _counted_sizes(run: Run) -> list[int]:
    """Return the bytes of each message that a limit in bytes counts."""
    sizes = map(len, run.contents) if run.contents is not None else run.sizes or ()
    if run.kinds is not None:
        return [size - run.attributes_of(index).overhead for index, size in enumerate(sizes)]
    overhead = run.attributes.overhead
    return [size - overhead for size in sizes]


def _fitting(run: Run, room_bytes: int) -> int:
    """Return how many messages of a run begin within the room.

    How runs are cut must not change the contents of a batch.
    """
    sizes = map(len, run.contents) if run.contents is not None else run.sizes or ()
    return 1 + bisect_left(list(accumulate(sizes))[:-1], room_bytes)


def _may_be_refused(run: Run, origin: Any) -> bool:
    """Return whether nothing is lost when a paused queue refuses these messages. Dead letters that are sent
    once were forgotten by their queue, and some messages may be confirmed already.
    """
    attributes = run.attributes
    forgotten = origin is None and attributes.channel == LETTER_CHANNEL
    return not forgotten and attributes.confirm_level != PROMISED


def _without_ttl(attributes: Attributes) -> Attributes:
    """Return the attributes of messages whose deadline is known. Equal ones are one object."""
    found = _deadlined.get(attributes)
    if found is None:
        if len(_deadlined) >= MEMO_MAX:
            _deadlined.clear()
        found = _deadlined[attributes] = attributes._replace(ttl_ms=None)
    return found


def _as_persistent(attributes: Attributes) -> Attributes:
    found = _persistent.get(attributes)
    if found is None:
        if len(_persistent) >= MEMO_MAX:
            _persistent.clear()
        found = _persistent[attributes] = attributes._replace(persistent=True)
    return found


def _dedup(settings: Settings) -> Dedup | None:
    return Dedup(settings) if settings.deduplicates else None


def _as_delivered(run: Run) -> Run:
    """Return a copy of the run for the effect: later commands cut the machine's own run, or join others to
    it.

    Contents are shared nevertheless: hardly a command takes messages that the same batch delivers, and then
    `_own_contents` comes first.
    """
    copy = Run(run.seqs, run.contents, run.head, run.attributes, run.expires_at, run.size)
    if run.sizes is not None:
        copy.sizes = run.sizes[:]
    if run.heads is not None:
        copy.heads = run.heads[:]
    if run.kinds is not None:
        copy.kinds, copy.table = run.kinds[:], run.table
    if run.deadlines is not None:
        copy.deadlines = run.deadlines[:]
    copy.redelivered, copy.attempts, copy.acquired = run.redelivered, run.attempts, run.acquired
    return copy


def _own_contents(effects: Effects) -> None:
    """Let the effects of this batch share no contents: messages that it delivers are taken from consumers."""
    for _, run, _ in effects.deliveries:
        if run.contents is not None:
            run.contents = run.contents.copy()


def _as_accepted(run: Run) -> Run:
    """Return a copy of the run for the log: deliveries of the same batch cut the original."""
    copy = Run(
        run.seqs, run.contents and list(run.contents), run.head, run.attributes, run.expires_at, run.size
    )
    copy.heads = run.heads and list(run.heads)
    if run.kinds is not None:
        copy.kinds, copy.table = run.kinds[:], run.table
    if run.deadlines is not None:
        copy.deadlines = run.deadlines[:]
    copy.waits_until = run.waits_until
    return copy


_APPLY: dict[str, Callable[[Machine, Meta, Command, Effects], None]] = {
    "enqueue": Machine._enqueue,
    "enqueue_once": Machine._enqueue_once,
    "enqueue_letter": Machine._enqueue_letter,
    "enqueue_known": Machine._enqueue_known,
    "attach": Machine._attach,
    "detach": Machine._detach,
    "pause": Machine._pause,
    "prefetch": Machine._prefetch,
    "settle": Machine._settle,
    "return": Machine._return,
    "fail": Machine._fail,
    "retry": Machine._retry,
    "discard": Machine._reject,
    "get": Machine._get,
    "window": Machine._window,
    "purge": Machine._purge,
    "configure": Machine._configure,
    "tick": Machine._tick,
    "dead_lettered": Machine._dead_lettered,
    "touch": Machine._touch,
    "node_down": Machine._node_down,
    "lose": Machine._lose,
    "seal": Machine._seal,
    "pend": Machine._pend,
    "prepare": Machine._prepare,
    "resolve": Machine._resolve,
    "version": Machine._raise_version,
    "unhold": Machine._unhold,
    "status": Machine._asked,
}

__all__ = ["ENQUEUES", "Checkout", "Command", "Effects", "Letter", "Machine", "Meta", "Settings"]
