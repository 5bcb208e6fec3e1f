"""The error boundary: the one place that decides what an exception ends. It ends the smallest unit whose
state may be wrong.

- An error for a client is data (an AMQPError, handled by its session) and never gets here.
- An exception while a session handles its client's bytes ends that connection.
- An exception while a queue or its Raft group handles anything, or is woken by a timer, stops that queue on
  this node; all others go on.
- `Fatal`, and any exception outside of a unit, ends the process: after an error in the topology, the disk or
  the links, anything else may be wrong, too. Confirmed messages are on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from persistence.errors import CommitFailed

#: Errors of the disk, for which no unit can be blamed.
DISK_ERRORS = (CommitFailed,)


class Fatal(BaseException):
    """The process has to end. This is no Exception, so that no code between here and the top catches it."""


class Unit(Protocol):
    """An object that an exception may leave in a wrong state: a session, a queue's host, a Raft group."""

    def failed(self, error: Exception) -> None:
        """Stop all work of this unit. Raises Fatal if the node can't do without the unit."""


class Boundary:
    """The node has one."""

    __slots__ = ("_seen",)

    def __init__(self, seen: Callable[[Unit, Exception], None] | None = None) -> None:
        """`seen` is called with each failure before its unit is stopped; it may raise, and then it is not."""
        self._seen = seen

    def contain(self, unit: Unit, call: Callable[..., object], *arguments: object) -> None:
        """Make the call; if it raises, only this unit has failed."""
        try:
            call(*arguments)
        except Exception as error:
            self.failed(unit, error)

    def failed(self, unit: Unit, error: Exception) -> None:
        """A unit raised: stop it. Raises Fatal if something else than the unit is broken."""
        if self._seen is not None:
            self._seen(unit, error)
        if isinstance(error, DISK_ERRORS):
            # All units share the disk.
            raise Fatal(str(error)) from error
        unit.failed(error)


__all__ = ["DISK_ERRORS", "Boundary", "Fatal", "Unit"]
