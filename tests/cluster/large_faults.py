"""Faults while something very large is under way: a message, or a transaction. The load of the scene goes on
beside it, in queues of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pika
from pamqp import commands

from conformance_tests.patience import PATIENCE_S, patient
from tests.cluster.nodes import wait_for
from tests.cluster.scene import QUORUM, Scene
from tests.reliability.bodies import number
from tests.reliability.client import Address, ChannelClosed, Client, Gone

MIB = 1 << 20
PERSISTENT = pika.BasicProperties(delivery_mode=2)
#: A message that has to be cut into entries of the log; see docs/adr/0044.
LARGE_BYTES = 66 * MIB
LARGE_COUNT = 3
#: Messages of a transaction in each of its queues, and transactions.
PARTS = 4_000
COMMITS = 4
PART_BYTES = 100
KILLS = 3
HOLD_S = 1.0
#: All of it has to be over by then, s.
WITHIN_S = 5 * PATIENCE_S
BROKEN = (Gone, OSError, TimeoutError, ChannelClosed)


class Work(threading.Thread):
    """Something that a client does again until it has succeeded, at whichever node answers."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(daemon=True)
        self.scene = scene
        self.until = time.monotonic() + WITHIN_S
        #: What was repeated because nobody could say what had become of it.
        self.unknown = 0

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001  it is told where the scene is judged
            self.scene.fail(f"{type(self).__name__}: {type(error).__name__}: {error}")

    def work(self) -> None:
        raise NotImplementedError

    def attempts(self) -> Iterator[str]:
        """Yield a node for each attempt."""
        names = list(self.scene.cluster.names)
        while time.monotonic() < self.until:
            yield self.scene.random.choice(names)
            time.sleep(0.1)
        raise TimeoutError(f"not within {WITHIN_S} s")

    def finish(self) -> None:
        self.join(max(0.0, self.until - time.monotonic()))
        if self.is_alive():
            self.scene.fail(f"{type(self).__name__} hangs")


def _strike_while(scene: Scene, work: Work, queue: str) -> None:
    """Kill the queue's leader at random moments while the work goes on, and a follower with it at times."""
    work.start()
    for turn in range(KILLS):
        scene.hold(scene.random.uniform(0.1, 2.0))
        leader = scene.cluster.leader(queue)
        others = [name for name in scene.cluster.names if name != leader]
        names = [leader, *others[: turn % 2]]
        with scene.killed(*names):
            scene.hold(HOLD_S)
        scene.caught_up()
    work.finish()


def _made(scene: Scene, *queues: str) -> None:
    with closing(Client(scene.cluster.port(scene.cluster.names[0]))) as client:
        for queue in queues:
            client.declare(queue, **QUORUM)


def _deleted(scene: Scene, *queues: str) -> None:
    for name in scene.cluster.names:
        if failed := scene.cluster.failed(name):
            scene.fail(f"{name} has failed queues: {failed}")
    with closing(Client(scene.cluster.port(scene.cluster.names[0]))) as client:
        for queue in queues:
            client.call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)


# -- messages ------------------------------------------------------------------------------------------------


def _connect(scene: Scene, node: str) -> pika.BlockingConnection:
    where = pika.ConnectionParameters("127.0.0.1", scene.cluster.port(node), heartbeat=0)
    return pika.BlockingConnection(patient(where))


def _large(seq: int) -> bytes:
    return seq.to_bytes(8, "big") * (LARGE_BYTES // 8)


class LargeMessages(Work):
    """Publishes large messages, each again until it is confirmed."""

    def __init__(self, scene: Scene, queue: str) -> None:
        super().__init__(scene)
        self.queue = queue

    def work(self) -> None:
        for seq in range(LARGE_COUNT):
            for node in self.attempts():
                try:
                    self._publish(node, _large(seq))
                except (pika.exceptions.AMQPError, OSError):
                    # A nack, or a connection that is gone.
                    self.unknown += 1
                else:
                    break

    def _publish(self, node: str, content: bytes) -> None:
        with closing(_connect(self.scene, node)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("", self.queue, content, PERSISTENT)


def kill_during_large_messages(scene: Scene) -> None:
    queue = f"{scene.queues[0]}-large"
    _made(scene, queue)
    work = LargeMessages(scene, queue)
    _strike_while(scene, work, queue)
    expected, found = _count(scene, queue), list[int]()
    with closing(_connect(scene, scene.random.choice(list(scene.cluster.names)))) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        for method, _, content in channel.consume(queue, inactivity_timeout=PATIENCE_S):
            if method is None:
                break
            seq = int.from_bytes(content[:8], "big")
            if content != _large(seq):
                scene.fail(f"{queue}: a message of {len(content)} bytes was changed")
            found.append(seq)
            channel.basic_ack(method.delivery_tag)
            if len(found) == expected:
                break
        channel.cancel()
    # A message whose answer got lost may be there twice.
    if {*found} != {*range(LARGE_COUNT)} or len(found) > LARGE_COUNT + work.unknown:
        scene.fail(f"{queue}: {found} of {LARGE_COUNT} messages, {work.unknown} of them sent again")
    _deleted(scene, queue)


def _count(scene: Scene, queue: str) -> int:
    """Return how many messages the queue has, delivered ones included."""
    scene.caught_up()
    counts = [0, 0]

    def told() -> bool:
        counts[:] = scene.cluster.depth(queue)
        return sum(counts) >= LARGE_COUNT

    wait_for(f"{queue} has its messages", told, state=lambda: str(counts))
    return sum(counts)


# -- transactions --------------------------------------------------------------------------------------------


class Commits(Work):
    """Commits large transactions over several queues, one after the other."""

    def __init__(self, scene: Scene, queues: tuple[str, ...]) -> None:
        super().__init__(scene)
        self.queues = queues
        self.committed = 0

    def work(self) -> None:
        addresses = [Address("", queue) for queue in self.queues]
        for node in self.attempts():
            with suppress(*BROKEN), closing(Client(self.scene.cluster.port(node))) as client:
                client.call(commands.Tx.Select(), commands.Tx.SelectOk)
                while self.committed < COMMITS:
                    client.publish_numbered(addresses, PARTS, PART_BYTES)
                    self.unknown += 1
                    client.call(commands.Tx.Commit(), commands.Tx.CommitOk)
                    self.unknown -= 1
                    self.committed += 1
            if self.committed >= COMMITS:
                return


class Watcher(Work):
    """Counts the messages of the queues at one node all the time: never is there a part of a transaction."""

    def __init__(self, scene: Scene, node: str, queues: tuple[str, ...]) -> None:
        super().__init__(scene)
        self.node = node
        self.queues = queues
        self.stopping = threading.Event()
        self.looked = 0

    def work(self) -> None:
        while not self.stopping.is_set():
            with suppress(*BROKEN), closing(Client(self.scene.cluster.port(self.node))) as client:
                while not self.stopping.is_set():
                    for queue in self.queues:
                        count = client.count(queue)
                        self.looked += 1
                        if count % PARTS:
                            self.scene.fail(f"{self.node} sees {count} messages in {queue}")
            self.stopping.wait(0.1)


def kill_during_large_transactions(scene: Scene) -> None:
    queues = (f"{scene.queues[0]}-first", f"{scene.queues[0]}-second")
    _made(scene, *queues)
    work = Commits(scene, queues)
    watchers = [Watcher(scene, name, queues) for name in scene.cluster.names]
    for watcher in watchers:
        watcher.start()
    _strike_while(scene, work, queues[0])
    counts: list[int] = []

    def settled() -> bool:
        counts[:] = [sum(scene.cluster.depth(queue)) for queue in queues]
        return counts[0] == counts[1] and counts[0] % PARTS == 0 and counts[0] >= COMMITS * PARTS

    wait_for("all of each transaction is there", settled, state=lambda: str(counts))
    for watcher in watchers:
        watcher.stopping.set()
        watcher.finish()
        if not watcher.looked:
            scene.fail(f"{watcher.node} was never looked at")
    if counts[0] > (COMMITS + work.unknown) * PARTS:
        scene.fail(f"{counts} messages of {COMMITS} transactions, {work.unknown} of them unknown")
    for queue in queues:
        seen: dict[int, int] = {}
        with closing(Client(scene.cluster.port(scene.cluster.names[-1]))) as client:
            client.consume(queue, 0)
            for event in client.deliveries(counts[0]):
                seen[number(event.body)] = seen.get(number(event.body), 0) + 1
        if set(seen) != set(range(PARTS)) or len(set(seen.values())) != 1:
            scene.fail(f"{queue}: {len(seen)} different messages of {PARTS}")
    _deleted(scene, *queues)
