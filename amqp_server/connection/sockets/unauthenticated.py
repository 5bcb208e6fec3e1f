"""Limits the connections that have not logged in yet, in total and per address."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from amqp_server.config import Config

#: Time before another connection of the same address may take a connection's place, s.
GRACE_S = 1.0


def _nothing() -> None:
    pass


class HalfOpen:
    """One connection until its login has succeeded or failed."""

    __slots__ = ("began", "checking", "drop", "gone", "source")

    def __init__(self, source: str, began: float) -> None:
        self.source = source
        self.began = began
        #: True while its password is checked, or waits for the check: the client has done its part.
        self.checking = False
        #: Ends the connection.
        self.drop: Callable[[], None] = _nothing
        #: True if the place was given back, or another connection has taken it.
        self.gone = False


class OtherHalfOpens(Protocol):
    """The half-open connections of the node's other processes."""

    def note_half_open(self, count: int, source: str, of_source: int) -> None:
        """This process has so many, and so many of this address."""

    def half_open(self) -> int: ...

    def half_open_of(self, source: str) -> int: ...


class HalfOpens:
    """All half-open connections of the node. At the limit of an address, its oldest connection is closed for
    its newest; at the limit of the node, the oldest connection of the address with most of them is closed.

    So silent connections cannot block others, neither from other addresses nor behind the same proxy.

    If the node is several processes, each closes its own only. One that has none to close lets the new
    connection in: others have all the places.
    """

    def __init__(self, config: Config, others: OtherHalfOpens) -> None:
        self._config = config
        self._others = others
        #: Half-open connections by address, the oldest first.
        self._by_source: dict[str, dict[HalfOpen, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count_of(self, source: str) -> int:
        return len(self._by_source.get(source, ()))

    def admit(self, source: str, now: float) -> HalfOpen | None:
        """Return a place for a new connection; None if there is none for its address."""
        mine, others = self._by_source.get(source, {}), self._others
        if len(mine) + others.half_open_of(source) >= self._config.half_open_per_address_max:
            if mine and not self._give_way(mine, now):
                return None
        elif self._count and self._count + others.half_open() >= self._config.half_open_max:
            busiest = max(self._by_source.values(), key=len)
            fair = len(busiest) > len(mine) + 1
            if not self._give_way(busiest if fair else mine, now, fair=fair):
                return None
        place = HalfOpen(source, now)
        places = self._by_source.setdefault(source, {})
        places[place] = None
        self._count += 1
        others.note_half_open(self._count, source, len(places))
        return place

    def _give_way(self, places: dict[HalfOpen, None], now: float, *, fair: bool = False) -> bool:
        """End one of these connections. Unless `fair`, only end one that had time to log in and did not."""
        late = (place for place in places if not place.checking and (fair or now - place.began > GRACE_S))
        victim = next(late, next(iter(places)) if fair else None)
        if victim is None:
            return False
        drop = victim.drop
        self.remove(victim)
        drop()
        return True

    def remove(self, place: HalfOpen) -> None:
        """Give the place back. A second call does nothing."""
        # Break the cycle: this function holds the connection, which holds the place.
        place.drop = _nothing
        place.gone = True
        places = self._by_source.get(place.source)
        if places is None or place not in places:
            return
        del places[place]
        self._count -= 1
        self._others.note_half_open(self._count, place.source, len(places))
        if not places:
            del self._by_source[place.source]
