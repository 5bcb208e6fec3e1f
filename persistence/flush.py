"""Committing on the spot, where there is no loop yet: first set-up, tools, tests."""

from persistence.ports import Store
from persistence.stepped import SteppedCommit


def flush(store: Store) -> None:
    """Make all that was submitted durable, in this thread, and call the waiting done()s."""
    steps = SteppedCommit(store)
    while steps.begin():
        steps.end()
