"""Events that a queue's home sends to the node of a publisher or consumer, as bytes: the events, then bodies.

(DELIVERED, key, first id, run…)   (CONFIRMED, token, first, last)   (REFUSED, token, first, last)
(ATTACHED, key, refusal or None)   (GOT_NOTHING, key)                (PURGED, token, count)
(DONE, batch, ready, ready bytes, unacked, consumers)                (MOVED, batch)
(SEALED, token, outcome, ready)    from versions.SEALS on, as an answer to a seal
(PREPARED, token, outcome)         from versions.TRANSACTIONS on, as an answer to a prepare
(STATUS, token, answer)            from versions.RECORD on; see message_status.answers
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec

from quorum_queue.cluster import frames
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.message_status.answers import of_plain

DELIVERED, CONFIRMED, REFUSED, ATTACHED, GOT_NOTHING, PURGED = range(1, 7)
DONE, MOVED, SEALED, PREPARED, STATUS = range(7, 12)

#: Outcome of a seal, or of a part of a transaction, that the home cannot tell: the queue has moved or failed.
UNKNOWN = -1

#: Number of fields of each event, its kind included.
_FIELDS = {
    CONFIRMED: 4,
    REFUSED: 4,
    ATTACHED: 3,
    GOT_NOTHING: 2,
    PURGED: 3,
    DONE: 6,
    MOVED: 2,
    SEALED: 4,
    PREPARED: 3,
    STATUS: 3,
}

#: Size of a frame, in bytes of bodies.
FRAME_BYTES = 1 << 20

_decoder = msgspec.msgpack.Decoder(list[tuple[Any, ...]])
_encode = msgspec.msgpack.encode
#: Bits of a delivery's counts.
_ACQUIRED_SHIFT: Final = 31
_ATTEMPTS_MASK: Final = (1 << _ACQUIRED_SHIFT) - 1


class Stats(NamedTuple):
    """How full the queue is, as its home sees it."""

    ready: int
    ready_bytes: int
    unacked: int
    consumers: int


class Events:
    """Events for one node, gathered over a turn. Frames have about FRAME_BYTES of them; one message may be
    larger.
    """

    __slots__ = ("_bodies", "_events", "_size", "_whole")

    def __init__(self) -> None:
        #: Events and bodies of the frames that are full.
        self._whole: list[tuple[list[tuple[Any, ...]], list[bytes]]] = []
        #: Those of the last frame, and the bytes of the bodies.
        self._events: list[tuple[Any, ...]] = []
        self._bodies: list[bytes] = []
        self._size = 0

    def add(self, *event: Any) -> None:
        self._events.append(event)

    def deliver(self, key: tuple[Any, ...], first_id: int, run: Run) -> None:
        assert run.contents is not None
        if self._size + run.size <= FRAME_BYTES:
            self._deliver(key, first_id, run, 0, len(run.contents))
            return
        first, size = 0, 0
        for index, content in enumerate(run.contents):
            if self._size + size + len(content) > FRAME_BYTES:
                if index > first:
                    self._deliver(key, first_id, run, first, index)
                if self._size:
                    self._whole.append((self._events, self._bodies))
                    self._events, self._bodies, self._size = [], [], 0
                first, size = index, 0
            size += len(content)
        self._deliver(key, first_id, run, first, len(run.contents))

    def _deliver(self, key: tuple[Any, ...], first_id: int, run: Run, first: int, stop: int) -> None:
        """Add the messages from `first` to before `stop`."""
        assert run.contents is not None
        seqs, contents = run.seqs[first:stop], run.contents[first:stop]
        assert isinstance(seqs, range)
        self._events.append(
            (
                DELIVERED,
                key,
                first_id + first,
                (seqs.start, seqs.stop, seqs.step),
                run.head,
                None if run.heads is None else run.heads[first:stop],
                tuple(run.attributes),
                run.expires_at,
                run.redelivered,
                # Queues count both from versions.FAILURES on, which all nodes know then.
                run.attempts | run.acquired << _ACQUIRED_SHIFT,
                list(map(len, contents)),
            )
        )
        self._bodies += contents
        self._size += sum(map(len, contents))

    def encode(self, queue_id: int) -> list[list[bytes]]:
        """Return the parts of each frame."""
        parts = [*self._whole, (self._events, self._bodies)]
        return [frames.events(queue_id, _encode(found), bodies) for found, bodies in parts if found]


def decode(head: memoryview, bodies: memoryview) -> list[tuple[Any, ...]]:
    """Return the events, deliveries as (DELIVERED, key, first id, run). Raises frames.FrameError.

    All events are read before any takes effect, so that a malformed event fails the peer, not the queue.
    """
    try:
        found = _decoder.decode(head)
        at = 0
        for index, event in enumerate(found):
            if event[0] == DELIVERED:
                delivery = _delivery(event, bodies, at)
                found[index] = delivery
                at += delivery[3].size
            elif len(event) != _FIELDS[event[0]]:
                raise frames.FrameError(f"an event of kind {event[0]} has {len(event)} fields")
            elif event[0] == STATUS:
                found[index] = STATUS, event[1], of_plain(event[2])
        return found
    except (CodecError, msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
        raise frames.FrameError(f"events: {error!r}") from None


def _delivery(event: tuple[Any, ...], bodies: memoryview, at: int) -> tuple[int, tuple[Any, ...], int, Run]:
    """The bodies of a delivery follow those of the one before it."""
    _, key, first_id, seqs, head, heads, attributes, expires_at, redelivered, attempts, sizes = event
    run = Run(range(*seqs), None, head, Attributes(*attributes), expires_at, sum(sizes))
    run.heads = heads
    run.redelivered = redelivered
    run.attempts, run.acquired = attempts & _ATTEMPTS_MASK, attempts >> _ACQUIRED_SHIFT
    ends = list(accumulate(sizes, initial=at))
    if ends[-1] > len(bodies):
        raise frames.FrameError("a delivery without its bodies")
    run.contents = [bytes(bodies[start:end]) for start, end in zip(ends, ends[1:], strict=False)]
    return DELIVERED, tuple(key), first_id, run
