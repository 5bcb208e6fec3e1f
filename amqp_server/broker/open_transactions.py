"""Open transactions of this node's clients, the oldest first: they are listed here, and end when they are
older than `tx_timeout_ms`, or when a later start of their producer shuts them out.

A transaction is here from its first publish or ack until its commit or rollback begins, or its channel
closes: it takes itself out, so nothing here keeps a channel that has closed. One timer, for the oldest
transaction, serves all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from amqp_server.broker.timers import Timers
from amqp_server.errors import PreconditionFailed, SoftError
from quorum_queue.boundary import Fatal
from quorum_queue.clock import Clock
from quorum_queue.machine.parts import TransactionId

if TYPE_CHECKING:
    from amqp_server.broker.transactions import Producer

#: Transactions that are ended before the turn may end, and the time until the next ones, ms.
ENDED_AT_ONCE, NEXT_MS = 16, 1
#: A transaction whose client waits for an answer is looked at again after this time, ms.
AGAIN_MS = 1_000


class OpenTransaction(Protocol):
    """See amqp_server.channel.transactions.tx."""

    #: Its number among this node's transactions, and the time of its first publish or ack, ms.
    number: int
    since_ms: int

    @property
    def channel(self) -> Any: ...
    @property
    def published_count(self) -> int: ...
    @property
    def published_bytes(self) -> int: ...
    @property
    def settled_count(self) -> int: ...

    def participants(self) -> list[str]:
        """The names of its queues so far, some of them if there are many."""

    @property
    def producer(self) -> Producer | None:
        """What its channel calls itself, if it does."""

    def why_shut_out(self) -> PreconditionFailed | None:
        """The error for its client if a later start of its producer has shut it out."""

    def end(self, error: SoftError) -> bool:
        """Roll it back and close its channel with this error; False if its client waits for an answer."""


class OpenTransactions:
    """See amqp_server.broker.timers.Wakeable."""

    def __init__(
        self, node: str, timeout_ms: int, clock: Clock, timers: Timers, overdue: Callable[[], bool]
    ) -> None:
        """`timeout_ms` is 0 for no limit. `overdue` says whether the turn has lasted long enough."""
        #: The beginning of all names: one of an earlier start of the node means no transaction of this one.
        self._start = f"{node}:open-{clock.wall_ms():x}:"
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._timers = timers
        self._overdue = overdue
        self._last_number = 0
        #: By number, which is also the order of their ages. The dictionary finds its first item at once, also
        #: after many others before it were removed.
        self._open: OrderedDict[int, OpenTransaction] = OrderedDict()
        #: Those that should have ended, and whose clients waited for an answer; with the time when that was
        #: seen.
        self._late: OrderedDict[int, tuple[int, OpenTransaction]] = OrderedDict()
        #: Those that belong to producers: by the producer's key and their numbers.
        self._of_producers: dict[str, dict[int, OpenTransaction]] = {}
        #: Those that are shut out, and end in the next turns.
        self._shut_out: OrderedDict[int, OpenTransaction] = OrderedDict()
        #: The producer, if any, of the large transaction that is being committed in this node's journal.
        self.producer_under_way: Producer | None = None
        #: Transactions of this node's clients that wait for a decision of the cluster.
        self._committing: dict[TransactionId, Any] = {}

    def __len__(self) -> int:
        return len(self._open) + len(self._late)

    def all(self) -> list[OpenTransaction]:
        return [*(transaction for _, transaction in self._late.values()), *self._open.values()]

    def name_of(self, transaction: OpenTransaction) -> str:
        return f"{self._start}{transaction.number}"

    def find(self, name: str) -> OpenTransaction | None:
        """Return the transaction of this name, None if it is not open here."""
        number = name.removeprefix(self._start)
        if number == name or not (number.isascii() and number.isdecimal() and len(number) < 20):
            return None
        late = self._late.get(int(number))
        return self._open.get(int(number)) if late is None else late[1]

    def add(self, transaction: OpenTransaction) -> None:
        """Give a transaction that begins now its number and its time."""
        self._last_number += 1
        transaction.number = self._last_number
        transaction.since_ms = self._clock.monotonic_ms()
        self._open[transaction.number] = transaction
        self.named(transaction)
        if len(self._open) == 1:
            self._wake_for(transaction)

    def named(self, transaction: OpenTransaction) -> None:
        """An open transaction may have got a producer."""
        producer = transaction.producer
        if producer is not None and transaction.number:
            self._of_producers.setdefault(producer.key, {})[transaction.number] = transaction

    def remove(self, transaction: OpenTransaction) -> None:
        number, producer = transaction.number, transaction.producer
        if self._open.pop(number, None) is None:
            self._late.pop(number, None)
        if producer is not None:
            self._shut_out.pop(number, None)
            others = self._of_producers.get(producer.key, {})
            if others.pop(number, None) is not None and not others:
                del self._of_producers[producer.key]

    def age_ms(self, transaction: OpenTransaction) -> int:
        return self._clock.monotonic_ms() - transaction.since_ms

    # -- producers that begin again --------------------------------------------------------------------------

    def shut_out(self, key: str, epoch: int) -> None:
        """A producer has begun again with this epoch: end what its earlier starts left open here, soon."""
        for number, transaction in self._of_producers.get(key, {}).items():
            producer = transaction.producer
            if producer is not None and producer.epoch < epoch and number in self._open:
                self._shut_out[number] = transaction
        if self._shut_out:
            self._timers.wake(self, self._clock.monotonic_ms())

    def epochs_came(self, epoch_of: Callable[[str], int]) -> None:
        """Producers may have begun again unseen; `epoch_of` returns the epoch of each."""
        for key in self._of_producers:
            self.shut_out(key, epoch_of(key))

    # -- commits of several queues ---------------------------------------------------------------------------

    def committing(self, transaction: TransactionId, channel: Any) -> None:
        """A client's transaction waits for the decision of the cluster."""
        self._committing[transaction] = channel

    def committed(self, transaction: TransactionId) -> None:
        """It is decided, or its client does not wait any more."""
        self._committing.pop(transaction, None)

    def under_way(self) -> list[tuple[TransactionId, Any]]:
        """The transactions of this node's clients that wait for a decision, and their channels."""
        return list(self._committing.items())

    # -- ending them -----------------------------------------------------------------------------------------

    def _wake_for(self, oldest: OpenTransaction) -> None:
        if self._timeout_ms:
            self._timers.wake(self, oldest.since_ms + self._timeout_ms)

    def wake(self) -> None:
        """End what is shut out or too old, some at a time."""
        now_ms = self._clock.monotonic_ms()
        for _ in range(ENDED_AT_ONCE):
            if not self._end_next(now_ms):
                break
            if self._overdue():
                self._timers.wake(self, now_ms + NEXT_MS)
                return
        else:
            self._timers.wake(self, now_ms + NEXT_MS)
            return
        if self._late:
            self._timers.wake(self, next(iter(self._late.values()))[0] + AGAIN_MS)
        if self._open:
            self._wake_for(next(iter(self._open.values())))

    def _end_next(self, now_ms: int) -> bool:
        """End one transaction that is shut out or too old; False if there is none."""
        if self._shut_out:
            number, shut_out = self._shut_out.popitem(last=False)
            del self._open[number]
            self._end(shut_out, now_ms)
            return True
        if self._open and self._timeout_ms:
            oldest = next(iter(self._open.values()))
            if oldest.since_ms + self._timeout_ms <= now_ms:
                del self._open[oldest.number]
                self._end(oldest, now_ms)
                return True
        if self._late:
            since_ms, late = next(iter(self._late.values()))
            if since_ms + AGAIN_MS <= now_ms:
                del self._late[late.number]
                self._end(late, now_ms)
                return True
        return False

    def _end(self, transaction: OpenTransaction, now_ms: int) -> None:
        age_ms = now_ms - transaction.since_ms
        error = transaction.why_shut_out() or PreconditionFailed(
            f"the transaction has been open for {age_ms} ms, and is rolled back: it may stay open for "
            f"{self._timeout_ms} ms (tx_timeout_ms)"
        )
        if not transaction.end(error):
            self._late[transaction.number] = now_ms, transaction

    def failed(self, error: Exception) -> None:
        raise Fatal(f"open transactions could not be looked at: {error!r}") from error


__all__ = ["OpenTransaction", "OpenTransactions"]
