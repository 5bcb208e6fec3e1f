"""A member of a stream lacks a segment: a consumer that begins at a time waits until the member has fetched
the segment, and then begins in the right place.
"""

from __future__ import annotations

import pytest

from amqp_server.streams.layout.consumer_start import Start
from amqp_server.streams.members.host import StreamMemberHost
from tests.amqp_server.cluster.simulation.cluster import by_hand
from tests.amqp_server.cluster.simulation.node import SimulatedNode
from tests.amqp_server.cluster.simulation.streams import Reader, StreamSimulation
from tests.amqp_server.cluster.test_simulation_streams import ABANDONED

#: Four nodes, of which three have the stream; it has neither retention nor compaction.
SEED = 37
SEGMENTS = 6
ROUNDS = 40


class World(StreamSimulation):
    """A member has lost a segment, and the thread that would put it back stands still."""

    broken: SimulatedNode

    def lose_a_segment(self) -> None:
        queue = self.queue(self.serving[0])
        assert queue is not None and len(queue.members) == 3 and not (self.compacts or self.named)
        writer, self.broken = (self.nodes[name] for name in queue.members[:2])
        while len(self.files(self.broken)) < SEGMENTS:
            self.publish(writer)
            self.settle()
        path = self.files(self.broken)[SEGMENTS // 2]
        self.crash(self.broken)
        for suffix in (".segment", ".index"):
            del self.broken.files.now[path.with_suffix(suffix)]
        self.start(self.broken)
        self.connect_all()
        self.go_on()

    def without_a_copy(self) -> SimulatedNode:
        """Return the node without a copy; from now on it reaches no other node than the broken one."""
        (away,) = (node for node in self.nodes.values() if node.name not in self.queue_members)
        for name in self.queue_members:
            if name != self.broken.name:
                self.network.blocked[name, away.name] = self.network.blocked[away.name, name] = None
        self.go_on()
        return away

    @property
    def queue_members(self) -> tuple[str, ...]:
        queue = self.queue(self.broken)
        assert queue is not None
        return queue.members

    @property
    def host(self) -> StreamMemberHost:
        return next(host for node, host in self.members() if node is self.broken)

    def go_on(self) -> None:
        """Run everything except the threads of this node that write; its reading threads run."""
        for _ in range(ROUNDS):
            for node in self.running:
                self.tick(node)
                if node.commits.running or node.commits.waits():
                    self.step_disk(node)
                self.read_with(node)
            for place in self.network.places():
                if place in self.network.places():
                    self.network.go_on(*place, 8)
            self.ack()

    def read_with(self, node: SimulatedNode) -> None:
        if node is not self.broken:
            self.step_read(node)
            return
        while node.jobs.reads:
            node.turn.run(node.jobs.reads.pop(0))
            node.end_turn()


@ABANDONED
@pytest.mark.parametrize("away", [False, True])
def test_a_time_in_a_segment_that_is_missing(away: bool) -> None:
    """With `away`, the request comes from a node without a copy, which reaches this member only."""
    with by_hand():
        world = World(SEED, remote=False)
        with world._watching():
            world.lose_a_segment()
            ((low, stop),) = world.host.filling.missing.items()
            node = world.without_a_copy() if away else world.broken
            queue = world.queue(node)
            assert queue is not None and stop > low
            reader = Reader(world, "since", 100, Start(time_ms=world.stream.times[low]))
            reader.attach(node, queue)
            world.go_on()
            assert world.host.filling.missing and reader.next is None
            # Now the writing thread goes on.
            for _ in range(ROUNDS):
                world.work_off()
                world.go_on()
            assert reader.next == world.host.next_offset
            assert world.stream.count["begun at a time"] == 1
        for each in world.nodes.values():
            each.end_tasks()
