"""Requests for lost entries and their answers, as bytes."""

from __future__ import annotations

import pytest

from quorum_queue.cluster import frames
from quorum_queue.cluster.frames import FrameError, Question, SoughtEntry


def joined(parts: list[bytes]) -> memoryview:
    return memoryview(b"".join(parts))


def test_questions_and_their_bytes() -> None:
    questions = [Question(7, 3, 0, 0), Question(8, 0, 10, frames.COMMITTED), Question(9, 0, 0, 0)]
    frame = joined(frames.seek(5, questions))
    assert frame[0] == frames.SEEK
    assert frames.parse_seek(frame) == (5, questions)
    with pytest.raises(FrameError):
        frames.parse_seek(frame[:-1])


def test_answers_and_their_bytes() -> None:
    answers = [
        SoughtEntry(7, frames.FOUND, 0, 3, 1, b"body"),
        SoughtEntry(8, frames.LOST_HERE, 10, 0, 0, b""),
    ]
    frame = joined(frames.sought(5, 4, answers))
    assert frame[0] == frames.SOUGHT
    assert frames.parse_sought(frame) == (5, 4, answers)
    assert frames.parse_sought(joined(frames.sought(5, 0, []))) == (5, 0, [])


@pytest.mark.parametrize("end", [3, 20, -30, -1])
def test_answers_that_are_cut_off(end: int) -> None:
    frame = joined(frames.sought(5, 4, [SoughtEntry(7, frames.FOUND, 0, 3, 1, b"a body of some length")]))
    with pytest.raises(FrameError):
        frames.parse_sought(frame[:end])


def test_an_answer_that_nobody_knows() -> None:
    with pytest.raises(FrameError):
        frames.parse_sought(joined(frames.sought(5, 4, [SoughtEntry(7, frames.LEADERS + 1, 0, 0, 0, b"")])))


def test_the_word_of_an_operator() -> None:
    frame = joined(frames.pass_over(6))
    assert (frame[0], frames.parse_group(frame)) == (frames.PASS, 6)
