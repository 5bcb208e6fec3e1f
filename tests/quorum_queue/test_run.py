"""Cutting and joining runs: messages keep their own data, whatever is done to the run."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from quorum_queue.machine.run import MIXED_LENGTH_MAX, RUN_LENGTH_MAX, Attributes, Run

Plain = tuple[int, bytes | int, bytes, Attributes, int | None, bool, int]


def plain(run: Run) -> list[Plain]:
    """Return the messages one by one; where bodies are paged out, their sizes."""
    items: Any = run.contents if run.contents is not None else run.sizes
    assert len(items) == len(run)
    assert run.size == (sum(map(len, items)) if run.contents is not None else sum(items))
    assert run.heads is None or len(run.heads) == len(run)
    return [
        (seq, items[index], run.head_of(index), run.attributes, run.expires_at, run.redelivered, run.attempts)
        for index, seq in enumerate(run.seqs)
    ]


@st.composite
def runs(draw: st.DrawFn, first: int | None = None) -> Run:
    contents = draw(st.lists(st.binary(max_size=5), min_size=1, max_size=20))
    start = draw(st.integers(1, 1000)) if first is None else first
    step = 1 if first is not None else draw(st.integers(1, 4))
    seqs = range(start, start + step * len(contents), step)
    attributes = Attributes(priority=draw(st.integers(0, 1)))
    run = Run(seqs, contents, draw(st.sampled_from([b"a", b"b"])), attributes, draw(st.none() | st.just(7)))
    run.redelivered = draw(st.booleans())
    run.attempts = draw(st.integers(0, 1))
    if draw(st.booleans()):
        run.heads = [draw(st.sampled_from([b"a", b"b", b"c"])) for _ in contents]
    if draw(st.integers(0, 3)) == 0:
        run.page_out()
    return run


@given(runs(), st.data())
def test_take(run: Run, data: st.DataObject) -> None:
    before = plain(run)
    if len(run) == 1:
        return
    count = data.draw(st.integers(1, len(run) - 1))
    front = run.take(count)
    assert plain(front) == before[:count]
    assert plain(run) == before[count:]


@given(runs(), st.integers(1, 5))
def test_every_deals_all_out(run: Run, turns: int) -> None:
    before = plain(run)
    hands = [run.every(index, turns) for index in range(min(turns, len(run)))]
    for index, hand in enumerate(hands):
        assert plain(hand) == before[index::turns]


@given(runs())
def test_singles(run: Run) -> None:
    before = plain(run)
    singles = run.singles()
    assert [message for single in singles for message in plain(single)] == before
    assert all(single.seqs.step == 1 and len(single) == 1 for single in singles)


@given(st.data())
def test_absorb(data: st.DataObject) -> None:
    run = data.draw(runs(first=data.draw(st.integers(1, 5))))
    later = data.draw(runs(first=run.seqs.stop + data.draw(st.sampled_from([0, 0, 0, 1]))))
    before, more = plain(run), plain(later)
    same = before[0][3:] == more[0][3:] and (run.contents is None) is (later.contents is None)
    may = same and run.seqs.stop == later.seqs.start
    mixed = run.heads is not None or later.heads is not None or run.head != later.head
    long = mixed and run.heads is None and len(later) > MIXED_LENGTH_MAX
    if run.absorb(later):
        assert may
        assert plain(run) == before + more
    else:
        assert plain(run) == before
        assert plain(later) == more
        assert not may or long


@given(runs())
def test_paging(run: Run) -> None:
    before = plain(run)
    if run.contents is None:
        assert run.page_out() == 0
        return
    contents, size = run.contents, run.size
    assert run.page_out() == size
    assert run.contents is None
    assert [len(message[1]) for message in before if isinstance(message[1], bytes)] == list(run.sizes or ())
    run.page_in(contents)
    assert plain(run) == before


def test_runs_do_not_grow_without_end() -> None:
    run = Run(range(1, 2), [b""], b"")
    for seq in range(2, RUN_LENGTH_MAX + 1):
        assert run.absorb(Run(range(seq, seq + 1), [b""], b""))
    assert not run.absorb(Run(range(RUN_LENGTH_MAX + 1, RUN_LENGTH_MAX + 2), [b""], b""))
    assert len(run) == RUN_LENGTH_MAX
