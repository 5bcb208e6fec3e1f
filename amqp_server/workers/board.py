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
_WORD: Final = 8


class Board:
    """Made by the parent before it starts the workers."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        # Behind the rows, one word that any worker may write: the memory limit, or 0.
        self._words = memoryview(mmap.mmap(-1, (workers * COLUMNS + 1) * _WORD)).cast("q")

    def note(self, worker: int, column: int, value: int) -> None:
        self._words[worker * COLUMNS + column] = value

    def of(self, worker: int, column: int) -> int:
        return self._words[worker * COLUMNS + column]

    def others(self, worker: int, column: int) -> int:
        """Return the sum of all other workers' numbers."""
        return sum(self.all(column)) - self.of(worker, column)

    def all(self, column: int) -> list[int]:
        return self._words[column : self._workers * COLUMNS : COLUMNS].tolist()

    @property
    def memory_limit_bytes(self) -> int:
        """The limit that an operator has set while the node runs; 0 if none has."""
        return self._words[-1]

    @memory_limit_bytes.setter
    def memory_limit_bytes(self, limit: int) -> None:
        self._words[-1] = limit

    def clear(self, worker: int) -> None:
        """The worker's process has ended."""
        for column in range(COLUMNS):
            self.note(worker, column, 0)
