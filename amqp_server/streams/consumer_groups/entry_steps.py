"""The entry of a consumer group's log that is being applied.

An entry that takes everything from a member with very many unacked messages, or from a group that is moved,
takes several turns; meanwhile the group applies no other entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from quorum_queue.steps import Steps

if TYPE_CHECKING:
    from quorum_queue.cluster.replica_group import Group
    from quorum_queue.ports import Turn


class Host(Protocol):
    """See ConsumerGroupMemberHost."""

    group: Group


class EntrySteps:
    """The host has one."""

    def __init__(self, host: Host, turn: Turn) -> None:
        self._host: Host | None = host
        self._turn = turn
        self._left: Iterator[None] = iter(())
        self._steps: Steps | None = None
        self._done: Callable[[], None] = _nothing

    def apply(self, steps: Iterator[None], done: Callable[[], None]) -> Callable[[], object] | None:
        """Apply an entry by these steps, then call `done`; see StateMachine.apply."""
        if self._turn.overdue():
            return self._apply_later(steps, done)
        for _ in steps:
            if self._turn.overdue():
                return self._apply_later(steps, done)
        done()
        return None

    def _apply_later(self, steps: Iterator[None], done: Callable[[], None]) -> Callable[[], object]:
        self._left, self._done = steps, done
        self._steps = Steps(self._turn, lambda: steps, self._failed, self._end)
        self._steps.begin_later()
        return self._complete

    def _complete(self) -> None:
        for _ in self._left:
            pass
        if self._steps is not None:
            self._steps.stop()
        self._end()

    def _end(self) -> None:
        done, host = self._done, self._host
        self.stop()
        if host is not None:
            done()
            host.group.entry_applied()

    def _failed(self, error: Exception) -> None:
        host = self._host
        self.stop()
        if host is not None:
            host.group.failed(error)

    def stop(self) -> None:
        """Do nothing more of it."""
        if self._steps is not None:
            self._steps.stop()
        self._steps, self._left, self._done = None, iter(()), _nothing

    def let_go(self) -> None:
        self.stop()
        self._host = None


def _nothing() -> None: ...


__all__ = ["EntrySteps"]
