"""The memory that queued messages take beside their bodies, whatever they differ in."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType

import pytest

from quorum_queue.machine import versions
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.entries import decode_entry, encode_batch, encode_entry
from quorum_queue.machine.machine import Machine, Meta
from quorum_queue.machine.replicated import QueueReplica
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings

BODY_BYTES = 128
#: The frames around a body, without properties but the delivery mode.
FRAMES = b"h" * 30, b"\xce"
#: With the body in memory, and without it.
IN_MEMORY, PAGED_OUT = 150, 20

Make = Callable[[int, bool], Attributes]
HEAD = b"\x00\x01q"


def plain(number: int, persistent: bool) -> Attributes:
    return Attributes(persistent)


def with_ttl(number: int, persistent: bool) -> Attributes:
    return Attributes(persistent, ttl_ms=600_000 + number * 7919 % 100_000)


def with_priority(number: int, persistent: bool) -> Attributes:
    return Attributes(persistent, priority=number % 10)


def with_all(number: int, persistent: bool) -> Attributes:
    return Attributes(persistent, number % 10, 600_000 + number * 7919 % 100_000, 1 + number % 5)


def content(number: int) -> bytes:
    """The content of a message; no two bodies are alike."""
    return FRAMES[0] + b"%016d" % number + b"b" * (BODY_BYTES - 16) + FRAMES[1]


def bytes_each(root: object, count: int) -> float:
    """Return the bytes of all objects that one refers to, for each of so many messages."""
    seen: dict[int, object] = {}
    left = [root]
    while left:
        found = left.pop()
        if id(found) not in seen and not isinstance(found, (type, ModuleType, FunctionType)):
            seen[id(found)] = found
            left += gc.get_referents(found)
    return sum(map(sys.getsizeof, seen.values())) / count


@pytest.mark.parametrize("make", [plain, with_ttl, with_priority, with_all])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_message_of_a_classic_queue(make: Make, persistent: bool) -> None:
    machine, count = Machine(Settings()), 81_000
    for first in range(0, count, 50):
        commands = [
            ("enqueue", Run(range(1), [content(number)], HEAD, make(number, persistent)), None, 0)
            for number in range(first, first + 50)
        ]
        machine.apply(Meta(first), commands, Effects())
    assert machine.ready.count == count
    assert bytes_each(machine, count) <= IN_MEMORY
    for run in machine.ready.runs():
        run.page_out()
    assert bytes_each(machine, count) <= PAGED_OUT


@pytest.mark.parametrize(("make", "per_entry"), [(plain, 100), (with_ttl, 1), (with_all, 1), (with_all, 100)])
def test_a_message_of_a_quorum_queue(make: Make, per_entry: int) -> None:
    """Its body is in the log."""
    replica, count = QueueReplica(Settings(keeps_all=True)), 20_000
    replica.machine.version = versions.NEWEST
    for index in range(1, count // per_entry + 1):
        commands = [
            ("enqueue", Run(range(1), [content(number)], HEAD, make(number, True)), None, 0)
            for number in range((index - 1) * per_entry, index * per_entry)
        ]
        entry = encode_entry(index * 3, [b"".join(encode_batch("n1", 1, index, commands))])
        replica.apply(index, decode_entry(entry), ("n2", 1))
    assert replica.machine.ready.count == count
    assert bytes_each(replica, count) <= PAGED_OUT
    restored = QueueReplica.restore(replica.snapshot())
    assert restored.machine.ready.count == count
    assert bytes_each(restored, count) <= PAGED_OUT
