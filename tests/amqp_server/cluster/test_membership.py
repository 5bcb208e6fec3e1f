"""Nodes come and go while messages flow; and the cluster as operators see it."""

from __future__ import annotations

import threading

import pytest
from pika.exceptions import ChannelClosedByBroker

from amqp_server.mqctl.client import UNAVAILABLE, Failure
from conformance_tests.ports import free_ports
from tests.amqp_server.cluster.ring import HOST, NAMES, PERSISTENT, QUORUM, Ring, publish, take
from tests.reliability.node import wait_until


class Flow(threading.Thread):
    """Publishes numbers to a queue, each confirmed, and reads them as they come."""

    def __init__(self, ring: Ring, queue: str, to: str, at: str) -> None:
        super().__init__(daemon=True)
        self._ring, self._queue, self._to, self._at = ring, queue, to, at
        self._stop_asked = threading.Event()
        self.sent = 0
        self.received: list[int] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with self._ring.channel(self._to) as writer, self._ring.channel(self._at) as reader:
                reader.basic_qos(prefetch_count=10)
                reader.basic_consume(self._queue, self._take)
                while not self._stop_asked.is_set() or len(self.received) < self.sent:
                    if not self._stop_asked.is_set():
                        writer.basic_publish("", self._queue, b"%d" % self.sent, PERSISTENT, mandatory=True)
                        self.sent += 1
                    reader.connection.process_data_events(0)
        except Exception as error:  # noqa: BLE001  # the test shows it
            self.error = error

    def _take(self, channel: object, method: object, properties: object, body: bytes) -> None:
        self.received.append(int(body))
        channel.basic_ack(method.delivery_tag)  # type: ignore[attr-defined]

    def __enter__(self) -> Flow:
        self.start()
        self.moved()
        return self

    def moved(self) -> None:
        """Wait until some more messages have come through."""
        goal = len(self.received) + 20
        wait_until(
            "messages flow",
            lambda: self.error or len(self.received) >= goal,
            state=lambda: str(self.error),
        )
        assert self.error is None, self.error

    def __exit__(self, *_: object) -> None:
        self._stop_asked.set()
        self.join(60)
        assert self.error is None, self.error
        assert not self.is_alive(), (self.sent, len(self.received))
        assert self.received == list(range(self.sent))


def members(ring: Ring, queue: str) -> set[str]:
    return set(ring.queue("n1", queue)["placed"])


def test_a_fourth_node_comes_and_an_old_one_leaves(ring: Ring) -> None:
    with ring.channel("n1") as channel:
        for queue in ("flow", "still"):
            channel.queue_declare(queue, durable=True, arguments=QUORUM)
        channel.queue_declare("grows", durable=True, arguments=QUORUM | {"x-quorum-target-group-size": 4})
        channel.queue_declare("two", durable=True, arguments=QUORUM | {"x-quorum-initial-group-size": 2})
        publish(channel, "still", *(b"%d" % number for number in range(50)))
        publish(channel, "grows", b"g")
        publish(channel, "two", b"t")
    (port,) = free_ports(1)
    ring.links["n4"] = port
    node = ring.place("n4")
    with Flow(ring, "flow", "n2", "n3") as flow:
        ring.mqctl("n2", "cluster", "join", "n4", f"{HOST}:{port}")
        ring.names.append("n4")
        ring.start("n4")
        assert "n4\tup" in ring.mqctl("n3", "cluster", "status")
        wait_until("it grows by itself", lambda: members(ring, "grows") == {*ring.names})
        assert "queues are growing" in ring.mqctl("n1", "cluster", "grow", "n4")
        ring.equal("still", *ring.names)
        flow.moved()
        # A client of n4 can use all queues.
        with ring.channel("n4") as channel:
            assert take(channel, "grows", 1) == [b"g"]
            channel.queue_declare("home", durable=True)
            publish(channel, "home", b"h")
        listed = {
            line.split("\t")[1]: line.split("\t")
            for line in ring.mqctl("n4", "-q", "cluster", "queues").splitlines()
        }
        assert {*listed["flow"][3].split()} == {*listed["flow"][4].split()} == {*ring.names}
        for queue in ("flow", "still", "two"):
            ring.mqctl("n1", "cluster", "transfer-leader", queue, "n4")
            wait_until("n4 leads", lambda queue=queue: ring.leader(queue) == "n4")
        assert ring.status("n4")["groups"]["n4"] >= 3
        assert "leaders are moving" in ring.mqctl("n1", "cluster", "rebalance")
        wait_until("leaders are spread", lambda: len(ring.status("n4")["groups"]) == 4)
        with pytest.raises(Failure, match="node 'n9' is not a member of queue 'flow'"):
            ring.mqctl("n1", "cluster", "transfer-leader", "flow", "n9")
        ring.mqctl("n1", "cluster", "transfer-leader", "two", "n4")
        wait_until("n4 leads", lambda: ring.leader("two") == "n4")
        flow.moved()
        # The node has a queue that no other node has.
        with pytest.raises(Failure, match="queue 'home' in vhost '/' has its only copy on node 'n4'"):
            ring.mqctl("n4", "cluster", "leave")
        with pytest.raises(Failure, match="node n4 is up: stop it first"):
            ring.mqctl("n1", "cluster", "forget", "n4")
        assert ring.ask("DELETE", "n1", "/api/cluster/nodes/n4")[0] == 400
        with ring.channel("n1") as channel:
            assert take(channel, "home", 1) == [b"h"]
            channel.queue_delete("home")
        ring.mqctl("n4", "cluster", "leave")
        ring.names.remove("n4")
        flow.moved()
    wait_until("it stops by itself", lambda: not node.running)
    assert node.stop() == 1
    assert "CRITICAL mqd.cluster: this node was removed from its cluster" in node.log()
    assert [told["name"] for told in ring.status("n1")["nodes"]] == [*NAMES]
    assert all("n4" not in members(ring, queue) for queue in ("flow", "still", "grows", "two"))
    # A new start does not bring the node back either.
    node.launch()
    wait_until("its start ends", lambda: not node.running)
    assert node.stop() == 1
    assert node.log().splitlines()[-1].endswith("start this node with an empty data directory")
    assert "Traceback" not in node.log()
    del ring.nodes["n4"], ring.links["n4"]
    with ring.channel("n2") as channel:
        assert take(channel, "still", 50) == [b"%d" % number for number in range(50)]
        assert take(channel, "two", 1) == [b"t"]
        for queue in ("flow", "still", "grows", "two"):
            channel.queue_delete(queue)


def test_shrunk_to_one_and_grown_again(ring: Ring) -> None:
    """This also holds where the node that goes leads, and where the one that stays has no majority without
    it.
    """
    with ring.channel("n1") as channel:
        channel.queue_declare("small", durable=True, arguments=QUORUM)
        publish(channel, "small", b"1")
        for leaving in ("n2", "n3"):
            ring.mqctl("n1", "cluster", "transfer-leader", "small", leaving)
            wait_until("it leads", lambda leaving=leaving: ring.leader("small") == leaving)
            ring.mqctl("n1", "cluster", "shrink", leaving)
            publish(channel, "small", leaving.encode())
        assert members(ring, "small") == {"n1"}
        ring.equal("small", "n1")
        for coming in ("n3", "n2"):
            ring.mqctl("n1", "cluster", "grow", coming)
        ring.equal("small", *NAMES)
        assert take(channel, "small", 3) == [b"1", b"n2", b"n3"]
        channel.queue_delete("small")


def test_a_node_that_moves_has_its_new_address_in_the_status(empty: Ring) -> None:
    ring = empty
    ring.start(*ring.names)
    before = dict(ring.links)
    (ring.links["n2"],) = free_ports(1)
    for name in ring.names:
        assert ring.nodes[name].stop() == 0
        ring.place(name)
        ring.start(name)
    assert ring.links["n2"] != before["n2"]

    def addresses(name: str) -> dict[str, str]:
        return {node["name"]: node["address"] for node in ring.status(name)["nodes"]}

    wanted = {name: f"{HOST}:{port}" for name, port in ring.links.items()}
    wait_until(
        "all nodes know the new address",
        lambda: all(addresses(name) == wanted for name in ring.names),
        state=ring.state,
    )


def test_a_dead_node_is_forgotten(empty: Ring) -> None:
    ring = empty
    ring.start(*NAMES)
    with ring.channel("n3") as channel:
        channel.queue_declare("kept", durable=True, arguments=QUORUM)
        channel.queue_declare("lost", durable=True)
        channel.queue_declare("fleeting")
        publish(channel, "kept", b"1")
    node = ring.nodes["n3"]
    node.kill()
    ring.names.remove("n3")
    wait_until(
        "n3 is seen to be down",
        lambda: not any(told["running"] for told in ring.status("n1")["nodes"] if told["name"] == "n3"),
    )
    ring.mqctl("n1", "cluster", "forget", "n3")
    with pytest.raises(Failure, match="no node 'n3' in the cluster") as failed:
        ring.mqctl("n2", "cluster", "forget", "n3")
    assert failed.value.exit_code == UNAVAILABLE
    with ring.channel("n1") as channel:
        for queue in ("lost", "fleeting"):
            with (
                ring.channel("n2") as other,
                pytest.raises(ChannelClosedByBroker, match="NOT_FOUND - no queue"),
            ):
                other.queue_declare(queue, passive=True)
        channel.queue_declare("lost", durable=True)
        assert take(channel, "kept", 1) == [b"1"]
    # When the removed node comes back, the others tell it so, and it stops by itself.
    node.launch()
    wait_until("it is told", lambda: not node.running)
    assert node.stop() == 1
    assert "CRITICAL mqd.cluster: this node was removed from its cluster" in node.log()
    # With an empty directory the node may join like any other.
    ring.place("n3")
    ring.mqctl("n1", "cluster", "join", "n3", f"{HOST}:{ring.links['n3']}")
    ring.names.append("n3")
    _wipe(ring, "n3")
    ring.start("n3")
    ring.mqctl("n1", "cluster", "grow", "n3")
    ring.equal("kept", *NAMES)


def _wipe(ring: Ring, name: str) -> None:
    ring.nodes[name].data.rename(ring.directory / f"{name}-before")
