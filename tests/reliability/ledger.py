"""The messages that a queue must hold after a crash, given what its clients were told before it.

A message must be there if it was confirmed and no ack for it was sent. It may be there if its confirm or the
effect of its ack was still on the way. It must not be there if it was never published, or was acked for good:
an answer that follows the sync came after the ack, on the same channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Found(NamedTuple):
    seq: int
    redelivered: bool


class Ledger:
    """One queue. While there is load each set belongs to one thread; the test reads it when they have
    ended.
    """

    def __init__(self, queue: str, order: Callable[[int], object] = int) -> None:
        self.queue = queue
        #: Messages are handed out in the order of this key.
        self.order = order
        self.published: set[int] = set()
        self.confirmed: set[int] = set()
        #: Messages that clients have received.
        self.received: set[int] = set()
        #: Acks sent, and those of them that are on disk for certain.
        self.acked: set[int] = set()
        self.gone: set[int] = set()

    def sent_acks(self, seqs: Sequence[int]) -> None:
        self.acked.update(seqs)

    def taken_acks(self, seqs: Sequence[int]) -> None:
        self.gone.update(seqs)

    def check(self, found: Sequence[Found], flagged_max: int) -> None:
        """Compare with the messages found."""
        name = self.queue
        seqs = [message.seq for message in found]
        there = set(seqs)
        assert len(there) == len(seqs), (
            f"{name}: {_some(seqs, lambda seq: seqs.count(seq) > 1)} more than once"
        )
        lost = self.confirmed - self.acked - there
        assert not lost, f"{name}: {len(lost)} confirmed messages lost, such as {sorted(lost)[:10]}"
        strange = there - self.published
        assert not strange, f"{name}: {len(strange)} messages from nowhere, such as {sorted(strange)[:10]}"
        back = there & self.gone
        assert not back, f"{name}: {len(back)} acked messages came back, such as {sorted(back)[:10]}"
        assert seqs == sorted(seqs, key=self.order), f"{name}: out of order"  # type: ignore[arg-type]
        unflagged = [m.seq for m in found if not m.redelivered and m.seq in self.received]
        assert not unflagged, f"{name}: delivered before, not flagged: {unflagged[:10]}"
        flagged = [m.seq for m in found if m.redelivered and m.seq not in self.received]
        assert len(flagged) <= flagged_max, f"{name}: never handed out, but flagged: {flagged[:10]}"

    def adopt(self, found: Sequence[Found]) -> None:
        """From now on the queue holds these messages, and clients have seen all of them."""
        self.published = {message.seq for message in found}
        self.confirmed = set(self.published)
        self.received = set(self.published)
        self.acked, self.gone = set(), set()


def _some(seqs: Sequence[int], wanted: Callable[[int], bool]) -> list[int]:
    return [seq for seq in seqs[:2000] if wanted(seq)][:10]
