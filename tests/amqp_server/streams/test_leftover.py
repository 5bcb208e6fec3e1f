"""When a stream is deleted, the node frees in parts what thousands of consumers had read of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from amqp_server.streams.freeing import FREED_BATCHES_MAX, FREED_BYTES_MAX, FREED_MAX, Leftover
from amqp_server.streams.layout.encode import Encoded
from amqp_server.streams.stream_consumer import StreamConsumer
from persistence.streams.batch import Batch, Shape
from quorum_queue.ports import Turn


class Reader:
    def __init__(self) -> None:
        self.detached = False
        self.let_go_of = 0

    def let_go(self) -> None:
        assert self.detached
        self.let_go_of += 1


class ShortTurn:
    """A turn that is over after each part."""

    def __init__(self) -> None:
        self.left: list[Callable[[], None]] = []

    def overdue(self) -> bool:
        return True

    def later(self, unit: Any, go_on: Callable[[], None]) -> None:
        self.left.append(go_on)


@pytest.mark.pure
def test_consumers_are_freed_some_in_each_turn() -> None:
    turn = ShortTurn()
    readers = [Reader() for _ in range(3 * FREED_MAX - 1)]
    Leftover(cast(list[StreamConsumer], list(readers)), [], cast(Turn, turn)).free()
    # From now on none of them is handed anything.
    assert all(reader.detached for reader in readers)
    parts = [sum(reader.let_go_of for reader in readers)]
    while turn.left:
        turn.left.pop()()
        parts.append(sum(reader.let_go_of for reader in readers))
    assert parts == [FREED_MAX, 2 * FREED_MAX, len(readers)]
    assert all(reader.let_go_of == 1 for reader in readers)


def batch_of(size: int) -> Encoded:
    return Encoded(Batch(0, 0, [Shape(1, 1, 0, 0, 0)], b"x", [None], [], size), [])


def test_batches_are_freed_some_in_each_turn() -> None:
    turn = ShortTurn()
    tail = [batch_of(1) for _ in range(FREED_BATCHES_MAX + 1)] + [
        batch_of(FREED_BYTES_MAX // 2) for _ in range(5)
    ]
    Leftover([], tail, cast(Turn, turn)).free()
    parts = [len(tail)]
    while turn.left:
        turn.left.pop()()
        parts.append(len(tail))
    small = FREED_BATCHES_MAX + 1
    assert parts == [small + 3, small + 1, small - FREED_BATCHES_MAX + 1, 0]
