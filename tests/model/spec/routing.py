"""Exchanges, bindings, and where a message goes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.model.spec.hashing import partition

PREDECLARED = {
    "": "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}
#: These choose one of their bindings: by the routing key, or at random.
BY_KEY = frozenset({"x-consistent-hash", "x-modulus-hash"})
CHOOSING = BY_KEY | {"x-random"}
TYPES = ("direct", "fanout", "topic", "headers", "x-super-stream", *sorted(CHOOSING))


@dataclass
class Exchange:
    name: str
    kind: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    #: Of policies; the argument has precedence.
    alternate_by_policy: str | None = None
    partitions: list[str] = field(default_factory=list)
    had_binding: bool = False
    #: Of one that chooses by key: the queue of each key, as long as its bindings stay as they are.
    chosen: dict[str, str] = field(default_factory=dict)

    @property
    def alternate(self) -> str | None:
        return self.arguments.get("alternate-exchange") or self.alternate_by_policy


@dataclass(frozen=True)
class Binding:
    source: str
    #: "queue" or "exchange".
    kind: str
    destination: str
    key: str
    arguments: tuple[tuple[str, Any], ...] = ()


def route(
    exchanges: dict[str, Exchange],
    bindings: list[Binding],
    first: str,
    keys: list[str],
    headers: dict[str, Any],
    queues: Iterable[str],
) -> set[str]:
    """Return the names of the queues to which a message goes."""
    queues = set(queues)
    found: set[str] = set()
    work, seen = [first], {first}
    while work:
        exchange = exchanges.get(work.pop())
        if exchange is None:
            continue
        if exchange.partitions:
            # A super stream takes the first key only.
            found.add(exchange.partitions[partition(keys[0], len(exchange.partitions))])
            continue
        if exchange.name == "":
            targets = [("queue", key) for key in keys if key in queues]
        else:
            targets = [
                (binding.kind, binding.destination)
                for binding in bindings
                if binding.source == exchange.name and matches(exchange.kind, binding, keys, headers)
            ]
        if not targets and exchange.alternate:
            targets = [("exchange", exchange.alternate)]
        found |= {name for kind, name in targets if kind == "queue"}
        for kind, name in targets:
            if kind == "exchange" and name not in seen:
                seen.add(name)
                work.append(name)
    return found


def matches(kind: str, binding: Binding, keys: list[str], headers: dict[str, Any]) -> bool:
    if kind == "fanout" or kind in CHOOSING:
        return True
    if kind == "topic":
        return any(topic_matches(binding.key.split("."), key.split(".")) for key in keys)
    if kind == "headers":
        return headers_match(dict(binding.arguments), headers)
    return binding.key in keys


def topic_matches(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(topic_matches(pattern[1:], words[skipped:]) for skipped in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and topic_matches(pattern[1:], words[1:])


def headers_match(asked: dict[str, Any], headers: dict[str, Any]) -> bool:
    how = asked.get("x-match", "all")
    hits = [headers.get(name) == value for name, value in asked.items() if not name.startswith("x-")]
    return any(hits) if how == "any" else all(hits)
