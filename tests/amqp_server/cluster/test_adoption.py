"""A node that stood alone for long becomes the first of three, with all its data; and the reasons to refuse
this.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker

from tests.amqp_server.cluster.ring import HOST, NAMES, PERSISTENT, QUORUM, Ring, free_ports, publish, take
from tests.amqp_server.cluster.test_directories import copy
from tests.amqp_server.cluster.test_founding import says, serves
from tests.reliability.node import Node, wait_until

NUMBERS = [b"%d" % number for number in range(60)]
DEDUPLICATED = QUORUM | {"x-deduplication": True}


@pytest.fixture
def alone(empty: Ring) -> Iterator[Node]:
    """A node that stands alone, over the directory of the ring's n1."""
    with Node(empty.directory / "n1", "--disk-free-min-bytes", "1MiB") as node:
        yield node


@contextmanager
def channel_of(node: Node) -> Iterator[BlockingChannel]:
    where = pika.ConnectionParameters(HOST, node.port, heartbeat=0)
    with closing(pika.BlockingConnection(where)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def fetch(channel: BlockingChannel, queue: str) -> tuple[bytes, bool, dict[str, Any]]:
    """Get and ack a message; return its body, whether it was delivered before, and its headers."""
    method, properties, body = channel.basic_get(queue)
    assert method is not None and properties is not None
    channel.basic_ack(method.delivery_tag)
    return body, method.redelivered, properties.headers or {}


def identified(channel: BlockingChannel, queue: str, name: str) -> None:
    headers = {"x-deduplication-id": name}
    channel.basic_publish("", queue, name.encode(), pika.BasicProperties(delivery_mode=2, headers=headers))


def fill(channel: BlockingChannel) -> None:
    """Use a node as it is used for months."""
    channel.exchange_declare("events", "topic", durable=True)
    channel.queue_declare("classic", durable=True)
    channel.queue_bind("classic", "events", "a.#")
    channel.queue_declare("graves", durable=True, arguments=QUORUM)
    dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
    channel.queue_declare("numbers", durable=True, arguments=QUORUM | dying)
    channel.queue_declare("once", durable=True, arguments=DEDUPLICATED)
    channel.queue_declare("brief", durable=True, arguments=QUORUM | dying | {"x-message-ttl": 3_600_000})
    channel.queue_declare("busy", durable=True, arguments=QUORUM)
    publish(channel, "busy", *NUMBERS[:10])
    channel.queue_declare("single", durable=True, arguments=QUORUM | {"x-quorum-initial-group-size": 1})
    publish(channel, "classic", *NUMBERS)
    publish(channel, "numbers", *NUMBERS, b"large" * 200_000)
    publish(channel, "brief", b"still good")
    channel.basic_publish(
        "", "brief", b"due", pika.BasicProperties(delivery_mode=2, expiration="60000"), mandatory=True
    )
    for name in ("first", "second", "first"):
        identified(channel, "once", name)
    assert fetch(channel, "once")[0] == b"first"
    # The first ten are settled, and the next one is dead-lettered.
    assert take(channel, "numbers", 10) == NUMBERS[:10]
    rejected, _, _ = channel.basic_get("numbers")
    channel.basic_nack(rejected.delivery_tag, requeue=False)
    # So is this one, and the queue holds it until somebody takes it.
    until = {"x-dead-letter-exchange": "takers", "x-dead-letter-strategy": "at-least-once"}
    channel.queue_declare(
        "holding", durable=True, arguments=QUORUM | until | {"x-overflow": "reject-publish"}
    )
    publish(channel, "holding", b"bad", b"good")
    rejected, _, _ = channel.basic_get("holding")
    channel.basic_nack(rejected.delivery_tag, requeue=False)
    # One message came back three times…
    for _ in range(3):
        returned, _, _ = channel.basic_get("numbers")
        channel.basic_reject(returned.delivery_tag, requeue=True)
    # …and after two more times a client holds it.
    for _ in range(3):
        channel.basic_get("numbers")
    # Everything done before this message is on the disk when the message is confirmed.
    publish(channel, "single", b"one")


def check_numbers(channel: BlockingChannel) -> None:
    """Take the messages that `fill` has left in the queue: each in its place, with its history."""
    first, second, third, fourth = (fetch(channel, "numbers") for _ in range(4))
    assert first[:2] == (NUMBERS[11], True)
    assert first[2]["x-delivery-count"] >= 3
    for number, got in ((12, second), (13, third)):
        assert got[:2] == (NUMBERS[number], True)
        assert got[2]["x-delivery-count"] == 1
    assert fourth == (NUMBERS[14], False, {})
    assert take(channel, "numbers", 46) == [*NUMBERS[15:], b"large" * 200_000]


def test_one_node_becomes_three(empty: Ring, alone: Node) -> None:
    alone.mqctl("add_vhost", "orders")
    alone.mqctl("add_user", "ann", "secret of ann")
    alone.mqctl("set_permissions", "--vhost", "orders", "ann", "^a", ".*", "^b")
    # The node ends while it is used.
    with suppress(AMQPConnectionError), channel_of(alone) as channel:
        fill(channel)
        alone.kill()
    assert not alone.running
    empty.start(*NAMES)
    for name in NAMES:
        assert "ann" in empty.mqctl(name, "list_users")
        assert "orders" in empty.mqctl(name, "list_vhosts")
        assert "^a" in empty.mqctl(name, "list_permissions", "--vhost", "orders")
    # The topology is there at once at all nodes; the queues are where they were, and come to the others.
    with empty.channel("n3") as channel:
        channel.basic_publish("events", "a.b", b"routed", PERSISTENT, mandatory=True)
        # A client uses this queue before it has come to this node.
        assert take(channel, "busy", 5) == NUMBERS[:5]
        publish(channel, "busy", b"more")
    for queue in ("numbers", "graves", "once", "brief", "busy", "holding"):
        empty.equal(queue, *NAMES)
    assert set(empty.queue("n1", "single")["placed"]) == {"n1"}
    wait_until("leaders are spread", lambda: len({row["leader"] for row in queues(empty)}) == 3)
    with empty.channel("n2") as channel:
        # The classic queue stays on its node, and can't be used without that node.
        assert take(channel, "classic", 61) == [*NUMBERS, b"routed"]
        publish(channel, "classic", b"kept")
        # Messages that were taken once are not taken again.
        for name in ("first", "second", "third"):
            identified(channel, "once", name)
        assert take(channel, "once", 2) == [b"second", b"third"]
    # From now on any one node may go.
    empty.nodes["n1"].kill()
    with empty.channel("n3") as channel:
        check_numbers(channel)
        body, _, headers = fetch(channel, "graves")
        assert body == NUMBERS[10]
        assert (headers["x-death"][0]["queue"], headers["x-death"][0]["reason"]) == ("numbers", "rejected")
        assert take(channel, "brief", 2) == [b"still good", b"due"]
        channel.queue_declare("taker", durable=True, arguments=QUORUM)
        channel.exchange_declare("takers", "fanout", durable=True)
        channel.queue_bind("taker", "takers")
        taker = partial(channel.queue_declare, "taker", passive=True)
        wait_until("a dead letter that was held comes", lambda: taker().method.message_count == 1)
        assert take(channel, "taker", 1) == [b"bad"]
        assert take(channel, "holding", 1) == [b"good"]
        assert channel.queue_declare("numbers", passive=True).method.message_count == 0
        assert take(channel, "busy", 6) == [*NUMBERS[5:10], b"more"]
        publish(channel, "numbers", b"new")
    empty.start("n1")
    with empty.channel("n1") as channel:
        assert take(channel, "classic", 1) == [b"kept"]
        assert take(channel, "single", 1) == [b"one"]
        assert take(channel, "numbers", 1) == [b"new"]
    serves(empty, *NAMES)


def test_message_groups_pauses_and_waits_come_along(empty: Ring, alone: Node) -> None:
    with suppress(AMQPConnectionError), channel_of(alone) as channel:
        channel.queue_declare("grouped", durable=True, arguments=QUORUM | {"x-message-groups": True})
        channel.queue_declare("paused", durable=True, arguments=QUORUM)
        for number, group in enumerate("aabb"):
            properties = pika.BasicProperties(delivery_mode=2, headers={"x-group-id": group})
            channel.basic_publish("", "grouped", b"%d" % number, properties, mandatory=True)
        publish(channel, "paused", b"still there")
        arguments = QUORUM | {"x-delayed": True, "x-message-status": True}
        channel.queue_declare("later", durable=True, arguments=arguments)
        for name, delay_ms in (("now", 0), ("in an hour", 3_600_000), ("in two", 7_200_000)):
            headers = {"x-delay": delay_ms}
            properties = pika.BasicProperties(delivery_mode=2, message_id=name, headers=headers)
            channel.basic_publish("", "later", name.encode(), properties, mandatory=True)
        alone.mqctl("pause_queue", "--deliveries", "paused")
        channel.basic_get("grouped")
        alone.kill()
    empty.start(*NAMES)
    with empty.channel("n1") as one, empty.channel("n2") as two, empty.channel("n3") as three:
        (first, _, body), (_, _, other) = one.basic_get("grouped"), two.basic_get("grouped")
        assert (body, other) == (b"0", b"2")
        # Both groups are with others.
        assert three.basic_get("grouped")[0] is None
        one.basic_ack(first.delivery_tag)
        # It is answered behind the ack.
        one.queue_declare("grouped", passive=True)
        assert take(three, "grouped", 1) == [b"1"]
        assert three.basic_get("paused")[0] is None
        empty.mqctl("n2", "resume_queue", "paused")
        assert take(three, "paused", 1) == [b"still there"]
        assert take(three, "later", 1) == [b"now"]
        assert three.basic_get("later")[0] is None
    for queue in ("grouped", "later"):
        empty.equal(queue, *NAMES)
    # The other nodes have all of it.
    empty.nodes["n1"].kill()
    assert "acknowledged" in empty.mqctl("n2", "message_status", "now")
    empty.mqctl("n3", "cancel_messages", "later", "in an hour")
    with empty.channel("n2") as channel, pytest.raises(ChannelClosedByBroker, match="not empty"):
        channel.queue_delete("later", if_empty=True)
    empty.mqctl("n3", "cancel_messages", "later", "in two")
    with empty.channel("n2") as channel:
        channel.queue_delete("later", if_empty=True)


def queues(ring: Ring) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = ring.get("n1", "/api/cluster/queues")
    return told


def test_killed_again_and_again(empty: Ring, alone: Node) -> None:
    """Wherever the node ends, it continues at the next start: with the copies, with the turn, or as a
    member.
    """
    bodies = [b"%d " % number + b"x" * 500_000 for number in range(60)]
    with channel_of(alone) as channel:
        channel.queue_declare("heavy", durable=True, arguments=QUORUM)
        channel.queue_declare("light", durable=True)
        publish(channel, "heavy", *bodies)
        publish(channel, "light", *NUMBERS)
    assert alone.stop() == 0
    copy(alone.data, empty.directory / "backup")
    node = empty.nodes["n1"]
    empty.nodes["n2"].launch()

    def killed_when_it_says(words: str) -> None:
        before = node.log().count(words)
        node.launch()
        wait_until(words, lambda: node.log().count(words) > before, state=node.log)
        node.kill()

    killed_when_it_says("link to n2 up")
    # As long as a node is missing, this one may go back to standing alone.
    alone.start()
    with channel_of(alone) as channel:
        assert channel.queue_declare("heavy", passive=True).method.message_count == len(bodies)
    assert alone.stop() == 0
    # An operator who puts the copy back has lost nothing that was promised to the others.
    copy(empty.directory / "backup", node.data)
    empty.nodes["n3"].launch()
    killed_when_it_says("the cluster begins with the data of this node")
    # Only a member reads its directory, whether it became a member just now or earlier.
    killed_when_it_says("recovered 2 queues")
    node.launch()
    for name in NAMES:
        empty.nodes[name].ready()
    empty.formed()
    empty.equal("heavy", *NAMES)
    node.kill()
    with empty.channel("n2") as channel:
        assert take(channel, "heavy", 60) == bodies
    empty.start("n1")
    with empty.channel("n2") as channel:
        assert take(channel, "light", 60) == NUMBERS


def test_two_that_stood_alone(empty: Ring, alone: Node) -> None:
    """Neither is taken; both nodes log the reason, and both keep their data."""
    with Node(empty.directory / "n2", "--disk-free-min-bytes", "1MiB") as other:
        for node in (alone, other):
            with channel_of(node) as channel:
                channel.queue_declare("q", durable=True, arguments=QUORUM)
                publish(channel, "q", node.data.parent.name.encode())
            assert node.stop() == 0
    for name in NAMES:
        empty.nodes[name].launch()
    both = [f"'{name}' ({empty.nodes[name].data})" for name in ("n1", "n2")]
    for name in ("n1", "n2"):
        ended = empty.nodes[name]
        wait_until(f"{name} ends", lambda ended=ended: not ended.running, state=ended.log)
        assert ended.stop() == 1
        last = ended.log().splitlines()[-1]
        assert last.startswith("mqd: nodes ") and all(words in last for words in both)
        assert "Start all other nodes with empty data directories" in last
        assert "Traceback" not in ended.log()
    says(empty.nodes["n3"], "ERROR", *both)
    assert empty.nodes["n3"].running
    # Both nodes are as before.
    other.start()
    with channel_of(other) as channel:
        assert take(channel, "q", 1) == [b"n2"]
    assert other.stop() == 0
    # As its log line says.
    shutil.rmtree(other.data)
    empty.nodes["n1"].launch()
    empty.nodes["n2"].launch()
    for name in NAMES:
        empty.nodes[name].ready()
    empty.formed()
    with empty.channel("n3") as channel:
        assert take(channel, "q", 1) == [b"n1"]


def test_data_comes_too_late(ring: Ring, tmp_path: Path) -> None:
    """A cluster that is there takes in empty nodes only."""
    home = tmp_path / "n4"
    home.mkdir()
    with Node(home, "--disk-free-min-bytes", "1MiB") as alone:
        with channel_of(alone) as channel:
            channel.queue_declare("own", durable=True)
            publish(channel, "own", b"1")
        assert alone.stop() == 0
    (port,) = free_ports(1)
    ring.mqctl("n1", "cluster", "join", "n4", f"{HOST}:{port}")
    joining = Node(
        home,
        *("--node", "n4", "--peers", f"{ring.peers()},n4={HOST}:{port}"),
        *("--cluster-secret-file", str(ring.secret), "--disk-free-min-bytes", "1MiB"),
    )
    try:
        joining.launch()
        wait_until("it ends", lambda: not joining.running, state=joining.log)
        assert joining.stop() == 1
    finally:
        joining.kill()
    last = joining.log().splitlines()[-1]
    assert last.startswith("mqd: node 'n4' has run as a single node and has its own data")
    assert "accepts only empty nodes" in last and "Traceback" not in joining.log()
    ring.mqctl("n1", "cluster", "forget", "n4")
    serves(ring, *NAMES)
    with Node(home, "--disk-free-min-bytes", "1MiB") as alone, channel_of(alone) as channel:
        assert take(channel, "own", 1) == [b"1"]
