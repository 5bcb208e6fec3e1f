"""Earlier releases of mqd, run from their wheels next to the present version.

A wheel of each release stays in tests/releases; clusters are upgraded from the newest of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

WHEELS = sorted((Path(__file__).parents[1] / "releases").glob("mqd-*.whl"))

#: The wheel comes before any installed package; `python -m` would look into the working directory first.
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from amqp_server.main import main; main()"


def program(wheel: Path) -> list[str]:
    """Return the command that runs the mqd in a wheel; options follow."""
    return [sys.executable, "-c", _START, str(wheel)]


def version(wheel: Path) -> str:
    return wheel.name.split("-")[1]
