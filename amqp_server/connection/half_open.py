"""Connections that have not logged in yet: how many there may be, and of whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp_server.config import Config


def _nothing() -> None:
    pass


class HalfOpen:
    """One connection until it has logged in, or never will."""

    __slots__ = ("drop", "gone", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        #: Ends the connection.
        self.drop: Callable[[], None] = _nothing
        #: The place was given back, or has gone to another connection.
        self.gone = False


class HalfOpens:
    """All of the node. When no more are allowed, the address with the most of them gives way to one with fewer.

    So whoever holds many open, from one address or a few, does not shut out the others.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        #: By address, the oldest first.
        self._by_source: dict[str, dict[HalfOpen, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count_of(self, source: str) -> int:
        return len(self._by_source.get(source, ()))

    def admit(self, source: str) -> HalfOpen | None:
        """Return a place for a new connection; None if there is none for its address."""
        mine = self.count_of(source)
        if mine >= self._config.half_open_per_address_max:
            return None
        if self._count >= self._config.half_open_max:
            busiest = max(self._by_source.values(), key=len)
            if len(busiest) <= mine + 1:
                return None
            oldest = next(iter(busiest))
            drop = oldest.drop
            self.remove(oldest)
            drop()
        place = HalfOpen(source)
        self._by_source.setdefault(source, {})[place] = None
        self._count += 1
        return place

    def remove(self, place: HalfOpen) -> None:
        """Give the place back. A second time does nothing."""
        # It holds the connection, which holds the place.
        place.drop = _nothing
        place.gone = True
        places = self._by_source.get(place.source)
        if places is None or place not in places:
            return
        del places[place]
        self._count -= 1
        if not places:
            del self._by_source[place.source]
