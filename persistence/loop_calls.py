"""Lets a thread make calls on Trio's loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio

from persistence.worker import Report


def to_this_loop() -> Report:
    """Return a function that makes a call on this loop, from any thread; it does nothing after the loop's
    end.
    """
    run_soon = trio.lowlevel.current_trio_token().run_sync_soon

    def report(call: Callable[[], None]) -> None:
        with suppress(trio.RunFinishedError):
            run_soon(call)

    return report
