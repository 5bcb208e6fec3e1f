"""Memory and disk alarms: while one is raised, publishers are blocked; consumers never are. And alarms that
block nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger("mqd.alarms")


class Alarms:
    """The alarms of the node, by name of the resource that is low."""

    def __init__(self) -> None:
        self._raised: dict[str, None] = {}
        #: Those that block no publisher.
        self._limits: set[str] = set()
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever an alarm was raised or cleared."""
        self._subscribers.append(changed)

    @property
    def active(self) -> bool:
        return bool(self._raised)

    @property
    def reason(self) -> str:
        """Text of connection.blocked, in RabbitMQ's words."""
        return "low on " + " & ".join(sorted(self._raised)) if self._raised else ""

    def names(self) -> list[str]:
        return sorted({*self._raised, *self._limits})

    def set_limit(self, name: str, raised: bool) -> None:
        """Raise or clear an alarm that blocks no publisher."""
        if raised is (name in self._limits):
            return
        (self._limits.add if raised else self._limits.discard)(name)
        self._tell()

    def set(self, resource: str, raised: bool, measured: str = "") -> None:
        """Raise or clear the alarm of a resource (memory, disk), and log that. `measured` is what was found,
        for the log.
        """
        if raised is (resource in self._raised):
            return
        name = resource.removesuffix(" space")
        found = f": {measured}" if measured else ""
        if raised:
            self._raised[resource] = None
            # In RabbitMQ's words, because operators' tools look for them.
            logger.warning(
                "%s resource limit alarm set on this node%s. Publishers will be blocked until this alarm clears",
                *(name, found),
            )
        else:
            del self._raised[resource]
            logger.warning("%s resource limit alarm cleared on this node%s", name, found)
        self._tell()

    def _tell(self) -> None:
        for changed in self._subscribers:
            changed()
