"""Commits synchronously, when no loop runs yet: first set-up, tools, tests."""

from persistence.commits.stepped import SteppedCommit
from persistence.ports import Store


def flush(store: Store) -> None:
    """Make all submissions durable, in this thread, and call the waiting done()s."""
    steps = SteppedCommit(store)
    try:
        while steps.begin():
            steps.end()
    finally:
        steps.close()
