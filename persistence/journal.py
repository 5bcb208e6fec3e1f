"""The journal of the durable queues.

Only `read` and `recover` touch the disk; everything else waits for the next commit.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import itemgetter

from persistence.commits.layer import Append
from persistence.ports import Store
from persistence.record import SEQ_MAX, Payload, Record, RecoveredQueue, size_of


class Journal:
    """All calls on the loop's thread. Submissions become durable with the next commit.

    Submitted payloads must not change afterwards; they are not copied before the commit.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending = store.pending

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet durable."""
        return self._pending.bytes

    def append(
        self, queue_id: int, first_seq: int, count: int, payload: Payload, head_parts: int = 0
    ) -> None:
        """A batch of messages with the sequence numbers from first_seq to first_seq + count - 1.

        A list is the parts of the payload. The first `head_parts` of them are its head, which should be
        small: a restart reads only that. A sequence number is used once in a queue's life, unless the queue
        is dropped.
        """
        if count < 1 or first_seq < 0 or first_seq + count > SEQ_MAX:
            raise ValueError(f"a batch of {count} messages from {first_seq} on")
        self._pending.open.changes(queue_id).append((first_seq, count, payload, head_parts))
        self._pending.count(size_of(payload))

    def settle(self, queue_id: int, seqs: range) -> None:
        """Settle these messages, whether their batch is written yet or not. The range may have a step."""
        if seqs:
            self._pending.open.changes(queue_id).settle(seqs if seqs.step > 0 else seqs[::-1])

    def settle_scattered(self, queue_id: int, seqs: list[int]) -> None:
        """The same for messages that are no range, in order."""
        self._pending.open.changes(queue_id).settle_scattered(seqs)

    def withdraw(self, queue_id: int, seq: int) -> bool:
        """Withdraw a message that was not written yet; False if it is too late.

        It must be the last one appended to the queue, and its commit requested as `alone`; the `done` of that
        is not called then.
        """
        return self._pending.withdraw(queue_id, seq)

    def annotate(self, queue_id: int, seq: int, value: bytes) -> None:
        """Replace the note about a message. It is deleted when the message is settled."""
        self._pending.open.changes(queue_id).annotations[seq] = value

    def annotate_all(self, queue_id: int, seqs: range, value: bytes) -> None:
        """The same for the messages of a range, which may have a step."""
        changes = self._pending.open.changes(queue_id)
        if seqs.step == 1:
            changes.annotate(seqs.start, seqs.stop, value)
        else:
            changes.annotations.update(dict.fromkeys(seqs, value))

    def state(self, queue_id: int, value: bytes) -> None:
        """Replace the small state record of the queue."""
        self._pending.open.changes(queue_id).state = value

    def drop(self, queue_id: int) -> None:
        """Delete all data of a queue."""
        self._pending.open.changes(queue_id).drop()

    def read(self, queue_id: int, first_seq: int, last_seq: int) -> list[Record]:
        """The records that overlap first_seq … last_seq, in order, including those that are not durable yet.

        They may contain settled messages. A damaged record has a fault instead of its payload.
        """
        found: list[Record] = []
        newest_drop = -1
        layers = list(self._pending)
        for at, layer in enumerate(layers):
            changes = layer.queues.get(queue_id)
            if changes is not None and changes.dropped:
                newest_drop = at
        if newest_drop < 0:
            found = self._store.records(queue_id, first_seq, last_seq)
        for layer in layers[max(newest_drop, 0) :]:
            changes = layer.queues.get(queue_id)
            if changes is not None:
                found += _overlapping(changes.in_order(), first_seq, last_seq)
        found.sort(key=itemgetter(0))
        return found

    def warm(self, queue_id: int, spans: list[tuple[int, int]], done: Callable[[], None]) -> bool:
        """True if `read` of these positions does not wait for the disk; spans are first and last position.

        If not, `done` is called once, in a turn, when they can be read.
        """
        return self._store.warm(queue_id, spans, done)

    def warm_queue(self, queue_id: int, bodies_from: int, done: Callable[[], None]) -> bool:
        """The same for `recover_queue`, which reads bodies from that position on."""
        return self._store.warm_queue(queue_id, bodies_from, done)

    def recover_queue(self, queue_id: int) -> RecoveredQueue | None:
        """The stored data of one queue. Use it up at once.

        It must have no pending changes: request a commit `to_store` first.
        """
        if any(queue_id in layer.queues for layer in self._pending):
            raise RuntimeError(f"the store lacks changes of queue {queue_id}")
        return self._store.recover_queue(queue_id)

    def recover(self) -> Iterator[RecoveredQueue]:
        """All queues with stored data. Use them up before the first commit."""
        return self._store.recover()


class SpillJournal(Journal):
    """Transient bodies that did not fit in memory: written in the background, forgotten at a restart."""

    def __init__(self, store: Store, request: Callable[[], None]) -> None:
        """`request` asks for a commit."""
        super().__init__(store)
        self._request = request

    def append(
        self, queue_id: int, first_seq: int, count: int, payload: Payload, head_parts: int = 0
    ) -> None:
        super().append(queue_id, first_seq, count, payload, head_parts)
        self._request()

    def settle(self, queue_id: int, seqs: range) -> None:
        super().settle(queue_id, seqs)
        self._request()

    def settle_scattered(self, queue_id: int, seqs: list[int]) -> None:
        super().settle_scattered(queue_id, seqs)
        self._request()

    def drop(self, queue_id: int) -> None:
        super().drop(queue_id)
        self._request()


def _overlapping(appends: list[Append], first_seq: int, last_seq: int) -> list[Record]:
    at = max(bisect_left(appends, first_seq, key=itemgetter(0)) - 1, 0)
    found = []
    while at < len(appends) and appends[at][0] <= last_seq:
        first, count, payload, _ = appends[at]
        if first + count > first_seq:
            found.append(Record(first, count, payload if isinstance(payload, bytes) else b"".join(payload)))
        at += 1
    return found
