"""Which batches of a node a replica takes."""

from __future__ import annotations

import random

import pytest

from quorum_queue.batch_order import NOT_NEXT, BatchOrder


def test_batches_of_a_node_come_once_and_in_order() -> None:
    order = BatchOrder()
    assert [order.take("n1", 5, number) for number in (1, 2, 2, 1, 4, 3)] == [
        0,
        1,
        NOT_NEXT,
        NOT_NEXT,
        NOT_NEXT,
        2,
    ]
    assert order.take("n2", 5, 2) == NOT_NEXT
    assert order.rows() == [("n1", 5, 3)]


def test_a_start_begins_with_its_first_batch_and_ends_the_one_before() -> None:
    order = BatchOrder([("n1", 5, 3)])
    assert order.begins("n1", 6) and not order.begins("n1", 5)
    assert [order.take("n1", 6, 2), order.take("n1", 6, 1), order.take("n1", 5, 4)] == [NOT_NEXT, 0, NOT_NEXT]
    assert (order.number_of("n1", 6), order.number_of("n1", 5), order.number_of("n2", 1)) == (1, 0, 0)


@pytest.mark.parametrize(("incarnation", "number", "before"), [(5, 9, 3), (5, 4, 3), (6, 9, 0), (6, 1, 0)])
def test_one_batch_of_each_node_may_follow_a_lost_entry(incarnation: int, number: int, before: int) -> None:
    order = BatchOrder([("n1", 5, 3), ("n2", 1, 1)])
    order.passed_over()
    assert [order.take("n1", 5, 3), order.take("n1", 4, 9)] == [NOT_NEXT, NOT_NEXT]
    assert order.take("n1", incarnation, number) == before
    # From now on all of them have to be there again.
    assert order.take("n1", incarnation, number + 2) == NOT_NEXT
    assert (order.take("n1", incarnation, number + 1), order.take("n2", 1, 7)) == (number, 1)
    assert order.heard() == ["n1", "n2"]


def test_what_was_stored_goes_on_alike() -> None:
    chance = random.Random(1)
    order = BatchOrder()
    for _ in range(2_000):
        if chance.random() < 0.01:
            order.passed_over()
        copy = BatchOrder(order.rows(), order.heard())
        batch = f"n{chance.randrange(3)}", chance.randrange(1, 4), chance.randrange(1, 9)
        assert (copy.begins(*batch[:2]), copy.take(*batch)) == (order.begins(*batch[:2]), order.take(*batch))
        assert (copy.rows(), copy.heard()) == (order.rows(), order.heard())
