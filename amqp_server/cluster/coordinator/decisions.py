"""What the cluster has decided about transactions, as a part of the state that all nodes keep. Pure.

The first decision about a transaction in the log of group 0 stands. Only the node that commits a transaction
proposes to commit it, and only when every queue has its part; whoever finds a part without news proposes to
abort. A decision is kept until all of the transaction's queues have answered that they have done what it
says, and for an abort also the node that might propose to commit (COMMITTER): so nothing of a transaction is
ever found without its decision, except what may be aborted.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quorum_queue.machine.parts import TransactionId

#: Among the queues of an abort: the node that might propose to commit.
COMMITTER = 0


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """The decision that a node proposes about a transaction over these queues."""

    transaction: TransactionId
    committed: bool
    queues: tuple[int, ...]
    #: Its producer, "" if it has none, and the producer's epoch.
    producer: str = ""
    epoch: int = 0


class Decided:
    """A decision that stands, and who has not answered yet: ids of queues, in order."""

    __slots__ = ("committed", "left")

    def __init__(self, committed: bool, left: Iterable[int]) -> None:
        self.committed = committed
        self.left = dict.fromkeys(left)


#: Transaction, decision, and who has not answered yet; and the epochs of producers, the one that was raised
#: longest ago first.
State = tuple[list[tuple[TransactionId, bool, list[int]]], list[tuple[str, int]]]
NO_STATE: State = ([], [])


class Decisions:
    """All decisions that are still wanted."""

    def __init__(self) -> None:
        self.by_id: dict[TransactionId, Decided] = {}
        #: The highest epoch of each producer.
        self.epochs: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def take(self, decision: Decision) -> bool:
        """Apply a proposed decision; return the one that stands."""
        decided = self.by_id.get(decision.transaction)
        if decided is None:
            committed = decision.committed
            if committed and decision.producer:
                committed = decision.epoch >= self.epochs.get(decision.producer, -1)
            left = decision.queues if committed else (*decision.queues, COMMITTER)
            decided = self.by_id[decision.transaction] = Decided(committed, left)
        return decided.committed

    def raise_epoch(self, producer: str, epoch: int, most: int) -> None:
        """A producer has begun again: its earlier starts commit nothing more. Remember `most` producers."""
        if epoch <= self.epochs.get(producer, -1):
            return
        self.epochs.pop(producer, None)
        self.epochs[producer] = epoch
        while len(self.epochs) > most:
            del self.epochs[next(iter(self.epochs))]

    def answered(self, transaction: TransactionId, queue_id: int) -> None:
        """A queue has done what was decided. When all have, the decision is forgotten."""
        decided = self.by_id.get(transaction)
        if decided is None:
            return
        decided.left.pop(queue_id, None)
        if not decided.left:
            del self.by_id[transaction]

    def state(self) -> State:
        decisions = [(key, decided.committed, list(decided.left)) for key, decided in self.by_id.items()]
        return decisions, list(self.epochs.items())

    def restore(self, state: State) -> None:
        decisions, epochs = state
        self.by_id = {key: Decided(committed, left) for key, committed, left in decisions}
        self.epochs = dict(epochs)


__all__ = ["COMMITTER", "NO_STATE", "Decided", "Decision", "Decisions", "State"]
