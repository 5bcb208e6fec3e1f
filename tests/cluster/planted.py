"""Defects that tests plant in an mqd process; see troubled_mqd.

The file named by MQD_TEST_PLANT holds "COUNT QUEUE" or "COUNT VHOST/QUEUE": the next COUNT entries that
this queue applies raise, half of them before they are applied and half of them after. It may be changed at
any time.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

VARIABLE = "MQD_TEST_PLANT"
#: Seconds between two looks at the file.
LOOK_S = 0.02


class Planted(Exception):
    pass


def plant(file: Path, queue: str, count: int) -> None:
    new = file.with_suffix(".new")
    new.write_text(f"{count} {queue}")
    new.replace(file)


def install(file: Path) -> None:
    """Make the queues of this process fail as the file says."""
    from quorum_queue.cluster.queues.member_host import GroupHost
    from quorum_queue.local_host import LocalHost
    from quorum_queue.machine.machine import ENQUEUES

    left, name, known = 0, "", ""

    def follow() -> None:
        nonlocal left, name, known
        while True:
            time.sleep(LOOK_S)
            found = file.read_text()
            if found != known:
                known = found
                count, _, name = found.partition(" ")
                left = int(count)

    def names(queue: Any) -> tuple[str, str]:
        return queue.name, f"{queue.vhost.name}/{queue.name}"

    apply: Any = GroupHost.apply

    def planted(self: GroupHost, index: int, data: bytes) -> None:
        nonlocal left
        strikes = left > 0 and name in names(self.queue)
        if strikes and index % 2:
            left -= 1
            raise Planted(f"entry {index}, not applied")
        apply(self, index, data)
        if strikes:
            left -= 1
            raise Planted(f"entry {index}, applied")

    place: Any = GroupHost
    place.apply = planted
    apply_pending: Any = LocalHost.apply_pending

    def planted_alone(self: LocalHost) -> None:
        """A queue without a log of its own fails before it takes messages."""
        nonlocal left
        if left > 0 and name in names(self.queue) and any(c[0] in ENQUEUES for c in self.pending):
            left -= 1
            raise Planted("messages, not taken")
        apply_pending(self)

    place = LocalHost
    place.apply_pending = planted_alone
    threading.Thread(target=follow, daemon=True).start()
