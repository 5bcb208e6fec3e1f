"""Consumers of one queue: their limits, their turns, and the messages that they hold."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final, Protocol

from quorum_queue.empty import NO_DICT, NO_LIST
from quorum_queue.machine.run import Run

UNLIMITED: Final = 1 << 62
#: Higher than any delivery id.
ALL_IDS: Final = 1 << 62


class Keeper:
    """Is told before a run or a consumer changes; see quorum_queue.machine.snapshots.frozen."""

    __slots__ = ("active",)

    def __init__(self) -> None:
        #: False if nothing has to be kept.
        self.active = False

    def keep(self, run: Run) -> None:
        """This run is about to change."""

    def keep_consumer(self, consumer: Consumer) -> None:
        """This consumer, or the list of its runs, is about to change."""


#: For what belongs to no machine yet.
NO_KEEPER: Final = Keeper()


class PrefetchWindow(Protocol):
    """Prefetch that several consumers share: the channel-wide prefetch of `basic.qos global=true`."""

    def room(self) -> int: ...

    def use(self, count: int) -> None: ...


class Checkout:
    """Messages that a consumer holds, by the consumer's own consecutive delivery ids."""

    __slots__ = ("count", "keeper", "runs", "starts")

    def __init__(self) -> None:
        self.keeper = NO_KEEPER
        self.starts: list[int] = []
        self.runs: list[Run] = []
        self.count = 0

    def add(self, first_id: int, run: Run) -> None:
        self.starts.append(first_id)
        self.runs.append(run)
        self.count += len(run.seqs)

    def add_counted(self, first_id: int, run: Run) -> None:
        """As `add`, of messages that `count` has already."""
        self.starts.append(first_id)
        self.runs.append(run)

    def take(self, low: int, high: int) -> list[Run]:
        """Remove the messages with ids low … high and return them; ids not held are passed over."""
        starts, runs = self.starts, self.runs
        taken: list[Run] = []
        index = 0 if not starts or starts[0] >= low else bisect_right(starts, low) - 1
        first_gone = index
        while index < len(starts) and starts[index] <= high:
            first, run = starts[index], runs[index]
            last = first + len(run.seqs) - 1
            if last < low:
                index += 1
                first_gone = index
            elif low <= first and last <= high:
                taken.append(run)
                index += 1
            else:
                del starts[first_gone:index], runs[first_gone:index]
                index = first_gone
                if self.keeper.active:
                    self.keeper.keep(run)
                if low > first:
                    front = run.take(low - first)
                    starts[index : index + 1] = [first, low]
                    runs[index : index + 1] = [front, run]
                    index += 1
                    first_gone = index
                    continue
                taken.append(run.take(high - first + 1))
                starts[index] = high + 1
                break
        del starts[first_gone:index], runs[first_gone:index]
        for run in taken:
            self.count -= len(run.seqs)
        return taken

    def take_positions(self, low: int, high: int) -> list[Run]:
        """Remove the messages with these positions in the queue and return them."""
        found: list[tuple[int, int]] = []
        for first_id, run in zip(self.starts, self.runs, strict=True):
            first, stop = run.within(low, high)
            if first < stop:
                found.append((first_id + first, first_id + stop - 1))
        return [run for ids in found for run in self.take(*ids)]

    def take_all(self) -> list[Run]:
        """Remove everything."""
        runs = self.runs
        self.starts, self.runs, self.count = [], [], 0
        return runs


class Consumer:
    """One consumer of the queue."""

    __slots__ = (
        "attached",
        "channel",
        "checkout",
        "due_ms",
        "exclusive",
        "full",
        "key",
        "next_id",
        "no_ack",
        "own_prefetch",
        "paused",
        "place",
        "position",
        "prefetch",
        "priority",
        "sink",
        "window",
        "window_limit",
    )

    def __init__(
        self,
        key: Any,
        *,
        no_ack: bool = False,
        prefetch: int = 0,
        priority: int = 0,
        exclusive: bool = False,
        window: PrefetchWindow | None = None,
        sink: Any = None,
        channel: Any = None,
        window_limit: int = 0,
        position: int = 0,
        due_ms: int = 0,
    ) -> None:
        self.key = key
        self.no_ack = no_ack
        #: Its own limit of messages; 0 is unlimited.
        self.own_prefetch = prefetch
        #: On a replica, which cannot share a window, the window's limit applies to each consumer; 0 is
        #: unlimited.
        self.window_limit = window_limit
        #: The smaller limit of the two.
        self.prefetch = _least(prefetch, window_limit)
        self.priority = priority
        self.exclusive = exclusive
        self.window = window
        #: Identity of the channel, common to its consumers, if they share no window.
        self.channel = channel
        #: Of a getter: the position of the only message that it wants, 0 for the next one. What such a getter
        #: gives back returns to its place, as if nobody had got it.
        self.position = position
        #: Of such a getter: when the wait of that message is over; 0: it wants a message that is ready.
        self.due_ms = due_ms
        #: Where the host sends deliveries; opaque here.
        self.sink = sink
        #: True while the client's outbox is full: no credit until it drains.
        self.paused = False
        self.attached = True
        #: True if it had no room when last asked, and nothing has given it room since.
        self.full = False
        #: Its last known index among the consumers of its priority.
        self.place = 0
        self.next_id = 0
        self.checkout = Checkout()

    def limit(self, own_prefetch: int, window_limit: int) -> None:
        """Change the limit of messages that it may hold."""
        self.own_prefetch, self.window_limit = own_prefetch, window_limit
        self.prefetch = _least(own_prefetch, window_limit)

    def room(self) -> int:
        """Number of messages that it may take now."""
        if self.paused:
            return 0
        if self.no_ack:
            # It uses no prefetch, but waits until some is free, as in RabbitMQ.
            return UNLIMITED if self.window is None or self.window.room() > 0 else 0
        room = self.prefetch - self.checkout.count if self.prefetch else UNLIMITED
        if self.window is not None:
            room = min(room, self.window.room())
        return room

    def is_full(self) -> bool:
        """True if it has no room, whatever the window has, until its limit changes or one of its deliveries
        is settled.
        """
        return self.paused or (not self.no_ack and self.prefetch > 0 and self.checkout.count >= self.prefetch)


def _least(prefetch: int, window_limit: int) -> int:
    """Return the smaller of two limits, where 0 is no limit."""
    return min(prefetch, window_limit) if prefetch and window_limit else prefetch or window_limit


class _Group:
    """The consumers of one priority, in turns.

    Whether most of them are busy or idle, a message never needs a look at all of them.
    """

    __slots__ = ("_detached", "_open", "consumers", "priority", "start")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.consumers: list[Consumer] = []
        #: Index of the consumer whose turn it is. The ones before it come after the last.
        self.start = 0
        #: One byte for each consumer: 0 if it is full.
        self._open = bytearray()
        #: Index of the consumer detached last: consumers of one client mostly are neighbours.
        self._detached = 0

    def attach(self, consumer: Consumer) -> None:
        """Add it as the last to have a turn."""
        start = self.start
        consumer.place = place = start or len(self.consumers)
        self.consumers.insert(place, consumer)
        self._open.insert(place, 1)
        if start:
            self.start = start + 1

    def detach(self, consumer: Consumer) -> None:
        place = self._find(consumer)
        del self.consumers[place], self._open[place]
        self._detached = place
        if place < self.start:
            self.start -= 1
        elif self.start == len(self.consumers):
            self.start = 0

    def _find(self, consumer: Consumer) -> int:
        consumers, place = self.consumers, consumer.place
        if place >= len(consumers) or consumers[place] is not consumer:
            place = self._detached
            if place >= len(consumers) or consumers[place] is not consumer:
                place = consumers.index(consumer)
            consumer.place = place
        return place

    def in_turn(self) -> list[Consumer]:
        return self.consumers[self.start :] + self.consumers[: self.start]

    def served(self, consumer: Consumer) -> None:
        following = self._find(consumer) + 1
        self.start = following if following < len(self.consumers) else 0

    def has_room(self, consumer: Consumer) -> None:
        consumer.full = False
        self._open[self._find(consumer)] = 1

    def takers(self, most: int) -> tuple[list[Consumer], bool]:
        consumers, is_open, start = self.consumers, self._open, self.start
        takers: list[Consumer] = []
        channels: dict[Any, None] = {}
        one_by_one = False
        end = len(consumers)
        place = is_open.find(1, start)
        if place < 0:
            end, place = start, is_open.find(1, 0, start)
        while place >= 0:
            consumer = consumers[place]
            window = consumer.window
            if consumer.room() > 0:
                takers.append(consumer)
                channel = consumer.channel if window is None else id(window)
                if window is not None and window.room() < UNLIMITED:
                    one_by_one = True
                elif channel is not None:
                    one_by_one = one_by_one or channel in channels
                    channels[channel] = None
                if one_by_one and len(takers) > 1:
                    return takers[:1], True
                if len(takers) == most:
                    break
            elif window is None or consumer.is_full():
                consumer.full = True
                is_open[place] = 0
            place = is_open.find(1, place + 1, end)
            if place < 0 and end != start:
                end, place = start, is_open.find(1, 0, start)
        return takers, False

    def near(self, place: int) -> Consumer | None:
        """Return the consumer at this place, counted round and round from the one whose turn it is, or the
        next one that has room.
        """
        consumers = self.consumers
        # On a replica that was restored the one whose turn it is comes first.
        start = (self.start + place) % len(consumers)
        if consumers[start].room() > 0:
            return consumers[start]
        is_open, end = self._open, len(consumers)
        at = is_open.find(1, start)
        if at < 0:
            end, at = start, is_open.find(1, 0, start)
        while at >= 0:
            consumer = consumers[at]
            if consumer.room() > 0:
                return consumer
            if consumer.window is None or consumer.is_full():
                consumer.full = True
                is_open[at] = 0
            at = is_open.find(1, at + 1, end)
            if at < 0 and end != start:
                end, at = start, is_open.find(1, 0, start)
        return None


class Consumers:
    """The consumers of a queue, in turns within each priority."""

    __slots__ = ("_groups", "active", "by_key", "count", "exclusive_count", "keeper", "single_active")

    def __init__(self, *, single_active: bool = False, keeper: Keeper = NO_KEEPER) -> None:
        self.keeper = keeper
        self.by_key: dict[Any, Consumer] = NO_DICT
        #: By priority, highest first.
        self._groups: list[_Group] = NO_LIST
        self.count = self.exclusive_count = 0
        self.single_active = single_active
        #: The single active consumer stays active until it detaches, even if later consumers have higher
        #: priorities.
        self.active: Consumer | None = None

    def keep(self, consumer: Consumer) -> None:
        """Note a consumer that is attached, or holds messages, as the last one."""
        if self.by_key is NO_DICT:
            self.by_key = {}
        consumer.checkout.keeper = self.keeper
        self.by_key[consumer.key] = consumer

    def drop_all(self) -> list[Consumer]:
        """Forget all consumers, and return them."""
        dropped = list(self.by_key.values())
        self.by_key, self._groups, self.active = NO_DICT, NO_LIST, None
        self.count = self.exclusive_count = 0
        return dropped

    def known(self, consumer: Consumer) -> Consumer:
        """Return the known consumer with this key, or else this one."""
        known = self.by_key.get(consumer.key)
        if known is None:
            self.keep(consumer)
            return consumer
        return known

    def attach(self, consumer: Consumer) -> None:
        self.keep(consumer)
        self.count += 1
        self.exclusive_count += consumer.exclusive
        if self.single_active and self.active is None:
            self.active = consumer
        group = self._group_of(consumer)
        if group is None:
            group = _Group(consumer.priority)
            self._groups = sorted([*self._groups, group], key=lambda group: -group.priority)
        group.attach(consumer)

    def _group_of(self, consumer: Consumer) -> _Group | None:
        for group in self._groups:
            if group.priority == consumer.priority:
                return group
        return None

    def detach(self, consumer: Consumer) -> None:
        """The consumer takes no more messages; it keeps those that it holds until it is forgotten."""
        if not consumer.attached:
            return
        consumer.attached = False
        self.count -= 1
        self.exclusive_count -= consumer.exclusive
        group = self._group_of(consumer)
        assert group is not None
        group.detach(consumer)
        if not group.consumers:
            self._groups.remove(group)
        if consumer is self.active:
            self.active = next(self.attached(), None)

    def attached(self) -> Iterator[Consumer]:
        """The attached consumers, in turn."""
        for group in self._groups:
            yield from group.in_turn()

    def in_turn(self) -> list[Consumer]:
        """All consumers: the attached ones, in turn, then detached ones that still hold messages.

        The order of `by_key` is not the same on a replica that was restored; this one is.
        """
        return [*self.attached(), *(held for held in self.by_key.values() if not held.attached)]

    def takers(self, most: int) -> tuple[list[Consumer], bool]:
        """Return at most `most` consumers with room, in turn, of the highest priority that has any; or only
        the first of several, and True, if messages must be delivered one by one.

        They must if consumers share room, and for several consumers of one channel: messages that a publisher
        sent through one queue arrive on one channel in order (AMQP 0-9-1, 4.7), whichever of its consumers
        gets them. To look at all consumers for each message would take far too long then.
        """
        if self.single_active:
            active = self.active
            return [active] if active is not None and active.room() > 0 else [], False
        for group in self._groups:
            if len(group.consumers) == 1:
                if group.consumers[0].room() > 0:
                    return group.consumers.copy(), False
                continue
            takers, one_by_one = group.takers(most)
            if takers:
                return takers, one_by_one
        return [], False

    def near(self, place: int) -> Consumer | None:
        """Return a consumer with room, of the highest priority that has any: the same one for the same place,
        unless that one has no room.
        """
        for group in self._groups:
            found = group.near(place)
            if found is not None:
                return found
        return None

    @property
    def only(self) -> Consumer | None:
        """The one attached consumer, if nobody else holds messages either."""
        if self.count != 1 or len(self.by_key) != 1:
            return None
        return next(iter(self.by_key.values()))

    def has_room(self, consumer: Consumer) -> None:
        """Note that a full consumer may have room again."""
        if consumer.full and consumer.attached:
            group = self._group_of(consumer)
            assert group is not None
            group.has_room(consumer)

    def served(self, consumer: Consumer) -> None:
        """Give the turn to the consumer after this one. The turn passes in the
        same way however runs are cut.
        """
        if self.single_active:
            return
        group = self._group_of(consumer)
        if group is not None and len(group.consumers) > 1:
            group.served(consumer)


def leaving(key: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
    """Return the commands that end a consumer without its deliveries counting as failed."""
    return ("pause", key, True), ("return", key, 0, ALL_IDS), ("detach", key, True)
