"""The host of a consumer group: a queue whose messages are those of streams, and whose consumers share the
partitions.

It stores no messages, only its position in each stream: see quorum_queue.consumer_groups. It has one reader
for each stream, which stays while members come and go, and hands messages to the member that owns the
partition. Messages that come back are read again. See docs/adr/0028-consumer-groups.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from amqp_server.streams.consumer_groups.dead_messages import DeadMessages
from amqp_server.streams.consumer_groups.gets import Gets
from amqp_server.streams.consumer_groups.local_reader import Reader
from amqp_server.streams.consumer_groups.member_reading import Stream
from amqp_server.streams.consumer_groups.options import RETRY_MS, GroupOptions
from amqp_server.streams.consumer_groups.positions import GroupPlaces
from amqp_server.streams.layout.consumer_start import Start
from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.local_host import StreamHost
from quorum_queue.consumer_groups.group import PORTIONS_MAX, Group, Key, Member
from quorum_queue.consumer_groups.partition import Partition
from quorum_queue.host import DELETED, QueueHost, answer_publishes
from quorum_queue.local_host import NodeServices
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.machine import ENQUEUES, Command
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import ConsumerState, Got, Hosted, Refused
from quorum_queue.steps import in_later_steps

logger = logging.getLogger("mqd.groups")

FIRST = Start("first")
SETTLEMENTS = frozenset({"settle", "return", "discard"})


class ConsumerGroupHost(QueueHost):
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
        """`streams` returns the current partitions. See GroupPlaces for `slots` and `keep_slots`."""
        super().__init__(queue, services.turn)
        self.queue_id = queue_id
        self.options = options
        self.group = Group(options.delivery_limit)
        self._services = services
        self._settings = settings
        self._streams = streams
        self._readers: dict[int, Reader] = {}
        #: True if the partitions may have changed.
        self._stale = True
        #: Messages were handed out: the member may not ack them in time.
        self._handed = False
        #: When to check members, to try a stream again, and to commit acks; below zero: never.
        self._watch_at = self._retry_at = self._commit_at = -1
        #: Members that have held messages for too long, and whose deliveries are about to come back.
        self._losing: dict[Key, None] = {}
        #: Large transactions that are being committed, and the commands that wait for their end.
        self._holds = 0
        self._waiting: list[Command] = []
        self._dead = DeadMessages(services, self._turn)
        self._gets = Gets()
        self._places = GroupPlaces(queue_id, services, slots, keep_slots, self._name)
        self.schedule()

    @property
    def _name(self) -> str:
        return f"consumer group '{self.queue.name}' in vhost '{self.queue.vhost.name}'"

    def schedule(self) -> None:
        """Schedule this host's work for this turn."""
        self._turn.schedule(self)

    @property
    def partition_count(self) -> int:
        return len(self.group.partitions)

    def partitions_changed(self) -> None:
        """A stream was declared or deleted, or a super stream has got partitions."""
        if not self._stale:
            self._stale = True
            self.schedule()

    # -- what it holds ---------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def readers(self) -> list[Reader]:
        return list(self._readers.values())

    def reader(self, stream_id: int) -> Reader | None:
        """Return the reader of a stream."""
        return self._readers.get(stream_id)

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
    def unacked_bytes(self) -> int:
        return 0

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
        """Nothing to do when an operator looks at the group."""

    def can_settle(self, key: Key, low: int, high: int) -> bool:
        member = self.group.find(key)
        return member is not None and member.holds(low, high)

    # -- commands --------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """A large transaction that acks messages of the group begins: until it is complete nothing is taken
        from members.
        """
        self._holds += 1

    def unhold(self) -> None:
        self._holds -= 1
        if not self._holds:
            self.pending[:0], self._waiting = self._waiting, []
            self.schedule()

    def apply_pending(self) -> None:
        while not self.ended and self.pending:
            commands, self.pending = self.pending, []
            if self._holds:
                self._waiting += [command for command in commands if command[0] not in SETTLEMENTS]
                commands = [command for command in commands if command[0] in SETTLEMENTS]
            left = self._apply(commands)
            if not left:
                self._go_on()
                continue
            # Until all messages are back nothing goes on: new ones might overtake them.
            self.pending = left + self.pending
            if self._turn.overdue():
                self._turn.later(self, self.apply_pending)
                return
        if self.ended:
            self._refuse_pending()
        else:
            self._go_on()
        if not self._waiting:
            self._pass_all()

    def _apply(self, commands: list[Command]) -> list[Command]:
        """Apply commands; return those that are left, because they concern very many messages."""
        group = self.group
        ranges: list[tuple[int, int]] = []
        for place, command in enumerate(commands):
            verb = command[0]
            if verb in SETTLEMENTS:
                key, low, high = command[1:]
                member = group.find(key)
                last = high if member is None else member.last_of_part(low, high)
                ranges.append((low, last))
                after = commands[place + 1] if place + 1 < len(commands) else None
                is_part = last < high or (after is not None and len(ranges) >= PORTIONS_MAX)
                if is_part or after is None or after[:2] != command[:2]:
                    # There may be thousands of acks of one member.
                    self._settle(verb, key, ranges)
                    ranges = []
                if is_part:
                    rest = commands[place + 1 :]
                    return [(verb, key, last + 1, high), *rest] if last < high else rest
            elif verb == "attach":
                self._attach(command[1])
            elif verb == "detach":
                if not self._detach(command[1], gone=command[2]):
                    return commands[place:]
            elif verb == "pause":
                self._pause(command[1], paused=command[2])
            elif verb == "tick":
                # The window of a channel has room again.
                group.roomy.update(dict.fromkeys(group.members.values()))
            elif verb == "get":
                self._gets.get(self, command[1])
            elif verb == "purge":
                self._purge(command[1])
            elif verb == "move":
                self._move(command[1])
            elif verb in ENQUEUES:
                # The default exchange routed this publish here; other routes to a group are refused earlier.
                answer_publishes([command], gone=False)
        return []

    def _settle(self, verb: str, key: Key, ranges: list[tuple[int, int]]) -> None:
        if verb == "settle":
            self.group.settle_many(key, ranges)
        elif verb == "return":
            self.group.give_back_many(key, ranges)
        else:
            self.group.discard_many(key, ranges)

    def _go_on(self) -> None:
        """Do the work that follows from the last changes."""
        group = self.group
        if self._stale and not self._holds:
            self._stale = False
            self._look_for_partitions()
        group.rebalance()
        if group.dead:
            self._dead.bury(self)
        if self._dead:
            self._dead.send_next(self)
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
        if self.pending or self._waiting or self._stale:
            self.begin_asking().barriers.append((0, done))
            self.schedule()
        else:
            done()

    def close(self) -> None:
        self.ended = "deleted"
        self._release()
        self._places.drop()
        self._refuse_pending()
        self._refuse_askers(DELETED)

    def stop(self, why: Refused) -> None:
        """Stop serving clients, and keep the stored state."""
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
            # The member gives back its share of its channel's window, but for what its client holds.
            member.end()
            member.leave_behind()
        self.group = Group()
        in_later_steps(self._turn, group.let_go(), "a group that is deleted could not be freed")
        self._dead.clear()

    def _refuse_pending(self) -> None:
        commands, self.pending, self._waiting = [*self._waiting, *self.pending], [], []
        answer_publishes(commands, gone=False)

    # -- members ---------------------------------------------------------------------------------------------

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

    def _detach(self, key: Key, *, gone: bool) -> bool:
        """A member leaves; return False if more is to come back from it, by another call."""
        known = key in self.group.members
        # First it gets nothing more. Its partitions are nobody's until all of it is back.
        again = gone and self.group.comes_back_in_parts(key)
        self.group.leave(key, gone=gone and not again)
        if gone:
            self.asking.getting.pop(key, None)
        if known:
            self.queue.consumer_gone(self.consumer_count)
        if again:
            self.group.come_back(key)
        elif key in self._losing:
            del self._losing[key]
            # Look for the next one that holds messages for too long.
            self._handed = True
        return not again

    def _pause(self, key: Key, *, paused: bool) -> None:
        member = self.group.members.get(key)
        if member is not None:
            member.paused = paused
            if not paused:
                self.group.roomy[member] = None

    def _serve(self, partition: Partition) -> None:
        """Let the reader of a partition continue if a member or a get may have messages."""
        reader = self._readers.get(partition.stream_id)
        if reader is None or reader.position < 0 or reader.getting or partition.cursor < 0:
            return
        member = partition.active()
        if member is not None and member.room() > 0:
            reader.go_on()

    def hand(
        self, partition: Partition, member: Member, offsets: range | list[int], stop: int, attempts: int
    ) -> int:
        """Hand these messages to a member; return the member's id of the first one."""
        fresh = offsets[-1] >= partition.cursor
        first = self.group.hand(
            partition, member, offsets, stop, attempts, self._services.clock.monotonic_ms()
        )
        if fresh:
            self._places.mark(partition, offsets[-1])
        if self._watch_at < 0 and not self._handed:
            self._handed = True
            self.schedule()
        if member.no_ack:
            self.schedule()
        return first

    def overdue(self) -> bool:
        """True if the turn has lasted long enough."""
        return self._turn.overdue()

    def got(self, key: Key, got: Got | None) -> None:
        """Answer a client that gets messages one by one; None if there is no message."""
        self._got(key, got)

    def deliver(self, member: Member, reader: BatchReader, count: int, first: int, *, again: bool) -> None:
        """Send these messages to a member; an error here fails the member's connection, not the group."""
        sink = member.sink
        self._turn.contain(sink, sink.deliver_batch, member, reader, count, first, again)

    def _watch(self) -> None:
        """Set the timer for members that hold messages for too long."""
        due = None if self._losing else self.group.due_ms()
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
            if member.key in self._losing:
                continue
            logger.warning(
                "%s: consumer '%s' has not acked for %d ms and is cancelled",
                self._name,
                member.key[2],
                self.options.consumer_timeout_ms,
            )
            self._losing[member.key] = None
            self.pending.append(("detach", member.key, True))
            self.queue.consumer_lost(member.key)
        self._watch()
        self.schedule()

    # -- partitions ------------------------------------------------------------------------------------------

    def _look_for_partitions(self) -> None:
        group = self.group
        streams: dict[int, Stream] = {each.queue_id: each for each in self._streams()}
        gone = [each for each in group.partitions if each not in streams]
        group.forget([group.partitions[each] for each in gone])
        for stream_id in gone:
            reader = self._readers.pop(stream_id)
            reader.close()
            group.remove(stream_id)
            # Its dead messages can no longer be read.
            self._dead.go_on()
        places = self._places
        numbers = places.free_numbers(group.partitions.values(), len(streams))
        for stream_id, stream in streams.items():
            if stream_id not in group.partitions:
                self._add(stream, numbers)
            elif not self._readers[stream_id].attaching and not self._readers[stream_id].attached:
                self._read(self._readers[stream_id])
        places.keep_numbers()
        if streams and not places.known:
            places.note_known()
        if not streams:
            places.forget()
            for key in list(group.members):
                group.leave(key, gone=True)
                self.queue.consumer_lost(key)

    def _add(self, stream: Stream, numbers: Iterator[int]) -> None:
        places = self._places
        number, place = places.take(stream.queue_id)
        if number < 0:
            number = places.new_number(numbers)
        partition = Partition(stream.queue_id, stream.name, number)
        self.group.add(partition)
        start = FIRST if places.known else self.options.start
        if place is not None:
            cursor, pending = places.resumed(number, place)
            start = Start(offset=cursor)
            self.group.begin(partition, cursor, pending)
        reader = self._readers[stream.queue_id] = Reader(self, partition, stream, start)
        self._read(reader)

    def _read(self, reader: Reader) -> None:
        """Attach the group's reader to the stream."""
        reader.attaching = True
        partition = reader.partition
        if partition.cursor >= 0:
            reader.start = Start(offset=partition.upcoming().low)
        consumer = Consumer(reader.key, sink=reader)

        def attached(refused: str | None) -> None:
            reader.attaching = False
            if reader.closed:
                # The stream has been told already that this reader goes.
                return
            if refused is None:
                reader.attached = True
                reader.stream.subscribe(reader.key, reader)
            else:
                self._retry()

        reader.stream.host.attach(consumer, attached)

    def lost(self, reader: Reader) -> None:
        """A stream is deleted, or does not serve."""
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
        """Called when the first offset of a reader is known."""
        partition = reader.partition
        self._dead.go_on()
        if partition.cursor < 0:
            self.group.begin(partition, offset)
        else:
            self.group.freed[partition] = None
        self.schedule()

    # -- what is stored --------------------------------------------------------------------------------------

    def _store(self) -> None:
        """Store the group's position in each partition."""
        changed, self.group.changed = self.group.changed, {}
        for partition in changed:
            if partition.cursor >= 0 and self.group.partitions.get(partition.stream_id) is partition:
                self._places.store(partition)
        if self._commit_at < 0:
            # Clients that wait for the disk, for example for the answer to tx.commit, make the group commit
            # immediately.
            self._commit_at = self._services.clock.monotonic_ms() + self.options.commit_ms
            self._services.timers.wake(self, self._commit_at)

    # -- where it is -----------------------------------------------------------------------------------------

    def _purge(self, token: int) -> None:
        """Skip all unread messages."""
        count = 0
        for reader in self._readers.values():
            host = reader.stream.host
            if isinstance(host, StreamHost) and reader.partition.cursor >= 0:
                count += self.group.skip_unread(reader.partition, host.first_offset, host.end_offset)
                self.group.freed[reader.partition] = None
        self._purged(token, count)

    def move(self, places: Iterable[tuple[Reader, int]]) -> None:
        """Continue at other offsets. The group forgets the messages that members hold of these partitions."""
        self.submit(("move", list(places)))

    def _move(self, places: list[tuple[Reader, int]]) -> None:
        places = [place for place in places if not place[0].closed]
        self.group.forget([reader.partition for reader, _ in places])
        for reader, offset in places:
            partition = reader.partition
            self.group.move(partition, offset)
            self._places.mark(partition, offset - 1)


__all__ = ["ConsumerGroupHost"]
