"""Applied entries that stay in a log below its snapshot, because the bodies of queued messages are in them.

Only quorum queues have such: streams have their messages in segments, the topology and groups have none.
"""

from __future__ import annotations

from typing import Final, Protocol


class KeptEntries(Protocol):
    def kept(self, low: int) -> list[range]:
        """Indexes, from `low` on, of the applied entries whose bodies are still needed, in order."""

    def kept_in(self, state: bytes) -> list[range]:
        """The same as `kept` of a machine restored from this state, for which `fill` has called back."""

    def holds(self, index: int) -> bool:
        """Return whether the body of a message in this entry is still needed."""

    def released(self) -> list[range]:
        """Indexes of the entries that are no longer needed since the last call. There may be others among
        them that are not needed either.
        """

    def lose_bodies(self, indexes: list[int]) -> None:
        """No member can read these applied entries any more: give up their bodies."""


class _Nothing:
    """Of a machine whose snapshot has everything."""

    def kept(self, low: int) -> list[range]:
        return []

    def kept_in(self, state: bytes) -> list[range]:
        return []

    def holds(self, index: int) -> bool:
        return False

    def released(self) -> list[range]:
        return []

    def lose_bodies(self, indexes: list[int]) -> None:
        """There are none."""


NOTHING_KEPT: Final[KeptEntries] = _Nothing()
