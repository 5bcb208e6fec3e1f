"""Makes queues and exchanges follow policies that were set or cleared, some of them in each turn.

Only objects that a changed policy matches, or matched before, look for their policies again; the others keep
theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from amqp_server.broker.declared.policy import EXCHANGE
from amqp_server.broker.declared.policy_ranking import Ranked
from amqp_server.broker.declared.queue_types import QueueType
from amqp_server.broker.pattern import Matches
from amqp_server.turn import Turn
from exchanges.router import Router
from quorum_queue.steps import Steps


class Follower(Protocol):
    """A queue."""

    name: str
    type: QueueType
    deleted: bool

    def apply_policies(self) -> None:
        """Look for its policies again."""

    def failed(self, error: Exception) -> None:
        """See amqp_server.turn.Unit."""


class Followers(Protocol):
    """A vhost: its exchanges and queues follow the policies."""

    router: Router

    @property
    def queues(self) -> Mapping[str, Follower]: ...

    def apply_exchange_policies(self, exchange: str) -> None: ...


class _Round:
    """A walk over a vhost for some changes."""

    __slots__ = ("begun", "changes", "vhost", "waiting")

    def __init__(self, vhost: str) -> None:
        self.vhost = vhost
        #: New and old patterns of the changed policies, by kind of object.
        self.changes: dict[str, list[Matches]] = {}
        #: Until the round begins, later changes are included.
        self.begun = False
        #: Callbacks that wait for its end.
        self.waiting: list[Callable[[], None]] = []

    def add(self, ranked: Ranked) -> None:
        for kind in sorted(ranked.kinds):
            self.changes.setdefault(kind, []).append(ranked.matches)

    def touches(self, kind: str, name: str) -> bool:
        return any(matches(name) for matches in self.changes.get(kind, ()))


class PolicyChanges:
    """See the head of this file. There is one round in progress, and at most one for each vhost waiting
    behind it.
    """

    __slots__ = ("_rounds", "_turn", "_vhosts", "_walk")

    def __init__(self, turn: Turn, vhosts: Mapping[str, Followers]) -> None:
        self._turn = turn
        self._vhosts = vhosts
        self._rounds: deque[_Round] = deque()
        self._walk = Steps(turn, self._walk_rounds, "policies could not be applied")

    def add(self, vhost: str, changed: list[Ranked]) -> None:
        """Add policies that were set, with their former versions."""
        found = [each for each in self._rounds if each.vhost == vhost and not each.begun]
        if not found:
            found.append(_Round(vhost))
            self._rounds.append(found[0])
        for ranked in changed:
            found[0].add(ranked)
        # Each change is a request with its own turn; a round in progress continues in its own turns.
        self._walk.go_on()

    def when_applied(self, done: Callable[[], None]) -> None:
        """Call `done` at the end of all current rounds."""
        if self._rounds:
            self._rounds[-1].waiting.append(done)
        else:
            done()

    def _walk_rounds(self) -> Iterator[None]:
        while self._rounds:
            first = self._rounds[0]
            first.begun = True
            yield from self._steps(first)
            self._rounds.popleft()
            for done in first.waiting:
                done()

    def _steps(self, round: _Round) -> Iterator[None]:
        """Look at the existing exchanges and queues, one in each step."""
        vhost = self._vhosts.get(round.vhost)
        if vhost is None:
            return
        if EXCHANGE in round.changes:
            for exchange in [each.name for each in vhost.router.exchanges()]:
                if round.touches(EXCHANGE, exchange):
                    vhost.apply_exchange_policies(exchange)
                yield
        for queue in list(vhost.queues.values()):
            if round.touches(queue.type.name, queue.name) and not queue.deleted:
                self._turn.contain(queue, queue.apply_policies)
            yield
