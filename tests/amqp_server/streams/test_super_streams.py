"""Super streams on a node that stands alone: all or nothing, order, growth, and permissions."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.declared import operations
from amqp_server.broker.declared.records import BindingRecord, encoded
from amqp_server.broker.in_parts import deletion_in_parts
from amqp_server.broker.topology.super_streams import growth, partition_id
from amqp_server.errors import AMQPError
from amqp_server.wire import content, frames, methods
from exchanges.super_stream import KEYLESS_RUN
from quorum_queue.queue_ids import index_of
from tests.amqp_server.connection.node import Peer
from tests.amqp_server.streams.node import StreamNode, consume, got
from tests.amqp_server.streams.node import declare as declare_stream


def opened(node: StreamNode, user: str = "guest") -> Peer:
    peer = node.peer(user=user)
    peer.call(1, commands.Channel.Open())
    return peer


@pytest.fixture
def node() -> StreamNode:
    return StreamNode(super_stream_partitions_max=5)


@pytest.fixture
def peer(node: StreamNode) -> Peer:
    return opened(node)


def declare(
    peer: Peer, name: str = "s", partitions: object = 3, durable: bool = True, **arguments: Any
) -> list[tuple[int, Any]]:
    table: dict[str, Any] = {key.replace("_", "-"): value for key, value in arguments.items()}
    if partitions is not None:
        table["x-partitions"] = partitions
    return peer.call(
        1,
        # pamqp refuses long names.
        methods.make(
            commands.Exchange.Declare,
            exchange=name,
            exchange_type="x-super-stream",
            durable=durable,
            arguments=table,
        ),
    )


def delete(peer: Peer, name: str = "s") -> list[tuple[int, Any]]:
    return peer.call(1, commands.Exchange.Delete(exchange=name))


def refused(answers: list[tuple[int, Any]], code: int = 406) -> str:
    """Return why the channel was closed."""
    ((_, close),) = answers
    assert isinstance(close, commands.Channel.Close), close
    assert close.reply_code == code, close.reply_text
    return close.reply_text


def publish(peer: Peer, *messages: tuple[str, bytes]) -> None:
    """Publish keys and bodies as one read."""
    from pamqp import header

    parts: list[bytes] = []
    for key, body in messages:
        payload = header.ContentHeader(0, len(body), commands.Basic.Properties()).marshal()
        parts.append(frames.method_frame(1, commands.Basic.Publish(exchange="s", routing_key=key)))
        parts.append(content.build(payload, body, 1, 131_072))
    peer.send(*parts)


def queues(node: StreamNode) -> list[str]:
    return list(node.broker.vhost("/").queues)


def read(node: StreamNode, name: str) -> list[bytes]:
    node.work()
    reader = opened(node)
    answers = consume(reader, name=name)
    node.work()
    return [body for _, body in got(reader, answers)]


# -- all or nothing ------------------------------------------------------------------------------------------


def test_declaring_makes_the_partitions_and_deleting_deletes_them(node: StreamNode, peer: Peer) -> None:
    ((_, ok),) = declare(peer, x_max_age="1h", x_stream_max_segment_size_bytes=1000)
    assert isinstance(ok, commands.Exchange.DeclareOk)
    assert queues(node) == ["s-0", "s-1", "s-2"]
    for number, binding in enumerate(node.broker.vhost("/").router.bindings(source="s")):
        assert (binding.destination, binding.routing_key) == (f"s-{number}", str(number))
        assert binding.arguments == {"x-stream-partition-order": number}
        queue = node.broker.vhost("/").queues[f"s-{number}"]
        assert queue.parsed.max_age_ms == 3_600_000 and queue.parsed.segment_bytes == 1000
        assert queue.durable and queue.type.is_stream
    publish(peer, ("a", b"1"))
    node.work()
    ((_, gone),) = delete(peer)
    assert isinstance(gone, commands.Exchange.DeleteOk)
    assert queues(node) == [] and node.broker.counts.bindings == 0
    node.work()
    assert not node.files.now


def test_a_restart_brings_it_back(node: StreamNode, peer: Peer) -> None:
    declare_stream(peer, "before")
    declare(peer)
    declare_stream(peer, "behind")
    publish(peer, *((f"hello{number}", b"%d" % number) for number in range(1, 11)))
    node.work()
    known = {queue.name: queue.queue_id for queue in node.broker.all_queues()}
    node.restart()
    assert {queue.name: queue.queue_id for queue in node.broker.all_queues()} == known
    peer = opened(node)
    publish(peer, ("hello1", b"again"))
    assert read(node, "s-1") == [b"1", b"3", b"8", b"again"]
    # A new queue has an id of its own, and new partitions have theirs.
    declare_stream(peer, "new")
    declare(peer, "t", 5)
    ids = [queue.queue_id for queue in node.broker.all_queues()]
    assert len(set(ids)) == len(ids) == 11
    assert len({index_of(queue_id) for queue_id in ids}) == 5


def test_ids_of_partitions_are_like_no_other() -> None:
    ids = [partition_id(index, place) for index in (0, 1, 2, 1 << 40) for place in (0, 1, 9_999)]
    assert len(set(ids)) == len(ids) and min(ids) > 1 << 60 and max(ids) < 1 << 62
    assert [index_of(each) for each in ids[::3]] == [0, 1, 2, 1 << 40]
    assert index_of(17) == 17


@pytest.mark.parametrize(
    ("partitions", "why"),
    [
        (0, "invalid arg 'x-partitions' for exchange 's' in vhost '/': {value_out_of_range,0,1,5}"),
        (6, "invalid arg 'x-partitions' for exchange 's' in vhost '/': {value_out_of_range,6,1,5}"),
        (-1, "{value_out_of_range,-1,1,5}"),
        ("3", "invalid arg 'x-partitions' for exchange 's' in vhost '/': \"expected integer, got longstr\""),
        (True, "got bool"),
    ],
)
def test_bad_numbers_of_partitions(node: StreamNode, peer: Peer, partitions: object, why: str) -> None:
    assert why in refused(declare(peer, partitions=partitions))
    assert_nothing_made(node)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"x_max_age": "soon"}, "invalid arg 'x-max-age' for queue 's-0' in vhost '/'"),
        ({"x_message_ttl": 5}, "invalid arg 'x-message-ttl' for queue 's-0'"),
        ({"x_queue_type": "quorum"}, "invalid arg 'x-queue-type' for exchange 's' in vhost '/'"),
        ({"durable": False}, "invalid property 'non-durable' for exchange 's' in vhost '/'"),
        ({"alternate_exchange": 5}, "for arg 'alternate-exchange' in exchange 's'"),
        ({"name": "x" * 254}, "the names of its partitions would be too long"),
    ],
)
def test_partitions_that_cannot_be_are_refused_whole(
    node: StreamNode, peer: Peer, arguments: dict[str, Any], why: str
) -> None:
    assert why in refused(declare(peer, **arguments))
    assert_nothing_made(node)


def assert_nothing_made(node: StreamNode) -> None:
    assert queues(node) == []
    assert node.broker.counts.exchanges == node.broker.counts.bindings == node.broker.counts.queues == 0
    node.restart()
    assert queues(node) == []
    assert node.broker.vhost("/").router.get("s") is None


def test_a_taken_name(node: StreamNode, peer: Peer) -> None:
    declare_stream(peer, "s-2")
    why = refused(declare(peer))
    assert "queue 's-2' in vhost '/' exists already: super stream 's' cannot use it as a partition" in why
    assert queues(node) == ["s-2"]
    assert node.broker.vhost("/").router.get("s") is None


@pytest.mark.parametrize("limit", ["queues_max", "bindings_max"])
def test_no_room_for_all_of_it(limit: str) -> None:
    config: dict[str, Any] = {limit: 2}
    node = StreamNode(**config)
    why = refused(declare(opened(node)))
    assert why.endswith("is reached"), why
    assert_nothing_made(node)


# -- messages ------------------------------------------------------------------------------------------------


def test_each_key_has_its_partition_and_keeps_its_order(node: StreamNode, peer: Peer) -> None:
    declare(peer)
    for turn in range(3):
        publish(peer, *((f"hello{number}", b"%d.%d" % (number, turn)) for number in range(1, 11)))
    found = [read(node, f"s-{number}") for number in range(3)]
    for partition, keys in zip(found, ((2, 5, 7, 9), (1, 3, 8), (4, 6, 10)), strict=True):
        assert partition == [b"%d.%d" % (key, turn) for turn in range(3) for key in keys]


def test_without_a_key_all_get_runs(node: StreamNode, peer: Peer) -> None:
    declare(peer)
    publish(peer, *(("", b"%d" % number) for number in range(3 * KEYLESS_RUN)))
    found = [read(node, f"s-{number}") for number in range(3)]
    assert [len(each) for each in found] != [3 * KEYLESS_RUN, 0, 0]
    assert sorted(map(len, found)) == [KEYLESS_RUN] * 3
    assert sorted(int(body) for each in found for body in each) == list(range(3 * KEYLESS_RUN))


def test_runs_without_a_key_go_on_in_the_next_read(node: StreamNode, peer: Peer) -> None:
    """It does not matter how messages come, or what comes between them: 256 in a row have one partition."""
    declare(peer)
    other = opened(node)
    expected: list[list[bytes]] = [[], [], []]
    keyless = 0
    for size in (1, 2, 255, 1, 100, 600, 3, 300):
        messages: list[tuple[str, bytes]] = []
        for number in range(size):
            # Bodies of two sizes: not all content headers are the same.
            body = b"%06d" % keyless + b"x" * (number // 40 % 2)
            expected[(keyless + 1) // KEYLESS_RUN % 3].append(body)
            messages.append(("", body))
            keyless += 1
            if number % 90 == 50:
                # Partition 1 has this key.
                messages.append(("hello1", b"keyed"))
        publish(other if size % 2 else peer, *messages)
    found = [read(node, f"s-{number}") for number in range(3)]
    assert b"keyed" in found[1]
    assert [[body for body in each if body != b"keyed"] for each in found] == expected


# -- what is there already -----------------------------------------------------------------------------------


def test_a_second_declare_must_mean_the_same(node: StreamNode, peer: Peer) -> None:
    declare(peer, x_max_age="1h")
    ((_, ok),) = declare(peer, x_max_age="1h")
    assert isinstance(ok, commands.Exchange.DeclareOk)
    for arguments, named in (
        ({"x_max_age": "2h"}, "x-max-age"),
        ({}, "x-max-age"),
        ({"partitions": 4, "x_max_age": "1h"}, "x-partitions"),
        ({"partitions": None, "x_max_age": "1h"}, "x-partitions"),
    ):
        why = refused(declare(peer, **arguments))
        assert f"inequivalent arg '{named}' for exchange 's' in vhost '/'" in why
        peer = opened(node)
    assert queues(node) == ["s-0", "s-1", "s-2"]


def test_a_super_stream_grows_and_later_messages_use_the_new_partitions(node: StreamNode, peer: Peer) -> None:
    declare(peer)
    vhost = node.broker.vhost("/")
    publish(peer, ("hello4", b"before"))
    node.turn.run(node.broker.propose, growth(vhost, "s", 2))
    assert queues(node) == [f"s-{number}" for number in range(5)]
    publish(peer, ("hello4", b"behind"))
    bodies = [read(node, f"s-{number}") for number in range(5)]
    assert bodies[2] == [b"before"] and [b"behind"] in bodies
    # The number of the declaration and the present one fit; no other number does.
    for partitions, fits in ((3, True), (5, True), (4, False)):
        ((_, answer),) = declare(peer, partitions=partitions)
        assert isinstance(answer, commands.Exchange.DeclareOk) is fits
    node.restart()
    assert sorted(queues(node)) == [f"s-{number}" for number in range(5)]
    for more in (1, 0, -3):
        with pytest.raises(AMQPError, match="partition"):
            growth(node.broker.vhost("/"), "s", more)
    delete(opened(node))
    assert queues(node) == []


def test_two_grow_it_at_the_same_time(node: StreamNode, peer: Peer) -> None:
    declare(peer)
    vhost = node.broker.vhost("/")
    operations = [growth(vhost, "s", 1), growth(vhost, "s", 1)]
    results: list[Any] = []
    for operation in operations:
        node.turn.run(node.broker.propose, operation, results.append)
    assert [result.changed for result in results] == [True, False]
    assert "have just changed" in results[1].error
    assert queues(node) == [f"s-{number}" for number in range(4)]


def test_a_partition_stays_as_long_as_the_whole(node: StreamNode, peer: Peer) -> None:
    declare(peer)
    declare_stream(peer, "other")
    why = refused(peer.call(1, commands.Queue.Delete(queue="s-1")))
    assert "queue 's-1' in vhost '/' is a partition of super stream 's'" in why
    arguments: dict[str, Any] = {"x-stream-partition-order": 1}
    for method in (
        commands.Queue.Unbind(queue="s-1", exchange="s", routing_key="1", arguments=arguments),
        commands.Queue.Bind(queue="other", exchange="s", routing_key="3"),
    ):
        why = refused(opened(node).call(1, method))
        assert "exchange 's' in vhost '/' is a super stream that was declared with 'x-partitions'" in why
    assert queues(node) == ["s-0", "s-1", "s-2", "other"]
    assert len(node.broker.vhost("/").router.bindings(source="s")) == 3


def test_one_that_is_bound_by_hand(node: StreamNode, peer: Peer) -> None:
    declare(peer, partitions=None)
    assert queues(node) == []
    for number in range(3):
        declare_stream(peer, f"p{number}")
        peer.call(1, commands.Queue.Bind(queue=f"p{number}", exchange="s", routing_key=str(number)))
    publish(peer, ("hello4", b"x"))
    assert read(node, "p2") == [b"x"]
    ((_, deleted),) = opened(node).call(1, commands.Queue.Delete(queue="p1"))
    assert isinstance(deleted, commands.Queue.DeleteOk)
    delete(peer)
    assert queues(node) == ["p0", "p2"]


def test_one_as_the_tools_of_rabbitmq_make_it(node: StreamNode, peer: Peer) -> None:
    peer.call(
        1,
        commands.Exchange.Declare(
            exchange="s", exchange_type="direct", durable=True, arguments={"x-super-stream": True}
        ),
    )
    for number in range(2):
        declare_stream(peer, f"s-{number}")
        arguments: dict[str, Any] = {"x-stream-partition-order": number}
        peer.call(
            1,
            commands.Queue.Bind(
                queue=f"s-{number}", exchange="s", routing_key=str(number), arguments=arguments
            ),
        )
    # The publishers choose the partition themselves.
    publish(peer, ("1", b"one"), ("0", b"zero"), ("other", b"nowhere"))
    assert (read(node, "s-0"), read(node, "s-1")) == ([b"zero"], [b"one"])


# -- permissions ---------------------------------------------------------------------------------------------


def test_a_declare_needs_permissions_for_all_partitions(node: StreamNode, peer: Peer) -> None:
    other = opened(node, "other")
    set_permission = node.broker.access.permissions.set
    set_permission("other", "/", "^s$", "^s$", "")
    assert "access to queue 's-0' in vhost '/' refused for user 'other'" in refused(declare(other), 403)
    assert_nothing_made(node)
    other = opened(node, "other")
    node.broker.access.permissions.set("other", "/", "^s(-[0-9]+)?$", "^s$", "")
    declare(other)
    # A user that may write to the exchange needs no permission to write to its partitions.
    publish(other, ("hello4", b"x"))
    assert read(node, "s-2") == [b"x"]
    why = refused(
        other.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.Consume(queue="s-2"))[1:], 403
    )
    assert "access to queue 's-2' in vhost '/' refused for user 'other'" in why
    node.broker.access.permissions.set("other", "/", "^s$", "", "")
    assert "access to queue 's-0' in vhost '/' refused for user 'other'" in refused(
        delete(opened(node, "other")), 403
    )
    assert queues(node) == ["s-0", "s-1", "s-2"]


# -- in the order of a cluster's log -------------------------------------------------------------------------


def test_what_was_proposed_before_it_came_changes_nothing_of_it(node: StreamNode, peer: Peer) -> None:
    """A node may have proposed a binding to an earlier exchange of that name, deleted meanwhile."""
    declare_stream(peer, "other")
    declare(peer)
    topology, router = node.broker.topology, node.broker.vhost("/").router
    foreign = BindingRecord("/", "s", "other", "queue", "7", encoded({}))
    result = topology.apply(99, operations.Bind(foreign))
    assert not result.changed and "is a super stream" in result.error
    own = BindingRecord("/", "s", "s-0", "queue", "0", encoded({"x-stream-partition-order": 0}))
    assert not topology.apply(100, operations.Unbind(own)).changed
    assert [binding.destination for binding in router.bindings(source="s")] == ["s-0", "s-1", "s-2"]


@pytest.mark.pure
def test_a_vhost_that_goes_in_parts_takes_it_whole(
    node: StreamNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_stream(peer, "other")
    peer.call(1, commands.Queue.Bind(queue="other", exchange="amq.fanout", routing_key=""))
    declare(peer)
    monkeypatch.setattr(deletion_in_parts, "BINDINGS_MIN", 1)
    parts = list(deletion_in_parts.parts_of(node.broker.vhosts, operations.DeleteVhost("/")) or ())
    assert parts[0] == operations.DeleteExchange("/", "s")
    unbound = [part.record for part in parts if isinstance(part, operations.Unbind)]
    assert {record.source for record in unbound} == {"amq.fanout"}
    assert {record.destination for record in unbound} == {"other"}
    assert [part.name for part in parts if isinstance(part, operations.DeleteQueue)] == ["other"]
    assert len([part for part in parts if isinstance(part, operations.DeleteExchange)]) == 1
