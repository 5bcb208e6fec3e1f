"""The ready messages: a level for each priority, with returned messages in their old places.

A queue with strict priorities has a level for each rank that its messages have, and above them one with the
returned messages, in the order of their return: as in RabbitMQ, they have no priority any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Reversible
from typing import Final, NamedTuple

from quorum_queue.empty import NO_DICT, NO_LIST
from quorum_queue.machine.attributes import RANK_PLAIN, RANK_RETURNED, rank_of
from quorum_queue.machine.consumers import NO_KEEPER, Keeper
from quorum_queue.machine.order.deadlines import BLOCK_BITS, NO_DEADLINES, OUT_OF_ORDER, Deadlines
from quorum_queue.machine.order.level import Expired, Level
from quorum_queue.machine.order.run_list import RunList
from quorum_queue.machine.run import NEVER, Run


class Place(NamedTuple):
    """The place of a ready message in the order of delivery."""

    #: Twice its priority, or its rank if the queue has strict priorities; and one if it came back.
    level: int
    #: Its sequence number.
    position: int


#: Before all messages.
HEAD: Final = Place(1 << 31, 0)


class Ready:
    """All ready messages of a queue."""

    __slots__ = ("_by_rank", "bytes", "count", "deadlines", "keeper", "levels", "priority_max", "strict")

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
        #: When somebody has to look for messages whose time is up. Not part of the state.
        self.deadlines = NO_DEADLINES

    def level_of(self, priority: int) -> int:
        """Return the number of the level for messages with this priority."""
        return rank_of(priority) if self.strict else max(0, min(priority, self.priority_max))

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
                # Snapshots of that version have no runs with gaps.
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
        if run.expires_at is not None:
            self._note(run, run.expires_at, fresh=not self.count)
        self.count += len(run.seqs)
        self.bytes += run.counted_bytes
        if run.kinds is None:
            self._level(run.attributes.priority).push(run, apart_from)
            return
        for part in run.by_level(self.level_of):
            self._level(part.attributes.priority).push(part, apart_from)

    def insert(self, run: Run, apart_from: int = 1 << 62) -> None:
        """Put messages that were never delivered to their positions."""
        if run.expires_at is not None:
            self._note(run, run.expires_at, fresh=not self.count)
        self.count += len(run.seqs)
        self.bytes += run.counted_bytes
        for part in run.by_level(self.level_of):
            self._level(part.attributes.priority).insert(part, apart_from)

    def put_back(self, runs: list[Run]) -> None:
        fresh, count, counted_bytes = not self.count, 0, 0
        for run in runs:
            if run.expires_at is not None:
                self._note(run, run.expires_at, fresh=fresh, in_order=not self.strict)
                fresh = False
            count += len(run.seqs)
            counted_bytes += run.counted_bytes
        self.count += count
        self.bytes += counted_bytes
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
            if level.main.chunks or level.returned.chunks:
                if before == 1 << 62:
                    return level
                head = level.head()
                if head is not None and head.seqs.start < before:
                    return level
        return None

    def head(self) -> Run | None:
        level = self.head_level()
        return level.head() if level is not None else None

    # -- messages whose time is up ---------------------------------------------------------------------------

    def _note(self, run: Run, expires_at: int, *, fresh: bool, in_order: bool = True) -> None:
        """Remember when messages expire that are about to come. `fresh`: there are no others."""
        if expires_at >= NEVER:
            # Those with a deadline have left the run since.
            return
        if fresh or self.deadlines is NO_DEADLINES:
            self.deadlines = Deadlines()
        elif self.deadlines.has_too_many:
            self._note_again()
        self.deadlines.note(run, expires_at, in_order=in_order)

    def _note_again(self) -> None:
        """Remember only when those messages expire that are still there."""
        deadlines = self.deadlines
        deadlines.begin_again()
        for run in self.runs():
            if run.expires_at is not None:
                in_order = not (self.strict and run.redelivered)
                deadlines.note(run, run.expires_at, in_order=in_order)
        deadlines.end_again()

    def take_expired(self, now_ms: int, below: int, most: int) -> list[Run]:
        """Take messages whose time is up, wherever they are, with positions below this one, at most so many.

        Which ones these are, and in which order, does not depend on the blocks that are remembered: a queue
        that was restored from a snapshot remembers fewer.
        """
        taken, deadlines = Expired(most), self.deadlines
        for block, at_ms in deadlines.take(now_ms):
            if taken.most <= 0:
                deadlines.note_block(block, at_ms)
                continue
            low, high = block << BLOCK_BITS, ((block + 1) << BLOCK_BITS) - 1
            if block == OUT_OF_ORDER:
                least = self._by_rank[RANK_RETURNED].take_expired_returned(now_ms, taken)
            else:
                least = self._expired_between(low, min(high, below - 1), now_ms, taken)
                if high >= below:
                    # What is held here may go any time.
                    least = min(least, now_ms + 1)
            if least < NEVER:
                deadlines.note_block(block, least)
        for run in taken.runs:
            self.count -= len(run.seqs)
            self.bytes -= run.counted_bytes
        return taken.runs

    def _expired_between(self, low: int, high: int, now_ms: int, taken: Expired) -> int:
        """Take messages whose time is up, with positions from `low` to `high`; return the time before which
        none of the others expires, NEVER for no time.
        """
        least = NEVER
        levels = self._by_rank.items() if self.strict else enumerate(self.levels)
        for number, level in sorted(levels, reverse=True):
            if not (self.strict and number == RANK_RETURNED):
                least = min(least, level.take_expired(low, high, now_ms, taken))
        return least

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

    def put_aside(self) -> list[Reversible[Run]]:
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

    def count_from(self, position: int) -> int:
        """Return how many messages have this position or a later one; none of these was ever delivered."""
        count = 0
        for level in self.levels:
            for run in reversed(level.main):
                if run.seqs.start < position:
                    break
                count += len(run.seqs)
        return count

    def drop_all(self) -> list[deque[Run] | RunList]:
        """Forget all messages for good; return the objects that refer to them."""
        self.deadlines = NO_DEADLINES
        levels, self.levels, self._by_rank = self.levels, NO_LIST, NO_DICT
        self.count = self.bytes = 0
        return [runs for level in levels for runs in (level.main, level.returned, level.resident) if runs]

    def clear(self) -> list[Run]:
        """Take everything."""
        taken = list(self.runs())
        for run in taken:
            run.ready = False
        self.deadlines = NO_DEADLINES
        self.levels, self._by_rank = NO_LIST, NO_DICT
        self.count = self.bytes = 0
        return taken
