"""The time when this program began. Imported before any module that takes long.

The kernel knows when the process began, but a shell that compiled for two minutes and then called exec is the
same process. So the CPU time of the process is used: except for a few ms of such a shell, it is the start of
the interpreter.
"""

from __future__ import annotations

import time

_BEGAN_S = time.monotonic() - time.process_time()


def elapsed_s() -> float:
    """Return the seconds since the program began."""
    return time.monotonic() - _BEGAN_S
