"""One consumer group: its members, and their deliveries.

A partition is assigned to one member, its owner. When it is assigned to another one, because members came or
went, the former owner keeps its deliveries until they are settled, and the new owner gets nothing until then.
So no message is with two members, and none overtakes another one. A member that is gone holds nothing: its
deliveries come back at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from quorum_queue.consumer_groups.partition import LET_GO_MAX, Partition, Span
from quorum_queue.consumer_groups.sharing import share
from quorum_queue.machine.consumers import ALL_IDS, UNLIMITED, PrefetchWindow
from quorum_queue.machine.effects import Reason

Key = tuple[Any, ...]
#: Portions of a member that come back, or are forgotten, in one step.
PORTIONS_MAX: Final = 512


class Portion:
    """Consecutive messages of one partition that a member holds, with its own consecutive delivery ids.

    `offsets` are those of the messages; the last one also stands for missing messages after it, up to `stop`.
    A portion never changes, so that a snapshot can be made of it later.
    """

    __slots__ = ("at_ms", "attempts", "offsets", "partition", "stop")

    def __init__(
        self, partition: Partition, offsets: Sequence[int], stop: int, attempts: int, at_ms: int
    ) -> None:
        self.partition = partition
        self.offsets = offsets
        self.stop = stop
        self.attempts = attempts
        #: Time of delivery.
        self.at_ms = at_ms

    @property
    def low(self) -> int:
        return self.offsets[0]

    def cut(self, count: int) -> tuple[Portion, Portion]:
        """Return the first `count` messages, fewer than all, and the others."""
        partition, offsets, attempts, at_ms = self.partition, self.offsets, self.attempts, self.at_ms
        return (
            Portion(partition, offsets[:count], offsets[count], attempts, at_ms),
            Portion(partition, offsets[count:], self.stop, attempts, at_ms),
        )


class Member:
    """One consumer, or a client that gets messages one by one; the latter owns no partition."""

    __slots__ = (
        "_portions",
        "_starts",
        "ahead_max",
        "channel",
        "count",
        "key",
        "next_id",
        "no_ack",
        "owned",
        "paused",
        "prefetch",
        "sent",
        "sink",
        "window",
    )

    def __init__(
        self,
        key: Key,
        *,
        prefetch: int = 0,
        no_ack: bool = False,
        window: PrefetchWindow | None = None,
        sink: Any = None,
        paused: bool = False,
        channel: Key | None = None,
        ahead_max: int = 0,
    ) -> None:
        """`channel` identifies consumers that share their limits; None: the key begins with connection and
        channel.
        """
        self.key = key
        self.channel: Key = key[:2] if channel is None else channel
        #: Limit of messages on their way to the member; 0 is unlimited. Messages below the id `sent` have
        #: been sent.
        self.ahead_max = ahead_max
        self.sent = 0
        #: Messages that it may hold; 0 is unlimited.
        self.prefetch = prefetch
        self.no_ack = no_ack
        self.window = window
        self.sink = sink
        #: True while the client's outbox is full.
        self.paused = paused
        self.next_id = 0
        self.count = 0
        self.owned: dict[Partition, None] = {}
        self._starts: list[int] = []
        self._portions: list[Portion] = []

    def room(self) -> int:
        """Number of messages that it may take now."""
        if self.paused:
            return 0
        room = self.prefetch - self.count if self.prefetch and not self.no_ack else UNLIMITED
        if self.ahead_max:
            room = min(room, self.ahead_max - (self.next_id - self.sent))
        return room if self.window is None else min(room, self.window.room())

    @property
    def oldest_ms(self) -> int | None:
        """Time of the oldest delivery that it holds."""
        return self._portions[0].at_ms if self._portions else None

    def portions(self) -> list[tuple[int, Portion]]:
        """Return its portions, with the id of the first delivery of each."""
        return list(zip(self._starts, self._portions, strict=True))

    def columns(self) -> tuple[list[int], list[Portion]]:
        """Return copies of the same in two lists."""
        return list(self._starts), list(self._portions)

    def put(self, first: int, portion: Portion) -> None:
        """Note a portion with these ids, which are higher than all before."""
        self._starts.append(first)
        self._portions.append(portion)
        self._counted(len(portion.offsets))

    def add(self, portion: Portion) -> int:
        """Add a portion; return the id of the first delivery."""
        first, count = self.next_id, len(portion.offsets)
        self.next_id = first + count
        self._starts.append(first)
        self._portions.append(portion)
        self._counted(count)
        return first

    def holds(self, low: int, high: int) -> bool:
        """Return whether it holds all deliveries with these ids."""
        starts, portions = self._starts, self._portions
        at = bisect_right(starts, low) - 1
        while 0 <= at < len(starts) and starts[at] <= low:
            low = max(low, starts[at] + len(portions[at].offsets))
            if low > high:
                return True
            at += 1
        return False

    def take(self, low: int, high: int) -> list[Portion]:
        """Remove the deliveries with these ids and return them; ids not held are passed over."""
        starts, portions = self._starts, self._portions
        start = max(bisect_right(starts, low) - 1, 0)
        if start < len(starts) and starts[start] + len(portions[start].offsets) <= low:
            start += 1
        end = start
        taken: list[Portion] = []
        left: list[tuple[int, Portion]] = []
        while end < len(starts) and starts[end] <= high:
            first, portion = starts[end], portions[end]
            end += 1
            if first < low:
                front, portion = portion.cut(low - first)
                left.append((first, front))
                first = low
            if first + len(portion.offsets) - 1 > high:
                portion, back = portion.cut(high - first + 1)
                left.append((high + 1, back))
            taken.append(portion)
        if taken:
            starts[start:end] = [first for first, _ in left]
            portions[start:end] = [portion for _, portion in left]
            self._counted(-sum([len(each.offsets) for each in taken]))
        return taken

    def take_many(self, ranges: list[tuple[int, int]]) -> list[Portion]:
        """Remove the deliveries with ids from one up to and including another, and return them, as `take`
        does for each. One by one they would move the lists once for each.
        """
        starts, portions = self._starts, self._portions
        rising = all(high < low for (_, high), (low, _) in pairwise(ranges))
        start = max(bisect_right(starts, ranges[0][0]) - 1, 0)
        end = bisect_right(starts, ranges[-1][1])
        if not rising or end - start > len(ranges) * (8 + (len(starts) >> 10)):
            return [portion for low, high in ranges for portion in self.take(low, high)]
        taken: list[Portion] = []
        left_starts: list[int] = []
        left: list[Portion] = []
        place, last = 0, len(ranges)
        for first, portion in zip(starts[start:end], portions[start:end], strict=True):
            stop = first + len(portion.offsets)
            while place < last and ranges[place][1] < first:
                place += 1
            at = place
            while first < stop and at < last and ranges[at][0] < stop:
                low, high = ranges[at]
                if first < low:
                    front, portion = portion.cut(low - first)
                    left_starts.append(first)
                    left.append(front)
                    first = low
                if high + 1 < stop:
                    front, portion = portion.cut(high + 1 - first)
                    taken.append(front)
                    first = high + 1
                else:
                    taken.append(portion)
                    first = stop
                at += 1
            if first < stop:
                left_starts.append(first)
                left.append(portion)
        starts[start:end] = left_starts
        portions[start:end] = left
        self._counted(-sum([len(each.offsets) for each in taken]))
        return taken

    def last_of_part(self, low: int = 0, high: int = ALL_IDS) -> int:
        """Return the last id of a part of its deliveries with ids from one up to and including another one:
        the last of them if they have PORTIONS_MAX portions or fewer.
        """
        starts = self._starts
        at = (max(bisect_right(starts, low) - 1, 0) if low else 0) + PORTIONS_MAX
        return min(high, starts[at] - 1) if at < len(starts) else high

    def take_all(self) -> list[Portion]:
        """Remove all deliveries and return them."""
        taken, self._starts, self._portions = self._portions, [], []
        self._counted(-self.count)
        return taken

    def end(self) -> None:
        """It holds nothing for its channel any more; `let_go` frees what it held."""
        self._counted(-self.count)

    def forgetting(self, partitions: Mapping[Partition, object]) -> Iterator[None]:
        """Forget the deliveries of some partitions, in steps; nothing may change meanwhile."""
        starts, portions = self._starts, self._portions
        kept_starts: list[int] = []
        kept: list[Portion] = []
        count = 0
        while portions:
            # From the end: there they can be freed at once.
            for at in range(len(portions) - 1, max(len(portions) - PORTIONS_MAX, 0) - 1, -1):
                portion = portions[at]
                if portion.partition in partitions:
                    count += len(portion.offsets)
                else:
                    kept_starts.append(starts[at])
                    kept.append(portion)
            del starts[-PORTIONS_MAX:], portions[-PORTIONS_MAX:]
            if portions:
                yield
        kept_starts.reverse()
        kept.reverse()
        self._starts, self._portions = kept_starts, kept
        self._counted(-count)

    def let_go(self) -> Iterator[None]:
        """Forget the portions, in steps."""
        while self._portions:
            del self._portions[-LET_GO_MAX:], self._starts[-LET_GO_MAX:]
            yield

    def leave_behind(self) -> None:
        """Nothing is left here of what its client may hold."""
        if self.window is not None:
            self.sink.left_behind()

    def _counted(self, count: int) -> None:
        self.count += count
        if self.window is not None:
            self.window.use(count)


class Dead(NamedTuple):
    """Messages that have died."""

    partition: Partition
    span: Span
    reason: Reason


class Group:
    """See above. Calls note their changes in `changed`, `freed`, `roomy` and
    `dead`, for the caller to take.
    """

    __slots__ = (
        "_free",
        "_uneven",
        "changed",
        "dead",
        "delivery_limit",
        "freed",
        "generation",
        "getters",
        "leaving",
        "members",
        "parked",
        "partitions",
        "roomy",
    )

    def __init__(self, delivery_limit: int | None = None) -> None:
        """`delivery_limit`: a message dies when it came back more often; None is no limit."""
        self.delivery_limit = delivery_limit
        #: Partitions by the ids of their streams, in order.
        self.partitions: dict[int, Partition] = {}
        #: Members that share the partitions; former members that still hold messages; and getters of single
        #: messages.
        self.members: dict[Key, Member] = {}
        self.leaving: dict[Key, Member] = {}
        self.getters: dict[Key, Member] = {}
        #: What stands for members: deliveries with transactions that are not decided.
        self.parked: dict[Key, Member] = {}
        #: Counts assignments of the partitions.
        self.generation = 0
        #: Partitions with a changed position, and partitions that may be served again.
        self.changed: dict[Partition, None] = {}
        self.freed: dict[Partition, None] = {}
        #: Members that may have more room.
        self.roomy: dict[Member, None] = {}
        self.dead: list[Dead] = []
        self._uneven = False
        self._free: list[int] = []

    # -- partitions ------------------------------------------------------------------------------------------

    def add(self, partition: Partition) -> None:
        """Add a partition."""
        self.partitions[partition.stream_id] = partition
        self._uneven = True

    def remove(self, stream_id: int) -> Partition:
        """The stream of a partition is gone: forget the partition."""
        partition = self.partitions.pop(stream_id)
        self.forget([partition])
        self._give(partition, None)
        for noted in (self.changed, self.freed):
            noted.pop(partition, None)
        self._uneven = True
        return partition

    def begin(self, partition: Partition, offset: int, pending: Iterable[Span] = ()) -> None:
        """Begin at this offset; earlier unsettled deliveries come first."""
        partition.cursor = offset
        limit = self.delivery_limit
        for span in pending:
            if limit is not None and span.attempts > limit:
                self._die([Dead(partition, span, "delivery_limit")])
            else:
                partition.returned.add(span)
        self._change(partition)
        self.freed[partition] = None

    def move(self, partition: Partition, offset: int) -> None:
        """Continue at this offset. Forget the members' deliveries of the partition."""
        self.forget([partition])
        partition.move(offset)
        self._change(partition)
        self.freed[partition] = None

    def skip_unread(self, partition: Partition, first: int, stop: int) -> int:
        """Skip all undelivered messages of a stream with these offsets; return their number."""
        count = partition.unread(first, stop)
        partition.returned.clear()
        partition.cursor = max(partition.cursor, stop)
        self._change(partition)
        return count

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Forget the members' deliveries of these partitions."""
        for _ in self.forgetting(partitions):
            pass

    def forgetting(self, partitions: Iterable[Partition]) -> Iterator[None]:
        """The same in steps; nothing may change meanwhile."""
        found = {partition: None for partition in partitions if partition.holder is not None}
        for member in self.holders() if found else ():
            yield from member.forgetting(found)
        for partition in found:
            partition.held.clear()
            partition.holder = None

    def let_go(self) -> Iterator[None]:
        """Forget everything, in steps, and break the reference cycles between partitions and members."""
        members = self.holders()
        for partition in list(self.partitions.values()):
            partition.owner = partition.holder = None
            for spans in (partition.held, partition.returned, partition.dying):
                yield from spans.let_go()
        for member in members:
            member.owned.clear()
            yield from member.let_go()

    def holders(self) -> list[Member]:
        """Return all that hold messages or wait for some."""
        return [
            *self.members.values(),
            *self.leaving.values(),
            *self.getters.values(),
            *self.parked.values(),
        ]

    # -- members ---------------------------------------------------------------------------------------------

    def join(self, member: Member) -> None:
        self.members[member.key] = member
        self._uneven = True

    def find(self, key: Key) -> Member | None:
        return self.members.get(key) or self.leaving.get(key) or self.getters.get(key)

    def leave(self, key: Key, *, gone: bool) -> None:
        """A member gets nothing more. If it is gone, its deliveries come back."""
        member = self.members.pop(key, None)
        if member is not None:
            self._uneven = True
            if member.count and not gone:
                self.leaving[key] = member
        member = member or self.leaving.get(key) or self.getters.get(key)
        if member is not None and gone:
            self.leaving.pop(key, None)
            self.getters.pop(key, None)
            self._give_back(member.take_all())
            member.leave_behind()

    def comes_back_in_parts(self, key: Key) -> bool:
        """True if a member holds more than should come back in one step."""
        member = self.find(key)
        return member is not None and member.last_of_part() < ALL_IDS

    def come_back(self, key: Key) -> None:
        """Let a part of the deliveries of a member that is gone come back; `leave` gives back the rest."""
        member = self.find(key)
        if member is not None:
            self.give_back(key, 0, member.last_of_part())

    def coming_back(self, key: Key) -> Iterator[None]:
        """Let all but the last part come back in steps."""
        while self.comes_back_in_parts(key):
            self.come_back(key)
            yield

    def rebalance(self) -> bool:
        """Assign the partitions again if members or partitions have changed; return whether an assignment
        changed.
        """
        if not self._uneven:
            return False
        self._uneven = False
        members = list(self.members.values())
        partitions = list(self.partitions.values())
        owners: dict[Partition, Member] = {}
        for partition in partitions:
            owner = partition.owner
            if owner is None or owner.key not in self.members:
                # A member that still holds messages of it need not give them up.
                owner = partition.holder
            if owner is not None:
                owners[partition] = owner
        shared = share(partitions, members, owners)
        changes = [each for each in partitions if shared.get(each) is not each.owner]
        if changes:
            self.generation += 1
            for partition in changes:
                self._give(partition, shared.get(partition))
        return bool(changes)

    def settled_down(self) -> None:
        """Members and partitions were restored with their assignments."""
        self._uneven = False

    def _give(self, partition: Partition, member: Member | None) -> None:
        before = partition.owner
        if before is not None:
            before.owned.pop(partition, None)
        partition.owner = member
        partition.generation = self.generation
        if member is not None:
            member.owned[partition] = None
            self.freed[partition] = None

    # -- deliveries ------------------------------------------------------------------------------------------

    def hand(
        self,
        partition: Partition,
        member: Member,
        offsets: Sequence[int],
        stop: int,
        attempts: int,
        now_ms: int,
    ) -> int:
        """Deliver messages to a member; return the id of the first delivery.

        The last one also stands for missing messages after it, up to `stop`. Without acks they are settled at
        once.
        """
        low = offsets[0]
        partition.take_out(low, stop)
        if member.no_ack:
            first = member.next_id
            member.next_id = first + len(offsets)
            self._change(partition)
            return first
        partition.held.add(Span(low, stop, attempts))
        partition.holder = member
        return member.add(Portion(partition, offsets, stop, attempts, now_ms))

    def settle(self, key: Key, low: int, high: int) -> None:
        """Deliveries were acked."""
        member = self.find(key)
        self._settle(member.take(low, high) if member is not None else [])
        self.has_room(member)

    def settle_many(self, key: Key, ranges: list[tuple[int, int]]) -> None:
        """The same for several ranges of ids."""
        member = self.find(key)
        if member is not None:
            self._settle(member.take_many(ranges))
        self.has_room(member)

    def _settle(self, portions: list[Portion]) -> None:
        for partition in self._no_longer_held(portions):
            self._change(partition)

    def _no_longer_held(self, portions: list[Portion]) -> Iterable[Partition]:
        """Members do not hold these any more; return their partitions. There may be very many: one by one
        they would move the lists of a partition once for each.
        """
        gone: dict[Partition, list[tuple[int, int]]] = {}
        for portion in portions:
            ranges = gone.get(portion.partition)
            if ranges is None:
                ranges = gone[portion.partition] = []
            ranges.append((portion.low, portion.stop))
        for partition, ranges in gone.items():
            partition.held.remove_all(ranges)
            self._let_go(partition)
        return gone

    def give_back(self, key: Key, low: int, high: int, *, seen: bool = True) -> None:
        """Deliveries return to their places, before newer messages. `seen`: the client may have got them."""
        member = self.find(key)
        if member is not None:
            self._give_back(member.take(low, high), 1 if seen else 0)
        self.has_room(member)

    def give_back_many(self, key: Key, ranges: list[tuple[int, int]]) -> None:
        """The same for several ranges of ids."""
        member = self.find(key)
        if member is not None:
            self._give_back(member.take_many(ranges))
        self.has_room(member)

    def _give_back(self, portions: list[Portion], more: int = 1) -> None:
        limit = self.delivery_limit
        for partition in self._no_longer_held(portions):
            self._change(partition)
            self.freed[partition] = None
        returned: dict[Partition, list[Span]] = {}
        died: list[Dead] = []
        for portion in portions:
            partition, attempts = portion.partition, portion.attempts + more
            span = Span(portion.low, portion.stop, attempts)
            if limit is not None and attempts > limit:
                died.append(Dead(partition, span, "delivery_limit"))
            else:
                returned.setdefault(partition, []).append(span)
        for partition, spans in returned.items():
            partition.returned.add_all(spans)
        self._die(died)

    def discard(self, key: Key, low: int, high: int) -> None:
        """Deliveries were rejected for good."""
        member = self.find(key)
        self._discard(member.take(low, high) if member is not None else [])
        self.has_room(member)

    def discard_many(self, key: Key, ranges: list[tuple[int, int]]) -> None:
        """The same for several ranges of ids."""
        member = self.find(key)
        self._discard(member.take_many(ranges) if member is not None else [])
        self.has_room(member)

    def settle_all(self, member: Member, verb: str) -> None:
        """Settle, return or discard everything that a member holds."""
        portions = member.take_all()
        if verb == "settle":
            self._settle(portions)
        elif verb == "discard":
            self._discard(portions)
        else:
            self._give_back(portions)

    def _discard(self, portions: list[Portion]) -> None:
        for partition in self._no_longer_held(portions):
            self._change(partition)
        self._die(
            [Dead(each.partition, Span(each.low, each.stop, each.attempts), "rejected") for each in portions]
        )

    def _die(self, dead: list[Dead]) -> None:
        dying: dict[Partition, list[Span]] = {}
        for each in dead:
            dying.setdefault(each.partition, []).append(each.span)
        for partition, spans in dying.items():
            partition.dying.add_all(spans)
        self.dead += dead

    def buried(self, partition: Partition, low: int, stop: int) -> None:
        """The targets have got these dead messages."""
        partition.dying.take(low, stop)
        self._change(partition)

    def _let_go(self, partition: Partition) -> None:
        holder = partition.holder
        if holder is None or partition.held:
            return
        partition.holder = None
        if holder is not partition.owner:
            partition.generation = self.generation
        self.freed[partition] = None

    def has_room(self, member: Member | None) -> None:
        """A member holds less."""
        if member is None:
            return
        self.roomy[member] = None
        if not member.count:
            self.leaving.pop(member.key, None)

    def _change(self, partition: Partition) -> None:
        self.changed[partition] = None

    def stuck(self, before_ms: int) -> list[Member]:
        """Return the members with a delivery older than this."""
        return [
            each
            for each in self.holders()
            if each.oldest_ms is not None and each.oldest_ms <= before_ms and each.key not in self.parked
        ]

    def due_ms(self) -> int | None:
        """Return the time of the oldest delivery."""
        times = [each.oldest_ms for each in self.holders() if each.key not in self.parked]
        return min([time for time in times if time is not None], default=None)


__all__ = ["Dead", "Group", "Key", "Member", "Portion"]
