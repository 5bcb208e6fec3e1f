"""Parts of transactions: what a transaction does to this queue, prepared and not decided yet.

A transaction over several queues takes two entries in the log of each. The first ones bring its part: `pend`
for each of its commands, and `prepare`, to which the queue answers whether it can take the part. From then on
the queue keeps the part, whatever happens, until `resolve` says what the transaction's coordinator has
decided. Then all of it takes effect at once, or nothing.

Until then nobody sees the part. Its messages have their positions, so that the log's entry or the journal's
record that brought them stays the one place of their bodies, but they are not among the ready messages; a
queue that refuses what exceeds its limits counts them. Acked deliveries stay unacked, and are with the part
and no longer with their consumer: nobody else settles them, and when the consumer goes they do not go back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from quorum_queue.empty import NO_DICT
from quorum_queue.machine.run import Run

#: A transaction: the node that commits it, that node's start, and a number within the start.
TransactionId = tuple[str, int, int]

# What a queue answers to `prepare`.
#: It takes the part, and keeps it until it is resolved.
READY: Final = 0
#: It has no room (x-overflow=reject-publish).
FULL: Final = 1
#: Deliveries that the transaction acks have gone back to the queue.
LATE: Final = 2
#: Not all of the part has come.
INCOMPLETE: Final = 3
#: It takes no messages: its publishes are paused.
PAUSED: Final = 4


class Pended(NamedTuple):
    """Messages of a part, without the names of those that the queue may have taken before."""

    run: Run
    names: list[bytes | None] | None


class Part:
    """What one transaction does to this queue."""

    __slots__ = (
        "came",
        "count",
        "enqueued",
        "late",
        "message_bytes",
        "participants",
        "position",
        "prepared",
        "settled",
        "since_ms",
        "transaction",
        "unacked_bytes",
        "unacked_count",
    )

    def __init__(self, transaction: TransactionId, since_ms: int) -> None:
        self.transaction = transaction
        #: Number of commands that have come.
        self.came = 0
        #: Its messages, and its acks: (settle, return or discard; the deliveries).
        self.enqueued: list[Pended] = []
        self.settled: list[tuple[str, list[Run]]] = []
        self.count = self.message_bytes = self.unacked_count = self.unacked_bytes = 0
        #: True if deliveries that it acks were not with their consumer any more.
        self.late = False
        #: True if the queue has answered that it takes the part.
        self.prepared = False
        #: Queues of the transaction, by their ids.
        self.participants: list[int] = []
        #: Time of its first command, ms.
        self.since_ms = since_ms
        #: Position of its record in a journal, -1 if it has none.
        self.position = -1

    def add_messages(self, run: Run, names: list[bytes | None] | None) -> None:
        self.enqueued.append(Pended(run, names))
        self.count += len(run.seqs)
        self.message_bytes += run.counted_bytes

    def add_settled(self, verb: str, runs: list[Run]) -> None:
        self.settled.append((verb, runs))
        for run in runs:
            self.unacked_count += len(run.seqs)
            self.unacked_bytes += run.counted_bytes


class Parts:
    """The parts that one queue keeps."""

    __slots__ = ("by_id", "count", "message_bytes", "next_position")

    def __init__(self) -> None:
        self.by_id: dict[TransactionId, Part] = NO_DICT
        #: Messages of all parts, and their bytes as a limit counts them.
        self.count = self.message_bytes = 0
        #: Behind the last record in a journal.
        self.next_position = 0

    def __len__(self) -> int:
        return len(self.by_id)

    def all(self) -> Iterable[Part]:
        return self.by_id.values()

    def of(self, transaction: TransactionId, now_ms: int) -> Part:
        """Return the part of a transaction, a new one if there is none."""
        found = self.by_id.get(transaction)
        if found is None:
            found = Part(transaction, now_ms)
            self.put(found)
        return found

    def put(self, part: Part) -> None:
        if self.by_id is NO_DICT:
            self.by_id = {}
        self.by_id[part.transaction] = part
        self.count += part.count
        self.message_bytes += part.message_bytes

    def add_messages(self, part: Part, run: Run, names: list[bytes | None] | None) -> None:
        part.add_messages(run, names)
        self.count += len(run.seqs)
        self.message_bytes += run.counted_bytes

    def take(self, transaction: TransactionId) -> Part | None:
        """Remove and return the part of a transaction."""
        part = self.by_id.pop(transaction, None) if self.by_id else None
        if part is not None:
            self.count -= part.count
            self.message_bytes -= part.message_bytes
        return part

    def of_starts(self, node: str, incarnation: int) -> list[Part]:
        """Return the parts of this node that are not prepared, up to this start of it."""
        return [
            part
            for part in self.by_id.values()
            if not part.prepared and part.transaction[0] == node and part.transaction[1] <= incarnation
        ]

    def take_positions(self, low: int, high: int) -> tuple[list[Run], list[Run]]:
        """Take the messages with these positions out of all parts, one by one; return those that they bring
        and those that they ack.
        """
        taken: list[Run] = []
        acked: list[Run] = []
        for part in self.by_id.values():
            kept: list[Pended] = []
            for run, names in part.enqueued:
                for index, piece in enumerate(run.singles()):
                    if low <= piece.seqs.start <= high:
                        taken.append(piece)
                        part.count -= 1
                        part.message_bytes -= piece.counted_bytes
                        self.count -= 1
                        self.message_bytes -= piece.counted_bytes
                    else:
                        kept.append(Pended(piece, None if names is None else [names[index]]))
            part.enqueued = kept
            for place, (verb, runs) in enumerate(part.settled):
                held: list[Run] = []
                for run in runs:
                    for piece in run.singles():
                        if low <= piece.seqs.start <= high:
                            acked.append(piece)
                            part.unacked_count -= 1
                            part.unacked_bytes -= piece.counted_bytes
                        else:
                            held.append(piece)
                part.settled[place] = verb, held
        return taken, acked


__all__ = ["FULL", "INCOMPLETE", "LATE", "READY", "Part", "Parts", "Pended", "TransactionId"]
