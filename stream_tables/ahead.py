"""Makes parts of an object in a thread of its own, a few ahead of what is sent.

The library of object stores asks for parts in the middle of its own work, and must not be called there:
making a part may read from a store.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Queue
from typing import Final

#: Parts that wait to be sent.
AHEAD_MAX: Final = 2


class Ahead:
    """Iterates over `parts`, and raises what they raise. `close` has to be called."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._made: Queue[bytes | BaseException | None] = Queue(AHEAD_MAX)
        self._closed = False
        self._thread = threading.Thread(target=self._make, name="parts", daemon=True)
        self._thread.start()

    def _make(self) -> None:
        end: BaseException | None = None
        try:
            for part in self._parts:
                self._made.put(part)
                if self._closed:
                    return
        except BaseException as error:  # noqa: BLE001  # It is raised where the parts are taken.
            end = error
        self._made.put(end)

    def __iter__(self) -> Iterator[bytes]:
        while (item := self._made.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        self._closed = True
        while self._thread.is_alive():
            # It may wait for room.
            while not self._made.empty():
                self._made.get()
            self._thread.join(0.01)


__all__ = ["Ahead"]
