"""Whole groups under seeded chance: network, disks, clocks, restarts, members.

`python -m tests.quorum_queue.raft.simulation --seed N` prints what happened in one run; `--seeds A:B` runs
many.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter

from quorum_queue.raft import election
from quorum_queue.raft.roles import LEADER
from tests.quorum_queue.raft.world import World

STEPS = 1000


class Simulation(World):
    """Draws events at random; then it mends everything, and the group must come to rest."""

    def run(self) -> None:
        actions, weights = self.weighted_actions()
        for action in self.random.choices(actions, weights, k=STEPS):
            self.step += 1
            action()
            self.check_wiped()
        self.calm = True
        self.log("everything works again")
        self.mend()
        self.come_to_rest()

    def some_deliver(self) -> None:
        waiting = [pair for pair in self.streams if self.streams[pair] and pair not in self.blocked]
        if waiting:
            self.deliver(self.random.choice(waiting))

    def some_sync(self) -> None:
        waiting = [name for name in self.names if self.nodes[name].disk.pending]
        if waiting:
            name = self.random.choice(waiting)
            if self.random.random() < self.disks[name]:
                self.sync(name)

    def some_read(self) -> None:
        waiting = [name for name in self.names if self.nodes[name].reading]
        if waiting:
            self.read(self.random.choice(waiting))

    def some_tick(self) -> None:
        name = self.some_node()
        if self.random.random() < self.clocks[name]:
            self.tick(name)

    def some_proposal(self) -> None:
        leader = self.leader()
        self.propose(self.some_node() if leader is None or self.random.random() < 0.3 else leader.name)

    def some_compaction(self) -> None:
        node = self.nodes[self.some_node()]
        if node.alive:
            node.compact()

    def some_session(self) -> None:
        pair = self.random.choice(self.pairs)
        if pair not in self.blocked and pair[::-1] not in self.blocked:
            self.open_session(*pair)

    def some_isolation(self) -> None:
        name = self.some_node()
        for other in self.names:
            if other != name and self.random.random() < 0.7:
                self.cut((name, other))
                self.cut((other, name))

    def some_unblocking(self) -> None:
        for blocked in [pair for pair in self.blocked if self.random.random() < 0.7]:
            del self.blocked[blocked]

    def some_upheaval(self) -> None:
        """An election without a reason, which pre-vote would have prevented."""
        raft = self.nodes[self.some_node()].raft
        if self.nodes[raft.node].alive and raft.leadership is None and raft.may_campaign():
            self.log(f"{raft.node} stands for term {raft.term + 1}")
            election.start_vote(raft, forced=True)
            self.nodes[raft.node].pump()

    def some_resignation(self) -> None:
        node = self.nodes[self.some_node()]
        if node.alive:
            self.log(f"{node.name} is asked to step down")
            node.raft.step_down()
            node.pump()

    def some_patience(self) -> None:
        raft = self.nodes[self.some_node()].raft
        raft.patient = not raft.patient

    def some_leader(self) -> str:
        """Old leaders count too, as long as they don't know better."""
        leaders = [name for name in self.names if self.nodes[name].raft.role == LEADER]
        return self.random.choice(leaders or self.names)

    def some_node(self) -> str:
        return self.random.choice(self.names)

    def weighted_actions(self) -> tuple[list[Callable[[], None]], list[float]]:
        """Each run prefers some actions, so that together the runs go to extremes."""
        trouble = self.random.choice((0.1, 0.3, 0.6, 1.5))
        usual: dict[Callable[[], None], float] = {
            self.some_deliver: 70,
            self.some_sync: 30,
            self.some_read: 10,
            self.some_tick: 20,
            self.some_proposal: 8,
            self.some_compaction: 3,
            self.some_session: 10,
            self.some_patience: 1,
            lambda: self.restart(self.some_node()): 4,
        }
        troubles: dict[Callable[[], None], float] = {
            lambda: self.crash(self.some_node()): 0.8,
            lambda: self.close_session(*self.random.choice(self.pairs)): 0.5,
            lambda: self.cut(self.random.choice(self.pairs)): 0.5,
            self.some_isolation: 0.5,
            self.some_unblocking: 3,
            lambda: self.transfer(self.some_leader()): 0.5,
            lambda: self.change_members(self.some_leader()): 0.8,
            lambda: self.lose_disk(self.some_node()): self.random.choice((0, 0, 0.2)),
            self.some_upheaval: 1.5,
            self.some_resignation: 0.3,
        }
        actions = [*usual, *troubles]
        weights = [*usual.values(), *(trouble * weight for weight in troubles.values())]
        return actions, [weight * self.random.choice((0.3, 1, 1, 3)) for weight in weights]


def run(seed: int) -> Simulation:
    simulation = Simulation(seed)
    simulation.run()
    return simulation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="print the trace of this run")
    parser.add_argument("--seeds", default="0:200", help="first:end of the seeds to run")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        Simulation(arguments.seed, trace=print).run()
        return
    first, end = map(int, arguments.seeds.split(":"))
    started = perf_counter()
    failed = committed = 0
    for seed in range(first, end):
        try:
            committed += run(seed).oracle.last_committed
        except Exception as error:  # noqa: BLE001
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {error}")
    print(
        f"{end - first} runs, {failed} failed, {committed} entries committed, {perf_counter() - started:.1f} s"
    )
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
