"""Failure domains: each node announces its zone in the handshake of its links.

Members of a queue are chosen from different zones if there are enough. A node without a zone, or one without
a link to this node since its start, counts as a separate zone. Two workers of one machine are never members
of one queue: a majority could fail at the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from amqp_server.cluster.membership.machines import machine_of

#: How a node announces its zone among its features.
PREFIX = "zone/"


def features(zone: str) -> tuple[str, ...]:
    """Return the features that a node in this zone announces."""
    return (PREFIX + zone,) if zone else ()


class Zones:
    def __init__(self, node: str = "", zone: str = "") -> None:
        self._zones = {node: zone}

    def heard(self, node: str, features: Iterable[str]) -> None:
        """A link with a node is up; these are its features."""
        self._zones[node] = next((each[len(PREFIX) :] for each in features if each.startswith(PREFIX)), "")

    def of(self, node: str) -> str:
        """Return the zone of a node; empty if it has none, or it is not known here."""
        return self._zones.get(node, "")

    def shared(self, nodes: Collection[str]) -> int:
        """Return how many of these nodes share a zone with an earlier one."""
        return len(nodes) - len({self._place(node) for node in nodes})

    def crowd(self, node: str, others: Iterable[str]) -> int:
        """Return how many of the others are in the same zone as this node."""
        place = self._place(node)
        return sum(self._place(other) == place for other in others)

    def choose(self, first: str, ranked: Sequence[tuple[object, str]], count: int) -> tuple[str, ...]:
        """Choose `count` nodes, including `first`, or fewer if there are not as many machines.

        `ranked` are candidates with their ranks, best first: a worse rank is used only when the better ones
        are used up; within a rank the zone decides.
        """
        chosen = [first]
        left = _elsewhere(ranked, first)
        while left and len(chosen) < count:
            rank = left[0][0]
            best = min(
                (each for each in left if each[0] == rank), key=lambda each: self.crowd(each[1], chosen)
            )
            left = _elsewhere(left, best[1])
            chosen.append(best[1])
        return tuple(chosen)

    def _place(self, node: str) -> tuple[bool, str]:
        zone = self.of(node)
        return (True, zone) if zone else (False, machine_of(node))


def _elsewhere(ranked: Sequence[tuple[object, str]], node: str) -> list[tuple[object, str]]:
    """Return the candidates that are on another machine than this node."""
    machine = machine_of(node)
    return [each for each in ranked if machine_of(each[1]) != machine]
