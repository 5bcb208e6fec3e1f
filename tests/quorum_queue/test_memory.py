"""The budget of bodies in memory: the work of one relief, however large the budget and however many the
queues.
"""

from __future__ import annotations

from quorum_queue.memory import MemoryBudget


class Queue:
    def __init__(self, budget: MemoryBudget, resident_bytes: int, *, stuck: bool = False) -> None:
        self._budget = budget
        self.resident_bytes = resident_bytes
        self.stuck = stuck
        self.looks = 0
        budget.register(self)
        budget.used += resident_bytes

    def page_out(self, bytes_wanted: int) -> int:
        self.looks += 1
        freed = 0 if self.stuck else min(self.resident_bytes, bytes_wanted)
        self.resident_bytes -= freed
        self._budget.used -= freed
        return freed


def test_a_relief_is_short_however_large_the_budget() -> None:
    budget = MemoryBudget(1 << 30)
    large = Queue(budget, (1 << 30) + 5)
    budget.relieve()
    assert budget.used == large.resident_bytes == (1 << 30) - budget.STEP_BYTES
    # A small budget is relieved to the same level as before.
    budget = MemoryBudget(1_000)
    Queue(budget, 1_001)
    budget.relieve()
    assert budget.used == 900


def test_the_largest_queues_are_paged_out_first() -> None:
    budget = MemoryBudget(1_000)
    small, large, middle = (Queue(budget, size) for size in (300, 500, 350))
    budget.relieve()
    assert [queue.resident_bytes for queue in (small, large, middle)] == [300, 250, 350]
    budget.used += 150
    large.resident_bytes += 150
    budget.relieve()
    assert [queue.resident_bytes for queue in (small, large, middle)] == [300, 250, 350]
    budget.forget(large)
    budget.used += 200
    budget.relieve()
    assert (small.resident_bytes, middle.resident_bytes) == (300, 150)


def test_a_relief_looks_at_some_of_very_many_queues_and_the_next_one_at_others() -> None:
    """A body that is not on the disk yet can't leave memory."""
    budget = MemoryBudget(1_000)
    stuck = [Queue(budget, 10, stuck=True) for _ in range(1_000)]
    free = Queue(budget, 5)
    budget.relieve()
    assert sum(queue.looks for queue in stuck) == budget.LOOKS_MAX
    for _ in range(4):
        budget.relieve()
    assert free.resident_bytes == 0 and max(queue.looks for queue in stuck) <= 2
