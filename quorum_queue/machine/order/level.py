"""The ready messages of one priority, in the order of delivery.

Returned messages always have smaller sequence numbers than messages that were never delivered (a level is
delivered from its head only), so a level is two lists: `returned`, then `main`.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import attrgetter
from typing import Final

from quorum_queue.machine.consumers import NO_KEEPER, Keeper
from quorum_queue.machine.order.run_list import RunList, Spot
from quorum_queue.machine.positions import Positions
from quorum_queue.machine.run import NEVER, Run

#: Contents of runs with at least so many before them are packed, once no message joins them any more.
PACKED_BEHIND: Final = 4
#: Most of the next runs that are looked at.
LOOKS_MAX: Final = 4096
#: So many more entries than runs may be in a list of resident runs.
SPARE_RESIDENT: Final = 64

_by_position = attrgetter("seqs.start")


class Level:
    """The ready messages of one priority."""

    __slots__ = ("keeper", "main", "resident", "returned")

    def __init__(self, keeper: Keeper = NO_KEEPER) -> None:
        self.keeper = keeper
        self.main = RunList()
        self.returned = RunList()
        #: Runs of `main` whose bodies may be in memory, oldest first; entries outlive their run and are
        #: skipped.
        self.resident: deque[Run] = deque()

    def head(self) -> Run | None:
        if self.returned.chunks:
            return self.returned.chunks[0][0]
        if not self.main.chunks:
            return None
        head = self.main.chunks[0][0]
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
        if main.chunks:
            last = main.last
            if self.keeper.active:
                self.keeper.keep(last)
            if (run.seqs.start < apart_from or last.seqs.start >= apart_from) and last.absorb(run):
                return
            if len(main.chunks) > 1 or len(main.chunks[0]) >= PACKED_BEHIND:
                last.pack()
        main.append(run)
        resident = self.resident
        if resident and not resident[0].ready:
            self.forget_gone()
        resident.append(run)

    def insert(self, run: Run, apart_from: int) -> None:
        """Put messages that were never delivered to their positions, which others may have passed."""
        main, start = self.main, run.seqs.start
        if not main.chunks or last_position(main.last) < start:
            self.push(run, apart_from)
            return
        spot = main.find(start)
        following = main.at(spot)
        if isinstance(run.seqs, Positions) and following is not None and following.seqs.start < run.seqs[-1]:
            # Others lie between its messages, or may.
            for part in run.cut():
                self.insert(part, apart_from)
            return
        if following is not None and following.seqs.start < start:
            # The positions of the two never overlap: this run lies between two messages of the other.
            if following.packed is not None:
                following.unpack()
            if self.keeper.active:
                self.keeper.keep(following)
            front = following.take(following.within(0, start)[1])
            front.ready = True
            main.replace(spot, [front, following])
            if front.in_memory:
                self.resident.append(front)
            spot = main.find(start)
        before = main.before(spot)
        run.ready = True
        if before is not None and (run.seqs.start < apart_from or before.seqs.start >= apart_from):
            if self.keeper.active:
                self.keeper.keep(before)
            if before.absorb(run):
                run.ready = False
                self._close_up(before, apart_from)
                return
        main.insert(spot, run)
        self.resident.append(run)
        self._close_up(run, apart_from)

    def _close_up(self, before: Run, apart_from: int) -> None:
        """Join a run with the one behind it, if the last gap between them was filled."""
        spot = self.main.find(before.seqs[-1] + 1)
        following = self.main.at(spot)
        if following is None or not following.ready:
            return
        if (following.seqs.start < apart_from or before.seqs.start >= apart_from) and before.absorb(
            following
        ):
            following.ready = False
            self.main.replace(spot, [])

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
        if len(pool) == 1 and returned and last_position(returned.last) < pool[0].seqs.start:
            # Many single returns come in order; sorting each time would take quadratic time.
            if self.keeper.active:
                self.keeper.keep(returned.last)
            if returned.last.absorb(pool[0]):
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
        self.returned = RunList(self._joined(_disjoint(pool)))

    def put_behind(self, runs: list[Run]) -> None:
        """Return runs behind those that were returned before, whatever their positions are."""
        returned = self.returned
        for run in runs:
            run.ready = True
        returned.extend(self._joined(runs, returned.last if returned.chunks else None))

    def _joined(self, pool: list[Run], last: Run | None = None) -> list[Run]:
        """Return the runs behind `last`, merged with their neighbours where they may be one run, so that many
        single returns do not stay many runs.
        """
        keeper = self.keeper
        joined: list[Run] = []
        for run in pool:
            if last is not None:
                if keeper.active:
                    keeper.keep(last)
                if last.absorb(run):
                    run.ready = False
                    continue
            joined.append(run)
            last = run
        return joined

    def _insert(self, run: Run) -> None:
        """Put one run among the many that were returned before it."""
        returned = self.returned
        spot = returned.find(run.seqs.start)
        following = returned.at(spot)
        if following is None or last_position(run) < following.seqs.start:
            returned.insert(spot, run)
            return
        self.returned = RunList(_disjoint(sorted([*returned, run], key=_by_position)))

    def pop(self, count: int) -> Run:
        """Take up to `count` messages of the head run."""
        queue = self.returned if self.returned.chunks else self.main
        run = queue.first
        if run.packed is not None:
            run.unpack()
        if count < len(run.seqs):
            if self.keeper.active:
                self.keeper.keep(run)
            return run.take(count)
        queue.popleft()
        run.ready = False
        if self.resident and not self.resident[0].ready:
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
                spot = runs.find(position)
            else:
                spot = next((spot for spot, run in runs.spots() if position in run.seqs), Spot(len(runs), 0))
            run = runs.at(spot)
            if run is None or position not in run.seqs:
                continue
            index = run.within(0, position)[1] - 1
            due = run.due_of(index)
            if due is not None and due <= now_ms:
                return None
            picked, left = cut_out(run, index, self.keeper)
            self._replace(runs, spot, left, run)
            picked.ready = False
            self.forget_gone()
            return picked
        return None

    def _replace(self, runs: RunList, spot: Spot, left: list[Run], run: Run) -> None:
        """Put what is left of a run, in pieces, into its place."""
        run.ready = False
        for part in left:
            part.ready = True
            if part is not run and runs is self.main and part.in_memory:
                self.resident.append(part)
        runs.replace(spot, left)

    # -- messages whose time is up ---------------------------------------------------------------------------

    def take_expired(self, low: int, high: int, now_ms: int, taken: Expired) -> int:
        """Take messages whose time is up, with positions from `low` to `high`, out of both lists, which are
        in the order of positions. Return the time before which none of the others expires, NEVER for no time.
        """
        least = NEVER
        for runs in (self.returned, self.main):
            found = [run for run in runs.between(low, high) if run.expires_at is not None]
            least = min([least, *[due for run in found if (due := run.expires_at or 0) > now_ms]])
            for run in found:
                if run.expires_at is None or run.expires_at > now_ms:
                    continue
                before, (first, stop) = taken.most, run.within(low, high)
                if first == stop:
                    # It has messages on both sides only.
                    continue
                left, due = without_expired(run, first, stop, now_ms, taken, self.keeper)
                least = min(least, due)
                if taken.most < before:
                    self._replace(runs, runs.find(run.seqs[-1]), left, run)
        self._forget_resident()
        return least

    def take_expired_returned(self, now_ms: int, taken: Expired) -> int:
        """As `take_expired`, of all that came back, which are in the order of their return."""
        least, before = NEVER, taken.most
        kept: list[Run] = []
        for run in self.returned:
            if run.expires_at is None:
                kept.append(run)
                continue
            left, due = without_expired(run, 0, len(run.seqs), now_ms, taken, self.keeper)
            least = min(least, due)
            for part in left:
                part.ready = True
                kept.append(part)
        if taken.most < before:
            self.returned = RunList(kept)
        return least

    def _forget_resident(self) -> None:
        """Forget runs that have left the middle of the list, whose bodies would stay in memory."""
        self.forget_gone()
        if len(self.resident) > len(self.main) * 5 // 4 + SPARE_RESIDENT:
            self.resident = deque(run for run in self.resident if run.ready)

    def take_positions(self, low: int, high: int) -> list[Run]:
        """Take the messages with these positions out of both lists."""
        taken: list[Run] = []
        self.returned = RunList(without_positions(self.returned, low, high, taken, self.keeper))
        self.main = RunList(without_positions(self.main, low, high, taken, self.keeper))
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


class Expired:
    """Messages whose time is up, taken out of a queue."""

    __slots__ = ("most", "runs")

    def __init__(self, most: int) -> None:
        self.runs: list[Run] = []
        #: How many more may be taken.
        self.most = most

    def add(self, run: Run) -> None:
        run.ready = False
        self.runs.append(run)
        self.most -= len(run.seqs)


def without_expired(
    run: Run, first: int, stop: int, now_ms: int, taken: Expired, keeper: Keeper
) -> tuple[list[Run], int]:
    """Take messages whose time is up out of those from `first` to before `stop` of a run. Return what is
    left, in pieces, and the time before which none of the looked at others expires, NEVER for no time.
    """
    most = taken.most
    deadlines = run.deadlines
    if deadlines is None:
        due = NEVER if run.expires_at is None else run.expires_at
        spans = [(first, min(stop, first + most))] if due <= now_ms and most > 0 else []
        least = NEVER if spans and spans[0][1] == stop else due
    else:
        window = deadlines[first:stop]
        least = min(window)
        if least > now_ms and len(window) == len(run.seqs):
            # The one that it was known by has left.
            run.expires_at = least
        if least > now_ms or most <= 0:
            return [run], least
        spans, least = _expired_spans(window, first, now_ms, most)
    if not spans:
        return [run], least
    if keeper.active:
        keeper.keep(run)
    left: list[Run] = []
    at, count = 0, len(run.seqs)
    for start, end in spans:
        if start > at:
            left.append(run.split(start - at))
        expired = run.split(end - start) if end < count else run.moved()
        if expired.packed is not None:
            expired.unpack()
        taken.add(expired)
        at = end
    if at < count:
        left.append(run)
    return left, least


def _expired_spans(
    window: array[int], first: int, now_ms: int, most: int
) -> tuple[list[tuple[int, int]], int]:
    """Return where messages with these deadlines have expired, at most so many, as spans that begin at
    `first`; and the earliest deadline of the others.
    """
    spans: list[tuple[int, int]] = []
    least, start = NEVER, -1
    for at, due in enumerate(window, first):
        if due <= now_ms and most > 0:
            most -= 1
            if start < 0:
                start = at
            continue
        least = min(least, due)
        if start >= 0:
            spans.append((start, at))
            start = -1
    if start >= 0:
        spans.append((start, first + len(window)))
    return spans, least


def _behind(runs: RunList, position: int) -> Iterator[tuple[Run, int]]:
    for run in runs.behind(position):
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


__all__ = [
    "LOOKS_MAX",
    "PACKED_BEHIND",
    "Expired",
    "Level",
    "cut_out",
    "last_position",
    "without_expired",
    "without_positions",
]
