"""mqd on a disk that reads the first records slowly: `python -m tests.reliability.slow_disk OPTIONS`, as `mqd
OPTIONS`. The first read of a record waits, on whichever thread it is; then its pages are in memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

VARIABLE = "MQD_TEST_SLOW_READ_S"
#: This many reads wait; all others find the disk as fast as ever.
SLOW_READS = 2


class Disk:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._left = SLOW_READS
        self._given: set[tuple[int, int]] = set()

    def has(self, queue_id: int, first: int, last: int) -> bool:
        return not self._left or all((queue_id, seq) in self._given for seq in range(first, last + 1))

    def give(self, queue_id: int, first: int, last: int) -> None:
        if not self.has(queue_id, first, last):
            self._left -= 1
            time.sleep(self._seconds)
            self._given.update((queue_id, seq) for seq in range(first, last + 1))


def slow_down(disk: Disk) -> None:
    from persistence.pages.page_reader import PageReader
    from persistence.record import KEY
    from persistence.store import LmdbStore

    def spans(ranges: Any) -> list[tuple[int, int, int]]:
        found = []
        for table, low, high in ranges:
            if table == "records":
                queue_id, first, _, _ = KEY.unpack(low)
                found.append((queue_id, first, KEY.unpack(high)[1]))
        return found

    reads: Callable[..., Any] = LmdbStore.records
    at_hand: Callable[..., bool] = PageReader._at_hand
    touch: Callable[..., None] = PageReader._touch

    def slow_records(store: Any, queue_id: int, first: int, last: int) -> Any:
        disk.give(queue_id, first, last)
        return reads(store, queue_id, first, last)

    def slow_touch(reader: Any, file: int, ranges: Any) -> None:
        for span in spans(ranges):
            disk.give(*span)
        touch(reader, file, ranges)

    def known(reader: Any, ranges: Any) -> bool:
        return all(disk.has(*span) for span in spans(ranges)) and at_hand(reader, ranges)

    changed: Any = LmdbStore
    changed.records = slow_records
    changed = PageReader
    changed._touch, changed._at_hand = slow_touch, known


if __name__ == "__main__":
    slow_down(Disk(float(os.environ[VARIABLE])))
    from amqp_server.app import main

    raise SystemExit(main())
