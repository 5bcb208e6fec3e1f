"""A cluster in one process, driven by the test: nothing moves unless the test says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from amqp_server.broker.declared.arguments import QueueArguments
from amqp_server.broker.declared.settings import effective_settings
from quorum_queue.cluster import frames
from quorum_queue.cluster.replica_group import Group
from quorum_queue.machine.attributes import MAJORITY
from tests.quorum_queue.cluster import levels
from tests.quorum_queue.cluster.broker import Declared, Event
from tests.quorum_queue.cluster.clients import Client
from tests.quorum_queue.cluster.ledger import Ledger
from tests.quorum_queue.cluster.network import CLOSED, LinkSession, Network
from tests.quorum_queue.cluster.node import SimulatedNode
from tests.turns import Violation

#: Rounds within which a healed cluster must come to rest: in each round every clock ticks once.
ROUNDS = 400
#: Arguments of queues, and the queues for their dead letters.
QUEUES: dict[str, tuple[QueueArguments, str]] = {
    "plain": (QueueArguments(queue_type="quorum"), ""),
    "few": (QueueArguments(queue_type="quorum", message_status_window_ms=10**9, delivery_limit=2, dead_letter_exchange="", dead_letter_strategy="at-least-once"), "dead"),
    "dead": (QueueArguments(queue_type="quorum", delivery_limit=-1), ""),
    "short": (QueueArguments(queue_type="quorum", message_status_window_ms=10**9, max_length=6, dead_letter_exchange="", delivery_limit=-1), "dead"),
    "full": (QueueArguments(queue_type="quorum", message_status_window_ms=10**9, max_length=5, overflow="reject-publish"), ""),
    "timed": (QueueArguments(queue_type="quorum", message_status_window_ms=10**9, message_ttl_ms=900, dead_letter_exchange="", dead_letter_strategy="at-least-once"), "dead"),
    "once": (QueueArguments(queue_type="quorum", deduplication_window_ms=10**9), ""),
    "single": (QueueArguments(queue_type="quorum", single_active_consumer=True), ""),
    "ranked": (QueueArguments(queue_type="quorum"), ""),
    "later": (QueueArguments(queue_type="quorum", retry_type="all", retry_min_ms=50, retry_max_ms=300, delivery_limit=3), ""),
    "failed later": (QueueArguments(queue_type="quorum", retry_type="failed", retry_min_ms=40, retry_max_ms=900, retry_backoff="exponential"), ""),
    "grouped": (QueueArguments(queue_type="quorum", message_groups=True, retry_type="failed", retry_min_ms=40, retry_max_ms=300, delivery_limit=3), ""),
    "once or full": (QueueArguments(queue_type="quorum", message_status_window_ms=10**9, deduplication_window_ms=10**9, max_length=6, overflow="reject-publish"), ""),
    "full, dead": (QueueArguments(queue_type="quorum", message_status_window_ms=10**9, max_length=5, overflow="reject-publish-dlx", dead_letter_exchange=""), "dead"),
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
        #: The queues that are there, and the books of all queues that have ever been there.
        self.declared: list[Declared] = []
        self.events: list[Event] = []
        self.ledgers: dict[str, Ledger] = {}
        self.nodes: dict[str, SimulatedNode] = {}
        self._declare(queues)
        for name in self.names:
            rate = rates[name] if rates is not None else 1.0
            node = SimulatedNode(
                name, self.names, self.network, self.events, seed=self.random.getrandbits(30), rate=rate
            )
            node.changed = self._changed
            node.sent = self._sent
            self.nodes[name] = self.network.nodes[name] = node
        self.last_number = 0
        #: Confirm levels, of which a client chooses one for each publish.
        self.levels: tuple[int, ...] = (MAJORITY,)
        self.count: dict[str, int] = {}
        #: Links, as (from, to), on which nothing arrives, even when everything else is healed.
        self.dead: dict[tuple[str, str], None] = {}

    def _declare(self, queues: Mapping[str, Sequence[str]]) -> None:
        for name, members in queues.items():
            self._new(name, tuple(members))
        for declared in self.declared:
            self._aim(declared)

    def _new(self, name: str, members: tuple[str, ...]) -> Declared:
        parsed, target = QUEUES[name]
        ledger = self.ledgers[name] = Ledger(name, effective_settings(parsed), self.elapsed)
        declared = Declared(len(self.events) + 1, name, parsed, target, ledger)
        declared.members.append(members)
        self.declared.append(declared)
        self.events.append(Event(declared, there=True))
        return declared

    def _aim(self, declared: Declared) -> None:
        if declared.target:
            target_ledger = declared.ledger.target = self.ledgers[declared.target]
            target_ledger.sources.append(declared.ledger)

    def declare_anew(self, declared: Declared, members: Sequence[str]) -> Declared:
        """Delete a queue, and declare another one of the same name; the nodes learn of it one by one."""
        self.declared.remove(declared)
        declared.ledger.deleted = True
        self.events.append(Event(declared, there=False))
        doubted = declared.ledger.doubted
        again = self._new(declared.name, tuple(members))
        again.ledger.doubted.update(doubted)
        self._aim(again)
        return again

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
        for declared, _ in self.events:
            declared.ledger.doubted[node.name, node.incarnation] = None

    def doubt_all(self) -> None:
        for node in self.nodes.values():
            self.doubt(node)

    def step_disk(self, node: SimulatedNode) -> None:
        if node.alive and node.step_disk():
            self.log(f"{node.name}: a commit {node.disk_did}")

    def step_read(self, node: SimulatedNode) -> bool:
        """Return whether anything waited for the disk."""
        if node.alive and node.step_read():
            self.log(f"{node.name}: the disk has what was to be read")
            return True
        return False

    def elapsed(self) -> dict[str, int]:
        """Return the time of each node's monotonic clock."""
        return {node.name: node.now_ms for node in self.nodes.values()}

    def tick(self, node: SimulatedNode) -> None:
        if node.alive:
            self.log(f"{node.name}: tick, it is {node.now_ms}")
            node.tick()

    def new_client(self, node: SimulatedNode) -> Client:
        self.last_number += 1
        client = Client(node, self.last_number, self.random, self.levels)
        node.clients.append(client)
        return client

    def learn(self, node: SimulatedNode) -> None:
        if not node.alive:
            return
        known = [queue.queue_id for queue in node.queues.values()]
        behind = [
            declared
            for declared in self.declared
            if declared.queue_id in known
            and node.versions.get(declared.queue_id, 0) < len(declared.members) - 1
        ]
        if behind and (node.known == len(node.events) or self.random.random() < 0.5):
            declared = self.random.choice(behind)
            self.log(f"{node.name} learns of the members of {declared.name}")
            node.learn(declared)
        elif node.known < len(node.events):
            self.log(f"{node.name} learns of {node.events[node.known].declared.name}")
            # A node that is far behind learns it from the present snapshot of the topology.
            node.go_on(latest=self.random.random() < 0.5)

    def _sent(self, sender: str, to: str, frame: bytes) -> None:
        if frame[0] == frames.REACHED:
            group_id, index = frames.parse_stopped(memoryview(frame))
            group = self.nodes[sender].replicas.groups[group_id]
            levels.check_reached(group, index, levels.running(self.nodes))

    def _changed(self, operation: Any) -> None:
        raise Violation("no queue was declared to grow")

    def leading(self, declared: Declared) -> Group | None:
        """Return the group of the leader with the highest term."""
        led = [
            node.replicas.groups[declared.queue_id]
            for node in self.running
            if declared.queue_id in node.replicas.groups and node.replicas.groups[declared.queue_id].is_leader
        ]
        return max(led, key=lambda group: group.core.term, default=None)

    def is_settled(self, declared: Declared, group: Group) -> bool:
        """Return whether the group has exactly the members that it should have, and nothing under way."""
        members, core = declared.members[-1], group.core
        return (
            sorted(core.members.voters) == sorted(members)
            and not core.members.learners
            and core.members_index <= core.commit
            and all(name == group.replicas.node or core.caught_up(name) for name in members)
            and all(
                self.nodes[name].versions.get(declared.queue_id, 0) == len(declared.members) - 1
                for name in self.names
            )
        )

    def mend(self) -> None:
        """Make everything work except the dead links: nodes are up, all know all members, and all links begin
        anew.
        """
        self.unblock()
        for session in list(self.network.sessions):
            self.end_session(session)
        for node in self.nodes.values():
            node.environment.faults.full = 0
            self.start(node)
        for one, two in self.pairs:
            self.network.connect(one, two)

    def unblock(self) -> None:
        """All links work except the dead one."""
        self.network.blocked.clear()
        self.network.blocked.update(self.dead)

    def end_session(self, session: LinkSession) -> None:
        for name in session.ends:
            if session.states[name] != CLOSED:
                self.network.close(session, name)

    def settle(self) -> None:
        """Let the cluster come to rest."""
        for _ in range(ROUNDS):
            self.carry_out_deletions()
            for node in self.running:
                self.learn(node)
                self.tick(node)
            self.work_off()
            if not self.unrest():
                return
        raise Violation(f"the cluster does not come to rest though everything works: {self.unrest()}")

    def carry_out_deletions(self) -> None:
        """Delete the queues whose deletion was proposed. Dead letters must have a queue to go to, so each is
        declared again.
        """
        for node in self.running:
            deletions, node.deletions = node.deletions, {}
            for declared in deletions:
                if declared in self.declared:
                    self.note("sealed queues are deleted")
                    self.declare_anew(declared, declared.members[-1])

    def work_off(self) -> None:
        for _ in range(3000):
            moved = False
            for node in self.running:
                if node.disk.running or node.disk.waits():
                    self.step_disk(node)
                    moved = True
                moved = self.step_read(node) or moved
            for place in self.network.places():
                if place in self.network.places():
                    self.log(self.network.go_on(*place, 8))
                    moved = True
            if not moved:
                return
        raise Violation("messages go round for ever")

    def unrest(self) -> str:
        """Return what is still under way, as text; empty if nothing is."""
        for node in self.running:
            if node.known < len(node.events):
                return f"{node.name} has not learned of {node.events[node.known]}"
        for declared in self.declared:
            leader = self.leading(declared)
            if leader is None:
                return f"{declared.name} has no leader"
            if declared.ledger.dead_lettering:
                return (
                    f"{declared.name} has dead letters {list(declared.ledger.dead_lettering)} to be sent on"
                )
            if declared.ledger.machine.sealed:
                return f"{declared.name} is sealed, and is not deleted"
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
            if node.replicas.lost_entries.entries():
                return f"{node.name} lacks {node.replicas.lost_entries.entries()}"
            if node.hosts.leaving:
                return f"{node.name} has not left {list(node.hosts.leaving)} yet"
            if node.replicas.stalled:
                return f"the disk of {node.name} is stalled"
            if any(at <= node.now_ms for at, _ in node.timers.asked):
                return f"{node.name} has a timer due"
            for client in node.clients:
                waiting = [p.name for p in client.publishers.values() if p.waiting]
                if waiting or client.asked:
                    return f"session {client.number} waits for {waiting} {list(client.asked)}"
        return ""
