"""The host of a consumer group: a queue whose messages are those of streams, and whose consumers share the partitions.

It stores no messages, only how far it is: see quorum_queue.consumer_groups. In each stream it has one reader, which stays
while members come and go, and hands what it reads to the member that has the partition. What comes back is read again. See
docs/adr/0028-consumer-groups.md.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

from amqp_server.streams.deliver import BatchReader
from amqp_server.streams.headed import Headers, below, cut, offsets_of
from amqp_server.streams.host import BOUNDLESS, StreamConsumer, StreamHost
from amqp_server.streams.places import VERSION, Place, PlaceError, decode, encode
from amqp_server.streams.runs import run_of
from amqp_server.streams.start import Start
from persistence.streams.batch import Batch
from persistence.streams.log import Wanted
from quorum_queue.consumer_groups.group import Dead, Group, Key, Member
from quorum_queue.consumer_groups.partition import ENDLESS, UNKNOWN, Partition, Span
from quorum_queue.host import DELETED, QueueHost, answer_publishes
from quorum_queue.local import NodeServices
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.machine import ENQUEUES, Command
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import ConsumerState, Got, Hosted, Refused

logger = logging.getLogger("mqd.groups")

#: A stream that could not be read is tried again after this time.
RETRY_MS = 1_000
#: Dead letters of a group that are on their way at once.
LETTERS_MAX = 16
FIRST = Start("first")


class Stream(Protocol):
    """A queue that is a stream; see amqp_server.broker.queue."""

    name: str
    queue_id: int
    deleted: bool
    host: Any
    subscriptions: dict[Any, Any]

    def subscribe(self, key: Any, subscription: Any) -> None: ...


class GroupOptions:
    """What a group was declared with."""

    __slots__ = (
        "commit_ms",
        "consumer_timeout_ms",
        "dead_letters",
        "delivery_limit",
        "spans_max",
        "start",
        "stream",
    )

    def __init__(
        self,
        stream: str,
        start: Start,
        *,
        delivery_limit: int | None,
        dead_letters: bool,
        consumer_timeout_ms: int,
        spans_max: int,
        commit_ms: int,
    ) -> None:
        #: Name of the stream or super stream.
        self.stream = stream
        self.start = start
        self.delivery_limit = delivery_limit
        self.dead_letters = dead_letters
        self.consumer_timeout_ms = consumer_timeout_ms
        #: Gaps that are remembered of a partition, and how long commits may wait for others; see amqp_server.config.
        self.spans_max = spans_max
        self.commit_ms = commit_ms


class Reader:
    """Reads one partition for the group. See amqp_server.streams.host.Sink."""

    for_group = True
    # As a subscription of the stream's queue.
    exclusive = False
    tag = ""

    def __init__(self, host: ConsumerGroupHost, partition: Partition, stream: Stream, start: Start) -> None:
        self._host = host
        self.partition = partition
        self.stream = stream
        self.start = start
        self.wanted: Wanted | None = None
        self.key: Key = ("group", host.queue_id, stream.queue_id)
        #: The stream has taken it; and has been asked to.
        self.attached = self.attaching = False
        self.closed = False
        #: What the stream hands out next; below zero until that is known.
        self.position = UNKNOWN
        #: It has stopped until it is told to go on.
        self.stalled = True
        #: Somebody gets a single message of the partition.
        self.getting = False
        self._headers = Headers(stream.name)

    @property
    def unread(self) -> int:
        """How many messages of the partition are to be handed out."""
        host = self.stream.host
        if not isinstance(host, StreamHost):
            return 0
        return self.partition.unread(host.first_offset, host.end_offset)

    def began(self, offset: int) -> None:
        self.position = offset
        self.stalled = True
        self._host.began(self, offset)

    def let_go(self) -> None:
        self._headers.forget()

    def queue_gone(self) -> None:
        """The stream was deleted, or has failed on this node."""
        self.attached = self.attaching = False
        self.position = UNKNOWN
        self._headers.forget()
        self._host.lost(self)

    def failed(self, error: Exception) -> None:
        self._host.failed(error)

    def close(self) -> None:
        stream = self.stream
        self.closed = True
        stream.subscriptions.pop(self.key, None)
        if self.attached or self.attaching:
            stream.host.submit(("detach", self.key, True))
        self.attached = self.attaching = False
        self._headers.forget()

    def go_on(self) -> None:
        """Have the stream hand out what is wanted next."""
        wanted = self.partition.upcoming().low
        if self.stalled or self.position != wanted:
            self.stalled = False
            self.position = wanted
            self.stream.host.go_on(self.key, wanted)

    def deliver_batch(self, consumer: StreamConsumer, reader: BatchReader, count: int, first_id: int) -> None:
        """Hand on what the member with the partition may have. The rest stays with the stream's reader."""
        host, partition = self._host, self.partition
        group = host.group
        member = None if self.getting else partition.active()
        consumer.credit = BOUNDLESS
        while reader.left:
            if member is None or member.room() <= 0 or partition.span_count > host.options.spans_max:
                self._stall(consumer)
                return
            offset = reader.offset
            if self.position < offset:
                if partition.passed(self.position, offset):
                    group.changed[partition] = None
                self.position = offset
            span = partition.upcoming()
            if not span.low <= offset < span.stop:
                if offset < span.low < reader.batch.stop:
                    reader.skip_to(span.low)
                    self.position = reader.offset
                    continue
                # It comes from somewhere else.
                self._stall(consumer)
                group.freed[partition] = None
                host.schedule()
                return
            self._hand(member, reader, span)
        self._headers.forget()

    def _stall(self, consumer: StreamConsumer) -> None:
        consumer.credit = 0
        self.stalled = True

    def _hand(self, member: Member, reader: BatchReader, span: Span) -> None:
        host, partition = self._host, self.partition
        count = min(below(reader, span.stop), member.room())
        offsets = offsets_of(reader, count)
        again = span.stop != ENDLESS
        part: Batch | None = None
        if again:
            part = cut(reader, count, redelivered=True)
        else:
            source = self._headers.reader(reader)
            reader.skip(count)
        stop = min(reader.offset, span.stop)
        first = host.hand(partition, member, offsets, stop, span.attempts)
        self.position = reader.offset
        if part is not None:
            source = BatchReader(self.dressed(part, span.attempts))
        # The next one is that which was served longest ago.
        member.owned.pop(partition, None)
        member.owned[partition] = None
        host.deliver(member, source, count, first, again=again)

    def dressed(self, batch: Batch, attempts: int) -> Batch:
        """Return a message as members get it."""
        return self._headers.batch(batch, attempts)


class ConsumerGroupHost(QueueHost):
    """See quorum_queue.ports.Host."""

    shares_windows = True
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
        *,
        streams: Callable[[], list[Any]],
        slots: list[int],
        keep_slots: Callable[[], None],
    ) -> None:
        """`streams` tells the partitions as they are now. `slots` has the delivered marks, by the partitions' numbers."""
        super().__init__(queue, services.turn)
        self.queue_id = queue_id
        self.options = options
        self.group = Group(options.delivery_limit)
        self._services = services
        self._settings = settings
        self._streams = streams
        self._slots = slots
        self._keep_slots = keep_slots
        self._readers: dict[int, Reader] = {}
        #: Partitions may be others than before.
        self._stale = True
        #: Something was handed out, which may take its member too long.
        self._handed = False
        #: When members are looked after, a stream is tried again, and what was acked is committed; below zero if not.
        self._watch_at = self._retry_at = self._commit_at = -1
        self._letters: deque[Dead] = deque()
        self._letters_left = 0
        #: Partitions have got slots that are not stored yet.
        self._new_slots = False
        #: Number of the partition that a message was got from last.
        self._last_got = -1
        #: What was stored, by the ids of the streams, with the numbers.
        self._stored: dict[int, tuple[int, Place]] = {}
        #: The group is not new: what comes from now on is read from its first message on.
        self._known = False
        self._recover()
        self.schedule()

    def _recover(self) -> None:
        found = self._services.journal.recover_queue(self.queue_id)
        if found is None:
            return
        self._known = found.state is not None
        for number, data in found.annotations.items():
            try:
                place = decode(data)
            except PlaceError as error:
                logger.error("%s: partition %d begins anew: %s", self._name, number, error)
            else:
                if number < len(self._slots):
                    self._stored[place.stream_id] = number, place

    @property
    def _name(self) -> str:
        return f"group '{self.queue.name}' in vhost '{self.queue.vhost.name}'"

    def schedule(self) -> None:
        """Have what is to be done done in this turn."""
        self._turn.schedule(self)

    def partitions_changed(self) -> None:
        """A stream was declared or deleted, or a super stream has got partitions."""
        if not self._stale:
            self._stale = True
            self.schedule()

    # -- what it holds ---------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def readers(self) -> list[Reader]:
        return list(self._readers.values())

    @property
    def ready_count(self) -> int:
        return sum([reader.unread for reader in self._readers.values()])

    @property
    def ready_bytes(self) -> int:
        return 0

    @property
    def unacked_count(self) -> int:
        group = self.group
        members = [*group.members.values(), *group.leaving.values(), *group.getters.values()]
        return sum([member.count for member in members])

    @property
    def consumer_count(self) -> int:
        return len(self.group.members)

    @property
    def resident_bytes(self) -> int:
        return 0

    def consumers(self) -> list[ConsumerState]:
        return [
            ConsumerState(each.key, each.no_ack, False, each.prefetch, 0, bool(each.owned))
            for each in self.group.members.values()
        ]

    def look(self) -> None:
        """An operator looks at what is told of it."""

    # -- commands --------------------------------------------------------------------------------------------------

    def apply_pending(self) -> None:
        while not self.ended and self.pending:
            commands, self.pending = self.pending, []
            self._apply(commands)
            self._go_on()
        if self.ended:
            self._refuse_pending()
        else:
            self._go_on()
        self._pass_all()

    def _apply(self, commands: list[Command]) -> None:
        group = self.group
        for command in commands:
            verb = command[0]
            if verb == "settle":
                group.settle(command[1], command[2], command[3])
            elif verb == "return":
                group.give_back(command[1], command[2], command[3])
            elif verb == "discard":
                group.discard(command[1], command[2], command[3])
            elif verb == "attach":
                self._attach(command[1])
            elif verb == "detach":
                self._detach(command[1], gone=command[2])
            elif verb == "pause":
                self._pause(command[1], paused=command[2])
            elif verb == "tick":
                # A channel's window has room.
                group.roomy.update(dict.fromkeys(group.members.values()))
            elif verb == "get":
                self._get(command[1])
            elif verb == "purge":
                self._purge(command[1])
            elif verb in ENQUEUES:
                # The default exchange led here; all other ways are refused before.
                answer_publishes([command], confirm=False)

    def _go_on(self) -> None:
        """Do what follows from what has changed."""
        group = self.group
        if self._stale:
            self._stale = False
            self._look_for_partitions()
        group.rebalance()
        if group.dead:
            self._bury()
        if self._letters:
            self._send_next_letters()
        while group.freed or group.roomy:
            freed, group.freed = group.freed, {}
            roomy, group.roomy = group.roomy, {}
            for member in roomy:
                for partition in list(member.owned):
                    self._serve(partition)
            for partition in freed:
                self._serve(partition)
        if group.changed:
            self._store()
        if self._handed:
            self._handed = False
            self._watch()

    def touch(self) -> None: ...

    def barrier(self, done: Callable[..., None]) -> None:
        if self.pending or self._stale:
            self.begin_asking().barriers.append((0, done))
            self.schedule()
        else:
            done()

    def close(self) -> None:
        """The queue is deleted: nobody knows any more how far the group was."""
        self.ended = "deleted"
        self._release()
        self._services.journal.drop(self.queue_id)
        self._services.commits.request()
        self._refuse_pending()
        self._refuse_askers(DELETED)

    def stop(self, why: Refused) -> None:
        """Serve nobody from now on, and keep what is stored."""
        self.ended = "failed"
        self._release()
        self._refuse_pending()
        self._refuse_askers(why)

    def _release(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers = {}
        group = self.group
        for member in [*group.members.values(), *group.leaving.values(), *group.getters.values()]:
            # It gives back what it has of its channel's window.
            member.take_all()
        self.group = Group()
        self._letters.clear()

    def _refuse_pending(self) -> None:
        commands, self.pending = self.pending, []
        answer_publishes(commands, confirm=False)

    # -- members ---------------------------------------------------------------------------------------------------

    def _attach(self, given: Consumer) -> None:
        if not (self._readers or self._stale):
            self._attached(given.key, f"stream '{self.options.stream}' of {self._name} is gone")
            return
        self.group.join(
            Member(
                given.key,
                prefetch=given.own_prefetch,
                no_ack=given.no_ack,
                window=given.window,
                sink=given.sink,
                paused=given.paused,
            )
        )
        self._attached(given.key, None)

    def _detach(self, key: Key, *, gone: bool) -> None:
        known = key in self.group.members
        self.group.leave(key, gone=gone)
        if gone:
            self.asking.getting.pop(key, None)
        if known:
            self.queue.consumer_gone(self.consumer_count)

    def _pause(self, key: Key, *, paused: bool) -> None:
        member = self.group.members.get(key)
        if member is not None:
            member.paused = paused
            if not paused:
                self.group.roomy[member] = None

    def _serve(self, partition: Partition) -> None:
        """Have the reader of a partition go on if somebody may have something of it."""
        reader = self._readers.get(partition.stream_id)
        if reader is None or reader.position < 0 or reader.getting or partition.cursor < 0:
            return
        member = partition.active()
        if member is not None and member.room() > 0:
            reader.go_on()

    def hand(
        self, partition: Partition, member: Member, offsets: range | list[int], stop: int, attempts: int
    ) -> int:
        """A member gets these messages; return its id of the first one."""
        fresh = offsets[-1] >= partition.cursor
        first = self.group.hand(
            partition, member, offsets, stop, attempts, self._services.clock.monotonic_ms()
        )
        if fresh:
            self._services.marks.mark(self._slots[partition.number], offsets[-1])
        if self._watch_at < 0 and not self._handed:
            self._handed = True
            self.schedule()
        if member.no_ack:
            self.schedule()
        return first

    def deliver(self, member: Member, reader: BatchReader, count: int, first: int, *, again: bool) -> None:
        """Send these messages to a member; if that raises, its connection has failed and not the group."""
        sink = member.sink
        self._turn.contain(sink, sink.deliver_batch, member, reader, count, first, again)

    def _watch(self) -> None:
        """Look after members that hold something for too long."""
        due = self.group.due_ms()
        if due is not None and self._watch_at < 0:
            self._watch_at = due + self.options.consumer_timeout_ms
            self._services.timers.wake(self, self._watch_at)

    def wake(self) -> None:
        if self.ended:
            return
        now, timers = self._services.clock.monotonic_ms(), self._services.timers
        if 0 <= self._commit_at <= now:
            self._commit_at = -1
            self._services.commits.request()
        if 0 <= self._retry_at <= now:
            self._retry_at = -1
            self._stale = True
            self.schedule()
        if 0 <= self._watch_at <= now:
            self._watch_at = -1
            self._look_after_members(now)
        for at_ms in (self._commit_at, self._retry_at, self._watch_at):
            if at_ms >= 0:
                timers.wake(self, at_ms)

    def _look_after_members(self, now: int) -> None:
        for member in self.group.stuck(now - self.options.consumer_timeout_ms):
            logger.warning(
                "%s: consumer '%s' has not acked for %d ms and is cancelled",
                self._name,
                member.key[2],
                self.options.consumer_timeout_ms,
            )
            self._detach(member.key, gone=True)
            self.queue.consumer_lost(member.key)
        self._watch()
        self.schedule()

    # -- partitions ------------------------------------------------------------------------------------------------

    def _look_for_partitions(self) -> None:
        group = self.group
        streams: dict[int, Stream] = {each.queue_id: each for each in self._streams()}
        for stream_id in [each for each in group.partitions if each not in streams]:
            reader = self._readers.pop(stream_id)
            reader.close()
            group.remove(stream_id)
        numbers = self._free_numbers(len(streams))
        for stream_id, stream in streams.items():
            if stream_id not in group.partitions:
                self._add(stream, numbers)
            elif not self._readers[stream_id].attaching and not self._readers[stream_id].attached:
                self._read(self._readers[stream_id])
        if self._new_slots:
            self._new_slots = False
            self._keep_slots()
        if streams and not self._known:
            self._known = True
            self._services.journal.state(self.queue_id, bytes((VERSION,)))
            self._services.commits.request()
        if not streams:
            self._stored.clear()
            for key in list(group.members):
                group.leave(key, gone=True)
                self.queue.consumer_lost(key)

    def _add(self, stream: Stream, numbers: Iterator[int]) -> None:
        number, place = self._stored.pop(stream.queue_id, (-1, None))
        if number < 0:
            number = self._new_number(numbers)
        partition = Partition(stream.queue_id, stream.name, number)
        self.group.add(partition)
        start = FIRST if self._known else self.options.start
        if place is not None:
            pending = [Span(*each) for each in place.pending]
            cursor, marked = place.cursor, self._services.marks.get(self._slots[number])
            if marked >= cursor:
                # Handed out, and nobody knows what became of it.
                pending.append(Span(cursor, marked + 1, 0))
                cursor = marked + 1
            start = Start(offset=cursor)
            self.group.begin(partition, cursor, pending)
        reader = self._readers[stream.queue_id] = Reader(self, partition, stream, start)
        self._read(reader)

    def _free_numbers(self, most: int) -> Iterator[int]:
        """At least so many numbers that no partition has, the lowest first."""
        used = {each.number for each in self.group.partitions.values()}
        used.update([number for number, _ in self._stored.values()])
        return iter([number for number in range(len(used) + most) if number not in used])

    def _new_number(self, numbers: Iterator[int]) -> int:
        """Return the next of the free numbers, with a mark of its own."""
        marks, slots = self._services.marks, self._slots
        number, slot = next(numbers), marks.allocate()
        if number < len(slots):
            marks.free(slots[number])
            slots[number] = slot
        else:
            # Without gaps: a number beyond the slots is the first one that is.
            slots.append(slot)
        self._new_slots = True
        return number

    def _read(self, reader: Reader) -> None:
        """Have the stream take the reader of the group."""
        reader.attaching = True
        partition = reader.partition
        if partition.cursor >= 0:
            reader.start = Start(offset=partition.upcoming().low)
        consumer = Consumer(reader.key, sink=reader)

        def attached(refused: str | None) -> None:
            reader.attaching = False
            if reader.closed:
                # It is told to go already.
                return
            if refused is None:
                reader.attached = True
                reader.stream.subscribe(reader.key, reader)
            else:
                self._retry()

        reader.stream.host.attach(consumer, attached)

    def lost(self, reader: Reader) -> None:
        """A stream is gone, or does not serve."""
        self._stale = True
        if reader.stream.deleted:
            self.schedule()
        else:
            self._retry()

    def _retry(self) -> None:
        if not self.ended:
            self._retry_at = self._services.clock.monotonic_ms() + RETRY_MS
            self._services.timers.wake(self, self._retry_at)

    def began(self, reader: Reader, offset: int) -> None:
        """It is known where a reader begins."""
        partition = reader.partition
        if partition.cursor < 0:
            self.group.begin(partition, offset)
        else:
            self.group.freed[partition] = None
        self.schedule()

    # -- what is stored --------------------------------------------------------------------------------------------

    def _store(self) -> None:
        """Have stored how far the group is. The journal keeps the newest of what waits for its next commit."""
        changed, self.group.changed = self.group.changed, {}
        for partition in changed:
            if partition.cursor >= 0 and self.group.partitions.get(partition.stream_id) is partition:
                stored = encode(partition.stream_id, partition.cursor, partition.pending())
                self._services.journal.annotate(self.queue_id, partition.number, stored)
        if self._commit_at < 0:
            # Whoever waits for the disk, as for the answer to tx.commit, has it committed at once.
            self._commit_at = self._services.clock.monotonic_ms() + self.options.commit_ms
            self._services.timers.wake(self, self._commit_at)

    # -- dead letters ----------------------------------------------------------------------------------------------

    def _bury(self) -> None:
        dead, self.group.dead = self.group.dead, []
        if self.options.dead_letters:
            self._letters.extend(dead)
        else:
            for partition, span, _ in dead:
                self.group.buried(partition, span.low, span.stop)

    def _send_next_letters(self) -> None:
        """Read and send some of those that have died, one after the other."""
        while self._letters and not self._letters_left:
            if self._turn.overdue():
                self._turn.later(self, self.apply_pending)
                return
            dead = self._letters[0]
            reader = self._readers.get(dead.partition.stream_id)
            host = None if reader is None else reader.stream.host
            if reader is None or reader.partition is not dead.partition or not isinstance(host, StreamHost):
                # They come again when the stream serves.
                self._letters.popleft()
                continue
            self._letters_left = 1
            host.fetch(dead.span.low, dead.span.stop, LETTERS_MAX, partial(self._send_letters, reader, dead))

    def _send_letters(self, reader: Reader, dead: Dead, found: list[Batch]) -> None:
        if self.ended:
            return
        self._letters.popleft()
        partition, span = dead.partition, dead.span
        stop = found[-1].base + 1 if len(found) == LETTERS_MAX else span.stop
        if stop < span.stop:
            self._letters.appendleft(dead._replace(span=span._replace(low=stop)))
        lows = [span.low, *[batch.base + 1 for batch in found]]
        self._letters_left = len(found) + 1
        for batch, low in zip(found, lows, strict=False):
            run = run_of(reader.dressed(batch, 0))
            letter = partial(self._letter_sent, partition, low, batch.base + 1)
            parts = self._services.dead_letters.dead_letter(self.queue, run, dead.reason, letter)
            for _ in parts or ():
                pass
        self._letter_sent(partition, lows[-1], stop, taken=True)

    def _letter_sent(self, partition: Partition, low: int, stop: int, taken: bool) -> None:
        """All targets have a dead letter, or will not take it."""
        if self.ended:
            return
        if low < stop:
            self.group.buried(partition, low, stop)
        self._letters_left -= 1
        self.schedule()

    # -- one by one ------------------------------------------------------------------------------------------------

    def _get(self, given: Consumer) -> None:
        getter = self.group.getters.get(given.key)
        if getter is None:
            getter = Member(given.key, no_ack=given.no_ack, sink=given.sink)
            getter.next_id = given.next_id
        readers = sorted(self._readers.values(), key=lambda each: each.partition.number)
        after = [each for each in readers if each.partition.number > self._last_got]
        self._get_from(getter, deque([*after, *readers[: len(readers) - len(after)]]))

    def _get_from(self, getter: Member, readers: deque[Reader]) -> None:
        """Look for a message in the first of these partitions that has one."""
        while readers:
            reader = readers.popleft()
            partition, host = reader.partition, reader.stream.host
            if not isinstance(host, StreamHost) or partition.cursor < 0 or reader.getting:
                continue
            low = partition.upcoming().low
            if partition.is_open_to(getter) and low < host.end_offset:
                reader.getting = True
                host.fetch(low, host.end_offset, 1, partial(self._fetched, getter, reader, readers, low))
                return
        self._got(getter.key, None)

    def _fetched(
        self, getter: Member, reader: Reader, readers: deque[Reader], low: int, found: list[Batch]
    ) -> None:
        reader.getting = False
        partition = reader.partition
        if self.ended or self.group.partitions.get(partition.stream_id) is not partition:
            self._got(getter.key, None)
            return
        self.group.freed[partition] = None
        self.schedule()
        if getter.key not in self.asking.getting:
            return
        if partition.upcoming().low != low or not partition.is_open_to(getter):
            # Somebody else was faster, or it is read from another place now.
            readers.appendleft(reader)
            self._get_from(getter, readers)
            return
        if not found:
            self._get_from(getter, readers)
            return
        offset = found[0].base
        if partition.passed(low, offset):
            self.group.changed[partition] = None
        span = partition.upcoming()
        again = span.stop != ENDLESS
        first = self.hand(partition, getter, range(offset, offset + 1), offset + 1, span.attempts)
        self.group.getters[getter.key] = getter
        self._last_got = partition.number
        run = run_of(reader.dressed(found[0], span.attempts))
        run.redelivered = again
        self._got(getter.key, Got(run, first))

    # -- where it is -----------------------------------------------------------------------------------------------

    def _purge(self, token: int) -> None:
        """Pass over all that is unread."""
        count = 0
        for reader in self._readers.values():
            host = reader.stream.host
            if isinstance(host, StreamHost) and reader.partition.cursor >= 0:
                count += self.group.skip_unread(reader.partition, host.first_offset, host.end_offset)
                self.group.freed[reader.partition] = None
        self._purged(token, count)

    def move(self, places: Iterable[tuple[Reader, int]]) -> None:
        """Go on at other offsets. What members hold of these partitions is forgotten."""
        for reader, offset in places:
            partition = reader.partition
            self.group.move(partition, offset)
            self._services.marks.mark(self._slots[partition.number], offset - 1)
        self.schedule()


__all__ = ["ConsumerGroupHost", "GroupOptions", "Reader"]
