"""Consumer groups on three real nodes: members on any node, nodes that are killed, and the group as an
operator sees it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pika
import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker

from amqp_server.mqctl.client import Failure
from conformance_tests.patience import PATIENCE_S
from tests.amqp_server.cluster.conftest import OPTIONS
from tests.amqp_server.cluster.ring import NAMES, PERSISTENT, Ring
from tests.reliability.node import Node, wait_until

STREAM = {"x-queue-type": "stream"}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    with Ring(tmp_path_factory.mktemp("groups"), *OPTIONS) as started:
        yield started
        for name, node in started.nodes.items():
            assert "Traceback" not in node.log(), (name, node.log()[-6000:])


@pytest.fixture
def ring(three: Ring) -> Ring:
    three.heal()
    return three


def declare(ring: Ring, name: str, copies: int = 3, **arguments: str | int) -> str:
    """Declare a stream on this many nodes and a group over it; return the name of the group."""
    table: dict[str, str | int] = {
        "x-queue-type": "stream-group",
        "x-stream": name,
        "x-stream-offset": "first",
    }
    table |= {key.replace("_", "-"): value for key, value in arguments.items()}
    with ring.channel("n1") as channel:
        channel.queue_declare(name, durable=True, arguments=STREAM | {"x-initial-cluster-size": copies})
        channel.queue_declare(f"{name}-group", durable=True, arguments=table)
    return f"{name}-group"


def append(ring: Ring, at: str, stream: str, low: int, stop: int) -> None:
    with ring.channel(at, confirm=False) as channel:
        channel.tx_select()
        for number in range(low, stop):
            channel.basic_publish("", stream, b"%d" % number, PERSISTENT)
        channel.tx_commit()


Taken = tuple[int, int, bool, str]


def take(
    ring: Ring, at: str, group: str, count: int, *, ack: bool = True, prefetch: int = 100
) -> list[Taken]:
    """Consume this many messages at a node; return offset, number, flag and the stream of each."""
    found: list[Taken] = []
    with ring.channel(at, confirm=False) as channel:
        channel.basic_qos(prefetch_count=prefetch)
        for method, properties, body in channel.consume(group, inactivity_timeout=PATIENCE_S):
            assert method is not None, f"{at} has given {len(found)} of {count} messages: {ring.logs()}"
            headers = properties.headers
            found.append((headers["x-stream-offset"], int(body), method.redelivered, headers["x-stream"]))
            if ack:
                channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                break
        if ack:
            channel.cancel()
    return found


def as_new(stream: str, low: int, stop: int) -> list[Taken]:
    return [(number, number, False, stream) for number in range(low, stop)]


def test_members_are_clients_of_any_node(ring: Ring) -> None:
    group = declare(ring, "any")
    for place, name in enumerate(NAMES):
        append(ring, NAMES[place - 1], "any", 20 * place, 20 * place + 20)
        assert take(ring, name, group, 20) == as_new("any", 20 * place, 20 * place + 20)
    with ring.channel("n2") as channel:
        assert channel.basic_get(group)[0] is None
    ring.equal(group, *NAMES)


def test_what_a_dead_node_held_comes_to_another_one_flagged(ring: Ring) -> None:
    group = declare(ring, "dead")
    append(ring, "n1", "dead", 0, 30)
    leader = ring.leader(group)
    tags: list[int] = []
    # The connection breaks, and pika raises wherever it is at that moment.
    with suppress(AMQPError), ring.connection(leader) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        for method, _, _ in channel.consume(group, inactivity_timeout=PATIENCE_S):
            tags.append(method.delivery_tag)
            if len(tags) == 10:
                break
        channel.tx_select()
        channel.basic_ack(tags[3], multiple=True)
        channel.tx_commit()
        # Messages are sent ahead while there is room for them.
        ring.nodes[leader].kill()
    assert not ring.nodes[leader].running
    other = next(name for name in NAMES if name != leader)
    found = take(ring, other, group, 26)
    assert [(offset, number) for offset, number, _, _ in found] == [(each, each) for each in range(4, 30)]
    flags = [flag for _, _, flag, _ in found]
    assert all(flags[:6]) and flags == sorted(flags, reverse=True)


class Worker(threading.Thread):
    """Consumes at a node until it has seen the last message; it ignores a broken connection."""

    def __init__(self, ring: Ring, at: str, group: str) -> None:
        super().__init__(daemon=True)
        self._ring, self._at, self._group = ring, at, group
        self.ends = threading.Event()
        self.found: list[tuple[int, bool]] = []
        #: Partition and offset of each.
        self.places: list[tuple[str, int]] = []
        self.acked: list[int] = []

    def run(self) -> None:
        with suppress(AMQPError, OSError), self._ring.connection(self._at) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=50)
            for method, properties, body in channel.consume(self._group, inactivity_timeout=0.2):
                if method is not None:
                    headers = properties.headers
                    self.places.append((headers["x-stream"], headers["x-stream-offset"]))
                    self.found.append((int(body), method.redelivered))
                    channel.basic_ack(method.delivery_tag)
                    self.acked.append(int(body))
                if self.ends.is_set():
                    break


def test_a_member_notices_nothing_of_a_change_of_the_leader(ring: Ring) -> None:
    group = declare(ring, "kept")
    leader = ring.leader(group)
    at = next(name for name in NAMES if name != leader)
    worker = Worker(ring, at, group)
    worker.start()
    append(ring, at, "kept", 0, 500)
    wait_until("it has some", lambda: len(worker.found) >= 500, state=lambda: str(len(worker.found)))
    ring.nodes[leader].kill()
    append(ring, at, "kept", 500, 1500)
    wait_until("it has all", lambda: len(worker.found) >= 1500, state=lambda: str(len(worker.found)))
    worker.ends.set()
    worker.join(PATIENCE_S)
    assert worker.found == [(number, False) for number in range(1500)]


def test_members_share_the_partitions_of_a_super_stream(ring: Ring) -> None:
    """Each partition has its own order, and the remaining members take over the partitions of a node that
    dies.
    """
    table = {"x-queue-type": "stream-group", "x-stream": "parts", "x-stream-offset": "first"}
    with ring.channel("n1") as channel:
        channel.exchange_declare("parts", "x-super-stream", durable=True, arguments={"x-partitions": 4})
        channel.queue_declare("parts-group", durable=True, arguments=table)
    leader = ring.leader("parts-group")
    workers = {name: Worker(ring, name, "parts-group") for name in NAMES}
    for worker in workers.values():
        worker.start()

    def publish(at: str, low: int, stop: int) -> None:
        with ring.channel(at, confirm=False) as channel:
            channel.tx_select()
            for number in range(low, stop):
                channel.basic_publish("parts", f"key {number % 64}", b"%d" % number, PERSISTENT)
            channel.tx_commit()

    def have(stop: int) -> bool:
        return {number for worker in workers.values() for number, _ in worker.found} == set(range(stop))

    def members() -> list[object]:
        found: list[object] = ring.get("n1", "/api/groups/%2F/parts-group/members")
        return found

    def state() -> str:
        return str({name: len(worker.found) for name, worker in workers.items()})

    wait_until("all are members", lambda: len(members()) == 3, state=lambda: str(members()))
    publish("n2", 0, 600)
    wait_until("they have all", lambda: have(600), state=state)
    assert all(worker.found for worker in workers.values()), state()
    assert sum(len(worker.found) for worker in workers.values()) == 600
    ring.nodes[leader].kill()
    publish(next(name for name in NAMES if name != leader), 600, 900)
    wait_until("the others have the rest", lambda: have(900), state=state)
    for worker in workers.values():
        worker.ends.set()
        worker.join(PATIENCE_S)
        seen = [place for place, (_, flag) in zip(worker.places, worker.found, strict=True) if not flag]
        for part in range(4):
            offsets = [offset for name, offset in seen if name == f"parts-{part}"]
            assert offsets == sorted(set(offsets))


def test_a_cluster_that_lost_its_power_goes_on_where_the_group_was(ring: Ring) -> None:
    group = declare(ring, "power")
    append(ring, "n2", "power", 0, 40)
    assert take(ring, "n2", group, 25, prefetch=1) == as_new("power", 0, 25)
    for name in NAMES:
        ring.nodes[name].kill()
    ring.start(*NAMES)
    found = take(ring, "n3", group, 15)
    assert [number for _, number, _, _ in found] == [*range(25, 40)]


def test_members_read_a_stream_that_their_nodes_do_not_have(ring: Ring) -> None:
    group = declare(ring, "few", copies=1)
    assert len(ring.queue("n1", "few")["placed"]) == 1
    for place, name in enumerate(NAMES):
        append(ring, NAMES[place - 1], "few", 20 * place, 20 * place + 20)
        assert take(ring, name, group, 20) == as_new("few", 20 * place, 20 * place + 20)


def test_rejected_messages_go_where_dead_letters_go(ring: Ring) -> None:
    with ring.channel("n1") as channel:
        channel.queue_declare("dying-dead", durable=True, arguments={"x-queue-type": "quorum"})
    group = declare(ring, "dying", x_dead_letter_exchange="", x_dead_letter_routing_key="dying-dead")
    append(ring, "n1", "dying", 0, 4)
    with ring.channel("n3", confirm=False) as channel:
        for number in range(4):
            method = None
            while method is None:
                method, _, body = channel.basic_get(group)
            assert int(body) == number
            if number % 2:
                channel.basic_nack(method.delivery_tag, requeue=False)
            else:
                channel.basic_ack(method.delivery_tag)
    dead: list[int] = []

    def gets() -> bool:
        with ring.channel("n2", confirm=False) as channel:
            method, _, body = channel.basic_get("dying-dead", auto_ack=True)
            if method is not None:
                dead.append(int(body))
        return len(dead) == 2

    wait_until("the dead letters are there", gets, state=lambda: str(dead))
    assert dead == [1, 3]


def test_a_stuck_member_is_cancelled_and_another_one_goes_on(ring: Ring) -> None:
    group = declare(ring, "stuck", x_consumer_timeout=1000)
    append(ring, "n1", "stuck", 0, 5)
    cancelled = threading.Event()
    with ring.connection("n2") as connection:
        channel = connection.channel()
        channel.add_on_cancel_callback(lambda frame: cancelled.set())
        channel.basic_qos(prefetch_count=2)
        channel.basic_consume(group, lambda *delivery: None)
        for _ in range(100):
            connection.process_data_events(0.1)
            if cancelled.is_set():
                break
        assert cancelled.is_set()
        found = take(ring, "n3", group, 5)
    assert [(number, flag) for _, number, flag, _ in found] == [
        (0, True),
        (1, True),
        (2, False),
        (3, False),
        (4, False),
    ]


def test_an_operator_sees_and_moves_it(ring: Ring) -> None:
    group = declare(ring, "seen")
    append(ring, "n1", "seen", 0, 20)
    assert take(ring, "n1", group, 20) == as_new("seen", 0, 20)
    for name in NAMES:
        wait_until(
            "the lag is known",
            lambda name=name: ring.get(name, f"/api/groups/%2F/{group}")["messages"] == 0,
        )
        told = ring.get(name, f"/api/groups/%2F/{group}")
        assert [each["committed_offset"] for each in told["partition_details"]] == [20]
    ring.mqctl("n2", "reset_group", group, "--to", "5")
    found = take(ring, "n3", group, 15)
    assert [number for _, number, _, _ in found] == [*range(5, 20)]
    with ring.connection("n1") as connection:
        channel = connection.channel()
        channel.basic_consume(group, lambda *delivery: None)
        wait_until("it is a member", lambda: ring.get("n2", f"/api/groups/%2F/{group}/members"))
        with pytest.raises(Failure, match="members"):
            ring.mqctl("n2", "reset_group", group, "--to", "first")
    with ring.channel("n1") as channel:
        append(ring, "n1", "seen", 20, 30)
        assert channel.queue_purge(group).method.message_count == 10
        channel.queue_delete(group)
    assert group not in json.dumps(ring.get("n3", "/api/groups"))


def test_each_node_tells_the_connections_of_all_members(ring: Ring) -> None:
    groups = [declare(ring, "named"), declare(ring, "named-too")]
    opened = {name: ring.connect(name) for name in NAMES}
    for connection in opened.values():
        for group in groups:
            connection.channel().basic_consume(group, lambda *delivery: None)
    wanted = sorted((group, f"127.0.0.1:{ring.nodes[name].port}") for group in groups for name in NAMES)

    def told(path: str, at: str) -> list[tuple[str, str]]:
        rows = ring.get(at, path)
        return sorted(
            (row["group"], row["connection"].rpartition(" -> ")[2]) for row in rows if row["group"] in groups
        )

    for at in NAMES:
        # A node may apply the last attach a moment later than the others.
        wait_until(
            "all members are told", lambda at=at: told("/api/group-members", at) == wanted, state=lambda: ""
        )
        assert told(f"/api/groups/%2F/{groups[0]}/members", at) == wanted[:3]
        lines = ring.mqctl(at, "-q", "list_group_members").splitlines()
        assert sum(line.split("\t")[0] in groups for line in lines) == 6
    for connection in opened.values():
        connection.close()


def test_a_node_that_stood_alone_brings_its_groups(tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = Ring(tmp_path_factory.mktemp("brought"), *OPTIONS)
    try:
        with Node(empty.directory / "n1", "--disk-free-min-bytes", "1MiB") as alone:
            where = pika.ConnectionParameters("127.0.0.1", alone.port, heartbeat=0)
            connection = pika.BlockingConnection(where)
            channel = connection.channel()
            channel.queue_declare("brought", durable=True, arguments=STREAM)
            table = {"x-queue-type": "stream-group", "x-stream": "brought", "x-stream-offset": "first"}
            channel.queue_declare("g", durable=True, arguments=table)
            channel.tx_select()
            for number in range(30):
                channel.basic_publish("", "brought", b"%d" % number, PERSISTENT)
            channel.tx_commit()
            channel.basic_qos(prefetch_count=10)
            tags = []
            for method, _, _ in channel.consume("g", inactivity_timeout=PATIENCE_S):
                tags.append(method.delivery_tag)
                if len(tags) == 10:
                    break
            channel.basic_ack(tags[4], multiple=True)
            channel.exchange_declare("parts", "x-super-stream", durable=True, arguments={"x-partitions": 3})
            channel.queue_declare("h", durable=True, arguments=table | {"x-stream": "parts"})
            for number in range(60):
                channel.basic_publish("parts", f"key {number}", b"%d" % number, PERSISTENT)
            channel.tx_commit()
            acked = set()
            for _ in range(20):
                method, _, body = channel.basic_get("h")
                channel.basic_ack(method.delivery_tag)
                acked.add(int(body))
            channel.tx_commit()
            alone.kill()
        empty.start(*NAMES)
        found = take(empty, "n2", "g", 25)
        assert [number for _, number, _, _ in found] == [*range(5, 30)]
        assert all(flag for _, _, flag, _ in found[:5])
        left = take(empty, "n3", "h", 40)
        assert {number for _, number, _, _ in left} == set(range(60)) - acked and len(acked) == 20
        for group in ("g", "h"):
            wait_until("all keep it", lambda group=group: len(empty.queue("n1", group)["placed"]) == 3)
            empty.equal(group, *NAMES)
    finally:
        empty.close()


def test_a_member_may_not_read_what_is_bound_later(ring: Ring) -> None:
    """The member is on another node than the client that binds, and than the one that changes permissions."""
    arguments = {"x-super-stream": True}
    order = {"x-stream-partition-order": 0}
    ring.ask("PUT", "n1", "/api/users/low", {"password": "low", "tags": ""})
    ring.ask(
        "PUT", "n1", "/api/permissions/%2F/low", {"configure": "^low", "write": "^low", "read": "^(low|open)"}
    )
    login = pika.PlainCredentials("low", "low")
    with ring.channel("n3") as owner, ring.connection("n2", credentials=login) as connection:
        owner.exchange_declare("lowx", "direct", durable=True, arguments=arguments)
        for name in ("open", "lows", "closed"):
            owner.queue_declare(name, durable=True, arguments=STREAM)
        owner.queue_bind("lows", "lowx", "0", arguments=order)
        group = {"x-queue-type": "stream-group", "x-stream": "lowx", "x-stream-offset": "first"}
        owner.queue_declare("lowg", durable=True, arguments=group)
        for name in ("open", "closed"):
            owner.basic_publish("", name, name.encode(), PERSISTENT)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        cancelled: list[str] = []
        channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        bodies: list[bytes] = []

        def until(what: str, reached: Callable[[], bool]) -> None:
            def looked() -> bool:
                connection.process_data_events(0.05)
                return reached()

            wait_until(what, looked, state=ring.state)

        channel.basic_consume("lowg", lambda *it: bodies.append(it[3]), consumer_tag="member")
        owner.queue_bind("open", "lowx", "1", arguments=order)
        until("what the member may read comes", lambda: bodies == [b"open"])
        assert not cancelled
        owner.queue_bind("closed", "lowx", "2", arguments=order)
        until("the member is cancelled", lambda: cancelled == ["member"])
        assert bodies == [b"open"]
        with pytest.raises(ChannelClosedByBroker, match="access to queue 'closed' in vhost '/' refused"):
            channel.basic_consume("lowg", lambda *it: None)
        # Without that stream it may become a member again, until its permission changes.
        owner.queue_unbind("closed", "lowx", "2", arguments=order)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        channel.basic_consume("lowg", lambda *it: None, consumer_tag="again")
        ring.ask(
            "PUT", "n1", "/api/permissions/%2F/low", {"configure": "^low", "write": "^low", "read": "^low"}
        )
        until("the member is cancelled", lambda: cancelled == ["member", "again"])
