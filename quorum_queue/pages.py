"""Records that were just paged in.

Messages that were requeued one by one are runs of their own, but share records on disk: without this cache,
each would read and check its whole record again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from quorum_queue.machine.positions import Seqs


class Page(NamedTuple):
    """The bodies of one record."""

    first_seq: int
    contents: list[bytes]


class Pages:
    """The last record of each of the queues that read most recently."""

    QUEUES_MAX = 16
    PAGE_BYTES_MAX = 1 << 20

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[int, bool], Page] = OrderedDict()

    def find(self, queue_id: int, durable: bool, seqs: Seqs) -> list[bytes] | None:
        """Return the bodies of these messages if all of them are cached."""
        page = self._pages.get((queue_id, durable))
        if page is None or seqs.step < 0:
            return None
        first, contents = page.first_seq, page.contents
        low, high = seqs.start - first, seqs[-1] + 1 - first
        if low < 0 or high > len(contents):
            return None
        return contents[low:high] if seqs.step == 1 else [contents[seq - first] for seq in seqs]

    def keep(self, queue_id: int, durable: bool, page: Page, size: int) -> None:
        if size > self.PAGE_BYTES_MAX:
            return
        self._pages[queue_id, durable] = page
        self._pages.move_to_end((queue_id, durable))
        if len(self._pages) > self.QUEUES_MAX:
            self._pages.popitem(last=False)

    def forget(self, queue_id: int) -> None:
        """The queue is gone, or has nothing more to read."""
        self._pages.pop((queue_id, True), None)
        self._pages.pop((queue_id, False), None)
