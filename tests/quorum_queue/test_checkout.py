"""The messages that a consumer holds, checked against a dictionary."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from quorum_queue.machine.consumers import Checkout
from quorum_queue.machine.run import Run

#: Length of each delivered run, the step between its positions, and the number of ids between it and the run
#: before.
delivered = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3), st.sampled_from([0, 0, 2])), max_size=8)


def held(checkout: Checkout) -> dict[int, int]:
    assert len(checkout.starts) == len(checkout.runs)
    found = {
        first + index: seq
        for first, run in zip(checkout.starts, checkout.runs, strict=True)
        for index, seq in enumerate(run.seqs)
    }
    assert list(found) == sorted(found)
    return found


@given(delivered, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12))
def test_deliveries_are_taken_by_ranges_of_ids(
    runs: list[tuple[int, int, int]], takes: list[tuple[int, int]]
) -> None:
    checkout = Checkout()
    model: dict[int, int] = {}
    next_id, next_seq = 0, 1
    for count, step, gap in runs:
        next_id += gap
        seqs = range(next_seq, next_seq + count * step, step)
        checkout.add(next_id, Run(seqs, [b"%d" % seq for seq in seqs], b"head"))
        model.update(zip(range(next_id, next_id + count), seqs, strict=True))
        next_id += count
        next_seq = seqs.stop
    for low, high in takes:
        taken = checkout.take(low, high)
        expected = {delivery_id: seq for delivery_id, seq in model.items() if low <= delivery_id <= high}
        assert [seq for run in taken for seq in run.seqs] == list(expected.values())
        for run in taken:
            assert run.contents == [b"%d" % seq for seq in run.seqs]
        for delivery_id in expected:
            del model[delivery_id]
        assert held(checkout) == model
        assert checkout.count == len(model)
    left = checkout.take_all()
    assert [seq for run in left for seq in run.seqs] == list(model.values())
    assert held(checkout) == {}
    assert checkout.count == 0
