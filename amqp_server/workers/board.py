"""Numbers that the workers of a node tell each other, in memory that all of them map: so a limit of the node
is one limit, and its alarm one alarm.

Each worker writes its own row only, and reads all. A number is one aligned word, so nothing has to lock.
"""

from __future__ import annotations

import mmap
from typing import Final

from amqp_server.broker.traffic import COUNTED

#: The columns.
CONNECTIONS: Final = 0
MEMORY: Final = 1
#: 1 while the worker takes clients.
SERVES: Final = 2
CHANNELS: Final = 3
#: Connections that have not logged in.
HALF_OPEN: Final = 4
#: The alarms that the worker has raised, a bit for each.
ALARMS: Final = 5
COLUMNS: Final = 6
#: What an operator has changed in the running node, for workers that start again: the memory limit, bytes;
#: the floor of free disk, bytes; the log level, as `logging` counts; 1 if the node is drained.
MEMORY_LIMIT: Final = 0
DISK_FREE_MIN: Final = 1
LOG_LEVEL: Final = 2
DRAINED: Final = 3
#: 1 once the first worker has served: the node has its definitions and its first user.
BEGUN: Final = 4
#: 1 once all workers have served.
STARTED: Final = 5
SETTINGS: Final = 6
_WORD: Final = 8
#: Places of each worker for addresses, and the words of one: which address, a count, when it was written.
PLACES: Final = 4_096
_WORDS_OF_PLACE: Final = 3
_TAG, _COUNT, _WRITTEN = range(_WORDS_OF_PLACE)
#: Tags are the lower bits of hashes: a word has a sign.
_TAG_MASK: Final = (1 << 62) - 1


class AddressCounts:
    """Counts of each worker by address, as far as there is room: two addresses with one place in common take
    it from each other, and then their counts are those of one worker.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._words = memoryview(mmap.mmap(-1, workers * PLACES * _WORDS_OF_PLACE * _WORD)).cast("q")

    def note(self, worker: int, address: str, count: int, now: int) -> None:
        tag, place = self._place(worker, address)
        words = self._words
        # A reader between two of these writes takes the count for none, or for an earlier one.
        words[place + _TAG] = 0
        words[place + _COUNT], words[place + _WRITTEN] = count, now
        words[place + _TAG] = tag

    def others(self, worker: int, address: str, since: int = 0) -> int:
        """Return the sum of the other workers' counts for an address, without those from before `since`."""
        found, words = 0, self._words
        for each in range(self._workers):
            tag, place = self._place(each, address)
            if each != worker and words[place + _TAG] == tag and words[place + _WRITTEN] >= since:
                found += words[place + _COUNT]
        return found

    def clear(self, worker: int) -> None:
        for place in range(worker * PLACES, (worker + 1) * PLACES):
            self._words[place * _WORDS_OF_PLACE + _TAG] = 0

    @staticmethod
    def _place(worker: int, address: str) -> tuple[int, int]:
        # The workers are forks of one process, so they have the same hashes; no client knows them.
        tag = hash(address) & _TAG_MASK | 1
        return tag, (worker * PLACES + (tag >> 1) % PLACES) * _WORDS_OF_PLACE


class Board:
    """Made by the parent before it starts the workers."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        # Behind the rows, words that any worker may write.
        self._words = memoryview(mmap.mmap(-1, (workers * COLUMNS + SETTINGS) * _WORD)).cast("q")
        #: Of each worker the words of a Counted. They outlive its process: the node's counts do not fall.
        self._counted = memoryview(mmap.mmap(-1, workers * COUNTED * _WORD)).cast("q")
        #: By address: connections that have not logged in, and failed logins.
        self.half_open = AddressCounts(workers)
        self.failed_logins = AddressCounts(workers)

    def note(self, worker: int, column: int, value: int) -> None:
        self._words[worker * COLUMNS + column] = value

    def of(self, worker: int, column: int) -> int:
        return self._words[worker * COLUMNS + column]

    def others(self, worker: int, column: int) -> int:
        """Return the sum of all other workers' numbers."""
        return sum(self.all(column)) - self.of(worker, column)

    def all(self, column: int) -> list[int]:
        return self._words[column : self._workers * COLUMNS : COLUMNS].tolist()

    def counted(self, worker: int) -> memoryview:
        return self._counted[worker * COUNTED : (worker + 1) * COUNTED]

    def setting(self, which: int) -> int | None:
        """Return what an operator has set while the node runs; None if nobody has."""
        word = self._words[self._workers * COLUMNS + which]
        # One more than the value, so that 0 is none.
        return word - 1 if word else None

    def set(self, which: int, value: int | None) -> None:
        self._words[self._workers * COLUMNS + which] = 0 if value is None else value + 1

    def settings(self) -> list[int | None]:
        return [self.setting(which) for which in range(SETTINGS)]

    def clear(self, worker: int) -> None:
        """The worker's process has ended. What was guessed at it stays known."""
        for column in range(COLUMNS):
            self.note(worker, column, 0)
        self.half_open.clear(worker)
