"""The cache of bodies that all groups of a node share."""

from __future__ import annotations

from quorum_queue.cluster.bodies import BodyCache
from quorum_queue.machine.bodies import Bodies
from tests.work import steps


def filled(others: int) -> BodyCache:
    cache = BodyCache(1 << 30)
    for index in range(10):
        cache.put(1, index, Bodies(b""), 100)
    for index in range(others):
        cache.put(2 + index % 7, index, Bodies(b""), 100)
    return cache


def test_a_group_that_goes_costs_the_same_however_much_others_have() -> None:
    few, many = filled(10), filled(5_000)
    assert steps(many.drop_group, 1) == steps(few.drop_group, 1)
    assert many.bytes == 5_000 * 100
    assert many.get(1, 3) is None and many.get(2, 0) is not None
    many.drop_group(1)


def test_the_entries_used_last_stay() -> None:
    cache = BodyCache(1_000)
    for index in range(20):
        cache.put(index % 2, index, Bodies(b""), 100)
    assert [index for index in range(20) if cache.get(index % 2, index) is not None] == list(range(10, 20))
    cache.drop_group(0)
    assert cache.bytes == 500
    for index in range(11, 20, 2):
        cache.drop(1, index)
    assert cache.bytes == 0 and cache._indexes == {}
