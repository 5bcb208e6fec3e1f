"""Message groups: which consumer has the messages of a group, and the ready messages of a queue with groups.

A group is with one consumer as long as this holds unacked messages of it; nobody else gets its next ones. So
its messages are handed out in order, and come back in order. A group is blocked, for everybody, while a
message of it waits for a retry, or an open transaction has acked one.

Messages lie in one FIFO, as in every queue, until they are looked at. The first one whose consumer has no
room is parked: put aside into a heap of its group, so that nobody looks at it again before the group's turn
comes. Whatever is handed out is the message with the lowest position that may be handed out; so replicas that
have looked at different messages hand out the same ones, and a snapshot has no groups: who has a group
follows from what consumers hold.

The group of a message stands in its head, behind exchange and routing key: wherever heads go, in logs,
journals and snapshots, groups go with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Reversible
from heapq import heapify, heappop, heappush, merge
from operator import attrgetter
from typing import Final
from zlib import crc32

from quorum_queue.empty import NO_DICT
from quorum_queue.machine.consumers import NO_KEEPER, Consumer, Consumers, Keeper
from quorum_queue.machine.order.level import Expired, Level, cut_out, without_expired, without_positions
from quorum_queue.machine.order.run_list import RunList
from quorum_queue.machine.ready import Place, Ready
from quorum_queue.machine.run import NEVER, Run

#: Most messages that are put aside because consumers of their groups have no room, before the queue
#: looks no further. Where it has looked before, it looks again.
LOOK_AHEAD_MAX: Final = 16_384
#: Heaps with more entries than this many for each group have many that are not valid any more.
STALE_FACTOR: Final = 4
STALE_MIN: Final = 64

_by_position = attrgetter("seqs.start")


#: Consumer, run, and first delivery id.
Delivery = tuple[Consumer, Run, int]


def routing_of(head: bytes) -> bytes:
    """Return exchange and routing key of a message, as a delivery carries them, from its head."""
    return head[: _end_of_routing(head)]


def group_of(head: bytes) -> bytes:
    """Return the group of a message from its head, empty for none."""
    return head[_end_of_routing(head) :]


def _end_of_routing(head: bytes) -> int:
    key_at = 1 + head[0] if head else 0
    return key_at + 1 + head[key_at] if key_at < len(head) else len(head)


def without_groups(run: Run) -> None:
    """Let the heads of a run have the routing only."""
    heads = run.heads
    if heads is None:
        run.head = routing_of(run.head)
        return
    routing = routing_of(heads[0])
    if all(head.startswith(routing) for head in heads):
        # Nearly always all came by one way, and then they are sent faster.
        run.head, run.heads = routing, None
    else:
        run.heads = [routing_of(head) for head in heads]


class Gathering:
    """What one consumer gets, with equal flags."""

    __slots__ = ("consumer", "first_id", "runs")

    def __init__(self, consumer: Consumer, run: Run, first_id: int) -> None:
        self.consumer = consumer
        self.first_id = first_id
        self.runs = [run]

    def takes(self, run: Run) -> bool:
        first = self.runs[0]
        return (
            run.attributes == first.attributes
            and run.redelivered == first.redelivered
            and run.attempts == first.attempts
            and run.acquired == first.acquired
            and run.kinds is None
            and first.kinds is None
        )

    def delivery(self) -> Delivery:
        first = self.runs[0]
        if len(self.runs) == 1:
            return self.consumer, first, self.first_id
        contents: list[bytes] = []
        for run in self.runs:
            contents += run.contents or []
        joined = Run(range(len(contents)), contents, first.head, first.attributes)
        if any(run.heads is not None or run.head != first.head for run in self.runs):
            heads: list[bytes] = []
            for run in self.runs:
                heads += run.heads or [run.head] * len(run.seqs)
            joined.heads = heads
        joined.redelivered, joined.attempts, joined.acquired = (
            first.redelivered,
            first.attempts,
            first.acquired,
        )
        return self.consumer, joined, self.first_id


def gathered(deliveries: list[Delivery]) -> list[Delivery]:
    """Put together what each consumer gets, of messages in memory: by groups they are handed out one by one,
    and sent much faster together. Their positions are lost, which nobody needs to send them.
    """
    found: list[Gathering] = []
    last: dict[Consumer, Gathering] = {}
    for consumer, run, first_id in deliveries:
        gathering = last.get(consumer)
        if gathering is not None and gathering.takes(run):
            gathering.runs.append(run)
        else:
            gathering = last[consumer] = Gathering(consumer, run, first_id)
            found.append(gathering)
    return [gathering.delivery() for gathering in found]


class Holder:
    """Who has a group, and how many of its messages unacked."""

    __slots__ = ("consumer", "count", "others")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.count = 0
        #: Others that have messages of the group since before the queue had groups, with their numbers. The
        #: first of all by its key has the group, whatever the order in which they are found.
        self.others: dict[Consumer, int] = NO_DICT

    def add(self, consumer: Consumer, count: int) -> None:
        if consumer is self.consumer:
            self.count += count
            return
        others = dict(self.others)
        others[consumer] = others.get(consumer, 0) + count
        if self.count:
            others[self.consumer] = self.count
        self._choose(others)

    def take(self, consumer: Consumer, count: int) -> None:
        if consumer is self.consumer:
            self.count -= count
            if self.count <= 0 and self.others:
                self._choose(self.others)
        elif consumer in self.others:
            left = self.others[consumer] - count
            self.others = {other: have for other, have in self.others.items() if other is not consumer}
            if left > 0:
                self.others[consumer] = left

    def _choose(self, having: dict[Consumer, int]) -> None:
        self.consumer = min(having, key=_key)
        self.count = having[self.consumer]
        self.others = {other: count for other, count in having.items() if other is not self.consumer}


def _key(consumer: Consumer) -> str:
    return repr(consumer.key)


class Next:
    """The next messages to be handed out: the first `count` of a run, which are of one group or may go
    together, and to whom.
    """

    __slots__ = ("consumer", "count", "group", "parked", "run")

    def __init__(self, run: Run, count: int, group: bytes, consumer: Consumer, *, parked: bool) -> None:
        self.run = run
        self.count = count
        self.group = group
        self.consumer = consumer
        self.parked = parked


class GroupedReady(Ready):
    """The ready messages of a queue with message groups. Priorities mean nothing here."""

    __slots__ = (
        "_first",
        "_looks_no_further",
        "_parked_due",
        "_ripe",
        "_stalled",
        "blocked",
        "holders",
        "main",
        "parked",
        "parked_count",
        "scanned",
        "wanted",
    )

    def __init__(self, keeper: Keeper = NO_KEEPER) -> None:
        super().__init__(0, keeper)
        #: The messages that were not looked at yet, and those that came back since: always there, unlike in
        #: other queues.
        self.main = Level(keeper)
        self.levels = [self.main]
        #: Runs of each group that are put aside, as a heap by their first position.
        self.parked: dict[bytes, list[tuple[int, Run]]] = {}
        self.parked_count = 0
        #: The time before which none of them expires.
        self._parked_due = NEVER
        #: Groups with parked messages that may be handed out, as a heap by their first position; entries
        #: outlive what they are about, and are passed over.
        self._ripe: list[tuple[int, bytes]] = []
        #: The same with all groups that have parked messages.
        self._first: list[tuple[int, bytes]] = []
        #: The same with groups of consumers that have no room.
        self._stalled: dict[Consumer, list[tuple[int, bytes]]] = {}
        self.holders: dict[bytes, Holder] = {}
        #: How many messages of a group wait for a retry, or are acked in an open transaction.
        self.blocked: dict[bytes, int] = {}
        #: True if there was no room for messages that were to be put aside.
        self._looks_no_further = False
        #: Behind the last position that was ever put aside.
        self.scanned = 0
        #: The messages that could not be handed out because their bodies are not in memory. Not part of the
        #: state.
        self.wanted: Run | None = None

    # -- who has which group ---------------------------------------------------------------------------------

    def hold(self, run: Run, consumer: Consumer) -> None:
        """A consumer holds these messages unacked. Who picks messages out of the middle does not get their
        groups: nobody does meanwhile.
        """
        if consumer.position:
            self.block(run)
            return
        if run.heads is None:
            self._hold(group_of(run.head), len(run.seqs), consumer)
            return
        for head in run.heads:
            self._hold(group_of(head), 1, consumer)

    def _hold(self, group: bytes, count: int, consumer: Consumer) -> None:
        if not group:
            return
        holder = self.holders.get(group)
        if holder is None:
            holder = self.holders[group] = Holder(consumer)
        if consumer is holder.consumer:
            holder.count += count
        else:
            holder.add(consumer, count)

    def release(self, runs: Iterable[Run], consumer: Consumer) -> None:
        """A consumer holds these messages no more."""
        for run in runs:
            if consumer.position:
                self.unblock(run)
            elif run.heads is None:
                self._release(group_of(run.head), len(run.seqs), consumer)
            else:
                self._release_each(run.heads, consumer)

    def _release_each(self, heads: list[bytes], consumer: Consumer) -> None:
        holders, parked = self.holders, self.parked
        routing = routing_of(heads[0])
        routing_bytes = len(routing)
        for head in heads:
            group = head[routing_bytes:] if head.startswith(routing) else group_of(head)
            holder = holders.get(group)
            if holder is None:
                continue
            if holder.consumer is not consumer or holder.others:
                self._release(group, 1, consumer)
            elif holder.count > 1:
                holder.count -= 1
            else:
                del holders[group]
                if group in parked:
                    self._ripen(group)

    def _release(self, group: bytes, count: int, consumer: Consumer) -> None:
        holder = self.holders.get(group)
        if holder is None:
            return
        holder.take(consumer, count)
        if holder.count <= 0:
            del self.holders[group]
            self._ripen(group)
        elif holder.consumer is not consumer:
            # Another one has the group now, or had it before.
            self._ripen(group)

    def block(self, run: Run) -> None:
        """Nobody gets messages of these groups."""
        for group, count in _groups(run):
            self.blocked[group] = self.blocked.get(group, 0) + count

    def unblock(self, run: Run) -> None:
        for group, count in _groups(run):
            left = self.blocked.get(group, 0) - count
            if left > 0:
                self.blocked[group] = left
            else:
                self.blocked.pop(group, None)
                self._ripen(group)

    def leave(self, consumer: Consumer) -> None:
        """A consumer is gone, and holds nothing."""
        self._stalled.pop(consumer, None)

    def _ripen(self, group: bytes) -> None:
        heap = self.parked.get(group)
        if heap is not None:
            heappush(self._ripe, (heap[0][0], group))

    # -- handing out -----------------------------------------------------------------------------------------

    @property
    def ripe_at(self) -> int | None:
        """The first position of a message that was put aside and may go now."""
        entry = self._valid_top(self._ripe)
        return None if entry is None else entry[0]

    def begin(self) -> None:
        """Before messages are handed out: look at the groups of consumers that have room again."""
        self._looks_no_further = False
        for consumer in list(self._stalled):
            room = consumer.room() if consumer.attached else 0
            if room > 0:
                self._refill(consumer, room)

    def _refill(self, consumer: Consumer, most: int) -> None:
        """Look at this many groups of a consumer, those that come first. Groups that are blocked, or have
        another holder since, are looked at when that changes.
        """
        heap = self._stalled.get(consumer)
        while heap and most > 0:
            entry = heappop(heap)
            holder = None if entry[1] in self.blocked else self.holders.get(entry[1])
            if holder is not None and holder.consumer is consumer and self._is_valid(entry):
                heappush(self._ripe, entry)
                most -= 1
        if not heap:
            self._stalled.pop(consumer, None)

    def next(self, consumers: Consumers, below: int, getter: Consumer | None = None) -> Next | None:
        """Return the first messages, with positions below this one, that a consumer may have; or that the
        getter may have. On the way to it messages are put aside.
        """
        if getter is not None:
            self._refill(getter, 1)
        while True:
            entry, head = self._valid_top(self._ripe), self.main.head()
            if head is not None and (entry is None or head.seqs.start < entry[0]):
                if head.seqs.start >= below:
                    return None
                found = self._of_main(head, consumers, getter)
                if found is not None or not self._puts_aside(head, consumers, getter):
                    return found
            elif entry is None or entry[0] >= below:
                return None
            else:
                start, group = entry
                consumer = self._taker(group, start, consumers, getter)
                if consumer is not None:
                    run = self.parked[group][0][1]
                    return Next(run, _at_once(len(run.seqs), group, consumers), group, consumer, parked=True)
                if not self._stalls(entry):
                    return None

    def _of_main(self, head: Run, consumers: Consumers, getter: Consumer | None) -> Next | None:
        """Return the first messages of a run that nobody has looked at, if somebody may have them now."""
        if getter is None and not self.parked and not self.blocked:
            only = consumers.only
            if only is not None and only.room() > 0:
                # All groups are with it, or free.
                return Next(head, len(head.seqs), b"", only, parked=False)
        group = group_of(head.head_of(0))
        consumer = self._taker(group, head.seqs.start, consumers, getter)
        if consumer is None:
            return None
        return Next(head, _at_once(_alike(head), group, consumers), group, consumer, parked=False)

    def put_aside_of(self, head: Run, at: int, group: bytes, consumers: Consumers) -> int:
        """Put messages of a group, which others have or which is blocked, aside: those from this one on of a
        run that nobody has looked at. The run stays as it is. Return how many these are, 0 if nobody has room
        for anything, or if there are too many already.
        """
        if consumers.near(0) is None:
            return 0
        may, heads = self._may_put_aside(head.seqs.start + at), head.heads
        assert heads is not None
        stop, first = at, heads[at]
        while may > stop - at and stop < len(heads) and heads[stop] == first:
            stop += 1
        if stop > at:
            run = head.part(at, stop)
            if self._keep_aside(group, run):
                # Nothing that happens in this batch lets it go: it is not even noted as one that may.
                entry = run.seqs.start, group
                self._push(self._first, entry)
                self._stall(entry)
        return stop - at

    def _may_put_aside(self, position: int) -> int:
        """Return how many messages from this position on may be put aside.

        How runs are cut must not change what is put aside.
        """
        may = self.scanned - position
        if may <= 0:
            may = LOOK_AHEAD_MAX - self.parked_count
            self._looks_no_further = self._looks_no_further or may <= 0
        return may

    def _puts_aside(self, head: Run, consumers: Consumers, getter: Consumer | None) -> bool:
        """Put the first messages of a run aside, whose group others have; return False if nobody has room, or
        if there are too many already.
        """
        if getter is None and consumers.near(0) is None:
            return False
        may = self._may_put_aside(head.seqs.start)
        if may <= 0:
            return False
        self._park(group_of(head.head_of(0)), self.main.pop(min(_alike(head), may)))
        return True

    def _stalls(self, entry: tuple[int, bytes]) -> bool:
        """A group's first parked message may not go now: pass over it until it may. Return False if that is
        only because no consumer has room.
        """
        if not self._stall(entry):
            return False
        heappop(self._ripe)
        return True

    def _stall(self, entry: tuple[int, bytes]) -> bool:
        """A group's first parked message waits for the consumer that has the group, unless it is blocked.
        Return False if it waits for any consumer.
        """
        group = entry[1]
        if group in self.blocked:
            return True
        holder = self.holders.get(group)
        if holder is None:
            return False
        if holder.consumer.attached or holder.consumer.checkout.count:
            heappush(self._stalled.setdefault(holder.consumer, []), entry)
        return True

    def _taker(
        self, group: bytes, start: int, consumers: Consumers, getter: Consumer | None
    ) -> Consumer | None:
        """Return who may have the message of a group at this position, which is the first one of the group if
        it may be handed out.
        """
        if not group:
            return consumers.near(start) if getter is None else getter
        if group in self.blocked:
            return None
        heap = self.parked.get(group)
        if heap is not None and heap[0][0] < start:
            return None
        holder = self.holders.get(group)
        if holder is None:
            return consumers.near(crc32(group)) if getter is None else getter
        consumer = holder.consumer
        if getter is not None:
            return getter if consumer is getter else None
        return consumer if consumer.attached and consumer.room() > 0 else None

    @property
    def may_go_on(self) -> bool:
        """True if messages that were put aside have left since, so that there is room for more."""
        return self._looks_no_further and self.parked_count < LOOK_AHEAD_MAX

    def take(self, found: Next, count: int) -> Run:
        """Take the first `count` of these messages."""
        if found.parked:
            return self._take_parked(found.group, count)
        return self.pop(self.main, count)

    # -- messages that are put aside -------------------------------------------------------------------------

    def _park(self, group: bytes, run: Run) -> None:
        if self._keep_aside(group, run):
            self._comes_first(run.seqs.start, group)

    def _keep_aside(self, group: bytes, run: Run) -> bool:
        """Put a run aside; return True if it is the first one of its group now."""
        start = run.seqs.start
        self.parked_count += len(run.seqs)
        if run.expires_at is not None and run.expires_at < self._parked_due:
            self._parked_due = run.expires_at
        self.scanned = max(self.scanned, run.seqs[-1] + 1)
        heap = self.parked.get(group)
        if heap is None:
            self.parked[group] = [(start, run)]
            return True
        before = heap[0][0]
        heappush(heap, (start, run))
        return before >= start

    def _comes_first(self, start: int, group: bytes) -> None:
        """A group's first parked message is this one now."""
        for heap in (self._ripe, self._first):
            self._push(heap, (start, group))

    def _push(self, heap: list[tuple[int, bytes]], entry: tuple[int, bytes]) -> None:
        if len(heap) > STALE_FACTOR * len(self.parked) + STALE_MIN:
            # A set would have an order by chance.
            heap[:] = dict.fromkeys([entry for entry in heap if self._is_valid(entry)])
            heapify(heap)
        heappush(heap, entry)

    def _is_valid(self, entry: tuple[int, bytes]) -> bool:
        heap = self.parked.get(entry[1])
        return heap is not None and heap[0][0] == entry[0]

    def _valid_top(self, heap: list[tuple[int, bytes]]) -> tuple[int, bytes] | None:
        while heap:
            if self._is_valid(heap[0]):
                return heap[0]
            heappop(heap)
        return None

    def _take_parked(self, group: bytes, count: int) -> Run:
        heap = self.parked[group]
        run = heap[0][1]
        if count < len(run.seqs):
            if self.keeper.active:
                self.keeper.keep(run)
            taken = run.take(count)
            heap[0] = run.seqs.start, run
        else:
            taken = run
            heappop(heap)
        if heap:
            self._comes_first(heap[0][0], group)
        else:
            del self.parked[group]
        self.parked_count -= count
        self.count -= count
        self.bytes -= taken.counted_bytes
        return taken

    def _parked_runs(self) -> list[Run]:
        """All runs that are put aside, in order."""
        return sorted([run for heap in self.parked.values() for _, run in heap], key=_by_position)

    def put_back(self, runs: list[Run]) -> None:
        """Put messages back to their positions, to be looked at again: very many may come back at once."""
        for run in runs:
            for each in run.singles() if run.seqs.step != 1 else (run,):
                self.insert(each)

    # -- all messages ----------------------------------------------------------------------------------------

    def head(self) -> Run | None:
        """Return the run with the lowest position."""
        entry, head = self._valid_top(self._first), self.main.head()
        if entry is not None and (head is None or entry[0] < head.seqs.start):
            return self.parked[entry[1]][0][1]
        return head

    def drop_head(self, count: int) -> Run:
        """Take up to `count` messages of the run with the lowest position."""
        head = self.head()
        if head is None:
            raise IndexError("no ready message")
        if head is self.main.head():
            return self.pop(self.main, count)
        return self._take_parked(group_of(head.head_of(0)), min(count, len(head.seqs)))

    def runs(self) -> Iterator[Run]:
        """All ready runs, in the order of their positions."""
        return merge(self._parked_runs(), super().runs(), key=_by_position)

    def behind(self, place: Place) -> Iterator[tuple[int, Run, int]]:
        if place.level < 0:
            return
        position = place.position if place.level == 0 else 0
        parked = [run for heap in self.parked.values() for _, run in heap if run.seqs[-1] > position]
        parked.sort(key=_by_position)
        later = [run for run, _ in self.main.behind(position)]
        for run in merge(parked, later, key=_by_position):
            yield 0, run, run.within(0, position)[1]

    def wants(self) -> Run | None:
        wanted = self.wanted
        if wanted is None:
            return self.head()
        heap = self.parked.get(group_of(wanted.head_of(0)))
        if wanted is self.main.head() or (heap is not None and wanted is heap[0][1]):
            return wanted
        # It has left meanwhile.
        self.wanted = None
        return self.head()

    def paged_out(self, start_bytes: int, stop_bytes: int) -> list[Run]:
        wanted, later = self.wants(), super().paged_out(start_bytes, stop_bytes)
        if wanted is not None and not start_bytes and not wanted.in_memory and wanted not in later:
            later.insert(0, wanted)
        return later

    def brought_back(self, runs: list[Run]) -> None:
        # What is put aside is in no list of resident runs.
        super().brought_back([run for run in runs if run.ready])

    def put_aside(self) -> list[Reversible[Run]]:
        return [*super().put_aside(), self._parked_runs()]

    def take_positions(self, low: int, high: int) -> list[Run]:
        taken = super().take_positions(low, high)
        parked: list[Run] = []
        left = list(without_positions(self._parked_runs(), low, high, parked, self.keeper))
        if parked:
            self._forget_parked()
            for run in left:
                run.ready = False
                self._park(group_of(run.head_of(0)), run)
            for run in parked:
                self.count -= len(run.seqs)
                self.bytes -= run.counted_bytes
        return taken + parked

    def pick(self, position: int, now_ms: int) -> Run | None:
        picked = super().pick(position, now_ms)
        if picked is not None:
            return picked
        for group, heap in self.parked.items():
            for at, (_, run) in enumerate(heap):
                if position in run.seqs:
                    index = position - run.seqs.start
                    due = run.due_of(index)
                    return None if due is not None and due <= now_ms else self._pick_parked(group, at, index)
        return None

    def _pick_parked(self, group: bytes, at: int, index: int) -> Run:
        heap = self.parked[group]
        picked, left = cut_out(heap[at][1], index, self.keeper)
        heap[at : at + 1] = [(part.seqs.start, part) for part in left]
        heapify(heap)
        if heap:
            self._comes_first(heap[0][0], group)
        else:
            del self.parked[group]
        self.parked_count -= 1
        self.count -= 1
        self.bytes -= picked.counted_bytes
        return picked

    def _expired_between(self, low: int, high: int, now_ms: int, taken: Expired) -> int:
        if self._parked_due <= now_ms:
            self._look_again_at_expired(now_ms)
        # Some of those put aside may have these positions, too.
        return min(super()._expired_between(low, high, now_ms, taken), self._parked_due)

    def _look_again_at_expired(self, now_ms: int) -> None:
        """Put messages that have expired back to those that nobody has looked at: which ones were put aside
        must not show in the order in which they go.
        """
        due = NEVER
        again = Expired(NEVER)
        for group, heap in list(self.parked.items()):
            least = min([NEVER if run.expires_at is None else run.expires_at for _, run in heap])
            if least > now_ms:
                due = min(due, least)
                continue
            kept: list[tuple[int, Run]] = []
            for entry in heap:
                run = entry[1]
                if run.expires_at is None:
                    kept.append(entry)
                    continue
                left, least = without_expired(run, 0, len(run.seqs), now_ms, again, self.keeper)
                for part in left:
                    part.ready = True
                    kept.append((part.seqs.start, part))
                due = min(due, least)
            if kept:
                heapify(kept)
                self.parked[group] = kept
                self._comes_first(kept[0][0], group)
            else:
                del self.parked[group]
        self._parked_due = due
        for run in sorted(again.runs, key=_by_position):
            self.parked_count -= len(run.seqs)
            self.main.insert(run, 1 << 62)

    def _forget_parked(self) -> None:
        self.parked, self.parked_count, self._parked_due = {}, 0, NEVER
        self._ripe, self._first = [], []
        self._stalled.clear()

    def drop_all(self) -> list[deque[Run] | RunList]:
        parked = deque(run for heap in self.parked.values() for _, run in heap)
        dropped = super().drop_all()
        self._forget_all()
        return [*dropped, parked]

    def clear(self) -> list[Run]:
        taken = super().clear()
        self._forget_all()
        return taken

    def _forget_all(self) -> None:
        self._forget_parked()
        self.main = Level(self.keeper)
        self.levels = [self.main]


def _at_once(count: int, group: bytes, consumers: Consumers) -> int:
    """Return how many messages one consumer gets at once: those of no group go to all in turn."""
    return count if group or consumers.count == 1 else 1


def _alike(run: Run) -> int:
    """Return how many of the first messages have the same head."""
    heads = run.heads
    if heads is None:
        return len(run.seqs)
    first, count = heads[0], 1
    while count < len(heads) and heads[count] == first:
        count += 1
    return count


def _groups(run: Run) -> list[tuple[bytes, int]]:
    """Return the groups of a run's messages, with numbers of messages; a group may come several times."""
    if run.heads is None:
        group = group_of(run.head)
        return [(group, len(run.seqs))] if group else []
    return [(group, 1) for group in map(group_of, run.heads) if group]


__all__ = [
    "LOOK_AHEAD_MAX",
    "GroupedReady",
    "Next",
    "gathered",
    "group_of",
    "routing_of",
    "without_groups",
]
