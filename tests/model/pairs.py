"""The choices that a program is made of, and rows of choices in which every pair occurs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import combinations

from tests.model.spec.routing import CHOOSING

Row = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]

KINDS = ("classic", "quorum", "stream", "group")
#: Three nodes have one more fault, "stall", which is drawn only if it is asked for (`--within fault=stall`).
#: So programs with fixed seeds stay the same.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "kind": KINDS,
    "life": ("durable", "transient", "exclusive", "auto-delete"),
    "ttl": ("none", "queue", "message", "zero", "long"),
    "length": ("none", "3"),
    "bytes": ("none", "100"),
    "overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
    "dead-letter": ("none", "exchange", "key", "at-least-once", "retry"),
    "priority": ("none", "5"),
    "single-active": ("no", "yes"),
    "timeout": ("none", "consumer"),
    "groups": ("no", "yes"),
    "delay": ("none", "message", "retry", "failed"),
    "pause": ("none", "deliveries", "publishes"),
    "delivery-limit": ("none", "1"),
    "expires": ("none", "short", "long"),
    "deduplication": ("no", "yes"),
    "compaction": ("no", "yes"),
    "retention": ("no", "yes"),
    "messages": ("persistent", "transient", "mixed"),
    "exchange": (
        *("default", "direct", "fanout", "topic", "headers", "chain", "alternate", "super"),
        *("x-consistent-hash", "x-modulus-hash", "x-random"),
    ),
    "publish": ("plain", "confirm", "tx", "large tx"),
    "level": ("none", "leader", "all"),
    "producer": ("none", "epochs"),
    "mandatory": ("no", "yes"),
    "consume": (
        "get",
        "prefetch 1",
        "prefetch 3",
        "global",
        "no-ack",
        "exclusive",
        "priorities",
        "by name",
        "batches",
    ),
    "settle": ("ack", "multiple", "requeue", "discard", "recover", "close", "abort", "retry"),
    "asked": ("same", "other", "each"),
    "fault": (
        "none",
        "kill",
        "kill at once",
        "restart",
        "freeze",
        "clock",
        "cut",
        "isolate",
        "transfer",
        "move",
        "entry",
        "damage",
        "memory",
        "disk",
        "full disk",
        "upgrade",
    ),
    "policy": ("none", "length", "ttl", "dead-letter", "overflow", "expires", "alternate", "operator"),
    "deletion": ("none", "purge", "queue", "if-empty", "if-unused", "exchange", "unbind"),
    "permission": ("all", "no read", "no write", "no configure"),
    "limit": ("none", "queues", "connections", "channels"),
}
_QUEUES = frozenset({"classic", "quorum"})
_CLASSIC = frozenset({"classic"})
#: Kinds of queues for which a choice means something; all kinds where nothing is said.
FITS: Mapping[tuple[str, str], frozenset[str]] = {
    **{("life", each): _CLASSIC for each in ("transient", "exclusive", "auto-delete")},
    **{("ttl", each): _QUEUES for each in ("queue", "message", "zero", "long")},
    ("length", "3"): _QUEUES,
    ("bytes", "100"): _QUEUES,
    ("overflow", "reject-publish"): _QUEUES,
    ("overflow", "reject-publish-dlx"): _CLASSIC,
    **{("dead-letter", each): _QUEUES for each in ("exchange", "key", "retry")},
    ("dead-letter", "at-least-once"): frozenset({"quorum"}),
    ("priority", "5"): _CLASSIC,
    ("single-active", "yes"): _QUEUES,
    ("timeout", "consumer"): _QUEUES,
    ("groups", "yes"): _QUEUES,
    **{("delay", each): _QUEUES for each in ("message", "retry", "failed")},
    **{("pause", each): _QUEUES for each in ("deliveries", "publishes")},
    ("delivery-limit", "1"): frozenset({"quorum"}),
    **{("expires", each): _QUEUES for each in ("short", "long")},
    ("deduplication", "yes"): frozenset({"classic", "quorum", "stream"}),
    ("compaction", "yes"): frozenset({"stream", "group"}),
    ("retention", "yes"): frozenset({"stream", "group"}),
    ("consume", "by name"): frozenset({"stream"}),
    ("consume", "batches"): frozenset({"stream"}),
    ("settle", "retry"): _QUEUES,
    ("fault", "upgrade"): _QUEUES,
    **{("fault", each): frozenset({"quorum", "stream", "group"}) for each in ("move", "damage")},
    **{
        ("policy", each): _QUEUES
        for each in ("length", "ttl", "dead-letter", "overflow", "expires", "operator")
    },
    ("consume", "exclusive"): _QUEUES,
    ("consume", "priorities"): _QUEUES,
    ("exchange", "super"): frozenset({"stream", "group"}),
}
#: Choices that only a single node has.
ALONE = frozenset({("fault", "disk"), ("fault", "full disk")})
#: Choices that need more than one node.
THREE = frozenset(
    {
        ("asked", "other"),
        ("asked", "each"),
        *(("fault", each) for each in ("cut", "isolate", "transfer", "move")),
    }
)
#: Faults with which what is not durable is lost are of little use with these.
NEVER = frozenset(
    {
        # Whether a full queue takes a message, and whether another one has expired by then, depends on when
        # the disk has room.
        *(
            frozenset({("fault", "full disk"), each})
            for each in (
                ("overflow", "reject-publish"),
                ("overflow", "reject-publish-dlx"),
                ("policy", "overflow"),
                ("dead-letter", "at-least-once"),
                *(("ttl", each) for each in ("queue", "message", "zero")),
                *(("delay", each) for each in ("message", "retry", "failed")),
                ("settle", "retry"),
                ("policy", "ttl"),
            )
        ),
        # The last release does not know these, or takes an argument that it does not know for nothing.
        *(
            frozenset({("fault", "upgrade"), each})
            for each in (
                ("groups", "yes"),
                *(("level", each) for each in ("leader", "all")),
                # It has another rule for cycles.
                ("dead-letter", "retry"),
                *(("delay", each) for each in ("message", "retry", "failed")),
                *(("publish", each) for each in ("tx", "large tx")),
                ("producer", "epochs"),
                ("timeout", "consumer"),
                # Of a message with CC, it tries the alternate exchange for each key.
                *(("exchange", each) for each in ("alternate", "super", *sorted(CHOOSING))),
                *(("limit", each) for each in ("queues", "connections", "channels")),
            )
        ),
        frozenset({("groups", "yes"), ("priority", "5")}),
        frozenset({("groups", "yes"), ("single-active", "yes")}),
        # A letter that has to be taken waits until publishes go on, which the end of a program is.
        frozenset({("pause", "publishes"), ("dead-letter", "at-least-once")}),
        *(
            frozenset({("pause", "publishes"), ("exchange", each)})
            for each in ("x-consistent-hash", "x-modulus-hash", "x-random")
        ),
        frozenset({("compaction", "yes"), ("retention", "yes")}),
        frozenset({("compaction", "yes"), ("consume", "by name")}),
        frozenset({("retention", "yes"), ("consume", "by name")}),
        frozenset({("retention", "yes"), ("exchange", "super")}),
        frozenset({("compaction", "yes"), ("deduplication", "yes")}),
        frozenset({("compaction", "yes"), ("exchange", "super")}),
    }
)


def fits(one: tuple[str, str], two: tuple[str, str]) -> bool:
    if frozenset({one, two}) in NEVER:
        return False
    for here, there in ((one, two), (two, one)):
        if here[0] == "kind" and here[1] not in FITS.get(there, frozenset(KINDS)):
            return False
    return bool(FITS.get(one, frozenset(KINDS)) & FITS.get(two, frozenset(KINDS)))


def choices(nodes: int) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(each for each in values if (name, each) not in (ALONE if nodes > 1 else THREE))
        for name, values in CHOICES.items()
    }


def all_pairs(nodes: int) -> set[Pair]:
    flat = [(name, value) for name, values in choices(nodes).items() for value in values]
    return {pair(one, two) for one, two in combinations(flat, 2) if one[0] != two[0] and fits(one, two)}


def pair(one: tuple[str, str], two: tuple[str, str]) -> Pair:
    return (one, two) if one <= two else (two, one)


def pairs_of(row: Row) -> set[Pair]:
    return {pair(one, two) for one, two in combinations(row.items(), 2)}


#: Three or more choices that show something together only. Each fifth row begins with one of them.
TOGETHER: tuple[Row, ...] = (
    {
        "kind": "classic",
        "life": "durable",
        "priority": "5",
        "messages": "persistent",
        "fault": "kill",
        "ttl": "none",
    },
    {"kind": "classic", "dead-letter": "retry", "length": "none", "bytes": "none", "ttl": "none"},
    {"kind": "quorum", "dead-letter": "retry", "length": "none", "bytes": "none", "ttl": "none"},
    {"kind": "stream", "compaction": "yes", "fault": "none", "publish": "confirm"},
    {"kind": "classic", "life": "durable", "exchange": "direct", "deletion": "unbind", "length": "none"},
    {"kind": "group", "fault": "kill", "consume": "prefetch 3", "settle": "ack", "compaction": "no"},
    {"kind": "quorum", "exchange": "topic", "deletion": "unbind", "length": "none", "permission": "all"},
    {"kind": "classic", "life": "durable", "fault": "entry", "messages": "persistent", "ttl": "none"},
)


def rows(nodes: int, seed: int, within: Mapping[str, str] | None = None) -> Iterator[Row]:
    """Rows until every pair has occurred, and then anew with other chance. Greedy: a row begins with a pair
    that is missing, and each further choice is the one that adds most.
    """
    chance = random.Random(seed)
    every = choices(nodes)
    for name, value in (within or {}).items():
        every[name] = tuple(value.split("|"))
    number = -1
    while True:
        missing = sorted(p for p in all_pairs(nodes) if _possible(every, p))
        chance.shuffle(missing)
        left = dict.fromkeys(missing)
        while left:
            number += 1
            together: Row = {}
            if number % 5 == 0:
                together = TOGETHER[number // 5 % len(TOGETHER)]
            if any(value not in every[name] for name, value in together.items()):
                together = {}
            row = _row(every, left, chance, together)
            for each in pairs_of(row):
                left.pop(each, None)
            yield row


def _possible(every: Mapping[str, tuple[str, ...]], one: Pair) -> bool:
    """True if both are among the choices, and each other name has a choice that fits both."""
    return all(value in every[name] for name, value in one) and all(
        any(all(fits((name, value), each) for each in one) for value in values)
        for name, values in every.items()
        if name not in dict(one)
    )


def _row(
    every: Mapping[str, tuple[str, ...]], left: dict[Pair, None], chance: random.Random, together: Row
) -> Row:
    first = next(iter(left))
    row = dict(together or first)
    names = [name for name in every if name not in row]
    chance.shuffle(names)
    # The kind comes first: it says what else fits.
    for name in sorted(names, key=lambda name: name != "kind"):
        values = [v for v in every[name] if all(fits((name, v), other) for other in row.items())]
        values = values or [every[name][0]]
        gains = [sum(pair((name, v), other) in left for other in row.items()) for v in values]
        best = max(gains)
        row[name] = chance.choice([v for v, gain in zip(values, gains, strict=True) if gain == best])
    if not together:
        left.pop(first, None)
    return row
