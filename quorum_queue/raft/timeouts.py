"""Timeouts after which members campaign. They differ by member and by try, but are computed, not random."""

from __future__ import annotations

from typing import Final

from quorum_queue.raft.options import Options

_MASK: Final = (1 << 64) - 1


def mix(*numbers: int) -> int:
    """Return 64 well-mixed bits (the finaliser of SplitMix64 over each number in turn)."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ number) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def election_timeout(
    options: Options, node: str, voters: tuple[str, ...], group: int, term: int, attempt: int
) -> int:
    """Return ticks from one to two election timeouts; members at the same try get different ones."""
    count = len(voters)
    place = (voters.index(node) + mix(group, term + attempt)) % count
    width = max(1, options.election_ticks // count)
    return options.election_ticks + place * width + mix(group, term, attempt, place) % width


def lost_timeout(
    options: Options, node: str, voters: tuple[str, ...], lost: str, group: int, term: int
) -> int:
    """Return the ticks to wait after the leader's node was lost: one member campaigns first, the others give
    it time.
    """
    survivors = [name for name in voters if name != lost]
    place = (survivors.index(node) + mix(group, term)) % len(survivors)
    spacing = max(1, options.lost_ticks_jitter // max(1, len(survivors) - 1))
    return options.lost_ticks_min + place * spacing
