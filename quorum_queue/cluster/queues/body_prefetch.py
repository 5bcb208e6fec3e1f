"""Requests the next bodies for one reader of a quorum queue from the disk, so that the loop never waits for
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quorum_queue.cluster.queues import contents
from quorum_queue.cluster.queues.contents import Places
from quorum_queue.empty import NO_DICT
from quorum_queue.host import Peeked
from quorum_queue.machine.peeking import Look, Seen, peek
from quorum_queue.machine.run import Run
from quorum_queue.ports import Refused

if TYPE_CHECKING:
    from quorum_queue.cluster.queues.member_host import GroupHost


class Warming:
    """Entries that were read from disk, and requested ones."""

    __slots__ = ("_asked", "_host", "given")

    def __init__(self, host: GroupHost) -> None:
        self._host = host
        self.given: dict[int, None] = NO_DICT
        self._asked: dict[int, None] = NO_DICT

    def _wanted(self) -> Iterable[tuple[Run, Places]]:
        """Return the next messages to read, in order."""
        raise NotImplementedError

    def _read(self) -> None:
        """Continue with the bodies that were read."""
        raise NotImplementedError

    def waits(self, index: int) -> bool:
        """True if an entry cannot be read without a wait: then the next entries are requested."""
        if index in self.given:
            return False
        if not self._asked:
            host, size = self._host, 0
            wanted: dict[int, None] = {}
            for run, places in self._wanted():
                wanted.update(dict.fromkeys(at for at, _ in places))
                size += run.size
                if size > host.replicas.options.read_ahead_bytes:
                    break
            if host.replicas.store.warm(host.queue_id, spans(wanted), self._warmed):
                self.given = wanted
                return False
            self._asked = wanted
        return True

    def go_on(self) -> None:
        """Go on in a later turn."""
        if not self._host.ended:
            self._host.replicas.contain(self._host.group, self._read)

    def failed(self, error: Exception) -> None:
        self._host.failed(error)

    def _warmed(self) -> None:
        """The requested entries were read."""
        self.given, self._asked = self._asked, NO_DICT
        self.go_on()


class DeliveryWarming(Warming):
    """For messages that are to be delivered on this node."""

    __slots__ = ()

    def _wanted(self) -> Iterable[tuple[Run, Places]]:
        return ((run, places) for _, run, _, places in self._host.deliveries_waiting)

    def _read(self) -> None:
        self._host.deliver_waiting()


class LetterWarming(Warming):
    """For dead letters."""

    __slots__ = ()

    def _wanted(self) -> Iterable[tuple[Run, Places]]:
        return ((each.run, each.places) for each in self._host.dead_letters_waiting)

    def _read(self) -> None:
        self._host.send_letters()


class Peeking(Warming):
    """For a question for messages as they lie. Those that are settled while it waits are left out."""

    __slots__ = ("_done", "_found", "_look")

    def __init__(self, host: GroupHost, look: Look, done: Peeked) -> None:
        super().__init__(host)
        self._look, self._done = look, done
        self._found: list[tuple[Seen, Places]] = []

    def see(self) -> None:
        """Answer now, or when the bodies are there."""
        host = self._host
        if host.ended:
            self._done(Refused(host.ended_text))
            return
        find = host.replica.find
        found = peek(host.replica.machine, self._look)
        self._found = [(each, find(each.run.seqs)) for each in found]
        answer: list[Seen] = []
        for each, places in self._found:
            try:
                bodies = contents.find(host, places, self.see, self.waits)
            except contents.BodyGone:
                continue
            if bodies is None:
                return
            each.run.contents = bodies
            answer.append(each)
        self._done(answer)

    def _wanted(self) -> Iterable[tuple[Run, Places]]:
        return ((each.run, places) for each, places in self._found)

    def _read(self) -> None:
        self.see()

    def go_on(self) -> None:
        if self._host.ended:
            self.see()
        else:
            super().go_on()


def spans(indexes: Iterable[int]) -> list[tuple[int, int]]:
    """First and last index of each series of consecutive entries."""
    found: list[tuple[int, int]] = []
    for index in sorted(indexes):
        if found and found[-1][1] + 1 == index:
            found[-1] = found[-1][0], index
        else:
            found.append((index, index))
    return found
