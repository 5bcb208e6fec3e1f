"""Turns of a node that consists of a commit only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from persistence.commits.commit import Commit


class OwnTurns:
    """Runs calls as turns of its commit."""

    commit: Commit

    def run(self, call: Callable[..., object], *arguments: Any) -> None:
        self.commit.turn_begins()
        try:
            call(*arguments)
        finally:
            self.commit.turn_ends()
