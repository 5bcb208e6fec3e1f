"""Consumers of one queue: their limits, their turns, and the messages that they hold."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Protocol

from quorum_queue.machine.run import Run

UNLIMITED = 1 << 62


class Window(Protocol):
    """Room that several consumers share: the channel-wide prefetch of `basic.qos global=true`."""

    def room(self) -> int: ...

    def use(self, count: int) -> None: ...


class Checkout:
    """Messages that a consumer holds, by the consumer's own consecutive delivery ids."""

    __slots__ = ("count", "runs", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.runs: list[Run] = []
        self.count = 0

    def add(self, first_id: int, run: Run) -> None:
        self.starts.append(first_id)
        self.runs.append(run)
        self.count += len(run.seqs)

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
        "exclusive",
        "key",
        "next_id",
        "no_ack",
        "own_prefetch",
        "paused",
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
        window: Window | None = None,
        sink: Any = None,
        channel: Any = None,
        window_limit: int = 0,
    ) -> None:
        self.key = key
        self.no_ack = no_ack
        #: Messages that it may hold by itself; 0 is unlimited.
        self.own_prefetch = prefetch
        #: A replica cannot share a window: there its limit is one of each of its consumers; 0 is unlimited.
        self.window_limit = window_limit
        #: The limit that results from both.
        self.prefetch = _least(prefetch, window_limit)
        self.priority = priority
        self.exclusive = exclusive
        self.window = window
        #: Identity of the channel, common to its consumers, if they share no window.
        self.channel = channel
        #: Where the host sends deliveries; opaque here.
        self.sink = sink
        #: The way to the client is full; no credit until it drains.
        self.paused = False
        self.attached = True
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
            # It takes no room, but waits until there is some, as in RabbitMQ.
            return UNLIMITED if self.window is None or self.window.room() > 0 else 0
        room = self.prefetch - self.checkout.count if self.prefetch else UNLIMITED
        if self.window is not None:
            room = min(room, self.window.room())
        return room


def _least(prefetch: int, window_limit: int) -> int:
    """Return the smaller of two limits, where 0 is no limit."""
    return min(prefetch, window_limit) if prefetch and window_limit else prefetch or window_limit


class Consumers:
    """The consumers of a queue, in turns within each priority."""

    __slots__ = ("_groups", "active", "by_key", "count", "exclusive_count", "single_active")

    def __init__(self, *, single_active: bool = False) -> None:
        self.by_key: dict[Any, Consumer] = {}
        #: (priority, consumers in turn), highest first. Ordered dictionaries: one of very many consumers goes, or
        #: has had its turn, without a look at the others.
        self._groups: list[tuple[int, OrderedDict[Consumer, None]]] = []
        self.count = self.exclusive_count = 0
        self.single_active = single_active
        #: The single active consumer stays active until it detaches, even if later consumers have higher
        #: priorities.
        self.active: Consumer | None = None

    def attach(self, consumer: Consumer) -> None:
        self.by_key[consumer.key] = consumer
        self.count += 1
        self.exclusive_count += consumer.exclusive
        if self.single_active and self.active is None:
            self.active = consumer
        for priority, group in self._groups:
            if priority == consumer.priority:
                group[consumer] = None
                return
        self._groups.append((consumer.priority, OrderedDict({consumer: None})))
        self._groups.sort(key=lambda pair: -pair[0])

    def detach(self, consumer: Consumer) -> None:
        """The consumer takes no more messages; it keeps those that it holds until it is forgotten."""
        if not consumer.attached:
            return
        consumer.attached = False
        self.count -= 1
        self.exclusive_count -= consumer.exclusive
        for index, (priority, group) in enumerate(self._groups):
            if priority == consumer.priority:
                del group[consumer]
                if not group:
                    del self._groups[index]
                break
        if consumer is self.active:
            self.active = next(self.attached(), None)

    def attached(self) -> Iterator[Consumer]:
        """The attached consumers, in turn."""
        for _, group in self._groups:
            yield from group

    def in_turn(self) -> list[Consumer]:
        """All consumers: the attached ones, in turn, then detached ones that still hold messages.

        The order of `by_key` is not the same on a replica that was restored; this one is.
        """
        return [*self.attached(), *(held for held in self.by_key.values() if not held.attached)]

    def takers(self, count: int) -> tuple[list[Consumer], bool]:
        """Return the consumers whose turn it is, all with room in the highest priority that has any; or only the first
        of several, and True, if messages must go out one by one. Only the first, too, if `count` is one message.

        They must if consumers share room, and for consumers of one channel: messages that a publisher sent through one
        queue arrive on one channel in order (AMQP 0-9-1, 4.7), whichever of its consumers gets them. Then one look at
        all of them for each message would be far too many.
        """
        if self.single_active:
            active = self.active
            return [active] if active is not None and active.room() > 0 else [], False
        for _, group in self._groups:
            takers: list[Consumer] = []
            channels: dict[Any, None] = {}
            one_by_one = False
            for consumer in group:
                room = consumer.room()
                if room <= 0:
                    continue
                takers.append(consumer)
                if count == 1 or len(group) == 1:
                    break
                window = consumer.window
                channel = consumer.channel if window is None else id(window)
                if window is not None and window.room() < UNLIMITED:
                    one_by_one = True
                elif channel is not None:
                    one_by_one = one_by_one or channel in channels
                    channels[channel] = None
                if one_by_one and len(takers) > 1:
                    return takers[:1], True
            if takers:
                return takers, False
        return [], False

    def served(self, consumer: Consumer) -> None:
        """Give the turn to the consumer after this one. The turn passes in the same way however runs are cut."""
        if self.single_active:
            return
        for priority, group in self._groups:
            if priority == consumer.priority:
                if len(group) > 1:
                    _pass_turn(group, consumer)
                return


def _pass_turn(group: OrderedDict[Consumer, None], consumer: Consumer) -> None:
    """Make the consumer the last one, behind those that came before it."""
    while True:
        first = next(iter(group))
        group.move_to_end(first)
        if first is consumer:
            return
