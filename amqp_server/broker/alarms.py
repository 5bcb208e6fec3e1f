"""Memory and disk alarms: while one is raised, publishers are blocked; consumers never are."""

from __future__ import annotations

from collections.abc import Callable


class Alarms:
    """The alarms of the node, by name of the resource that is low."""

    def __init__(self) -> None:
        self._raised: dict[str, None] = {}
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
        return sorted(self._raised)

    def set(self, resource: str, raised: bool) -> None:
        """Raise or clear the alarm of a resource (memory, disk)."""
        if raised is (resource in self._raised):
            return
        if raised:
            self._raised[resource] = None
        else:
            del self._raised[resource]
        for changed in self._subscribers:
            changed()
