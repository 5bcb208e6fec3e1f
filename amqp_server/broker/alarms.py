"""Memory and disk alarms: while one is raised, publishers are blocked; consumers never are. And alarms that
block nobody.
"""

from __future__ import annotations

from collections.abc import Callable


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

    def set(self, resource: str, raised: bool) -> None:
        """Raise or clear the alarm of a resource (memory, disk)."""
        if raised is (resource in self._raised):
            return
        if raised:
            self._raised[resource] = None
        else:
            del self._raised[resource]
        self._tell()

    def _tell(self) -> None:
        for changed in self._subscribers:
            changed()
