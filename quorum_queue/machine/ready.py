"""The ready messages: one FIFO for each priority, with returned messages in their old places.

Returned messages always have smaller sequence numbers than messages that were never delivered (a level is
delivered from its head only), so a level is two lists: `returned`, then `main`.

A queue with strict priorities has a level for each rank that its messages have, and above them one with the
returned messages, in the order of their return: as in RabbitMQ, they have no priority any more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Final, NamedTuple

from quorum_queue.empty import NO_DICT, NO_LIST
from quorum_queue.machine.attributes import RANK_PLAIN, RANK_RETURNED, rank_of
from quorum_queue.machine.consumers import NO_KEEPER, Keeper
from quorum_queue.machine.run import Run

#: Contents of runs with at least so many before them are packed, once no message joins them any more.
PACKED_BEHIND: Final = 4
#: Most of the next runs that are looked at.
LOOKS_MAX: Final = 4096

_by_position = attrgetter("seqs.start")


class Place(NamedTuple):
    """The place of a ready message in the order of delivery."""

    #: Twice its priority, or its rank if the queue has strict priorities; and one if it came back.
    level: int
    #: Its sequence number.
    position: int


#: Before all messages.
HEAD: Final = Place(1 << 31, 0)


class Level:
    """The ready messages of one priority."""

    __slots__ = ("keeper", "main", "resident", "returned")

    def __init__(self, keeper: Keeper = NO_KEEPER) -> None:
        self.keeper = keeper
        self.main: deque[Run] = deque()
        self.returned: deque[Run] = deque()
        #: Runs of `main` whose bodies may be in memory, oldest first; entries outlive their run and are
        #: skipped.
        self.resident: deque[Run] = deque()

    def head(self) -> Run | None:
        if self.returned:
            return self.returned[0]
        if not self.main:
            return None
        head = self.main[0]
        if head.packed is not None:
            head.unpack()
        return head

    def paged_out(self, start_bytes: int, stop_bytes: int) -> list[Run]:
        """Return those of the next runs whose bodies are not in memory, beginning after so many bytes, up to
        so many.
        """
        found: list[Run] = []
        ahead = 0
        for run in islice(chain(self.returned, self.main), LOOKS_MAX):
            if ahead > stop_bytes:
                break
            ahead += run.size
            if not run.in_memory and ahead > start_bytes:
                found.append(run)
        return found

    def push(self, run: Run, apart_from: int) -> None:
        """Put the run at the end, where messages from the position `apart_from` on join no earlier ones."""
        main = self.main
        run.ready = True
        if main:
            last = main[-1]
            if self.keeper.active:
                self.keeper.keep(last)
            if (run.seqs.start < apart_from or last.seqs.start >= apart_from) and last.absorb(run):
                return
            if len(main) >= PACKED_BEHIND:
                last.pack()
        main.append(run)
        resident = self.resident
        if resident and not resident[0].ready:
            self.forget_gone()
        resident.append(run)

    def insert(self, run: Run, apart_from: int) -> None:
        """Put messages that were never delivered to their positions, which others may have passed."""
        main, start = self.main, run.seqs.start
        if not main or last_position(main[-1]) < start:
            self.push(run, apart_from)
            return
        at = bisect_left(main, start, key=_by_position)
        before = main[at - 1] if at else None
        if before is not None and last_position(before) > start:
            # The positions of the two never overlap: this run lies between two messages of the other.
            if before.packed is not None:
                before.unpack()
            if self.keeper.active:
                self.keeper.keep(before)
            front = before.take(before.within(0, start)[1])
            front.ready = before.ready = True
            main.insert(at - 1, front)
            if front.in_memory:
                self.resident.append(front)
            before = front
        run.ready = True
        if before is not None and (run.seqs.start < apart_from or before.seqs.start >= apart_from):
            if self.keeper.active:
                self.keeper.keep(before)
            if before.absorb(run):
                run.ready = False
                self._close_up(at, apart_from)
                return
        main.insert(at, run)
        self.resident.append(run)
        self._close_up(at + 1, apart_from)

    def _close_up(self, at: int, apart_from: int) -> None:
        """Join a run with the one before it, if the last gap between them was filled."""
        main = self.main
        if at < len(main) and (main[at].seqs.start < apart_from or main[at - 1].seqs.start >= apart_from):
            following = main[at]
            if following.ready and main[at - 1].absorb(following):
                following.ready = False
                del main[at]

    def forget_gone(self) -> None:
        """Forget runs that were delivered."""
        resident = self.resident
        while resident and not resident[0].ready:
            resident.popleft()

    def put_back(self, runs: list[Run]) -> None:
        """Return runs to their positions."""
        pool: list[Run] = []
        for run in runs:
            pool.extend(run.singles() if run.seqs.step != 1 else (run,))
        for run in pool:
            run.ready = True
        returned = self.returned
        if len(pool) == 1 and returned and last_position(returned[-1]) < pool[0].seqs.start:
            # Many single returns come in order; sorting each time would take quadratic time.
            if self.keeper.active:
                self.keeper.keep(returned[-1])
            if returned[-1].absorb(pool[0]):
                pool[0].ready = False
            else:
                returned.append(pool[0])
            return
        if returned and len(pool) < len(returned) >> 4:
            for run in pool:
                self._insert(run)
            return
        pool.extend(returned)
        pool.sort(key=_by_position)
        self.returned = deque(self._joined(_disjoint(pool)))

    def put_behind(self, runs: list[Run]) -> None:
        """Return runs behind those that were returned before, whatever their positions are."""
        returned = self.returned
        for run in runs:
            run.ready = True
            if returned:
                last = returned[-1]
                if self.keeper.active:
                    self.keeper.keep(last)
                if last.absorb(run):
                    run.ready = False
                    continue
            returned.append(run)

    def _joined(self, pool: list[Run]) -> Iterator[Run]:
        """Merge neighbours that may be one run, so that many single returns do not stay many runs."""
        keeper = self.keeper
        last: Run | None = None
        for run in pool:
            if last is not None:
                if keeper.active:
                    keeper.keep(last)
                if last.absorb(run):
                    run.ready = False
                    continue
                yield last
            last = run
        if last is not None:
            yield last

    def _insert(self, run: Run) -> None:
        """Put one run among the many that were returned before it."""
        returned = self.returned
        at = bisect_left(returned, run.seqs.start, key=_by_position)
        fits_before = at == 0 or last_position(returned[at - 1]) < run.seqs.start
        if fits_before and (at == len(returned) or last_position(run) < returned[at].seqs.start):
            returned.insert(at, run)
            return
        self.returned = deque(_disjoint(sorted([*returned, run], key=_by_position)))

    def pop(self, count: int) -> Run:
        """Take up to `count` messages of the head run."""
        queue = self.returned or self.main
        run = queue[0]
        if run.packed is not None:
            run.unpack()
        if count < len(run.seqs):
            if self.keeper.active:
                self.keeper.keep(run)
            return run.take(count)
        queue.popleft()
        run.ready = False
        # Otherwise its bodies would stay in memory after the ack, until another message comes.
        self.forget_gone()
        return run

    def behind(self, position: int) -> Iterator[tuple[Run, int]]:
        """Yield the runs with messages behind this position that were never delivered, each with the index of
        the first of them.
        """
        return _behind(self.main, position)

    def returned_behind(self, position: int) -> Iterator[tuple[Run, int]]:
        """The same of messages that came back."""
        return _behind(self.returned, position)

    def behind_returned(self, position: int) -> Iterator[tuple[Run, int]]:
        """As `behind`, of messages in the order of their return. If the one at this position is gone, so are
        those before it.
        """
        runs = list(self.returned)
        for at, run in enumerate(runs):
            if position in run.seqs:
                stop = run.within(0, position)[1]
                if stop < len(run.seqs):
                    yield run, stop
                del runs[: at + 1]
                break
        for run in runs:
            yield run, 0

    def pick(self, position: int, now_ms: int, *, in_order: bool) -> Run | None:
        """Take the message at this position, unless its time is up. `in_order`: returned messages are in the
        order of their positions.
        """
        for runs in (self.returned, self.main):
            if in_order or runs is self.main:
                at = bisect_left(runs, position, key=last_position)
            else:
                at = next((at for at, run in enumerate(runs) if position in run.seqs), len(runs))
            if at == len(runs) or position not in runs[at].seqs:
                continue
            index = runs[at].within(0, position)[1] - 1
            due = runs[at].due_of(index)
            return None if due is not None and due <= now_ms else self._cut_out(runs, at, index)
        return None

    def _cut_out(self, runs: deque[Run], at: int, index: int) -> Run:
        """Take one message of a run; those around it stay in runs of their own."""
        run = runs[at]
        picked, left = cut_out(run, index, self.keeper)
        picked.ready = False
        del runs[at]
        for part in reversed(left):
            part.ready = True
            runs.insert(at, part)
            if part is not run and runs is self.main and part.in_memory:
                self.resident.append(part)
        self.forget_gone()
        return picked

    def take_positions(self, low: int, high: int) -> list[Run]:
        """Take the messages with these positions out of both lists."""
        taken: list[Run] = []
        self.returned = deque(without_positions(self.returned, low, high, taken, self.keeper))
        self.main = deque(without_positions(self.main, low, high, taken, self.keeper))
        if taken:
            self.resident = deque(run for run in self.main if run.in_memory)
        return taken


def cut_out(run: Run, index: int, keeper: Keeper) -> tuple[Run, list[Run]]:
    """Cut one message out of a run; return it, and those before and behind it, in runs of their own."""
    if keeper.active:
        keeper.keep(run)
    left = [run.take(index)] if index else []
    if len(run.seqs) == 1:
        return run, left
    picked = run.take(1)
    return picked, [*left, run]


def without_positions(
    runs: Iterable[Run], low: int, high: int, taken: list[Run], keeper: Keeper
) -> Iterator[Run]:
    """Yield the runs without the taken messages, and put those into `taken`."""
    for run in runs:
        first, stop = run.within(low, high)
        if first == stop:
            yield run
            continue
        if keeper.active:
            keeper.keep(run)
        if first:
            front = run.take(first)
            front.ready = True
            yield front
        if stop - first < len(run.seqs):
            taken.append(run.take(stop - first))
            yield run
        else:
            run.ready = False
            taken.append(run)


def _behind(runs: deque[Run], position: int) -> Iterator[tuple[Run, int]]:
    for run in islice(runs, bisect_right(runs, position, key=last_position), None):
        yield run, run.within(0, position)[1]


def last_position(run: Run) -> int:
    """Return the position of its last message."""
    return run.seqs[-1]


def _disjoint(pool: list[Run]) -> list[Run]:
    """Split overlapping runs into single messages, and sort again."""
    overlapping = any(a.seqs[-1] > b.seqs.start for a, b in zip(pool, pool[1:], strict=False))
    if not overlapping:
        return pool
    singles: list[Run] = []
    for run in pool:
        run.ready = False
        singles += run.singles()
    for single in singles:
        single.ready = True
    singles.sort(key=_by_position)
    return singles


class Ready:
    """All ready messages of a queue."""

    __slots__ = ("_by_rank", "bytes", "count", "keeper", "levels", "priority_max", "strict")

    def __init__(self, priority_max: int = 0, keeper: Keeper = NO_KEEPER, *, strict: bool = False) -> None:
        self.keeper = keeper
        self.priority_max = priority_max
        #: True if messages have ranks; see quorum_queue.machine.attributes.
        self.strict = strict
        #: Levels, lowest priority first. Created with the first message, because an empty deque takes 700
        #: bytes.
        self.levels: list[Level] = NO_LIST
        self._by_rank: dict[int, Level] = NO_DICT
        self.count = 0
        self.bytes = 0

    def _level(self, priority: int) -> Level:
        if self.strict:
            rank = rank_of(priority) if priority else RANK_PLAIN
            level = self._by_rank.get(rank)
            return self._ranked(rank) if level is None else level
        if not self.levels:
            self.levels = [Level(self.keeper) for _ in range(self.priority_max + 1)]
        return self.levels[max(0, min(priority, self.priority_max))]

    def _ranked(self, rank: int) -> Level:
        """Return the level of this rank. Most queues only ever need one or two."""
        level = self._by_rank.get(rank)
        if level is None:
            if not self.levels:
                self.levels, self._by_rank = [], {}
            level = self._by_rank[rank] = Level(self.keeper)
            self.levels.insert(sum(below < rank for below in self._by_rank), level)
        return level

    def be_strict(self) -> None:
        """From now on messages have ranks: put those that wait into their levels."""
        levels, self.strict, self.levels = self.levels, True, NO_LIST
        self.count = self.bytes = 0
        for level in reversed(levels):
            if level.returned:
                self.put_back(list(level.returned))
        for level in levels:
            for run in level.main:
                if run.packed is not None:
                    run.unpack()
                run.ready = False
                for part in run.uniform():
                    self.push(part)

    @property
    def by_rank(self) -> dict[int, int]:
        """The number of messages of each rank that has any, without returned ones."""
        return {
            rank: count
            for rank, level in sorted(self._by_rank.items())
            if rank != RANK_RETURNED and (count := sum([len(run.seqs) for run in level.main]))
        }

    @property
    def returned_count(self) -> int:
        """The number of returned messages, of a queue with strict priorities."""
        level = self._by_rank.get(RANK_RETURNED)
        return 0 if level is None else sum([len(run.seqs) for run in level.returned])

    def push(self, run: Run, apart_from: int = 1 << 62) -> None:
        self.count += len(run.seqs)
        self.bytes += run.counted_bytes
        self._level(run.attributes.priority).push(run, apart_from)

    def insert(self, run: Run, apart_from: int = 1 << 62) -> None:
        """Put messages that were never delivered to their positions."""
        self.count += len(run.seqs)
        self.bytes += run.counted_bytes
        self._level(run.attributes.priority).insert(run, apart_from)

    def put_back(self, runs: list[Run]) -> None:
        for run in runs:
            self.count += len(run.seqs)
            self.bytes += run.counted_bytes
        if self.strict:
            self._ranked(RANK_RETURNED).put_behind(runs)
            return
        if self.priority_max == 0:
            self._level(0).put_back(runs)
            return
        grouped: dict[int, list[Run]] = {}
        for run in runs:
            grouped.setdefault(max(0, min(run.attributes.priority, self.priority_max)), []).append(run)
        for priority, group in grouped.items():
            self._level(priority).put_back(group)

    def head_level(self, before: int = 1 << 62) -> Level | None:
        """Return the highest level whose next message has a position before this one."""
        for level in reversed(self.levels):
            if level.main or level.returned:
                if before == 1 << 62:
                    return level
                head = level.head()
                if head is not None and head.seqs.start < before:
                    return level
        return None

    def head(self) -> Run | None:
        level = self.head_level()
        return level.head() if level is not None else None

    # -- bodies that are not in memory -----------------------------------------------------------------------

    def wants(self) -> Run | None:
        """Return the run whose bodies are needed next."""
        return self.head()

    def paged_out(self, start_bytes: int, stop_bytes: int) -> list[Run]:
        """Return those of the next runs whose bodies are not in memory; see Level."""
        level = self.head_level()
        return [] if level is None else level.paged_out(start_bytes, stop_bytes)

    def brought_back(self, runs: list[Run]) -> None:
        """The bodies of these runs, which `paged_out` has returned, are in memory again."""
        level = self.head_level()
        if level is not None:
            level.forget_gone()
            level.resident.extendleft(reversed(runs))

    def put_aside(self) -> list[Sequence[Run]]:
        """Return the runs that no `resident` has, those that are needed last at the end of each list."""
        return [level.returned for level in self.levels if level.returned]

    # -- taking ----------------------------------------------------------------------------------------------

    def pop(self, level: Level, count: int) -> Run:
        run = level.pop(count)
        self.count -= len(run.seqs)
        self.bytes -= run.counted_bytes
        return run

    def drop_head(self, count: int) -> Run:
        """Take up to `count` messages from the head of the highest level, as RabbitMQ does."""
        level = self.head_level()
        if level is None:
            raise IndexError("no ready message")
        return self.pop(level, count)

    def runs(self) -> Iterator[Run]:
        """All ready runs, highest priority first, in order."""
        for level in reversed(self.levels):
            yield from level.returned
            yield from level.main

    def behind(self, place: Place) -> Iterator[tuple[int, Run, int]]:
        """Yield the runs behind a message that was seen before, in the order of delivery: the number of the
        level, the run, and the index of the first message in it that is meant.
        """
        levels = self._by_rank.items() if self.strict else enumerate(self.levels)
        for number, level in sorted(levels, reverse=True):
            # Messages that waited may have lower positions than those that came back, and come behind them.
            came_back, fresh = 2 * number + 1, 2 * number
            if level.returned and came_back <= place.level:
                position = place.position if came_back == place.level else 0
                in_order = not self.strict or number != RANK_RETURNED
                found = level.returned_behind(position) if in_order else level.behind_returned(position)
                for run, first in found:
                    yield came_back, run, first
            if level.main and fresh <= place.level:
                position = place.position if fresh == place.level else 0
                for run, first in level.behind(position):
                    yield fresh, run, first

    def pick(self, position: int, now_ms: int) -> Run | None:
        """Take the message at this position, wherever it is, unless its time is up."""
        levels = self._by_rank.items() if self.strict else enumerate(self.levels)
        for number, level in levels:
            in_order = not self.strict or number != RANK_RETURNED
            picked = level.pick(position, now_ms, in_order=in_order)
            if picked is not None:
                self.count -= 1
                self.bytes -= picked.counted_bytes
                return picked
        return None

    def take_positions(self, low: int, high: int) -> list[Run]:
        """Take the messages with these positions."""
        taken = [run for level in self.levels for run in level.take_positions(low, high)]
        for run in taken:
            self.count -= len(run.seqs)
            self.bytes -= run.counted_bytes
        return taken

    def drop_all(self) -> list[deque[Run]]:
        """Forget all messages for good; return the objects that refer to them."""
        levels, self.levels, self._by_rank = self.levels, NO_LIST, NO_DICT
        self.count = self.bytes = 0
        return [runs for level in levels for runs in (level.main, level.returned, level.resident) if runs]

    def clear(self) -> list[Run]:
        """Take everything."""
        taken = list(self.runs())
        for run in taken:
            run.ready = False
        self.levels, self._by_rank = NO_LIST, NO_DICT
        self.count = self.bytes = 0
        return taken
