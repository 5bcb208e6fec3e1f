"""A wall clock that tests can set, for an mqd process; see troubled_mqd.

The file named by MQD_TEST_CLOCK says by how many seconds the wall clock is wrong; it may be changed at any
time. All other clocks are unchanged.
"""

from __future__ import annotations

import time
from pathlib import Path

from tests.cluster import followed

VARIABLE = "MQD_TEST_CLOCK"
#: Seconds between two looks at the file.
LOOK_S = 0.02


def set_clock(file: Path, wrong_s: float) -> None:
    new = file.with_suffix(".new")
    new.write_text(str(wrong_s))
    new.replace(file)


def shift(file: Path) -> None:
    """Have the process see the time given by the file."""
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
    followed.follow(follow)
