"""Defects that tests plant in an mqd process; see troubled_mqd.

The file named by MQD_TEST_PLANT holds "COUNT QUEUE" or "COUNT VHOST/QUEUE": the next COUNT entries that
this queue applies raise, half of them before they are applied and half of them after; all of them before or
after, if a second line says so. It may be changed at any time.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.cluster import followed

VARIABLE = "MQD_TEST_PLANT"
#: Seconds between two looks at the file.
LOOK_S = 0.02


class Planted(Exception):
    pass


def plant(file: Path, queue: str, count: int, when: str = "") -> None:
    """`when` is before, after, or either."""
    new = file.with_suffix(".new")
    new.write_text(f"{count} {queue}\n{when}")
    new.replace(file)


def install(file: Path) -> None:
    """Make the queues of this process fail as the file says."""
    from amqp_server.streams.local_host import StreamHost
    from amqp_server.streams.members.host import StreamMemberHost
    from quorum_queue.cluster.queues.member_host import GroupHost
    from quorum_queue.local_host import LocalHost
    from quorum_queue.machine.machine import ENQUEUES

    left, name, when, known, struck = 0, "", "", "", 0

    def follow() -> None:
        nonlocal left, name, when, known
        while True:
            time.sleep(LOOK_S)
            found = file.read_text()
            if found != known:
                known = found
                line, _, when = found.partition("\n")
                count, _, name = line.partition(" ")
                left = int(count)

    def names(queue: Any) -> tuple[str, str]:
        return queue.name, f"{queue.vhost.name}/{queue.name}"

    def plant_in_member(host: Any) -> None:
        """One member of a replicated queue fails, before an entry or after it."""
        apply = host.apply

        def planted(self: Any, index: int, data: bytes) -> None:
            nonlocal left
            strikes = left > 0 and name in names(self.queue)
            if strikes and (when == "before" if when else index % 2):
                left -= 1
                raise Planted(f"entry {index}, not applied")
            apply(self, index, data)
            if strikes:
                left -= 1
                raise Planted(f"entry {index}, applied")

        host.apply = planted

    def plant_in_single(host: Any) -> None:
        """A queue without a log of its own fails before it takes messages, or after that."""
        apply_pending = host.apply_pending

        def planted(self: Any) -> None:
            nonlocal left, struck
            strikes = left > 0 and name in names(self.queue) and any(c[0] in ENQUEUES for c in self.pending)
            if strikes:
                left -= 1
                struck += 1
            if strikes and (when == "before" if when else struck % 2):
                raise Planted("messages, not taken")
            apply_pending(self)
            if strikes:
                raise Planted("messages, taken")

        host.apply_pending = planted

    for member in (GroupHost, StreamMemberHost):
        plant_in_member(member)
    for single in (LocalHost, StreamHost):
        plant_in_single(single)
    followed.follow(follow)
