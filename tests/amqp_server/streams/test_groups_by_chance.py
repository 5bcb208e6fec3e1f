"""A group while its members come and go, the stream has retention and compaction, and the node crashes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pamqp import commands

from amqp_server.streams.local_host import StreamOptions
from tests.amqp_server.connection.node import Peer
from tests.amqp_server.streams.node import StreamNode, publish
from tests.amqp_server.streams.test_consumer_groups import committed, got, host, tell, worked
from tests.amqp_server.streams.test_consumer_groups import declare as declare_group
from tests.amqp_server.streams.test_super_streams import declare, opened

PARTITIONS = 3


class Client:
    """A member and its held messages: delivery tags, in order, and the messages."""

    def __init__(self, peer: Peer, number: int, prefetch: int) -> None:
        self.peer = peer
        self.next_tag = 1
        self.held: dict[int, tuple[str, int]] = {}
        tell(peer, commands.Basic.Qos(prefetch_count=prefetch))
        tell(peer, commands.Basic.Consume(queue="g", consumer_tag=f"c{number}"))


class World:
    def __init__(self, seed: int, **arguments: Any) -> None:
        self.random = random.Random(seed)
        self.node = StreamNode(
            StreamOptions(segment_bytes=2_000, flush_bytes=self.random.choice([1, 1_500])),
            super_stream_partitions_max=5,
        )
        self.lossy = bool(arguments)
        self.clients: list[Client] = []
        self.numbers = iter(range(10_000))
        self.published = [0] * PARTITIONS
        self.seen: set[tuple[str, int]] = set()
        self.acked: set[tuple[str, int]] = set()
        #: Acked, and perhaps not on the disk.
        self.fresh: set[tuple[str, int]] = set()
        self.publisher = opened(self.node)
        declare(self.publisher, partitions=PARTITIONS, **arguments)
        declare_group(self.publisher)
        self.work()

    def work(self) -> None:
        for client, messages in zip(
            self.clients, worked(self.node, *[each.peer for each in self.clients]), strict=True
        ):
            for each in messages:
                message = each.stream, each.offset
                assert message not in self.acked, f"{message} was acked and came again"
                assert each.again or message not in self.seen, f"{message} came again without the flag"
                holders = [other for other in self.clients if message in other.held.values()]
                assert not holders, f"{message} is at two members"
                before = [offset for stream, offset in client.held.values() if stream == each.stream]
                assert each.again or not before or each.offset > max(before)
                self.seen.add(message)
                client.held[client.next_tag] = message
                client.next_tag += 1
        for stream in {stream for client in self.clients for stream, _ in client.held.values()}:
            at = [each for each in self.clients if stream in {of for of, _ in each.held.values()}]
            assert len(at) == 1, f"{stream} has two active members"
        self.fresh.clear()

    def step(self) -> None:
        acts = {self.publish: 3, self.join: 1, self.leave: 0.7, self.settle: 6, self.work: 3, self.crash: 0.2}
        self.random.choices(list(acts), list(acts.values()))[0]()

    def publish(self) -> None:
        number = self.random.randrange(PARTITIONS)
        count = self.random.randint(1, 12)
        key = b"%d" % self.random.randrange(5)
        publish(self.publisher, [key * self.random.randint(1, 30) for _ in range(count)], name=f"s-{number}")
        self.published[number] += count

    def join(self) -> None:
        if len(self.clients) < 4:
            prefetch = self.random.choice([1, 4, 50])
            self.clients.append(Client(opened(self.node), next(self.numbers), prefetch))

    def leave(self) -> None:
        if self.clients:
            gone = self.clients.pop(self.random.randrange(len(self.clients)))
            self.node.work()
            self.seen.update((each.stream, each.offset) for each in got(gone.peer))
            tell(gone.peer, commands.Channel.Close(200, "", 0, 0))

    def settle(self) -> None:
        holders = [each for each in self.clients if each.held]
        if not holders:
            return
        client = self.random.choice(holders)
        tags = sorted(client.held)
        tag = self.random.choice(tags)
        kind = self.random.choices(["one", "multiple", "back", "dead"], [5, 4, 2, 1])[0]
        done = [each for each in tags if each <= tag] if kind == "multiple" else [tag]
        messages = {client.held.pop(each) for each in done}
        if kind == "back":
            tell(client.peer, commands.Basic.Nack(tag, requeue=True))
            return
        self.acked |= messages
        self.fresh |= messages
        if kind == "dead":
            tell(client.peer, commands.Basic.Nack(tag, requeue=False))
        else:
            tell(client.peer, commands.Basic.Ack(tag, multiple=kind == "multiple"))

    def crash(self) -> None:
        for client in self.clients:
            self.seen.update((each.stream, each.offset) for each in got(client.peer))
        self.clients.clear()
        self.acked -= self.fresh
        self.fresh.clear()
        # Messages that were published and not synced are gone.
        self.node.restart()
        self.publisher = opened(self.node)
        self.work()

    def finish(self) -> None:
        """Check that the remaining members get all messages that are there."""
        for client in list(self.clients):
            self.clients.remove(client)
            self.seen.update((each.stream, each.offset) for each in got(client.peer))
            tell(client.peer, commands.Channel.Close(200, "", 0, 0))
        last = Client(opened(self.node), next(self.numbers), 0)
        self.clients.append(last)
        self.work()
        ends = [self.node.host(f"s-{number}").next_offset for number in range(PARTITIONS)]
        if last.held:
            tell(last.peer, commands.Basic.Ack(0, multiple=True))
        self.work()
        assert committed(self.node) == ends
        assert host(self.node).ready_count == 0
        if not self.lossy:
            everything = {(f"s-{number}", each) for number, stop in enumerate(ends) for each in range(stop)}
            assert everything <= self.seen


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_or_overtaken(seed: int) -> None:
    world = World(seed)
    for _ in range(80):
        world.step()
    world.finish()


@pytest.mark.parametrize("seed", range(100, 103))
@pytest.mark.parametrize("arguments", [{"x_max_length_bytes": 3_000}, {"x_stream_compaction": "key"}])
def test_what_a_stream_forgets_holds_up_no_group(seed: int, arguments: dict[str, Any]) -> None:
    world = World(seed, **arguments)
    for _ in range(80):
        world.step()
    world.finish()
