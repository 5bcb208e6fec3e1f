"""Finds the policies of queues and exchanges. Policies are stored as parameters; see declared.policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from amqp_server.broker.declared.parameters import OPERATOR_POLICY, POLICY, ParameterRecord, Parameters
from amqp_server.broker.declared.policy import (
    EXCHANGE,
    KINDS,
    NO_POLICY,
    AppliedPolicies,
    InvalidPolicy,
    Policy,
    policy_of,
    policy_value,
)
from amqp_server.broker.declared.policy_ranking import Ranked, Ranking
from amqp_server.broker.declared.queue_types import QueueType
from amqp_server.broker.pattern import InvalidPattern, Matches, compile_policy
from amqp_server.broker.topology.policy_changes import Followers, PolicyChanges
from amqp_server.turn import Turn


class Policies:
    """The node has one."""

    def __init__(
        self,
        turn: Turn,
        vhosts: Mapping[str, Followers],
        parameters: Parameters,
        *,
        pattern_bytes_max: int,
        match_ms: int,
        match_total_ms: int,
    ) -> None:
        self._vhosts = vhosts
        self._parameters = parameters
        self._pattern_bytes_max = pattern_bytes_max
        self._match_ms = match_ms
        self._match_total_ms = match_total_ms
        #: Rankings by vhost and component.
        self._rankings: dict[tuple[str, str], Ranking] = {}
        self._changes = PolicyChanges(turn, vhosts)

    def compile(self, pattern: str) -> Matches:
        """Compile the pattern of a policy. Raises InvalidPolicy."""
        try:
            return compile_policy(pattern, self._pattern_bytes_max, self._match_ms, self._match_total_ms)
        except InvalidPattern as failure:
            raise InvalidPolicy(f"pattern should be regular expression but is invalid: {failure}") from None

    def prepare(
        self,
        vhost: str,
        name: str,
        *,
        pattern: object,
        definition: object,
        priority: object,
        apply_to: object,
        operator: bool,
    ) -> ParameterRecord:
        """Check a new policy. Raises ParameterRefused."""
        value = policy_value(pattern, definition, priority, apply_to, operator=operator)
        self.compile(value["pattern"])
        return self._parameters.prepare(vhost, OPERATOR_POLICY if operator else POLICY, name, value)

    def of_queue(self, vhost: str, name: str, type: QueueType) -> AppliedPolicies:
        return self._applied(vhost, name, type.name)

    def of_exchange(self, vhost: str, name: str) -> AppliedPolicies:
        return self._applied(vhost, name, EXCHANGE)

    def _applied(self, vhost: str, name: str, kind: str) -> AppliedPolicies:
        policy = self._best(vhost, POLICY, name, kind)
        operator_policy = self._best(vhost, OPERATOR_POLICY, name, kind)
        if policy is None and operator_policy is None:
            return NO_POLICY
        return AppliedPolicies(policy, operator_policy)

    def _best(self, vhost: str, component: str, name: str, kind: str) -> Policy | None:
        found = self._ranking(vhost, component).first(kind, name)
        return None if found is None else found.policy

    def _ranking(self, vhost: str, component: str) -> Ranking:
        ranking = self._rankings.get((vhost, component))
        if ranking is None:
            ranking = self._rankings[vhost, component] = Ranking()
            for record in self._parameters.of(vhost, component):
                ranking.put(self._ranked(record))
        return ranking

    def _ranked(self, record: ParameterRecord) -> Ranked:
        policy = policy_of(record)
        return Ranked(
            policy, self._matches(policy.pattern), [kind for kind in KINDS if policy.supports(kind)]
        )

    def _matches(self, pattern: str) -> Matches:
        try:
            return self.compile(pattern)
        except InvalidPolicy:
            # The policy was set on a node with other limits.
            return _nothing

    # -- changes ---------------------------------------------------------------------------------------------

    def changed(self, vhost: str, component: str, name: str) -> None:
        """A policy was set or cleared: the queues and exchanges that it matches, or matched before, follow,
        some in each turn.
        """
        if component not in (POLICY, OPERATOR_POLICY):
            return
        ranking = self._rankings.get((vhost, component))
        before = None if ranking is None else ranking.take(name)
        record = self._parameters.get(vhost, component, name)
        after = None if record is None else self._ranked(record)
        if ranking is not None and after is not None:
            ranking.put(after)
        if vhost in self._vhosts:
            self._changes.add(vhost, [each for each in (before, after) if each is not None])
        elif record is None and ranking is not None and not len(ranking):
            # The vhost is gone.
            del self._rankings[vhost, component]

    def when_applied(self, done: Callable[[], None]) -> None:
        """Call `done` when all queues and exchanges of this node follow the current policies."""
        self._changes.when_applied(done)


def _nothing(name: str) -> bool:
    return False
