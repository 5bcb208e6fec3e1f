"""Connections that have not logged in yet: how many there may be, and of whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp_server.config import Config

#: Time that a connection has to itself before another one of its address may take its place, s.
GRACE_S = 1.0


def _nothing() -> None:
    pass


class HalfOpen:
    """One connection until it has logged in, or never will."""

    __slots__ = ("began", "checking", "drop", "gone", "source")

    def __init__(self, source: str, began: float) -> None:
        self.source = source
        self.began = began
        #: Its password is being checked, or waits for that: it has done its part.
        self.checking = False
        #: Ends the connection.
        self.drop: Callable[[], None] = _nothing
        #: The place was given back, or has gone to another connection.
        self.gone = False


class HalfOpens:
    """All of the node. Whoever holds many open and does not log in gives way.

    At the limit of an address its oldest one gives way to its newest; at the limit of the node, the oldest of the
    address with the most. So silent connections keep nobody out, neither from other addresses nor behind one proxy.
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

    def admit(self, source: str, now: float) -> HalfOpen | None:
        """Return a place for a new connection; None if there is none for its address."""
        mine = self._by_source.get(source, {})
        if len(mine) >= self._config.half_open_per_address_max:
            if not self._give_way(mine, now):
                return None
        elif self._count >= self._config.half_open_max:
            busiest = max(self._by_source.values(), key=len)
            fair = len(busiest) > len(mine) + 1
            if not self._give_way(busiest if fair else mine, now, fair=fair):
                return None
        place = HalfOpen(source, now)
        self._by_source.setdefault(source, {})[place] = None
        self._count += 1
        return place

    def _give_way(self, places: dict[HalfOpen, None], now: float, *, fair: bool = False) -> bool:
        """End one of these connections. If it is not `fair`, one that could have logged in, and has not."""
        late = (place for place in places if not place.checking and (fair or now - place.began > GRACE_S))
        victim = next(late, next(iter(places)) if fair else None)
        if victim is None:
            return False
        drop = victim.drop
        self.remove(victim)
        drop()
        return True

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
