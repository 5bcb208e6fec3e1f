"""The work of a call: the instructions that Python runs for it, which no other load on the machine
changes.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Generator
from functools import partial
from types import CodeType, FrameType
from typing import Any, TypeVar

T = TypeVar("T")
#: An id of sys.monitoring that no other tool has by convention.
TOOL = 4


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
    collects = gc.isenabled()
    # What others have left may have finalizers.
    gc.disable()
    try:
        return _instructions(partial(call, *arguments))
    finally:
        if collects:
            gc.enable()


if sys.version_info >= (3, 12):

    def _instructions(call: Callable[[], object]) -> int:
        """From 3.12 on, a trace misses the instructions of a function that was not traced before."""
        count, own, monitoring = 0, _instructions.__code__, sys.monitoring

        def instruction(code: CodeType, offset: int) -> None:
            nonlocal count
            count += code is not own

        monitoring.use_tool_id(TOOL, __name__)
        monitoring.register_callback(TOOL, monitoring.events.INSTRUCTION, instruction)
        monitoring.set_events(TOOL, monitoring.events.INSTRUCTION)
        try:
            call()
        finally:
            monitoring.set_events(TOOL, 0)
            monitoring.free_tool_id(TOOL)
        return count

else:

    def _instructions(call: Callable[[], object]) -> int:
        count = 0

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal count
            if event == "call":
                frame.f_trace_lines = False
                frame.f_trace_opcodes = True
            elif event == "opcode":
                count += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            call()
        finally:
            sys.settrace(before)
        return count
