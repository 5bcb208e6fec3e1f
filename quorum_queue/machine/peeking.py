"""Ready messages as they lie, for whoever wants to see them without taking them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


class Search:
    """Looks for messages whose headers contain one of some byte strings. Others whose bodies are in memory
    are passed over without a copy; the asker looks at all that it gets.
    """

    __slots__ = ("_sought", "last", "looked_at")

    def __init__(self, sought: Sequence[bytes]) -> None:
        self._sought = list(sought)
        self.begin()

    def begin(self) -> None:
        #: How many messages were looked at, passed over or not, and the place of the last one.
        self.looked_at = 0
        self.last: Place | None = None

    def saw(self, level: int, run: Run, first: int, stop: int) -> None:
        """These messages of a run were looked at."""
        self.looked_at += stop - first
        self.last = Place(level, run.seqs[stop - 1])

    def may_be(self, item: bytes) -> bool:
        """Return whether the content header of a message in its frames has one of the strings."""
        end = 8 + (item[3] << 24 | item[4] << 16 | item[5] << 8 | item[6]) if len(item) > 7 else 0
        for each in self._sought:  # noqa: SIM110 (a generator for each message would take as long again)
            if item.find(each, 0, end) >= 0:
                return True
        return False


class Look(NamedTuple):
    """Which messages of a queue somebody wants to see."""

    behind: Place
    #: At most so many, and so many bytes of contents together; one at least, however large it is.
    most: int
    most_bytes: int
    #: Behind the ready messages also those that wait. Instead of a level they have the time at which they are
    #: due, below zero.
    waiting: bool = False
    #: Only some of them.
    search: Search | None = None


def peek(machine: Machine, look: Look) -> list[Seen]:
    """Return copies of messages in the order of delivery. Their bodies may be on the disk. Messages of a
    transaction that is not complete are not shown.
    """
    found: list[Seen] = []
    behind, count, size, waiting, search = look
    if search is not None:
        search.begin()
    lying = machine.ready.behind(behind)
    if waiting and machine.delayed.count:
        lying = chain(lying, _waiting(machine, behind))
    for level, run, first in lying:
        if run.seqs.start >= machine.held_from:
            # Held messages are in runs of their own.
            continue
        stop = min(first + count, len(run.seqs))
        if search is not None and run.contents is not None:
            for index in range(first, stop):
                if search.may_be(run.contents[index]):
                    found.append(Seen(level, run.seen(index, index + 1)))
        else:
            part = run.seen(first, stop)
            fits = _fitting(part, size)
            if fits < len(part.seqs):
                fits = fits or int(not found)
                if not fits:
                    break
                part, stop, count = part.part(0, fits), first + fits, fits
            found.append(Seen(level, part))
            size -= part.size
        if search is not None:
            search.saw(level, run, first, stop)
        count -= stop - first
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
