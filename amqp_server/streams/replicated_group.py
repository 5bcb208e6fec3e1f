"""A consumer group on one of the nodes that keep it.

What its consumers do goes, in batches, into the log that all these nodes share, and takes effect when they apply it: see
quorum_queue.consumer_groups.replica. The leader coordinates: it watches the streams, and proposes what to hand to whom. The
node of a consumer reads what that was given; see group_reading.

A consumer tells how far it was sent what it was given, before it goes and now and then. So what nobody can have seen comes to
the next one as new, and all else comes flagged.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from amqp_server.streams.consumer_group import LETTERS_MAX, RETRY_MS, GroupOptions
from amqp_server.streams.deliver import BatchReader
from amqp_server.streams.group_reading import Due, Reading, Stream, Taker, Watching, end_of
from amqp_server.streams.headed import Headers, cut
from amqp_server.streams.host import StreamHost
from amqp_server.streams.runs import run_of
from quorum_queue.cluster import events
from quorum_queue.cluster.deferred_host import DeferredHost
from quorum_queue.cluster.group import Group
from quorum_queue.cluster.guests import Guest
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.consumer_groups.entries import (
    CodecError,
    Command,
    decode_entry,
    encode_batch,
    encode_entry,
)
from quorum_queue.consumer_groups.group import Member
from quorum_queue.consumer_groups.partition import UNKNOWN, Partition
from quorum_queue.consumer_groups.replica import AHEAD_MAX, Applied, Death, Handed, Replica
from quorum_queue.errors import Unreadable
from quorum_queue.host import Key, answer_publishes
from quorum_queue.local import NodeServices
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.letters import Letter
from quorum_queue.machine.machine import ENQUEUES
from quorum_queue.machine.run import Run
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import ConsumerState, Got, Hosted, Refused
from quorum_queue.raft.members import Members

logger = logging.getLogger("mqd.groups")

#: Commands in one batch.
_COMMANDS_MAX = 1_000
#: What clients have done.
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


class _Client(Taker):
    """A consumer of this node, or of a node that uses this one."""

    __slots__ = ("_host", "_told", "no_ack", "sink")

    def __init__(self, host: ReplicatedGroupHost, consumer: Consumer) -> None:
        super().__init__(consumer.key)
        self._host = host
        self.sink: Any = consumer.sink
        self.no_ack = consumer.no_ack
        self.paused = consumer.paused
        #: The group knows that it was sent all below this id, but for what it is told to be unsent when it leaves.
        self._told = consumer.next_id

    def take(self, due: Due, headers: Headers, reader: BatchReader, count: int) -> None:
        host, sink, again = self._host, self.sink, due.attempts > 0
        host.sent(self, due, count)
        if again or isinstance(sink, Guest):
            batch = headers.batch(cut(reader, count, redelivered=again), due.attempts)
            if isinstance(sink, Guest):
                host.contain(sink, sink.deliver, self, run_of(batch), due.first)
            else:
                source = BatchReader(batch)
                host.contain(sink, sink.deliver_batch, self, source, count, due.first, again)
        else:
            source = headers.reader(reader)
            reader.skip(count)
            host.contain(sink, sink.deliver_batch, self, source, count, due.first, again)
        self._taken(due, count)

    def absent(self, due: Due, count: int) -> None:
        self._host.sent(self, due, count)
        self._host.submit(("settle", self.key, due.first, due.first + count - 1))

    def _taken(self, due: Due, count: int) -> None:
        stop = due.first + count
        if self.no_ack:
            # Whoever needs no ack has it when it is sent.
            self._host.submit(("settle", self.key, due.first, stop - 1))
        if stop - self._told >= AHEAD_MAX // 2:
            self._told = stop
            self._host.submit(("sent", self.key, stop))


class _Getter(Taker):
    """A client that gets messages one by one."""

    __slots__ = ("_consumer", "_host")

    def __init__(self, host: ReplicatedGroupHost, consumer: Consumer, before: Taker | None) -> None:
        """`before`: as what it got messages until now."""
        super().__init__(consumer.key)
        self._host = host
        self._consumer = consumer
        if before is not None:
            self.sent = before.sent

    def take(self, due: Due, headers: Headers, reader: BatchReader, count: int) -> None:
        batch = headers.batch(cut(reader, 1, redelivered=due.attempts > 0), due.attempts)
        run = run_of(batch)
        run.redelivered = due.attempts > 0
        self._host.sent(self, due, 1)
        if self._consumer.no_ack:
            self._host.submit(("settle", self.key, due.first, due.first))
        self._host.got(self.key, Got(run, due.first))

    def absent(self, due: Due, count: int) -> None:
        """There may be another one."""
        self._host.sent(self, due, count)
        self._consumer.next_id = due.first + count
        self._host.submit(("settle", self.key, due.first, due.first + count - 1), ("get", self._consumer))


class _Undertaker(Taker):
    """Sends dead letters of one stream; for the leader."""

    __slots__ = ("_dead", "_host")

    def __init__(self, host: ReplicatedGroupHost, dead: Death) -> None:
        super().__init__()
        self._host = host
        self._dead = dead

    def take(self, due: Due, headers: Headers, reader: BatchReader, count: int) -> None:
        for number in range(count):
            run = run_of(headers.batch(cut(reader, 1), 0))
            self._host.send_letter(due.first + number, run, self._dead)

    def absent(self, due: Due, count: int) -> None:
        self._host.submit(("buried", due.first, count))


class ReplicatedGroupHost(DeferredHost):
    """The host of a consumer group, and the state machine of its Raft group."""

    #: For mypyc; see `closed`.
    __deletable__ = ("group",)

    single = False
    counts_bytes = False
    wants_ids = False
    holds_dead_letters = False
    group: Group

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
        """`streams` tells the partitions as the topology has them now; `has_heard_of`, whether that has come to a queue's
        declaration here."""
        super().__init__(queue, services.turn)
        self.queue_id = queue_id
        self.options = options
        self.replicas = replicas
        self.replica = Replica(options.delivery_limit, dead_letters=options.dead_letters)
        self._services = services
        self._settings = settings
        self._streams = streams
        self._has_heard_of = has_heard_of
        self._own = replicas.own_in(queue_id)
        self._ahead_ms = -(1 << 62)
        #: Attaches, gets, purges and moves on their way: batch, verb, key or token.
        self._asked: list[tuple[int, str, Any]] = []
        self._moving: dict[int, Callable[[Refused | None], None]] = {}
        #: Barriers of those who declared the group, and wait until it is known where it begins.
        self._beginning: list[Callable[..., None]] = []
        #: Who takes messages, by their keys on this node.
        self._takers: dict[Key, Taker] = {}
        self._handed: list[Handed] = []
        self._readings: dict[int, Reading] = {}
        #: When a stream is tried again, and members are looked after; below zero if not.
        self._retry_at = self._watch_at = -1
        #: The leader looks for consumers of nodes that are gone once it has applied this entry.
        self._gone_after = 0
        # What only the leader has.
        self._watching: dict[int, Watching] = {}
        self._stale = True
        #: Streams of which there may be something to hand out.
        self._ready: dict[int, None] = {}
        #: What was proposed and is not applied: the batch, and how much of whose room it takes; and streams of this turn.
        self._planned: dict[int, tuple[int, Key, int]] = {}
        self._planned_gets: dict[Key, int] = {}
        self._planning: list[tuple[int, Key, int]] = []
        self._planning_gets: list[Key] = []
        #: Members whose room was promised to one partition when another had something for them.
        self._turned_away: dict[Key, None] = {}
        #: Streams that were served last come last.
        self._served: dict[int, int] = {}
        self._serves = 0
        self._letters: dict[int, Reading] = {}
        #: Numbers of dead letters that are on their way.
        self._buried: dict[int, None] = {}

    @property
    def title(self) -> str:
        return f"group '{self.queue.name}' in vhost '{self.queue.vhost.name}'"

    def schedule(self) -> None:
        """Have what is to be done done in this turn."""
        if not self.ended:
            self._turn.schedule(self)

    def contain(self, sink: Any, call: Callable[..., None], *arguments: Any) -> None:
        """Call; if that raises, the connection of a client has failed and not the group."""
        self._turn.contain(sink, call, *arguments)

    # -- what it holds ---------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        return self._settings

    def configure(self, settings: Settings) -> None:
        self._settings = settings

    def stream_hosts(self) -> dict[int, StreamHost]:
        """Return what this node knows of the streams, by their ids."""
        return {each.queue_id: each.host for each in self._streams() if isinstance(each.host, StreamHost)}

    @property
    def ready_count(self) -> int:
        hosts, count = self.stream_hosts(), 0
        for stream_id, partition in self.replica.group.partitions.items():
            host = hosts.get(stream_id)
            if host is not None:
                count += partition.unread(host.first_offset, end_of(host))
        return count

    @property
    def ready_bytes(self) -> int:
        return 0

    @property
    def unacked_count(self) -> int:
        return sum([each.held.count for each in self.replica.group.partitions.values()])

    @property
    def consumer_count(self) -> int:
        return len(self.replica.group.members)

    def consumers(self) -> list[ConsumerState]:
        # Only its own node knows whether a consumer needs acks.
        takers, own = self._takers, self._own
        found: list[ConsumerState] = []
        for each in self.replica.group.members.values():
            taker = takers.get(each.key[2:]) if each.key[:2] == own else None
            no_ack = isinstance(taker, _Client) and taker.no_ack
            found.append(ConsumerState(each.key, no_ack, False, each.prefetch, 0, bool(each.owned)))
        return found

    def touch(self) -> None:
        """A group has no lease."""

    def look(self) -> None:
        """An operator looks at what is told of it."""
        for host in self.stream_hosts().values():
            host.look()

    # -- commands --------------------------------------------------------------------------------------------------

    def apply_pending(self) -> None:
        if self.ended:
            self._refuse_pending()
            return
        self._read_on()
        if self.group.is_leader:
            self._coordinate()
        if self.pending or self._pending_barriers:
            self._send_pending()

    @property
    def _has_begun(self) -> bool:
        """Return whether it is known where the group is in each stream: `next` means the time of the declaration."""
        replica = self.replica
        return replica.known and all(each.cursor != UNKNOWN for each in replica.group.partitions.values())

    def barrier(self, done: Callable[..., None]) -> None:
        if self.ended or self._has_begun:
            super().barrier(done)
        else:
            self._beginning.append(done)

    def _send_pending(self) -> None:
        node, incarnation = self._own
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
            for each in part:
                if each[0] in ("attach", "get", "purge", "move"):
                    self._asked.append((number, each[0], each[1]))
            group.submit(encode_batch(node, incarnation, number, part))
        last = group.next_number - 1
        for stream_id, key, count in self._planning:
            self._planned[stream_id] = last, key, count
        for key in self._planning_gets:
            self._planned_gets[key] = last
        self._planning, self._planning_gets = [], []
        self._sent(last, applied=not group.flights)

    def _in_log(self, command: Command) -> list[Command]:
        """Return what a command is in the log."""
        verb = command[0]
        if verb in ENQUEUES:
            # The default exchange led here; all other ways are refused before.
            token = command[2]
            if token is not None:
                publish = self._publishes.pop(token, None)
                if publish is not None:
                    publish.origin.refused(publish.first, publish.last)
            return []
        if verb == "attach":
            consumer = command[1]
            self._takers[consumer.key] = _Client(self, consumer)
            return [("attach", consumer.key, _prefetch(consumer), consumer.next_id)]
        if verb == "get":
            consumer = command[1]
            self._takers[consumer.key] = _Getter(self, consumer, self._takers.get(consumer.key))
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
            self._pause(command[1], paused=command[2])
            return []
        if verb == "detach":
            return self._detach(command[1], gone=command[2])
        if verb in ("tick", "touch"):
            return []
        if verb == "purge" and len(command) == 2:
            self._look_for_ends(command[1])
            return []
        return [command]

    def _pause(self, key: Key, *, paused: bool) -> None:
        taker = self._takers.get(key)
        if taker is not None:
            taker.paused = paused
            if not paused:
                self.schedule()

    def _detach(self, key: Key, *, gone: bool) -> list[Command]:
        """From now on it is sent nothing: what it was not sent goes to others as it is."""
        self._takers.pop(key, None)
        next_id = self._next_ids.get(key)
        commands: list[Command] = []
        if next_id is not None:
            commands = [("unsent", key, low, high - 1) for low, high in self._unsent(key) if low < next_id]
            commands.append(("sent", key, next_id))
        self._drop(lambda due: due.taker.key == key)
        if gone:
            self._next_ids.pop(key, None)
        commands.append(("detach", key, gone))
        return commands

    def _unsent(self, key: Key) -> list[tuple[int, int]]:
        """Return what a consumer was given and not sent yet: from an id up to another one."""
        handed = [
            (each.first, each.first + each.stop - each.low) for each in self._handed if each.key[2:] == key
        ]
        for reading in self._readings.values():
            dues = [each for each in reading.dues if each.taker.key == key]
            handed += [(each.first, each.first + each.stop - each.low) for each in dues]
        return handed

    def _outgoing(self) -> list[Command]:
        # The base forgets the ids of those who go, which are told first.
        known = dict(self._next_ids) if any(each[0] == "detach" for each in self.pending) else {}
        commands = super()._outgoing()
        for key, next_id in known.items():
            self._next_ids.setdefault(key, next_id)
        return commands

    def sent(self, taker: Taker, due: Due, count: int) -> None:
        """A client was sent so many messages of a due."""
        taker.sent[due.stream_id] = next_id = due.first + count
        if next_id > self._next_ids.get(taker.key, 0):
            self._next_ids[taker.key] = next_id

    def got(self, key: Key, got: Got) -> None:
        self._got(key, got)

    def partitions_changed(self) -> None:
        """A stream was declared or deleted, or a super stream has got partitions."""
        self._stale = True
        self.schedule()

    # -- purge, and going elsewhere --------------------------------------------------------------------------------

    def _look_for_ends(self, token: int) -> None:
        """Ask how far the streams are, for a purge."""
        hosts = self.stream_hosts()
        wanted = [each for each in self.replica.group.partitions if each in hosts]
        found: list[list[int]] = []
        left = len(wanted)

        def told(stream_id: int, offsets: range | None) -> None:
            nonlocal left
            left -= 1
            if offsets is not None:
                found.append([stream_id, offsets.start, offsets.stop])
            if not left and not self.ended:
                self.submit(("purge", token, found))

        if not wanted:
            self.submit(("purge", token, found))
        for stream_id in wanted:
            hosts[stream_id].offsets(partial(told, stream_id))

    def move(self, places: Iterable[tuple[int, int]], done: Callable[[Refused | None], None]) -> None:
        """Go on at these offsets of streams. What members hold of these is forgotten."""
        token = self._token()
        self._moving[token] = done
        self.submit(("move", token, [list(each) for each in places]))

    # -- the state machine of the group ----------------------------------------------------------------------------

    @property
    def awaited(self) -> bool:
        return bool(self._sinks)

    def encode(self, batches: list[bytes]) -> bytes:
        self._keep_time()
        return encode_entry(self._services.clock.monotonic_ms() + self._time_ahead_ms, batches)

    def _keep_time(self) -> None:
        """Continue the group's time from its last entry, even if this node's queue time is behind that."""
        ahead_ms = self.replica.now_ms - self._services.clock.monotonic_ms()
        if ahead_ms > self._ahead_ms:
            self._ahead_ms = ahead_ms

    @property
    def _time_ahead_ms(self) -> int:
        return max(self._ahead_ms, self._services.queue_time.ahead_ms)

    def apply(self, index: int, data: bytes) -> None:
        try:
            now_ms, found = decode_entry(data)
            applied = self.replica.apply(index, now_ms, found, self._own)
        except CodecError as error:
            raise Unreadable(
                f"entry {index} of its log can't be read by this version of mqd: {error}"
            ) from None
        self._keep_time()
        self._perform(applied)
        if self._gone_after:
            self._look_for_gone(index)

    def passed(self, index: int) -> None:
        self.replica.applied = index
        if self._gone_after:
            self._look_for_gone(index)

    def passed_over(self, index: int) -> None:
        self.replica.passed_over(index)
        logger.error("%s: entry %d is given up, and its contents are lost", self.title, index)

    def lose_bodies(self, indexes: list[int]) -> None:
        """Entries that were applied are not needed."""

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
        if self._handed or self.pending or (self.group.is_leader and self._has_to_lead()):
            self.schedule()

    def covered(self, applied: int) -> int:
        return applied

    def snapshot(self) -> bytes:
        return self.replica.snapshot()

    @property
    def fills_itself(self) -> bool:
        return False

    def fill(self, state: bytes, peer: str, wanted: Callable[[], bool], then: Callable[[], None]) -> None:
        then()

    def kept(self) -> list[int]:
        return []

    def kept_in(self, state: bytes) -> list[int]:
        return []

    def wanted(self, index: int) -> bool:
        return index > self.group.core.log.snapshot_index

    def released(self) -> list[int]:
        return []

    def last_own_batch(self) -> int:
        incarnation, number = self.replica.batches.get(self._own[0], (0, 0))
        return number if incarnation == self._own[1] else 0

    def begin(self) -> None:
        """The group is open."""
        if self._own != self.replicas.own:
            # The member failed or left before: the first batch of this start ends the earlier one.
            self.group.submit(encode_batch(*self._own, self.group.next_number, []))

    def load(self, state: bytes) -> None:
        """Start from this node's own snapshot. Raises Unreadable."""
        self.replica = self._restored(state)
        self._keep_time()

    def _restored(self, state: bytes) -> Replica:
        options = self.options
        try:
            return Replica.restore(state, options.delivery_limit, dead_letters=options.dead_letters)
        except CodecError as error:
            raise Unreadable(f"its snapshot can't be read by this version of mqd: {error}") from None

    def restore(self, state: bytes) -> None:
        """Jump to a snapshot of the leader's, and hand out what the group gave this node's consumers meanwhile."""
        self.replica = self._restored(state)
        self._keep_time()
        self._handed = []
        self._drop(lambda due: not isinstance(due.taker, _Undertaker))
        last_own = self.last_own_batch()
        group, own = self.replica.group, self._own
        asked = self._asked_until(last_own)
        on_the_way = [key for _, verb, key in self._asked if verb == "attach"]
        on_the_way += [each[1].key for each in self.pending if each[0] == "attach"]
        for verb, key in asked:
            if verb == "attach" and (*own, *key) in group.members:
                self._attached(key, None)
            elif verb == "attach" and key not in self._consumers:
                self._attached(key, "the consumer is gone")
            elif verb == "purge":
                self._purged(key, 0)
            elif verb == "move":
                self._has_moved(key)
        for key, consumer in list(self._consumers.items()):
            if (*own, *key) not in group.members and key not in on_the_way:
                self._attach_again(key, consumer)
        for key, taker in self._takers.items():
            member = group.find((*own, *key))
            for first, portion in member.portions() if member is not None else ():
                stream_id = portion.partition.stream_id
                known = max(taker.sent.get(stream_id, 0), first)
                low = portion.low + known - first
                if low < portion.stop:
                    self._handed.append(
                        Handed((*own, *key), stream_id, known, low, portion.stop, portion.attempts)
                    )
        self._answer_getters()
        self._passed(last_own)
        self.schedule()

    def _answer_getters(self) -> None:
        """Answer those whose answers were in entries that a snapshot stands for."""
        own = self._own
        for key in list(self.asking.getting):
            whole = (*own, *key)
            coming = sum(each[1:] == ("get", key) for each in self._asked)
            coming += sum(each.key == whole for each in self._handed)
            coming += self.replica.getting.get(whole, (0, 0))[1]
            coming += sum(each[0] == "get" and each[1].key == key for each in self.pending)
            while len(self.asking.getting.get(key, ())) > coming:
                self._got(key, None)

    def _asked_until(self, last_own: int) -> list[tuple[str, Any]]:
        """Take the requests of batches up to this one."""
        found: list[tuple[str, Any]] = []
        while self._asked and self._asked[0][0] <= last_own:
            found.append(self._asked.pop(0)[1:])
        return found

    # -- effects ---------------------------------------------------------------------------------------------------

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
        self._handed += applied.handed
        for key in applied.got_nothing:
            self._got(key[2:], None)
        for token, count in applied.purged:
            self._purged(token, count)
        for token in applied.moved:
            self._has_moved(token)
        if number:
            self._passed(number)

    def _answer(self, applied: Applied, number: int) -> None:
        """Own batches up to this one were applied."""
        refused = {key[2:]: reason for key, reason in applied.attached}
        for verb, key in self._asked_until(number):
            if verb == "attach":
                if refused.get(key) is not None:
                    self._takers.pop(key, None)
                self._attached(key, refused.get(key))
        for stream_id, planned in list(self._planned.items()):
            if planned[0] <= number:
                del self._planned[stream_id]
                self._ready[stream_id] = None
                if planned[1] in self._turned_away:
                    self._ask_again(planned[1])
        for key, batch in list(self._planned_gets.items()):
            if batch <= number:
                del self._planned_gets[key]

    def _ask_again(self, key: Key) -> None:
        """What was promised to a member was handed out, or came too late: then its other partitions may have the room."""
        del self._turned_away[key]
        member = self.replica.group.members.get(key)
        if member is not None:
            self._ready.update(dict.fromkeys([each.stream_id for each in member.owned]))

    def _missed(self, batches: range) -> None:
        """What this node's clients did in these batches is lost: answer them, or attach consumers again."""
        for verb, key in self._asked_until(batches[-1]):
            if verb == "purge":
                self._purged(key, 0)
            elif verb == "move":
                self._has_moved(key, Refused("it is not known whether the group was moved; try again"))
            elif verb == "get":
                self._got(key, None)
            elif key in self._consumers:
                self._attach_again(key, self._consumers[key])
            else:
                self._attached(key, "the consumer is gone")

    def _has_moved(self, token: int, refused: Refused | None = None) -> None:
        done = self._moving.pop(token, None)
        if done is not None:
            done(refused)

    def _drop(self, unwanted: Callable[[Due], bool]) -> None:
        for reading in self._readings.values():
            reading.drop(unwanted)

    def _forget(self, stream_id: int) -> None:
        """Nobody holds what was handed out of a stream before."""
        self._handed = [each for each in self._handed if each.stream_id != stream_id]
        for readings in (self._readings, self._letters):
            reading = readings.get(stream_id)
            if reading is not None:
                reading.drop(lambda due: True)

    def _not_sent(self, key: Key) -> None:
        """A consumer does not hold any more what it was given and not sent."""
        self._handed = [each for each in self._handed if each.key[2:] != key]
        self._drop(lambda due: due.taker.key == key)

    def _consumer_gone(self, key: Key) -> None:
        """The group took this node for down: the consumer is attached again, with nothing."""
        self._not_sent(key)
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
        """A consumer has lost its place for good, and is told."""
        logger.warning(
            "%s: consumer '%s' has not acked for %d ms, or the stream is gone: it is cancelled",
            *(self.title, key[-2], self.options.consumer_timeout_ms),
        )
        self._not_sent(key)
        self._takers.pop(key, None)
        consumer = self._consumers.pop(key, None)
        if consumer is None:
            return
        sink = consumer.sink
        if isinstance(sink, Guest):
            sink.tell(events.ATTACHED, key[2:], "the consumer has lost its place in the group")
        else:
            self.queue.consumer_lost(key)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        """Have read what this node's consumers were given."""
        if self._handed and not self.group.behind:
            # Before that it is not known whether they have still got it.
            handed, self._handed = self._handed, []
            for each in handed:
                self._take(each)
        for readings in (self._readings, self._letters):
            for stream_id, reading in list(readings.items()):
                if reading.stream.deleted:
                    reading.close()
                    del readings[stream_id]
                    continue
                reading.go_on()

    def _take(self, handed: Handed) -> None:
        key, stream_id = handed.key[2:], handed.stream_id
        taker = self._takers.get(key)
        if taker is None:
            # It is on its way out.
            return
        reading = self._reading(self._readings, stream_id, "group")
        if reading is None:
            # This node is to hear of the stream yet, or it is deleted.
            self._handed.append(handed)
            self.retry()
            return
        reading.dues.append(Due(taker, stream_id, handed.low, handed.stop, handed.first, handed.attempts))

    def _reading(self, readings: dict[int, Reading], stream_id: int, kind: str) -> Reading | None:
        found = readings.get(stream_id)
        if found is None:
            stream = self._stream(stream_id)
            if stream is None:
                return None
            found = readings[stream_id] = Reading(self, stream, kind)
        return found

    def _stream(self, stream_id: int) -> Stream | None:
        return next((each for each in self._streams() if each.queue_id == stream_id), None)

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
            self._stale = True
            self.schedule()
        if 0 <= self._watch_at <= now:
            self._watch_at = -1
            if self.group.is_leader:
                before = now + self._time_ahead_ms - self.options.consumer_timeout_ms
                if self.replica.group.stuck(before):
                    self.submit(("stuck", before))
                self.schedule()
        for at_ms in (self._retry_at, self._watch_at):
            if at_ms >= 0:
                timers.wake(self, at_ms)

    # -- the leader ------------------------------------------------------------------------------------------------

    def leader_changed(self) -> None:
        self._planned, self._planned_gets = {}, {}
        self._planning, self._planning_gets, self._turned_away = [], [], {}
        self._ready = dict.fromkeys(self.replica.group.partitions)
        self._buried = {}
        for reading in self._letters.values():
            reading.close()
        self._letters = {}
        if self.group.is_leader:
            self._stale = True
            self.gone_members()
            self.schedule()
        else:
            for watching in self._watching.values():
                watching.close()
            self._watching = {}

    def members_changed(self, members: Members) -> None:
        if self.group.is_leader:
            self.gone_members()
        elif self.group.flights:
            # This node may have been no member for a while, in which the leader took nothing from it.
            self.group.sent_to = ("", 0)
            self.replicas.touch(self.group)

    def _has_to_lead(self) -> bool:
        replica = self.replica
        group = replica.group
        return bool(
            self._stale
            or self._ready
            or group.freed
            or group.roomy
            or replica.getting
            or replica.dead
            or len(group.partitions) != len(self._watching)
        )

    def _coordinate(self) -> None:
        """Propose what is to be done."""
        if self._stale:
            self._stale = False
            self._look_for_streams()
        self._watch_streams()
        group, ready = self.replica.group, self._ready
        freed, group.freed = group.freed, {}
        roomy, group.roomy = group.roomy, {}
        ready.update(dict.fromkeys([each.stream_id for each in freed]))
        for member in roomy:
            ready.update(dict.fromkeys([each.stream_id for each in member.owned]))
        if self.replica.getting:
            self._serve_getters()
        self._ready = {}
        order = sorted(ready, key=lambda each: self._served.get(each, 0)) if len(ready) > 1 else list(ready)
        taken = [*self._planned, *[stream_id for stream_id, _, _ in self._planning]]
        for stream_id in order:
            partition = group.partitions.get(stream_id)
            if partition is not None and stream_id not in taken:
                self._plan(partition)
        if self.replica.dead:
            self._bury()
        if self._watch_at < 0:
            self._watch_members()

    def _look_for_streams(self) -> None:
        known = self.replica.group.partitions
        streams = {each.queue_id: each.name for each in self._streams()}
        come = [[stream_id, name] for stream_id, name in streams.items() if stream_id not in known]
        # A stream that this node has not heard of yet is not gone.
        gone = [each for each in known if each not in streams and self._has_heard_of(each)]
        if come or gone or not self.replica.known:
            self.pending.append(("streams", come, gone))

    def _watch_streams(self) -> None:
        partitions, watching = self.replica.group.partitions, self._watching
        for stream_id in [each for each in watching if each not in partitions]:
            watching.pop(stream_id).close()
        for stream_id, partition in partitions.items():
            found = watching.get(stream_id)
            if found is None:
                stream = self._stream(stream_id)
                if stream is None:
                    continue
                start = self.options.start if partition.cursor == UNKNOWN else None
                found = watching[stream_id] = Watching(self, stream, start)
            found.attach()

    def began(self, watching: Watching, offset: int) -> None:
        if self.group.is_leader:
            self.submit(("begin", watching.stream.queue_id, offset))

    def grew(self, stream_id: int) -> None:
        if stream_id not in self._ready:
            self._ready[stream_id] = None
            self.schedule()

    def _room(self, member: Member) -> int:
        """Return how much room a member has beside what is promised to it."""
        room = member.room()
        for _, key, count in self._planned.values():
            if key == member.key:
                room -= count
        for _, key, count in self._planning:
            if key == member.key:
                room -= count
        return room

    def _plan(self, partition: Partition) -> None:
        """Propose to hand out what is next of a partition."""
        stream_id = partition.stream_id
        watching, member = self._watching.get(stream_id), partition.active()
        offsets = watching.offsets() if watching is not None else None
        if offsets is None or partition.cursor == UNKNOWN:
            return
        span = partition.upcoming()
        if span.low < offsets.start:
            # It is gone.
            self.pending.append(("passed", stream_id, span.low, offsets.start))
            self._planning.append((stream_id, (), 0))
            return
        if member is None or span.low >= offsets.stop or partition.span_count > self.options.spans_max:
            return
        room = self._room(member)
        if room <= 0:
            if member.room() > 0:
                self._turned_away[member.key] = None
            return
        stop = min(span.stop, offsets.stop, span.low + room)
        self.pending.append(("hand", stream_id, member.key, span.low, stop))
        self._planning.append((stream_id, member.key, stop - span.low))
        self._serves += 1
        self._served[stream_id] = self._serves

    def _serve_getters(self) -> None:
        """Propose what those get who wait for single messages."""
        group = self.replica.group
        taken = {stream_id for stream_id, _, _ in self._planning}
        for key in self.replica.getting:
            if key in self._planned_gets or key in self._planning_gets:
                continue
            getter = group.getters.get(key) or Member(key, channel=key[:-2])
            waits = not self.group.informed
            for partition in sorted(
                group.partitions.values(), key=lambda each: self._served.get(each.stream_id, 0)
            ):
                stream_id = partition.stream_id
                watching = self._watching.get(stream_id)
                offsets = watching.offsets() if watching is not None else None
                if offsets is None or stream_id in self._planned or stream_id in taken:
                    waits = True
                    continue
                low = partition.upcoming().low
                if partition.cursor == UNKNOWN or low < offsets.start:
                    waits = True
                    continue
                if low < offsets.stop and partition.is_open_to(getter):
                    taken.add(stream_id)
                    self.pending.append(("hand", stream_id, key, low, low + 1))
                    self._planning.append((stream_id, (), 0))
                    self._planning_gets.append(key)
                    self._serves += 1
                    self._served[stream_id] = self._serves
                    waits = True
                    break
            if not waits:
                self.pending.append(("nothing", key))
                self._planning_gets.append(key)

    def _watch_members(self) -> None:
        """Be woken when the first member may be stuck."""
        due = self.replica.group.due_ms()
        if due is not None:
            self._watch_at = due + self.options.consumer_timeout_ms - self._time_ahead_ms + 1
            self._services.timers.wake(self, self._watch_at)

    # -- dead letters ----------------------------------------------------------------------------------------------

    def _bury(self) -> None:
        """Send what has died, some at once."""
        dead = self.replica.dead
        firsts = [each.first for each in dead]
        self._buried = {number: None for number in self._buried if _is_among(number, firsts, dead)}
        for each in dead:
            stream_id, (low, stop, _) = each.partition.stream_id, each.span
            reading = self._reading(self._letters, stream_id, "group letters")
            if reading is None:
                self.retry()
                continue
            for offset in range(low, stop):
                if len(self._buried) >= LETTERS_MAX:
                    break
                number = each.first + offset - low
                if number not in self._buried:
                    self._buried[number] = None
                    reading.dues.append(
                        Due(_Undertaker(self, each), stream_id, offset, offset + 1, number, 0)
                    )
            reading.go_on()
            if len(self._buried) >= LETTERS_MAX:
                return

    def send_letter(self, number: int, run: Run, dead: Death) -> None:
        """Send a dead letter. Another leader may have sent it before: its number tells the targets."""

        def done(taken: bool) -> None:
            # Whether targets have it, or will not take it.
            if not self.ended and self.group.is_leader:
                self.submit(("buried", number, 1))

        letter = Letter(self.queue_id, number, self.replica.dead[0].first if self.replica.dead else number)
        for _ in self._services.dead_letters.dead_letter(self.queue, run, dead.reason, done, letter) or ():
            pass

    # -- nodes -----------------------------------------------------------------------------------------------------

    def gone_members(self) -> None:
        """As the leader, propose the end of consumers of nodes that are down or no members, and of earlier starts.

        What they did before may still be on its way into the log or through it, and is applied first.
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

    # -- the end ---------------------------------------------------------------------------------------------------

    def hand_over(self, to: DeferredHost, *, failed: bool = False) -> None:
        self._pending_barriers += self._beginning
        self._beginning = []
        # What this member had to say itself is not for another one.
        self.pending = [command for command in map(_as_asked, self.pending) if command[0] in _ASKED]
        self.replicas.leave(self.queue_id)
        super().hand_over(to, failed=failed)

    def _release(self) -> None:
        for reading in [*self._readings.values(), *self._letters.values()]:
            reading.close()
        for watching in self._watching.values():
            watching.close()
        self._readings, self._letters, self._watching = {}, {}, {}
        self._takers.clear()
        self._handed = []
        if self.ended == "failed":
            self.replicas.stop(self.group)
        else:
            self.replicas.close(self.group)

    def _refuse_askers(self, why: Refused) -> None:
        super()._refuse_askers(why)
        beginning, self._beginning = self._beginning, []
        for passed in beginning:
            passed(why)
        moving, self._moving = self._moving, {}
        for done in moving.values():
            done(why)

    def _refuse_pending(self) -> None:
        pending, self.pending = self.pending, []
        answer_publishes(pending, confirm=False)

    def closed(self) -> None:
        # They refer to each other.
        del self.group


def _is_among(number: int, firsts: list[int], dead: list[Death]) -> bool:
    """Return whether this letter is one of those that have died; `firsts` are their numbers, in order."""
    place = bisect_right(firsts, number) - 1
    if place < 0:
        return False
    found = dead[place]
    return number - found.first < found.span.stop - found.span.low


def _as_asked(command: Command) -> Command:
    return command[:2] if command[0] == "purge" else command


def _settle(commands: list[Command], command: Command) -> None:
    """Add an ack. Many that follow each other are one."""
    _, key, low, high = command
    if commands:
        last = commands[-1]
        if last[0] == "settle" and last[1] == key and last[3] == low - 1:
            commands[-1] = ("settle", key, last[2], high)
            return
    commands.append(command)


def _prefetch(consumer: Consumer) -> int:
    """Return how many messages it may hold."""
    window = consumer.window
    if window is not None and not consumer.window_limit:
        consumer.limit(consumer.own_prefetch, getattr(window, "limit", 0))
    return 0 if consumer.no_ack else consumer.prefetch


__all__ = ["ReplicatedGroupHost"]
