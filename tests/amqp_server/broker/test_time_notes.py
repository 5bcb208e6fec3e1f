"""Messages of durable queues expire as they should over restarts, whatever is done to the wall clock."""

from __future__ import annotations

import pytest
from pamqp import commands

from amqp_server.broker.recovery import recovery
from amqp_server.broker.recovery.stored_queue_time import LOOK_MS, NOTE_MS
from amqp_server.config import Config
from persistence.journal import Journal
from tests.amqp_server.connection.node import Commits, MemoryNode, make_broker
from tests.amqp_server.wire.published import message

HOUR_MS = 3_600_000
TTL_MS = 600_000


class World:
    """A node that stands alone, with one message in a queue, and its disk and clock."""

    def __init__(self) -> None:
        node = MemoryNode()
        self.clock, self.environment, self.broker = node.clock, node.environment, node.broker
        peer = node.peer()
        peer.call(1, commands.Channel.Open())
        peer.call(1, commands.Queue.Declare(queue="q", durable=True, arguments={"x-message-ttl": TTL_MS}))
        peer.send(message("", "q", delivery_mode=b"\x02").encode(1))
        node.sync()
        self.broker.turn.run(self.broker.time_notes.wake)
        self.environment.flush()

    def wait(self, ms: int) -> None:
        for _ in range(0, ms, LOOK_MS):
            self.clock.now_ms += LOOK_MS
            self.broker.turn.run(self.broker.timers.run, self.clock.now_ms)
            self.environment.flush()

    def set_clock(self, by_ms: int) -> None:
        self.clock.shift_ms += by_ms

    def die(self) -> None:
        self.environment.crash()

    def start(self) -> None:
        """Start the node; its monotonic clock begins anew."""
        self.clock.shift_ms += self.clock.now_ms - 1_000
        self.clock.now_ms = 1_000
        commits = Commits(self.environment)
        self.broker = broker = make_broker(Config(), self.environment, self.clock, commits)
        broker.turn.run(recovery.recover, broker, Journal(self.environment))
        self.environment.flush()

    @property
    def ready(self) -> int:
        return self.broker.vhost("/").queues["q"].host.ready_count


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("by_ms", [-HOUR_MS, 0, HOUR_MS])
def test_while_the_node_runs_nothing_depends_on_the_wall_clock(world: World, by_ms: int) -> None:
    world.set_clock(by_ms)
    world.wait(TTL_MS - LOOK_MS)
    assert world.ready == 1
    world.wait(2 * LOOK_MS)
    assert world.ready == 0


@pytest.mark.parametrize("by_ms", [-HOUR_MS, 0, HOUR_MS])
def test_a_clock_that_was_set_before_does_not_matter_at_a_start(world: World, by_ms: int) -> None:
    world.set_clock(by_ms)
    world.wait(TTL_MS // 2)
    world.die()
    world.clock.now_ms += TTL_MS // 4
    world.start()
    world.wait(TTL_MS // 4 - LOOK_MS)
    assert world.ready == 1
    world.wait(2 * LOOK_MS)
    assert world.ready == 0


def test_what_expired_while_the_node_was_down_is_gone(world: World) -> None:
    world.die()
    world.clock.now_ms += TTL_MS + 1
    world.start()
    assert world.ready == 0


def test_a_clock_that_is_set_back_while_the_node_is_down_prolongs_nothing_by_more_than_that(
    world: World,
) -> None:
    """Notes are made now and then: the time since the last note is not known either."""
    world.wait(TTL_MS // 2)
    world.die()
    world.set_clock(-HOUR_MS)
    world.clock.now_ms += 20_000
    world.start()
    world.wait(TTL_MS // 2 - LOOK_MS)
    assert world.ready == 1
    world.wait(NOTE_MS + 2 * LOOK_MS)
    assert world.ready == 0


def test_the_disk_is_left_alone_between_notes(world: World) -> None:
    world.wait(NOTE_MS // 2)
    before = dict(world.environment.items("time"))
    world.wait(NOTE_MS // 3)
    assert dict(world.environment.items("time")) == before
    world.set_clock(700)
    world.wait(LOOK_MS)
    assert dict(world.environment.items("time")) != before
