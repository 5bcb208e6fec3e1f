"""Everything that clients and operators can do with a group of one node, mixed by chance: consumers and
single gets, with acks, with transactions, and without acks, several channels of a connection, a prefetch of
the channel, a limit of deliveries, dead letters, purges, resets, and streams that are deleted and declared
anew.

A member sees a message again only if the message came back, and then with the flag; it never sees an acked
message again, nor a message of a partition before an earlier one that is due there.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from pamqp import base, commands

from amqp_server.streams.local_host import StreamOptions
from amqp_server.wire import frames
from quorum_queue.consumer_groups.group import Group, Member, Portion
from quorum_queue.consumer_groups.partition import ENDLESS, Partition, Span
from tests.amqp_server.connection.node import Delivery, Peer
from tests.amqp_server.streams.node import StreamNode, publish
from tests.amqp_server.streams.node import declare as declare_stream
from tests.amqp_server.streams.test_consumer_groups import committed, host
from tests.amqp_server.streams.test_consumer_groups import declare as declare_group
from tests.amqp_server.streams.test_super_streams import declare, delete, opened

PARTITIONS = 3
LIMIT = 2
#: A partition of one of the successive super streams, and an offset.
Message = tuple[str, int, int]


class Channel:
    """One channel of a client: it consumes, gets messages one by one, or does both."""

    def __init__(self, mixture: Mixture, peer: Peer, number: int) -> None:
        chance = mixture.chance
        self.peer = peer
        self.number = number
        self.next_tag = 1
        #: Deliveries that the channel may settle, and those of them that the group has forgotten.
        self.held: dict[int, Message] = {}
        self.lost = False
        self.no_ack = chance.random() < 0.15
        self.transacts = not self.no_ack and chance.random() < 0.2
        self.gets = chance.random() < 0.3
        self.consumes = not self.gets or chance.random() < 0.5
        #: The settlements of the open transaction, with the tags.
        self.begun: list[tuple[str, int, Message]] = []
        #: The open transaction settles something that the group has forgotten: its commit is refused.
        self.stale = False

    def has(self) -> list[Message]:
        """Return the messages that the channel holds, also those that it settles in a transaction without a
        commit.
        """
        return [*self.held.values(), *[message for _, _, message in self.begun]]

    def tell(self, *methods: base.Frame) -> None:
        self.peer.send(*(frames.method_frame(self.number, method) for method in methods))

    def begin(self, prefetch: int, *, of_channel: bool, consumers: int) -> None:
        self.tell(commands.Channel.Open())
        if self.transacts:
            self.tell(commands.Tx.Select())
        self.tell(commands.Basic.Qos(prefetch_count=prefetch, global_=of_channel))
        for place in range(consumers if self.consumes else 0):
            self.tell(commands.Basic.Consume(queue="g", consumer_tag=f"c{place}", no_ack=self.no_ack))


class Mixture:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.node = StreamNode(
            StreamOptions(segment_bytes=2_000, flush_bytes=self.chance.choice([1, 1_500])),
            super_stream_partitions_max=5,
        )
        self.channels: list[Channel] = []
        #: Whether the super stream is there; how often it was declared anew, and how many messages its
        #: partitions have.
        self.lives = True
        self.age = 0
        self.stop: defaultdict[str, int] = defaultdict(int)
        #: Messages handed out, done, and dead; and how often each message came back.
        self.seen: set[Message] = set()
        self.done: set[Message] = set()
        self.attempts: defaultdict[Message, int] = defaultdict(int)
        self.dead: set[Message] = set()
        self.letters: list[Message] = []
        self.limited = self.chance.random() < 0.5
        self.publisher = opened(self.node)
        declare(self.publisher, partitions=PARTITIONS)
        declare_stream(self.publisher, name="letters")
        limit: dict[str, Any] = {"x_delivery_limit": LIMIT} if self.limited else {}
        declare_group(self.publisher, x_dead_letter_exchange="", x_dead_letter_routing_key="letters", **limit)
        self.work()

    # -- what comes ------------------------------------------------------------------------------------------

    def work(self) -> None:
        self.node.work()
        for channel in list(self.channels):
            self.collect(channel.peer)
        if not self.lives:
            return
        for name in [f"s-{number}" for number in range(PARTITIONS)]:
            at = [each for each in self.channels if any(message[0] == name for message in each.has())]
            assert len(at) <= 1, f"{name} has two active channels"

    def collect(self, peer: Peer) -> list[base.Frame]:
        """Take the frames that came to a client; return its answers."""
        answers: list[base.Frame] = []
        for number, each in peer.answers():
            channel = next((it for it in self.channels if it.peer is peer and it.number == number), None)
            if isinstance(each, Delivery):
                assert channel is not None
                self.take(channel, each)
            else:
                answers.append(each)
                if isinstance(each, commands.Basic.Cancel) and channel is not None:
                    channel.lost = True
                if channel is not None and channel.stale and isinstance(each, commands.Channel.Close):
                    assert each.reply_code == 406 and "nothing was done" in each.reply_text
                    channel.tell(commands.Channel.CloseOk())
                    self.channels.remove(channel)
                    self.come_back(channel.has())
                    continue
                assert not isinstance(each, commands.Channel.Close | commands.Connection.Close), each
        return answers

    def take(self, channel: Channel, delivery: Delivery) -> None:
        headers, method = delivery.properties.headers or {}, delivery.method
        assert isinstance(method, commands.Basic.Deliver | commands.Basic.GetOk)
        name, offset = str(headers["x-stream"]), headers["x-stream-offset"]
        assert isinstance(offset, int) and method.delivery_tag == channel.next_tag
        channel.next_tag += 1
        message = name, self.age, offset
        assert message not in self.done, f"{message} was acked and came again"
        assert message not in self.dead, f"{message} has died and came again"
        assert bool(method.redelivered) == (message in self.seen), f"{message} with flag {method.redelivered}"
        assert headers.get("x-delivery-count", 0) == self.attempts[message], message
        for other in self.channels:
            assert message not in other.has(), f"{message} is at two"
        own = set(channel.has())
        for before in range(offset):
            earlier = name, self.age, before
            if earlier not in self.done and earlier not in self.dead:
                assert earlier in own, f"{message} came before {earlier}"
        self.seen.add(message)
        if channel.no_ack:
            self.done.add(message)
        else:
            channel.held[channel.next_tag - 1] = message

    # -- what is done ----------------------------------------------------------------------------------------

    def step(self) -> None:
        acts = {
            self.publish: 4,
            self.join: 1.5,
            self.leave: 0.7,
            self.cancel: 0.3,
            self.settle: 6,
            self.get: 3,
            self.recover: 0.3,
            self.end_transaction: 1,
            self.purge: 0.15,
            self.reset: 0.2,
            self.declare_anew: 0.1,
        }
        self.chance.choices(list(acts), list(acts.values()))[0]()
        self.work()

    def publish(self) -> None:
        if self.lives:
            name, count = f"s-{self.chance.randrange(PARTITIONS)}", self.chance.randint(1, 12)
            publish(self.publisher, [b"x" * self.chance.randint(1, 30) for _ in range(count)], name=name)
            self.stop[name] += count

    def join(self) -> None:
        if len(self.channels) >= 6 or not self.lives:
            return
        known = [each for each in self.channels if each.number < 3]
        if known and self.chance.random() < 0.4:
            peer = self.chance.choice(known).peer
            taken = [each.number for each in self.channels if each.peer is peer]
            number = next(each for each in range(1, 9) if each not in taken)
        else:
            peer, number = self.node.peer(), 1
        channel = Channel(self, peer, number)
        self.channels.append(channel)
        channel.begin(
            self.chance.choice([1, 4, 50]),
            of_channel=self.chance.random() < 0.4,
            consumers=self.chance.choice([1, 1, 2]),
        )

    def leave(self) -> None:
        if self.channels:
            self.end(self.chance.choice(self.channels))

    def end(self, channel: Channel) -> None:
        channel.tell(commands.Channel.Close(200, "", 0, 0))
        self.collect(channel.peer)
        self.channels.remove(channel)
        # A transaction without a commit did nothing.
        self.come_back(channel.has())

    def cancel(self) -> None:
        """A cancelled consumer may still settle the messages that it holds."""
        consuming = [each for each in self.channels if each.consumes and not each.lost]
        if consuming:
            channel = self.chance.choice(consuming)
            for place in range(2):
                channel.tell(commands.Basic.Cancel(f"c{place}"))
            channel.consumes = False

    def come_back(self, messages: list[Message]) -> None:
        for message in messages:
            if message[1] != self.age:
                continue
            self.attempts[message] += 1
            if self.limited and self.attempts[message] > LIMIT:
                self.dead.add(message)
                self.letters.append(message)

    def settle(self) -> None:
        holders = [each for each in self.channels if each.held]
        if not holders:
            return
        channel = self.chance.choice(holders)
        tags = sorted(channel.held)
        tag = self.chance.choice(tags)
        kind = self.chance.choices(["ack", "back", "dead"], [6, 3, 1])[0]
        multiple = kind == "ack" and self.chance.random() < 0.5
        settled = [
            (each, channel.held.pop(each)) for each in tags if each == tag or (multiple and each < tag)
        ]
        if channel.transacts:
            channel.begun += [(kind, each, message) for each, message in settled]
        else:
            self.settled(kind, [message for _, message in settled])
        if kind == "ack":
            channel.tell(commands.Basic.Ack(tag, multiple=multiple))
        else:
            channel.tell(commands.Basic.Nack(tag, requeue=kind == "back"))

    def settled(self, kind: str, messages: list[Message]) -> None:
        if kind == "back":
            self.come_back(messages)
        elif kind == "ack":
            self.done.update(messages)
        else:
            now = [message for message in messages if message[1] == self.age]
            self.dead.update(now)
            self.letters += now

    def end_transaction(self) -> None:
        begun = [each for each in self.channels if each.transacts and (each.begun or each.stale)]
        if not begun:
            return
        channel = self.chance.choice(begun)
        if channel.stale and self.chance.random() < 0.7:
            channel.tell(commands.Tx.Commit())
            return
        done, channel.begun = channel.begun, []
        was_stale, channel.stale = channel.stale, False
        if not was_stale and self.chance.random() < 0.7:
            for kind, _, message in done:
                self.settled(kind, [message])
            channel.tell(commands.Tx.Commit())
        else:
            # The channel holds them as before.
            channel.held |= {tag: message for _, tag, message in done}
            channel.tell(commands.Tx.Rollback())

    def get(self) -> None:
        getting = [each for each in self.channels if each.gets]
        if getting:
            channel = self.chance.choice(getting)
            channel.tell(commands.Basic.Get(queue="g", no_ack=channel.no_ack))

    def recover(self) -> None:
        holders = [each for each in self.channels if each.held and not each.transacts]
        if holders:
            channel = self.chance.choice(holders)
            held, channel.held = channel.held, {}
            self.come_back(list(held.values()))
            channel.tell(commands.Basic.Recover(requeue=True))

    # -- operators -------------------------------------------------------------------------------------------

    def purge(self) -> None:
        if not self.lives:
            return
        self.publisher.call(1, commands.Queue.Purge(queue="g"))
        held = {message for each in self.channels for message in each.has()}
        for name, stop in self.stop.items():
            for offset in range(stop):
                if (name, self.age, offset) not in held:
                    self.done.add((name, self.age, offset))

    def reset(self) -> None:
        group = host(self.node)
        places = []
        for reader in group.readers:
            name = reader.partition.name
            if self.chance.random() < 0.6 and self.stop[name]:
                places.append((reader, name, self.chance.randint(0, self.stop[name])))
        if not places:
            return
        self.node.turn.run(group.move, [(reader, offset) for reader, _, offset in places])
        for _, name, to in places:
            self.forget(name)
            for offset in range(self.stop[name]):
                message = name, self.age, offset
                self.attempts[message] = 0
                for found in (self.seen, self.done, self.dead):
                    found.discard(message)
                if offset < to:
                    self.done.add(message)

    def forget(self, name: str) -> None:
        """Forget the held messages of a partition."""
        for each in self.channels:
            each.held = {tag: message for tag, message in each.held.items() if message[0] != name}
            left = [settled for settled in each.begun if settled[2][0] != name]
            each.stale = each.stale or len(left) < len(each.begun)
            each.begun = left

    def declare_anew(self) -> None:
        if self.lives:
            delete(self.publisher)
            self.node.work()
            for peer in {id(each.peer): each.peer for each in self.channels}.values():
                self.collect(peer)
            for channel in list(self.channels):
                assert channel.lost or not channel.consumes
                channel.tell(commands.Channel.Close(200, "", 0, 0))
                self.collect(channel.peer)
            self.channels.clear()
            assert not host(self.node).group.partitions
            self.lives = False
        else:
            self.lives = True
            self.age += 1
            self.stop.clear()
            declare(self.publisher, partitions=PARTITIONS)

    # -- the end ---------------------------------------------------------------------------------------------

    def finish(self) -> None:
        if not self.lives:
            self.declare_anew()
            self.work()
        while self.channels:
            self.end(self.channels[0])
            self.work()
        last = Channel(self, self.node.peer(), 1)
        last.no_ack = last.transacts = last.gets = False
        last.consumes = True
        self.channels.append(last)
        last.begin(0, of_channel=False, consumers=1)
        self.work()
        last.tell(commands.Basic.Ack(0, multiple=True))
        self.done.update(last.held.values())
        last.held.clear()
        self.work()
        assert committed(self.node) == [self.stop[f"s-{number}"] for number in range(PARTITIONS)]
        assert host(self.node).ready_count == 0 == host(self.node).unacked_count
        assert not host(self.node).group.leaving
        for name, stop in self.stop.items():
            missed = {(name, self.age, each) for each in range(stop)} - self.done - self.dead
            assert not missed
        assert self.node.host("letters").next_offset == len(self.letters)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_done_nothing_is_lost_overtaken_or_told_wrong(seed: int) -> None:
    mixture = Mixture(seed)
    for _ in range(120):
        mixture.step()
    mixture.finish()


def again_as_new(self: Group, portions: list[Portion], more: int = 1) -> None:
    _give_back(self, portions, 0)


def to_whoever_owns_it(self: Partition) -> Member | None:
    return self.owner


def whatever_is_new(self: Partition) -> Span:
    return Span(self.cursor, ENDLESS, 0)


_give_back = Group._give_back
PLANTED: list[tuple[type, str, Callable[..., Any]]] = [
    (Group, "_give_back", again_as_new),
    (Partition, "active", to_whoever_owns_it),
    (Partition, "upcoming", whatever_is_new),
]


@pytest.mark.pure
@pytest.mark.parametrize(("place", "name", "bug"), PLANTED, ids=[name for _, name, _ in PLANTED])
def test_planted_bugs_are_found(
    monkeypatch: pytest.MonkeyPatch, place: type, name: str, bug: Callable[..., Any]
) -> None:
    monkeypatch.setattr(place, name, bug)
    for seed in range(12):
        try:
            mixture = Mixture(seed)
            for _ in range(120):
                mixture.step()
            mixture.finish()
        except AssertionError:
            return
    raise AssertionError(f"{name}: nothing is amiss")
