"""A consumer group on whole nodes under seeded chance: members at all nodes come and go, with acks and
without, and clients that get messages one by one; nodes crash, leaders change.

`python -m tests.amqp_server.cluster.simulation.groups --seed N` runs one and prints its result (`--trace` all
that happened); `--seeds A:B` runs many. What must hold, in addition to what holds of the stream (see
streams):

- An acked message does not come again, and the committed offset does not go back.
- A message comes without the redelivered flag once at most, whatever happens to nodes.
- All unacked messages of a partition are held by one channel.
- In the end every message of the stream has come to a member, and all copies of the group are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from amqp_server.broker.access.permissions import ITSELF
from amqp_server.broker.declared.operations import DeclareQueue, SetMembers
from amqp_server.broker.declared.records import QueueRecord, encoded
from amqp_server.broker.topology.queue import Queue
from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost
from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.group_headers import offsets_of
from quorum_queue.consumer_groups.partition import UNKNOWN
from quorum_queue.consumer_groups.replica import Applied
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.parts import READY
from quorum_queue.machine.run import Run
from quorum_queue.ports import Got, Refused
from tests import seeds
from tests.amqp_server.cluster.simulation.cluster import by_hand
from tests.amqp_server.cluster.simulation.node import SimulatedNode
from tests.amqp_server.cluster.simulation.streams import BODY_BYTES, NAME, StreamSimulation, bodies_of
from tests.turns import Violation

STEPS = 1200
GROUP = "g"


class Worker:
    """A member at some node, or a client that gets messages one by one. See quorum_queue.ports.Sink and
    amqp_server.streams.local_host.Sink."""

    def __init__(self, simulation: GroupSimulation, node: SimulatedNode, number: int, kind: str) -> None:
        self._simulation = simulation
        self.node = node
        self.incarnation = node.incarnation
        self.number = number
        self.kind = kind
        #: True if a getter has asked and has no answer yet.
        self.asks = False
        self.attached = self.gone = False
        #: Deliveries that are yet to be settled.
        self.held: dict[int, int] = {}
        #: Delivery ids go up.
        self.next_id = 0

    @property
    def key(self) -> tuple[Any, ...]:
        return (
            (self.number, 1, None, False) if self.kind == "gets" else (self.number, 1, f"w{self.number}", 1)
        )

    @property
    def lives(self) -> bool:
        return not self.gone and self.node.alive and self.node.incarnation == self.incarnation

    def has_attached(self, refused: str | None) -> None:
        self.attached = refused is None
        self.gone = self.gone or refused is not None

    def deliver_batch(
        self, consumer: Any, reader: BatchReader, count: int, first_id: int, again: bool = False
    ) -> None:
        bodies = bodies_of(reader.batch)[reader.index :]
        for number, (offset, body) in enumerate(zip(offsets_of(reader, count), bodies, strict=False)):
            self._simulation.stream.see(f"worker {self.number}", offset, body)
            self._takes(offset, first_id + number, again=again)
        reader.skip(count)

    def got(self, got: Got | Refused | None) -> None:
        self.asks = False
        if isinstance(got, Got):
            self._simulation.stream.note("got one by one")
            self.deliver(None, got.run, got.first_id)

    def deliver(self, consumer: Any, run: Run, first_id: int) -> None:
        for number, item in enumerate(run.contents or ()):
            offset = self._simulation.stream.offsets[bytes(item[-1 - BODY_BYTES : -1])]
            self._takes(offset, first_id + number, again=run.redelivered)

    def _takes(self, offset: int, delivery: int, *, again: bool) -> None:
        simulation = self._simulation
        simulation.stream.note("flagged" if again else "delivered to members")
        if delivery < self.next_id:
            raise Violation(f"worker {self.number} gets delivery {delivery} after {self.next_id - 1}")
        self.next_id = delivery + 1
        if not again:
            if offset in simulation.new:
                raise Violation(f"worker {self.number} gets {offset} as new, as {simulation.new[offset]} did")
            simulation.new[offset] = self.number
        simulation.came[offset] = None
        if self.lives and self.kind != "no ack":
            self.held[delivery] = offset

    def failed(self, error: Exception) -> None:
        raise error

    def queue_gone(self) -> None:
        self.gone = True


class GroupSimulation(StreamSimulation):
    def __init__(self, seed: int, *, steps: int = STEPS, trace: Callable[[str], None] | None = None) -> None:
        self.workers: list[Worker] = []
        self.worker_number = 1000
        #: By offset, the worker that got it as new; and the offsets that came to any worker, and those acked
        #: on some copy of the group.
        self.new: dict[int, int] = {}
        self.came: dict[int, None] = {}
        self.acked: dict[int, None] = {}
        self.committed = 0
        # While there are members, the partition belongs to them.
        self.kinds = (0, 0, 1) if seed % 3 == 2 else (6, 1, 1)
        super().__init__(seed, steps=steps, trace=trace)
        self._declare_group()

    def _declare_group(self) -> None:
        arguments = {"x-queue-type": "stream-group", "x-stream": NAME, "x-stream-offset": "first"}
        members = tuple(self.random.sample(self.names, 3))
        record = QueueRecord(
            "/", GROUP, 0, False, encoded(arguments), type="stream-group", members=members, leader=members[0]
        )
        node = self.serving[0]
        node.turn.run(node.broker.propose, DeclareQueue(record))
        node.end_turn()
        self.settle()

    def group_queue(self, node: SimulatedNode) -> Queue | None:
        return node.broker.vhost("/").queues.get(GROUP) if node.alive and node.serving else None

    def copies(self) -> list[ConsumerGroupMemberHost]:
        hosts = [host for node in self.running for host in node.cluster.hosts.grouped.values()]
        return [host for host in hosts if isinstance(host, ConsumerGroupMemberHost)]

    # -- steps -----------------------------------------------------------------------------------------------

    def one_step(self) -> None:
        super().one_step()
        self.go_on()
        action = self.random.random()
        node = self.nodes[self.random.choice(self.names)]
        if action < 0.10:
            self.work(node)
        elif action < 0.14:
            self.stop_one()
        elif action < 0.40:
            self.settle_some()
        elif action < 0.41:
            self.change_group_members(node)
        elif action < 0.60:
            self.get_some()

    def go_on(self) -> None:
        """A delivery takes many steps of disks and links: steps for the log of the group and steps for the
        stream.
        """
        random = self.random
        for _ in range(random.choice((0, 2, 6, 12))):
            places = self.network.places()
            if places:
                self.log(self.network.go_on(*random.choice(places), 8))
            node = self.nodes[random.choice(self.names)]
            self.step_disk(node)
            self.step_read(node)

    def work(self, node: SimulatedNode, kind: str = "") -> None:
        """Add one more member, or one client that gets messages one by one."""
        queue = self.group_queue(node)
        self.workers = [worker for worker in self.workers if worker.lives]
        if queue is None or (not kind and len(self.workers) >= 5):
            return
        self.worker_number += 1
        kind = kind or self.random.choices(("acks", "no ack", "gets"), self.kinds)[0]
        worker = Worker(self, node, self.worker_number, kind)
        self.workers.append(worker)
        self.log(f"{node.name}: worker {worker.number} comes, {kind}")
        if kind == "gets":
            return
        queue.subscribe(worker.key, _Subscribed(worker))
        no_ack, prefetch = kind == "no ack", self.random.choice((0, 1, 5, 5))
        consumer = Consumer(worker.key, prefetch=prefetch, no_ack=no_ack, sink=worker)
        node.turn.run(queue.host.attach, consumer, worker.has_attached)
        node.end_turn()
        self.stream.note("members come")

    def get_some(self) -> None:
        getters = [each for each in self.workers if each.lives and each.kind == "gets" and not each.asks]
        for worker in getters:
            queue = self.group_queue(worker.node)
            if queue is not None and len(worker.held) < 5:
                worker.asks = True
                consumer = Consumer(worker.key, sink=worker)
                worker.node.turn.run(queue.host.get, consumer, worker.got)
                worker.node.end_turn()

    def _submit(self, worker: Worker, *commands: tuple[Any, ...]) -> None:
        queue = self.group_queue(worker.node)
        if queue is not None and worker.lives:
            worker.node.turn.run(queue.host.submit, *commands)
            worker.node.end_turn()

    def stop_one(self) -> None:
        """A member goes, with all that it holds, or is cancelled and settles its deliveries later."""
        living = [worker for worker in self.workers if worker.lives]
        if not living:
            return
        # Members that hold something matter more, and most hold nothing: one of them has the partition.
        busy = [worker for worker in living if worker.held]
        worker = self.random.choice(busy if busy and self.random.random() < 0.7 else living)
        if self.random.random() < 0.4 and worker.kind != "gets":
            self.log(f"worker {worker.number} is cancelled")
            self._submit(worker, ("detach", worker.key, False))
            return
        self.log(f"worker {worker.number} goes")
        self._submit(worker, ("detach", worker.key, True))
        worker.gone = True
        worker.held.clear()

    def settle_some(self) -> None:
        for worker in self.workers:
            if worker.lives and worker.held and self.random.random() < 0.7:
                verb = self.random.choices(("settle", "return", "discard"), (17, 2, 1))[0]
                self._settle(worker, verb, self.random.choice(list(worker.held)))

    def _settle(self, worker: Worker, verb: str, up_to: int, *, alone: bool = False) -> None:
        queue = self.group_queue(worker.node)
        if queue is None:
            return
        wanted = [each for each in worker.held if each <= up_to]
        for delivery in wanted:
            del worker.held[delivery]
        wanted = [each for each in wanted if queue.host.can_settle(worker.key, each, each)]
        if not alone and self.random.random() < 0.4 and worker.node.broker.transactions.available:
            self._settle_in_transaction(worker, queue, [(verb, worker.key, each, each) for each in wanted])
            return
        for delivery in wanted:
            self._submit(worker, (verb, worker.key, delivery, delivery))

    def _settle_in_transaction(self, worker: Worker, queue: Queue, commands: list[tuple[Any, ...]]) -> None:
        """Settle these deliveries in one transaction, which is sometimes rolled back, or forgotten."""
        transactions, host = worker.node.broker.transactions, queue.host
        transaction, fate = transactions.begin(), self.random.random()

        def prepared(outcome: int | Refused) -> None:
            self.stream.note(f"parts of transactions {outcome if isinstance(outcome, int) else 'refused'}")
            if outcome != READY or 0.7 < fate < 0.85:
                host.submit(("resolve", transaction, False))
            elif fate <= 0.7:
                transactions.decide(transaction, [queue.queue_id], None, decided)

        def decided(committed: bool | Refused) -> None:
            if isinstance(committed, bool):
                self.stream.note(f"transactions {'committed' if committed else 'aborted'}")
                host.submit(("resolve", transaction, committed))

        self._submit(worker, *[("pend", transaction, command) for command in commands])
        if not host.ended:
            worker.node.turn.run(host.prepare, transaction, len(commands), [queue.queue_id], prepared)
            worker.node.end_turn()

    def change_group_members(self, node: SimulatedNode) -> None:
        queue = self.group_queue(node)
        if queue is None or self.wounded or self.damaged:
            return
        members = tuple(self.random.sample(self.names, self.random.choice((2, 3, 3))))
        self.stream.note("copies change")
        node.turn.run(node.broker.propose, SetMembers("/", GROUP, queue.queue_id, members, members[0]))
        node.end_turn()

    def lose_files(self, node: SimulatedNode) -> None:
        """A group of two copies that loses one of them for good has no majority, like any queue."""
        queue = self.group_queue(node)
        if queue is not None and len(queue.members) >= 3:
            super().lose_files(node)

    # -- what must hold --------------------------------------------------------------------------------------

    @contextmanager
    def _watching(self) -> Iterator[None]:
        place: Any = ConsumerGroupMemberHost
        perform = place._perform

        def watched(host: ConsumerGroupMemberHost, applied: Applied) -> None:
            self.look(host, applied)
            perform(host, applied)

        place._perform = watched
        try:
            with super()._watching():
                yield
        finally:
            place._perform = perform

    def look(self, host: ConsumerGroupMemberHost, applied: Applied) -> None:
        """A copy of the group has applied an entry."""
        group = host.replica.group
        for each in applied.handed:
            self.stream.note("handed out", each.stop - each.low)
        for partition in group.partitions.values():
            holders = {
                member.channel
                for member in (
                    *group.members.values(),
                    *group.leaving.values(),
                    *group.getters.values(),
                    *group.parked.values(),
                )
                if any(portion.partition is partition for _, portion in member.portions())
            }
            if len(holders) > 1:
                raise Violation(f"{host.replicas.node}: {holders} hold messages of one partition")
            if partition.cursor == UNKNOWN:
                continue
            open_ones = {offset for span in partition.pending() for offset in range(span.low, span.stop)}
            done = dict.fromkeys([each for each in range(partition.cursor) if each not in open_ones])
            if host.replica.applied >= self._newest:
                self._newest = host.replica.applied
                if any(each not in done for each in self.acked):
                    raise Violation(f"{host.replicas.node}: what was acked is open again")
                if partition.committed < self.committed:
                    raise Violation(f"the group goes back to {partition.committed} from {self.committed}")
                self.acked, self.committed = done, partition.committed

    _newest = 0

    def come_to_rest(self) -> None:
        super().come_to_rest()
        for node in self.serving:
            if not any(worker.lives and worker.node is node for worker in self.workers):
                self.work(node, "acks")
        if not any(worker.lives for worker in self.workers):
            self.workers.clear()
            self.work(self.serving[0], "acks")
        stands_still, before = 0, -1
        # A member with a prefetch of 1 may have all the rest.
        while stands_still < 100:
            stands_still = stands_still + 1 if self.committed == before else 0
            before = self.committed
            self.work_off()
            for worker in self.workers:
                if worker.lives and worker.held:
                    self._settle(worker, "settle", max(worker.held), alone=True)
            for node in self.running:
                self.tick(node)
            self.work_off()
            # The cancelled members have settled everything; at least one member must be there.
            if not any(host.consumer_count for host in self.copies()):
                self.workers = [worker for worker in self.workers if worker.kind == "gets"]
                self.work(self.serving[0], "acks")
            if self._is_done():
                break
        else:
            states = [(host.replicas.node, host.replica.group.partitions) for host in self.copies()]
            raise Violation(f"the group does not come to the end: {states}, {self.committed}")
        self.settle()
        self._check_copies()

    def _is_done(self) -> bool:
        copies, members = self.copies(), self.members()
        stop = max((host.replica.next_offset for _, host in members), default=0)
        return bool(copies) and all(
            partition.committed == stop
            for host in copies
            for partition in host.replica.group.partitions.values()
        )

    def _check_copies(self) -> None:
        copies = self.copies()
        states = {(host.replica.applied, host.replica.digest()) for host in copies}
        if len(states) != 1:
            raise Violation(f"copies of the group have come to different states: {states}")
        if not all(host.replica.group.partitions for host in copies):
            raise Violation("the group has no partition")
        missed = [
            offset
            for offset in self.stream.bodies
            if offset >= self.first_offset() and offset not in self.came and not self.may_be_gone(offset)
        ]
        if missed:
            raise Violation(f"nobody got {missed[:10]}")
        self.stream.note("groups checked")


class _Subscribed:
    """A worker as a subscription of the queue."""

    exclusive = False
    tag = ""
    #: Workers may read all streams.
    access = ITSELF

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @property
    def key(self) -> Any:
        return self._worker.key

    @property
    def attached(self) -> bool:
        return self._worker.attached

    def queue_gone(self) -> None:
        self._worker.queue_gone()


def run(seed: int, *, steps: int = STEPS, trace: Callable[[str], None] | None = None) -> GroupSimulation:
    with by_hand():
        simulation = GroupSimulation(seed, steps=steps, trace=trace)
    simulation.run()
    return simulation


def _told(simulation: GroupSimulation) -> list[str]:
    return [f"{simulation.stream.count}", f"{simulation.ledger.count}"]


if __name__ == "__main__":
    seeds.main(run, _told, steps=STEPS)
