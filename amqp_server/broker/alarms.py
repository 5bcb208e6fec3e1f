"""Memory and disk alarms: while one is raised, publishers are blocked; consumers never are. And alarms that
block nobody, and conditions that an operator has to know of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

logger = logging.getLogger("mqd.alarms")


class Raised(NamedTuple):
    """An alarm or condition as operators see it."""

    name: str
    text: str
    blocks_publishers: bool


class Alarms:
    """The alarms of the node, by name of the resource that is low."""

    def __init__(self) -> None:
        #: What was measured when it was raised.
        self._raised: dict[str, str] = {}
        #: Those that block no publisher.
        self._limits: dict[str, str] = {}
        #: Conditions that are no alarms in RabbitMQ; its checks of alarms do not fail because of them.
        self._conditions: dict[str, str] = {}
        #: Why other nodes block their publishers, by node.
        self.elsewhere: dict[str, str] = {}
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever an alarm was raised or cleared, also on another node."""
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

    def told(self) -> list[Raised]:
        """Return all alarms and conditions, those that block publishers first."""
        found = [Raised(name, self._raised[name], True) for name in sorted(self._raised)]
        for kind in (self._limits, self._conditions):
            found += [Raised(name, kind[name], False) for name in sorted(kind)]
        return found

    def set_limit(self, name: str, raised: bool, measured: str = "") -> None:
        """Raise or clear an alarm that blocks no publisher."""
        if raised is (name in self._limits):
            return
        if raised:
            self._limits[name] = measured
        else:
            del self._limits[name]
        self._tell()

    def set_condition(self, name: str, text: str) -> None:
        """Set a condition with a text that says what is wrong and what to do, or clear it: an empty text. Log
        both; a text that changes is not logged again.
        """
        before = self._conditions.get(name, "")
        if text:
            self._conditions[name] = text
        else:
            self._conditions.pop(name, None)
        if text and not before:
            logger.warning("%s alarm set on this node: %s", name, text)
        elif before and not text:
            logger.warning("%s alarm cleared on this node", name)

    def set(self, resource: str, raised: bool, measured: str = "") -> None:
        """Raise or clear the alarm of a resource (memory, disk), and log that. `measured` is what was found,
        for the log.
        """
        if raised is (resource in self._raised):
            return
        name = resource.removesuffix(" space")
        found = f": {measured}" if measured else ""
        if raised:
            self._raised[resource] = measured
            # In RabbitMQ's words, because operators' tools look for them.
            logger.warning(
                "%s resource limit alarm set on this node%s. Publishers will be blocked until this alarm clears",
                *(name, found),
            )
        else:
            del self._raised[resource]
            logger.warning("%s resource limit alarm cleared on this node%s", name, found)
        self._tell()

    def set_elsewhere(self, node: str, reason: str) -> None:
        """Another node blocks its publishers for this reason, or for none. Clients of this node wait as well
        before they publish to queues that need that node.
        """
        if reason == self.elsewhere.get(node, ""):
            return
        if reason:
            self.elsewhere[node] = reason
        else:
            del self.elsewhere[node]
        self._tell()

    def _tell(self) -> None:
        for changed in self._subscribers:
            changed()
