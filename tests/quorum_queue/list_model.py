"""A model of a queue, one message at a time, in lists: simple enough to trust."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from zlib import crc32

from quorum_queue.machine.run import Attributes
from quorum_queue.machine.settings import Settings

UNLIMITED = 1 << 40

#: node, incarnation, name
Key = tuple[str, int, str]


@dataclass
class Message:
    seq: int
    level: int
    content: bytes
    head: bytes
    attributes: Attributes
    expires_at: int | None
    attempts: int = 0
    acquired: int = 0
    redelivered: bool = False
    #: With strict priorities: how many came back before it.
    turn: int = 0
    #: In a queue with message groups, where only positions count; empty: the message is of none.
    group: bytes | None = None
    #: It was picked while it waited until this time.
    due: int = 0

    @property
    def place(self) -> tuple[int, bool, int]:
        """Messages that waited before their first delivery come behind those that came back."""
        if self.group is not None:
            return 0, False, self.seq
        return -self.level, not self.redelivered, self.turn or self.seq


@dataclass
class Row:
    """What became of a message."""

    seq: int
    message_id: bytes
    queued: int
    state: str = "queued"
    reason: str = ""
    changed: int = 0
    deliveries: int = 0
    consumer: Key | None = None


#: Words of the record for reasons of dead letters.
REASONS = {"delivery_limit": "delivery-limit"}


@dataclass
class Holder:
    """A consumer, or the rest of one: it may still hold messages."""

    key: Key
    no_ack: bool = False
    prefetch: int = 0
    priority: int = 0
    exclusive: bool = False
    windowed: bool = False
    attached: bool = True
    next_id: int = 0
    paused: bool = False
    #: It asks for messages by their positions.
    picks: bool = False
    held: dict[int, Message] = field(default_factory=dict)


@dataclass
class Outcome:
    """The effects of one batch."""

    accepted: list[int] = field(default_factory=list)
    deliveries: dict[Key, list[tuple[int, int, bool, int, int]]] = field(default_factory=dict)
    confirmed: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    delayed: list[tuple[int, int, int]] = field(default_factory=list)
    dead_letters: list[tuple[bytes, str]] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)
    returned: list[tuple[int, int]] = field(default_factory=list)
    attach_refused: list[tuple[Key, str]] = field(default_factory=list)
    consumers_gone: list[Key] = field(default_factory=list)
    got_nothing: list[Key] = field(default_factory=list)
    purged: list[tuple[int, int]] = field(default_factory=list)


class ListModel:
    """One queue. `ready` is in the order of delivery."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.next_seq = 1
        self.now = 0
        self.ready: list[Message] = []
        self.holders: dict[Key, Holder] = {}
        #: Attached consumers; within a priority the next one to be served comes first.
        self.turns: list[Holder] = []
        #: With a single active consumer: the active one, until it goes.
        self.active: Holder | None = None
        self.window_limit = self.window_used = 0
        self.dead_lettering: dict[int, Message] = {}
        #: Messages that wait before they are ready again: when they are due, their number, and the message.
        self.delayed: list[tuple[int, int, Message]] = []
        self.turns_back = 0
        self.outcome = Outcome()
        #: By position; and (id, state, reason, time) of messages that were refused.
        self.rows: dict[int, Row] = {}
        self.refused: list[tuple[bytes, str, str, int]] = []

    @property
    def grouped(self) -> bool:
        return bool(self.settings.group_header)

    def became(self, message: Message, state: str, reason: str = "", consumer: Key | None = None) -> None:
        row = self.rows[message.seq]
        row.state, row.reason, row.changed = state, reason, self.now
        if consumer is not None:
            row.consumer, row.deliveries = consumer, row.deliveries + 1
        elif state == "dead-lettered":
            # Where it went takes the place of who had it.
            row.consumer = None

    # -- publishing

    def enqueue(
        self,
        numbers: range,
        contents: list[bytes],
        heads: list[bytes],
        attributes: list[Attributes],
        ids: list[bytes] | None = None,
        waits_until: int = 0,
        *,
        letters: bool = False,
    ) -> None:
        """`letters`: they are dead letters that are sent once."""
        message_ids = dict(zip(numbers, ids or [b""] * len(numbers), strict=True))
        if self.settings.publishes_paused and not letters:
            self.outcome.refused += numbers
            self.refused += [(each, "dropped", "refused: paused", self.now) for each in message_ids.values()]
            return
        limited = self.settings.max_length is not None or self.settings.max_length_bytes is not None
        if limited and self.settings.overflow != "drop-head":
            self.expire()
            came = False
            for number, content, head, own in zip(numbers, contents, heads, attributes, strict=True):
                size = len(content) - own.overhead
                if came and self.is_full(size):
                    # What fits comes at once, and then consumers take from it.
                    self.assign()
                    came = False
                if self.is_full(size):
                    self.outcome.refused.append(number)
                    over = (
                        self.settings.max_length is not None
                        and self.count_at_limit >= self.settings.max_length
                    )
                    lettered = self.settings.overflow == "reject-publish-dlx" and self.settings.dead_letter
                    self.refused.append(
                        (
                            message_ids[number],
                            "dead-lettered" if lettered else "dropped",
                            f"refused: max-length{'' if over else '-bytes'}",
                            self.now,
                        )
                    )
                    if self.settings.overflow == "reject-publish-dlx":
                        self.outcome.dead_letters.append((content, "maxlen"))
                    continue
                self.accept(number, content, head, own, message_ids[number], waits_until)
                came = True
            if came:
                self.assign()
            return
        for number, content, head, own in zip(numbers, contents, heads, attributes, strict=True):
            self.accept(number, content, head, own, message_ids[number], waits_until)
        if limited:
            self.assign()
            self.drop_over_limit()

    def accept(
        self,
        number: int,
        content: bytes,
        head: bytes,
        attributes: Attributes,
        message_id: bytes,
        waits_until: int,
    ) -> None:
        self.rows[self.next_seq] = Row(self.next_seq, message_id, self.now, changed=self.now)
        if self.settings.keeps_all:
            attributes = attributes._replace(persistent=True)
        ttls = [ttl for ttl in (self.settings.message_ttl_ms, attributes.ttl_ms) if ttl is not None]
        begins = max(self.now, waits_until)
        expires_at = begins + min(ttls) if ttls else None
        if self.settings.strict:
            level = {0: 4, -1: 0}.get(attributes.priority, min(attributes.priority, 31))
        else:
            level = max(0, min(attributes.priority, self.settings.priority_max))
        message = Message(self.next_seq, level, content, head, attributes, expires_at)
        if self.grouped:
            # Heads of tests have an exchange and a key of one letter.
            message.level, message.group = 0, head[4:]
        if waits_until > self.now:
            self.let_wait(waits_until, message)
        else:
            self.ready_again(message)
        self.outcome.confirmed.append(number)
        self.outcome.accepted.append(self.next_seq)
        self.next_seq += 1

    def let_wait(self, due: int, message: Message) -> None:
        self.turns_back += 1
        insort(self.delayed, (due, self.turns_back, message), key=lambda each: each[:2])

    def come_back(self, message: Message) -> None:
        if self.settings.strict and not self.grouped:
            self.turns_back += 1
            message.level, message.turn = 32, self.turns_back
        self.ready_again(message)

    def end_waits(self) -> None:
        while self.delayed and self.delayed[0][0] <= self.now:
            message = self.delayed.pop(0)[2]
            if message.redelivered:
                self.come_back(message)
            else:
                self.ready_again(message)

    def end_batch(self) -> None:
        """What waited until now comes first, and what no consumer takes counts in the limits."""
        self.end_waits()
        self.assign()
        if self.settings.overflow == "drop-head":
            self.drop_over_limit()
            self.expire()

    def wait_of(self, message: Message, failed: bool) -> int:
        settings = self.settings
        if settings.retry_type not in ("all", "failed" if failed else "returned"):
            return 0
        times = max(1, message.attempts)
        grown = 2 ** (times - 1) if settings.retry_doubles else times
        return min(settings.retry_min_ms * grown, settings.retry_max_ms)

    def ready_again(self, message: Message) -> None:
        insort(self.ready, message, key=lambda waiting: waiting.place)

    @property
    def ready_bytes(self) -> int:
        waiting = [message for _, _, message in self.delayed]
        return sum(len(message.content) - message.attributes.overhead for message in self.ready + waiting)

    @property
    def kept_count(self) -> int:
        return len(self.ready) + len(self.delayed)

    @property
    def count_at_limit(self) -> int:
        return self.kept_count + len(self.dead_lettering)

    def is_full(self, added_bytes: int) -> bool:
        length, size = self.settings.max_length, self.settings.max_length_bytes
        held = sum(len(each.content) - each.attributes.overhead for each in self.dead_lettering.values())
        return (length is not None and self.count_at_limit >= length) or (
            size is not None and self.ready_bytes + held + added_bytes > size
        )

    def drop_over_limit(self) -> None:
        length, size = self.settings.max_length, self.settings.max_length_bytes
        while self.ready and (
            (length is not None and self.kept_count > length)
            or (size is not None and self.ready_bytes > size)
        ):
            over = length is not None and self.kept_count > length
            self.drop(self.ready[0], "maxlen", "max-length" if over else "max-length-bytes")

    # -- handing out

    def room(self, holder: Holder) -> int:
        if holder.paused:
            return 0
        if holder.no_ack:
            return 0 if holder.windowed and self.window_used >= self.window_limit else UNLIMITED
        room = holder.prefetch - len(holder.held) if holder.prefetch else UNLIMITED
        return min(room, self.window_limit - self.window_used) if holder.windowed else room

    def taker(self) -> Holder | None:
        if self.settings.deliveries_paused:
            return None
        ordered = sorted(self.turns, key=lambda holder: -holder.priority)
        if self.settings.single_active_consumer:
            ordered = [self.active] if self.active is not None else []
        return next((holder for holder in ordered if self.room(holder) > 0), None)

    def near(self, place: int) -> Holder | None:
        """The consumer at this place, or the next one with room, of the highest priority that has any."""
        for priority in sorted({holder.priority for holder in self.turns}, reverse=True):
            peers = [holder for holder in self.turns if holder.priority == priority]
            start = place % len(peers)
            for holder in peers[start:] + peers[:start]:
                if self.room(holder) > 0:
                    return holder
        return None

    def next_of_groups(self, getter: Holder | None = None) -> tuple[Message, Holder] | None:
        """The first message that a consumer with room, or this getter, may have."""
        holding = [(holder, held.group) for holder in self.holders.values() for held in holder.held.values()]
        having = {group: holder for holder, group in holding if not holder.picks}
        blocked = {waiting.group for _, _, waiting in self.delayed if waiting.redelivered}
        # Nobody gets groups out of whose middle messages are picked.
        blocked |= {group for holder, group in holding if holder.picks}
        passed: set[bytes | None] = set()
        for message in self.ready:
            group, holder, found = message.group, None, getter
            if group in passed:
                continue
            if group:
                holder = having.get(group)
            if group and group in blocked:
                found = None
            elif getter is not None:
                found = getter if holder in (None, getter) else None
            elif holder is None:
                found = self.near(crc32(group) if group else message.seq)
            else:
                found = holder if holder.attached and self.room(holder) > 0 else None
            if found is not None:
                return message, found
            if group:
                passed.add(group)
        return None

    def assign_groups(self) -> None:
        while found := None if self.settings.deliveries_paused else self.next_of_groups():
            message, holder = found
            if message.expires_at is not None and message.expires_at < self.now + message.redelivered:
                self.drop(message, "expired")
                continue
            self.ready.remove(message)
            self.hand(holder, message)
        self.expire()

    def assign(self) -> None:
        if self.grouped:
            self.assign_groups()
            return
        while self.ready:
            head = self.ready[0]
            # A message with a TTL of 0 is handed out when it comes, but not when it comes back.
            if head.expires_at is not None and head.expires_at < self.now + head.redelivered:
                self.drop(head, "expired")
                continue
            taker = self.taker()
            if taker is None:
                break
            self.hand(taker, self.ready.pop(0))
            if not self.settings.single_active_consumer:
                self.turn_to_the_one_after(taker)
        self.expire()

    def turn_to_the_one_after(self, taker: Holder) -> None:
        peers = [holder for holder in self.turns if holder.priority == taker.priority]
        cut = peers.index(taker) + 1
        self.turns = [holder for holder in self.turns if holder not in peers] + peers[cut:] + peers[:cut]

    def expire(self) -> None:
        due = [each for each in self.ready if each.expires_at is not None and each.expires_at <= self.now]
        for message in due:
            self.drop(message, "expired")

    def hand(self, holder: Holder, message: Message) -> None:
        delivery = holder.next_id, message.seq, message.redelivered, message.attempts, message.acquired
        self.outcome.deliveries.setdefault(holder.key, []).append(delivery)
        self.became(message, "delivered", "", holder.key)
        if holder.no_ack:
            self.outcome.settled.append(message.seq)
            self.became(message, "acknowledged")
        else:
            holder.held[holder.next_id] = message
            self.window_used += holder.windowed
        holder.next_id += 1

    def get(self, holder: Holder) -> None:
        self.end_waits()
        self.expire()
        found = (self.ready[0], holder) if self.ready else None
        if self.settings.deliveries_paused:
            found = None
        elif self.grouped:
            found = self.next_of_groups(self.holders.get(holder.key, holder))
        if found is not None:
            if not holder.no_ack:
                self.holders[holder.key] = holder
            self.ready.remove(found[0])
            self.hand(holder, found[0])
        else:
            self.outcome.got_nothing.append(holder.key)

    def pick(self, holder: Holder, position: int) -> None:
        self.end_waits()
        self.expire()
        message = next((message for message in self.ready if message.seq == position), None)
        if message is None or (message.expires_at is not None and message.expires_at <= self.now):
            self.outcome.got_nothing.append(holder.key)
            return
        self.ready.remove(message)
        if not holder.no_ack:
            self.holders[holder.key] = holder
        self.hand(holder, message)

    def pick_waiting(self, holder: Holder, position: int, due: int) -> None:
        self.end_waits()
        self.expire()
        found = next((each for each in self.delayed if (each[0], each[2].seq) == (due, position)), None)
        if found is None or (found[2].expires_at is not None and found[2].expires_at <= self.now):
            self.outcome.got_nothing.append(holder.key)
            return
        self.delayed.remove(found)
        if not holder.no_ack:
            self.holders[holder.key] = holder
        found[2].due = due
        self.hand(holder, found[2])

    # -- settling

    def take(self, key: Key, low: int, high: int) -> list[Message]:
        holder = self.holders.get(key)
        if holder is None:
            return []
        ids = [delivery_id for delivery_id in holder.held if low <= delivery_id <= high]
        self.window_used -= len(ids) * holder.windowed
        messages = [holder.held.pop(delivery_id) for delivery_id in ids]
        if not holder.attached and not holder.held:
            del self.holders[key]
        return messages

    def settle(self, key: Key, low: int, high: int) -> None:
        for message in self.take(key, low, high):
            self.outcome.settled.append(message.seq)
            self.became(message, "acknowledged")

    def discard(self, key: Key, low: int, high: int) -> None:
        for message in self.take(key, low, high):
            self.gone(message, "rejected")

    def put_back(
        self, key: Key, low: int, high: int, failed: bool = False, own_wait: int | None = None
    ) -> None:
        holder = self.holders.get(key)
        messages = self.take(key, low, high)
        if holder is not None and holder.picks:
            self.put_picked(messages)
            return
        limit, strict = self.settings.delivery_limit, self.settings.strict
        waits = self.settings.retry_type != "disabled" or own_wait is not None
        kept = 0
        for message in messages:
            message.redelivered = True
            message.acquired += strict
            message.attempts += failed if strict or waits else limit is not None
            if limit is not None and message.attempts > limit:
                self.gone(message, "delivery_limit")
                continue
            kept += 1
            self.became(message, "queued")
            wait = self.wait_of(message, failed) if own_wait is None else own_wait
            if wait:
                due = self.now + wait
                if message.expires_at is not None:
                    due = min(due, message.expires_at)
                self.let_wait(due, message)
                self.outcome.delayed.append((message.seq, message.attempts, due))
                continue
            if strict or waits or limit is not None:
                self.outcome.returned.append((message.seq, message.attempts))
            self.come_back(message)
        if (kept or self.delayed) and self.settings.overflow == "drop-head":
            self.drop_over_limit()

    def put_picked(self, messages: list[Message]) -> None:
        for message in messages:
            self.became(message, "queued")
            due, message.due = message.due, 0
            if due > self.now:
                self.let_wait(due, message)
            elif message.redelivered:
                self.come_back(message)
            else:
                self.ready_again(message)
        if messages and self.settings.overflow == "drop-head":
            self.drop_over_limit()

    def drop(self, message: Message, reason: str, limit: str = "") -> None:
        self.ready.remove(message)
        self.gone(message, reason, limit)

    def gone(self, message: Message, reason: str, limit: str = "") -> None:
        state = "expired" if reason == "expired" else "dropped"
        if self.settings.dead_letter:
            state = "dead-lettered"
        self.became(message, state, limit or REASONS.get(reason, reason))
        if self.settings.dead_letter:
            self.outcome.dead_letters.append((message.content, reason))
            if self.settings.dead_letter_at_least_once:
                self.dead_lettering[message.seq] = message
                return
        self.outcome.settled.append(message.seq)

    def dead_lettered(self, low: int, high: int) -> None:
        for seq in [seq for seq in self.dead_lettering if low <= seq <= high]:
            del self.dead_lettering[seq]
            self.outcome.settled.append(seq)

    def lose(self, low: int, high: int) -> None:
        for message in [message for message in self.ready if low <= message.seq <= high]:
            self.ready.remove(message)
            self.outcome.settled.append(message.seq)
            self.became(message, "dropped", "body lost on all disks")
        for each in [each for each in self.delayed if low <= each[2].seq <= high]:
            self.delayed.remove(each)
            self.outcome.settled.append(each[2].seq)
            self.became(each[2], "dropped", "body lost on all disks")
        for holder in list(self.holders.values()):
            ids = [delivery for delivery, message in holder.held.items() if low <= message.seq <= high]
            lost = [holder.held[delivery] for delivery in ids]
            for delivery in ids:
                self.settle(holder.key, delivery, delivery)
            for message in lost:
                self.became(message, "dropped", "body lost on all disks")
        for message in [self.dead_lettering[seq] for seq in self.dead_lettering if low <= seq <= high]:
            self.became(message, "dropped", "body lost on all disks")
        self.dead_lettered(low, high)

    # -- consumers and settings

    def attach(self, holder: Holder) -> None:
        if holder.key in self.holders:
            self.outcome.attach_refused.append((holder.key, "key in use"))
            return
        alone = bool(self.turns) or self.settings.single_active_consumer
        if (holder.exclusive and alone) or any(other.exclusive for other in self.turns):
            self.outcome.attach_refused.append((holder.key, "exclusive"))
            return
        self.holders[holder.key] = holder
        self.turns.append(holder)
        if self.active is None:
            self.active = holder

    def detach(self, key: Key, requeue: bool, failed: bool = True) -> None:
        holder = self.holders.get(key)
        if holder is None:
            return
        holder.attached = False
        self.turns = [other for other in self.turns if other is not holder]
        if holder is self.active:
            self.active = max(self.turns, key=lambda other: other.priority, default=None)
        if requeue:
            self.put_back(key, 0, UNLIMITED, failed)
        self.holders.pop(key, None)
        if holder.held:
            self.holders[key] = holder

    def node_down(self, node: str, incarnation: int) -> None:
        attached = sorted(self.turns, key=lambda holder: -holder.priority)
        for holder in attached + [held for held in self.holders.values() if not held.attached]:
            if holder.key[0] == node and holder.key[1] <= incarnation:
                self.outcome.consumers_gone.append(holder.key)
                self.detach(holder.key, True, failed=False)

    def set_window(self, limit: int) -> None:
        for holder in self.turns:
            holder.windowed = limit > 0
        self.window_limit = limit

    def purge(self, token: int) -> None:
        self.outcome.purged.append((token, self.kept_count))
        self.outcome.settled += [message.seq for message in self.ready]
        for message in [*self.ready, *(each[2] for each in self.delayed)]:
            self.became(message, "dropped", "purged")
        self.outcome.settled += [message.seq for _, _, message in self.delayed]
        self.ready.clear()
        self.delayed.clear()
