"""A wall clock that tests can set, for a process of mqd's; see troubled_mqd.

The file named by MQD_TEST_CLOCK holds by how many seconds the wall clock is wrong; it may be changed at any
time. What else tells the time is as it is.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

VARIABLE = "MQD_TEST_CLOCK"
#: Between two looks at the file, s.
LOOK_S = 0.02


def set_clock(file: Path, wrong_s: float) -> None:
    new = file.with_suffix(".new")
    new.write_text(str(wrong_s))
    new.replace(file)


def shift(file: Path) -> None:
    """Have the process see the time that the file says."""
    true_ns, wrong_ns = time.time_ns, 0

    def read() -> None:
        nonlocal wrong_ns
        wrong_ns = round(float(file.read_text()) * 1e9)

    def follow() -> None:
        while True:
            time.sleep(LOOK_S)
            read()

    read()
    time.time_ns = lambda: true_ns() + wrong_ns
    time.time = lambda: time.time_ns() / 1e9
    threading.Thread(target=follow, daemon=True).start()
