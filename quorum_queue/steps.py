"""Work that takes many steps, such as a loop over all queues: as many in each turn as it has time for.

    self._looks = Steps(turn, self._look_at_all, "the groups could not be looked at")
    self._looks.begin()

The steps are those of an iterator: each is short, and whatever they refer to may have ended since the step
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quorum_queue.boundary import Fatal
from quorum_queue.ports import Turn


class Steps:
    """One piece of such work. A piece of work that is to be done again while it is under way is done once
    more afterwards (`again`).
    """

    __slots__ = ("_again", "_done", "_failure", "_make", "_steps", "_turn")

    def __init__(
        self,
        turn: Turn,
        make: Callable[[], Iterator[object]],
        failure: str,
        done: Callable[[], object] | None = None,
    ) -> None:
        """`make` returns an iterator, whose steps do the work once. `done` is called when it is done. If a
        step raises, the node ends with the text `failure`.
        """
        self._turn = turn
        self._make = make
        self._failure = failure
        self._done = done
        self._steps: Iterator[object] | None = None
        self._again = False

    @property
    def under_way(self) -> bool:
        return self._steps is not None

    def begin(self) -> None:
        """Do the work, as much as the turn has time for, the rest in later turns. If it is under way, do it
        again afterwards.
        """
        if self._steps is not None:
            self._again = True
            return
        self._steps = self._make()
        self._go_on()

    def stop(self) -> None:
        """Do nothing more of it."""
        self._steps = None
        self._again = False

    def _go_on(self) -> None:
        steps = self._steps
        if steps is None:
            return
        try:
            for _ in steps:
                if self._turn.overdue():
                    self._turn.later(self, self._go_on)
                    return
                if self._steps is not steps:
                    # A step has stopped the work.
                    return
        except BaseException:
            self._steps = None
            raise
        self._steps = None
        if self._done is not None:
            self._done()
        if self._again:
            self._again = False
            self.begin()

    def failed(self, error: Exception) -> None:
        """See quorum_queue.boundary.Unit."""
        raise Fatal(f"{self._failure}: {error!r}") from error


__all__ = ["Steps"]
