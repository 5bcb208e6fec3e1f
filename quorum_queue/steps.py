"""Work that takes many steps, such as a loop over all queues: as many in each turn as it has time for.

    in_steps(turn, close_all(), "connections could not be closed")

The steps are those of an iterator: each is short, and whatever they refer to may have ended since the step
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quorum_queue.boundary import Fatal
from quorum_queue.ports import Turn

#: What follows when a step raises: a function that is called with the error, or the text with which the node
#: ends.
Failure = str | Callable[[Exception], object]


class Steps:
    """One piece of such work. A piece of work that is to be done again while it is under way is done once
    more afterwards (`again`).
    """

    __slots__ = ("_again", "_done", "_enough", "_failure", "_make", "_steps", "_turn")

    def __init__(
        self,
        turn: Turn,
        make: Callable[[], Iterator[object]],
        failure: Failure,
        done: Callable[[], object] | None = None,
        *,
        enough: Callable[[], bool] | None = None,
    ) -> None:
        """`make` returns an iterator, whose steps do the work once. `done` is called when it is done.
        `enough` is asked after each step whether to leave the others for later; without it, whether the turn
        is overdue.
        """
        self._turn = turn
        self._make = make
        self._failure = failure
        self._done = done
        self._enough = enough
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

    def go_on(self) -> None:
        """Do the work, unless it is under way: its steps also do what has been added since."""
        if self._steps is None:
            self.begin()

    def begin_later(self) -> None:
        """Begin in a later turn, unless the work is under way."""
        if self._steps is None:
            self._steps = self._make()
            self._turn.later(self, self._go_on)

    def stop(self) -> None:
        """Do nothing more of it."""
        self._steps = None
        self._again = False

    def _go_on(self) -> None:
        steps = self._steps
        if steps is None:
            return
        enough = self._enough or self._turn.overdue
        try:
            for _ in steps:
                if enough():
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
        failure = self._failure
        if isinstance(failure, str):
            raise Fatal(f"{failure}: {error!r}") from error
        failure(error)


def in_steps(
    turn: Turn,
    steps: Iterator[object],
    failure: Failure,
    done: Callable[[], object] | None = None,
    *,
    enough: Callable[[], bool] | None = None,
) -> None:
    """Do these steps once, as many as the turn has time for, the rest in later turns; see Steps."""
    Steps(turn, lambda: steps, failure, done, enough=enough).begin()


def in_later_steps(
    turn: Turn, steps: Iterator[object], failure: Failure, done: Callable[[], object] | None = None
) -> None:
    """Do these steps once, beginning in a later turn: this one may serve other clients, who would wait."""
    Steps(turn, lambda: steps, failure, done).begin_later()


__all__ = ["Failure", "Steps", "in_later_steps", "in_steps"]
