"""Memory and disk alarms: while one is raised, publishers are blocked; consumers never are. And alarms that
block nobody, and conditions that an operator has to know of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

logger = logging.getLogger("mqd.alarms")


class Raised(NamedTuple):
    """An alarm or condition as operators see it."""

    name: str
    text: str
    blocks_publishers: bool


class OtherAlarms(Protocol):
    """The alarms of the node's other processes."""

    def note_alarm(self, name: str, raised: bool) -> bool:
        """This process has raised or cleared an alarm; return True if no other process has raised it."""


class Alarms:
    """The alarms of the node, by name of the resource that is low.

    If the node is several processes, each has its own, but the first one that raises an alarm logs and tells
    it for the node, and so does the last one that clears it.
    """

    def __init__(self, others: OtherAlarms | None = None) -> None:
        """`others` are the other processes of the node, if it has several."""
        self._others = others
        #: Alarms of the node that were raised or cleared and not told yet, and which of the two.
        self._changes: list[tuple[str, bool]] = []
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
        self._changed_here(name, raised)
        self._tell()

    def set_condition(self, name: str, text: str, *, of_machine: bool = False) -> None:
        """Set a condition with a text that says what is wrong and what to do, or clear it: an empty text. Log
        both; a text that changes is not logged again. `of_machine`: all processes of the node have it.
        """
        before = self._conditions.get(name, "")
        if text:
            self._conditions[name] = text
        else:
            self._conditions.pop(name, None)
        if bool(text) is bool(before):
            return
        level = logging.WARNING
        if of_machine and not self._is_first_or_last(name, bool(text)):
            level = logging.DEBUG
        if text:
            logger.log(level, "%s alarm set on this node: %s", name, text)
        else:
            logger.log(level, "%s alarm cleared on this node", name)

    def set(self, resource: str, raised: bool, measured: str = "") -> None:
        """Raise or clear the alarm of a resource (memory, disk), and log that. `measured` is what was found,
        for the log.
        """
        if raised is (resource in self._raised):
            return
        name = resource.removesuffix(" space")
        found = f": {measured}" if measured else ""
        level = logging.WARNING if self._changed_here(resource, raised) else logging.DEBUG
        if raised:
            self._raised[resource] = measured
            # In RabbitMQ's words, because operators' tools look for them.
            logger.log(
                level,
                "%s resource limit alarm set on this node%s. Publishers will be blocked until this alarm clears",
                *(name, found),
            )
        else:
            del self._raised[resource]
            logger.log(level, "%s resource limit alarm cleared on this node%s", name, found)
        self._tell()

    def _changed_here(self, name: str, raised: bool) -> bool:
        """Note an alarm for events; return True if it is the node's from now on, or no longer."""
        of_node = self._is_first_or_last(name, raised)
        if of_node:
            self._changes.append((name, raised))
        return of_node

    def _is_first_or_last(self, name: str, raised: bool) -> bool:
        return self._others is None or self._others.note_alarm(name, raised)

    def take_changes(self) -> list[tuple[str, bool]]:
        """Return the alarms of the node that were raised or cleared since the last call, and which of the
        two.
        """
        changes, self._changes = self._changes, []
        return changes

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
