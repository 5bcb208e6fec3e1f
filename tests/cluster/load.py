"""Publishers with confirms and consumers with acks on all nodes, which go on whatever faults the nodes have.

A client belongs to one node. When its connection breaks it connects to the same node again. It is a failure
if the connection breaks although the node had no fault, or if a channel is closed at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from pamqp import commands

from conformance_tests.patience import PATIENCE_S
from tests.cluster.ledger import Ledger, Reader, Streams
from tests.cluster.nodes import Cluster, wait_for
from tests.reliability.bodies import body, number
from tests.reliability.client import Address, ChannelClosed, Client, Confirm, Delivery, Event, Gone, settle

BATCH = 2
BATCH_EVERY_S = 0.02
WINDOW = 200
MOVED = "the queue has moved; try again"
COMMIT_EVERY_S = 0.05
COMMIT_MESSAGES = 10
PREFETCH = 50
BODY_BYTES = 200
VOUCH_EVERY_S = 0.3
RECONNECT_S = 0.05
LOOK_S = 0.2
ACK, NACK = 80, 120
#: How long publishers wait for outstanding confirms when publishing ends.
FINISH_S = PATIENCE_S
JOIN_MAX_S = 1.5 * PATIENCE_S
NOTHING_COMES_S = 4.0
BROKEN = (Gone, OSError, TimeoutError)


class Judge(Protocol):
    """Knows which faults each node has."""

    def down(self, name: str, since: float) -> bool:
        """Return whether a client that has been connected to this node since then may lose its connection."""

    def fail(self, text: str) -> None: ...


class Worker:
    """A client in a thread of its own."""

    def __init__(self, cluster: Cluster, node: str, ledger: Ledger, judge: Judge) -> None:
        self.cluster = cluster
        self.node = node
        self.ledger = ledger
        self.judge = judge
        self.stopping = threading.Event()
        #: Times of confirms, or of deliveries.
        self.heard: list[float] = []
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    @property
    def name(self) -> str:
        return f"{type(self).__name__} of {self.ledger.queue} at {self.node}"

    def start(self) -> None:
        self._thread.start()

    def join(self, within_s: float) -> None:
        self._thread.join(within_s)
        if self._thread.is_alive():
            self.judge.fail(f"{self.name} hangs")

    def _guarded(self) -> None:
        try:
            while not self.stopping.is_set():
                if self.wanted():
                    self._once()
                self.stopping.wait(RECONNECT_S)
        except BaseException as error:  # noqa: BLE001  it is told where the run is judged
            self.judge.fail(f"{self.name}: {type(error).__name__}: {error}")

    def _once(self) -> None:
        """Serve one connection, from its beginning to its end."""
        client: Client | None = None
        began = time.monotonic()
        try:
            client = Client(self.cluster.port(self.node))
            self.session(client)
        except BROKEN as error:
            # Asked only now: a connection may notice a fault before the test has noted it down.
            if not self.judge.down(self.node, began) and not self.stopping.is_set():
                self.judge.fail(f"{self.node} lives, and drops or refuses clients: {error}")
        except ChannelClosed as error:
            # A request that was under way when the node left the queue is refused.
            if MOVED not in str(error) and not self.judge.down(self.node, began):
                self.judge.fail(f"{self.node}: {error}")
        finally:
            self.ended()
            if client is not None:
                client.close()

    def wanted(self) -> bool:
        """Whether the worker should have a connection now."""
        return True

    def session(self, client: Client) -> None:
        raise NotImplementedError

    def ended(self) -> None:
        """The connection is gone; another one may follow."""

    def silence(self, since: float, until: float) -> float:
        """The longest time without a confirm or a delivery, in seconds."""
        times = [since, *(at for at in self.heard if since < at < until), until]
        return max(later - earlier for earlier, later in zip(times, times[1:], strict=False))


class Publisher(Worker):
    """Publishes at a steady rate, as far as the number of unconfirmed messages may grow."""

    def __init__(
        self, cluster: Cluster, node: str, ledger: Ledger, judge: Judge, streams: Streams, size: int
    ) -> None:
        super().__init__(cluster, node, ledger, judge)
        self._streams = streams
        self._size = size
        self._address = Address("", ledger.queue)
        self._unconfirmed: dict[int, int] = {}
        self.confirmed = 0

    def session(self, client: Client) -> None:
        client.confirms()
        stream, tag = self._streams.next(), 0
        due = time.monotonic()
        while not self.stopping.is_set():
            now = time.monotonic()
            if now >= due and len(self._unconfirmed) < WINDOW:
                messages = [stream + tag + i for i in range(1, BATCH + 1)]
                self.ledger.publish(messages)
                self._unconfirmed.update((message - stream, message) for message in messages)
                tag += BATCH
                client.send(self.frames(messages))
                due = max(due + BATCH_EVERY_S, now)
            full = len(self._unconfirmed) >= WINDOW
            self._take(client.receive(LOOK_S if full else max(0.0, due - time.monotonic())))
        deadline = time.monotonic() + FINISH_S
        while self._unconfirmed and time.monotonic() < deadline:
            self._take(client.receive(LOOK_S))
        if self._unconfirmed:
            self.judge.fail(
                f"{self.name}: {len(self._unconfirmed)} publishes were not answered within {FINISH_S} s"
            )

    def frames(self, messages: Sequence[int]) -> bytes:
        return b"".join(self._address.message(body(message, self._size)) for message in messages)

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            if not isinstance(event, Confirm):
                raise AssertionError(f"a confirm was due, {event!r} came")
            tags = [event.tag]
            if event.multiple:
                tags = [tag for tag in self._unconfirmed if tag <= event.tag]
            messages = [self._unconfirmed.pop(tag) for tag in tags]
            if event.nack:
                self.ledger.nack(messages)
                continue
            self.ledger.confirm(messages)
            self.confirmed += len(messages)
            self.heard.append(time.monotonic())

    def ended(self) -> None:
        # Nobody can say whether these arrived; the ledger accepts both.
        self._unconfirmed = {}


class Committer(Worker):
    """Publishes in transactions, one after the other; commit-ok confirms all of one."""

    def __init__(
        self, cluster: Cluster, node: str, ledger: Ledger, judge: Judge, streams: Streams, size: int
    ) -> None:
        super().__init__(cluster, node, ledger, judge)
        self._streams = streams
        self._size = size
        self._address = Address("", ledger.queue)
        self.committed = 0
        #: Commits answered by closing the channel: nobody knows whether these took place.
        self.refused = 0

    def session(self, client: Client) -> None:
        client.call(commands.Tx.Select(), commands.Tx.SelectOk)
        stream, last = self._streams.next(), 0
        while not self.stopping.wait(COMMIT_EVERY_S):
            messages = [stream + last + i for i in range(1, COMMIT_MESSAGES + 1)]
            last += COMMIT_MESSAGES
            self.ledger.publish(messages)
            client.send(b"".join(self._address.message(body(each, self._size)) for each in messages))
            # Meanwhile the queue may move.
            self.stopping.wait(COMMIT_EVERY_S)
            try:
                client.call(commands.Tx.Commit(), commands.Tx.CommitOk)
            except ChannelClosed:
                self.refused += 1
                return
            self.ledger.confirm(messages)
            self.committed += len(messages)
            self.heard.append(time.monotonic())


class Consumer(Worker):
    """A consumer that acks its messages one by one."""

    def __init__(self, cluster: Cluster, node: str, ledger: Ledger, judge: Judge) -> None:
        super().__init__(cluster, node, ledger, judge)
        #: While this is set, the consumer consumes nothing, and its unacked messages go back.
        self.paused = threading.Event()
        #: Set while it consumes.
        self.attached = threading.Event()

    def wanted(self) -> bool:
        return not self.paused.is_set()

    def session(self, client: Client) -> None:
        reader = Reader(self.node, PREFETCH)
        client.consume(self.ledger.queue, PREFETCH)
        self.attached.set()
        #: For each open request, the number of acks that had been sent before it.
        asked: list[int] = []
        next_question = time.monotonic() + VOUCH_EVERY_S
        while not self.stopping.is_set() and not self.paused.is_set():
            frames: list[bytes] = []
            messages: list[int] = []
            for event in client.receive(0.1):
                if isinstance(event, Delivery):
                    message = number(event.body)
                    self.ledger.deliver(reader, message, event.redelivered)
                    messages.append(message)
                    frames.append(settle(ACK, event.tag, 0))
                elif isinstance(event, commands.Queue.DeclareOk) and asked:
                    self.ledger.vouch(reader, asked.pop(0))
                else:
                    raise AssertionError(f"a delivery was due, {event!r} came")
            if frames:
                self.heard.append(time.monotonic())
                self.ledger.ack(reader, messages)
                client.send(b"".join(frames))
            if self.cluster.answers_vouch and time.monotonic() >= next_question and not asked:
                asked.append(len(reader.acks))
                client.method(commands.Queue.Declare(queue=self.ledger.queue, passive=True))
                next_question = time.monotonic() + VOUCH_EVERY_S

    def ended(self) -> None:
        self.attached.clear()


class Load:
    """A publisher and a consumer for each queue on each node."""

    def __init__(
        self, cluster: Cluster, ledgers: Sequence[Ledger], judge: Judge, *, size: int = BODY_BYTES
    ) -> None:
        self.cluster = cluster
        self.ledgers = ledgers
        streams = self.connections = Streams()
        places = [(node, ledger) for ledger in ledgers for node in cluster.names]
        self.publishers = [Publisher(cluster, node, ledger, judge, streams, size) for node, ledger in places]
        #: These are not started with the others.
        self.committers = [Committer(cluster, node, ledger, judge, streams, size) for node, ledger in places]
        self.consumers = [Consumer(cluster, node, ledger, judge) for node, ledger in places]
        #: Consumers of streams, which are not paused.
        self.consumers_of_logs: list[Worker] = []

    def start(self) -> None:
        for worker in [*self.consumers, *self.consumers_of_logs, *self.publishers]:
            worker.start()
        self.wait_all_confirmed("at the start", since=time.monotonic())

    def wait_all_confirmed(self, when: str, since: float, within_s: float = PATIENCE_S) -> float:
        """Wait until every publisher got a confirm after `since`; return how long after it the last one
        did.
        """

        def silent() -> list[str]:
            return [p.name for p in self.publishers if not p.heard or p.heard[-1] <= since]

        wait_for(
            f"every publisher gets confirms {when}", lambda: not silent(), within_s, lambda: str(silent())
        )
        return max(next(at for at in p.heard if at > since) for p in self.publishers) - since

    def pause(self, paused: bool) -> None:
        """Have consumers give back their messages and consume nothing, or consume again."""
        for consumer in self.consumers:
            if paused:
                consumer.paused.set()
            else:
                consumer.paused.clear()

    @property
    def confirmed(self) -> int:
        return sum(len(ledger.confirmed) for ledger in self.ledgers)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Within this, publishers with transactions run, too."""
        for committer in self.committers:
            committer.start()
        try:
            yield
        finally:
            _end(self.committers)

    def stop_publishing(self) -> None:
        _end(self.publishers)

    def drain(self, within_s: float = PATIENCE_S) -> None:
        """Wait until consumers have had all confirmed messages, and the queues say that they are empty. The
        ledger reports the missing ones: if queues are empty and no message comes any more, none will.
        """
        moved, seen = time.monotonic(), -1

        def over() -> bool:
            nonlocal moved, seen
            deliveries = sum(ledger.deliveries for ledger in self.ledgers)
            if deliveries != seen:
                moved, seen = time.monotonic(), deliveries
            if any(self.cluster.depth(ledger.queue) != (0, 0) for ledger in self.ledgers):
                return False
            missing = any(ledger.waiting() for ledger in self.ledgers)
            return not missing or time.monotonic() - moved > NOTHING_COMES_S

        with suppress(AssertionError):
            wait_for("drained", over, within_s)

    def stop(self) -> None:
        _end([*self.publishers, *self.consumers, *self.consumers_of_logs])


def _end(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.stopping.set()
    deadline = time.monotonic() + JOIN_MAX_S
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))


def longest_silence(
    workers: Sequence[Worker], since: float, until: float, wanted: Callable[[str], bool]
) -> float | None:
    """For the publishers, or consumers, of the wanted nodes; None if there are none."""
    return max((one.silence(since, until) for one in workers if wanted(one.node)), default=None)
