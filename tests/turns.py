"""Turns for tests of code that has turns: each ends as soon as anything is scheduled."""

from __future__ import annotations

from amqp_server.turn import Commits, NoPeers, Peers, Turn
from quorum_queue.boundary import Boundary, Unit


class Violation(BaseException):
    """A check found a state that must never occur. No boundary in the product may take it for a failure of
    one queue.
    """


class Planted(Exception):
    """A defect that a test or a simulation has planted: only the part that it hits may fail."""


#: What may be a failure of one queue or session; anything else is a violation.
expected: tuple[type[Exception], ...] = (Planted,)


def strict_boundary() -> Boundary:
    """Return a boundary that takes only planted defects for a failure of one queue or session."""

    def seen(unit: Unit, error: Exception) -> None:
        if not isinstance(error, expected):
            raise Violation(f"{type(unit).__name__} raised {error!r}") from error

    return Boundary(seen)


def at_once(commits: Commits, peers: Peers | None = None) -> Turn:
    """Return a turn that needs no task: whatever is scheduled outside of a turn is done before the call
    returns.
    """
    turn = Turn(commits, peers or NoPeers(), lambda: turn.end())
    return turn


def by_hand(commits: Commits, peers: Peers | None = None) -> Turn:
    """Return a turn that happens only when the test says so (`turn.end()`)."""
    return Turn(commits, peers or NoPeers(), lambda: None)
