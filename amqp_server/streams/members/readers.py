"""The consumers of a stream on one of its members: where they begin, their reads from the member's own copy,
and their names.

A consumer waits where this member lacks messages; it never skips messages that other members have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from outcome import Error, Outcome

from amqp_server.streams.beginnings import Beginnings
from amqp_server.streams.layout.consumer_start import NAMES_FULL, Start
from amqp_server.streams.layout.named_offsets import NAME_ABSENT, Progress
from amqp_server.streams.members.answers import MemberAnswers
from amqp_server.streams.members.entries import Note
from amqp_server.streams.members.named_offsets import LoggedNames
from amqp_server.streams.members.segments import MemberSegments
from amqp_server.streams.members.start_offset import Finding
from amqp_server.streams.readers import AWAY
from amqp_server.streams.stream_consumer import StreamConsumer
from amqp_server.streams.taking_over import begin_named, lose_name, refuse
from persistence.streams.log import Read
from persistence.streams.remote.objects import Unavailable
from quorum_queue.host import Key
from quorum_queue.machine.versions import NAMES_REFUSED
from quorum_queue.ports import Refused


class MemberReaders(MemberSegments):
    """The part of a member's host that serves consumers. See StreamMemberHost."""

    finding: Finding
    names: LoggedNames
    _answers: MemberAnswers
    #: Consumers that begin when this member has everything that was confirmed when they came.
    beginnings: Beginnings
    #: Consumers that begin at `first`, and wait until it is known where that is.
    _beginning: dict[StreamConsumer, Start]

    # -- where the stream begins and ends --------------------------------------------------------------------

    def offsets(self, done: Callable[[range | None], None]) -> None:
        self.reach_committed(partial(self._tell_offsets, done))

    def _tell_offsets(self, done: Callable[[range | None], None], why: Refused | None = None) -> None:
        if why is None and self._opened:
            super().offsets(done)
        else:
            done(None)

    def place_of(self, start: Start, found: Callable[[int | Refused], None]) -> None:
        self.reach_committed(partial(self._find_place, start, found))

    def _find_place(
        self, start: Start, found: Callable[[int | Refused], None], why: Refused | None = None
    ) -> None:
        if why is not None:
            found(why)
        elif self.missing_count or not self._opened:
            # The message of that time may be among the missing ones.
            found(Refused("this node fetches messages that it lacks"))
        else:
            super().place_of(start, found)

    def reach_committed(self, done: Callable[..., None]) -> None:
        """Call `done` when this member has applied everything that any member knows as committed now, or with
        the reason for a failure.
        """

        def caught_up(known: bool) -> None:
            if known:
                done()
            else:
                done(Refused(self.ended_text or "no majority of the stream's members answers"))

        if self.ended:
            done(Refused(self.ended_text))
        else:
            self.group.catch_up(caught_up)

    # -- offsets by name -------------------------------------------------------------------------------------

    def _begin_named(self, consumer: StreamConsumer, start: Start) -> None:
        progress = self._progress[consumer.key] = Progress(start.group)
        self.names.add(consumer.key, start.group, progress)
        self._turn.schedule(self)

    def named_begins(self, key: Key, offset: int) -> None:
        """Called when a consumer has got its name; see NodeNames."""
        begin_named(self, key, offset)

    def loses_name(self, key: Key) -> None:
        """Called when another consumer has taken the name of this one."""
        lose_name(self, key)

    def refuses_name(self, key: Key) -> None:
        """Called when there is no place for the name of a consumer."""
        refuse(self, key, NAMES_FULL)

    def keeps_names(self) -> bool:
        """Return whether all nodes know that names stay until they are deleted."""
        return self.replicas.version() >= NAMES_REFUSED

    def kept_names(self, done: Callable[[list[tuple[str, int | None]] | Refused], None]) -> None:
        def reached(why: Refused | None = None) -> None:
            if why is not None:
                done(why)
                return
            kept = self.replica.names.items()
            done([(name, None if offset < 0 else offset) for name, (offset, _) in kept])

        self.reach_committed(reached)

    def delete_name(self, name: str, done: Callable[[Refused | None], None]) -> None:
        def reached(why: Refused | None = None) -> None:
            kept = self.replica.names.get(name)
            if why is not None:
                done(why)
            elif kept is None:
                done(NAME_ABSENT)
            else:
                self.names.delete(name, kept.owner, done)

        self.reach_committed(reached)

    @property
    def progress(self) -> dict[Key, Progress]:
        """Return the progress of consumers with names."""
        return self._progress

    def submit_notes(self, notes: list[Note]) -> None:
        self._submit([], notes=notes)

    def _keep(self, key: Key, progress: Progress) -> None:
        self._node_names.acked(key)
        self._turn.schedule(self)

    # -- consuming -------------------------------------------------------------------------------------------

    def _begin(self, consumer: StreamConsumer, start: Start) -> None:
        if start.offset is not None:
            super()._begin(consumer, start)
        elif start.name != "first":
            self.beginnings.add(consumer, start)
        elif self.group.informed:
            self._begins(consumer, self.first_offset)
        else:
            # The state of this member may be out of date. Whatever is published, the consumer gets.
            self.has_begun(consumer)
            self._beginning[consumer] = start
            self.replicas.touch(self.group)

    def refuses(self, consumer: StreamConsumer, why: str) -> bool:
        """Refuse a consumer, unless its client has consume-ok, on another host: such a one waits on."""
        if consumer.key not in self.asking.attaching:
            return False
        refuse(self, consumer.key, why)
        return True

    def begin_at(self, consumer: StreamConsumer, start: Start, stop: int = -1) -> None:
        """Begin a consumer at `next`, `last` or a time: this member has everything from before it came. If
        its client has consume-ok already, `stop` is the end of the stream at that moment.
        """
        if start.name == "next":
            self._begins(consumer, self._synced)
        else:
            consumer.reading = True
            self.finding.find(start, partial(self._found, consumer, start, stop))

    def _begin_waiting(self) -> None:
        """Begin the waiting consumers that can begin now."""
        if self._beginning and self.group.informed:
            beginning, self._beginning = self._beginning, {}
            for consumer, start in beginning.items():
                if not consumer.detached:
                    self._begin(consumer, start)
        self.beginnings.whole()

    def _detach(self, key: Key) -> None:
        consumer = self._consumers.get(key)
        if consumer is not None:
            self.beginnings.drop(consumer)
        super()._detach(key)

    def time_meant(self, start: Start) -> int:
        """Return the time that a consumer begins at, in ms."""
        return self._time_of(start)

    def _found(self, consumer: StreamConsumer, start: Start, stop: int, offset: int) -> None:
        if self.ended or consumer.detached:
            return
        consumer.reading = False
        if offset == AWAY:
            self._cannot_read(consumer, "the remote does not answer")
            return
        if stop >= 0:
            # Others may have published meanwhile.
            offset = min(offset, max(stop - 1, self.first_offset) if start.name == "last" else stop)
        self._begins(consumer, offset)

    def _read(self, consumer: StreamConsumer, offset: int) -> None:
        if consumer.reading:
            return
        away = self.is_remote(offset)
        if self.tier is not None and not away and self.replica.first_offset <= offset < self._log.first_kept:
            # The consumer continues when this member knows again where they are.
            self.replicas.touch(self.group)
            return
        missing = offset >= self._stored or any(
            low <= offset < stop for low, stop in self.filling.missing.items()
        )
        if missing and not away:
            # The consumer continues when other members have sent the messages.
            self.filling.go_on()
            return
        consumer.reading = True
        done = partial(self._has_read_at, consumer, consumer.reads, offset)
        self._read_segments(offset, consumer.place, consumer.wanted, done, undecoded=consumer.batches)

    def _has_read_at(self, consumer: StreamConsumer, reads: int, offset: int, outcome: Outcome[Read]) -> None:
        if self.ended or consumer.detached:
            return
        consumer.reading = False
        if isinstance(outcome, Error):
            if isinstance(outcome.error, Unavailable):
                self._cannot_read(consumer, outcome.error)
            else:
                self._turn.contain(self, outcome.unwrap)
            return
        read = outcome.unwrap()
        reached = read.place.offset
        for lost in read.lost:
            self.filling.miss(lost)
        if any(low < reached and stop > offset for low, stop in self.filling.missing.items()):
            # Messages behind damaged ones are not handed out before the repair.
            consumer.place = None
            self._serve_up_to_damage(consumer, reads, offset, read)
            self.filling.go_on()
            return
        self._give(consumer, reads, read)

    def _serve_up_to_damage(self, consumer: StreamConsumer, reads: int, offset: int, read: Read) -> None:
        """Deliver the messages before the first damaged range of this read."""
        low = min(low for low, stop in self.filling.missing.items() if stop > offset)
        before = [batch for batch in read.batches if batch.stop <= low]
        if before and reads == consumer.reads:
            consumer.ahead.extend(before)
            self._services.count_held(consumer, sum([batch.size for batch in before]))
            self._serve(consumer)

    def _give(self, consumer: StreamConsumer, reads: int, read: Read) -> None:
        if reads == consumer.reads:
            ends = read.place.base < 0
            consumer.place = None if ends else read.place
            consumer.ahead.extend(read.batches)
            self._services.count_held(consumer, sum([batch.size for batch in read.batches]))
            if ends and consumer.reader is None and not consumer.ahead:
                # The segments end here. The next message is in memory, or not published yet.
                reached = max(consumer.next_offset, read.place.offset)
                consumer.next_offset = self.filling.given_up.get(reached, reached)
        self._serve(consumer)

    def _progressed(self) -> None:
        """There may be more messages for consumers, here and on other nodes."""
        self._begin_waiting()
        if self._consumers:
            self._to_serve.update(dict.fromkeys(self._consumers.values()))
            self._serve_all()
        self._answers.has_more()


__all__ = ["MemberReaders"]
