"""A turn of a node that is nothing but a commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from persistence.commit import Commit


class OwnTurns:
    """Runs calls as turns of the commit that it has."""

    commit: Commit

    def run(self, call: Callable[..., object], *arguments: Any) -> None:
        self.commit.turn_begins()
        try:
            call(*arguments)
        finally:
            self.commit.turn_ends()
