"""Answers of the broker that come in a later turn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

import trio

from amqp_server.turn import Turn

Answer = TypeVar("Answer")
#: Time for the answer of a queue, s. A queue without a majority may never answer.
ANSWER_S = 30.0


async def answers_of(
    turn: Turn, ask: Callable[[Callable[[Answer], None]], object], within_s: float | None = None
) -> list[Answer]:
    """Call `ask` in a turn with a function that takes the answer; return the answer, none if it comes too
    late.
    """
    answers: list[Answer] = []
    answered = trio.Event()

    def told(answer: Answer) -> None:
        answers.append(answer)
        answered.set()

    turn.run(ask, told)
    with nullcontext() if within_s is None else trio.move_on_after(within_s):
        await answered.wait()
    return answers
