"""Cutting and joining runs: messages keep their own data, whatever is done to the run."""

from __future__ import annotations

from array import array
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from quorum_queue.machine.run import (
    KINDS_MAX,
    MIXED_LENGTH_MAX,
    NEVER,
    PACKED_BYTES_MAX,
    PACKED_LENGTH_MIN,
    RUN_LENGTH_MAX,
    Attributes,
    Run,
)
from quorum_queue.machine.snapshots.snapshot import sizes_of

Plain = tuple[int, bytes | int, bytes, Attributes, int | None, bool, int]


def plain(run: Run) -> list[Plain]:
    """Return the messages one by one; where bodies are paged out, their sizes."""
    if run.packed is not None:
        assert run.in_memory and run.contents is None
        run.unpack()
    items: Any = run.contents if run.contents is not None else run.sizes
    assert len(items) == len(run)
    assert run.size == (sum(map(len, items)) if run.contents is not None else sum(items))
    assert run.heads is None or len(run.heads) == len(run)
    return [
        (
            *(seq, items[index], run.head_of(index), run.attributes_of(index), run.due_of(index)),
            *(run.redelivered, run.attempts),
        )
        for index, seq in enumerate(run.seqs)
    ]


def check(run: Run) -> None:
    """What is known of all messages together holds for each."""
    dues = [due for index in range(len(run)) if (due := run.due_of(index)) is not None]
    assert not dues or (run.expires_at is not None and run.expires_at <= min(dues))
    assert run.deadlines is None or len(run.deadlines) == len(run) > 1
    assert run.kinds is None or len(run.kinds) == len(run) > 1
    overheads = sum(run.attributes_of(index).overhead for index in range(len(run)))
    assert run.counted_bytes == run.size - overheads
    for index in range(len(run)):
        attributes = run.attributes_of(index)
        assert attributes.persistent is run.attributes.persistent
        assert attributes.frame_bytes <= run.attributes.frame_bytes


def attributes_of(persistent: bool) -> st.SearchStrategy[Attributes]:
    return st.builds(
        Attributes,
        persistent=st.just(persistent),
        priority=st.integers(0, 1),
        frame_bytes=st.sampled_from([4096, 8192]),
        overhead=st.integers(0, 1),
    )


deadlines = st.none() | st.integers(5, 9)


@st.composite
def runs(draw: st.DrawFn, first: int | None = None) -> Run:
    contents = draw(st.lists(st.binary(max_size=5), min_size=1, max_size=20))
    start = draw(st.integers(1, 1000)) if first is None else first
    step = 1 if first is not None else draw(st.integers(1, 4))
    seqs = range(start, start + step * len(contents), step)
    persistent = draw(st.booleans())
    attributes = draw(attributes_of(persistent))
    run = Run(seqs, contents, draw(st.sampled_from([b"a", b"b"])), attributes, draw(deadlines))
    run.redelivered = draw(st.booleans())
    run.attempts = draw(st.integers(0, 1))
    if draw(st.booleans()):
        run.heads = [draw(st.sampled_from([b"a", b"b", b"c"])) for _ in contents]
    if len(contents) > 1 and draw(st.booleans()):
        dues = [draw(deadlines) for _ in contents]
        run.deadlines = array("q", [NEVER if due is None else due for due in dues])
        run.expires_at = min(run.deadlines) - draw(st.integers(0, 1))
    if len(contents) > 1 and draw(st.booleans()):
        run.table = [draw(attributes_of(persistent)) for _ in range(3)]
        run.kinds = bytearray(draw(st.integers(0, 2)) for _ in contents)
        largest = max(each.frame_bytes for each in run.table)
        run.attributes = run.table[0]._replace(frame_bytes=largest)
    if draw(st.integers(0, 3)) == 0:
        run.page_out()
    return run


@given(runs(), st.data())
def test_a_run_is_cut_in_two(run: Run, data: st.DataObject) -> None:
    before = plain(run)
    if len(run) == 1:
        return
    count = data.draw(st.integers(1, len(run) - 1))
    front = run.take(count)
    check(front)
    check(run)
    assert plain(front) == before[:count]
    assert plain(run) == before[count:]


@given(runs(), st.integers(1, 5))
def test_every_deals_all_out(run: Run, turns: int) -> None:
    before = plain(run)
    hands = [run.every(index, turns) for index in range(min(turns, len(run)))]
    for index, hand in enumerate(hands):
        check(hand)
        assert plain(hand) == before[index::turns]


@given(runs())
def test_a_run_falls_into_single_messages(run: Run) -> None:
    before = plain(run)
    singles = run.singles()
    assert [message for single in singles for message in plain(single)] == before
    assert all(single.seqs.step == 1 and len(single) == 1 for single in singles)


@given(st.data())
def test_a_run_absorbs_the_next_one_if_it_is_alike(data: st.DataObject) -> None:
    run = data.draw(runs(first=data.draw(st.integers(1, 5))))
    later = data.draw(runs(first=run.seqs.stop + data.draw(st.sampled_from([0, 0, 0, 1]))))
    before, more = plain(run), plain(later)
    same = before[0][5:] == more[0][5:] and (run.contents is None) is (later.contents is None)
    same = same and run.attributes.persistent is later.attributes.persistent
    may = same and run.seqs.stop == later.seqs.start
    mixed = run.heads is not None or later.heads is not None or run.head != later.head
    long = mixed and run.heads is None and len(later) > MIXED_LENGTH_MAX
    alike = run.kinds is None is later.kinds and run._alike(later)
    if run.absorb(later):
        assert may
        check(run)
        if alike:
            # Such a run keeps the largest frame only.
            before, more = ([without_frame(each) for each in plains] for plains in (before, more))
            assert [without_frame(each) for each in plain(run)] == before + more
        else:
            assert plain(run) == before + more
    else:
        assert plain(run) == before
        assert plain(later) == more
        assert not may or long


def without_frame(message: Plain) -> Plain:
    return (*message[:3], message[3]._replace(frame_bytes=0), *message[4:])


@given(st.lists(st.binary(max_size=5), min_size=PACKED_LENGTH_MIN, max_size=40), st.binary(max_size=3))
def test_packed_contents_keep_their_common_beginning_once(contents: list[bytes], prefix: bytes) -> None:
    contents = [prefix + content for content in contents]

    def packed() -> Run:
        run = Run(range(7, 7 + len(contents)), list(contents), b"")
        run.pack()
        assert run.packed is not None and run.contents is None and run.in_memory
        assert list(sizes_of(run)) == list(map(len, contents))
        return run

    run = packed()
    assert run.packed is not None and len(run.packed) <= len(b"".join(contents)) - len(prefix) * len(contents)
    run.unpack()
    assert run.contents == contents
    run = packed()
    assert not run.absorb(Run(range(run.seqs.stop, run.seqs.stop + 1), [b""], b""))
    front = run.take(5)
    assert (front.contents, run.contents) == (contents[:5], contents[5:])
    assert packed().every(1, 3).contents == contents[1::3]
    run = packed()
    assert run.page_out() == run.size and not run.in_memory and run.sizes is not None
    run.page_in(list(contents))
    assert run.contents == contents


def test_few_or_large_contents_are_not_packed() -> None:
    for count, size in ((PACKED_LENGTH_MIN - 1, 1), (PACKED_LENGTH_MIN, PACKED_BYTES_MAX + 1)):
        run = Run(range(count), [bytes(size)] * count, b"")
        run.pack()
        assert run.packed is None and run.contents is not None


@given(runs(), st.integers(4, 10))
def test_a_run_knows_how_many_messages_are_over(run: Run, limit: int) -> None:
    dues = [due for *_, due, _, _ in plain(run)]
    is_over = [due is not None and due <= limit for due in dues]
    assert run.over(limit) == (is_over.index(False) if False in is_over else len(run))
    assert run.before_over(limit) == (is_over.index(True) if True in is_over else len(run))
    check(run)


@given(runs())
def test_a_run_falls_into_parts_of_one_kind(run: Run) -> None:
    parts = list(run.uniform())
    assert [message for part in parts for message in plain(part)] == plain(run)
    assert all(part.kinds is None for part in parts)


def test_the_table_of_kinds_has_an_end() -> None:
    run = Run(range(1, 2), [b""], b"", Attributes(channel=1))
    for seq in range(2, KINDS_MAX + 1):
        assert run.absorb(Run(range(seq, seq + 1), [b""], b"", Attributes(channel=seq)))
    end = KINDS_MAX + 1
    assert not run.absorb(Run(range(end, end + 1), [b""], b"", Attributes(channel=end)))
    assert run.absorb(Run(range(end, end + 1), [b""], b"", Attributes(channel=1)))
    assert [run.attributes_of(index).channel for index in range(end)] == [*range(1, end), 1]


@given(runs())
def test_a_run_leaves_memory_and_comes_back(run: Run) -> None:
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
