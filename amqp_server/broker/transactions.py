"""What channels need to commit transactions: a coordinator for those over several logs, and the epochs of
producers.

A producer with a name and an epoch is one program that starts again and again, each time with a higher epoch:
its first message with the new epoch shuts out what an earlier start may still do. In a cluster the epochs are
in one log (see amqp_server.cluster.coordinator.transactions); on one node they are records of the node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from amqp_server.broker.metadata import Metadata, decode, encode
from quorum_queue.machine.parts import TransactionId
from quorum_queue.ports import Refused

#: The table of epochs.
TABLE = "producers"


class Producer(NamedTuple):
    """A producer of transactions."""

    #: Virtual host and name.
    key: str
    epoch: int


class ProducerRecord(msgspec.Struct, frozen=True):
    epoch: int


def epochs_in(metadata: Metadata) -> list[tuple[str, int]]:
    """Return the producers that a node without a cluster knows, with their epochs."""
    return [(key, decode(TABLE, key, value, ProducerRecord).epoch) for key, value in metadata.items(TABLE)]


class Transactions(Protocol):
    """See amqp_server.cluster.coordinator.transactions."""

    @property
    def available(self) -> bool:
        """True if queues take parts of transactions, which all nodes know."""

    def begin(self) -> TransactionId:
        """Return the name of a new transaction."""

    def end(self, transaction: TransactionId) -> None:
        """This transaction will not be decided: it has failed, or needed no decision."""

    def decide(
        self,
        transaction: TransactionId,
        queues: list[int],
        producer: Producer | None,
        done: Callable[[bool | Refused], None],
    ) -> None:
        """All queues have their parts: call `done` with what is decided, or with Refused if that is not known
        in time; then it may still be decided. A producer that is shut out does not commit.
        """

    def recover(self) -> None:
        """Read what is on this node's disk."""

    def shut_out(self, producer: Producer) -> None:
        """From now on nobody commits as this producer with a lower epoch. Raises PreconditionFailed if some
        nodes do not know how.
        """

    def epoch_of(self, key: str) -> int:
        """Return the highest epoch of a producer that is known here, -1 if none is."""


class LocalTransactions:
    """On a node without a cluster all queues are in one log, which needs no coordinator."""

    available = False

    def __init__(
        self, metadata: Metadata, producers_max: int, epoch_raised: Callable[[str, int], None]
    ) -> None:
        """`epoch_raised` is called with each producer that begins again, and its new epoch."""
        self._epoch_raised = epoch_raised
        self._metadata = metadata
        self._producers_max = producers_max
        self._epochs: dict[str, int] = {}

    def recover(self) -> None:
        self._epochs = dict(epochs_in(self._metadata))

    def begin(self) -> TransactionId:
        raise NotImplementedError

    def end(self, transaction: TransactionId) -> None:
        raise NotImplementedError

    def decide(self, *_: Any) -> None:
        raise NotImplementedError

    def shut_out(self, producer: Producer) -> None:
        if producer.epoch <= self._epochs.get(producer.key, -1):
            return
        self._epochs.pop(producer.key, None)
        self._epochs[producer.key] = producer.epoch
        self._metadata.put(TABLE, producer.key, encode(ProducerRecord(producer.epoch)))
        if len(self._epochs) > self._producers_max:
            oldest = next(iter(self._epochs))
            del self._epochs[oldest]
            self._metadata.delete(TABLE, oldest)
        self._epoch_raised(producer.key, producer.epoch)

    def epoch_of(self, key: str) -> int:
        return self._epochs.get(key, -1)


__all__ = ["TABLE", "LocalTransactions", "Producer", "Transactions", "epochs_in"]
