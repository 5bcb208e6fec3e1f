"""Messages that wait before they are delivered: those that came back, and new ones whose publisher wants it.

Messages that are due at the same time are one list of runs, and these times are in order: no message has a
timer of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from quorum_queue.empty import NO_DICT, NO_LIST
from quorum_queue.machine.consumers import NO_KEEPER, Keeper
from quorum_queue.machine.order.due_times import DueTimes
from quorum_queue.machine.order.level import cut_out, last_position, without_positions
from quorum_queue.machine.run import Run
from quorum_queue.machine.settings import Settings

#: Nothing is ever added to it.
NO_TIMES: Final = DueTimes()
#: Doubling ends here: no wait is longer than ten years.
DOUBLINGS_MAX: Final = 40


def wait_ms(settings: Settings, attempts: int, *, failed: bool) -> int:
    """Return how long a message waits that came back, 0 for not at all. `attempts`: how often its delivery
    has failed.
    """
    kind = settings.retry_type
    if kind == "disabled" or (kind == "failed" and not failed) or (kind == "returned" and failed):
        return 0
    times = max(1, attempts)
    factor = 1 << min(times - 1, DOUBLINGS_MAX) if settings.retry_doubles else times
    return min(settings.retry_min_ms * factor, settings.retry_max_ms)


class Delayed:
    """The waiting messages of a queue."""

    __slots__ = ("_at", "_times", "bytes", "count", "keeper")

    def __init__(self, keeper: Keeper = NO_KEEPER) -> None:
        self.keeper = keeper
        #: The times at which messages are due (ms), and the messages of each, in the order in which they
        #: came.
        self._times = NO_TIMES
        self._at: dict[int, list[Run]] = NO_DICT
        self.count = self.bytes = 0

    @property
    def next_ms(self) -> int | None:
        """The time at which the next message is due."""
        return self._times.first

    @property
    def last_ms(self) -> int | None:
        return self._times.last

    def add(self, due_ms: int, run: Run, *, gaps: bool = False) -> None:
        """Let messages wait. `gaps`: those that are due at the same time may be one run."""
        self.count += len(run.seqs)
        self.bytes += run.counted_bytes
        if not self._at:
            self._times, self._at = DueTimes(), {}
        runs = self._at.get(due_ms)
        if runs is None:
            self._times.add(due_ms)
            self._at[due_ms] = [run]
            return
        if self.keeper.active:
            self.keeper.keep(runs[-1])
        # All messages of a run go to one level when their wait is over.
        last = runs[-1]
        if last.attributes.priority != run.attributes.priority or not last.absorb(run, gaps=gaps):
            runs.append(run)

    def take(self, now_ms: int, most: int, *, by_runs: bool = False) -> list[Run]:
        """Take messages that are due, at most so many, in the order of their times. `by_runs`: at most so
        many runs.
        """
        taken: list[Run] = []
        while most > 0:
            due_ms = self._times.first
            if due_ms is None or due_ms > now_ms:
                break
            runs = self._at[due_ms]
            whole = 0
            for run in runs:
                count = 1 if by_runs else len(run.seqs)
                if count > most:
                    break
                most -= count
                whole += 1
            taken += runs[:whole]
            if whole == len(runs):
                self._forget(due_ms)
                continue
            del runs[:whole]
            if most:
                if self.keeper.active:
                    self.keeper.keep(runs[0])
                taken.append(runs[0].take(most))
            break
        self._taken(taken)
        return taken

    def _taken(self, runs: list[Run]) -> None:
        for run in runs:
            self.count -= len(run.seqs)
            self.bytes -= run.counted_bytes

    def pick(self, due_ms: int, position: int, now_ms: int) -> Run | None:
        """Take the message at this position that is due at this time, unless it has expired."""
        runs = self._at.get(due_ms, NO_LIST)
        at = _index_of(runs, position)
        if at == len(runs):
            return None
        index = runs[at].within(0, position)[1] - 1
        expires_at = runs[at].due_of(index)
        if expires_at is not None and expires_at <= now_ms:
            return None
        picked, runs[at : at + 1] = cut_out(runs[at], index, self.keeper)
        if not runs:
            self._forget(due_ms)
        self._taken([picked])
        return picked

    def _forget(self, due_ms: int) -> None:
        """No message is due at this time any more."""
        del self._at[due_ms]
        self._times.remove(due_ms)
        if not self._at:
            self._times, self._at = NO_TIMES, NO_DICT

    def items(self) -> Iterator[tuple[int, Run]]:
        """Yield all runs with the times at which they are due, in order."""
        for due_ms in self._times:
            for run in self._at[due_ms]:
                yield due_ms, run

    def behind(self, due_ms: int, position: int) -> Iterator[tuple[int, Run, int]]:
        """Yield the runs behind a message that was seen before, with the times at which they are due, and the
        index of the first message in each that is meant. If that message is gone, those that are due at the
        same time all come again, unless they are in the order of their positions.
        """
        for time_ms in self._times.since(due_ms):
            runs, first = self._at[time_ms], 0
            if time_ms == due_ms:
                runs = runs[_index_behind(runs, position) :]
                if runs:
                    first = runs[0].within(0, position)[1]
            for run in runs:
                if first < len(run.seqs):
                    yield time_ms, run, first
                first = 0

    def runs(self) -> Iterator[Run]:
        """Yield all runs."""
        for runs in self._at.values():
            yield from runs

    def lists(self) -> Iterator[list[Run]]:
        """Yield the runs of each time, those that are due last first."""
        for due_ms in reversed(list(self._times)):
            yield self._at[due_ms]

    def take_positions(self, low: int, high: int) -> list[Run]:
        """Take the messages with these positions."""
        taken: list[Run] = []
        for due_ms in list(self._times):
            left = list(without_positions(self._at[due_ms], low, high, taken, self.keeper))
            if left:
                self._at[due_ms] = left
            else:
                self._forget(due_ms)
        self._taken(taken)
        return taken

    def drop_all(self) -> deque[Run]:
        """Forget all messages for good; return what refers to them."""
        at, self._at, self._times = self._at, NO_DICT, NO_TIMES
        self.count = self.bytes = 0
        return deque(run for runs in at.values() for run in runs)

    def clear(self) -> list[Run]:
        """Take everything."""
        taken = [run for _, run in self.items()]
        self._times, self._at = NO_TIMES, NO_DICT
        self.count = self.bytes = 0
        return taken


def _index_of(runs: list[Run], position: int) -> int:
    """Return which run has the message at this position; their number if none has."""
    # Nearly always they are in the order of their positions.
    at = bisect_left(runs, position, key=last_position)
    if at < len(runs) and position in runs[at].seqs:
        return at
    return next((at for at, run in enumerate(runs) if position in run.seqs), len(runs))


def _index_behind(runs: list[Run], position: int) -> int:
    """Return the first run with messages behind this position."""
    index = _index_of(runs, position)
    if index < len(runs):
        return index
    in_order = all(last_position(run) < later.seqs.start for run, later in pairwise(runs))
    return bisect_left(runs, position, key=last_position) if in_order else 0


#: For queues in which no message waits. Nothing is ever added to it.
NO_DELAYED: Final = Delayed()

__all__ = ["NO_DELAYED", "Delayed", "wait_ms"]
