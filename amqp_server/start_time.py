"""When this program began. It is imported before anything that takes long.

The kernel says when the process began, but a shell that compiled for two minutes and then called exec is the
same process. What its CPU was used for until now are, but for a few ms of such a shell, the start of the
interpreter.
"""

from __future__ import annotations

import time

_BEGAN_S = time.monotonic() - time.process_time()


def elapsed_s() -> float:
    """Return the seconds since then."""
    return time.monotonic() - _BEGAN_S
