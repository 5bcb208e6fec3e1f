"""What a method may have to wait for before it changes anything."""

from __future__ import annotations

from collections.abc import Callable


class Awaited(Exception):
    """Something is not known yet. The caller waits, and then begins the method again."""

    def begin(self, done: Callable[[], None]) -> None:
        """Find it out; `done` is called when the method should begin again, never before this call
        returns.
        """
        raise NotImplementedError

    def settle(self) -> None:
        """The waiting method is done, or has failed."""


__all__ = ["Awaited"]
