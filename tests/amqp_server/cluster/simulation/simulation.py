"""Whole nodes under seeded chance: the topology, its queues and their messages, members that come and go, and
clients.

`python -m tests.amqp_server.cluster.simulation.simulation --seed N` runs one and prints its result (`--trace`
all that happened); `--seeds A:B` runs many. Everything in a node is real except its links, its disk, its
clock, and its sockets; see node. The checks are in ledger, messages and at_rest.

Some runs begin with nodes of an older version, which are upgraded one after the other; see older.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import filterfalse
from math import inf
from random import Random
from typing import Any, ClassVar

import msgspec

from amqp_server.broker.access.permissions import Permission
from amqp_server.broker.access.users import User
from amqp_server.broker.declared.operations import (
    ClearParameter,
    ClearPermission,
    DeleteUser,
    DeleteVhost,
    Operation,
    PauseQueue,
    ProtectQueue,
    PutParameter,
    PutUser,
    PutVhost,
    SetPermission,
)
from amqp_server.broker.declared.parameters import POLICY, ParameterRecord
from amqp_server.broker.declared.vhosts import VhostRecord
from amqp_server.cluster.membership.machines import machine_of, machines, on_machine, votes, worker_name
from amqp_server.cluster.topology_group import GROUP
from amqp_server.cluster.wiring import FEATURES
from quorum_queue.machine import versions
from tests import seeds
from tests.amqp_server.cluster.simulation import older
from tests.amqp_server.cluster.simulation.at_rest import check_at_rest, drain
from tests.amqp_server.cluster.simulation.clients import Client
from tests.amqp_server.cluster.simulation.cluster import Cluster, by_hand
from tests.amqp_server.cluster.simulation.node import SimulatedNode
from tests.amqp_server.cluster.simulation.planting import plants_of
from tests.amqp_server.cluster.simulation.silences import Silences
from tests.turns import Violation

STEPS = 1600
#: Steps after which the cluster may be mended, to go on from there.
EPOCH = 400
#: Rounds within which clients of all nodes get their answers though one link is dead: in each round every
#: clock ticks once. The slowest one goes at 0.6 of real time, and a declare may wait for a second for nodes
#: that are behind.
DEAD_LINK_ROUNDS = 60
VHOSTS = ("/", "v")
USERS = ("ann", "bob")

#: In runs in which many queues fail, the probability that a step plants a defect in one of them.
PLANTED = 0.1
#: Seeds modulo eight whose runs begin with nodes of an older version. One of them changes policies, too.
OLDER_SEEDS = (1, 3, 5)

#: Steps by which a wall clock is set, back or forward.
CLOCK_STEPS_MS = (5_000, 600_000, 3 * 3_600_000)


class Simulation(Cluster):
    #: Each node has one of these, see SimulatedNode.turn_lasts.
    turns_last: ClassVar[tuple[float, ...]] = (inf, 3.0)

    def __init__(self, seed: int, *, steps: int = STEPS, trace: Callable[[str], None] | None = None) -> None:
        random = Random(seed)
        names = [*"abcde"[: random.choice((3, 4, 5, 5))]]
        founders = names[: random.choice((3, 3, len(names)))]
        if seed % 5 == 4:
            # Some of the machines that found the cluster have workers.
            workers = Random(f"workers {seed}")
            further = [worker_name(name, 1) for name in workers.sample(founders, workers.randrange(1, 4))]
            names, founders = names + further, founders + further
        rates = {name: random.choice((0.6, 1.0, 1.0, 1.5)) for name in names}
        self.trouble = random.choice((0.0, 0.2, 0.5, 1.0, 1.0))
        #: In some runs policies change; this generator chooses the changes.
        self.policies = Random(f"policies {seed}") if seed % 4 == 3 else None
        super().__init__(names, founders, random=random, rates=rates, trace=trace)
        self.pauses = Random(f"pauses {seed}")
        #: In half of the runs, and in none of those with older nodes: they do not tell each other their queue
        #: time, so that a new leader may have quite another one.
        self.silences = Silences(self, Random(f"silences {seed}"), self.act) if seed % 2 == 0 else None
        self.steps = steps
        #: In some runs, many queues fail.
        self.plants = Random(f"plants {seed}") if seed % 4 == 2 else None
        #: In some runs, nodes are of an older version at first. Each is upgraded at this step, or soon after.
        self.upgrades: dict[str, int] = {}
        if seed % 8 in OLDER_SEEDS:
            self.begin_older(Random(f"versions {seed}"))
        self.levels = ("", "", "leader", "all")
        #: True while nothing except a dead link has been amiss since everything worked.
        self.else_well = False
        for node in self.nodes.values():
            # From its next start on, some turns of the node are only long enough for a few parts of a
            # snapshot.
            node.turn_lasts = Random(f"turns {seed} {node.name}").choice(self.turns_last)
            if random.random() < 0.3:
                self.set_clock(node)
        self.mend()
        if random.random() < 0.8:
            self.settle()

    def begin_older(self, random: Random) -> None:
        """All machines, or some, have the same older version. They are upgraded one after the other."""
        version = random.choice((versions.FIRST, random.randrange(versions.FIRST, versions.NEWEST)))
        all_machines = list(dict.fromkeys(map(machine_of, self.names)))
        some = random.sample(all_machines, random.randrange(1, len(all_machines)))
        begin = random.randrange(self.steps // 2)
        for machine in random.choice((all_machines, some)):
            step = begin + random.randrange(self.steps // 4)
            for name in on_machine(machine, self.names):
                self.nodes[name].features = older.features_of(version)
                self.upgrades[name] = step

    def upgrade(self, name: str) -> None:
        """Stop the node's machine, and start it with the newest version."""
        names = on_machine(machine_of(name), self.names)
        for each in names:
            self.upgrades.pop(each, None)
            self.crash(self.nodes[each])
            self.nodes[each].features = FEATURES
        self.else_well = False
        self.note("nodes are upgraded")
        self.log(f"{names} are upgraded")
        for each in names:
            self.start(self.nodes[each])
        if not self.upgrades:
            self.note("the last node is upgraded")

    def upgrade_in_time(self) -> None:
        if len({node.version for node in self.serving}) > 1:
            self.note("steps with nodes of two versions")
        for name in [name for name, step in self.upgrades.items() if step <= self.step]:
            # An operator who sees that a node is still to be filled would do the same.
            if name in self.upgrades and not self.wounded and not self.changing:
                self.upgrade(name)

    def unrest(self) -> str:
        found = super().unrest()
        if found:
            return found
        known = older.lowest([self.nodes[name] for name in self.belonging])
        behind = [name for name in self.belonging if self.nodes[name].cluster.roster.version != known]
        return f"all nodes know version {known}, and {behind} have another one" if behind else ""

    def one_step(self) -> None:
        if self.upgrades:
            self.upgrade_in_time()
        if self.plants is not None and self.trouble and self.plants.random() < PLANTED:
            self.plant(self.nodes[self.plants.choice(self.names)], self.plants)
        if self.silences is not None and self.silences.chance(0.003 * self.trouble):
            self.else_well = False
            self.silences.strike()
        if self.pauses.random() < 0.006:
            self.change_queue(self.nodes[self.pauses.choice(self.names)])
        random = self.random
        action = random.random()
        node = self.nodes[random.choice(self.names)]
        if action < 0.42:
            for _ in range(random.choice((1, 2, 6))):
                places = self.network.places()
                if places:
                    self.log(self.network.go_on(*random.choice(places), random.choice((1, 2, 4, 8))))
        elif action < 0.58:
            if random.random() < 0.3:
                self.step_read(node)
            self.step_disk(node)
            self.step_disk(self.nodes[random.choice(self.names)])
        elif action < 0.70:
            self.tick(node)
        elif action < 0.87:
            self.act(node)
        elif action < 0.885:
            self.administer(node)
        elif action < 0.92:
            self.connect(*random.sample(self.names, 2))
            if random.random() < 0.15:
                self.unblock()
        elif action < 0.94:
            self.start(node)
        elif action < 0.95:
            self.change_nodes(node)
        elif action < 0.957:
            self.change_alarm(node)
        elif random.random() < self.trouble * 0.6:
            self.make_trouble(random.random(), node)

    def act(self, node: SimulatedNode) -> None:
        if not node.alive or not node.serving:
            return
        random = self.random
        if not node.clients or (len(node.clients) < 3 and random.random() < 0.15):
            vhost = random.choice(VHOSTS) if random.random() < 0.3 else "/"
            if vhost not in node.broker.vhost_records:
                return
            self.new_client(node, vhost, transactional=random.random() < 0.3)
            return
        client = random.choice(node.clients)
        self.log(f"{node.name}: session {client.number} {client.act()}")
        if random.random() < 0.7:
            node.end_turn()

    # -- operators -------------------------------------------------------------------------------------------

    def administer(self, node: SimulatedNode) -> None:
        """Change vhosts, users and permissions, or move queues."""
        if not node.alive or not node.serving:
            return
        random = self.random
        user, vhost = random.choice(USERS), random.choice(VHOSTS)
        kinds = ("", "classic", "quorum")
        operations: tuple[Operation, ...] = (
            PutVhost(VhostRecord("v", random.choice(("", "text")), (), random.choice(kinds))),
            PutVhost(VhostRecord("/", "", (), random.choice(kinds))),
            PutUser(User(user, random.choice(("one", "other")), random.choice(((), ("administrator",))))),
            # The first user is no longer an administrator, unless it is the last one.
            PutUser(User("guest" if user == "bob" else user, "hash")),
            SetPermission(Permission(user, vhost, random.choice((".*", "a")), "", ".*")),
            SetPermission(Permission("guest", "v", ".*", ".*", ".*")),
            ClearPermission(user, vhost),
            DeleteUser(user),
            DeleteVhost("v"),
        )
        if self.policies is not None and self.policies.random() < 0.3:
            self.change_policies(node)
            return
        which = random.randrange(len(operations) + 6)
        if which < len(operations):
            self.log(f"{node.name}: {operations[which]}")
            node.turn.run(node.broker.propose, operations[which], lambda result: None)
            node.end_turn()
            return
        administration = node.cluster.administration
        self.doubt_all()
        if which % 3 == 0:
            self.ask("rebalance", node, administration.rebalance())
        elif which % 3 == 1:
            self.ask("grow", node, administration.grow(random.choice(self.names), VHOSTS))
        elif not self.wounded and not self.dead and not self.is_forgetting():
            self.ask("shrink", node, administration.shrink(random.choice(self.names)))

    def change_queue(self, node: SimulatedNode) -> None:
        """An operator pauses a queue, resumes it, or protects it from deletion."""
        pauses = self.pauses
        queues = list(node.broker.all_queues()) if node.alive and node.serving else []
        # What check_progress has left has to take messages the next time.
        queues = [queue for queue in queues if not queue.name.startswith("quorum/at ")]
        if not queues or node.broker.replication.version < versions.PAUSES:
            return
        queue = pauses.choice(queues)
        place = queue.vhost.name, queue.name, queue.queue_id
        pause = PauseQueue(*place, *pauses.choices((True, False, None), k=2))
        operation = ProtectQueue(*place, pauses.random() < 0.5) if pauses.random() < 0.2 else pause
        self.log(f"{node.name}: {operation}")
        node.turn.run(node.broker.propose, operation, lambda result: None)
        node.end_turn()

    def resume_queues(self) -> None:
        node = self.serving[0]
        for queue in list(node.broker.all_queues()):
            if queue.record.deliveries_paused or queue.record.publishes_paused:
                resumed = PauseQueue(queue.vhost.name, queue.name, queue.queue_id, False, False)
                node.turn.run(node.broker.propose, resumed, lambda result: None)
        node.end_turn()
        self.settle()

    def change_policies(self, node: SimulatedNode) -> None:
        """Set or clear a policy that changes settings, but loses no message."""
        policies = self.policies
        assert policies is not None
        if not node.topology.takes_parameters:
            return
        vhost, name = policies.choice(VHOSTS), policies.choice("pq")
        operation: Operation = ClearParameter(vhost, POLICY, name)
        if policies.random() < 0.7:
            value = {
                "pattern": policies.choice(("", "quorum", "lease")),
                "apply-to": policies.choice(("all", "quorum_queues")),
                "priority": policies.choice((0, 1)),
                "definition": {
                    policies.choice(("max-length", "max-length-bytes")): policies.choice((100_000, 200_000))
                },
            }
            operation = PutParameter(
                ParameterRecord(vhost, POLICY, name, msgspec.json.encode(value).decode())
            )
        self.log(f"{node.name}: {operation}")
        node.turn.run(node.broker.propose, operation, lambda result: None)
        node.end_turn()

    def change_nodes(self, node: SimulatedNode) -> None:
        """Add a node, or remove one."""
        random = self.random
        if self.wounded or not node.alive or not node.serving or self.changing:
            return
        if node.name not in self.belonging:
            # The node was removed and has not heard of it: an operator would have to let it join itself, so
            # it is stopped instead.
            return
        topology = self.leading()
        if (
            topology is None
            or topology.core.members_index > topology.core.commit
            or any(votes(name) for name in topology.core.members.learners)
        ):
            return
        # Machines with workers stay.
        has_workers = machines(filterfalse(votes, self.names))
        outside = [name for name in self.names if name not in self.belonging]
        down = [name for name in self.belonging if not self.nodes[name].alive]
        if outside and random.random() < 0.6:
            self.ask("join", node, self._join(node, random.choice(outside)))
        elif len(machines(self.belonging)) > 3 and len(down) == 1 and down[0] not in has_workers:
            if node.cluster.roster.version < versions.REMOVED:
                # What the forgotten node still sends makes it an unnamed one for the others; docs/upgrade.md
                # says to wait.
                return
            two = any(
                down[0] in queue.members and len(queue.members) < 3 for queue in node.broker.all_queues()
            )
            if two or self.have_queues_failed():
                # What is left of a queue may have no majority; an operator would have to accept a loss.
                return
            self.ask("forget", node, self._forget(node, down[0]))
        elif len(machines(self.belonging)) > 3 and not down and node.name not in has_workers:
            self.doubt_all()
            self.ask("leave", node, self._leave(node))

    @property
    def changing(self) -> bool:
        return any(what in ("join", "forget", "leave") for what, _, _ in self.asked)

    async def _join(self, node: SimulatedNode, name: str) -> None:
        other = self.nodes[name]
        # A node that still runs would hear soon that it was removed, and begin anew with an empty disk: a new
        # queue on two nodes would not survive that.
        self.crash(other)
        other.replace_disk()
        if name in self.upgrades:
            # The cluster may have a version by now that an older node cannot join.
            self.upgrade(name)
        self.wiped[name] = None
        await node.cluster.administration.join(name, "127.0.0.1:1")

    async def _leave(self, node: SimulatedNode) -> None:
        node.cluster.administration.may_leave()
        await node.cluster.administration.leave()

    async def _forget(self, node: SimulatedNode, name: str) -> None:
        self.doubt_all()
        self.wiped[name] = None
        self.ledger.forgotten[name] = None
        await node.cluster.administration.forget(name)

    # -- trouble ---------------------------------------------------------------------------------------------

    def make_trouble(self, which: float, node: SimulatedNode) -> None:
        random, network = self.random, self.network
        pair = tuple(random.sample(self.names, 2))
        if which < 0.25:
            self.crash(node)
        elif which < 0.38:
            self.break_session()
        elif which < 0.50:
            self.note("one way is blocked")
            self.doubt_all()
            network.blocked[pair[0], pair[1]] = None
        elif which < 0.63:
            self.note("partitions")
            self.doubt_all()
            for other in self.names:
                if other != node.name and random.random() < 0.8:
                    network.blocked[node.name, other] = network.blocked[other, node.name] = None
        elif which < 0.74:
            self.hand_over(node)
        elif which < 0.82:
            self.note("the disk is full")
            node.disk.faults.full = random.choice((1, 2, 5))
        elif which < 0.89:
            self.lose_disk(node)
        elif which < 0.92 and node.alive:
            self.note("stands still")
            self.doubt_all()
            node.clock.now_ms += random.choice((500, 3000))
        elif which < 0.96:
            self.set_clock(node)
        else:
            self.plant(node, random)

    def change_alarm(self, node: SimulatedNode) -> None:
        """Block publishers, or let them go on. The alarm may stand for long, so it is ended more often than
        raised.
        """
        if not node.alive or not self.trouble:
            return
        if node.broker.alarms.active:
            node.set_alarm(False)
            self.log(f"{node.name}: the alarm is over")
        elif self.random.random() < 0.6:
            node.set_alarm(True)
            self.note("alarms")

    def plant(self, node: SimulatedNode, random: Random) -> None:
        """Have a queue fail on one node, a few times or until an operator looks after it.

        A member that fails again may be filled by the others, and then has forgotten its votes. So no queue
        fails while a disk is lost or a node is given up: more than one such member at a time is more than
        Raft bears.
        """
        may_fail = node.alive and not self.wounded and not self.is_forgetting()
        hosts = list(node.cluster.hosts.grouped) if may_fail else []
        if hosts:
            queue_id = random.choice(hosts)
            count, after = random.choice((1, 1, 2, 3, 100)), random.random() < 0.5
            self.log(f"{node.name}: queue {queue_id} is to fail {count} times, {after=}")
            plants_of(node.cluster.replicas).plant(
                queue_id, count, after=after, struck=lambda: self.note("queues fail")
            )

    def have_queues_failed(self) -> bool:
        """Return whether a queue on some node fails, is to fail, or has failed and is not filled again."""
        return any(
            any(plants_of(node.cluster.replicas).left.values())
            or node.broker.failures.stopped()
            or any(group.core.amnesiac for group in node.cluster.replicas.groups.values())
            for node in self.running
        )

    def is_forgetting(self) -> bool:
        """Return whether a node is being given up, or some queue still counts on it."""
        return any(what == "forget" for what, _, _ in self.asked) or any(
            name in self.ledger.forgotten and name not in self.belonging
            for node in self.running
            for queue in node.broker.all_queues()
            for name in queue.members
        )

    def set_clock(self, node: SimulatedNode) -> None:
        """Set a wall clock. Only users, and a start, may depend on it."""
        shift_ms = self.random.choice(CLOCK_STEPS_MS) * self.random.choice((-1, 1))
        self.note("clocks are set")
        self.log(f"{node.name}: its clock is set by {shift_ms} ms")
        node.set_clock(shift_ms)

    def break_session(self) -> None:
        if self.network.sessions:
            session = self.random.choice(self.network.sessions)
            self.note("links break")
            self.doubt_all()
            self.network.close(session, self.random.choice(session.ends))

    def hand_over(self, node: SimulatedNode) -> None:
        if not node.alive:
            return
        led = [group for group in node.cluster.replicas.groups.values() if group.is_leader]
        if led:
            group = self.random.choice(led)
            to = self.random.choice(group.core.members.voters)
            if to != node.name and node.cluster.maintenance.transfer(group, to):
                self.note("leaders hand over")
                node.end_turn()

    def lose_disk(self, node: SimulatedNode) -> None:
        """Lose a disk, but only where nothing else is amiss: more than one lost disk at a time is more than
        Raft bears.
        """
        if self.wounded or self.asked or node.name not in self.belonging or self.dead or self.unrest():
            return
        if any(0 < len(queue.members) < 3 for queue in node.broker.all_queues()):
            # A group of two has no majority any more if one of them has forgotten everything.
            return
        self.crash(node)
        self.note("disks are lost")
        self.doubt_all()
        self.wounded = node.name
        self.wiped[node.name] = None
        node.replace_disk()
        if self.random.random() < 0.5:
            self.set_clock(node)

    def lose_entry(self, node: SimulatedNode) -> None:
        """All disks lose the same entry of the topology's log, and an operator gives it up. Some records have
        it.
        """
        if self.wounded or self.asked or node.name not in self.belonging or not node.serving or self.unrest():
            return
        if self.upgrades:
            # A node of an older version can't give up an entry.
            return
        node.turn.run(node.broker.propose, PutUser(User(self.random.choice(USERS), str(self.step))))
        node.end_turn()
        self.work_off()
        nodes = [self.nodes[name] for name in self.belonging]
        index = min(each.cluster.replicas.groups[GROUP].core.last_index for each in nodes)
        self.doubt_all()
        for each in nodes:
            self.crash(each, written=True)
        if not all(index in each.disk.groups.groups[GROUP].entries for each in nodes):
            # A node has cut its log.
            return
        self.note("an entry of the topology is lost")
        for each in nodes:
            each.disk.groups.flip(GROUP, index)
            self.start(each)
        asked: Any = node.cluster
        asked._config = replace(asked._config, accept_topology_loss=index)
        self.connect_all()
        self.settle()

    def look_at_wounded(self) -> None:
        if self.wounded and (self.wounded not in self.belonging or not self.unrest()):
            self.log(f"{self.wounded} is whole again")
            self.wounded = ""

    # -- the run ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        with by_hand():
            for step in range(self.steps):
                self.step = step
                self.one_step()
                if step % 16 == 0:
                    self.look_at_members()
                    self.look_at_wounded()
                if step % EPOCH == EPOCH - 1:
                    self.next_epoch()
            self.log("everything works again")
            self.dead.clear()
            self.doubt_all()
            while self.upgrades:
                self.upgrade(next(iter(self.upgrades)))
            self.mend()
            self.settle()
            check_at_rest(self)
            self.resume_queues()
            drain(self, VHOSTS)
            check_at_rest(self)
            for node in self.nodes.values():
                node.end_tasks()

    def next_epoch(self) -> None:
        """At times make everything work for a while, and then do something that only a working cluster
        allows.
        """
        random = self.random
        self.end_dead_link()
        self.trouble = random.choice((0.0, 0.3, 1.0, 1.0)) if self.trouble else 0.0
        self.else_well = False
        if random.random() < 0.7:
            self.else_well = not self.trouble
            self.log("everything works for a while")
            self.doubt_all()
            self.mend()
            self.settle()
            check_at_rest(self)
            self.look_at_wounded()
            while self.silences is not None and self.trouble and self.silences.chance(0.75):
                # Groups are idle, and no link begins anew afterwards unless it has to.
                self.silences.strike()
                self.settle()
                check_at_rest(self)
            node = self.nodes[random.choice(self.names)]
            if self.trouble and random.random() < 0.2:
                self.lose_entry(node)
            if self.trouble and random.random() < 0.3:
                self.lose_disk(node)
            elif random.random() < 0.7:
                self.change_nodes(node)
        if random.random() < (0.8 if self.else_well else 0.4):
            self.begin_dead_link()

    # -- a dead link -----------------------------------------------------------------------------------------

    def begin_dead_link(self) -> None:
        """One link, or one direction of it, fails for long; everything else goes on as before.

        A node of an older version says nothing of its links, and so the others can't make up for a dead one.
        """
        if self.upgrades:
            return
        one, two = self.random.sample(list(self.belonging), 2)
        self.dead[one, two] = None
        if self.random.random() < 0.6:
            self.dead[two, one] = None
        if self.splits():
            # A queue on two nodes has no majority then.
            self.dead.clear()
            return
        self.note("links are dead for long")
        self.log(f"dead: {list(self.dead)}")
        self.doubt_all()
        self.unblock()

    def end_dead_link(self) -> None:
        """First, clients of all nodes must have been able to go on."""
        if self.dead and not self.wounded and not self.changing:
            try:
                self._go_on_with_a_dead_link()
            except Violation:
                # A queue was put on just the two nodes at its ends before they had noticed.
                if not self.splits():
                    raise
        self.dead.clear()

    def _go_on_with_a_dead_link(self) -> None:
        if self.else_well and not self.is_filling() and not self.splits():
            self.check_progress()
            self.note("clients go on with a dead link")
        self.log("everything works but one link")
        self.doubt_all()
        self.mend()
        self.settle()
        check_at_rest(self)
        self.check_progress()
        self.note("everything but a link is mended")

    def check_progress(self) -> None:
        """A new client of each node declares, publishes, gets and deletes, and is answered soon, and never
        refused.
        """
        self.look_at_members()
        clients = [self.new_client(node) for node in self.serving if node.name in self.belonging]
        names = {client: f"quorum/at {client.node.name}" for client in clients}
        self._all_answered("declare", clients, lambda client: client.declare(names[client]))
        for client in clients:
            if any(not other.queue_id(names[client]) for other in clients):
                raise Violation(
                    f"with {list(self.dead)} dead, what {client.node.name} declared is not everywhere"
                )
        self._all_answered("publish", clients, lambda client: client.publish(names[client]))
        self._all_answered("get", clients, lambda client: client.get(names[client]))
        for client in clients:
            if not client.unacked:
                raise Violation(f"with {list(self.dead)} dead, {client.node.name} has not what it published")
            client.ack_all()
        self._all_answered("delete", clients, lambda client: client.delete(names[client]))
        for client in clients:
            client.session.lost()
            client.collect()
            client.node.end_turn()

    def _all_answered(self, what: str, clients: list[Client], ask: Callable[[Client], object]) -> None:
        for client in clients:
            ask(client)
            client.node.end_turn()
        for _ in range(DEAD_LINK_ROUNDS):
            for node in self.running:
                self.tick(node)
            self.work_off()
            waiting = [client.node.name for client in clients if client.asked or client.unconfirmed]
            if not waiting:
                return
        raise Violation(f"with {list(self.dead)} dead, clients at {waiting} {what}, and are not answered")


def run(seed: int, *, steps: int = STEPS, trace: Callable[[str], None] | None = None) -> Simulation:
    with by_hand():
        simulation = Simulation(seed, steps=steps, trace=trace)
    simulation.run()
    return simulation


def _told(simulation: Simulation) -> list[str]:
    return [f"{simulation.ledger.index} entries, {simulation.ledger.count}"]


if __name__ == "__main__":
    seeds.main(run, _told, steps=STEPS)
