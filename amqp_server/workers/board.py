"""Numbers that the workers of a node tell each other, in memory that all of them map: so a limit of the node
is one limit.

Each worker writes its own row only, and reads all. A number is one aligned word, so nothing has to lock.
"""

from __future__ import annotations

import mmap
from typing import Final

#: The columns.
CONNECTIONS: Final = 0
MEMORY: Final = 1
#: 1 while the worker serves.
SERVES: Final = 2
COLUMNS: Final = 3
#: What an operator has changed in the running node, for workers that start again: the memory limit, bytes;
#: the floor of free disk, bytes; the log level, as `logging` counts; 1 if the node is drained.
MEMORY_LIMIT: Final = 0
DISK_FREE_MIN: Final = 1
LOG_LEVEL: Final = 2
DRAINED: Final = 3
#: 1 once the first worker has served: the node has its definitions and its first user.
BEGUN: Final = 4
SETTINGS: Final = 5
_WORD: Final = 8


class Board:
    """Made by the parent before it starts the workers."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        # Behind the rows, words that any worker may write.
        self._words = memoryview(mmap.mmap(-1, (workers * COLUMNS + SETTINGS) * _WORD)).cast("q")

    def note(self, worker: int, column: int, value: int) -> None:
        self._words[worker * COLUMNS + column] = value

    def of(self, worker: int, column: int) -> int:
        return self._words[worker * COLUMNS + column]

    def others(self, worker: int, column: int) -> int:
        """Return the sum of all other workers' numbers."""
        return sum(self.all(column)) - self.of(worker, column)

    def all(self, column: int) -> list[int]:
        return self._words[column : self._workers * COLUMNS : COLUMNS].tolist()

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
        """The worker's process has ended."""
        for column in range(COLUMNS):
            self.note(worker, column, 0)
