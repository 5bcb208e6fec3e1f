"""What queues answer to the publishes of a transaction's commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final


class CommitOrigin:
    """The origin of a transaction's publishes, like Confirms; but only refusals matter to it."""

    __slots__ = ("_answers", "_numbered_count", "partial")
    #: See broker.questions.cancels.
    of_commit: Final = True

    def __init__(self) -> None:
        self._numbered_count = 0
        #: True if queues have refused messages of the current commit (x-overflow=reject-publish), or acks
        #: came too late.
        self.partial = False
        self._answers: CommitAnswers | None = None

    def number(self, count: int) -> int:
        first = self._numbered_count + 1
        self._numbered_count += count
        return first

    def confirmed(self, first: int, last: int) -> None:
        pass

    def refused(self, first: int, last: int) -> None:
        self.partial = True

    def gone(self, first: int, last: int) -> None:
        """What went to a queue that is deleted behind the commit is lost with it."""

    def await_answers(self, count: int) -> CommitAnswers:
        """Return the origin of this many messages; the commit waits for their answers."""
        if self._answers is None:
            self._answers = CommitAnswers(self)
        self._answers.expect(count)
        return self._answers

    def take_answers(self) -> CommitAnswers | None:
        """Return the answers that the commit waits for, if any; all its publishes have been handed over."""
        answers, self._answers = self._answers, None
        return answers


class CommitAnswers:
    """Origin of a commit's publishes that chose their confirm level: commit-ok waits for their answers."""

    __slots__ = ("_left", "_origin", "_then")
    of_commit: Final = True

    def __init__(self, origin: CommitOrigin) -> None:
        self._origin = origin
        self._left = 0
        self._then: Callable[[], None] | None = None

    def expect(self, count: int) -> None:
        """Expect this many more answers, one for each message."""
        self._left += count

    def confirmed(self, first: int, last: int) -> None:
        self._left -= last - first + 1
        if not self._left and self._then is not None:
            then, self._then = self._then, None
            then()

    def refused(self, first: int, last: int) -> None:
        self._origin.refused(first, last)
        self.confirmed(first, last)

    def gone(self, first: int, last: int) -> None:
        self.confirmed(first, last)

    def when_complete(self, then: Callable[[], None]) -> None:
        """Call `then` when all answers have arrived; all publishes have been handed over."""
        if self._left:
            self._then = then
        else:
            then()


__all__ = ["CommitAnswers", "CommitOrigin"]
