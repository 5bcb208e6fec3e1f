"""A cluster in one process, under the hand of whoever runs it: nothing moves unless it is told to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from amqp_server.broker.arguments import QueueArguments
from amqp_server.broker.queue import settings_of
from quorum_queue.cluster.group import Group
from tests.quorum_queue.cluster.broker import Declared
from tests.quorum_queue.cluster.clients import Client
from tests.quorum_queue.cluster.ledger import Ledger, Violation
from tests.quorum_queue.cluster.network import CLOSED, Network, Session
from tests.quorum_queue.cluster.node import SimulatedNode

#: Rounds within which a healed cluster must come to rest: in each, everybody's clock ticks once.
ROUNDS = 400
#: Arguments of queues, and where their dead letters go.
QUEUES: dict[str, tuple[QueueArguments, str]] = {
    "plain": (QueueArguments(queue_type="quorum"), ""),
    "few": (QueueArguments(queue_type="quorum", delivery_limit=2, dead_letter_exchange="", dead_letter_strategy="at-least-once"), "dead"),
    "dead": (QueueArguments(queue_type="quorum", delivery_limit=-1), ""),
    "short": (QueueArguments(queue_type="quorum", max_length=6, dead_letter_exchange="", delivery_limit=-1), "dead"),
    "full": (QueueArguments(queue_type="quorum", max_length=5, overflow="reject-publish"), ""),
    "timed": (QueueArguments(queue_type="quorum", message_ttl_ms=900, dead_letter_exchange="", dead_letter_strategy="at-least-once"), "dead"),
    "once": (QueueArguments(queue_type="quorum", deduplication_window_ms=10**9), ""),
    "single": (QueueArguments(queue_type="quorum", single_active_consumer=True), ""),
    "ranked": (QueueArguments(queue_type="quorum", max_priority=3), ""),
    "once or full": (QueueArguments(queue_type="quorum", deduplication_window_ms=10**9, max_length=6, overflow="reject-publish"), ""),
    "full, dead": (QueueArguments(queue_type="quorum", max_length=5, overflow="reject-publish-dlx", dead_letter_exchange=""), "dead"),
}  # fmt: skip


class Cluster:
    """Nodes with queues, the first of each queue's members its preferred leader."""

    def __init__(
        self,
        names: Sequence[str],
        queues: Mapping[str, Sequence[str]],
        *,
        random: Random | None = None,
        rates: Mapping[str, float] | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        """`queues` are some of QUEUES with their members, `rates` how fast the nodes' clocks go."""
        self.random = random or Random(0)
        self.trace = trace
        self.step = 0
        self.names = tuple(names)
        self.pairs = [(one, two) for one in self.names for two in self.names if one != two]
        self.network = Network()
        self.declared: list[Declared] = []
        self.ledgers: dict[str, Ledger] = {}
        self._declare(queues)
        self.nodes: dict[str, SimulatedNode] = {}
        for name in self.names:
            rate = rates[name] if rates is not None else 1.0
            node = SimulatedNode(
                name, self.names, self.network, self.declared, seed=self.random.getrandbits(30), rate=rate
            )
            node.changed = self._changed
            self.nodes[name] = self.network.nodes[name] = node
        self.last_number = 0
        self.count: dict[str, int] = {}

    def _declare(self, queues: Mapping[str, Sequence[str]]) -> None:
        for queue_id, (name, members) in enumerate(queues.items(), 1):
            parsed, target = QUEUES[name]
            ledger = self.ledgers[name] = Ledger(name, settings_of(parsed))
            declared = Declared(queue_id, name, parsed, target, ledger)
            declared.members.append(tuple(members))
            self.declared.append(declared)
        for declared in self.declared:
            if declared.target:
                target_ledger = declared.ledger.target = self.ledgers[declared.target]
                target_ledger.sources.append(declared.ledger)

    def log(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.step:5} {text}")

    def note(self, what: str) -> None:
        self.count[what] = self.count.get(what, 0) + 1
        self.log(what)

    @property
    def running(self) -> list[SimulatedNode]:
        return [node for node in self.nodes.values() if node.alive]

    def start(self, node: SimulatedNode) -> None:
        if not node.alive:
            self.note(f"{node.name} starts" if self.trace else "starts")
            node.start()

    def crash(self, node: SimulatedNode) -> None:
        if node.alive:
            self.note("crashes")
            self.log(f"{node.name} crashes")
            self.doubt(node)
            node.crash(written=self.random.random() < 0.5)
            self.network.crashed(node.name, lambda: self.random.random() < 0.6)

    def doubt(self, node: SimulatedNode) -> None:
        for ledger in self.ledgers.values():
            ledger.doubted[node.name, node.incarnation] = None

    def doubt_all(self) -> None:
        for node in self.nodes.values():
            self.doubt(node)

    def step_disk(self, node: SimulatedNode) -> None:
        if node.alive and node.step_disk():
            self.log(f"{node.name}: a commit {'begins' if node.disk.running else 'ends'}")

    def tick(self, node: SimulatedNode) -> None:
        if node.alive:
            self.log(f"{node.name}: tick, it is {node.now_ms}")
            node.tick()

    def new_client(self, node: SimulatedNode) -> Client:
        self.last_number += 1
        client = Client(node, self.last_number, self.random)
        node.clients.append(client)
        return client

    def learn(self, node: SimulatedNode) -> None:
        if not node.alive:
            return
        behind = [
            declared
            for declared in self.declared
            if node.versions.get(declared.name, 0) < len(declared.members) - 1
        ]
        if behind:
            declared = self.random.choice(behind)
            self.log(f"{node.name} learns of the members of {declared.name}")
            node.learn(declared.name)

    def _changed(self, operation: Any) -> None:
        raise Violation("no queue was declared to grow")

    def leading(self, declared: Declared) -> Group | None:
        """The leader's group, of the highest term."""
        led = [
            node.replicas.groups[declared.queue_id]
            for node in self.running
            if declared.queue_id in node.replicas.groups and node.replicas.groups[declared.queue_id].is_leader
        ]
        return max(led, key=lambda group: group.core.term, default=None)

    def is_settled(self, declared: Declared, group: Group) -> bool:
        """Has the group the members that it is to have, and nothing under way?"""
        members, core = declared.members[-1], group.core
        return (
            sorted(core.members.voters) == sorted(members)
            and not core.members.learners
            and core.members_index <= core.commit
            and all(name == group.replicas.node or core.caught_up(name) for name in members)
            and all(
                self.nodes[name].versions.get(declared.name, 0) == len(declared.members) - 1
                for name in self.names
            )
        )

    def mend(self) -> None:
        """Everything works: nodes are up, all know of all members, and all links begin anew."""
        self.network.blocked.clear()
        for session in list(self.network.sessions):
            self.end_session(session)
        for node in self.nodes.values():
            node.environment.faults.full = 0
            self.start(node)
        for one, two in self.pairs:
            self.network.connect(one, two)

    def end_session(self, session: Session) -> None:
        for name in session.ends:
            if session.states[name] != CLOSED:
                self.network.close(session, name)

    def settle(self) -> None:
        """Let the cluster come to rest."""
        for _ in range(ROUNDS):
            for node in self.running:
                self.learn(node)
                self.tick(node)
            self.work_off()
            if not self.unrest():
                return
        raise Violation(f"the cluster does not come to rest though everything works: {self.unrest()}")

    def work_off(self) -> None:
        for _ in range(3000):
            moved = False
            for node in self.running:
                if node.disk.running or node.disk.waits():
                    self.step_disk(node)
                    moved = True
            for place in self.network.places():
                if place in self.network.places():
                    self.log(self.network.go_on(*place, 8))
                    moved = True
            if not moved:
                return
        raise Violation("messages go round for ever")

    def unrest(self) -> str:
        """Say what is still under way, or nothing."""
        for declared in self.declared:
            leader = self.leading(declared)
            if leader is None:
                return f"{declared.name} has no leader"
            if declared.ledger.dead_lettering:
                return (
                    f"{declared.name} has dead letters {list(declared.ledger.dead_lettering)} to be sent on"
                )
            if not self.is_settled(declared, leader):
                return f"{declared.name} has members {leader.core.members}, not {declared.members[-1]}"
            for name in declared.members[-1]:
                group = self.nodes[name].replicas.groups.get(declared.queue_id)
                if group is None:
                    return f"{name} has no {declared.name}"
                core = group.core
                if core.amnesiac or core.leader != leader.replicas.node or not core.quiet:
                    return f"{name} is not at rest with {declared.name}"
                if (
                    group.applied != leader.core.last_index
                    or group.flights
                    or group.sending
                    or group.receiving
                ):
                    return f"{name} has something under way for {declared.name}"
        for node in self.running:
            if node.replicas.losses.entries():
                return f"{node.name} lacks {node.replicas.losses.entries()}"
            if node.hosts.parting:
                return f"{node.name} has not left {list(node.hosts.parting)} yet"
            if node.replicas.stalled:
                return f"the disk of {node.name} is stalled"
            if any(at <= node.now_ms for at, _ in node.timers.asked):
                return f"{node.name} has a timer due"
            for client in node.clients:
                waiting = [p.name for p in client.publishers.values() if p.waiting]
                if waiting or client.asked:
                    return f"session {client.number} waits for {waiting} {list(client.asked)}"
        return ""
