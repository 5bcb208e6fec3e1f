"""What a queue's home tells the node of a publisher or consumer, as bytes: a list of events, then bodies.

(DELIVERED, key, first id, run…)   (CONFIRMED, token, first, last)   (REFUSED, token, first, last)
(ATTACHED, key, refusal or None)   (GOT_NOTHING, key)                (PURGED, token, count)
(DONE, batch, ready, ready bytes, unacked, consumers)                (MOVED, batch)
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from quorum_queue.cluster import frames
from quorum_queue.machine.run import Attributes, Run

DELIVERED, CONFIRMED, REFUSED, ATTACHED, GOT_NOTHING, PURGED, DONE, MOVED = range(1, 9)

_decoder = msgspec.msgpack.Decoder(list[tuple[Any, ...]])
_encode = msgspec.msgpack.encode


class Stats(NamedTuple):
    """How full the queue is, as its home sees it."""

    ready: int
    ready_bytes: int
    unacked: int
    consumers: int


class Events:
    """Events for one node, gathered over a turn."""

    __slots__ = ("_bodies", "_events", "size")

    def __init__(self) -> None:
        self._events: list[tuple[Any, ...]] = []
        self._bodies: list[bytes] = []
        self.size = 0

    def add(self, *event: Any) -> None:
        self._events.append(event)

    def deliver(self, key: tuple[Any, ...], first_id: int, run: Run) -> None:
        assert run.contents is not None
        seqs = run.seqs
        self._events.append(
            (
                DELIVERED,
                key,
                first_id,
                (seqs.start, seqs.stop, seqs.step),
                run.head,
                run.heads,
                tuple(run.attributes),
                run.expires_at,
                run.redelivered,
                run.attempts,
                list(map(len, run.contents)),
            )
        )
        self._bodies += run.contents
        self.size += run.size

    def encode(self, queue_id: int) -> list[bytes]:
        return frames.events(queue_id, _encode(self._events), self._bodies)


class Reader:
    """Reads deliveries, whose bodies follow the events in their order."""

    __slots__ = ("_at", "_bodies")

    def __init__(self, bodies: memoryview) -> None:
        self._bodies = bodies
        self._at = 0

    def delivery(self, event: tuple[Any, ...]) -> tuple[tuple[Any, ...], int, Run]:
        """Raises frames.FrameError."""
        try:
            _, key, first_id, seqs, head, heads, attributes, expires_at, redelivered, attempts, sizes = event
            run = Run(range(*seqs), None, head, Attributes(*attributes), expires_at, sum(sizes))
        except (TypeError, ValueError) as error:
            raise frames.FrameError(f"a delivery: {error}") from None
        run.heads = heads
        run.redelivered, run.attempts = redelivered, attempts
        ends = list(accumulate(sizes, initial=self._at))
        if ends[-1] > len(self._bodies):
            raise frames.FrameError("a delivery without its bodies")
        run.contents = [bytes(self._bodies[start:end]) for start, end in zip(ends, ends[1:], strict=False)]
        self._at = ends[-1]
        return tuple(key), first_id, run


def decode(head: memoryview) -> list[tuple[Any, ...]]:
    """Raises frames.FrameError."""
    try:
        return _decoder.decode(head)
    except msgspec.MsgspecError as error:
        raise frames.FrameError(f"events: {error}") from None
