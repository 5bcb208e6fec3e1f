"""Policies and operator policies: settings for all queues and exchanges of a vhost whose name matches a
pattern.

A queue has the matching policy with the highest priority, and also one operator policy. Both together are its
effective policy; of two limits the smaller one applies. The queue's own arguments are joined with it as in
RabbitMQ: see `joined`. The result has the form of arguments again, from which the settings of its machine are
derived as from a declaration. The settings reach the machine by `configure`, which is an entry in the log of
a replicated queue, so all members change at the same entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from amqp_server.broker.declared.argument_checks import Check, Invalid, short_text
from amqp_server.broker.declared.argument_table import ROWS, Argument
from amqp_server.broker.declared.arguments import SHARED_MAX, QueueArguments
from amqp_server.broker.declared.parameters import ParameterRecord, ParameterRefused
from amqp_server.broker.declared.queue_types import QUEUE_TYPES
from exchanges.field import erlang_term, type_name

#: Kind of exchanges, among the types of queues.
EXCHANGE = "exchange"
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
#: Keys that mean that a queue records messages, unless message-status says otherwise.
_RECORD_KEYS = frozenset({"message-status-window-ms", "message-status-count", "message-status-events"})


class InvalidPolicy(ParameterRefused):
    """An invalid policy; the text has the reason, in RabbitMQ's words."""


# -- what may stand in a definition --------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """A key that policies may have."""

    #: RabbitMQ's word for the type of its value.
    title: str
    check: Check
    #: Field of QueueArguments; empty for a key of exchanges.
    field: str = ""
    #: Which of two values applies if operator policies may have it, too: see PolicyKey.
    operators: str = ""
    #: Of argument and policy the smaller value applies.
    smaller: bool = False
    #: Types of queues without this setting: no policy with this key applies to them.
    unsupported: frozenset[str] = frozenset()
    #: Types for which the policy's value takes precedence over the queue's argument. For others the argument
    #: takes precedence, or the smaller one of the two applies.
    overrules: frozenset[str] = frozenset()

    def accepts(self, value: object) -> bool:
        try:
            self.check(value, type_name(value))
        except Invalid:
            return False
        return True

    def setting(self, value: object) -> Any:
        """Return what a value means. One that is invalid here, and was accepted by another version, is taken
        as it is.
        """
        try:
            return self.check(value, type_name(value))
        except Invalid:
            return value


def _key(row: Argument) -> Key:
    policy = row.policy
    assert policy is not None
    check = policy.check or row.check
    assert check is not None
    # Without keys of a dictionary, which would make a set of it: compiled code looks at that.
    types = policy.types if policy.types is not None else frozenset(row.types)
    return Key(
        policy.title,
        check,
        row.field,
        policy.operators,
        policy.smaller or policy.operators == "smaller",
        QUEUES - types,
        policy.overrules,
    )


#: Keys that no argument of a queue goes with: those of exchanges.
EXCHANGE_KEYS: Mapping[str, Key] = {"alternate-exchange": Key("alternate exchange name", short_text)}
#: RabbitMQ's keys, and mqd's own.
KEYS: Mapping[str, Key] = {
    **EXCHANGE_KEYS,
    **{row.policy_key: _key(row) for row in ROWS if row.policy is not None},
}


def check_definition(definition: object, *, operator: bool) -> dict[str, Any]:
    """Check and return the definition of a policy. Raises InvalidPolicy."""
    if not isinstance(definition, dict):
        raise InvalidPolicy(f"definition must be a dictionary: {_term(definition)}")
    if not definition:
        raise InvalidPolicy("no policy provided")
    unknown = [name for name in definition if name not in KEYS or (operator and not KEYS[name].operators)]
    for name in sorted(name for name in definition if name not in unknown):
        if not KEYS[name].accepts(definition[name]):
            raise InvalidPolicy(f"{_term(definition[name])} is not a valid {KEYS[name].title}")
    if unknown:
        pairs = ",".join(f'{{<<"{name}">>,{_term(definition[name])}}}' for name in sorted(unknown))
        raise InvalidPolicy(f"[{pairs}] are not recognised policy settings")
    _check_retries(definition)
    return definition


def _check_retries(definition: Definition) -> None:
    """Check the keys of delayed retries together. Raises InvalidPolicy, with RabbitMQ's words."""
    kind, least_ms = definition.get("delayed-retry-type"), definition.get("delayed-retry-min")
    most_ms = definition.get("delayed-retry-max")
    if kind not in (None, "disabled") and least_ms is None:
        raise InvalidPolicy(f"delayed-retry-min is required when delayed-retry-type is {kind}")
    if least_ms is not None and most_ms is not None and most_ms < least_ms:
        raise InvalidPolicy(
            f"delayed-retry-max ({most_ms}) must not be smaller than delayed-retry-min ({least_ms})"
        )


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
class AppliedPolicies:
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
            both[name] = _merged(name, own[name], value) if name in own else value
        return both


def _merged(name: str, own: Any, operators: Any) -> Any:
    """Return which value of a policy and an operator policy applies."""
    known = KEYS.get(name)
    if known is not None and known.operators == "smaller":
        return _smaller(own, operators)
    if known is not None and known.operators == "larger":
        return max(own, operators)
    return operators


def _smaller(one: int, other: int) -> int:
    """A delivery limit below 0 is none."""
    if one < 0 or other < 0:
        return max(one, other)
    return min(one, other)


NO_POLICY = AppliedPolicies()


def joined(declared: QueueArguments, definition: Definition) -> QueueArguments:
    """Return the effective arguments of a queue with these arguments and this effective policy."""
    if not definition:
        return declared
    return _joined(declared, tuple(sorted(definition.items())))


@lru_cache(maxsize=SHARED_MAX)
def _joined(declared: QueueArguments, definition: tuple[tuple[str, Any], ...]) -> QueueArguments:
    told = dict(definition)
    changes: dict[str, Any] = {}
    for name, value in definition:
        known = KEYS.get(name)
        if known is None or not known.field:
            continue
        own, setting = getattr(declared, known.field), known.setting(value)
        if own is None or declared.type.name in known.overrules:
            changes[known.field] = setting
        elif known.smaller:
            changes[known.field] = _smaller(own, setting)
    if told.keys() & {"deduplication-window-ms", "deduplication-count"} and "deduplication" not in told:
        # As for a declare: a window or a count means yes.
        changes.setdefault(
            "deduplication", True if declared.deduplication is None else declared.deduplication
        )
    if told.keys() & _RECORD_KEYS and "message-status" not in told:
        changes.setdefault(
            "message_status", True if declared.message_status is None else declared.message_status
        )
    return replace(declared, **changes)
