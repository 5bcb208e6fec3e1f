"""A thread that follows a file, in a process and in all that are forked from it: a node's workers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


def follow(run: Callable[[], None]) -> None:
    def start() -> None:
        threading.Thread(target=run, daemon=True).start()

    start()
    os.register_at_fork(after_in_child=start)
