"""The policies of a vhost in the order in which they are tried, each compiled once.

There may be thousands of policies, and a queue that none of them matches tries all. So policies are sorted by
kind when they are set, and a change of one leaves the others as they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from amqp_server.broker.declared.policy import Policy
from amqp_server.broker.pattern import Matches


class Ranked:
    """A policy with its compiled pattern."""

    __slots__ = ("kinds", "matches", "order", "policy")

    def __init__(self, policy: Policy, matches: Matches, kinds: Iterable[str]) -> None:
        """`kinds` are the types of queues that the policy applies to, or exchanges."""
        self.policy = policy
        self.matches = matches
        self.kinds = frozenset(kinds)
        #: Sort key: the highest priority first, then the name, so that no two are equal.
        self.order = (-policy.priority, policy.name)


class Ranking:
    """The policies of one component of a vhost."""

    __slots__ = ("_all", "_kinds")

    def __init__(self) -> None:
        self._all: dict[str, Ranked] = {}
        #: Policies by kind, sorted.
        self._kinds: dict[str, list[Ranked]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def put(self, ranked: Ranked) -> None:
        """Add a policy. There must be none with its name."""
        self._all[ranked.policy.name] = ranked
        for kind in sorted(ranked.kinds):
            found = self._kinds.setdefault(kind, [])
            found.insert(_place(found, ranked), ranked)

    def take(self, name: str) -> Ranked | None:
        """Remove a policy and return it."""
        ranked = self._all.pop(name, None)
        if ranked is not None:
            for kind in sorted(ranked.kinds):
                found = self._kinds[kind]
                del found[_place(found, ranked)]
        return ranked

    def first(self, kind: str, name: str) -> Ranked | None:
        """Return the first policy that matches a name."""
        for ranked in self._kinds.get(kind, ()):
            if ranked.matches(name):
                return ranked
        return None


def _place(found: list[Ranked], ranked: Ranked) -> int:
    return bisect_left(found, ranked.order, key=_order)


def _order(ranked: Ranked) -> tuple[int, str]:
    return ranked.order
