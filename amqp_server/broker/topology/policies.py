"""Policies and operator policies: settings for all queues and exchanges of a vhost whose name matches a
pattern.

A queue has the matching policy with the highest priority, and also one operator policy. Both together are its
effective policy; of two limits the smaller one applies. The queue's own arguments are joined with it as in
RabbitMQ: see `joined`. The result has the form of arguments again, from which the settings of its machine are
derived as from a declaration. The settings reach the machine by `configure`, which is an entry in the log of
a replicated queue, so all members change at the same entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from amqp_server.broker.declared.arguments import (
    DEDUPLICATION_COUNT_MAX,
    SEGMENT_BYTES_MAX,
    SHARED_MAX,
    TIME_MS_MAX,
    QueueArguments,
)
from amqp_server.broker.declared.parameters import (
    OPERATOR_POLICY,
    POLICY,
    ParameterRecord,
    ParameterRefused,
    Parameters,
)
from amqp_server.broker.declared.policy_ranking import Ranked, Ranking
from amqp_server.broker.declared.queue_types import QUEUE_TYPES, QueueType
from amqp_server.broker.pattern import InvalidPattern, Matches, compile_policy
from amqp_server.broker.topology.policy_changes import EXCHANGE, PolicyChanges
from amqp_server.config import age_ms
from amqp_server.wire.frames import SHORT_STRING_MAX
from exchanges.field import erlang_term

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker

#: No policy applies to consumer groups.
QUEUES = frozenset(name for name, each in QUEUE_TYPES.items() if not each.is_group)
#: Values of apply-to, and the types of queues, or exchanges, that they mean. The last three came with
#: RabbitMQ 3.12.
APPLIES: Mapping[str, frozenset[str]] = {
    "queues": QUEUES,
    "exchanges": frozenset({"exchange"}),
    "all": QUEUES | {"exchange"},
    "classic_queues": frozenset({"classic"}),
    "quorum_queues": frozenset({"quorum"}),
    "streams": frozenset({"stream"}),
}
#: All kinds of objects.
KINDS = (*sorted(QUEUES), EXCHANGE)
PRIORITY_MAX = (1 << 31) - 1

Definition = Mapping[str, Any]
NOTHING: Definition = {}


class InvalidPolicy(ParameterRefused):
    """An invalid policy; the text has the reason, in RabbitMQ's words."""


# -- what may stand in a definition --------------------------------------------------------------------------


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _within(low: int, high: int) -> Callable[[object], bool]:
    return lambda value: _natural(value) and low <= value <= high  # type: ignore[operator]


def _text(value: object) -> bool:
    return isinstance(value, str) and len(value.encode()) <= SHORT_STRING_MAX


def _one_of(*choices: object) -> Callable[[object], bool]:
    return lambda value: not isinstance(value, bool) and value in choices


def _age(value: object) -> bool:
    try:
        age_ms(value if isinstance(value, str) else "")
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class _Key:
    #: RabbitMQ's word for the type of its value.
    title: str
    check: Callable[[object], bool]
    #: Field of QueueArguments; empty if there is none.
    field: str = ""
    operators: bool = False
    #: Types of queues without this setting: no policy with this key applies to them.
    unsupported: frozenset[str] = frozenset()


_NOT_CLASSIC = frozenset({"classic"})
_NOT_STREAMS = frozenset({"stream"})
_ONLY_STREAMS = frozenset({"classic", "quorum"})
_ONLY_QUORUM = frozenset({"classic", "stream"})

#: RabbitMQ's keys with the types of queues that have them, then mqd's own keys.
KEYS: Mapping[str, _Key] = {
    "alternate-exchange": _Key("alternate exchange name", _text),
    "dead-letter-exchange": _Key(
        "dead letter exchange name", _text, "dead_letter_exchange", unsupported=_NOT_STREAMS
    ),
    "dead-letter-routing-key": _Key(
        "dead letter routing key", _text, "dead_letter_routing_key", unsupported=_NOT_STREAMS
    ),
    "dead-letter-strategy": _Key(
        "dead letter strategy",
        _one_of("at-most-once", "at-least-once"),
        "dead_letter_strategy",
        unsupported=_ONLY_QUORUM,
    ),
    "message-ttl": _Key(
        "message TTL", _within(0, TIME_MS_MAX), "message_ttl_ms", operators=True, unsupported=_NOT_STREAMS
    ),
    "expires": _Key(
        "queue expiry", _within(1, TIME_MS_MAX), "expires_ms", operators=True, unsupported=_NOT_STREAMS
    ),
    "max-length": _Key("maximum length", _natural, "max_length", operators=True, unsupported=_NOT_STREAMS),
    "max-length-bytes": _Key("maximum length in bytes", _natural, "max_length_bytes", operators=True),
    "max-in-memory-length": _Key(
        "maximum memory in bytes", _natural, "max_in_memory_length", operators=True, unsupported=_NOT_STREAMS
    ),
    "max-in-memory-bytes": _Key(
        "maximum memory in bytes", _natural, "max_in_memory_bytes", operators=True, unsupported=_NOT_STREAMS
    ),
    "queue-mode": _Key(
        "queue-mode value",
        _one_of("default", "lazy"),
        "queue_mode",
        unsupported=frozenset({"quorum", "stream"}),
    ),
    "queue-version": _Key("queue-version value", _one_of(1, 2), "queue_version"),
    "overflow": _Key(
        "overflow value",
        _one_of("drop-head", "reject-publish", "reject-publish-dlx"),
        "overflow",
        unsupported=_NOT_STREAMS,
    ),
    "delivery-limit": _Key(
        "delivery limit", _natural, "delivery_limit", operators=True, unsupported=_ONLY_QUORUM
    ),
    "max-age": _Key("max age", _age, "max_age_ms", unsupported=_ONLY_STREAMS),
    "stream-max-segment-size-bytes": _Key(
        "segment size", _within(0, SEGMENT_BYTES_MAX), "segment_bytes", unsupported=_ONLY_STREAMS
    ),
    "queue-leader-locator": _Key(
        "queue leader locator value",
        _one_of("client-local", "balanced", "random", "least-leaders"),
        "leader_locator",
        unsupported=_NOT_CLASSIC,
    ),
    "initial-cluster-size": _Key("cluster size", _natural, "initial_group_size", unsupported=_ONLY_STREAMS),
    "target-group-size": _Key(
        "target group size", _within(1, TIME_MS_MAX), "target_group_size", unsupported=_ONLY_QUORUM
    ),
    "deduplication": _Key(
        "deduplication value",
        lambda value: isinstance(value, bool),
        "deduplication",
        unsupported=_NOT_STREAMS,
    ),
    "deduplication-window-ms": _Key(
        "deduplication window in ms",
        _within(1, TIME_MS_MAX),
        "deduplication_window_ms",
        unsupported=_NOT_STREAMS,
    ),
    "deduplication-count": _Key(
        "deduplication count",
        _within(1, DEDUPLICATION_COUNT_MAX),
        "deduplication_count",
        unsupported=_NOT_STREAMS,
    ),
}
#: Keys for which the smaller of two values applies.
_SMALLER = frozenset(name for name, each in KEYS.items() if each.operators)
#: Keys for which the policy's value takes precedence over the queue's argument. For other keys the argument
#: takes precedence, or the smaller one of the two applies (_SMALLER).
_BEFORE_ARGUMENTS: Mapping[str, frozenset[str]] = {
    "classic": frozenset(),
    "quorum": frozenset({"overflow", "expires"}),
    "stream": frozenset({"max-length-bytes", "max-age", "stream-max-segment-size-bytes"}),
}


def check_definition(definition: object, *, operator: bool) -> dict[str, Any]:
    """Check and return the definition of a policy. Raises InvalidPolicy."""
    if not isinstance(definition, dict):
        raise InvalidPolicy(f"definition must be a dictionary: {_term(definition)}")
    if not definition:
        raise InvalidPolicy("no policy provided")
    unknown = [name for name in definition if name not in KEYS or (operator and not KEYS[name].operators)]
    for name in sorted(name for name in definition if name not in unknown):
        if not KEYS[name].check(definition[name]):
            raise InvalidPolicy(f"{_term(definition[name])} is not a valid {KEYS[name].title}")
    if unknown:
        pairs = ",".join(f'{{<<"{name}">>,{_term(definition[name])}}}' for name in sorted(unknown))
        raise InvalidPolicy(f"[{pairs}] are not recognised policy settings")
    return definition


def _term(value: object) -> str:
    """Return a JSON value approximately as Erlang prints it."""
    return str(value) if isinstance(value, dict | list) else erlang_term(value)


# -- one policy ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    vhost: str
    name: str
    pattern: str
    apply_to: str
    priority: int
    definition: Definition

    def supports(self, kind: str) -> bool:
        """True if the policy applies to queues of this type, or to exchanges.

        As in RabbitMQ, a policy with any key that the type lacks does not apply at all.
        """
        if kind not in APPLIES[self.apply_to]:
            return False
        if kind == EXCHANGE:
            return True
        return not any(kind in KEYS[name].unsupported for name in self.definition if name in KEYS)


def policy_value(
    pattern: object, definition: object, priority: object, apply_to: object, *, operator: bool
) -> dict[str, Any]:
    """Return the value of a policy's parameter. Raises InvalidPolicy, with RabbitMQ's words in its order.

    `Policies.compile` checks the pattern.
    """
    try:
        number = int(priority) if isinstance(priority, str) else priority
    except ValueError:
        number = priority
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) > PRIORITY_MAX:
        raise InvalidPolicy(f"priority should be a number, actually was {_term(priority)}")
    if not isinstance(pattern, str):
        raise InvalidPolicy(f"pattern should be a binary, actually was {_term(pattern)}")
    if not isinstance(apply_to, str) or apply_to not in APPLIES:
        *most, last = (f"'{each}'" for each in APPLIES)
        raise InvalidPolicy(f"apply-to '{apply_to}' unrecognised; should be {', '.join(most)} or {last}")
    checked = check_definition(definition, operator=operator)
    return {"pattern": pattern, "definition": checked, "priority": number, "apply-to": apply_to}


def policy_of(record: ParameterRecord) -> Policy:
    value = record.decoded
    return Policy(
        record.vhost, record.name, value["pattern"], value["apply-to"], value["priority"], value["definition"]
    )


# -- what they come to ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Applied:
    """The policies of one queue or exchange."""

    policy: Policy | None = None
    operator_policy: Policy | None = None

    @property
    def definition(self) -> Definition:
        """The effective policy: policy and operator policy together."""
        own = self.policy.definition if self.policy is not None else NOTHING
        operator = self.operator_policy.definition if self.operator_policy is not None else NOTHING
        if not own or not operator:
            return own or operator
        both = dict(own)
        for name, value in operator.items():
            both[name] = min(own[name], value) if name in own else value
        return both


NO_POLICY = Applied()


def joined(declared: QueueArguments, definition: Definition) -> QueueArguments:
    """Return the effective arguments of a queue with these arguments and this effective policy."""
    if not definition:
        return declared
    return _joined(declared, tuple(sorted(definition.items())))


@lru_cache(maxsize=SHARED_MAX)
def _joined(declared: QueueArguments, definition: tuple[tuple[str, Any], ...]) -> QueueArguments:
    before = _BEFORE_ARGUMENTS[declared.type.name]
    told = dict(definition)
    changes: dict[str, Any] = {}
    for name, value in definition:
        known = KEYS.get(name)
        if known is None or not known.field:
            continue
        own = getattr(declared, known.field)
        if name == "max-age":
            value = age_ms(value)
        elif name == "stream-max-segment-size-bytes":
            # RabbitMQ accepts 0 and then uses its default.
            value = value or None
        if own is None or name in before:
            changes[known.field] = value
        elif name in _SMALLER:
            # A queue may be declared without a delivery limit: -1.
            changes[known.field] = value if own < 0 else min(own, value)
    if told.keys() & {"deduplication-window-ms", "deduplication-count"} and "deduplication" not in told:
        # As for a declare: a window or a count means yes.
        changes.setdefault(
            "deduplication", True if declared.deduplication is None else declared.deduplication
        )
    return replace(declared, **changes)


class Policies:
    """Finds the policies of queues and exchanges. Policies are stored as parameters."""

    def __init__(
        self,
        broker: Broker,
        *,
        pattern_bytes_max: int,
        match_ms: int,
        match_total_ms: int,
    ) -> None:
        self._broker = broker
        self._pattern_bytes_max = pattern_bytes_max
        self._match_ms = match_ms
        self._match_total_ms = match_total_ms
        #: Rankings by vhost and component.
        self._rankings: dict[tuple[str, str], Ranking] = {}
        self._changes = PolicyChanges(broker)

    @property
    def _parameters(self) -> Parameters:
        return self._broker.runtime.parameters

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

    def of_queue(self, vhost: str, name: str, type: QueueType) -> Applied:
        return self._applied(vhost, name, type.name)

    def of_exchange(self, vhost: str, name: str) -> Applied:
        return self._applied(vhost, name, EXCHANGE)

    def _applied(self, vhost: str, name: str, kind: str) -> Applied:
        policy = self._best(vhost, POLICY, name, kind)
        operator_policy = self._best(vhost, OPERATOR_POLICY, name, kind)
        if policy is None and operator_policy is None:
            return NO_POLICY
        return Applied(policy, operator_policy)

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
        if vhost in self._broker.vhosts:
            self._changes.add(vhost, [each for each in (before, after) if each is not None])
        elif record is None and ranking is not None and not len(ranking):
            # The vhost is gone.
            del self._rankings[vhost, component]

    def when_applied(self, done: Callable[[], None]) -> None:
        """Call `done` when all queues and exchanges of this node follow the current policies."""
        self._changes.when_applied(done)


def _nothing(name: str) -> bool:
    return False
