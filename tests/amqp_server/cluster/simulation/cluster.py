"""A cluster of whole nodes in one process, driven by the test: nothing moves unless the test says so."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from itertools import filterfalse
from random import Random
from typing import Any

from amqp_server.cluster import administration
from amqp_server.cluster import node as product
from amqp_server.cluster.membership.machines import votes
from amqp_server.cluster.topology_group import GROUP
from quorum_queue.cluster.replica_group import Group
from tests.amqp_server.cluster.simulation import waiting
from tests.amqp_server.cluster.simulation.clients import Client
from tests.amqp_server.cluster.simulation.ledger import Ledger
from tests.amqp_server.cluster.simulation.messages import Messages
from tests.amqp_server.cluster.simulation.node import SimulatedNode
from tests.amqp_server.cluster.simulation.planting import planting, plants_of
from tests.amqp_server.cluster.simulation.waiting import Task
from tests.quorum_queue.cluster.network import CLOSED, Network
from tests.turns import Violation

#: Rounds within which a healed cluster must come to rest: in each round every clock ticks once.
ROUNDS = 600
#: Rounds within which the maintenance of a node with a slow clock has looked at the cluster.
LOOK_ROUNDS = 12


@contextmanager
def by_hand() -> Iterator[None]:
    """Within this, the broker's coroutines await the primitives of `waiting`. A node's clock goes on in
    steps, so its ticks come one interval after the other: on the beat they would fall between two steps.
    """
    places: list[Any] = [product, administration]
    before = [place.trio for place in places]
    ticking: Any = product
    until_beat_s, ticking.until_beat_s = ticking.until_beat_s, _whole_interval_s
    for place in places:
        place.trio = waiting
    try:
        with planting():
            yield
    finally:
        for place, module in zip(places, before, strict=True):
            place.trio = module
        ticking.until_beat_s = until_beat_s


def _whole_interval_s(interval_ms: int, at_ms: int) -> float:
    return interval_ms / 1000


class Cluster:
    """A cluster founded by some of the nodes; the others may join."""

    def __init__(
        self,
        names: Sequence[str],
        founders: Sequence[str],
        *,
        random: Random | None = None,
        rates: dict[str, float] | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.random = random or Random(0)
        self.trace = trace
        self.step = 0
        self.names = tuple(names)
        self.founders = tuple(founders)
        self.network = Network()
        self.ledger = Ledger()
        self.messages = Messages(self.ledger.queues)
        identities: dict[tuple[str, int], str] = {}
        self.nodes: dict[str, SimulatedNode] = {}
        for name in self.names:
            rate = rates[name] if rates is not None else 1.0
            node = SimulatedNode(
                name, self.network, self.ledger, identities, seed=self.random.getrandbits(30), rate=rate
            )
            self.nodes[name] = self.network.nodes[name] = self.ledger.nodes[name] = node
        #: Nodes that belong to the cluster, or are about to join.
        self.belonging = dict.fromkeys(self.founders)
        self.last_number = 0
        #: The confirm levels (x-confirm) that clients may ask for; empty if they ask for none.
        self.levels: tuple[str, ...] = ()
        #: Clients pick messages out of queues as this generator says, if there is one.
        self.picks: Random | None = None
        #: The node whose disk was lost, until everything on it is filled again.
        self.wounded = ""
        #: Nodes that once had another disk, or were taken out once.
        self.wiped: dict[str, None] = {}
        #: The requests of operators, each with its node and task.
        self.asked: list[tuple[str, str, Task]] = []
        #: Links, as (from, to), on which nothing arrives, even when everything else is healed.
        self.dead: dict[tuple[str, str], None] = {}

    def log(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.step:5} {text}")

    def note(self, what: str) -> None:
        self.ledger.note(what)
        self.log(what)

    @property
    def running(self) -> list[SimulatedNode]:
        return [node for node in self.nodes.values() if node.alive]

    @property
    def serving(self) -> list[SimulatedNode]:
        return [node for node in self.running if node.serving]

    # -- nodes -----------------------------------------------------------------------------------------------

    def start(self, node: SimulatedNode) -> None:
        """Start a node. A founder is configured with the founders, any other node with all nodes of the
        cluster.
        """
        if node.alive or node.name not in self.belonging:
            return
        if node.out:
            node.replace_disk()
        self.note("starts")
        peers = self.founders if node.name in self.founders else (*self.belonging,)
        if not node.start(sorted({node.name, *peers})):
            self.log(f"{node.name}: {node.out}")

    def crash(self, node: SimulatedNode, *, written: bool | None = None) -> None:
        if not node.alive:
            return
        self.note("crashes")
        self.log(f"{node.name} crashes")
        self.ledger.doubt(node.name, node.incarnation)
        node.crash(written=self.random.random() < 0.5 if written is None else written)
        self.network.crashed(node.name, lambda: self.random.random() < 0.6)
        for asked in [asked for asked in self.asked if asked[1] == node.name]:
            self.asked.remove(asked)

    def doubt_all(self) -> None:
        for node in self.nodes.values():
            self.ledger.doubt(node.name, node.incarnation)

    def connect(self, one: str, two: str) -> None:
        first, second = self.nodes[one], self.nodes[two]
        if not (first.alive and second.alive):
            return
        if (first.dials(two) and second.lets_in(one)) or (second.dials(one) and first.lets_in(two)):
            self.network.connect(one, two)

    def tick(self, node: SimulatedNode) -> None:
        if not node.alive:
            return
        self.log(f"{node.name}: tick, it is {node.now_ms}")
        node.tick()
        if node.out:
            self.log(f"{node.name}: {node.out}")
            self.note("goes")
            self.crash(node)
        elif node.wants_start:
            self.note("starts again with a higher number")
            self.crash(node)
            self.start(node)
        for what, at, task in list(self.asked):
            if at == node.name and task.done:
                self.asked.remove((what, at, task))
                self.note(f"{what} {'fails' if task.error else 'done'}")
                self.log(f"{what} at {at}: {task.error or 'done'}")

    def step_disk(self, node: SimulatedNode) -> None:
        if node.alive and node.step_disk():
            self.log(f"{node.name}: a commit {node.disk_did}")

    def step_read(self, node: SimulatedNode) -> bool:
        """Return whether anything waited for the disk."""
        if node.alive and node.step_read():
            self.log(f"{node.name}: the disk has what was to be read")
            return True
        return False

    def new_client(self, node: SimulatedNode, vhost: str = "/", *, transactional: bool = False) -> Client:
        self.last_number += 1
        client = Client(self, node, self.last_number, vhost, transactional=transactional)
        node.end_turn()
        return client

    def read_stream(self, client: Client, name: str, queue_id: int) -> None:
        """A client reads all messages of a stream."""
        hosts = [node.cluster.hosts.grouped.get(queue_id) for node in self.running]
        count: int = max(host.ready_count for host in hosts if host is not None)
        before = len(client.received)
        client.consume(name, {"x-stream-offset": "first"})
        self.wait_for(client)

        def done() -> bool:
            if client.unacked:
                client.ack_all()
            return len(client.received) - before >= count

        self.wait(done)
        client.cancel()
        self.wait_for(client)

    def ask(self, what: str, node: SimulatedNode, coroutine: Coroutine[Any, Any, Any]) -> Task:
        """Have an operator ask a node for something."""
        self.log(f"{what}, asked of {node.name}")
        task = node.run(coroutine)
        self.asked.append((what, node.name, task))
        return task

    # -- coming to rest --------------------------------------------------------------------------------------

    def mend(self) -> None:
        """Make everything work except the dead links: nodes are up, and all links begin anew."""
        self.unblock()
        for session in list(self.network.sessions):
            for name in session.ends:
                if session.states[name] != CLOSED:
                    self.network.close(session, name)
        for node in self.nodes.values():
            node.disk.faults.full = 0
            node.files.room = None
            self.start(node)
            node.set_alarm(False)
            self.heal_queues(node)
        self.connect_all()

    def heal_queues(self, node: SimulatedNode) -> None:
        """No queue fails any more, and an operator has the nodes try again the queues that they set aside."""
        if not node.alive:
            return
        plants_of(node.cluster.replicas).left.clear()
        for failure in node.broker.failures.stopped():
            if failure.set_aside:
                node.turn.run(node.broker.failures.retry, failure.queue)
                self.note("queues that were set aside are tried again")

    def unblock(self) -> None:
        """All links work except the dead one."""
        self.network.blocked.clear()
        self.network.blocked.update(self.dead)

    def is_dead(self, one: str, two: str) -> bool:
        """Return whether there is no link between these nodes."""
        return (one, two) in self.dead or (two, one) in self.dead

    def splits(self) -> bool:
        """Return whether there is a group in which a running member that may have the longest log reaches no
        majority.

        This is so for two members at the ends of the dead link, for four members of which one has been taken
        out for good, and for three of which one has failed and is to be filled by the others.
        """
        for node in self.serving:
            if self._is_out_of_reach(node):
                return True
            if any(self._are_split(queue.members) for queue in node.broker.all_queues() if queue.members):
                return True
        # If the topology has no leader, none of its nodes may serve.
        for node in self.running:
            for group_id, group in node.cluster.replicas.groups.items():
                if self._are_split(group.core.members.voters, self._without_memory(group_id)):
                    return True
        return False

    def _is_out_of_reach(self, node: SimulatedNode) -> bool:
        """Return whether this node has no link to any of the nodes that new queues are put on. The other
        nodes are about to leave.
        """
        staying = node.cluster.roster.staying
        return bool(staying) and all(self.is_dead(node.name, name) for name in staying)

    def _without_memory(self, group_id: int) -> list[str]:
        """Return the members of a group that do not vote before the others have filled them."""
        found = [(node.name, node.cluster.replicas.groups.get(group_id)) for node in self.running]
        return [name for name, group in found if group is not None and group.core.amnesiac]

    def _are_split(self, names: Sequence[str], without: Sequence[str] = ()) -> bool:
        running = [name for name in names if self.nodes[name].alive and name not in without]
        reached = [sum(not self.is_dead(name, other) for other in running) for name in running]
        return min(reached, default=0) <= len(names) // 2

    def look_at_members(self) -> None:
        """Take the nodes that belong to the cluster from the topology. An operator stops the nodes that were
        removed.
        """
        topology = self.leading()
        if topology is None:
            return
        nodes = self.nodes[topology.replicas.node].cluster.roster.nodes
        if not nodes:
            return
        for name in [name for name in self.belonging if name not in nodes]:
            del self.belonging[name]
            self.wiped[name] = None
        self.belonging.update(dict.fromkeys(nodes))

    def stop_the_removed(self) -> None:
        for node in self.running:
            if node.name not in self.belonging:
                self.crash(node)
                node.replace_disk()

    def is_filling(self) -> bool:
        """Return whether there is a node that begins with an empty disk, or is about to."""
        joining = any(what == "join" for what, _, _ in self.asked)
        return bool(self.wounded) or joining or not all(self.nodes[name].serving for name in self.belonging)

    def connect_all(self) -> None:
        for one in self.names:
            for two in self.names:
                if one < two:
                    self.connect(one, two)

    def settle(self) -> None:
        """Let the cluster come to rest."""
        rested = 0
        for _ in range(ROUNDS):
            for node in self.running:
                self.tick(node)
            self.look_at_members()
            for node in self.nodes.values():
                self.start(node)
            self.connect_all()
            self.work_off()
            # A node looks after its groups a few in each turn.
            for node in self.running:
                for _ in range(ROUNDS):
                    if not node.turn.behind:
                        break
                    node.end_turn()
            self.work_off()
            rested = 0 if self.unrest() else rested + 1
            if rested > LOOK_ROUNDS:
                # By now the maintenance has looked at the cluster, too.
                self.stop_the_removed()
                return
        raise Violation(f"the cluster does not come to rest though everything works: {self.unrest()}")

    def wait(self, reached: Callable[[], bool]) -> None:
        """Run everything until the condition holds."""
        for _ in range(ROUNDS):
            for node in self.running:
                node.end_turn()
            self.work_off()
            if reached():
                return
            for node in self.running:
                self.tick(node)
        raise Violation("what is waited for does not come")

    def wait_for(self, client: Client) -> None:
        """Run everything until a client has its answer."""
        self.wait(lambda: client.asked is None)

    def work_off(self) -> None:
        for _ in range(3000):
            moved = False
            for node in self.running:
                if node.commits.running or node.commits.waits():
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

    def leading(self, group_id: int = GROUP) -> Group | None:
        """Return the group of the leader with the highest term."""
        led = [
            node.cluster.replicas.groups[group_id]
            for node in self.running
            if group_id in node.cluster.replicas.groups and node.cluster.replicas.groups[group_id].is_leader
        ]
        return max(led, key=lambda group: group.core.term, default=None)

    def unrest(self) -> str:
        """Return what is still under way, as text; empty if nothing is."""
        topology = self.leading()
        if topology is None:
            return "nobody leads the topology"
        if self.asked:
            return f"operators wait for {[what for what, _, _ in self.asked]}"
        leader = self.nodes[topology.replicas.node]
        if sorted(leader.cluster.roster.nodes) != sorted(self.belonging):
            return f"the cluster has the nodes {sorted(leader.cluster.roster.nodes)}"
        for name in self.belonging:
            node = self.nodes[name]
            if not node.alive or not node.serving:
                return f"{name} does not serve"
            if node.turn.behind:
                return f"{name} has not come to its turn's end"
            others = [other for other in self.belonging if other != name and not self.is_dead(name, other)]
            if sorted(node.sessions) != sorted(others):
                return f"{name} has links to {sorted(node.sessions)}"
            if node.cluster.catalog.decisions.by_id:
                return f"{name} remembers what was decided about {list(node.cluster.catalog.decisions.by_id)}"
            for queue in node.broker.all_queues():
                parts = queue.host.parts
                if parts is not None and len(parts):
                    found = [part.transaction for part in parts.all()]
                    return f"queue {queue.name} on {name} has parts of {found}"
        return self._unrest_of(GROUP, "the topology", tuple(self.belonging)) or self._unrest_of_queues(leader)

    def _unrest_of(self, group_id: int, what: str, members: Sequence[str]) -> str:
        leader = self.leading(group_id)
        if leader is None:
            return f"{what} has no leader"
        core = leader.core
        # Further workers of a machine follow the topology for good.
        following = sorted(filterfalse(votes, members)) if group_id == GROUP else []
        voters = sorted(set(members) - set(following))
        if sorted(core.members.voters) != voters or sorted(core.members.learners) != following:
            return f"{what} has members {core.members}, not {sorted(members)}"
        for name in members:
            group = self.nodes[name].cluster.replicas.groups.get(group_id)
            if group is None:
                return f"{name} has no part of {what}"
            own = group.core
            if own.amnesiac or own.leader != leader.replicas.node or not own.quiet:
                return f"{name} is not at rest with {what}"
            if group.applied != core.last_index or group.flights or group.sending or group.receiving:
                return f"{name} has something under way for {what}"
        return ""

    def stays_in(self, node: SimulatedNode) -> set[int]:
        """Return the queues that a node is to leave and of which it reaches no member that says when."""
        return {
            queue_id
            for queue_id, queue in node.cluster.hosts.leaving.items()
            if all(self.is_dead(node.name, name) for name in queue.members)
        }

    def _unrest_of_queues(self, leader: SimulatedNode) -> str:
        for queue in leader.broker.all_queues():
            if queue.members:
                found = self._unrest_of(queue.queue_id, f"queue {queue.name}", queue.members)
                if found:
                    return found
        for name in self.belonging:
            node = self.nodes[name]
            if node.cluster.replicas.lost_entries.found_count and not node.disk.groups.was_damaged:
                raise Violation(f"{name} takes entries for lost, and nothing on its disk was damaged")
            if node.cluster.replicas.lost_entries.entries():
                return f"{name} lacks {node.cluster.replicas.lost_entries.entries()}"
            if node.broker.failures.stopped():
                return f"{name} has failed queues"
            leaving = set(node.cluster.hosts.leaving) - self.stays_in(node)
            if leaving:
                return f"{name} has not left {sorted(leaving)} yet"
            for client in node.clients:
                if client.asked is not None or client.unconfirmed or client.closing:
                    return f"session {client.number} waits for {client.asked}, {list(client.unconfirmed)}"
            due = node.broker.timers.next_ms
            if due is not None and due <= node.now_ms:
                return f"{name} has a timer due"
        return ""
