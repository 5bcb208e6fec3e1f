"""Publishes, confirms, returns and transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.model.spec.channels import Channel, Publishing
from tests.model.spec.consuming import Consuming
from tests.model.spec.messages import NEVER, Choice, Copy, Message, Presence, on_their_way
from tests.model.spec.promises import (
    ACCESS_REFUSED,
    NOT_FOUND,
    OK,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    Broken,
    Promise,
    nothing,
    refused,
    success,
)
from tests.model.spec.queues import LATE_S, Queue
from tests.model.spec.streams import Log

#: Messages to this exchange return deliveries.
RETRY = "amq.mqd.retry"


#: A queue whose copy has failed starts again within so many steps.
FAILED_STEPS = 2
#: A commit of more messages than this may last so long.
LARGE, LARGE_S = 50, 1.0


def _is_group(queue: Queue) -> bool:
    return queue.kind == "stream-group"


@dataclass(eq=False)
class Publishes(Consuming):
    def publish(
        self, channel: Channel, message: Message, *, mandatory: bool = False, awaited: bool = True
    ) -> None:
        """A message is sent. What follows comes as events: a close, a return, a confirm."""
        exchange = self.exchanges.get(message.exchange)
        codes = set()
        if not channel.session.user.may("write", message.exchange):
            codes.add(ACCESS_REFUSED)
        if exchange is None:
            codes.add(NOT_FOUND)
        elif exchange.internal:
            codes.add(ACCESS_REFUSED)
        named = self.queues.get(message.key) if message.exchange == "" else None
        if isinstance(named, Queue) and named.kind == "stream-group":
            codes.add(PRECONDITION_FAILED)
        if codes:
            channel.closing |= codes
            return
        targets = self._route(message.exchange, message.keys, message.headers)
        choice = self._choice(message, targets)
        if channel.transactional:
            if not self.epochs.publish(
                channel, message.headers, first=not channel.tx_publishes, prompt=self.broker.nodes == 1
            ):
                return
            self.published_at[message.number] = self.sent_at
            channel.tx_publishes.append((message, targets, choice, mandatory))
            return
        publishing = self._enqueue(channel, message, targets, awaited, choice)
        if mandatory and not targets:
            publishing.to_return = True
            channel.returns.append(publishing)
        if channel.confirming:
            channel.last_publish += 1
            channel.unconfirmed[channel.last_publish] = publishing

    def retry(self, channel: Channel, tag: int, wait_ms: int, *, failed: bool) -> None:
        """A message to `amq.mqd.retry` returns a delivery, which comes again when the client says."""
        held = channel.unacked.get(tag)
        if self.broker.old:
            channel.closing |= {NOT_FOUND, PRECONDITION_FAILED}
            return
        if channel.transactional or held is None or isinstance(held.queue, Log) or _is_group(held.queue):
            channel.closing.add(PRECONDITION_FAILED)
            return
        with self.room_made(channel):
            del channel.unacked[tag]
        if held.copy is not None and held.copy.held:
            held.queue.withdraw(held.copy, requeue=True, failed=failed, wait_ms=wait_ms)
        if channel.confirming:
            channel.last_publish += 1
            returned = Publishing(Message(-1, 0, RETRY, ""), [], {"ack"})
            if (
                not held.queue.reachable
                or held.queue.shaken
                or self.queues.get(held.queue.name) is not held.queue
            ):
                returned.outcomes.add("nack")
            channel.unconfirmed[channel.last_publish] = returned
        self._trim([held])

    def _enqueue(
        self,
        channel: Channel,
        message: Message,
        targets: set[str],
        awaited: bool,
        choice: Choice | None = None,
        *,
        doubted: bool = False,
    ) -> Publishing:
        publishing = Publishing(message, [], {"ack"})
        early = message.headers.get("x-confirm") == "leader"
        prompt = self.broker.prompt or (channel.confirming and awaited and not early) or channel.transactional
        presence = Presence.SURE if prompt and not self.troubled else Presence.COMING
        self.ordinal += 1
        if doubted:
            presence = Presence.MAYBE
        if choice is not None:
            presence = Presence.MAYBE
            self.choices.append(choice)
        for name in sorted(targets):
            queue = self.queues.get(name)
            if queue is None:
                continue
            if isinstance(queue, Log):
                self._append(queue, message, channel.lane, publishing, choice)
                continue
            if queue.kind == "stream-group":
                continue
            copy, outcomes = queue.offer(
                message, self.step, channel.lane, self.ordinal, presence, message.exchange, message.key
            )
            if copy is None and channel.transactional and self.broker.nodes > 1 and queue.may_refuse:
                # A duplicate counts for the room that the transaction needs there.
                outcomes = outcomes | {"nack"}
            if choice is not None:
                publishing.outcomes = publishing.outcomes | outcomes
                choice.refused = choice.refused or "nack" in outcomes
                if "nack" in outcomes and queue.settings.overflow == "reject-publish-dlx":
                    publishing.letters += self._refused_letters(queue, message, Presence.MAYBE)
            elif outcomes == {"nack"}:
                publishing.outcomes = {"nack"}
                if not queue.publishes_paused and queue.settings.overflow == "reject-publish-dlx":
                    publishing.letters += self._refused_letters(queue, message, presence)
            elif outcomes == {"ack", "nack"}:
                if publishing.outcomes == {"ack"}:
                    publishing.outcomes = outcomes
                if queue.settings.overflow == "reject-publish-dlx":
                    publishing.letters += self._refused_letters(queue, message, Presence.MAYBE)
            if copy is not None:
                if channel.transactional and self.broker.nodes > 1 and copy.due is None:
                    # Other clients see it a moment after the commit.
                    copy.presence = min(copy.presence, Presence.COMING)
                    copy.due = (self.sent_at, self.sent_at + LATE_S)
                publishing.copies.append((queue, copy))
                if choice is not None:
                    copy.choice = choice
                    choice.copies.append(copy)
                queue.trim(certain=choice is None and not doubted)
        return publishing

    def _refused_letters(self, queue: Queue, message: Message, presence: Presence) -> list[Copy]:
        """reject-publish-dlx dead-letters what it refuses."""
        copy = Copy(
            message,
            0,
            self.step,
            "",
            presence,
            ordinal=self.ordinal,
            exchange=message.exchange,
            key=message.key,
        )
        queue.copies.append(copy)
        self.dead_letter(queue, copy, "maxlen", certain=True)
        return copy.letters

    def _append(
        self, log: Log, message: Message, lane: str, publishing: Publishing, choice: Choice | None
    ) -> None:
        identity, seen = message.headers.get("x-deduplication-id"), None
        if log.arguments.get("x-deduplication") and identity is not None:
            seen = log.remembered.get(identity)
            if self._may_overtake(log, identity, lane):
                seen = Presence.MAYBE
            if seen is Presence.SURE:
                return
            log.remembered[identity] = Presence.SURE if choice is None else Presence.MAYBE
        entry = Copy(message, 0, self.step, lane, Presence.COMING, ordinal=self.ordinal)
        if seen is not None:
            entry.presence, entry.repeated = Presence.MAYBE, True
        if choice is not None:
            entry.presence, entry.choice = Presence.MAYBE, choice
            choice.copies.append(entry)
        if log.compacts:
            self._supersede(log, message)
        log.entries.append(entry)
        publishing.logs.append(log)
        if log.retains:
            self._outgrow(log)
        for queue in list(self.queues.values()):
            if (
                isinstance(queue, Queue)
                and queue.kind == "stream-group"
                and log.name in self.streams_of(queue.arguments["x-stream"])
            ):
                self._into_group(queue, log, entry)

    def _may_overtake(self, log: Log, identity: str, lane: str) -> bool:
        """True if another node may still have a message with this id, which is the duplicate then."""
        late = on_their_way(log.entries, identity, lane)
        if self.broker.prompt or not late:
            return False
        for entry in late:
            entry.presence, entry.repeated = Presence.MAYBE, True
            for group in self.queues.values():
                for copy in group.copies if isinstance(group, Queue) and _is_group(group) else ():
                    if copy.message is entry.message and copy.arrived is None:
                        copy.presence = Presence.MAYBE
        return True

    def _supersede(self, log: Log, message: Message) -> None:
        """Messages of the same key may be compacted away now, before a group has read them."""
        for group in self.queues.values():
            if isinstance(group, Queue) and group.kind == "stream-group":
                for copy in group.copies:
                    same = copy.message.headers.get("x-stream-key") == message.headers.get("x-stream-key")
                    if copy.lane == log.name and copy.ready and same and "x-stream-key" in message.headers:
                        copy.presence = Presence.MAYBE

    def _outgrow(self, log: Log) -> None:
        """What retention may have deleted now does not come to a group that has not read it."""
        old = {id(entry.message) for entry in log.entries[: log.kept_from()]}
        for group in self.queues.values():
            for copy in group.copies if isinstance(group, Queue) and group.kind == "stream-group" else ():
                if copy.lane == log.name and copy.ready and id(copy.message) in old:
                    copy.presence = Presence.MAYBE

    def arrive(self, publishing: Publishing) -> None:
        """The publish was confirmed, or an answer behind it says that it was handled."""
        # Nobody gets it before a majority has it.
        early = publishing.message.headers.get("x-confirm") == "leader" and self.broker.nodes > 1
        for queue, copy in publishing.copies:
            if early and queue.replicated:
                continue
            copy.stored = True
            if copy.arrived is None:
                queue.arrived(copy)
                if copy.presence is Presence.COMING and not copy.gone and (copy.waits or copy.due is None):
                    copy.presence = Presence.SURE
                    queue.trim()
        for log in publishing.logs if not early else ():
            for entry in log.entries:
                if entry.message is publishing.message and entry.presence is not Presence.SURE:
                    entry.arrived = self.step
                    if not entry.repeated and entry.choice is None:
                        entry.presence = Presence.SURE

    def on_confirm(self, channel: Channel, tag: int, multiple: bool, nack: bool) -> None:
        tags = [t for t in channel.unconfirmed if t == tag or (multiple and t <= tag)]
        if not tags:
            raise Broken(f"confirm of {tag}, which is not unconfirmed")
        for each in tags:
            publishing = channel.unconfirmed.pop(each)
            what = "nack" if nack else "ack"
            if publishing.to_return:
                raise Broken(f"message {publishing.message.number} was confirmed before it was returned")
            if what in publishing.outcomes:
                self._confirmed(publishing, nack)
            elif nack and (self.troubled or any(queue.shaken for queue, _ in publishing.copies)):
                for _, copy in publishing.copies:
                    copy.presence = Presence.MAYBE
                self._doubt_entries(publishing)
            else:
                raise Broken(
                    f"message {publishing.message.number} got {what} where {publishing.outcomes} is right"
                )

    def _doubt_entries(self, publishing: Publishing) -> None:
        """Whether streams have it is not known."""
        for log in publishing.logs:
            groups = [q for q in self.queues.values() if isinstance(q, Queue) and _is_group(q)]
            for taker in (log.entries, *(group.copies for group in groups)):
                for entry in taker:
                    if entry.message is publishing.message and entry.arrived is None:
                        entry.presence = Presence.MAYBE

    def _confirmed(self, publishing: Publishing, nack: bool) -> None:
        if not nack:
            doubted = [
                copy
                for _, copy in publishing.copies
                if copy.presence is Presence.MAYBE
                and not (copy.doomed or copy.repeated or copy.choice is not None)
            ]
            if publishing.outcomes == {"ack", "nack"}:
                for copy in doubted:
                    copy.presence = Presence.SURE
            self.arrive(publishing)
            return
        maybe = [copy for _, copy in publishing.copies if copy.presence is Presence.MAYBE]
        # A queue that surely refuses says nothing about the others.
        told = publishing.outcomes == {"ack", "nack"} and len(maybe) == 1
        for queue, copy in publishing.copies:
            if told and copy is maybe[0] and copy.choice is None:
                if not copy.held:
                    copy.leave(NEVER)
            elif copy.arrived is None:
                queue.arrived(copy)

    def on_return(self, channel: Channel, code: int, number: int) -> None:
        if code != 312 or not channel.returns or channel.returns[0].message.number != number:
            due = channel.returns[0].message.number if channel.returns else "none"
            raise Broken(f"message {number} was returned with {code} where {due} is due")
        channel.returns.pop(0).to_return = False

    def select(self, channel: Channel, mode: str) -> Promise:
        if (mode == "confirm" and channel.transactional) or (mode == "tx" and channel.confirming):
            return refused(PRECONDITION_FAILED)

        def selected(_: Any) -> None:
            if mode == "confirm":
                channel.confirming = True
            else:
                channel.transactional = True

        return success(selected)

    def commit(self, channel: Channel) -> Promise:
        if not channel.transactional:
            return refused(PRECONDITION_FAILED)
        surely, perhaps = self.epochs.shut_out(channel)
        decided = self.broker.nodes == 1 or self._has_parts(channel)
        if surely and decided:
            return refused(PRECONDITION_FAILED)
        # A queue need not exist before the commit.
        channel.tx_publishes = [
            (message, self._route("", message.keys, message.headers), choice, mandatory)
            if message.exchange == ""
            else (message, targets, choice, mandatory)
            for message, targets, choice, mandatory in channel.tx_publishes
        ]
        if any(self._is_paused(name) for _, targets, _, _ in channel.tx_publishes for name in targets):
            # Nothing of it happens, and the channel is closed.
            return refused(PRECONDITION_FAILED)
        codes = {OK, PRECONDITION_FAILED} if perhaps else {OK}
        if self._has_just_failed(channel):
            # The queue moves to another host at that moment: nothing of it happens.
            codes.add(RESOURCE_ERROR)
        publishings = []
        self.lasts_s = LARGE_S if len(channel.tx_publishes) > LARGE else 0.0
        for message, targets, choice, mandatory in channel.tx_publishes:
            publishing = self._enqueue(channel, message, targets, True, choice, doubted=perhaps)
            publishings.append(publishing)
            if publishing.outcomes != {"ack"}:
                codes = (
                    {PRECONDITION_FAILED}
                    if publishing.outcomes == {"nack"}
                    else codes | {PRECONDITION_FAILED}
                )
            if mandatory and not any(name in self.queues for name in targets):
                channel.returns.append(publishing)
        channel.tx_publishes, self.lasts_s = [], 0.0
        whole = self.broker.nodes > 1 or perhaps
        doubted = whole and not codes.isdisjoint((PRECONDITION_FAILED, RESOURCE_ERROR))
        if OK not in codes and self.broker.nodes > 1:
            channel.unacked |= {tag: held for _, tag, held in channel.tx_settles}
            channel.tx_settles = []
        elif not doubted:
            self._end_settles(channel)

        def committed(_: Any) -> None:
            if decided:
                self.epochs.committed(channel)
            if doubted:
                self._end_settles(channel)
            for publishing in publishings:
                self.arrive(publishing)
                if self.broker.nodes > 1:
                    # They come a moment later, perhaps behind what other clients publish next.
                    entries = [entry for log in publishing.logs for entry in log.entries]
                    for copy in [*(copy for _, copy in publishing.copies), *entries]:
                        if copy.message is publishing.message:
                            copy.arrived = None

        if doubted:
            # A cluster refuses the whole transaction, if it refuses a part.
            for publishing in publishings:
                identity = publishing.message.headers.get("x-deduplication-id", "")
                takers: list[Queue | Log] = [*(queue for queue, _ in publishing.copies), *publishing.logs]
                for taker in takers:
                    if identity in taker.remembered:
                        taker.remembered[identity] = Presence.MAYBE
                for copy in [*(copy for _, copy in publishing.copies), *publishing.letters]:
                    copy.doubt()
                self._doubt_entries(publishing)
        return Promise(frozenset(codes), committed, nothing if whole else committed)

    def _end_settles(self, channel: Channel) -> None:
        """What was settled in the transaction takes effect."""
        settles, channel.tx_settles = channel.tx_settles, []
        for how, _, held in settles:
            self._settle(how, held)
        self._trim([held for how, _, held in settles if how != "ack"])

    def _has_parts(self, channel: Channel) -> bool:
        """True if a queue has a part in the transaction. A cluster decides about no other ones."""
        return any(name in self.queues for _, names, _, _ in channel.tx_publishes for name in names) or any(
            isinstance(held.queue, Queue) for _, _, held in channel.tx_settles
        )

    def _has_just_failed(self, channel: Channel) -> bool:
        """True if the copy of one of its queues on a node has failed, and may be about to start again."""
        names = {name for _, targets, _, _ in channel.tx_publishes for name in targets}
        queues = [self.queues[name] for name in names if name in self.queues]
        queues += [held.queue for _, _, held in channel.tx_settles]
        return any(queue.failed_at >= self.step - FAILED_STEPS for queue in queues)

    def _is_paused(self, name: str) -> bool:
        queue = self.queues.get(name)
        return isinstance(queue, Queue) and queue.publishes_paused

    def rollback(self, channel: Channel) -> Promise:
        if not channel.transactional:
            return refused(PRECONDITION_FAILED)

        def rolled_back(_: Any) -> None:
            channel.tx_publishes = []
            for _how, tag, held in channel.tx_settles:
                channel.unacked[tag] = held
            channel.tx_settles = []
            channel.unacked = dict(sorted(channel.unacked.items()))

        return success(rolled_back)
