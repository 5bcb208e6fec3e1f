"""The bytes that wait until clients read them, on the whole node.

The queue no longer has these bodies, or may drop them from memory, but they still take memory. Each
connection has its own limit, but one large message goes beyond it: a hundred clients that request one and
read nothing hold a hundred bodies. So while all connections together have too much, no large body is read
back from the disk. The consumers that wait for that take turns by group, so that one user's many clients do
not delay those of another user.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from quorum_queue.boundary import Fatal
from quorum_queue.ports import Turn

#: A larger body may exceed the limit of a connection, bytes.
LARGE_BYTES: Final = 1 << 20
#: Waiting consumers continue when only this share of the limit is used.
LOW_SHARE: Final = 0.9


class Unsent:
    """Counts these bytes, and knows the units that wait until there are fewer. See quorum_queue.ports.Turn:
    this object is a unit itself.
    """

    __slots__ = ("_groups", "_over", "_turn", "bytes", "bytes_max", "filled")

    def __init__(self, bytes_max: int = 1 << 62, turn: Turn | None = None) -> None:
        self.bytes_max = bytes_max
        self._turn = turn
        self.bytes = 0
        self._over = False
        #: The waiting units, by group; the group whose turn it is comes first, and in each group the unit
        #: that has waited longest.
        self._groups: dict[Hashable, dict[Hashable, Callable[[], None]]] = {}
        #: Called when there are too many bytes.
        self.filled: Callable[[], None] = _nothing

    @property
    def full(self) -> bool:
        return self._over

    def add(self, size: int) -> None:
        self.bytes += size
        if self.bytes > self.bytes_max and not self._over:
            self._over = True
            self.filled()

    def take(self, size: int) -> None:
        """So many bytes have been sent, or will not be sent. Within a turn."""
        self.bytes -= size
        if self._over and self.bytes <= self.bytes_max * LOW_SHARE:
            self._over = False
            self._go_on()

    def wait(self, unit: Hashable, go_on: Callable[[], None], group: Hashable = None) -> None:
        """Call `go_on` when there are fewer bytes; each unit waits only once."""
        self._groups.setdefault(unit if group is None else group, {}).setdefault(unit, go_on)

    def _go_on(self) -> None:
        """Let one unit continue, the next one in another turn: by then there may be too many bytes again."""
        if self._over or not self._groups:
            return
        group = next(iter(self._groups))
        waiting = self._groups.pop(group)
        go_on = waiting.pop(next(iter(waiting)))
        if waiting:
            self._groups[group] = waiting
        go_on()
        if self._turn is None:
            self._go_on()
        elif self._groups:
            self._turn.later(self, self._go_on)

    def forget(self, unit: Hashable, group: Hashable = None) -> None:
        key = unit if group is None else group
        waiting = self._groups.get(key)
        if waiting is not None:
            waiting.pop(unit, None)
            if not waiting:
                del self._groups[key]

    def failed(self, error: Exception) -> None:
        raise Fatal(f"who waits until clients take what they are sent could not go on: {error!r}") from error


def _nothing() -> None: ...
