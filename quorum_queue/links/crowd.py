"""Connections that have not proved anything yet: so many at most, and each address with its share."""

from __future__ import annotations

from quorum_queue.links.ports import Wire


class Crowd:
    """When it is full, the oldest connection of the address with most of them makes room: so connections of
    one address do not push out those of another.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        #: By address, the oldest first.
        self._by_source: dict[str, dict[Wire, None]] = {}
        self._source: dict[Wire, str] = {}

    def __len__(self) -> int:
        return len(self._source)

    def __contains__(self, wire: object) -> bool:
        return wire in self._source

    def enter(self, wire: Wire, source: str) -> Wire | None:
        """Add a connection; return the one that has to go for it."""
        gone = None
        if len(self) >= self._most:
            own = len(self._by_source.get(source, ()))
            busiest = max(self._by_source, key=lambda each: len(self._by_source[each]))
            if own and len(self._by_source[busiest]) <= own + 1:
                busiest = source
            gone = next(iter(self._by_source[busiest]))
            self.leave(gone)
        self._by_source.setdefault(source, {})[wire] = None
        self._source[wire] = source
        return gone

    def leave(self, wire: Wire) -> None:
        source = self._source.pop(wire, None)
        if source is None:
            return
        wires = self._by_source[source]
        del wires[wire]
        if not wires:
            del self._by_source[source]
