"""Ready messages as they lie, for whoever wants to see them without taking them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from quorum_queue.machine.ready import Place
from quorum_queue.machine.run import Run

if TYPE_CHECKING:
    from quorum_queue.machine.machine import Machine


class Seen(NamedTuple):
    """Copies of messages of one level, as a run of its own."""

    level: int
    run: Run

    def places(self) -> Iterator[Place]:
        return (Place(self.level, seq) for seq in self.run.seqs)


def peek(machine: Machine, behind: Place, count: int, size: int, *, waiting: bool = False) -> list[Seen]:
    """Return copies of at most `count` messages behind a place, in the order of delivery, with `size` bytes
    of contents together; one at least, however large it is. Their bodies may be on the disk. Messages of a
    transaction that is not complete are not shown. `waiting`: messages that wait come behind the ready ones;
    instead of a level they have the time at which they are due, below zero.
    """
    found: list[Seen] = []
    lying = machine.ready.behind(behind)
    if waiting and machine.delayed.count:
        lying = chain(lying, _waiting(machine, behind))
    for level, run, first in lying:
        if run.seqs.start >= machine.held_from:
            # Held messages are in runs of their own.
            continue
        stop = min(first + count, len(run.seqs))
        part = run.seen(first, stop)
        fits = _fitting(part, size)
        if fits < len(part.seqs):
            if fits or not found:
                found.append(Seen(level, part.part(0, max(fits, 1))))
            break
        found.append(Seen(level, part))
        count -= stop - first
        size -= part.size
        if not count:
            break
    return found


def _waiting(machine: Machine, behind: Place) -> Iterator[tuple[int, Run, int]]:
    for due_ms, run, first in machine.delayed.behind(max(-behind.level, 0), behind.position):
        yield -due_ms, run, first


def _fitting(run: Run, size: int) -> int:
    """Return how many of the first messages have at most so many bytes together."""
    if run.size <= size:
        return len(run.seqs)
    sizes = run.sizes if run.sizes is not None else map(len, run.contents or ())
    for index, each in enumerate(sizes):
        size -= each
        if size < 0:
            return index
    return len(run.seqs)
