"""A cluster for directed tests: three nodes or more that work, and do only what the test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quorum_queue.cluster.queues.member_host import GroupHost
from quorum_queue.machine import versions
from quorum_queue.machine.attributes import ATTRIBUTES, MAJORITY
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.run import Run
from quorum_queue.machine.settings import Settings
from tests.quorum_queue.cluster.at_rest import check_at_rest, check_empty, drain
from tests.quorum_queue.cluster.clients import Client, Holder, Publisher, message_id_of
from tests.quorum_queue.cluster.cluster import Cluster
from tests.quorum_queue.cluster.network import LinkSession
from tests.quorum_queue.cluster.node import SimulatedNode


class Scene(Cluster):
    """One queue, led by the first of its members."""

    def __init__(
        self,
        queue: str = "plain",
        *,
        names: str = "abc",
        members: str = "",
        more: tuple[str, ...] = (),
        begun: bool = True,
    ) -> None:
        everyone = tuple(members or names)
        super().__init__(names, dict.fromkeys((queue, *more), everyone))
        for node in self.nodes.values():
            # Entries need not wait for a moment to pass.
            node.replication = replace(node.replication, gather_ms=0)
        self.name = queue
        self.ledger = self.ledgers[queue]
        self.group_id = self.declared[0].queue_id
        if begun:
            self.mend()
            self.settle()
            self.elect(everyone[0])
            self.settle()
        self.doubt_all()

    def raise_version(self) -> None:
        """Have the queues use everything that this version of mqd can do."""
        self.network.version = versions.NEWEST
        for node in self.running:
            self.tick(node)
            node.turn.run(node.maintenance.look)
        self.settle()
        for declared in self.declared:
            assert declared.ledger.machine.version == versions.NEWEST

    def host(self, node: str, queue: str = "") -> GroupHost:
        host = self.nodes[node].queues[queue or self.name].host
        assert isinstance(host, GroupHost)
        return host

    def configure(self, settings: Settings, *nodes: str) -> None:
        """These nodes hear that the queue is to have other settings."""
        for name in nodes:
            node = self.nodes[name]
            node.turn.run(self.host(name).configure, settings)
            node.end_turn()

    # -- clients ---------------------------------------------------------------------------------------------

    def publisher(self, node: str, queue: str = "") -> Publisher:
        client = self.new_client(self.nodes[node])
        name = queue or self.name
        publisher = client.publishers[name] = Publisher(
            f"p{client.number}", self.ledgers[name], self.nodes[node].queues[name]
        )
        return publisher

    def publish(
        self,
        node: str,
        publisher: Publisher,
        count: int = 1,
        *,
        size: int = 8,
        queue: str = "",
        level: int = MAJORITY,
    ) -> None:
        """Publish in one turn."""
        first = len(publisher.bodies)
        for _ in range(count):
            body = publisher.body(size)
            publisher.waiting[len(publisher.bodies)] = None
            publisher.levels[len(publisher.bodies)] = level
            publisher.bodies.append(body)
            publisher.ledger.published[body] = None
        run = Run(range(count), publisher.bodies[first:], b"head", ATTRIBUTES[level](persistent=True))
        host = self.nodes[node].queues[queue or self.name].host
        if host.records:
            host.submit(
                ("enqueue_known", run, publisher, first, list(map(message_id_of, publisher.bodies[first:])))
            )
        else:
            host.submit(("enqueue", run, publisher, first))
        self.nodes[node].end_turn()

    def consume(self, node: str, *, prefetch: int = 10, no_ack: bool = False, queue: str = "") -> Holder:
        client = self.new_client(self.nodes[node])
        simulated = self.nodes[node].queues[queue or self.name]
        holder = Holder(client, simulated, (client.number, 1, "c", 1), no_ack=no_ack)
        client.consumers.append(holder)

        def attached(refused: str | None) -> None:
            assert refused is None
            holder.attached = True

        consumer = Consumer(holder.key, no_ack=no_ack, prefetch=prefetch, sink=holder, channel=client.number)
        simulated.host.attach(consumer, attached)
        self.nodes[node].end_turn()
        return holder

    def get(self, node: str, *, no_ack: bool = False) -> Holder:
        """Ask for one message."""
        client = self.new_client(self.nodes[node])
        holder = Holder(
            client, self.nodes[node].queues[self.name], (client.number, 1, None, no_ack), no_ack=no_ack
        )
        client.getters[self.name, no_ack] = holder
        question = client.ask("get")
        consumer = Consumer(holder.key, no_ack=no_ack, sink=holder)
        client.ask_for_one(holder, consumer, question)
        self.nodes[node].end_turn()
        return holder

    def settle_all(self, holder: Holder, verb: str = "settle") -> None:
        client: Client = holder.client
        client.settle(holder, verb, len(holder.unacked))
        client.node.end_turn()

    # -- what happens ----------------------------------------------------------------------------------------

    def isolate(self, node: str) -> None:
        """Cut this node off in both directions; both sides soon notice."""
        for other in self.names:
            if other != node:
                self.network.blocked[node, other] = self.network.blocked[other, node] = None
        for session in self.sessions_of(node):
            self.end_session(session)

    def cut(self, one: str, two: str, *, both: bool = True) -> None:
        """Nothing gets from one node to another, nor back if `both`. They notice when they have heard nothing
        for long.
        """
        self.network.blocked[one, two] = None
        if both:
            self.network.blocked[two, one] = None
        self.doubt_all()

    def leaders(self) -> dict[str, str]:
        """Return the leader of each queue."""
        found = {declared.name: self.leading(declared) for declared in self.declared}
        return {name: group.replicas.node for name, group in found.items() if group is not None}

    def sessions_of(self, node: str) -> list[LinkSession]:
        return [session for session in self.network.sessions if node in session.ends]

    def heal(self) -> None:
        self.network.blocked.clear()
        for one, two in self.pairs:
            self.network.connect(one, two)

    def work(self, ticks: int = 0) -> None:
        """Do all work that is pending, and let some time pass."""
        self.work_off()
        for _ in range(ticks):
            for node in self.running:
                node.tick()
            self.work_off()

    def elect(self, node: str) -> None:
        """Make this node the leader."""
        for _ in range(100):
            leader = self.leading(self.declared[0])
            if leader is not None and leader.replicas.node == node:
                return
            if leader is not None:
                leader.replicas.touch(leader)
                leader.core.transfer(node)
                self.nodes[leader.replicas.node].end_turn()
            self.work(1)
        raise AssertionError(f"{node} does not come to lead")

    def deliver(self, sender: str, to: str, wanted: Callable[[bytes], bool] = lambda frame: True) -> int:
        """Deliver frames from one node to another, as long as they are wanted. Return how many."""
        session = self.nodes[to].sessions[sender]
        count = 0
        while session.streams[to] and wanted(session.streams[to][0]):
            self.network.go_on(session, to)
            count += 1
        return count

    def on_the_way(self, sender: str, to: str, kind: int) -> int:
        session = self.nodes[sender].sessions.get(to)
        return 0 if session is None else sum(frame[0] == kind for frame in session.streams[to])

    def finish(self) -> None:
        """Everything works again, and all checks pass."""
        self.mend()
        self.settle()
        check_at_rest(self)
        drain(self)
        check_empty(self)


def sync(node: SimulatedNode) -> None:
    while node.disk.running or node.disk.waits():
        node.step_disk()
