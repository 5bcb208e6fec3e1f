"""mqd with a wall clock that tests can set and defects that they can plant: `python -m
tests.cluster.troubled_mqd OPTIONS`, as `mqd OPTIONS`. See shifted_clock and planted.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.cluster import planted, shifted_clock


def main() -> int | None:
    shifted_clock.shift(Path(os.environ[shifted_clock.VARIABLE]))
    from amqp_server.build import BUILD

    if BUILD == "pure":
        # A method of a compiled class can't be replaced.
        planted.install(Path(os.environ[planted.VARIABLE]))
    from amqp_server.app import main as run

    return run()


if __name__ == "__main__":
    raise SystemExit(main())
