"""Channels, consumers, deliveries and acks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.model.spec.channels import Channel, Delivered, Held, Session
from tests.model.spec.messages import Copy, Flag, Presence
from tests.model.spec.promises import (
    ACCESS_REFUSED,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    OK,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    RESOURCE_LOCKED,
    Broken,
    Promise,
    refused,
    success,
)
from tests.model.spec.queues import EARLY_S, Consumer, Queue
from tests.model.spec.streams import Log, Reader
from tests.model.spec.topology import Topology


@dataclass(eq=False)
class Consuming(Topology):
    def open_channel(self, session: Session, number: int, open_now: int = 0) -> Promise:
        """`open_now` is the number of channels that the user has."""
        limit = session.user.channels_max
        if limit is not None and open_now >= limit:
            return refused(NOT_ALLOWED)
        return success(lambda _: session.channels.update({number: Channel(session, number)}))

    def close_channel(self, channel: Channel) -> None:
        """The channel is gone: what it held goes back."""
        channel.session.channels.pop(channel.number, None)
        self._give_back(channel)
        for consumer in list(channel.consumers.values()):
            self._remove_consumer(consumer)
            if self.broker.nodes > 1:
                self._come_back_unseen(consumer.queue)
        for reader in channel.readers.values():
            reader.over = True

    def channel_closed(self, channel: Channel) -> None:
        """The broker has closed the channel: what it held may still be on its way back to other nodes."""
        held = [*channel.unacked.values(), *(held for _, _, held in channel.tx_settles)]
        self.close_channel(channel)
        for each in held:
            if self.broker.nodes > 1 and each.copy is not None and not each.copy.gone:
                each.copy.presence = min(each.copy.presence, Presence.COMING)

    @staticmethod
    def _come_back_unseen(queue: Queue) -> None:
        """Nobody has waited for what need not be there: it may have been on its way to one that is gone."""
        for copy in queue.line():
            if copy.presence is Presence.MAYBE and copy.flag is Flag.NO:
                copy.flag, copy.returns = Flag.EITHER, (copy.returns[0], copy.returns[1] + 1)

    def _give_back(self, channel: Channel) -> None:
        held = list(channel.unacked.values()) + [held for _, _, held in channel.tx_settles]
        channel.unacked, channel.tx_settles, channel.tx_publishes = {}, [], []
        for each in held:
            if each.copy is not None and isinstance(each.queue, Queue) and each.copy.held:
                each.queue.withdraw(each.copy, requeue=True, lost=True)
        self._trim(held)

    @staticmethod
    def _trim(returned: list[Held]) -> None:
        """What came back may be too much for its queue."""
        for queue in dict.fromkeys(each.queue for each in returned):
            if isinstance(queue, Queue):
                queue.trim()

    def _remove_consumer(self, consumer: Consumer) -> None:
        consumer.channel.consumers.pop(consumer.tag, None)
        queue = consumer.queue
        queue.lose(consumer)
        ends = queue.auto_delete and not queue.protected
        if ends and not queue.consumers and self.queues.get(queue.name) is queue:
            self.remove_queue(queue)
            if not self.broker.prompt:
                self.vanishing.append(queue.name)

    def close_session(self, session: Session) -> None:
        consumers = [c for channel in session.channels.values() for c in channel.consumers.values()]
        several = [c.queue for c in consumers if sum(o.queue is c.queue for o in consumers) > 1]
        for channel in session.channels.values():
            # Before an auto-delete queue goes with a consumer of another channel.
            self._give_back(channel)
        for channel in list(session.channels.values()):
            self.close_channel(channel)
        for left in dict.fromkeys(several):
            self.leave_together(left)
        for queue in list(self.queues.values()):
            if isinstance(queue, Queue) and queue.owner is session:
                self.remove_queue(queue)

    def leave_together(self, queue: Queue, *, again: bool = True) -> None:
        """Several consumers left at once: what one held may have been on its way to the next one."""
        limit = queue.settings.delivery_limit
        for copy in queue.line():
            if again:
                copy.flag = Flag.EITHER if copy.flag is Flag.NO else copy.flag
                copy.returns = (copy.returns[0], copy.returns[1] + 1)
            if limit is not None and copy.returns[1] > limit:
                # It came back once too often.
                self.dead_letter(queue, copy, "delivery_limit", certain=False)

    def consume(
        self,
        channel: Channel,
        name: str,
        tag: str,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> Promise:
        arguments = arguments or {}
        queue = self.queues.get(name)
        codes = set()
        if not channel.session.user.may("read", name):
            codes.add(ACCESS_REFUSED)
        if queue is None:
            codes.add(NOT_FOUND)
        elif self.unread_by(channel.session.user, queue):
            codes.add(ACCESS_REFUSED)
        elif self.locked(queue, channel.session):
            codes.add(RESOURCE_LOCKED)
        if tag in channel.consumers or tag in channel.readers:
            codes.add(NOT_ALLOWED)
        if isinstance(queue, Queue) and "x-stream-batches" in arguments:
            codes.add(PRECONDITION_FAILED)
        if isinstance(queue, Log):
            codes |= self._reading_codes(channel, no_ack, arguments)
            if arguments.get("x-stream-offset") == "committed" and not codes:
                admitted, refused_too = queue.may_take_name(arguments["x-group"])
                codes = ({OK} if admitted else set()) | ({PRECONDITION_FAILED} if refused_too else set())
                if OK in codes:

                    def begin(_: Any) -> None:
                        self._start_reader(channel, queue, tag, arguments)

                    return Promise(frozenset(codes), begin)
        elif queue is not None and (
            any(c.exclusive for c in queue.consumers)
            or (exclusive and (queue.consumers or queue.single_active))
        ):
            codes.add(ACCESS_REFUSED)
        elif (
            queue is not None
            and queue.kind == "stream-group"
            and not self.streams_of(queue.arguments["x-stream"])
        ):
            codes.add(RESOURCE_ERROR)
        if codes or queue is None:
            return Promise(frozenset(codes))
        if isinstance(queue, Log):
            return success(lambda _: self._start_reader(channel, queue, tag, arguments))

        def consuming(_: Any) -> None:
            consumer = Consumer(
                tag, channel, queue, no_ack, channel.prefetch, arguments.get("x-priority", 0), exclusive
            )
            consumer.timeout_ms = arguments.get("x-consumer-timeout")
            queue.consumers.append(consumer)
            channel.consumers[tag] = consumer
            queue.lease, queue.joined_at = None, self.step

        return success(consuming)

    @staticmethod
    def _reading_codes(channel: Channel, no_ack: bool, arguments: dict[str, Any]) -> set[int]:
        if no_ack:
            return {NOT_IMPLEMENTED, PRECONDITION_FAILED}
        if not channel.prefetch or "x-priority" in arguments:
            return {PRECONDITION_FAILED}
        looks_at_messages = "x-stream-filter" in arguments or "x-stream-timestamps" in arguments
        if "x-stream-batches" in arguments and looks_at_messages:
            return {PRECONDITION_FAILED}
        return set()

    def _start_reader(self, channel: Channel, log: Log, tag: str, arguments: dict[str, Any]) -> None:
        offset = arguments.get("x-stream-offset", "next")
        named = offset == "committed"
        if named:
            offset = arguments["x-stream-offset-default"]
        low, high = log.count()
        if self.broker.nodes > 1:
            # Messages of a transaction come a moment after its commit.
            low -= sum(copy.presence is Presence.SURE and copy.arrived is None for copy in log.entries)
        if not self.broker.exact_counts:
            low = 0
        start = (
            {"first": (0, 0), "next": (low, high), "last": (0, high)}.get(offset)
            if isinstance(offset, str)
            else (offset, offset)
        )
        assert start is not None
        reader = Reader(
            tag, channel, log, channel.prefetch, start, tuple(arguments.get("x-stream-filter", ()))
        )
        reader.batched = bool(arguments.get("x-stream-batches"))
        reader.timed = bool(arguments.get("x-stream-timestamps"))
        reader.channel_step = self.step if offset != "last" else 1 << 60
        if not isinstance(offset, str):
            reader.channel_step = self.step if offset <= low else 1 << 60
        if named:
            log.take_name(reader, arguments["x-group"], start)
        log.readers.append(reader)
        channel.readers[tag] = reader

    def cancel(self, channel: Channel, tag: str) -> Promise:
        def cancelled(_: Any) -> None:
            if tag in channel.consumers:
                self._remove_consumer(channel.consumers[tag])
            elif tag in channel.readers:
                channel.readers.pop(tag).over = True

        return success(cancelled)

    def qos(self, channel: Channel, count: int, is_global: bool) -> Promise:
        def changed(_: Any) -> None:
            if is_global:
                channel.global_prefetch = count
            else:
                channel.prefetch = count

        return success(changed)

    def get(self, channel: Channel, name: str, *, no_ack: bool) -> Promise:
        queue = self.queues.get(name)
        if not channel.session.user.may("read", name):
            return refused(ACCESS_REFUSED)
        if queue is None:
            return refused(NOT_FOUND)
        if self.locked(queue, channel.session):
            return refused(RESOURCE_LOCKED)
        if isinstance(queue, Log):
            return refused(NOT_IMPLEMENTED)
        if self.unread_by(channel.session.user, queue):
            return refused(ACCESS_REFUSED)

        def got(delivered: Delivered | None) -> None:
            queue.used()
            if delivered is not None:
                self._taken(channel, queue, delivered, None, no_ack)
                low, high = queue.count()
                counted = queue.kind != "stream-group" and not self.broker.old
                if counted and not low <= delivered.remaining <= high:
                    raise Broken(
                        f"{queue.name}: get-ok says that {delivered.remaining} messages remain where {low} to {high} is right"
                    )
            elif not queue.racing and queue.kind != "stream-group":
                ready = [
                    c
                    for c in queue.line()
                    if queue.certainly_ready(c) and queue.open_for(c, channel, no_ack=no_ack)
                ]
                if ready and not queue.deliveries_paused:
                    raise Broken(f"{queue.name}: get-empty, and {ready[0]} is ready")

        return success(got)

    def on_delivery(self, channel: Channel, delivered: Delivered) -> None:
        reader = channel.readers.get(delivered.consumer)
        if reader is None and delivered.consumer in channel.ended_readers:
            ended_reader, step = channel.ended_readers[delivered.consumer]
            # It was on its way when another client deleted the stream.
            reader = ended_reader if self.step <= step + (self.broker.nodes > 1) else None
        if reader is not None and reader.batched:
            raise Broken(f"{reader.log.name}: reader {reader.tag} got a message, and asked for batches")
        if reader is not None:
            reader.take(int(delivered.headers["x-stream-offset"]), delivered.number)
            # Only this broker tells times.
            reader.check_time(delivered.headers.get("x-stream-timestamp"), told=self.broker.exact_counts)
            self._check_tag(channel, delivered.tag)
            offset = int(delivered.headers["x-stream-offset"])
            channel.unacked[delivered.tag] = Held(None, reader.log, None, reader, offset)
            return
        consumer = channel.consumers.get(delivered.consumer)
        ended = channel.ended.get(delivered.consumer)
        if consumer is None and ended is not None and self.broker.nodes > 1:
            # It was on its way from another node.
            self._check_tag(channel, delivered.tag)
            if not ended.no_ack:
                channel.unacked[delivered.tag] = Held(None, ended.queue, None)
            return
        if consumer is None:
            raise Broken(f"message {delivered.number} came to {delivered.consumer!r}, which does not consume")
        self._taken(channel, consumer.queue, delivered, consumer, consumer.no_ack)

    def on_batch(
        self,
        channel: Channel,
        tag: int,
        consumer: str,
        headers: dict[str, Any],
        stored: list[tuple[int, int]],
    ) -> None:
        """A reader got a whole batch: offsets and numbers of its messages."""
        reader = channel.readers.get(consumer)
        if reader is None and consumer in channel.ended_readers:
            ended_reader, step = channel.ended_readers[consumer]
            reader = ended_reader if self.step <= step + (self.broker.nodes > 1) else None
        if reader is None or not reader.batched:
            raise Broken(f"a batch came to {consumer!r}, which did not ask for it")
        skip, first, after = (int(headers[f"x-stream-{name}"]) for name in ("skip", "offset", "next-offset"))
        if int(headers["x-stream-count"]) != len(stored) or (skip and reader.got and not reader.log.compacts):
            raise Broken(f"{reader.log.name}: a batch of {len(stored)} messages has the headers {headers}")
        if not stored or not first <= stored[0][0] <= stored[-1][0] < after:
            raise Broken(f"{reader.log.name}: a batch of the offsets {stored} has the headers {headers}")
        kept = stored[skip:]
        for at, (offset, number) in enumerate(kept):
            reader.take(offset, number, first=at == 0)
        self._check_tag(channel, tag)
        channel.unacked[tag] = Held(None, reader.log, None, reader, first, tuple(each for each, _ in kept))

    def _taken(
        self, channel: Channel, queue: Queue, delivered: Delivered, consumer: Consumer | None, no_ack: bool
    ) -> None:
        came_by = (delivered.exchange, delivered.key)
        copy = queue.find(delivered.number, delivered.redelivered, delivered.deaths, came_by)
        queue.take(copy, self.sent_at, consumer, channel, no_ack=no_ack)
        if (delivered.exchange, delivered.key) != (copy.exchange, copy.key):
            raise Broken(
                f"{queue.name}: {copy} has the exchange and key {(delivered.exchange, delivered.key)} where {(copy.exchange, copy.key)} is right"
            )
        if delivered.size != copy.message.size:
            raise Broken(
                f"{queue.name}: {copy} has {delivered.size} bytes where {copy.message.size} is right"
            )
        if copy.deaths and not delivered.deaths:
            raise Broken(f"{queue.name}: {copy} has no x-death where {copy.deaths} is right")
        self._check_returns(queue, copy, delivered)
        self._check_tag(channel, delivered.tag)
        if queue.kind == "stream-group":
            copy.offset = int(delivered.headers["x-stream-offset"])
        copy.safe = False
        if no_ack:
            copy.leave(self.step)
        else:
            copy.held, copy.flag = True, Flag.YES
            channel.unacked[delivered.tag] = Held(copy, queue, consumer, since=self.sent_at)

    @staticmethod
    def _check_returns(queue: Queue, copy: Copy, delivered: Delivered) -> None:
        if queue.kind != "quorum" or copy.deaths:
            return
        count = int(delivered.headers.get("x-delivery-count", 0))
        low, high = copy.returns
        # A consumer on a node that was killed may have got it, and nobody saw that.
        high += queue.shaken
        if not low <= count <= high:
            raise Broken(f"{queue.name}: {copy} has x-delivery-count {count} where {low} to {high} is right")
        copy.returns = (count, count)

    @staticmethod
    def _check_tag(channel: Channel, tag: int) -> None:
        if tag != channel.last_tag + 1:
            raise Broken(f"delivery tag {tag} comes after {channel.last_tag}")
        channel.last_tag = tag

    def on_cancel(self, channel: Channel, tag: str) -> None:
        """The broker cancels a consumer: its queue is gone."""
        reader = channel.readers.get(tag)
        if reader is not None:
            if not reader.replaced:
                raise Broken(f"the reader {tag} was cancelled, and {reader.log.name} is there")
            del channel.readers[tag]
        consumer = channel.consumers.get(tag)
        if consumer is None:
            return
        if consumer.timeout_ms is not None:
            if not self.is_stuck(channel, tag):
                raise Broken(f"{tag} was cancelled before its timeout of {consumer.timeout_ms} ms")
            self._time_out(consumer)
            return
        if not consumer.queue.shaken and not self.unread_by(channel.session.user, consumer.queue):
            raise Broken(f"the consumer {tag} was cancelled, and {consumer.queue.name} is there")
        self._remove_consumer(consumer)
        self._lose_messages(consumer)

    def is_stuck(self, channel: Channel, tag: str) -> bool:
        """True if a consumer may have held a message for longer than it may."""
        consumer = channel.consumers.get(tag)
        if consumer is None or consumer.timeout_ms is None:
            return False
        since = [held.since for held in channel.unacked.values() if held.consumer is consumer]
        return bool(since) and self.now >= min(since) + consumer.timeout_ms / 1000 - EARLY_S

    def _time_out(self, consumer: Consumer) -> None:
        """It held a message for too long. All that it holds goes back, and its later acks do no harm."""
        queue, unacked = consumer.queue, consumer.channel.unacked
        mine = {tag: held for tag, held in unacked.items() if held.consumer is consumer}
        # Before an auto-delete queue goes with it.
        for tag, held in sorted(mine.items()):
            unacked[tag] = Held(None, queue, None)
            if held.copy is not None and held.copy.held:
                queue.withdraw(held.copy, requeue=True, lost=True)
                if self.broker.nodes > 1 and not held.copy.gone:
                    held.copy.presence = min(held.copy.presence, Presence.COMING)
        queue.trim()
        self._remove_consumer(consumer)
        if self.broker.nodes > 1 and self.queues.get(queue.name) is queue:
            # Its room may have gone to the next message before the queue heard of its end.
            self.leave_together(queue)

    def permissions_changed(self) -> None:
        """A member that may not read all streams loses its messages before it is cancelled."""
        for queue in self.queues.values():
            for consumer in queue.consumers if isinstance(queue, Queue) else ():
                if self.unread_by(consumer.channel.session.user, queue):
                    self._lose_messages(consumer)

    def _lose_messages(self, consumer: Consumer) -> None:
        """Its later acks have no effect."""
        if consumer.queue.kind != "stream-group":
            return
        for held in consumer.channel.unacked.values():
            if held.consumer is consumer and held.copy is not None and held.copy.held:
                consumer.queue.withdraw(held.copy, requeue=True)

    def settle(self, channel: Channel, how: str, tag: int, multiple: bool) -> None:
        """`how` is ack, requeue or discard."""
        tags = [t for t in channel.unacked if t == tag or (multiple and (t <= tag or tag == 0))]
        if not tags and not (multiple and tag == 0):
            channel.closing.add(PRECONDITION_FAILED)
            return
        with self.room_made(channel):
            settled = [(each, channel.unacked.pop(each)) for each in sorted(tags)]
        if how == "requeue" and not multiple:
            # The client rejects a single one, which is a failure of its delivery; a nack is none.
            how = "fail"
        if channel.transactional:
            channel.tx_settles += [(how, each, held) for each, held in settled]
            return
        for _, held in settled:
            self._settle(how, held)
        if how != "ack":
            self._trim([held for _, held in settled])

    def _settle(self, how: str, held: Held) -> None:
        copy, queue = held.copy, held.queue
        if held.reader is not None and how == "ack":
            for offset in held.offsets or (held.offset,):
                held.reader.log.acked(held.reader, offset)
        if copy is None or not isinstance(queue, Queue) or not copy.held:
            return
        if how == "ack":
            copy.leave(self.step)
        else:
            queue.withdraw(copy, requeue=how != "discard", failed=how == "fail")

    def recover(self, channel: Channel) -> Promise:
        def recovered(_: Any) -> None:
            for _tag, held in sorted(channel.unacked.items()):
                self._settle("requeue", held)
            self._trim(list(channel.unacked.values()))
            channel.unacked.clear()

        return success(recovered)
