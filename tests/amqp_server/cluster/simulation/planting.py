"""Planted defects: on one node, a queue raises when it is to apply an entry, before or after it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from quorum_queue.cluster.queues.member_host import GroupHost
from quorum_queue.cluster.replicas import Replicas
from tests.turns import Planted


class Plants:
    """The defects of one node, by queue: how many more entries it fails with, and whether it has applied them
    by then.
    """

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.after: dict[int, bool] = {}
        self.struck: dict[int, Callable[[], None]] = {}

    def plant(
        self, queue_id: int, count: int, *, after: bool, struck: Callable[[], None] = lambda: None
    ) -> None:
        """`struck` is called each time the queue fails."""
        self.left[queue_id], self.after[queue_id], self.struck[queue_id] = count, after, struck

    def strikes(self, queue_id: int, *, after: bool) -> None:
        """Raises Planted."""
        if self.left.get(queue_id, 0) and self.after[queue_id] is after:
            self.left[queue_id] -= 1
            self.struck[queue_id]()
            raise Planted(f"planted in queue {queue_id}")


#: Plants by the replicas of a node; each start of the node makes new replicas.
_PLANTS: dict[Replicas, Plants] = {}


def plants_of(replicas: Replicas) -> Plants:
    return _PLANTS.setdefault(replicas, Plants())


@contextmanager
def planting() -> Iterator[None]:
    """Within this, planted defects strike."""
    apply: Any = GroupHost.apply

    def planted(self: GroupHost, index: int, data: bytes) -> None:
        plants = _PLANTS.get(self.replicas)
        if plants is None:
            apply(self, index, data)
            return
        plants.strikes(self.queue_id, after=False)
        apply(self, index, data)
        plants.strikes(self.queue_id, after=True)

    place: Any = GroupHost
    place.apply = planted
    try:
        yield
    finally:
        place.apply = apply
        _PLANTS.clear()
