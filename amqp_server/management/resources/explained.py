"""Explains a queue: where it is, how far this node's copy is, where its settings come from, and where
decisions about it are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from amqp_server.broker.broker import Broker
from amqp_server.broker.decisions import decisions_of
from amqp_server.broker.declared.policy import KEYS, AppliedPolicies
from amqp_server.broker.topology.queue import Queue
from amqp_server.management.changes.answers import ANSWER_S, answers_of
from quorum_queue.cluster.replica_group import Group
from quorum_queue.host import QueueHost
from quorum_queue.machine.settings import Settings

#: Settings of consumer groups, to which no policy applies.
_OF_GROUPS = ("dead-letter-exchange", "dead-letter-routing-key", "delivery-limit")


class Setting(msgspec.Struct, frozen=True):
    """A setting by its name in policies; an argument has `x-` in front."""

    name: str
    value: Any
    #: argument, policy, operator policy, or default.
    origin: str
    #: Name of the policy.
    policy: str | None = None


class Copy(msgspec.Struct, frozen=True):
    """This node's copy of a replicated queue."""

    #: True if this node is a member of the queue's group.
    member: bool
    #: Last entry of the log that was applied here, and the last one that the leader has committed; None where
    #: this node is no member, or does not learn it in time.
    applied: int | None = None
    committed: int | None = None


def settings_of(queue: Queue) -> list[Setting]:
    """Return the settings that a queue has, each with its origin."""
    names = _OF_GROUPS if queue.type.is_group else tuple(KEYS)
    found: list[Setting] = []
    for name in names:
        key = KEYS[name]
        if not key.field or queue.type.name in key.unsupported:
            continue
        value, declared = getattr(queue.effective, key.field), getattr(queue.parsed, key.field)
        policy = _origin(name, value, declared, queue.policies)
        if policy is not None:
            found.append(Setting(name, value, *policy))
        elif declared is not None:
            found.append(Setting(name, value, "argument"))
        else:
            found.append(Setting(name, _default(queue.settings, key.field), "default"))
    return found


def _origin(name: str, value: Any, declared: Any, applied: AppliedPolicies) -> tuple[str, str] | None:
    """Return which policy a value comes from; None if it comes from no policy."""
    if name not in applied.definition or (declared is not None and value == declared):
        return None
    policy, operator = applied.policy, applied.operator_policy
    told = applied.definition[name]
    if policy is not None and policy.definition.get(name) == told:
        return "policy", policy.name
    assert operator is not None
    return "operator policy", operator.name


def _default(settings: Settings, field: str) -> Any:
    return getattr(settings, field, None)


async def catch_up(broker: Broker) -> None:
    """Return when this node knows all declarations and policies that clients of any node have had answers to,
    and its queues have them; or when it does not learn that in time.
    """

    def ask(told: Callable[[bool], None]) -> None:
        policies = broker.runtime.policies
        broker.replication.catch_up(lambda known: policies.when_applied(partial(told, known)))

    await answers_of(broker.turn, ask, ANSWER_S)


async def explain(broker: Broker, queue: Queue) -> dict[str, Any]:
    copy = await _copy(broker, queue)
    return {
        "obstacles": _obstacles(broker, queue),
        "events": _events(broker, queue),
        "settings": [msgspec.structs.asdict(each) for each in settings_of(queue)],
        # Settings of a replicated queue take effect at an entry of its log.
        "settings_in_force": queue.type.is_stream or queue.type.is_group or _are_in_force(queue),
        "copy": None if copy is None else msgspec.structs.asdict(copy),
        "decisions": [
            {"what": each.what, "place": each.place, "why": each.why}
            for each in decisions_of(queue.type.name)
        ],
    }


def _obstacles(broker: Broker, queue: Queue) -> list[str]:
    """Say why the queue takes or delivers nothing now, as far as this node knows."""
    found: list[str] = []
    failure = broker.failures.find(queue)
    if failure is not None:
        how = "set aside until `mqctl retry_failed`" if failure.set_aside else "to be restarted soon"
        found.append(f"it has failed on this node and is {how}: {failure.reason}")
    group = getattr(queue.host, "group", None)
    if isinstance(group, Group) and not group.core.leader:
        found.append("this node knows no leader of it: is there a majority?")
    absent = broker.hosts.absent_home(queue)
    if absent:
        found.append(f"its only node {absent} is down")
    if broker.alarms.active:
        found.append(f"publishers are blocked: {broker.alarms.reason}")
    short = broker.hosts.short_node(queue, broker.alarms.elsewhere)
    if short:
        found.append(f"publishers to it are blocked: node '{short}' is {broker.alarms.elsewhere[short]}")
    host, settings = queue.host, queue.settings
    if isinstance(host, QueueHost) and settings.overflow != "drop-head" and not found:
        _, ready, _, delayed = host.counts()
        if settings.max_length is not None and ready + delayed >= settings.max_length:
            found.append(
                f"it refuses messages: it has {ready + delayed} of {settings.max_length} (max-length)"
            )
        limit, size = settings.max_length_bytes, getattr(host, "ready_bytes", 0)
        if limit is not None and size >= limit:
            found.append(f"it refuses messages: it has {size} of {limit} bytes (max-length-bytes)")
    return found


def _events(broker: Broker, queue: Queue) -> list[dict[str, Any]]:
    """Return what happened to the queue on this node since its start, the oldest first: times of the wall
    clock in ms, and what.
    """
    found: list[dict[str, Any]] = []
    group = getattr(queue.host, "group", None)
    if isinstance(group, Group):
        for led in group.leaders:
            what = f"{led.leader} leads, term {led.term}" if led.leader else "no leader is known"
            found.append({"at": led.at_ms, "what": what})
    failure = broker.failures.last(queue)
    if failure is not None:
        clock = broker.clock
        ahead_ms = clock.wall_ms() - clock.monotonic_ms()
        found.append({"at": failure.since_ms + ahead_ms, "what": f"failed: {failure.reason}"})
        if failure.serving_since_ms:
            what = f"serves again after restart {failure.attempts}"
            found.append({"at": failure.serving_since_ms + ahead_ms, "what": what})
    return sorted(found, key=lambda event: event["at"])


def _are_in_force(queue: Queue) -> bool:
    host = queue.host
    if not isinstance(host, QueueHost):
        return True
    present = host.settings
    # The machine keeps these as declared.
    return present == replace(
        queue.settings,
        priority_max=present.priority_max,
        single_active_consumer=present.single_active_consumer,
    )


async def _copy(broker: Broker, queue: Queue) -> Copy | None:
    """None for a queue that is not replicated."""
    if not queue.members:
        return None
    group = getattr(queue.host, "group", None)
    if not isinstance(group, Group):
        return Copy(member=False)
    applied = group.applied
    known = await answers_of(broker.turn, group.catch_up, ANSWER_S)
    if known != [True]:
        return Copy(member=True, applied=applied)
    return Copy(member=True, applied=applied, committed=max(group.core.commit, group.core.leader_commit))
