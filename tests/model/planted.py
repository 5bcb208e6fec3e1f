"""Bugs that are planted in an mqd, to see whether the model finds them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from tests.cluster.mqd import TROUBLED

VARIABLE = "MQD_TEST_BUG"
BUGS: dict[str, Callable[[], None]] = {}


def started_with(name: str | None) -> tuple[Sequence[str], dict[str, str]]:
    """The program and environment of an mqd with this bug, or without one."""
    if name is None:
        return TROUBLED, {}
    start = f"import sys; sys.path.append({ROOT!r}); from {__name__} import main; raise SystemExit(main())"
    return (sys.executable, "-P", "-c", start), {VARIABLE: name}


ROOT = __file__.rsplit("/tests/", 1)[0]


def main() -> int | None:
    BUGS[os.environ[VARIABLE]]()
    from tests.cluster.troubled_mqd import main as run

    return run()
