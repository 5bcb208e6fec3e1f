"""Short silences: a node stands still, or a link loses time, often for about as long as others wait for it.

No node fails and nothing is lost, so afterwards everything goes on by itself: also where a group was idle
when the silence began, and whether or not a link has ended meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING

from tests.amqp_server.cluster.simulation.node import DEAD_TICKS, TICK_MS, SimulatedNode

if TYPE_CHECKING:
    from tests.amqp_server.cluster.simulation.cluster import Cluster

#: How long silences last, in ticks. Links end after DEAD_TICKS, and a node asks for the state of the others
#: if it stood still for longer.
TICKS = (
    *range(2, DEAD_TICKS + 5),
    *range(DEAD_TICKS - 2, DEAD_TICKS + 2),
    *(2 * DEAD_TICKS + 2, 4 * DEAD_TICKS),
)
#: Things that may happen on links and disks from one tick to the next: a few, or nearly all that can.
FLOWS = (5, 20, 200)
#: The probability that a node's clients do something from one tick to the next. If they do little, groups are
#: idle when the silence ends.
ACTS = (0.1, 0.4)


class Silences:
    """Has a cluster suffer them, while clients of the other nodes go on."""

    def __init__(self, cluster: Cluster, random: Random, act: Callable[[SimulatedNode], object]) -> None:
        """`act` has a client of a node do something."""
        self._cluster = cluster
        self._random = random
        self._act = act
        self.under_way = False

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def strike(self) -> None:
        """Have one silence, or some in a row."""
        cluster, random = self._cluster, self._random
        self.under_way = True
        cluster.doubt_all()
        for _ in range(random.choice((1, 1, 2, 3))):
            node = cluster.nodes[random.choice(cluster.names)]
            other = random.choice([name for name in cluster.names if name != node.name])
            ticks = random.choice(TICKS)
            which = random.random()
            if which < 0.6:
                with self._standing_still(node, ticks):
                    self._let_pass(ticks)
            else:
                pairs = [(node.name, other)]
                if which < 0.8:
                    pairs.append((other, node.name))
                with self._silent(pairs, ticks):
                    self._let_pass(ticks)
            # The next one may begin while everything goes on again, or sooner.
            self._let_pass(random.choice((0, 0, 1, 3, DEAD_TICKS)))
        self.under_way = False

    @contextmanager
    def _standing_still(self, node: SimulatedNode, ticks: int) -> Iterator[None]:
        """The process of a node does nothing; what comes waits in its sockets."""
        cluster = self._cluster
        cluster.note("nodes stand still for a moment")
        cluster.log(f"{node.name} stands still for {ticks} ticks")
        cluster.network.standing[node.name] = None
        yield
        del cluster.network.standing[node.name]
        node.clock.now_ms += round(ticks * TICK_MS * node.rate)

    @contextmanager
    def _silent(self, pairs: list[tuple[str, str]], ticks: int) -> Iterator[None]:
        cluster, blocked = self._cluster, self._cluster.network.blocked
        cluster.note("links are silent for a moment")
        cluster.log(f"nothing arrives for {ticks} ticks: {pairs}")
        before = dict(blocked)
        blocked.update(dict.fromkeys(pairs))
        yield
        for pair in pairs:
            if pair not in before:
                blocked.pop(pair, None)

    def _let_pass(self, ticks: int) -> None:
        cluster, random = self._cluster, self._random
        standing = cluster.network.standing
        acting, acts, flows = random.randrange(ticks + 1), random.choice(ACTS), random.choice(FLOWS)
        for tick in range(ticks):
            for node in cluster.running:
                if node.name not in standing:
                    cluster.tick(node)
            for node in cluster.running:
                if tick < acting and node.name not in standing and random.random() < acts:
                    self._act(node)
            for _ in range(flows):
                if not self._flow():
                    break

    def _flow(self) -> bool:
        """Something goes on, on a link or a disk; return whether anything did."""
        cluster, random = self._cluster, self._random
        network = cluster.network
        places = network.places()
        if places:
            cluster.log(network.go_on(*random.choice(places), random.choice((1, 2, 4, 8))))
        node = cluster.nodes[random.choice([name for name in cluster.names if name not in network.standing])]
        if not cluster.step_read(node):
            cluster.step_disk(node)
            return bool(places or node.disk_did)
        return True
