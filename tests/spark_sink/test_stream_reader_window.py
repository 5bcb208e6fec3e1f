"""Messages that are delivered, planned, acked, and delivered again after a lost connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sink.source.offsets import BadCheckpoint, Position, position
from spark_sink.source.window import Batch, Settlement, Window
from tests.spark_sink.wire import Message, delivery, run_of

LIMIT = 1 << 30


def plan(window: Window, position: int, count: int) -> Batch:
    batch = window.plan(position, count, LIMIT)
    assert batch is not None
    return batch


def test_a_batch_is_acked_by_its_last_tag() -> None:
    window = Window()
    window.add(run_of(b"a", b"b", b"c"))
    first = plan(window, 10, 2)
    assert (first.end, first.count, window.buffered) == (12, 2, 1)
    assert window.batch(12) is first
    assert not window.settle(11)
    assert window.settle(12) == Settlement(2, ())
    assert window.batch(12) is None and not window.settle(12)


def test_bytes_limit_a_batch_but_one_message_always_fits() -> None:
    window = Window()
    window.add(run_of(b"a" * 500, b"b", b"c"))
    assert plan_bytes(window, 100).count == 1
    assert plan_bytes(window, 100).count == 1
    assert plan_bytes(window, 100).count == 1
    assert window.plan(0, 5, 100) is None and window.buffered_bytes == 0


def plan_bytes(window: Window, most: int) -> Batch:
    batch = window.plan(0, 5, most)
    assert batch is not None
    return batch


def test_a_batch_is_found_behind_others() -> None:
    window, other = Window(), Window()
    other.add(run_of(b"c", b"d"))
    due = plan(other, 0, 2)
    window.add(run_of(b"a", b"c", b"b"))
    window.add(run_of(b"c", b"d", b"e", tag=4))
    assert window.find(due.first, "other", 2) is None
    start = window.find(due.first, due.digest, 2)
    assert start == 3
    batch = window.extract(10, start, 2)
    assert (batch.end, batch.digest, batch.tags, window.buffered) == (12, due.digest, [4, 5], 4)
    assert window.settle(12) == Settlement(None, (4, 5))
    rest = plan(window, 12, 9)
    assert (rest.count, window.buffered, window.buffered_bytes) == (4, 0, 0)
    assert window.settle(16) == Settlement(6, ())


def test_after_a_reconnect_the_messages_of_a_batch_are_recognised_and_the_others_read() -> None:
    window = Window()
    window.add(run_of(b"a", b"b", b"c", b"d"))
    plan(window, 0, 2)
    window.lost()
    assert window.buffered == 0 and window.expecting
    window.add(run_of(b"a", b"b", b"c", b"d", redelivered=True))
    assert window.buffered == 2 and not window.expecting
    assert window.settle(2) == Settlement(None, (1, 2))
    assert [run.tag(0) for run in window.first(1)] == [3]


def test_what_comes_back_after_its_batch_was_settled_is_acked_at_once() -> None:
    window = Window()
    window.add(run_of(b"a", b"b"))
    plan(window, 0, 2)
    window.lost()
    window.add(run_of(b"a", redelivered=True))
    assert window.settle(2) == Settlement(None, (1,))
    window.confirmed()
    window.add(run_of(b"b", tag=2, redelivered=True))
    assert window.settle(2) == Settlement(None, (2,))
    assert window.buffered == 0


def test_only_what_the_broker_flags_is_taken_for_a_message_of_a_batch() -> None:
    window = Window()
    window.add(run_of(b"same"))
    plan(window, 0, 1)
    window.lost()
    # The broker lost a transient message, and another with the same body came.
    window.add(run_of(b"same"))
    assert window.buffered == 1 and not window.expecting


def test_acks_of_which_nobody_knows() -> None:
    window = Window()
    window.add(run_of(b"a", message_id="1"))
    plan(window, 0, 1)
    window.settle(1)
    window.lost()
    # With a message_id it can be no other message: it is acked once more, and not read.
    window.add(run_of(b"a", message_id="1", redelivered=True))
    assert window.buffered == 0 and window.settle(1) == Settlement(None, (1,))

    window = Window()
    window.add(run_of(b"a"))
    plan(window, 0, 1)
    window.settle(1)
    window.lost()
    # Without an id it may be the next message with this body, and it is better to read it twice than never.
    window.add(run_of(b"a", redelivered=True))
    assert window.buffered == 1

    window = Window()
    window.add(run_of(b"a", message_id="1"))
    plan(window, 0, 1)
    window.settle(1)
    window.confirmed()
    window.lost()
    assert not window.expecting


bodies = st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=30)


@given(bodies, st.lists(st.sampled_from(["plan", "settle", "lose"]), max_size=20), st.data())
def test_nothing_is_lost_or_planned_twice_whenever_connections_are_lost(
    queue: list[bytes], steps: list[str], data: st.DataObject
) -> None:
    """Against a model of a queue: acked messages leave it, the others come again in order and flagged."""
    window, left = Window(), list(enumerate(queue))
    seen: set[int] = set()
    planned: list[bytes] = []
    by_tag: dict[int, tuple[int, bytes]] = {}

    def deliver() -> None:
        by_tag.clear()
        for tag, (number, body) in enumerate(left, 1):
            by_tag[tag] = (number, body)
            window.add(run_of(body, tag=tag, redelivered=number in seen))
            seen.add(number)

    def apply(settlement: Settlement) -> None:
        tags = [tag for tag in by_tag if settlement.through is not None and tag <= settlement.through]
        for tag in {*tags, *settlement.tags}:
            # A tag that is acked twice closes the channel; `multiple` acks the remaining tags below it.
            assert tag in by_tag
            left.remove(by_tag.pop(tag))
        window.confirmed()

    deliver()
    count = 0
    for step in [*steps, "lose", "settle", "plan", "settle"]:
        if step == "plan":
            batch = window.plan(count, data.draw(st.integers(1, 10)) if step in steps else 1_000, LIMIT)
            if batch is not None:
                count = batch.end
                planned += [content[-2:-1] for run in batch.runs for content in run.contents()]
        elif step == "settle":
            apply(window.settle(count))
        else:
            window.lost()
            deliver()
    while (batch := window.plan(count, 1_000, LIMIT)) is not None:
        count = batch.end
        planned += [content[-2:-1] for run in batch.runs for content in run.contents()]
    apply(window.settle(count))
    assert planned == queue
    assert left == []


def test_an_offset_is_read_back() -> None:
    there = Position("q", 12, 5, "ab", "cd", True)
    assert position(there.json(), "q") == there


def test_a_checkpoint_of_another_queue_or_source_is_an_error() -> None:
    with pytest.raises(BadCheckpoint, match="belongs to queue 'q', and option 'queue' says 'other'"):
        position(Position("q").json(), "other")
    with pytest.raises(BadCheckpoint, match="not an offset of format amqp"):
        position({"topic-0": 5}, "q")


def test_messages_are_compared_without_what_changes() -> None:
    first, again = delivery(Message(b"x"), 1), delivery(Message(b"x"), 9, True)
    assert first != again
    assert list(run_of(b"x").contents()) == list(run_of(b"x", tag=9, redelivered=True).contents())
