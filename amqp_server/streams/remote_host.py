"""A stream on a node that is none of its members.

Publishes of this node's clients go to a member, as for a quorum queue on other nodes. Consumers have their
positions here: this node asks a member for the messages at an offset, and asks another one when there is no
answer. So a consumer neither goes back nor skips messages when a member stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from amqp_server.streams.beginnings import NO_MAJORITY
from amqp_server.streams.layout.consumer_start import NAMES_FULL, Start
from amqp_server.streams.layout.encode import Encoded
from amqp_server.streams.layout.named_offsets import NAME_ABSENT, Progress
from amqp_server.streams.local_host import StreamConsumer, StreamHost, StreamServices
from amqp_server.streams.members.entries import Note
from amqp_server.streams.members.named_offsets import after_deletion, deletion, kept_decoder
from amqp_server.streams.members.replica import Kept
from amqp_server.streams.members.requests import NOTHING, Asks
from amqp_server.streams.node_named_offsets import NodeNames
from amqp_server.streams.taking_over import begin_named, lose_name, refuse, take_over
from persistence.streams import batch as batches
from persistence.streams.batch import Batch, Damaged, StoredBatch, stored_of
from persistence.streams.log import READ_BYTES, Lost
from persistence.streams.retention import RetentionLimits
from persistence.streams.segment import batches_of, stored_batches_of
from quorum_queue.cluster import frames
from quorum_queue.cluster.frames import StreamWord
from quorum_queue.cluster.queues.remote_host import RemoteHost
from quorum_queue.host import MOVED, Key
from quorum_queue.machine.attributes import MAJORITY
from quorum_queue.machine.machine import ENQUEUES, Command
from quorum_queue.machine.parts import TransactionId
from quorum_queue.machine.seal import Sealed
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.versions import NAMES_REFUSED
from quorum_queue.ports import Hosted, Refused

logger = logging.getLogger("mqd.streams")

#: Time until another member is asked, ms.
RETRY_MS = 500
#: Messages at the end of the stream that are kept for consumers that follow it, bytes.
TAIL_BYTES_MAX = 4 * READ_BYTES
#: Age at which the figures of a stream for operators are asked for again, ms.
FRESH_MS = 1_000
#: Interval at which a member is asked whether other nodes have taken the names of consumers here, ms.
NAMES_MS = 1_000


class Told(Encoded):
    """A batch that a member has sent. `data` is the whole batch as the member has it, for consumers that
    decode it themselves.
    """

    __slots__ = ("data",)

    def __init__(self, batch: Batch, data: memoryview) -> None:
        super().__init__(batch, [])
        self.data = data


class Publisher(RemoteHost):
    """Sends publishes to a member."""

    def _lose_consumers(self) -> None:
        """Does nothing: there are no consumers."""

    @property
    def place(self) -> str:
        """The node and its incarnation."""
        return f"{self._node}/{self._incarnation}"


def _meant(start: Start, word: StreamWord) -> int:
    """Return the offset that `start` means, by the answer of a member."""
    return {"first": word.first, "next": word.stop}.get(start.name, word.value)


class StreamRemoteHost(StreamHost):
    knows_taken = False
    shares_names = True
    in_journal = False
    takes_parts = True
    parts_have_acks = False

    def __init__(
        self,
        queue: Hosted,
        queue_id: int,
        services: StreamServices,
        settings: Settings,
        publisher: Publisher,
        asks: Asks,
        home: Callable[[str], str],
        members: Callable[[], tuple[str, ...]],
        version: Callable[[], int],
    ) -> None:
        """`home` returns the member to ask, if possible another member than its argument; `version` is the
        one that all nodes know.
        """
        self._members = members
        self.publisher = publisher
        self._asks = asks
        self._home = home
        self._pending_barriers: list[Callable[..., None]] = []
        self._following = self._caught_up = False
        #: The member that could not answer, and the members whose copy at an offset is damaged.
        self._avoid = ""
        self._damaged_at: dict[int, dict[str, None]] = {}
        #: The last answer of a member about the stream, and when it was asked.
        self._word = NOTHING
        self._asked_ms = -FRESH_MS
        #: Consumers whose first offset is being looked up, or has to be looked up again; and until when.
        self._beginning: dict[StreamConsumer, tuple[Start, int]] = {}
        #: Time of the last answer about names, and whether a question is in progress.
        self._names_told_ms = 0
        self._asks_for_names = False
        super().__init__(queue, queue_id, services, RetentionLimits(), None, settings)
        self._node_names = NodeNames(
            f"{publisher.place}/away",
            services.options.names_max,
            send=self._send_notes,
            begin=self._named_begins,
            lose=self._loses_name,
            refuse=lambda key: refuse(self, key, NAMES_FULL),
            keeps=lambda: version() >= NAMES_REFUSED,
        )

    def _recover(self) -> None:
        """Does nothing: this node has no data."""

    # -- what it holds, as far as a member has told ----------------------------------------------------------

    def look(self) -> None:
        """Refresh the figures of the stream soon."""
        now = self._services.clock.monotonic_ms()
        if now - self._asked_ms >= FRESH_MS and not self.ended:
            self._asked_ms = now
            self._ask(frames.ASK_OFFSETS, 0, self._heard_offsets)

    def _heard_offsets(self, word: StreamWord) -> None:
        if word.what == frames.TOLD_FOUND:
            self._note(word)

    def _note(self, word: StreamWord) -> None:
        self._word = word
        self.next_offset = max(self.next_offset, word.stop)

    @property
    def first_offset(self) -> int:
        return self._word.first

    def offsets(self, done: Callable[[range | None], None]) -> None:
        """Ask a member each time: an old answer would look as if messages were deleted."""

        def told(word: StreamWord | None) -> None:
            done(None if word is None else range(word.first, max(word.first, word.stop)))

        self._ask_once(frames.ASK_OFFSETS, 0, told)

    def _ask_once(self, what: int, value: int, done: Callable[[StreamWord | None], None]) -> None:
        """Ask one member for a client that waits; None: it does not know, or this host has ended."""

        def told(word: StreamWord) -> None:
            if self.ended or word.what != frames.TOLD_FOUND:
                self._avoid = peer
                done(None)
                return
            self._note(word)
            done(word)

        peer = self._home(self._avoid)
        if self.ended or not peer:
            done(None)
        else:
            self._asks.ask(peer, self.queue_id, what, value, self, told)

    def place_of(self, start: Start, found: Callable[[int | Refused], None]) -> None:
        """Find the offset that `start` means: a member is asked."""

        def told(word: StreamWord | None) -> None:
            if word is None:
                found(Refused("no member of the stream answers"))
            else:
                offset = _meant(start, word) if start.offset is None else start.offset
                found(min(max(offset, word.first), word.stop))

        self._ask_once(*self._question(start), told)

    def _question(self, start: Start) -> tuple[int, int]:
        """Return what a member is asked, with a value, to find out what `start` means."""
        if start.name == "last":
            return frames.ASK_LAST, frames.STRICTLY
        if start.name or start.offset is not None:
            return frames.ASK_OFFSETS, frames.STRICTLY
        return frames.ASK_FIND, max(self._time_of(start), 0)

    @property
    def first_ms(self) -> int | None:
        return self._word.first_ms or None

    @property
    def ready_count(self) -> int:
        return max(self.publisher.ready_count, self.next_offset - self._word.first)

    @property
    def ready_bytes(self) -> int:
        return self.publisher.ready_bytes

    # -- commands --------------------------------------------------------------------------------------------

    def apply_pending(self) -> None:
        self._apply_commands()
        if self._to_serve:
            self._serve_all()
        self._follow()
        if self._node_names.by_key and not self.ended:
            self._node_names.flush(self._progress)
        barriers, self._pending_barriers = self._pending_barriers, []
        for done in barriers:
            self.publisher.barrier(done)

    def barrier(self, done: Callable[..., None]) -> None:
        if self.ended:
            done()
            return
        self._pending_barriers.append(done)
        self._turn.schedule(self)

    def catch_up(self, done: Callable[..., None]) -> None:
        """A member tells how many messages there are, after it has caught up."""

        def passed(refused: Refused | None = None) -> None:
            if refused is not None:
                done(refused)
            else:
                self.offsets(lambda found: done())

        if not self.ended:
            self.publisher.submit(("tick",))
        self.barrier(passed)

    def seal(self, condition: int, done: Callable[[Sealed | Refused], None]) -> None:
        def passed(refused: Refused | None = None) -> None:
            # Publishes of this node come first.
            self.publisher.seal(condition, done)

        if self.ended:
            self._seal_in_order(condition, done)
        else:
            self.barrier(passed)

    def begin_large(self, content: bytes, head: bytes, channel: int) -> None:
        """Does nothing: a member encodes the message."""
        return None

    def _step_of_part(self, command: Command) -> None:
        self.publisher.submit(command)

    def prepare(
        self,
        transaction: TransactionId,
        count: int,
        queues: list[int],
        done: Callable[[int | Refused], None],
        level: int = MAJORITY,
    ) -> None:
        # Commands that are pending here go to the publisher before it.
        self._apply_commands()
        self.publisher.prepare(transaction, count, queues, done, level)

    def _enqueue(self, commands: list[Command]) -> None:
        self.publisher.submit(*commands)

    # -- the way to the members ------------------------------------------------------------------------------

    def received(self, found: list[tuple[Any, ...]]) -> None:
        """Handle events about publishes."""
        self.publisher.received(found)

    def link_down(self, node: str) -> None:
        self.publisher.link_down(node)

    def drain(self, then: Callable[[], None]) -> None:
        self.publisher.drain(then)

    def resume(self) -> None:
        self.publisher.resume()

    def hand_over(self, to: Any, *, failed: bool = False) -> None:
        """Hand the clients over to this node's own member."""
        self.ended = "moved"
        take_over(self, to)
        publisher = self.publisher
        to.pending += [
            command for command in publisher.pending if command[0] in ENQUEUES or command[0] == "resolve"
        ]
        # A transaction of which a part is missing is rolled back.
        to.pending += [command for command in self.pending if command[0] not in ("pend", "prepare")]
        barriers = publisher._pending_barriers + self._pending_barriers
        publisher.pending, publisher._pending_barriers = [], []
        self.pending, self._pending_barriers = [], []
        for done in barriers:
            to.barrier(done)
        publisher.ended = "moved"
        publisher._end(MOVED)
        self._refuse_askers(MOVED)
        self._release()
        self._turn.schedule(to)

    def close(self) -> None:
        """Called when the queue is deleted."""
        if self.ended:
            return
        self.ended = "deleted"
        self._release()
        self._refuse_pending()
        self.publisher.close()
        barriers, self._pending_barriers = self._pending_barriers, []
        for done in barriers:
            done()
        self._refuse_askers(Refused("the queue was deleted"))

    def _ask(self, what: int, value: int, done: Callable[[StreamWord], None], data: bytes = b"") -> None:
        peer = self._home(self._avoid)
        if not peer:
            self._wait()
            done(NOTHING)
            return
        self._asks.ask(peer, self.queue_id, what, value, self, partial(self._told, peer, value, done), data)

    def _told(self, peer: str, value: int, done: Callable[[StreamWord], None], word: StreamWord) -> None:
        if self.ended:
            return
        if word.what in (frames.TOLD_FOUND, frames.TOLD_GONE, frames.TOLD_LOST):
            self._note(word)
            self._damaged_at.pop(value, None)
        else:
            self._avoid = peer
            if word.what == frames.TOLD_DAMAGED:
                self._damaged_at.setdefault(value, {})[peer] = None
        done(word)

    def _is_damaged(self, offset: int) -> bool:
        """Return whether all members have answered that they cannot read this offset."""
        damaged_at = self._damaged_at.get(offset, {})
        return all(name in damaged_at for name in self._members())

    def _wait(self) -> None:
        self._services.timers.wake(self, self._services.clock.monotonic_ms() + RETRY_MS)

    def wake(self) -> None:
        if self.ended:
            return
        self._begin_again()
        self._to_serve.update(dict.fromkeys(self._consumers.values()))
        self._serve_all()
        self._follow()
        if self._node_names.by_key:
            self._node_names.flush(self._progress)
            self._look_at_names()

    # -- offsets by name -------------------------------------------------------------------------------------

    def _begin_named(self, consumer: StreamConsumer, start: Start) -> None:
        progress = self._progress[consumer.key] = Progress(start.group)
        self._node_names.add(consumer.key, start.group, progress)
        self._turn.schedule(self)

    def _named_begins(self, key: Key, offset: int) -> None:
        begin_named(self, key, offset)

    def _loses_name(self, key: Key) -> None:
        lose_name(self, key)

    def _keep(self, key: Key, progress: Progress) -> None:
        self._node_names.acked(key)
        self._turn.schedule(self)

    def _send_notes(self, notes: list[Note]) -> None:
        data = msgspec.msgpack.encode((notes, self._node_names.names))
        self._ask(frames.ASK_NAMES, 0, self._noted, data)

    def _noted(self, word: StreamWord) -> None:
        """Handle the answer to notes about names: the log has them, or the member could not help."""
        names = self._node_names
        if word.what != frames.TOLD_FOUND:
            names.failed()
            self._wait()
            return
        names.logged(self._kept_in(word))
        if names.by_key:
            names.flush(self._progress)

    def _kept_in(self, word: StreamWord) -> dict[str, Kept]:
        now = self._names_told_ms = self._services.clock.monotonic_ms()
        self._services.timers.wake(self, now + NAMES_MS)
        return kept_decoder.decode(word.data)

    def kept_names(self, done: Callable[[list[tuple[str, int | None]] | Refused], None]) -> None:
        done(Refused("a member of the stream has to be asked"))

    def delete_name(self, name: str, done: Callable[[Refused | None], None]) -> None:
        def found(word: StreamWord) -> None:
            kept = kept_decoder.decode(word.data) if word.what == frames.TOLD_FOUND else None
            if kept is None:
                done(Refused("no member of the stream answers"))
            elif name not in kept:
                done(NAME_ABSENT)
            else:
                data = msgspec.msgpack.encode(([deletion(name, kept[name].owner)], [name]))
                self._ask(frames.ASK_NAMES, 0, lambda answer: done(after_deletion(name, answer)), data)

        self._ask(frames.ASK_NAMES, 0, found, msgspec.msgpack.encode(([], [name])))

    def _look_at_names(self) -> None:
        """Ask from time to time whether consumers of other nodes have taken names."""
        if self._asks_for_names:
            return
        now, due_ms = self._services.clock.monotonic_ms(), self._names_told_ms + NAMES_MS
        if now < due_ms:
            self._services.timers.wake(self, due_ms)
            return
        self._asks_for_names = True
        data = msgspec.msgpack.encode(([], self._node_names.names))
        self._ask(frames.ASK_NAMES, 0, self._heard_of_names, data)

    def _heard_of_names(self, word: StreamWord) -> None:
        self._asks_for_names = False
        if word.what == frames.TOLD_FOUND:
            self._node_names.heard(self._kept_in(word))
        else:
            self._wait()

    def _schedule_upkeep(self) -> None:
        """Does nothing: this node writes no segments."""

    # -- consuming -------------------------------------------------------------------------------------------

    def _begin(self, consumer: StreamConsumer, start: Start) -> None:
        if start.offset is not None:
            self._begins(consumer, start.offset)
            self._follow()
            return
        if consumer not in self._beginning:
            deadline_ms = self._services.clock.monotonic_ms() + self._services.options.begin_timeout_ms
            self._beginning[consumer] = start, deadline_ms
            self._services.timers.wake(self, deadline_ms)
        consumer.reading = True
        what, value = self._question(start)
        if start.name == "first":
            # Whatever is published, the consumer gets.
            self.has_begun(consumer)
            value = 0
        self._ask(what, value, partial(self._found, consumer, start))

    def _begin_again(self) -> None:
        """Look up again where consumers begin, unless their clients have waited too long."""
        now, due_ms = self._services.clock.monotonic_ms(), 0
        for consumer, (start, deadline_ms) in list(self._beginning.items()):
            if deadline_ms > now:
                due_ms = min(due_ms or deadline_ms, deadline_ms)
            elif consumer.key in self.asking.attaching:
                refuse(self, consumer.key, NO_MAJORITY)
                continue
            if not consumer.reading:
                self._begin(consumer, start)
        if due_ms:
            self._services.timers.wake(self, due_ms)

    def _found(self, consumer: StreamConsumer, start: Start, word: StreamWord) -> None:
        if self.ended or consumer.detached:
            self._beginning.pop(consumer, None)
            return
        consumer.reading = False
        if word.what != frames.TOLD_FOUND:
            self._wait()
            return
        self._beginning.pop(consumer, None)
        self._begins(consumer, _meant(start, word))
        self._follow()

    def _detach(self, key: Any) -> None:
        consumer = self._consumers.get(key)
        if consumer is not None:
            self._beginning.pop(consumer, None)
        super()._detach(key)

    def _follow(self) -> None:
        """Ask for new messages at the end of the stream, as long as there are consumers."""
        if self._following or self.ended or not self._consumers:
            return
        self._following = True
        if not self._caught_up:
            self._ask(frames.ASK_OFFSETS, 0, self._followed_first)
        else:
            self._ask(frames.ASK_FOLLOW, self._synced, self._followed)

    def _followed_first(self, word: StreamWord) -> None:
        self._following = False
        if word.what == frames.TOLD_FOUND and word.stop >= self._synced:
            self._caught_up = True
            self._comes_to(word.stop)
        else:
            self._wait()

    def _comes_to(self, stop: int) -> None:
        """Note that the stream reaches up to this offset."""
        self._drop_tail()
        self._synced = max(self._synced, stop)
        self._served()

    def _served(self) -> None:
        if not self._consumers:
            self._caught_up = False
            self._drop_tail()
            return
        self._to_serve.update(dict.fromkeys(self._consumers.values()))
        self._serve_all()
        self._follow()

    def _followed(self, word: StreamWord) -> None:
        self._following = False
        if word.what == frames.TOLD_GONE:
            self._comes_to(word.value)
            return
        told = self._batches_of(word) if word.what == frames.TOLD_FOUND else []
        found = [encoded for encoded in told if encoded.batch.stop > self._synced]
        if not found or found[0].batch.base > self._synced:
            self._caught_up = False
            self._wait()
            return
        if any(not encoded.batch.count for encoded in found):
            # The range is compacted: consumers read it from the members.
            self._comes_to(found[-1].batch.stop)
            return
        for encoded in found:
            self._add(encoded)
            self._synced = encoded.batch.stop
        while self._tail_bytes > TAIL_BYTES_MAX:
            self._forget_first()
        self._served()

    def _forget_first(self) -> None:
        size = self._tail.pop(0).batch.size
        self._tail_bytes -= size
        self._services.tail_bytes -= size
        self._services.memory.used -= size

    def _drop_tail(self) -> None:
        while self._tail:
            self._forget_first()

    def _batches_of(self, word: StreamWord) -> list[Told]:
        data = memoryview(word.data)
        try:
            return [Told(batch, data[at : at + head.size]) for at, head, batch in batches_of(word.data)]
        except Damaged as error:
            self._note_damaged(error)
            return []

    def _stored_in_tail(self, encoded: Encoded) -> StoredBatch:
        assert isinstance(encoded, Told)
        return stored_of([encoded.data])

    def _read_of(self, consumer: StreamConsumer, word: StreamWord) -> list[Batch]:
        """Return the batches in the form that this consumer gets."""
        if not consumer.batches:
            return [told.batch for told in self._batches_of(word)]
        try:
            return list[Batch](stored_batches_of(word.data))
        except Damaged as error:
            self._note_damaged(error)
            return []

    def _note_damaged(self, error: Damaged) -> None:
        logger.error("stream '%s': a member has sent damaged messages: %s", self.queue.name, error)

    def _read(self, consumer: StreamConsumer, offset: int) -> None:
        if consumer.reading:
            return
        consumer.reading = True
        self._ask(frames.ASK_READ, offset, partial(self._has_got, consumer, consumer.reads, offset))

    def _has_got(self, consumer: StreamConsumer, reads: int, offset: int, word: StreamWord) -> None:
        if self.ended or consumer.detached:
            return
        consumer.reading = False
        if reads != consumer.reads:
            self._serve(consumer)
            return
        if word.what == frames.TOLD_GONE:
            consumer.next_offset = max(consumer.next_offset, word.value)
            self._serve(consumer)
        elif word.what == frames.TOLD_LOST or (word.what == frames.TOLD_DAMAGED and self._is_damaged(offset)):
            self._damaged_at.pop(offset, None)
            self._note_lost(Lost(offset, word.value, "no member of the stream can read them"))
            consumer.next_offset = max(consumer.next_offset, word.value)
            self._serve(consumer)
        else:
            found: list[Batch] = []
            if word.what == frames.TOLD_FOUND:
                found = self._read_of(consumer, word)
            found = [batch for batch in found if batch.stop > offset]
            if not found or found[0].base > offset:
                self._wait()
                return
            self._give(consumer, found)

    def _give(self, consumer: StreamConsumer, found: list[Batch]) -> None:
        wanted = consumer.wanted
        stop = found[-1].stop
        found = [batch for batch in found if batch.count]
        if wanted is not None:
            unfiltered = wanted.unfiltered
            found = [
                batch
                for batch in found
                if batches.matches(batch.values, wanted.values, unfiltered=unfiltered)
            ]
        if found:
            consumer.ahead.extend(found)
            self._services.count_held(consumer, sum([batch.size for batch in found]))
        else:
            consumer.next_offset = max(consumer.next_offset, stop)
        self._serve(consumer)


__all__ = ["Publisher", "StreamRemoteHost"]
