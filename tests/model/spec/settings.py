"""What arguments and policies make of a queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Arguments that a type of queue refuses.
UNSUPPORTED: Mapping[str, frozenset[str]] = {
    "classic": frozenset(
        {"x-dead-letter-strategy", "x-delivery-limit", "x-max-age", "x-quorum-initial-group-size"}
    ),
    "quorum": frozenset({"x-max-priority", "x-max-age", "x-queue-mode"}),
    "stream": frozenset(
        {
            *(
                "x-message-ttl",
                "x-expires",
                "x-dead-letter-exchange",
                "x-dead-letter-routing-key",
                "x-max-length",
            ),
            *("x-max-priority", "x-overflow", "x-single-active-consumer", "x-delivery-limit"),
        }
    ),
    "stream-group": frozenset(
        {
            "x-message-ttl",
            "x-expires",
            "x-max-length",
            "x-max-priority",
            "x-overflow",
            "x-single-active-consumer",
        }
    ),
}
NATURAL = ("x-message-ttl", "x-max-length", "x-max-length-bytes")
POSITIVE = ("x-expires",)
OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
#: Keys of policies that a type of queue does not have: such a policy does not apply to it.
FOREIGN_KEYS: Mapping[str, frozenset[str]] = {
    "classic": frozenset({"delivery-limit", "dead-letter-strategy", "max-age"}),
    "quorum": frozenset({"max-age"}),
    "stream": frozenset(
        {
            *("message-ttl", "expires", "max-length", "overflow", "delivery-limit", "dead-letter-strategy"),
            *("dead-letter-exchange", "dead-letter-routing-key"),
        }
    ),
}


def invalid(kind: str, arguments: Mapping[str, Any]) -> bool:
    """True if a declaration with these arguments is refused with 406."""
    if UNSUPPORTED[kind] & arguments.keys():
        return True
    if any(name in arguments and arguments[name] < 0 for name in NATURAL):
        return True
    if any(name in arguments and arguments[name] <= 0 for name in POSITIVE):
        return True
    if not 0 <= arguments.get("x-max-priority", 1) <= 255:
        return True
    if arguments.get("x-overflow", "drop-head") not in OVERFLOWS:
        return True
    if arguments.get("x-message-groups") and (
        "x-max-priority" in arguments or arguments.get("x-single-active-consumer")
    ):
        return True
    if kind == "quorum" and arguments.get("x-overflow") == "reject-publish-dlx":
        return True
    return "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments


@dataclass
class Policy:
    name: str
    pattern: str
    apply_to: str
    priority: int
    definition: dict[str, Any]

    def applies(self, kind: str, name: str) -> bool:
        """`kind` is that of a queue, or "exchange"; patterns of the model are beginnings of names."""
        if not name.startswith(self.pattern.removeprefix("^")):
            return False
        if kind == "exchange":
            return self.apply_to in ("exchanges", "all")
        fits = self.apply_to in ("queues", "all") or self.apply_to == {
            "classic": "classic_queues",
            "quorum": "quorum_queues",
        }.get(kind)
        return fits and kind != "stream-group" and not FOREIGN_KEYS[kind] & self.definition.keys()


def chosen(policies: list[Policy], kind: str, name: str) -> dict[str, Any]:
    fitting = [policy for policy in policies if policy.applies(kind, name)]
    fitting.sort(key=lambda policy: (-policy.priority, policy.name))
    return fitting[0].definition if fitting else {}


@dataclass
class Settings:
    ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    dead_letter_strategy: str = "at-most-once"
    delivery_limit: int | None = None
    retry_type: str = "disabled"
    retry_ms: int = 0


_KEYS = {
    "ttl_ms": "message-ttl",
    "expires_ms": "expires",
    "max_length": "max-length",
    "max_bytes": "max-length-bytes",
    "overflow": "overflow",
    "dead_letter_exchange": "dead-letter-exchange",
    "dead_letter_key": "dead-letter-routing-key",
    "dead_letter_strategy": "dead-letter-strategy",
    "delivery_limit": "delivery-limit",
    "retry_type": "delayed-retry-type",
    "retry_ms": "delayed-retry-min",
}


def combined(
    kind: str,
    arguments: Mapping[str, Any],
    policy: Mapping[str, Any],
    operators: Mapping[str, Any],
    default_limit: int | None,
) -> Settings:
    """Of two numbers the smaller one counts; else the argument, but for `overflow` of quorum queues."""
    settings = Settings(delivery_limit=default_limit if kind == "quorum" else None)
    for field, key in _KEYS.items():
        both = [each[key] for each in (policy, operators) if key in each]
        by_policy = min(both) if both and isinstance(both[0], int) else next(iter(both), None)
        own = arguments.get("x-" + key)
        if own is not None and by_policy is not None:
            if kind == "quorum" and key in ("overflow", "expires"):
                own = by_policy
            elif isinstance(own, int):
                own = min(own, by_policy)
        value = own if own is not None else by_policy
        if value is not None:
            setattr(settings, field, value)
    if settings.delivery_limit is not None and settings.delivery_limit < 0:
        settings.delivery_limit = None
    return settings
