"""Whole nodes, most of whose clients commit transactions over several queues of all types: a few messages are
published and a few acked, here and there, then committed or rolled back, while nodes, links and disks fail.

Other simulations let little time pass while something is amiss, and no node there gives up waiting for a
decision. Here a fault may come soon after a commit was sent, and stay for seconds. Queues then have parts
that no node has decided about, or that are decided late; see TransactionSimulation.strike. In half of the
runs, commits take several turns. In some, clients are producers that start again and again, and shut out
their earlier starts.

Whatever happens, each transaction has happened as a whole in the end, or not at all (see messages), and every
queue is free of parts that nobody has decided about (see Cluster.unrest).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from random import Random
from typing import Any, ClassVar
from unittest import mock

from amqp_server.channel.transactions import prepared_commit, tx
from tests.amqp_server.cluster.simulation.clients import QUEUES, Client, Kind
from tests.amqp_server.cluster.simulation.cluster import by_hand
from tests.amqp_server.cluster.simulation.messages import Transaction
from tests.amqp_server.cluster.simulation.node import SimulatedNode
from tests.amqp_server.cluster.simulation.simulation import STEPS, Simulation
from tests.seeds import main

#: Names of queues: what is before the slash is the kind.
NAMES = (
    *("quorum/1", "quorum/2", "quorum/3", "wide", "tight"),
    *("classic/1", "classic/2", "transient", "tight classic"),
    *("stream/1", "stream/2"),
)

#: Such clients that one node has, at most.
MOVERS_MAX = 5

#: Clients shall get on: after this share of the steps, so much more of what is under way goes on.
FLOWS = 0.3
FLOW = 8
#: The share of the commits that a fault follows, one of these in a run, and after how many steps.
STRIKES = (0.1, 0.3, 0.5)
STRIKES_AFTER = (0, 0, 1, 3, 8, 20, 40)
#: For how many ticks of all clocks (50 ms) a fault stays alone, and what comes then.
ROUNDS_OF_FAULTS = (1, 12, 30, 60)
ROUNDS_AFTERWARDS = (0, 4, 12)
#: Names of producers, and the share of the clients with transactions that are a start of one.
PRODUCERS = ("billing", "shipping")
PRODUCING = (0.0, 0.0, 0.3, 0.6)
#: The share of the commits of producers that are followed by the next start.
SUCCEEDED = 0.3


class Mover(Client):
    """Takes messages out of some queues and puts others into some."""

    kinds: ClassVar[Mapping[str, Kind]] = {
        **QUEUES,
        "tight": Kind(
            x_queue_type="quorum", x_delivery_limit=-1, x_max_length=4, x_overflow="reject-publish"
        ),
        "tight classic": Kind(x_queue_type="classic", x_max_length=4, x_overflow="reject-publish"),
        "stream": Kind(x_queue_type="stream"),
    }
    #: Its name and epoch, if it is a producer.
    producer: tuple[str, int] | None = None

    #: True if the broker has heard that on this channel.
    is_named = False

    def headers(self) -> dict[str, Any]:
        if self.producer is None:
            return {}
        self.is_named = True
        name, epoch = self.producer
        return {"x-producer": name, "x-producer-epoch": epoch}

    def sends(self, transaction: Transaction) -> None:
        if self.producer is not None and self.is_named:
            name, epoch = self.producer
            self.world.ledger.sent[f"//{name}", epoch] = transaction

    def _forget_channel(self) -> None:
        super()._forget_channel()
        self.is_named = False
        if any("x-producer-epoch" in each for each in self.refusals):
            # It goes on as somebody else.
            self.producer = None

    def act(self) -> str:
        random, action = self.random, self.random.random()
        if self.closing:
            return "waits for its end"
        if action > 0.985:
            return self.close()
        if self.asked is not None:
            return "waits for an answer"
        missing = [name for name in NAMES if not self.queue_id(name)]
        if missing and random.random() < 0.6:
            return self.declare(random.choice(missing))
        name = random.choice(NAMES)
        if action < 0.32:
            return self.publish(name)
        if name.startswith("stream"):
            return "waits"
        if action < 0.60:
            return self.get(name)
        if action < 0.64 and len(self.consumers) < 2:
            return self.consume(name)
        if action < 0.65 and self.consumers:
            return self.cancel()
        if action < 0.655:
            return self.purge(name)
        if action < 0.665:
            return self.delete(name)
        if self.transactional and action > 0.70:
            return self.transact()
        return self.settle() if self.unacked else "waits"

    def transact(self) -> str:
        """Publish to some queues, settle some deliveries, and commit all that is open, or roll it back."""
        random = self.random
        there = [name for name in NAMES if self.queue_id(name)]
        some = random.sample(there, min(len(there), random.choice((2, 2, 3))))
        did = [self.publish(random.choice(some), 1) for _ in range(random.choice((0, 1, 2, 4, 8))) if some]
        did += [self.settle() for _ in range(min(len(self.unacked), random.choice((0, 1, 2, 4))))]
        if self.uncommitted or self.uncommitted_tags:
            did.append(self.commit() if random.random() < 0.9 else self.rollback())
        return "; ".join(did)


class TransactionSimulation(Simulation):
    turns_last: ClassVar[tuple[float, ...]] = (inf, 1.0, 3.0)

    def __init__(self, seed: int, *, steps: int = STEPS, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, steps=steps, trace=trace)
        #: Chooses the faults that follow a commit.
        self.faults = Random(f"faults {seed}")
        #: The share of the commits that a fault follows.
        self.share = self.faults.choice(STRIKES)
        #: The node of the last commit that a fault is to follow, and the step at which it comes.
        self.struck = ""
        self.strikes_at = 0
        #: Chooses producers. The share of the clients that are some, and how often each has started.
        self.chance = Random(f"producers {seed}")
        self.producing = self.chance.choice(PRODUCING)
        self.starts = dict.fromkeys(PRODUCERS, 0)

    def one_step(self) -> None:
        super().one_step()
        if self.faults.random() < FLOWS:
            self.flow(FLOW)
        if self.struck and self.step >= self.strikes_at:
            node, self.struck = self.nodes[self.struck], ""
            if node.alive:
                self.strike(node)

    def act(self, node: SimulatedNode) -> None:
        if not node.alive or not node.serving:
            return
        random = self.random
        movers = [client for client in node.clients if isinstance(client, Mover)]
        if not movers or (len(movers) < MOVERS_MAX and random.random() < 0.3):
            self.last_number += 1
            mover = Mover(self, node, self.last_number, "/", transactional=random.random() < 0.8)
            if mover.transactional and self.chance.random() < self.producing:
                self.begin_again(mover, self.chance.choice(PRODUCERS))
        else:
            # Most of them wait for an answer most of the time.
            client = random.choice([each for each in movers if each.asked is None] or movers)
            for _ in range(random.choice((1, 3))):
                if client.node is node and client in node.clients:
                    waits = client.asked
                    self.log(f"{node.name}: session {client.number} {client.act()}")
                    node.end_turn()
                    if client.asked is not waits and client.asked is not None and client.asked[0] == "commit":
                        self.commit_sent(node, client)
        if random.random() < 0.7:
            node.end_turn()

    def begin_again(self, mover: Mover, name: str) -> None:
        """The client is the next start of a producer."""
        self.starts[name] += 1
        mover.producer = name, self.starts[name]

    def succeed(self, client: Mover) -> None:
        """Another start of the producer begins, at any node, while the client waits for its commit."""
        assert client.producer is not None
        node = self.nodes[self.chance.choice(self.names)]
        if not (node.alive and node.serving):
            return
        self.last_number += 1
        successor = Mover(self, node, self.last_number, "/", transactional=True)
        self.begin_again(successor, client.producer[0])
        self.log(f"{node.name}: session {successor.number} succeeds {client.number}: {successor.transact()}")
        node.end_turn()

    # -- faults after a commit -------------------------------------------------------------------------------

    def commit_sent(self, node: SimulatedNode, client: Client) -> None:
        """A fault may follow, at once or some steps later."""
        if isinstance(client, Mover) and client.producer and self.chance.random() < SUCCEEDED:
            self.succeed(client)
        handed_out = any(channel.ending is not None for channel in client.session.channels.values())
        if handed_out and self.faults.random() < self.share:
            self.note("links break while parts are handed out")
            self.lose_links(node)
        silent = self.silences is not None and self.silences.under_way
        if self.struck or silent or self.faults.random() >= self.share:
            return
        after = self.faults.choice(STRIKES_AFTER)
        if after:
            self.struck, self.strikes_at = node.name, self.step + after
        else:
            self.strike(node)

    def strike(self, node: SimulatedNode) -> None:
        """Something fails while a client of this node may wait for its commit. Then time passes."""
        faults = self.faults
        which = faults.random()
        self.else_well = False
        self.doubt_all()
        others = [name for name in self.names if name != node.name]
        if which < 0.2:
            self.note("a node that commits crashes")
            self.crash(node)
        elif which < 0.35:
            self.note("another node crashes")
            self.crash(self.nodes[faults.choice(others)])
        elif which < 0.45:
            self.note("a node that commits loses its links")
            self.lose_links(node)
        elif which < 0.6:
            self.note("a node that commits is cut off")
            self.cut([node.name], others)
        elif which < 0.68:
            self.note("a node that commits is cut off from another one")
            self.cut([node.name], [faults.choice(others)])
        elif which < 0.9:
            self.note("the nodes are cut in two")
            faults.shuffle(others)
            count = faults.randrange(1, len(others))
            self.cut([node.name, *others[:count]], others[count:])
        else:
            leading = self.leading()
            if leading is not None:
                self.note("the leader of the topology is cut off")
                name = leading.replicas.node
                self.cut([name], [each for each in self.names if each != name])
        self.let_pass(faults.choice(ROUNDS_OF_FAULTS))
        if faults.random() < 0.7:
            self.unblock()
            self.connect_all()
            self.start(node)
            self.let_pass(faults.choice(ROUNDS_AFTERWARDS))

    def lose_links(self, node: SimulatedNode) -> None:
        """Some links of a node break, and are soon up again."""
        self.else_well = False
        self.doubt_all()
        for session in [each for each in self.network.sessions if node.name in each.ends]:
            if self.faults.random() < 0.6:
                self.network.close(session, self.faults.choice(session.ends))
        self.connect_all()

    def cut(self, some: list[str], others: list[str]) -> None:
        for one in some:
            for two in others:
                self.network.blocked[one, two] = self.network.blocked[two, one] = None

    def let_pass(self, rounds: int) -> None:
        """Let every clock tick once in each round, and some of what is under way go on."""
        faults = self.faults
        for _ in range(rounds):
            for node in self.running:
                self.tick(node)
            self.flow(faults.choice((1, 5, 20)))

    def flow(self, count: int) -> None:
        """Some of what is under way goes on, on links and disks."""
        faults, network = self.faults, self.network
        for _ in range(count):
            places = network.places()
            if places:
                self.log(network.go_on(*faults.choice(places), faults.choice((1, 2, 4, 8))))
            node = self.nodes[faults.choice(self.names)]
            if not self.step_read(node):
                self.step_disk(node)


@contextmanager
def small_turns(seed: int) -> Iterator[None]:
    """In half of the runs, commits of more than a few parts take several turns."""
    if seed % 2:
        yield
        return
    with (
        mock.patch.object(tx, "WHOLE_PARTS_MAX", 2),
        mock.patch.object(tx, "PARTS_AT_ONCE", 1),
        mock.patch.object(prepared_commit, "PARTS_AT_ONCE", 1),
    ):
        yield


def run(
    seed: int, *, steps: int = STEPS, trace: Callable[[str], None] | None = None
) -> TransactionSimulation:
    with by_hand(), small_turns(seed):
        simulation = TransactionSimulation(seed, steps=steps, trace=trace)
        simulation.run()
    return simulation


def _told(simulation: TransactionSimulation) -> list[str]:
    return [f"{simulation.ledger.index} entries, {simulation.ledger.count}"]


if __name__ == "__main__":
    main(run, _told, steps=STEPS)


__all__ = ["TransactionSimulation", "run"]
