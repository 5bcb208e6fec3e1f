"""The blocks of whole messages that a publisher sends, encoded before the measurement starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy

from .frames import Bytes

BLOCK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Block:
    data: memoryview
    messages: int


def messages_a_block(message_bytes: int, window: int) -> int:
    """A block fills one send, but never more than a quarter of the window, or the window would empty between
    two.
    """
    return max(1, min(BLOCK_BYTES // message_bytes, window // 4))


def repeated(messages: Sequence[bytes], window: int) -> Iterator[Block]:
    """The same messages again and again. All have the same length."""
    size = messages_a_block(len(messages[0]), window)
    if len(messages) < size:
        messages = [*messages] * (size // len(messages) + 1)
    pieces = [messages[i : i + size] for i in range(0, len(messages), size)]
    return cycle([Block(memoryview(b"".join(piece)), len(piece)) for piece in pieces])


def numbered(message: bytes, mark: bytes, window: int) -> Iterator[Block]:
    """Messages that all differ: in each message its own decimal number replaces the mark."""
    size = messages_a_block(len(message), window)
    rows = numpy.tile(numpy.frombuffer(message, numpy.uint8), (size, 1))
    places = _places(message, mark)
    first = 0
    while True:
        digits = _digits(numpy.arange(first, first + size), len(mark))
        for place in places:
            rows[:, place : place + len(mark)] = digits
        # A copy, because the block may be sent only in part when the next one is requested.
        yield Block(memoryview(rows.tobytes()), size)
        first += size


def _places(message: bytes, mark: bytes) -> list[int]:
    places = [i for i in range(len(message)) if message.startswith(mark, i)]
    if not places:
        raise ValueError("the message does not hold the mark")
    return places


def _digits(numbers: numpy.typing.NDArray[numpy.int64], width: int) -> Bytes:
    powers = 10 ** numpy.arange(width - 1, -1, -1)
    return ((numbers[:, None] // powers) % 10 + ord("0")).astype(numpy.uint8)
