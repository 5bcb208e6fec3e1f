"""Confirms in every order, checked against a plain set of tags."""

import threading

import pamqp.commands
import pamqp.frame
from hypothesis import given
from hypothesis import strategies as st

from spark_sink.client.window import Window

CONFIRMS = st.lists(st.tuples(st.integers(1, 30), st.booleans(), st.booleans()), max_size=40)


def frame(tag: int, multiple: bool, nack: bool) -> bytes:
    method = pamqp.commands.Basic.Nack if nack else pamqp.commands.Basic.Ack
    return bytes(pamqp.frame.marshal(method(tag, multiple), 1))


@given(confirms=CONFIRMS, cuts=st.lists(st.integers(0, 1000), max_size=5))
def test_what_is_settled_and_what_was_nacked(confirms: list[tuple[int, bool, bool]], cuts: list[int]) -> None:
    window = Window(threading.Condition())
    data = b"".join(frame(*each) for each in confirms)
    rest = b""
    ends = sorted(min(cut, len(data)) for cut in cuts)
    for start, end in zip([0, *ends], [*ends, len(data)], strict=True):
        rest += data[start:end]
        rest = rest[window.take(rest, 0, len(rest)) :]
    assert rest == b""
    settled: set[int] = set()
    nacked: set[int] = set()
    for tag, multiple, nack in confirms:
        fresh = set(range(1, tag + 1) if multiple else [tag]) - settled
        settled |= fresh
        nacked |= fresh if nack else set()
    assert {tag for tag in range(1, 32) if window.is_settled(tag)} == settled
    assert (window.settled, window.nacked) == (len(settled), nacked)


def test_other_frames_are_left_where_they_are() -> None:
    window = Window(threading.Condition())
    other = bytes(pamqp.frame.marshal(pamqp.commands.Connection.Unblocked(), 0))
    data = frame(1, False, False) + other + frame(2, False, False)
    assert window.take(data, 0, len(data)) == 21
    assert window.settled == 1
