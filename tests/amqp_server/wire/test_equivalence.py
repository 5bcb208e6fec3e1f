"""The fast path gives the same results as the slow path: the same bytes out, the same queues, the same
errors.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pamqp import commands, frame

from ..connection.node import Delivery, MemoryNode, Peer, decoded
from .published import (
    BROKEN_TARGETS,
    TARGETS,
    Message,
    acknowledge,
    harmless,
    heartbeats,
    large_bodies,
    message,
    messages,
    method,
    mutated,
    raw,
    refused,
    repeated,
    small_bodies,
)

#: Channel 1 publishes and acks, 2 confirms, 3 is transactional, and 4 is a plain one with consumers.
CHANNELS = (1, 2, 3, 4)


def examples(count: int) -> settings:
    """Settings for this many examples, without the phase that explains failures, which takes minutes here."""
    phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
    suppressed = (HealthCheck.too_slow, HealthCheck.data_too_large)
    return settings(max_examples=count, deadline=None, phases=phases, suppress_health_check=suppressed)


def by_channel(output: bytes) -> dict[int, list[bytes]]:
    """The frames of each channel, in order: AMQP promises no order between channels."""
    found: dict[int, list[bytes]] = defaultdict(list)
    at = 0
    while at < len(output):
        _, channel, size = struct.unpack_from(">BHI", output, at)
        found[channel].append(output[at : at + size + 8])
        at += size + 8
    return found


class Pair:
    """Two nodes with the same input, one with the fast path and one without."""

    def __init__(self, **options: int) -> None:
        self.nodes = [MemoryNode(switch_fast_path=fast, **options) for fast in (True, False)]
        self.publishers = [node.peer() for node in self.nodes]
        #: Consumers on another connection, with the smallest permitted frames.
        self.readers = [node.peer(frame_max=4096) for node in self.nodes]
        for publisher, reader in zip(self.publishers, self.readers, strict=True):
            self._set_up(publisher, reader)

    def _set_up(self, publisher: Peer, reader: Peer) -> None:
        for channel in CHANNELS:
            publisher.call(channel, commands.Channel.Open())
        publisher.call(
            1,
            commands.Queue.Declare(queue="q1", durable=True),
            commands.Queue.Declare(queue="q2"),
            commands.Queue.Declare(queue="q3"),
            commands.Queue.Declare(
                queue="short", arguments={"x-max-length": 2, "x-overflow": "reject-publish"}
            ),
            commands.Queue.Declare(queue="far"),
            commands.Exchange.Declare(exchange="alike", exchange_type="direct"),
            commands.Queue.Bind(queue="q1", exchange="alike", routing_key="k1"),
            commands.Queue.Bind(queue="q1", exchange="alike", routing_key="k2"),
            commands.Queue.Bind(queue="q1", exchange="amq.fanout"),
            commands.Queue.Bind(queue="q2", exchange="amq.fanout"),
            commands.Queue.Bind(queue="far", exchange="amq.fanout"),
            commands.Queue.Bind(queue="q3", exchange="amq.topic", routing_key="a.#"),
            commands.Queue.Bind(queue="far", exchange="amq.topic", routing_key="#"),
            commands.Queue.Bind(queue="q2", exchange="amq.headers", arguments={"x": "1"}),
        )
        publisher.call(2, commands.Confirm.Select())
        publisher.call(3, commands.Tx.Select())
        publisher.call(
            4,
            commands.Basic.Qos(prefetch_count=3),
            commands.Basic.Consume(queue="q1", consumer_tag="acked"),
        )
        publisher.call(1, commands.Basic.Consume(queue="q2", consumer_tag="plain", no_ack=True))
        reader.call(9, commands.Channel.Open())
        reader.call(9, commands.Basic.Consume(queue="far", consumer_tag="far", no_ack=True))
        answers = publisher.answers() + reader.answers()
        assert not any(isinstance(answer, commands.Channel.Close) for _, answer in answers)

    def send(self, data: bytes, cuts: Iterable[int] = ()) -> None:
        """Send the same bytes to both nodes, cut at these offsets."""
        edges = [0, *sorted(cuts), len(data)]
        for node, publisher in zip(self.nodes, self.publishers, strict=True):
            for start, stop in zip(edges, edges[1:], strict=False):
                publisher.send(data[start:stop])
            node.sync()

    def check(self, *, gathered: bool = False, too_early: bool = False) -> None:
        """Check that both have the same output, except for the order between channels where messages are
        `gathered` by queue, and except for channels that end with an ack that came `too_early`.
        """
        fast, slow = self.nodes
        ended: list[int] = []
        for peer, other in (self.publishers, self.readers):
            mine, others = by_channel(peer.output), by_channel(other.output)
            if too_early:
                ended += [
                    number
                    for number in {*mine, *others}
                    if any(
                        b"unknown delivery tag" in b"".join(each.get(number, ())) for each in (mine, others)
                    )
                ]
                for number in ended:
                    mine.pop(number, None)
                    others.pop(number, None)
            assert mine == others
            assert gathered or peer.output == other.output
        contents, others_contents = fast.contents(), slow.contents()
        if ended:
            # What such a channel held is back in its queue.
            del contents["q1"], others_contents["q1"]
        assert contents == others_contents
        assert self.publishers[0].session.state is self.publishers[1].session.state
        first, second = (publisher.session.channels.values() for publisher in self.publishers)
        for one, two in zip(first, second, strict=True):
            assert one.number == two.number
            if one.number not in ended:
                assert (one.closing, one.unacked.count) == (two.closing, two.unacked.count)


# -- streams -------------------------------------------------------------------------------------------------

_channels = st.sampled_from(CHANNELS)


def _publishes(of: st.SearchStrategy[Message]) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda channel, several: b"".join(each.encode(channel) for each in several), _channels, repeated(of)
    )


@st.composite
def _interleaved(draw: st.DrawFn) -> bytes:
    """Two messages on two channels, frame by frame, with a heartbeat between."""
    one, two = (draw(messages()).frames(channel) for channel in draw(st.permutations(CHANNELS))[:2])
    parts: list[bytes] = []
    while one or two:
        source = one if one and (not two or draw(st.booleans())) else two
        parts.append(source.pop(0))
        if draw(st.integers(0, 4)) == 0:
            parts.append(raw(8, 0, b""))
    return b"".join(parts)


_single = st.builds(
    acknowledge,
    st.sampled_from([4, 4, 1]),
    st.integers(0, 12),
    st.booleans(),
    st.sampled_from([80, 80, 80, 120, 90]),
    st.one_of(st.none(), st.integers(0, 3)),
)
_acks = st.one_of(
    st.builds(
        lambda first, count: b"".join(acknowledge(4, tag) for tag in range(first, first + count)),
        st.integers(1, 4),
        st.integers(1, 12),
    ),
    _single,
)
_methods = st.sampled_from(
    [
        (1, commands.Queue.Declare(queue="nowhere")),
        (1, commands.Queue.Delete(queue="nowhere")),
        (1, commands.Queue.Purge(queue="q1")),
        (1, commands.Queue.Unbind(queue="q1", exchange="alike", routing_key="k2")),
        (3, commands.Tx.Commit()),
        (3, commands.Tx.Rollback()),
        (4, commands.Basic.Recover(requeue=True)),
        (1, commands.Basic.Get(queue="q3", no_ack=True)),
        (1, commands.Channel.CloseOk()),
        (2, commands.Channel.Close(200, "", 0, 0)),
        (2, commands.Channel.Open()),
    ]
).map(lambda pair: method(pair[0], pair[1]))

_valid = st.lists(
    st.one_of(_publishes(messages()), _publishes(messages()), _acks, _methods, _interleaved(), heartbeats),
    max_size=8,
).map(b"".join)
_strange = st.lists(
    st.one_of(
        _publishes(messages()),
        _publishes(messages(properties=st.one_of(refused, harmless))),
        _publishes(messages(targets=[*TARGETS, *BROKEN_TARGETS])),
        _acks,
        _methods,
        _interleaved(),
    ),
    max_size=6,
).map(b"".join)
_large = st.lists(
    _publishes(messages(bodies=st.one_of(large_bodies, small_bodies))), min_size=1, max_size=2
).map(b"".join)


def _cuts(draw: Callable[[st.SearchStrategy[list[int]]], list[int]], data: bytes) -> list[int]:
    return draw(st.lists(st.integers(0, len(data)), max_size=8))


@examples(100)
@given(st.data(), st.one_of(_valid, _strange))
def test_same_bytes_for_any_stream_and_chunking(data: st.DataObject, stream: bytes) -> None:
    pair = Pair()
    pair.send(stream, data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pair.check()


@examples(40)
@given(_valid)
def test_same_bytes_byte_by_byte(stream: bytes) -> None:
    stream = stream[:1500]
    pair = Pair()
    pair.send(stream, range(1, len(stream)))
    pair.check()


@examples(120)
@given(st.data(), mutated(st.one_of(_valid, _strange)))
def test_same_reply_to_broken_bytes(data: st.DataObject, stream: bytes) -> None:
    pair = Pair()
    pair.send(stream, data.draw(st.lists(st.integers(0, len(stream)), max_size=3)))
    pair.check()


@examples(25)
@given(st.data(), _large)
def test_same_bytes_for_large_messages(data: st.DataObject, stream: bytes) -> None:
    pair = Pair()
    pair.send(stream, data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    pair.check()


_alternating = st.lists(
    st.tuples(_channels, st.lists(messages(), min_size=2, max_size=4)).flatmap(
        lambda pair: st.lists(st.sampled_from(pair[1]), min_size=4, max_size=24).map(
            lambda several: b"".join(each.encode(pair[0]) for each in several)
        )
    ),
    min_size=1,
    max_size=3,
)


@examples(100)
@given(st.data(), _alternating, _acks)
def test_same_bytes_for_messages_that_alternate(
    data: st.DataObject, alternating: list[bytes], acks: bytes
) -> None:
    stream = acks.join([*alternating, method(3, commands.Tx.Commit())])
    pair = Pair()
    pair.send(stream, _cuts(data.draw, stream))
    # No client acks what it has not got yet: when a read has messages and the ack, the number of deliveries
    # before the end of the channel may differ.
    pair.check(gathered=True, too_early=True)


def test_an_ack_behind_messages_that_alternate() -> None:
    """The ack causes a delivery from its own queue, which may come before the message that ends in the same
    read.
    """
    begins = message("", "q1", b"one").encode(1) * 4
    ends = message("", "q2", b"two").encode(1)
    pair = Pair()
    pair.send(begins + ends + method(4, commands.Basic.Ack(1)), [len(begins) + 10])
    pair.check(gathered=True)


# -- chunking, and what was published ------------------------------------------------------------------------


class Seen:
    """The output of one connection as a client sees it, without what depends on timing: how confirms are
    gathered.
    """

    def __init__(self, output: bytes) -> None:
        self.deliveries: dict[str, list[tuple[object, ...]]] = defaultdict(list)
        self.returns: dict[int, list[tuple[object, ...]]] = defaultdict(list)
        self.confirmed: dict[tuple[int, int], bool] = {}
        self.closes: list[tuple[int, int]] = []
        low: dict[int, int] = defaultdict(int)
        for channel, answer in decoded(output):
            if isinstance(answer, Delivery):
                method: Any = answer.method
                sent = (method.exchange, method.routing_key, repr(dict(answer.properties)), answer.body)
                if isinstance(method, commands.Basic.Deliver):
                    self.deliveries[str(method.consumer_tag)].append((method.redelivered, *sent))
                else:
                    self.returns[channel].append(sent)
            elif isinstance(answer, (commands.Basic.Ack, commands.Basic.Nack)):
                first = low[channel] + 1 if answer.multiple else answer.delivery_tag
                for number in range(first, answer.delivery_tag + 1):
                    assert self.confirmed.setdefault(
                        (channel, number), isinstance(answer, commands.Basic.Ack)
                    ) is (isinstance(answer, commands.Basic.Ack))
                while (channel, low[channel] + 1) in self.confirmed:
                    low[channel] += 1
            elif isinstance(answer, (commands.Channel.Close, commands.Connection.Close)):
                self.closes.append((channel, int(answer.reply_code or 0)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"Seen({vars(self)})"


# No refusals: the frames of a channel before it is closed do depend on timing.
_published = st.lists(st.one_of(_publishes(messages()), _interleaved(), heartbeats), max_size=6).map(b"".join)


@examples(60)
@given(st.data(), _published)
def test_chunking_changes_nothing(data: st.DataObject, stream: bytes) -> None:
    whole, parts = (MemoryNode() for _ in range(2))
    seen = []
    for node, cuts in ((whole, []), (parts, _cuts(data.draw, stream))):
        pair = Pair.__new__(Pair)
        publisher, reader = node.peer(), node.peer(frame_max=4096)
        pair._set_up(publisher, reader)
        edges = [0, *sorted(cuts), len(stream)]
        for start, stop in zip(edges, edges[1:], strict=False):
            publisher.send(stream[start:stop])
        node.sync()
        seen.append((Seen(publisher.output), Seen(reader.output), node.contents()))
    assert seen[0] == seen[1]


@examples(100)
@given(
    st.lists(
        repeated(
            messages(
                bodies=st.one_of(small_bodies, small_bodies, small_bodies, large_bodies),
                targets=[(b"", b"q")],
            )
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([131_072, 4096]),
    st.sampled_from([1, 5]),
)
def test_delivered_is_what_was_published(groups: list[list[Message]], frame_max: int, channel: int) -> None:
    sent = [each for group in groups for each in group if b"CC" not in each.header]
    node = MemoryNode()
    publisher, consumer = node.peer(), node.peer(frame_max=frame_max)
    publisher.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="q"))
    consumer.call(channel, commands.Channel.Open())
    consumer.call(channel, commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=True))
    before = len(consumer.output)
    publisher.send(b"".join(each.encode(1) for each in sent))
    got = decoded(consumer.output[before:])
    assert len(got) == len(sent)
    for number, ((on, delivery), each) in enumerate(zip(got, sent, strict=True), 1):
        assert isinstance(delivery, Delivery) and on == channel
        assert isinstance(delivery.method, commands.Basic.Deliver)
        assert delivery.method.delivery_tag == number
        assert (delivery.method.exchange, delivery.method.routing_key) == ("", "q")
        assert delivery.body == each.body
        _, _, wanted = frame.unmarshal(raw(2, 1, each.header))
        assert repr(dict(delivery.properties)) == repr(dict(wanted.properties))  # type: ignore[union-attr]
    for size in _frame_sizes(consumer.output[before:]):
        assert size <= frame_max


def _frame_sizes(data: bytes) -> list[int]:
    sizes = []
    while data:
        size = int.from_bytes(data[3:7], "big") + 8
        sizes.append(size)
        data = data[size:]
    return sizes
