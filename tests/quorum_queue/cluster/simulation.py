"""Whole clusters of quorum queues under seeded chance: links, disks, clocks, restarts, members, and clients.

`python -m tests.quorum_queue.cluster.simulation --seed N` runs one and prints its result (`--trace` all that
happened); `--seeds A:B` runs many. The parts are the real ones, from the hosts of queues down to a store in
memory; see node. The checks are in ledger and at_rest.

No queue raises here while it applies an entry. The broker (amqp_server.broker.recovery.failures), above these
parts, stops such a queue, opens it again and sets it aside: the simulation of whole nodes plants such
defects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from quorum_queue.cluster.snapshots import compaction
from quorum_queue.machine import versions
from quorum_queue.machine.attributes import ALL, LEADER, MAJORITY
from quorum_queue.machine.seal import EMPTY, UNUSED
from tests import seeds
from tests.quorum_queue.cluster.at_rest import check_at_rest, check_empty, drain
from tests.quorum_queue.cluster.broker import Declared
from tests.quorum_queue.cluster.cluster import QUEUES, Cluster
from tests.quorum_queue.cluster.node import TICK_MS, SimulatedNode
from tests.turns import Violation

STEPS = 1600
#: Rounds within which clients of all nodes get their answers though one link is dead: in each round every
#: clock ticks once. The slowest one goes at 0.6 of real time.
DEAD_LINK_ROUNDS = 40
#: Steps by which a wall clock is set, back or forward.
CLOCK_STEPS_MS = (5_000, 600_000, 3 * 3_600_000)
#: Rounds in which a queue's time must go on.
TIME_ROUNDS = 20
#: Questions about messages to each queue at each node, at the end.
LOOKS = 12
#: Steps after which the cluster may be mended, to go on from there.
EPOCH = 400


class Simulation(Cluster):
    def __init__(self, seed: int, *, steps: int = STEPS, trace: Callable[[str], None] | None = None) -> None:
        random = Random(seed)
        names = "abcde"[: random.choice((3, 3, 3, 4, 5))]
        rates = {name: random.choice((0.6, 1.0, 1.0, 1.5)) for name in names}
        self.trouble = random.choice((0.0, 0.2, 0.5, 1.0, 1.0))
        super().__init__(names, _some_queues(names, random), random=random, rates=rates, trace=trace)
        self.steps = steps
        #: Chance for what came to the simulation later, so that its seeds still do the same otherwise.
        self.later = Random(f"later {seed}")
        self.looks = Random(f"looks {seed}")
        self.pauses = Random(f"pauses {seed}")
        #: Nodes whose topology does not know yet that a queue was paused or resumed.
        self.unheard: list[tuple[SimulatedNode, Declared]] = []
        self.levels = Random(f"levels {seed}").choice(((MAJORITY,), (MAJORITY, LEADER, ALL), (LEADER, ALL)))
        #: The node whose disk has damage, until all of it is mended: more than one at a time is more than
        #: Raft bears.
        self.wounded = ""
        #: Another node, which has lost other entries.
        self.also_wounded = ""
        #: True while nothing except a dead link has been amiss since everything worked.
        self.else_well = False
        self.network.version = random.choice((versions.FIRST, versions.NEWEST))
        for node in self.nodes.values():
            node.slow_reads = 0.4
            node.had_clock(random.choice((-1, 0, 0, 0, 1)) * random.choice(CLOCK_STEPS_MS))
        self.mend()

    def one_step(self) -> None:
        random = self.random
        if self.later.random() < 0.02:
            self.carry_out_deletions()
        if self.later.random() < 0.02:
            self.decide()
        if self.pauses.random() < 0.01 and self.network.version >= versions.PAUSES:
            self.pause_queue(self.pauses.random() < 0.5, self.pauses.random() < 0.5)
        while self.unheard and self.pauses.random() < 0.3:
            self.hear_of_pause()
        action = random.random()
        name = random.choice(self.names)
        node = self.nodes[name]
        if action < 0.44:
            places = self.network.places()
            if places:
                self.log(self.network.go_on(*random.choice(places), random.choice((1, 1, 2, 4))))
        elif action < 0.60:
            if random.random() < 0.3:
                self.step_read(node)
            self.step_disk(node)
        elif action < 0.70:
            self.tick(node)
        elif action < 0.88:
            self.act(node)
        elif action < 0.92:
            self.network.connect(*random.choice(self.pairs))
            if random.random() < 0.15:
                self.unblock()
        elif action < 0.94:
            self.start(node)
        elif action < 0.955:
            self.learn(node)
        elif action < 0.959:
            self.change_members()
        elif action < 0.961:
            self.delete()
        elif action < 0.9612 and self.network.version < versions.NEWEST:
            self.network.version = versions.NEWEST
            self.note("queues are raised to a new version")
        elif random.random() < self.trouble:
            self.make_trouble(random.random(), node)

    def act(self, node: SimulatedNode) -> None:
        if not node.alive:
            return
        if not node.clients or (len(node.clients) < 3 and self.random.random() < 0.1):
            self.new_client(node)
        client = self.random.choice(node.clients)
        what = client.act()
        self.log(f"{node.name}: session {client.number} {what}")
        if self.random.random() < 0.7:
            # Otherwise more work comes before the turn ends.
            node.end_turn()

    def decide(self) -> None:
        """A client counts messages, or deletes a queue on a condition."""
        later = self.later
        clients = [client for node in self.running for client in node.clients if not client.asked]
        if not clients:
            return
        client = later.choice(clients)
        queues = [queue for queue in client.node.queues.values() if not queue.deleted]
        if not queues:
            return
        queue = later.choice(queues)
        may_delete = (
            self.network.version >= versions.SEALS
            and not self.wounded
            and queue.name != "dead"
            and queue.declared in self.declared
        )
        if may_delete and later.random() < 0.5:
            self.log(
                f"{client.node.name}: {client.delete_if(queue, later.choice((EMPTY, UNUSED, EMPTY | UNUSED)))}"
            )
        elif queue.host.settings.records and self.looks.random() < 0.8:
            self.log(f"{client.node.name}: {client.look(queue, self.looks)}")
        else:
            self.log(f"{client.node.name}: {client.count(queue)}")
        if later.random() < 0.7:
            client.node.end_turn()

    def pause_queue(self, deliveries: bool, publishes: bool, declared: Declared | None = None) -> None:
        """An operator pauses or resumes a queue; the nodes learn of it one by one."""
        declared = declared or self.pauses.choice(self.declared)
        self.log(f"queue {declared.name}: {deliveries=} {publishes=} are paused")
        # Dead letters that wait for it would keep the cluster from its rest.
        publishes = publishes and declared.name != "dead"
        ledger = declared.ledger
        ledger.settings = replace(ledger.settings, deliveries_paused=deliveries, publishes_paused=publishes)
        nodes = self.running
        self.pauses.shuffle(nodes)
        self.unheard += [(node, declared) for node in nodes]
        self.note("queues are paused")

    def hear_of_pause(self) -> None:
        node, declared = self.unheard.pop(0)
        host = node.hosts.grouped.get(declared.queue_id) or node.hosts.remote.get(declared.queue_id)
        if node.alive and host is not None:
            # A node that has started since knows it; and the topology has raised the version before.
            node.roster.version = self.network.version
            node.turn.run(host.configure, declared.ledger.settings)
            node.end_turn()

    def resume_queues(self) -> None:
        for declared in self.declared:
            self.pause_queue(False, False, declared)
        while self.unheard:
            self.hear_of_pause()
        self.settle()

    def make_trouble(self, which: float, node: SimulatedNode) -> None:
        random, network = self.random, self.network
        pair = random.choice(self.pairs)
        if which < 0.05:
            self.set_clock(node)
        elif which < 0.15:
            self.crash(node)
            confirming = self.confirming()
            if confirming is not None:
                # The leader's followers may have the message, and so may the publisher's node, which may be a
                # different one.
                for each in (confirming, *self.nodes.values()):
                    if each is confirming or random.random() < 0.5:
                        self.crash(each)
        elif which < 0.27:
            self.break_session()
        elif which < 0.35:
            self.note("one way is blocked")
            self.doubt_all()
            network.blocked[pair] = None
        elif which < 0.43:
            self.note("partitions")
            self.doubt_all()
            for other in self.names:
                if other != node.name and random.random() < 0.8:
                    network.blocked[node.name, other] = network.blocked[other, node.name] = None
        elif which < 0.58:
            for other in self.names:
                self.hand_over(self.nodes[other])
        elif which < 0.70:
            self.change_members()
        elif which < 0.74:
            self.note("the disk is full")
            node.environment.faults.full = random.choice((1, 2, 5))
        elif which < 0.78:
            self.lose_disk(node)
        elif which < 0.88:
            self.damage(node)
        elif which < 0.92:
            self.damage_two()
        elif node.alive:
            for group in node.replicas.groups.values():
                compaction.take_snapshot(group)
            node.end_turn()

    def set_clock(self, node: SimulatedNode) -> None:
        """Time that a clock gains while its node is down counts as time in which the node was down. So the
        clock of a stopped node is only set back.
        """
        shift_ms = self.random.choice(CLOCK_STEPS_MS) * self.random.choice((-1, 1 if node.alive else -1))
        self.note("clocks are set")
        self.log(f"{node.name}: its clock is set by {shift_ms} ms")
        node.set_clock(shift_ms)

    def confirming(self) -> SimulatedNode | None:
        """Return a leader that has confirmed messages that no node has applied yet."""
        for declared in self.declared:
            ledger, group = declared.ledger, self.leading(declared)
            if group is not None and any(body not in ledger.accepted for body in ledger.led):
                return self.nodes[group.replicas.node]
        return None

    def break_session(self) -> None:
        if self.network.sessions:
            session = self.random.choice(self.network.sessions)
            name = self.random.choice(session.ends)
            self.note("links break")
            self.doubt_all()
            self.network.close(session, name)

    def hand_over(self, node: SimulatedNode) -> None:
        if not node.alive:
            return
        led = [group for group in node.replicas.groups.values() if group.is_leader]
        if led:
            group = self.random.choice(led)
            to = self.random.choice(group.core.members.voters)
            if to != node.name and node.maintenance.transfer(group, to):
                self.note("leaders hand over")
                node.end_turn()

    def change_members(self) -> None:
        """Add or remove one node, while nothing else is amiss with the group."""
        declared = self.random.choice(self.declared)
        group = self.leading(declared)
        if self.wounded or group is None or not self.is_settled(declared, group):
            return
        members = declared.members[-1]
        others = [name for name in self.names if name not in members]
        if others and (len(members) <= 3 or self.random.random() < 0.5):
            members = (*members, self.random.choice(others))
        elif len(members) > 3:
            gone = self.random.choice(members)
            members = tuple(name for name in members if name != gone)
        else:
            return
        self.note("members change")
        self.doubt_all()
        declared.members.append(members)

    def delete(self) -> None:
        """A queue is deleted with all messages under way to it, and declared again as a new queue."""
        # Dead letters must have a queue to go to.
        declared = self.random.choice(self.declared)
        if self.wounded or declared.name == "dead":
            return
        self.note("queues are declared anew")
        self.declare_anew(declared, self.random.sample(self.names, self.random.choice((3, len(self.names)))))

    def may_wound(self, node: SimulatedNode) -> bool:
        if self.wounded == node.name and not self.also_wounded:
            return True
        if self.wounded:
            return False
        for declared in self.declared:
            group = self.leading(declared)
            if group is None or not self.is_settled(declared, group):
                return False
        return True

    def lose_disk(self, node: SimulatedNode) -> None:
        if self.may_wound(node):
            self.crash(node)
            self.wounded = node.name
            self.note("disks are lost")
            node.lose_disk()

    def damage(self, node: SimulatedNode) -> None:
        """On a disk, bits flip, and ends of logs are cut off."""
        if not self.may_wound(node):
            return
        self.wounded = node.name
        stored = node.environment.groups
        for _ in range(self.random.choice((1, 2, 5))):
            which = self.random.random()
            if which < 0.8:
                flipped = stored.flip_any()
                if flipped is not None:
                    self.note("bits flip")
                    self.log(f"{node.name}: entry {flipped[1]} of group {flipped[0]} is damaged")
            elif which < 0.9 or not node.alive:
                stored.tear(self.random.choice(self.declared).queue_id)
                self.note("logs are torn")
        if self.random.random() < 0.4:
            self.crash(node)

    def damage_two(self) -> None:
        """Bits flip on two nodes, in different entries of each queue: each entry is whole on the other
        nodes.
        """
        names = self.random.sample(self.names, 2)
        if self.wounded or not self.may_wound(self.nodes[names[0]]):
            return
        self.wounded = names[0]
        self.also_wounded = names[1]
        stored = [self.nodes[name].environment.groups for name in names]
        for _ in range(self.random.choice((2, 4))):
            at = self.random.randrange(2)
            flipped = stored[at].flip_any(but=stored[1 - at])
            if flipped is not None:
                self.note("bits flip on two nodes")
                self.log(f"{names[at]}: entry {flipped[1]} of group {flipped[0]} is damaged")
        down = self.random.choice((0, 1, 2, len(self.names)))
        for name in (names + [name for name in self.names if name not in names])[:down]:
            self.crash(self.nodes[name])

    def look_at_wounded(self) -> None:
        """Once everything on this disk is whole again, others may be damaged."""
        if not self.wounded:
            return
        for name in filter(None, (self.wounded, self.also_wounded)):
            node = self.nodes[name]
            if (
                not node.alive
                or node.replicas.lost_entries.entries()
                or any(
                    group.damaged or group.snapshot_damaged
                    for group in node.environment.groups.groups.values()
                )
            ):
                return
        for declared in self.declared:
            group = self.leading(declared)
            if group is None or not self.is_settled(declared, group):
                return
            for name in filter(None, (self.wounded, self.also_wounded)):
                own = self.nodes[name].replicas.groups.get(declared.queue_id)
                if own is not None and (own.core.amnesiac or own.applied < group.core.commit):
                    return
        self.log(f"{self.wounded} {self.also_wounded} is whole again")
        self.wounded = self.also_wounded = ""

    def run(self) -> None:
        for step in range(self.steps):
            self.step = step
            self.one_step()
            if step % 16 == 0:
                self.look_at_wounded()
            if step % EPOCH == EPOCH - 1:
                self.next_epoch()
        self.log("everything works again")
        self.dead.clear()
        self.doubt_all()
        self.mend()
        self.settle()
        check_at_rest(self)
        self.look_for_messages()
        self.check_time()
        self.resume_queues()
        drain(self)
        check_empty(self)

    def look_for_messages(self) -> None:
        """At each node clients ask what became of messages of each queue that keeps a record."""
        for node in self.running:
            client = self.new_client(node)
            for queue in list(node.queues.values()):
                for _ in range(LOOKS if queue.host.records else 0):
                    client.look(queue, self.looks)
            node.end_turn()
            self.settle()
            if client.asked:
                raise Violation(f"{node.name} does not say what became of messages: {list(client.asked)}")
            client.close()
            node.end_turn()
            self.settle()

    def check_time(self) -> None:
        """Whatever the clocks were set to, the time of each queue goes on."""
        before = self._times()
        for _ in range(TIME_ROUNDS):
            for node in self.running:
                self.tick(node)
            self.work_off()
        after = self._times()
        for declared in self.declared:
            passed = after[declared.name] - before[declared.name]
            slowest = min(node.rate for node in self.nodes.values())
            if passed < TIME_ROUNDS * TICK_MS * slowest / 2:
                raise declared.ledger.fail(f"its time has gone on by {passed} ms")

    def _times(self) -> dict[str, int]:
        """Return the time of each queue, which an entry tells."""
        client = self.new_client(self.running[0])
        for queue in client.node.queues.values():
            client.get(queue)
        client.node.end_turn()
        self.settle()
        client.close()
        client.node.end_turn()
        self.settle()
        return {declared.name: declared.ledger.now_ms for declared in self.declared}

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
            self.look_at_wounded()
            if self.trouble:
                node = self.nodes[random.choice(self.names)]
                random.choice(
                    (
                        self.change_members,
                        lambda: self.damage(node),
                        self.damage_two,
                        lambda: self.lose_disk(node),
                    )
                )()
        if random.random() < (0.8 if self.else_well else 0.4):
            self.begin_dead_link()

    # -- a dead link -----------------------------------------------------------------------------------------

    def begin_dead_link(self) -> None:
        """One link, or one direction of it, fails for long; everything else goes on as before."""
        one, two = self.random.choice(self.pairs)
        self.dead[one, two] = None
        if self.random.random() < 0.6:
            self.dead[two, one] = None
        self.note("links are dead for long")
        self.log(f"dead: {list(self.dead)}")
        self.doubt_all()
        self.unblock()

    def end_dead_link(self) -> None:
        """First, clients of all nodes must have been able to go on."""
        if self.dead and not self.wounded:
            if self.else_well:
                self.note("clients go on with a dead link")
                self.check_progress()
            self.log("everything works but one link")
            self.doubt_all()
            self.mend()
            self.settle()
            check_at_rest(self)
            self.check_progress()
            self.note("everything but a link is mended")
        self.dead.clear()

    def check_progress(self) -> None:
        """A new client of each node publishes to each queue and gets from it, and is answered soon."""
        clients = [self.new_client(node) for node in self.running]
        for client in clients:
            for queue in client.node.queues.values():
                client.publish(queue)
                client.get(queue)
            client.node.end_turn()
        for _ in range(DEAD_LINK_ROUNDS):
            self.carry_out_deletions()
            for node in self.running:
                self.learn(node)
                self.tick(node)
            self.work_off()
            waiting = [
                f"{client.node.name}: {[p.name for p in client.publishers.values() if p.waiting]} {list(client.asked)}"
                for client in clients
                if client.asked or any(publisher.waiting for publisher in client.publishers.values())
            ]
            if not waiting:
                break
        else:
            raise Violation(f"with {list(self.dead)} dead, clients stand still: {waiting}")
        for client in clients:
            client.close()
            client.node.end_turn()


def _some_queues(names: str, random: Random) -> dict[str, tuple[str, ...]]:
    """Return a few queues with their members."""
    others = [name for name in QUEUES if name != "plain"]
    chosen = ["plain", *random.sample(others, random.choice((1, 2, 3)))]
    if any(QUEUES[name][1] for name in chosen) and "dead" not in chosen:
        chosen.append("dead")
    return {name: tuple(random.sample(names, random.choice((3, len(names))))) for name in chosen}


def run(seed: int, *, steps: int = STEPS, trace: Callable[[str], None] | None = None) -> Simulation:
    simulation = Simulation(seed, steps=steps, trace=trace)
    simulation.run()
    return simulation


def _told(simulation: Simulation) -> list[str]:
    queues = [
        f"{ledger.name}: {ledger.index} entries, {ledger.count}" for ledger in simulation.ledgers.values()
    ]
    return [str(simulation.count), *queues]


if __name__ == "__main__":
    seeds.main(run, _told, steps=STEPS)
