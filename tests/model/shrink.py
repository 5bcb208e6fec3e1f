"""Makes a program that failed smaller: steps are left out, and messages of a step, while it still fails."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.model.programs import Program, Step

Fails = Callable[[Program], bool]


def shrunk(program: Program, fails: Fails, within_s: float = 120.0) -> Program:
    """Delta debugging. `fails` runs a program and says whether it fails in the same way."""
    ends = time.monotonic() + within_s
    steps = list(program.steps)
    size = max(1, len(steps) // 2)
    while size:
        at, before = 0, len(steps)
        while at < len(steps) and time.monotonic() < ends:
            fewer = steps[:at] + steps[at + size :]
            if fails(program.with_steps(fewer)):
                steps = fewer
            else:
                at += size
        if size == 1 and len(steps) == before:
            break
        size = size // 2 or (1 if len(steps) < before and time.monotonic() < ends else 0)
    return _with_fewer_messages(program.with_steps(steps), fails, ends)


def _with_fewer_messages(program: Program, fails: Fails, ends: float) -> Program:
    steps = list(program.steps)
    for at, step in enumerate(steps):
        if step["op"] != "publish":
            continue
        while len(steps[at]["messages"]) > 1 and time.monotonic() < ends:
            half = len(steps[at]["messages"]) // 2
            for kept in (steps[at]["messages"][:half], steps[at]["messages"][half:]):
                fewer: list[Step] = [*steps[:at], {**steps[at], "messages": kept}, *steps[at + 1 :]]
                if fails(program.with_steps(fewer)):
                    steps = fewer
                    break
            else:
                break
    return program.with_steps(steps)
