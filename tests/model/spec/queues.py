"""A queue, classic or quorum, or a consumer group: which message may leave it now, and for whom.

The broker decides who gets a message and when exactly one expires. So a queue here has no outcome of its own:
it is told what clients saw, says whether that may be, and learns from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.model.spec.messages import NEVER, Copy, Flag, Message, Presence, on_their_way
from tests.model.spec.promises import Broken
from tests.model.spec.settings import Settings
from tests.model.spec.streams import NEVER_FAILED, Log

if TYPE_CHECKING:
    from tests.model.spec.channels import Channel, Session
    from tests.model.spec.letters import Letters

#: How late a timer may be: until then, a count may contain a message that has expired.
LATE_S = 1.5
#: How early a wait may end: brokers count whole milliseconds.
EARLY_S = 0.002
#: A wait that ends so soon may be over when the broker reads the request.
SOON_S = 0.25
#: So long a publish may be on its way: what expires meanwhile may make room for it.
REQUEST_S = 0.1
#: With more copies than these, those that are gone are put aside.
TIDY = 100


@dataclass(eq=False)
class Consumer:
    tag: str
    channel: Channel
    queue: Queue
    no_ack: bool
    prefetch: int
    priority: int = 0
    exclusive: bool = False
    #: How long it may hold a message.
    timeout_ms: int | None = None

    @property
    def held(self) -> int:
        return sum(held.consumer is self for held in self.channel.unacked.values())

    @property
    def alone(self) -> bool:
        """True if global prefetch counts for it alone: other nodes do not know the channel's other queues."""
        far = self.queue.kind == "quorum" or self.queue.node != self.channel.session.node
        return self.queue.vhost.broker.nodes > 1 and far

    @property
    def spare(self) -> bool:
        """True if the consumer may get one more message."""
        limit = self.channel.global_prefetch
        if limit and self.alone:
            return self.held < limit and (self.no_ack or not self.prefetch or self.held < self.prefetch)
        if not limit and (self.no_ack or not self.prefetch):
            return True
        if limit and len([h for h in self.channel.unacked.values() if h.consumer]) >= limit:
            return False
        return self.no_ack or not self.prefetch or self.held < self.prefetch


@dataclass(eq=False)
class Queue:
    vhost: Letters
    name: str
    kind: str
    durable: bool
    arguments: dict[str, Any]
    auto_delete: bool = False
    owner: Session | None = None
    node: str = ""
    #: Name of the user who declared it.
    declarer: str = "guest"
    settings: Settings = field(default_factory=Settings)
    copies: list[Copy] = field(default_factory=list)
    #: Copies that left it in earlier steps, as far as there are many.
    past: list[Copy] = field(default_factory=list)
    consumers: list[Consumer] = field(default_factory=list)
    #: The only one that gets messages, of a queue with a single active consumer.
    active: Consumer | None = None
    #: Deduplication: ids that were taken.
    remembered: dict[str, Presence] = field(default_factory=dict)
    #: Ids that a restart of the node may forget: of transient messages, or not on the disk.
    forgettable: set[str] = field(default_factory=set)
    #: Copies that are ready although a preceding one is, which has to leave in the same step.
    overtaken: list[tuple[Copy, Copy]] = field(default_factory=list)
    #: Earliest and latest end of its lease; None while it is in use, or without a lease.
    lease: tuple[float, float] | None = None
    #: False if nobody knows whether it still exists.
    certain: bool = True
    #: True if it ends with its node, or with a client of its node.
    lost_with_node: bool = False
    #: False while its node is down.
    reachable: bool = True
    #: A fault hit it: what was in flight may come later or not at all.
    shaken: bool = False
    #: Step in which its copy on a node failed last; far back if it never did.
    failed_at: int = NEVER_FAILED
    #: True after a kill of its node.
    past_kill: bool = False
    #: Step in which the last consumer left that did.
    lost_one_at: int = -1
    #: Step in which the last consumer came that did.
    joined_at: int = -1
    #: What operators have paused, and in which step they paused deliveries.
    deliveries_paused: bool = False
    publishes_paused: bool = False
    paused_at: int = -1
    #: True if an operator has protected it from deletion.
    protected: bool = False
    #: Partitions of a group with too many gaps, since before this step.
    full_before: frozenset[str] = frozenset()

    # -- what is in it ---------------------------------------------------------------------------------------

    @property
    def single_active(self) -> bool:
        return bool(self.arguments.get("x-single-active-consumer"))

    @property
    def deduplicates(self) -> bool:
        return bool(self.arguments.get("x-deduplication"))

    @property
    def may_refuse(self) -> bool:
        settings = self.settings
        limited = settings.max_length is not None or settings.max_bytes is not None
        return limited and settings.overflow != "drop-head"

    @property
    def grouped(self) -> bool:
        return bool(self.arguments.get("x-message-groups"))

    @property
    def replicated(self) -> bool:
        return self.kind != "classic"

    def line(self) -> list[Copy]:
        """The ready copies, in the order in which they leave; where that is uncertain, as they were sent."""
        ready = [copy for copy in self.copies if copy.ready]
        return sorted(ready, key=lambda copy: (not (copy.strict and copy.flag is Flag.YES), -copy.priority))

    def waiting(self) -> list[Copy]:
        """The copies whose time has not come."""
        return [copy for copy in self.copies if copy.waits]

    def surely_waiting(self) -> list[Copy]:
        """Those that are there for sure, and for a moment more."""
        soon = self.vhost.now + SOON_S
        return [
            c for c in self.waiting() if c.presence is Presence.SURE and c.due is not None and c.due[0] > soon
        ]

    def group_of(self, copy: Copy) -> list[Copy]:
        """The other copies of its group."""
        if copy.group is None:
            return []
        return [each for each in (*self.copies, *self.past) if each.group == copy.group and each is not copy]

    def open_for(self, copy: Copy, channel: Channel, *, no_ack: bool = False) -> bool:
        """True if a get on this channel may have the copy for sure, as far as its group is concerned. Gets
        with automatic acks count as another consumer of the channel.
        """
        return not any(
            (each.held and (no_ack or each.holder != (channel, "") or in_transaction(each)))
            or each.may_be_retried
            or (self.vhost.broker.nodes > 1 and max(each.gone_at, each.ready_at) >= self.vhost.step - 1)
            for each in self.group_of(copy)
        )

    def open_for_somebody(self, copy: Copy) -> bool:
        """True if its group keeps the copy from nobody, or if who has the group has room."""
        others = self.group_of(copy)
        if any(each.may_be_retried for each in others):
            return False
        spare = {(consumer.channel, consumer.tag) for consumer in self.consumers if consumer.spare}
        return all(each.holder in spare and not in_transaction(each) for each in others if each.held)

    def certainly_ready(self, copy: Copy) -> bool:
        return (
            copy.ready
            and copy.presence is Presence.SURE
            and not copy.may_have_expired(self.vhost.now)
            and not self._on_its_way_back(copy)
        )

    def surely_in_the_way(self, copy: Copy) -> bool:
        """True if the copy is still there when the broker reads what is sent now."""
        return self.certainly_ready(copy) and not copy.may_have_expired(self.vhost.now + REQUEST_S)

    def _on_its_way_back(self, copy: Copy) -> bool:
        """True if a client of another node may have returned it just now: nothing answers that."""
        several = self.vhost.broker.nodes > 1
        return several and bool(copy.returns[1]) and copy.ready_at >= self.vhost.step - 1

    @property
    def racing(self) -> bool:
        """True if a consumer may take messages at any moment."""
        return not self.deliveries_paused and any(consumer.spare for consumer in self.consumers)

    def count(self) -> tuple[int, int]:
        """Fewest and most ready messages."""
        now = self.vhost.now
        line = self.line()
        low = 0 if self.racing else sum(self.certainly_ready(copy) for copy in line)
        late = sum(
            copy.gone and copy.expiry is not None and now < copy.expiry[1] + LATE_S for copy in self.copies
        )
        return low, len(line) + late

    def tidy(self) -> None:
        """Put aside what is gone, if it is much."""
        if len(self.copies) > TIDY and sum(copy.gone for copy in self.copies) > TIDY // 2:
            self.past += [copy for copy in self.copies if copy.gone]
            self.copies = [copy for copy in self.copies if not copy.gone]

    # -- arrivals --------------------------------------------------------------------------------------------

    def offer(
        self,
        message: Message,
        sent: int,
        lane: str,
        ordinal: int,
        presence: Presence,
        exchange: str,
        key: str,
        *,
        is_letter: bool = False,
    ) -> tuple[Copy | None, set[str]]:
        """A message comes. Return its copy, if it may be there, and the answers that are right."""
        seen = self._seen(message, lane)
        if seen is Presence.SURE:
            return None, {"ack"}
        outcomes = {"ack"}
        if self.publishes_paused and not is_letter:
            if not (self.shaken and presence is Presence.COMING):
                return None, {"nack"} if seen is None else {"ack", "nack"}
            # Nothing says when it comes: perhaps when publishes go on.
            outcomes, presence = {"ack", "nack"}, Presence.MAYBE
        if seen is not None:
            presence = Presence.MAYBE
        if self.settings.overflow.startswith("reject-publish"):
            low, high = self._ready_range()
            # The last release takes what does not fit in, if the queue is not full yet, and else not even a
            # message without a body.
            old = self.vhost.broker.old
            if self._over(low[0] + 1, low[1] + (0 if old else message.size)):
                return None, {"nack"} if seen is None else {"ack", "nack"}
            if self._over(high[0] + 1, high[1] + message.size + old):
                outcomes, presence = {"ack", "nack"}, Presence.MAYBE
                self._overtake()
        copy = Copy(
            message,
            self._priority(message),
            sent,
            lane,
            presence,
            ordinal=ordinal,
            strict=self.kind == "quorum" and not self.grouped,
            exchange=exchange,
            key=key,
            group=message.headers.get("x-group-id") if self.grouped else None,
        )
        copy.ready_at, copy.repeated = self.vhost.step, seen is not None
        copy.old = self.vhost.broker.old
        limits = [ttl for ttl in (self.settings.ttl_ms, message.expiration_ms) if ttl is not None]
        if limits:
            copy.ttl_ms = min(limits)
            copy.expiry = (self.vhost.sent_at + min(limits) / 1000, float("inf"))
        if self.arguments.get("x-delayed") and not is_letter:
            self._delay(copy)
        self.copies.append(copy)
        identity = message.headers.get("x-deduplication-id")
        if self.deduplicates and identity is not None:
            self.remembered[identity] = presence if presence is Presence.SURE else Presence.MAYBE
            if self.kind == "classic" and not message.persistent:
                self.forgettable.add(identity)
        return copy, outcomes

    def _delay(self, copy: Copy) -> None:
        delay_s = copy.message.headers.get("x-delay", 0) / 1000 - EARLY_S
        if delay_s > 0:
            sent_at = self.vhost.sent_at
            due = self.vhost.published_at.get(copy.message.number, sent_at) + delay_s
            copy.wait((due, float("inf")))
            if copy.expiry is not None:
                # Its time to live begins then.
                copy.expiry = (copy.expiry[0] + max(0, due - sent_at), float("inf"))

    def _overtake(self) -> None:
        """What is still on its way, from another queue or node, finds no room behind what comes now."""
        for late in self.line():
            if late.presence is Presence.COMING and late.arrived is None:
                late.presence = Presence.MAYBE
                if self.settings.overflow == "reject-publish-dlx":
                    self.vhost.dead_letter(self, late, "maxlen", certain=False)

    def _seen(self, message: Message, lane: str) -> Presence | None:
        identity = message.headers.get("x-deduplication-id")
        if not self.deduplicates or identity is None:
            return None
        late = on_their_way(self.copies, identity, lane)
        if self.vhost.broker.prompt or not late:
            return self.remembered.get(identity)
        # Another node may still have one with this id, which is the duplicate then.
        for copy in late:
            copy.presence, copy.repeated = Presence.MAYBE, True
        return Presence.MAYBE

    def _priority(self, message: Message) -> int:
        if self.kind == "quorum":
            return 4 if message.priority is None else min(message.priority, 31)
        highest = self.arguments.get("x-max-priority", 0) if self.kind == "classic" else 0
        return min(message.priority or 0, highest)

    def arrived(self, copy: Copy) -> None:
        """The copy is known to have arrived, if it was taken at all."""
        if copy.arrived is None:
            copy.arrived = self.vhost.step
            if copy.due is not None and not copy.came_back:
                wait = copy.due[0] - self.vhost.sent_times.get(copy.sent, copy.due[0])
                copy.due = (copy.due[0], self.vhost.now + wait + LATE_S)
            if copy.expiry is not None:
                ttl = copy.expiry[0] - self.vhost.sent_times.get(copy.sent, copy.expiry[0])
                copy.expiry = (copy.expiry[0], self.vhost.now + ttl)

    def _ready_range(self) -> tuple[tuple[int, int], tuple[int, int]]:
        line, waiting = self.line(), self.waiting()
        sure = [copy for copy in line if self.surely_in_the_way(copy)] if not self.racing else []
        sure += self.surely_waiting()
        line += waiting
        return (len(sure), sum(c.message.size for c in sure)), (len(line), sum(c.message.size for c in line))

    def _over(self, messages: int, size: int) -> bool:
        settings = self.settings
        return (settings.max_length is not None and messages > settings.max_length) or (
            settings.max_bytes is not None and size > settings.max_bytes
        )

    def trim(self, *, certain: bool = True) -> None:
        """Drop the oldest messages beyond the limit: for sure, or perhaps."""
        if self.settings.max_length is None and self.settings.max_bytes is None:
            return
        if self.settings.overflow != "drop-head":
            return
        self._trim_together()
        line, waiting = self.line(), self.waiting()
        racing = self.racing
        counted = line + waiting
        if not self._over(len(counted), sum(copy.message.size for copy in counted)):
            return
        for copy in line:
            # Where two may be in either order, either may be the older one.
            # And what waits is not dropped.
            behind = [
                each for each in line if each is not copy and (not each.precedes(copy) or each.may_be_retried)
            ] + waiting
            if not self._over(1 + len(behind), copy.message.size + sum(c.message.size for c in behind)):
                continue
            sure = [each for each in behind if copy.precedes(each) and self.surely_in_the_way(each)]
            sure += self.surely_waiting()
            over = self._over(1 + len(sure), copy.message.size + sum(c.message.size for c in sure))
            # What may still wait is not dropped, and stays in the way of others.
            over = over and not copy.may_be_retried
            self.vhost.dead_letter(
                self, copy, "maxlen", certain=certain and self.reachable and not racing and over
            )

    def _trim_together(self) -> None:
        """What comes in one batch may be counted one by one, or together: then the first to go is the one of
        the highest priority, and not the one that came first.
        """
        step = self.vhost.step
        dropped = [copy for copy in self.copies if copy.gone and copy.doomed and copy.gone_at == step]
        counted = self.line() + self.waiting() + dropped
        if not dropped or len({copy.priority for copy in counted}) == 1:
            return
        for copy in self.line():
            behind = [each for each in counted if each is not copy and not each.precedes(copy)]
            if self._over(1 + len(behind), copy.message.size + sum(c.message.size for c in behind)):
                self.vhost.dead_letter(self, copy, "maxlen", certain=False)

    def _trim_in_any_order(self) -> None:
        """Several waits have ended, and nobody knows in which order: of too many messages, each may have been
        dropped while the others still waited.
        """
        counted = self.line() + self.waiting()
        if self.settings.overflow == "drop-head" and self._over(
            len(counted), sum(copy.message.size for copy in counted)
        ):
            for copy in self.line():
                self.vhost.dead_letter(self, copy, "maxlen", certain=False)

    def tick(self) -> None:
        """Time goes on: messages expire; in some brokers only those behind no other message."""
        now = self.vhost.now
        ended = sum(copy.look_at_time(now, self.vhost.step) for copy in self.copies)
        if ended > 1:
            self._trim_in_any_order()
        if ended:
            # What is ready again may be dropped.
            self.trim()
        if not any(copy.expiry and (copy.ready or copy.waits) for copy in self.copies):
            return
        # While its node is down nothing expires, and it may be lost with the node.
        clear = self.reachable and self.certain
        for copy in self.line() + self.waiting():
            anywhere = self.vhost.broker.expires_anywhere
            if not copy.may_have_expired(now):
                if copy.presence is Presence.SURE and not self.racing and anywhere is False:
                    break
                clear = clear and bool(anywhere)
                continue
            certain = clear and copy.has_expired(now) and copy.arrived is not None and not self.racing
            clear = clear and (certain or bool(anywhere))
            self.vhost.dead_letter(self, copy, "expired", certain=certain)

    # -- departures ------------------------------------------------------------------------------------------

    def find(
        self,
        number: int,
        flag: bool,
        deaths: tuple[tuple[str, str, int], ...] | None,
        came_by: tuple[str, str] | None = None,
    ) -> Copy:
        """The copy that a client was given. After a kill, any of those that were there may be back: one that
        came by this exchange and key, if there is one.
        """
        named = [copy for copy in (*self.copies, *self.past) if copy.message.number == number]
        if not named:
            raise Broken(f"{self.name}: message {number} was delivered, which never was in this queue")
        ready = [copy for copy in named if copy.ready]
        if not ready and any(copy.waits for copy in named):
            raise Broken(f"{self.name}: message {number} was delivered before its time")
        # What left in this step may have been on its way already.
        ready += [copy for copy in named if copy.gone and self._has_just_left(copy)]
        if not ready:
            last = named[-1]
            how = "held by a client" if last.held else "gone"
            raise Broken(f"{self.name}: message {number} was delivered while it was {how}")
        first = ready[0]
        ready.sort(key=lambda copy: not (copy is first or copy.precedes(first)))
        if self.past_kill:
            ready.sort(key=lambda copy: (copy.exchange, copy.key) != came_by)
        if deaths:
            # Before one whose deaths nobody knows for sure.
            ready.sort(key=lambda copy: _told(copy) != deaths)
        for copy in ready:
            if self._may_have(copy, flag) and (
                deaths is None
                or not copy.deaths
                or (not copy.deaths_sure and len(deaths) > 0)
                or deaths == _told(copy)
            ):
                return copy
        copy = ready[0]
        if not self._may_have(copy, flag):
            raise Broken(
                f"{self.name}: message {number} has redelivered={flag}, wrong as it was delivered before or not"
            )
        raise Broken(f"{self.name}: message {number} has x-death {deaths} where {copy.deaths} is right")

    def _may_have(self, copy: Copy, flag: bool) -> bool:
        """After a fault a message may have been on its way to a client that never got it."""
        return flag in copy.flag.value or (flag and self.shaken)

    def take(
        self,
        copy: Copy,
        began: float,
        consumer: Consumer | None,
        channel: Channel,
        *,
        no_ack: bool = False,
    ) -> None:
        """A client got this copy. `began` is when the step began that made it possible."""
        # The last release delivers what came back too late.
        returned_late = copy.old and copy.flag is not Flag.NO
        if copy.has_expired(began - self.vhost.slack_s) and not returned_late:
            raise Broken(
                f"{self.name}: {copy} was delivered {began - (copy.expiry or (0, 0))[1]:.2f} s after it had expired"
            )
        if copy.gone and not self._on_its_way(copy):
            raise Broken(f"{self.name}: {copy} was delivered although it had left the queue")
        if self.kind == "stream-group" and not self.vhost.may_read(self, copy.lane):
            raise Broken(
                f"{self.name}: {copy} is of {copy.lane}, for which nobody was asked for the permission to read"
            )
        if self.deliveries_paused and self.vhost.step > self.paused_at + (self.vhost.broker.nodes > 1):
            raise Broken(f"{self.name}: {copy} was delivered while deliveries are paused")
        if consumer is not None and copy.offset < 0 and self._stays_full(copy.lane):
            raise Broken(
                f"{self.name}: {copy} came from {copy.lane}, where more than {self.vhost.broker.gaps_max} runs of messages are unacked"
            )
        self._check_order(copy, consumer, channel, no_ack=no_ack)
        holder = (channel, consumer.tag if consumer is not None else "")
        for other in self.group_of(copy):
            if other.held and other.holder != holder:
                raise Broken(
                    f"{self.name}: {copy} of group {copy.group} came while another one holds {other}"
                )
        copy.holder, copy.due = holder, None
        if consumer is not None:
            self._check_consumer(consumer)
        if copy.choice is not None and (wrong := copy.choice.see(copy, self.name)):
            raise Broken(f"{copy} {wrong}")
        self.vhost.settled_source(copy)
        copy.presence = Presence.SURE
        copy.gone, copy.delivered_at = False, self.vhost.step
        if copy.arrived is None:
            copy.arrived = self.vhost.step
        identity = copy.message.headers.get("x-deduplication-id")
        if self.deduplicates and identity is not None and not copy.deaths:
            self.remembered[identity] = Presence.SURE

    def _has_just_left(self, copy: Copy) -> bool:
        """Also in the step before, if it went to a client of another node and was never delivered: nothing
        tells when that has come.
        """
        far = self.vhost.broker.nodes > 1 and copy.delivered_at < 0
        return copy.gone_at == self.vhost.step or (far and copy.gone_at == self.vhost.step - 1)

    def _on_its_way(self, copy: Copy) -> bool:
        return self._has_just_left(copy) and (bool(self.consumers) or copy.expiry is not None)

    def _check_order(self, copy: Copy, consumer: Consumer | None, channel: Channel, *, no_ack: bool) -> None:
        for other in self.copies:
            if other is copy or other.message.number == copy.message.number:
                continue
            if self.kind == "stream-group" and other.lane != copy.lane:
                continue
            open_to_all = consumer is None and self.open_for(other, channel, no_ack=no_ack)
            if other.group != copy.group and not open_to_all:
                continue
            if other.ready and other.precedes(copy) and self.certainly_ready(other):
                if consumer is None and not self.racing:
                    raise Broken(f"{self.name}: {copy} came before {other}, which was ready and comes first")
                self.overtaken.append((other, copy))
            elif (
                other.delivered_at == self.vhost.step
                and consumer is not None
                and copy.precedes(other)
                and copy.ready_at < self.vhost.step
                and copy.presence is Presence.SURE
                and other.presence is Presence.SURE
                and any(h.copy is other and h.consumer is consumer for h in consumer.channel.unacked.values())
            ):
                raise Broken(
                    f"{self.name}: {copy} came to {consumer.tag} after {other}, before which it was ready"
                )

    def _check_consumer(self, consumer: Consumer) -> None:
        if not consumer.spare:
            raise Broken(
                f"{self.name}: consumer {consumer.tag} got more than its prefetch of {consumer.prefetch}, or of {consumer.channel.global_prefetch} for its channel"
            )
        if self.single_active:
            if self.active is None:
                self.active = consumer
            elif self.active is not consumer:
                raise Broken(
                    f"{self.name}: {consumer.tag} got a message while {self.active.tag} is the single active consumer"
                )
        if self.grouped:
            # Who has a group goes on with it.
            return
        better = [
            c
            for c in self.consumers
            if c.priority > consumer.priority and c.spare and self._had_room(c) <= self._had_room(consumer)
        ]
        self.vhost.passed_over += [(self, each, consumer) for each in better if not self.single_active]

    def _had_room(self, consumer: Consumer) -> int:
        """The settle of this step that gave it room; -1 if it had some."""
        return next((n for n, each in enumerate(self.vhost.roomier) if consumer in each), -1)

    def withdraw(
        self,
        copy: Copy,
        *,
        requeue: bool,
        certain: bool = True,
        failed: bool = False,
        lost: bool = False,
        wait_ms: int | None = None,
    ) -> None:
        """A client returned the copy, or lost it. A quorum queue counts what has failed; what was lost has,
        unless a node is down. `wait_ms`: what the client has asked for, in place of the queue's own wait.
        """
        if not requeue:
            self.vhost.dead_letter(self, copy, "rejected", certain=True)
            return
        copy.put_back(self.vhost.step)
        log = self.vhost.queues.get(copy.lane)
        if isinstance(log, Log) and log.may_be_gone(copy.message):
            copy.presence = Presence.MAYBE
        low, high = copy.returns
        if self.kind == "quorum" and self.vhost.broker.old:
            # The last release counts all returns.
            copy.returns = (low + failed, high + 1)
        elif self.kind == "quorum":
            copy.returns = (low + failed, high + (failed or lost))
        else:
            copy.returns = (low + certain, high + 1)
        if wait_ms is None:
            self._wait_for_retry(copy, failed=failed, lost=lost, certain=certain)
        elif wait_ms:
            earliest = self.vhost.sent_at + wait_ms / 1000 - EARLY_S
            copy.wait((earliest, self.vhost.now + wait_ms / 1000 + LATE_S), came_back=True)
        limit = self.settings.delivery_limit
        if not certain:
            copy.presence = Presence.COMING
        if self.kind in ("quorum", "stream-group") and limit is not None and copy.returns[1] > limit:
            self.vhost.dead_letter(self, copy, "delivery_limit", certain=copy.returns[0] > limit)

    def _wait_for_retry(self, copy: Copy, *, failed: bool, lost: bool, certain: bool = True) -> None:
        kind, wait_s = self.settings.retry_type, self.settings.retry_ms / 1000
        if kind == "disabled":
            return
        ends = self.vhost.now + wait_s + LATE_S
        if certain and (kind == "all" or failed):
            copy.wait((self.vhost.sent_at + wait_s - EARLY_S, ends), came_back=True)
        elif kind == "all" or lost or not certain:
            # Whether it counts as one that failed, or when it came back, is not known.
            copy.presence = min(copy.presence, Presence.COMING)
            copy.due, copy.came_back = (self.vhost.sent_at, ends), True

    def cancel(self, number: int) -> tuple[set[str], list[Copy]]:
        """A client cancels the messages with this id that wait. Return the answers that are right, and the
        copies that are gone after an ack.
        """
        named = [copy for copy in self.copies if copy.message.number == number and not copy.gone]
        sure = [copy for copy in named if copy in self.surely_waiting()]
        perhaps = [copy for copy in named if copy.due is not None]
        if sure:
            return {"ack"}, perhaps
        return {"ack", "nack"} if perhaps else {"nack"}, perhaps

    def cancelled(self, copies: list[Copy]) -> None:
        for copy in copies:
            if copy in self.surely_waiting() or len(copies) == 1:
                copy.leave(self.vhost.step)
            else:
                copy.presence = Presence.MAYBE

    def lose(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self.lost_one_at = self.vhost.step
        if self.active is consumer:
            self.active = None
        if not self.consumers:
            self.used()

    def used(self) -> None:
        """Somebody uses the queue, so its lease begins again."""
        expires = self.settings.expires_ms
        if expires is None or self.consumers or self.protected:
            self.lease = None
        else:
            self.lease = (self.vhost.sent_at + expires / 1000, self.vhost.now + expires / 1000)

    def heard_late(self) -> None:
        """A fault is over. A queue may hear only now that its last consumer went with a node that was cut
        off.
        """
        expires = self.settings.expires_ms
        if self.lease is not None and expires is not None:
            self.lease = (self.lease[0], max(self.lease[1], self.vhost.now + expires / 1000))

    # -- what has to come ------------------------------------------------------------------------------------

    def owed(self) -> Iterator[str]:
        """What the broker still has to deliver before anything else happens."""
        if not self.reachable or not self.consumers or not self.certain or self.deliveries_paused:
            return
        if self.single_active and self.active is not None:
            free = self.active.spare
        elif self.single_active or self.kind == "stream-group":
            free = all(consumer.spare for consumer in self.consumers)
        else:
            free = any(consumer.spare for consumer in self.consumers)
        if free:
            kept, full = self._lanes_that_move(), self._perhaps_full()
            for copy in self.line():
                if copy.lane in kept or not self.open_for_somebody(copy):
                    continue
                if copy.offset < 0 and copy.lane in full:
                    continue
                if copy.presence is not Presence.MAYBE and not copy.may_have_expired(self.vhost.now):
                    yield f"{self.name}: {copy} is ready, and a consumer waits for it"

    def _lanes_that_move(self) -> set[str]:
        """Partitions of a group that stay with a member until it has acked its messages: it left, or has to
        leave them to another one.
        """
        if self.kind != "stream-group":
            return set()
        here = {id(h.copy) for c in self.consumers for h in c.channel.unacked.values() if h.consumer is c}
        several = len(self.consumers) > 1
        # A cluster distributes them a moment later.
        changed = max(self.joined_at, self.lost_one_at) + (self.vhost.broker.nodes > 1)
        return {
            copy.lane
            for copy in self.copies
            if copy.held and (id(copy) not in here or (several and copy.delivered_at <= changed))
        }

    def _perhaps_full(self) -> set[str]:
        """Partitions of a group from which a member need not get anything new: each message that somebody
        holds may be a run of its own, since it came more often than its neighbours.
        """
        if self.kind != "stream-group":
            return set()
        held = Counter(copy.lane for copy in self.copies if copy.held)
        return {lane for lane, count in held.items() if count > self.vhost.broker.gaps_max}

    def _stays_full(self, lane: str) -> bool:
        """True if a partition had too many gaps before this step, and nobody has settled anything since."""
        return lane in self.full_before and not any(
            copy.lane == lane and copy.offset >= 0 and max(copy.gone_at, copy.ready_at) >= self._lately
            for copy in self.copies
        )

    @property
    def _lately(self) -> int:
        """The first step whose acks may still be on their way."""
        return self.vhost.step - (self.vhost.broker.nodes > 1)

    def _surely_full(self) -> frozenset[str]:
        """Partitions from which no member may get anything new: more runs of messages than a group keeps are
        held by clients. What came back comes first, and is not new.
        """
        if not self._perhaps_full():
            return frozenset()
        offsets: dict[str, list[int]] = {}
        for copy in self.copies:
            # An ack may not have come yet.
            if copy.held or (copy.offset >= 0 and copy.gone_at >= self._lately):
                offsets.setdefault(copy.lane, []).append(copy.offset)
        back = {copy.lane for copy in self.copies if copy.ready and copy.offset >= 0}
        return frozenset(
            lane
            for lane, found in offsets.items()
            if lane not in back and runs_of(found) > self.vhost.broker.gaps_max
        )

    def settle_step(self) -> None:
        """The step is over: check that what was overtaken has come, too."""
        step = self.vhost.step
        self.full_before = self._surely_full()
        overtaken, self.overtaken = self.overtaken, []
        for copy, other in overtaken:
            if (
                self.certainly_ready(copy)
                and copy.ready_at < step
                and other.ready_at < step
                and not self.shaken
            ):
                raise Broken(f"{self.name}: {other} came before {copy}, which was ready and comes first")

    # -- faults ----------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """The only node was killed, and is up again."""
        self.copies, self.past = self.past + self.copies, []
        self.past_kill = True
        for copy in self.copies:
            passed = 0
            if self.kind == "classic" and not copy.message.persistent:
                copy.leave(NEVER)
            elif copy.held or (copy.gone and copy.gone_at != NEVER and not copy.safe):
                self._revive(copy)
            elif not copy.gone and not copy.stored:
                copy.presence = Presence.MAYBE
            if not copy.gone and (self.grouped or self.arguments.get("x-delayed")):
                # Marks of messages behind it may have passed it.
                copy.flag = Flag.EITHER if copy.flag is Flag.NO else copy.flag
                passed = 1
            if copy.presence is Presence.MAYBE:
                self.forgettable.add(copy.message.headers.get("x-deduplication-id", ""))
            # The last return may not be on the disk, and what was held counts as returned.
            copy.returns = (0, copy.returns[1] + passed)
        for identity in self.forgettable & self.remembered.keys():
            self.remembered[identity] = Presence.MAYBE
        self.consumers.clear()
        self.active = None

    def _revive(self, copy: Copy) -> None:
        was_held = copy.held
        copy.held, copy.ready_at = False, self.vhost.step
        if was_held:
            copy.flag = Flag.EITHER if self.kind == "stream-group" else Flag.YES
            copy.returns = (copy.returns[0], copy.returns[1] + 1)
            if not copy.stored:
                copy.presence = Presence.MAYBE
            self._wait_for_retry(copy, failed=True, lost=True, certain=False)
        elif copy.gone:
            # Its ack, or the record of its end, may not have reached the disk.
            copy.gone, copy.presence, copy.left_before = False, Presence.MAYBE, True
            copy.flag = Flag.EITHER
            copy.returns = (copy.returns[0], copy.returns[1] + 1)


def runs_of(offsets: list[int]) -> int:
    """Return the number of runs of offsets that follow each other."""
    return len(set(offsets) - {offset + 1 for offset in offsets})


def _told(copy: Copy) -> tuple[tuple[str, str, int], ...]:
    """Its deaths as clients see them."""
    return tuple((d.queue, d.reason, d.count) for d in copy.deaths)


def in_transaction(copy: Copy) -> bool:
    """True if an open transaction has settled it."""
    return copy.holder is not None and any(held.copy is copy for _, _, held in copy.holder[0].tx_settles)
