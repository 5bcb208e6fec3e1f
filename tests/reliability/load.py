"""Publishers and consumers that note the broker's answers in ledgers, until the broker is killed under
them.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from pamqp import commands

from conformance_tests.patience import PATIENCE_S
from tests.reliability.bodies import body, number
from tests.reliability.client import Address, Client, Confirm, Delivery, Gone, settle
from tests.reliability.ledger import Ledger

BATCH = 20
WINDOW = 400
PAUSE_S = 0.012
SYNC_EVERY_S = 0.1
ACK, NACK, REQUEUE = 80, 120, 2


class Worker:
    """A client in a thread of its own. Any error is a failure of the test, unless the broker is gone."""

    def __init__(self, port: int) -> None:
        self.client = Client(port)
        self.error: BaseException | None = None
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def _guarded(self) -> None:
        try:
            with contextlib.suppress(Gone):
                self.run()
        except BaseException as error:  # noqa: BLE001  it is raised where the test waits
            self.error = error
        finally:
            self.client.close()

    def run(self) -> None:
        raise NotImplementedError

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "a client hangs although the broker is gone"
        if self.error is not None:
            raise self.error


class Publisher(Worker):
    """Publishes with confirms to one address, which feeds one queue or several."""

    def __init__(
        self,
        port: int,
        numbers: count[int],
        addresses: Sequence[Address],
        size: int,
        ledgers: Sequence[Ledger],
    ) -> None:
        self._numbers = numbers
        self._addresses = addresses
        self._size = size
        self._ledgers = ledgers
        self._unconfirmed: dict[int, int] = {}
        self._tag = 0
        super().__init__(port)

    def run(self) -> None:
        self.client.confirms()
        while not self.stopping.is_set():
            self._publish()
            self._note(self.client.receive(PAUSE_S if len(self._unconfirmed) < WINDOW else None))

    def _publish(self) -> None:
        batch: list[bytes] = []
        for _ in range(BATCH):
            seq = next(self._numbers)
            self._tag += 1
            self._unconfirmed[self._tag] = seq
            for ledger in self._ledgers:
                ledger.published.add(seq)
            address = self._addresses[seq % len(self._addresses)]
            batch.append(address.message(body(seq, self._size)))
        self.client.send(b"".join(batch))

    def _note(self, events: object) -> None:
        for event in events:  # type: ignore[attr-defined]
            assert isinstance(event, Confirm) and not event.nack, event
            tags = [event.tag]
            if event.multiple:
                tags = [tag for tag in self._unconfirmed if tag <= event.tag]
            seqs = [self._unconfirmed.pop(tag) for tag in tags]
            for ledger in self._ledgers:
                ledger.confirmed.update(seqs)


class TxPublisher(Worker):
    """Publishes in transactions to two queues at once, and in the same transactions acks messages that it
    takes from the first one.
    """

    PER_COMMIT = 7

    def __init__(self, port: int, numbers: count[int], first: Ledger, second: Ledger) -> None:
        self._numbers = numbers
        self._ledgers = (first, second)
        #: Groups of messages, each of which must be there as a whole or not at all.
        self.groups: list[list[int]] = []
        super().__init__(port)

    def run(self) -> None:
        self.client.call(commands.Tx.Select(), commands.Tx.SelectOk)
        addresses = [Address("", ledger.queue) for ledger in self._ledgers]
        while not self.stopping.is_set():
            group = [next(self._numbers) for _ in range(self.PER_COMMIT)]
            self.groups.append(group)
            for ledger in self._ledgers:
                ledger.published.update(group)
            for seq in group:
                for address in addresses:
                    self.client.send(address.message(body(seq, 200)))
            self.client.call(commands.Tx.Commit(), commands.Tx.CommitOk)
            for ledger in self._ledgers:
                ledger.confirmed.update(group)


class Consumer(Worker):
    """Takes messages and settles them in a given way."""

    PREFETCH = 50

    def __init__(
        self,
        port: int,
        ledger: Ledger,
        settling: Callable[[Consumer, Delivery, int], None],
        **arguments: Any,
    ) -> None:
        self._arguments = arguments
        self.ledger = ledger
        self._settling = settling
        #: Messages acked, where the broker may not have seen the ack yet.
        self.in_flight: list[int] = []
        self.random = random.Random(ledger.queue)
        self.held: list[tuple[int, int]] = []
        super().__init__(port)

    def run(self) -> None:
        self.client.consume(self.ledger.queue, self.PREFETCH)
        synced = time.monotonic()
        while not self.stopping.is_set():
            for event in self.client.receive(SYNC_EVERY_S):
                assert isinstance(event, Delivery), event
                seq = number(event.body)
                self.ledger.received.add(seq)
                self._settling(self, event, seq)
            if time.monotonic() - synced > SYNC_EVERY_S:
                acks, self.in_flight = self.in_flight, []
                # A second declare changes nothing, but its answer waits for the disk.
                self.client.declare(self.ledger.queue, **self._arguments)
                self.ledger.taken_acks(acks)
                synced = time.monotonic()

    def settle(self, method: int, tag: int, bits: int, seqs: Sequence[int]) -> None:
        """Send the method, by which `seqs` leave the queue."""
        self.ledger.sent_acks(seqs)
        self.client.send(settle(method, tag, bits))
        self.in_flight += seqs


def one_by_one(consumer: Consumer, delivery: Delivery, seq: int) -> None:
    consumer.settle(ACK, delivery.tag, 0, [seq])


def multiple(consumer: Consumer, delivery: Delivery, seq: int) -> None:
    consumer.held.append((delivery.tag, seq))
    if len(consumer.held) == 20:
        consumer.settle(ACK, delivery.tag, 1, [seq for _, seq in consumer.held])
        consumer.held.clear()


def returning(consumer: Consumer, delivery: Delivery, seq: int) -> None:
    """Give every third message back the first time; leave every tenth unacked for a while."""
    if not delivery.redelivered and seq % 3 == 0:
        consumer.settle(NACK, delivery.tag, REQUEUE, [])
    elif seq % 10 == 0 and len(consumer.held) < 30:
        consumer.held.append((delivery.tag, seq))
    else:
        consumer.settle(ACK, delivery.tag, 0, [seq])
        if len(consumer.held) == 30:
            tag, late = consumer.held.pop(consumer.random.randrange(30))
            consumer.settle(ACK, tag, 0, [late])


def rejecting(consumer: Consumer, delivery: Delivery, seq: int) -> None:
    """Reject messages, which go to the dead-letter exchange: when their bodies have been read, so no later
    answer tells that they have left the queue.
    """
    consumer.ledger.sent_acks([seq])
    consumer.client.send(settle(NACK, delivery.tag, 0))
