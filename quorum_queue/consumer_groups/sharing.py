"""Distributes partitions over members: evenly, and with as few moves as possible."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

P = TypeVar("P", bound=Hashable)
M = TypeVar("M", bound=Hashable)


def share(partitions: Sequence[P], members: Sequence[M], owners: Mapping[P, M]) -> dict[P, M]:
    """Return the member for each partition; empty if there are no members.

    The numbers of partitions differ by at most one. Members with most partitions keep the larger shares, so
    that of all even assignments none moves fewer partitions.
    """
    if not members:
        return {}
    owned: dict[M, list[P]] = {member: [] for member in members}
    for partition in partitions:
        owner = owners.get(partition)
        if owner is not None and owner in owned:
            owned[owner].append(partition)
    least, larger = divmod(len(partitions), len(members))
    # Stable: among members with the same number, the one that came first keeps more.
    by_count = sorted(members, key=lambda member: -len(owned[member]))
    room: dict[M, int] = {}
    shared: dict[P, M] = {}
    for place, member in enumerate(by_count):
        quota = least + 1 if place < larger else least
        for partition in owned[member][:quota]:
            shared[partition] = member
        room[member] = quota - min(quota, len(owned[member]))
    free = iter([partition for partition in partitions if partition not in shared])
    for member in members:
        for _ in range(room[member]):
            shared[next(free)] = member
    return shared


__all__ = ["share"]
