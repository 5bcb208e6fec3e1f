"""The mqd that tests start: from the directory in TEST_PROGRAMS, or otherwise from our own interpreter's
directory.

So `make test` tests single classes in the source tree, and whole brokers compiled.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "TEST_PROGRAMS"


def directory() -> Path:
    return Path(os.environ.get(VARIABLE) or Path(sys.executable).parent)


def python() -> str:
    """Return an interpreter that imports this mqd."""
    chosen = os.environ.get(VARIABLE)
    return str(Path(chosen, "python")) if chosen else sys.executable
