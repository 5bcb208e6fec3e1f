"""Whole nodes, most of whose clients commit transactions over several queues of all types: a few messages are
published and a few acked, here and there, then committed or rolled back, while nodes, links and disks fail.

Whatever happens, each transaction has happened as a whole in the end, or not at all (see messages), and every
queue is free of parts that nobody has decided about (see Cluster.unrest).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from tests.amqp_server.cluster.simulation.clients import QUEUES, Client, Kind
from tests.amqp_server.cluster.simulation.cluster import by_hand
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
        if self.transactional and action > 0.72 and len(self.uncommitted) + len(self.uncommitted_tags) > 1:
            return self.commit() if random.random() < 0.9 else self.rollback()
        return self.settle() if self.unacked else "waits"


class TransactionSimulation(Simulation):
    def act(self, node: SimulatedNode) -> None:
        if not node.alive or not node.serving:
            return
        random = self.random
        movers = [client for client in node.clients if isinstance(client, Mover)]
        if not movers or (len(movers) < MOVERS_MAX and random.random() < 0.3):
            self.last_number += 1
            Mover(self, node, self.last_number, "/", transactional=random.random() < 0.8)
        else:
            # Most of them wait for an answer most of the time.
            client = random.choice([each for each in movers if each.asked is None] or movers)
            for _ in range(random.choice((1, 3))):
                if client.node is node and client in node.clients:
                    self.log(f"{node.name}: session {client.number} {client.act()}")
                    node.end_turn()
        if random.random() < 0.7:
            node.end_turn()


def run(
    seed: int, *, steps: int = STEPS, trace: Callable[[str], None] | None = None
) -> TransactionSimulation:
    with by_hand():
        simulation = TransactionSimulation(seed, steps=steps, trace=trace)
    simulation.run()
    return simulation


def _told(simulation: TransactionSimulation) -> list[str]:
    return [f"{simulation.ledger.index} entries, {simulation.ledger.count}"]


if __name__ == "__main__":
    main(run, _told, steps=STEPS)


__all__ = ["TransactionSimulation", "run"]
