"""Shares partitions out among members: evenly, and with as few moves as possible."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

P = TypeVar("P", bound=Hashable)
M = TypeVar("M", bound=Hashable)


def share(partitions: Sequence[P], members: Sequence[M], owners: Mapping[P, M]) -> dict[P, M]:
    """Return which member each partition goes to; nothing if there are no members.

    Numbers of partitions differ by one at most. Those who have most keep the larger shares, so that nothing moves that
    need not: of all even ways to share, none moves fewer.
    """
    if not members:
        return {}
    owned: dict[M, list[P]] = {member: [] for member in members}
    for partition in partitions:
        owner = owners.get(partition)
        if owner is not None and owner in owned:
            owned[owner].append(partition)
    least, larger = divmod(len(partitions), len(members))
    # Stable: among those who have the same number, who came first keeps more.
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
