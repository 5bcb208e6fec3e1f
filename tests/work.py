"""The work of a call: the instructions that Python runs for it, which no other load on the machine
changes.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def ended(steps: Generator[object, None, T]) -> T:
    """Take all steps of an iterator; return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def steps(call: Callable[..., object], *arguments: Any) -> int:
    """Return how many instructions of Python the call takes. A loop in C, like that of dict.update, counts as
    one.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if event == "call":
            frame.f_trace_lines = False
            frame.f_trace_opcodes = True
        elif event == "opcode":
            count += 1
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    # What others have left may have finalizers.
    gc.disable()
    sys.settrace(trace)
    try:
        call(*arguments)
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count
