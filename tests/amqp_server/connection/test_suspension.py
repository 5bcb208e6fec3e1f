"""Methods whose answers come later: after a majority of the nodes has agreed, or from a queue on another
node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from pamqp import base, commands

from amqp_server.broker.broker import Broker
from amqp_server.broker.declared.operations import DeclareQueue, DeleteQueue, Operation
from amqp_server.broker.hosts import LocalHosts
from amqp_server.broker.topology.queue import Queue
from amqp_server.broker.topology.replication import Done, LocalReplication
from amqp_server.connection.state import State
from amqp_server.wire import frames
from quorum_queue.local_host import LocalHost
from quorum_queue.machine.machine import Machine
from quorum_queue.ports import Host, Refused

from .node import Delivery, MemoryNode, Peer, exchange_parts


class LateReplication(LocalReplication):
    """Applies proposals when the test says so."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.config.node)
        self.topology = broker.topology
        self.late = True
        self.proposed: list[tuple[Operation, Done | None]] = []

    def propose(self, operation: Operation, done: Done | None = None) -> None:
        if self.late:
            self.proposed.append((operation, done))
        else:
            super().propose(operation, done)

    def apply(self) -> None:
        """Apply all proposals so far, in order."""
        proposed, self.proposed = self.proposed, []
        for operation, done in proposed:
            super().propose(operation, done)

    def refuse(self) -> None:
        proposed, self.proposed = self.proposed, []
        for _, done in proposed:
            if done is not None:
                done(Refused("no majority of the cluster's nodes is reachable"))


class LateHost:
    """A queue on another node: it answers requests when the test says so."""

    def __init__(self, host: LocalHost, waiting: list[Callable[[], None]]) -> None:
        self._host = host
        self._waiting = waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    @property
    def pending(self) -> list[Any]:
        return self._host.pending

    def barrier(self, done: Callable[..., None]) -> None:
        self._waiting.append(lambda: self._host.barrier(done))

    def catch_up(self, done: Callable[..., None]) -> None:
        self._waiting.append(lambda: self._host.catch_up(done))

    def seal(self, condition: int, done: Any) -> None:
        self._waiting.append(lambda: self._host.seal(condition, done))

    def attach(self, consumer: Any, done: Any) -> None:
        self._waiting.append(lambda: self._host.attach(consumer, done))

    def get(self, consumer: Any, done: Any) -> None:
        self._waiting.append(lambda: self._host.get(consumer, done))

    def purge(self, done: Any) -> None:
        self._waiting.append(lambda: self._host.purge(done))


class LateHosts(LocalHosts):
    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.services, broker.metadata)
        self._turn = broker.turn
        self.waiting: list[Callable[[], None]] = []

    def make(self, queue: Queue, machine: Machine | None) -> Host:
        return cast(Host, LateHost(self.local(queue, machine), self.waiting))

    def answer(self) -> None:
        """Answer all requests so far."""
        waiting, self.waiting[:] = list(self.waiting), []
        for answer in waiting:
            self._turn.run(answer)


class Cluster(MemoryNode):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.log = LateReplication(self.broker)
        exchange_parts(self.broker, replication=self.log)

    def apply(self) -> None:
        self.turn.run(self.log.apply)
        self.sync()

    def remote_queues(self) -> LateHosts:
        """Queues declared from now on live on another node; the topology answers at once again."""
        self.log.late = False
        hosts = LateHosts(self.broker)
        exchange_parts(self.broker, hosts=hosts)
        return hosts


@pytest.fixture
def node() -> Iterator[Cluster]:
    found = Cluster()
    yield found
    for peer in found.peers:
        found.turn.run(peer.session.lost)
    assert not len(found.broker.sessions)


@pytest.fixture
def peer(node: Cluster) -> Peer:
    found = node.peer()
    found.call(1, commands.Channel.Open())
    return found


def kinds(answers: list[tuple[int, Any]]) -> list[type]:
    return [type(answer) for _, answer in answers]


def close_of(answers: list[tuple[int, Any]]) -> commands.Channel.Close:
    (close,) = [answer for _, answer in answers if isinstance(answer, commands.Channel.Close)]
    return close


def declare(name: str = "q", **fields: Any) -> commands.Queue.Declare:
    return commands.Queue.Declare(queue=name, **fields)


# -- the topology


def test_nothing_behind_a_declare_is_handled_before_it_is_applied(node: Cluster, peer: Peer) -> None:
    bind = commands.Queue.Bind(queue="q", exchange="amq.fanout")
    publish = frames.method_frame(1, commands.Basic.Publish(exchange="", routing_key="q"))
    content = bytes.fromhex("020001 0000000e 003c 0000 0000000000000000 0000 ce".replace(" ", ""))
    peer.send(frames.method_frame(1, declare()), frames.method_frame(1, bind), publish, content)
    assert peer.answers() == []
    assert [type(operation) for operation, _ in node.log.proposed] == [DeclareQueue]
    node.apply()
    assert kinds(peer.answers()) == [commands.Queue.DeclareOk]
    assert node.contents() == {"q": []}
    node.apply()
    assert kinds(peer.answers()) == [commands.Queue.BindOk]
    assert len(node.contents()["q"]) == 1
    assert peer.session.suspended is None


def test_other_connections_go_on(node: Cluster, peer: Peer) -> None:
    peer.call(1, declare())
    other = node.peer()
    assert kinds(other.call(1, commands.Channel.Open(), commands.Basic.Qos())) == [
        commands.Channel.OpenOk,
        commands.Basic.QosOk,
    ]


def test_a_race_that_was_lost_is_a_difference(node: Cluster, peer: Peer) -> None:
    other = node.peer()
    other.call(1, commands.Channel.Open())
    peer.call(1, declare(durable=True))
    other.call(1, declare())
    node.apply()
    assert kinds(peer.answers()) == [commands.Queue.DeclareOk]
    close = close_of(other.answers())
    assert (close.reply_code, close.class_id, close.method_id) == (406, 50, 10)
    assert "inequivalent arg 'durable' for queue 'q' in vhost '/'" in close.reply_text
    assert other.session.state is State.RUNNING


def test_a_race_for_an_exclusive_queue(node: Cluster, peer: Peer) -> None:
    other = node.peer()
    other.call(1, commands.Channel.Open())
    peer.call(1, declare(exclusive=True))
    other.call(1, declare(exclusive=True))
    node.apply()
    assert kinds(peer.answers()) == [commands.Queue.DeclareOk]
    assert close_of(other.answers()).reply_code == 405


def test_a_race_for_an_exchange(node: Cluster, peer: Peer) -> None:
    other = node.peer()
    other.call(1, commands.Channel.Open())
    peer.call(1, commands.Exchange.Declare(exchange="x", exchange_type="direct"))
    other.call(1, commands.Exchange.Declare(exchange="x", exchange_type="topic"))
    node.apply()
    assert kinds(peer.answers()) == [commands.Exchange.DeclareOk]
    close = close_of(other.answers())
    assert (close.reply_code, close.class_id, close.method_id) == (406, 40, 10)


def test_what_came_into_use_meanwhile_is_not_deleted(node: Cluster, peer: Peer) -> None:
    node.log.late = False
    peer.call(1, commands.Exchange.Declare(exchange="x", exchange_type="direct"), declare())
    other = node.peer()
    other.call(1, commands.Channel.Open())
    node.log.late = True
    other.call(1, commands.Queue.Bind(queue="q", exchange="x"))
    peer.call(1, commands.Exchange.Delete(exchange="x", if_unused=True))
    node.apply()
    assert kinds(other.answers()) == [commands.Queue.BindOk]
    close = close_of(peer.answers())
    assert (close.reply_code, close.class_id, close.method_id) == (406, 40, 20)
    assert close.reply_text == "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"


def test_a_queue_that_went_meanwhile_is_not_bound(node: Cluster, peer: Peer) -> None:
    node.log.late = False
    peer.call(1, declare())
    node.log.late = True
    other = node.peer()
    other.call(1, commands.Channel.Open(), commands.Queue.Delete(queue="q"))
    peer.call(1, commands.Queue.Bind(queue="q", exchange="amq.fanout"))
    node.apply()
    assert kinds(other.answers()) == [commands.Queue.DeleteOk]
    assert close_of(peer.answers()).reply_code == 404


def test_without_a_majority_a_change_is_refused_and_the_connection_stays(node: Cluster, peer: Peer) -> None:
    peer.call(1, declare())
    node.log.refuse()
    node.sync()
    close = close_of(peer.answers())
    assert (close.reply_code, close.class_id, close.method_id) == (506, 50, 10)
    assert close.reply_text == "RESOURCE_ERROR - no majority of the cluster's nodes is reachable"
    assert kinds(peer.call(1, commands.Channel.CloseOk(), commands.Channel.Open())) == [
        commands.Channel.OpenOk
    ]
    peer.call(1, declare())
    node.apply()
    assert kinds(peer.answers()) == [commands.Queue.DeclareOk]


def test_an_answer_after_the_end_of_the_connection_is_dropped(node: Cluster, peer: Peer) -> None:
    peer.call(1, declare("shared"), declare("behind"))
    node.turn.run(peer.session.lost)
    node.apply()
    assert peer.answers() == []
    assert list(node.contents()) == ["shared"]


def test_an_exclusive_queue_of_a_session_that_ended_meanwhile_goes(node: Cluster, peer: Peer) -> None:
    peer.call(1, declare(exclusive=True))
    node.turn.run(peer.session.lost)
    node.apply()
    assert list(node.contents()) == ["q"]
    assert [type(operation) for operation, _ in node.log.proposed] == [DeleteQueue]
    node.apply()
    assert node.contents() == {}


@pytest.mark.parametrize("majority", [True, False])
def test_close_ok_follows_the_end_of_exclusive_queues(node: Cluster, peer: Peer, majority: bool) -> None:
    peer.call(1, declare("a", exclusive=True), declare("b", exclusive=True))
    node.apply()
    node.apply()
    peer.answers()
    assert list(node.contents()) == ["a", "b"]
    peer.send(frames.method_frame(0, commands.Connection.Close(200, "", 0, 0)))
    node.sync()
    assert peer.answers() == []
    if majority:
        node.apply()
    else:
        node.log.refuse()
        node.sync()
    assert kinds(peer.answers()) == [commands.Connection.CloseOk]
    assert peer.session.state is State.CLOSED
    # The deletions that were refused are proposed again until they succeed.
    assert len(node.log.proposed) == (0 if majority else 2)
    node.apply()
    assert node.contents() == {}


def test_a_connection_that_is_closed_meanwhile_can_still_say_so(node: Cluster, peer: Peer) -> None:
    peer.call(1, declare(), commands.Basic.Qos())
    node.turn.run(peer.session.force_close, "enough")
    peer.collect()
    assert kinds(peer.answers()) == [commands.Connection.Close]
    node.apply()
    peer.send(frames.method_frame(0, commands.Connection.CloseOk()))
    assert peer.session.state is State.CLOSED
    assert peer.answers() == []


def test_reading_stops_when_much_has_come_behind(node: Cluster, peer: Peer) -> None:
    peer.call(1, declare())
    assert not peer.session.incoming.backlogged
    heartbeat = frames.HEARTBEAT_FRAME
    peer.send(heartbeat * (node.broker.config.suspended_input_bytes_max // len(heartbeat) + 1))
    assert peer.session.incoming.backlogged
    node.apply()
    assert not peer.session.incoming.backlogged
    assert kinds(peer.answers()) == [commands.Queue.DeclareOk]


def test_half_a_frame_waits_too(node: Cluster, peer: Peer) -> None:
    qos = frames.method_frame(1, commands.Basic.Qos())
    peer.send(frames.method_frame(1, declare()), qos[:5])
    node.apply()
    peer.answers()
    peer.send(qos[5:])
    assert kinds(peer.answers()) == [commands.Basic.QosOk]
    peer.send(frames.method_frame(1, declare("r")), qos[:5])
    peer.send(qos[5:])
    assert peer.answers() == []
    node.apply()
    assert kinds(peer.answers()) == [commands.Queue.DeclareOk, commands.Basic.QosOk]


def test_an_alarm_that_ends_does_not_end_a_suspension(node: Cluster, peer: Peer) -> None:
    node.broker.alarms.set("memory", True)
    publish = frames.method_frame(1, commands.Basic.Publish(exchange="", routing_key="q"))
    content = bytes.fromhex("020001 0000000e 003c 0000 0000000000000000 0000 ce".replace(" ", ""))
    peer.send(publish, content)
    assert peer.session.incoming.blocked
    node.broker.alarms.set("memory", False)
    node.turn.run(peer.session.alarm_changed)
    peer.call(1, declare(), commands.Basic.Qos())
    node.broker.alarms.set("memory", True)
    node.broker.alarms.set("memory", False)
    peer.session.incoming.blocked = True
    node.turn.run(peer.session.alarm_changed)
    node.sync()
    assert commands.Basic.QosOk not in kinds(peer.answers())
    node.apply()
    assert kinds(peer.answers()) == [commands.Queue.DeclareOk, commands.Basic.QosOk]


def test_a_defect_in_the_rest_of_a_method_ends_its_connection_only(node: Cluster, peer: Peer) -> None:
    peer.call(1, declare())

    def broken(*answer: object) -> None:
        raise ZeroDivisionError

    assert peer.session.suspended is not None
    peer.session.suspended._then = broken
    node.apply()
    (close,) = [answer for _, answer in peer.answers()]
    assert isinstance(close, commands.Connection.Close)
    assert close.reply_code == 541


def test_a_deleted_vhost_ends_who_waits_in_it(node: Cluster, peer: Peer) -> None:
    peer.call(1, declare())
    node.turn.run(node.broker.delete_vhost, "/")
    node.log.proposed.reverse()
    node.apply()
    assert peer.session.state is State.CLOSING
    assert kinds(peer.answers()) == [commands.Connection.Close]


# -- queues on another node


@pytest.fixture
def remote(node: Cluster, peer: Peer) -> LateHosts:
    hosts = node.remote_queues()
    peer.call(1, declare())
    hosts.answer()
    node.sync()
    assert kinds(peer.answers()) == [commands.Queue.DeclareOk]
    return hosts


def put(node: Cluster, *bodies: bytes) -> None:
    publisher = node.peer()
    publisher.call(1, commands.Channel.Open())
    for body in bodies:
        method = frames.method_frame(1, commands.Basic.Publish(exchange="", routing_key="q"))
        header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + b"\x00\x00"
        publisher.send(method, frames.raw_frame(2, 1, header), frames.raw_frame(3, 1, body))


def test_consume_is_answered_before_the_first_delivery(node: Cluster, peer: Peer, remote: LateHosts) -> None:
    put(node, b"a")
    assert peer.call(1, commands.Basic.Consume(queue="q"), commands.Basic.Qos()) == []
    remote.answer()
    node.sync()
    assert kinds(peer.answers()) == [commands.Basic.ConsumeOk, Delivery, commands.Basic.QosOk]


def test_who_comes_too_late_for_a_queue_of_its_own_is_refused(
    node: Cluster, peer: Peer, remote: LateHosts
) -> None:
    other = node.peer()
    other.call(1, commands.Channel.Open())
    peer.call(1, commands.Basic.Consume(queue="q", exclusive=True))
    other.call(1, commands.Basic.Consume(queue="q"))
    remote.answer()
    node.sync()
    assert kinds(peer.answers()) == [commands.Basic.ConsumeOk]
    close = close_of(other.answers())
    assert (close.reply_code, close.class_id, close.method_id) == (403, 60, 20)
    assert close.reply_text == "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    assert len(node.broker.vhost("/").queues["q"].subscriptions) == 1


def test_a_consumer_of_a_connection_that_ended_meanwhile_holds_nothing(
    node: Cluster, peer: Peer, remote: LateHosts
) -> None:
    put(node, b"a")
    peer.call(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
    queue = node.broker.vhost("/").queues["q"]
    node.turn.run(peer.session.lost)
    # In the order of the link: first the request, then the commands of the channel's end.
    remote.answer()
    queue.host.submit(("detach", (peer.session.number, 1, "c", 1), True))
    node.sync()
    assert peer.answers() == []
    assert queue.subscriptions == {}
    assert (queue.host.ready_count, queue.host.unacked_count, queue.host.consumer_count) == (1, 0, 0)


def test_a_get_waits_for_the_answer_of_another_node(node: Cluster, peer: Peer, remote: LateHosts) -> None:
    put(node, b"a", b"b")
    assert peer.call(1, commands.Basic.Get(queue="q"), commands.Basic.Get(queue="q")) == []
    remote.answer()
    node.sync()
    (first,) = [answer for _, answer in peer.answers() if isinstance(answer, Delivery)]
    assert first.body == b"a"
    remote.answer()
    node.sync()
    (second,) = [answer for _, answer in peer.answers() if isinstance(answer, Delivery)]
    assert isinstance(second.method, commands.Basic.GetOk)
    assert (second.body, second.method.delivery_tag, second.method.message_count) == (b"b", 2, 0)
    peer.call(1, commands.Basic.Get(queue="q"))
    remote.answer()
    node.sync()
    assert kinds(peer.answers()) == [commands.Basic.GetEmpty]


def test_what_was_got_for_a_connection_that_ended_is_not_lost(
    node: Cluster, peer: Peer, remote: LateHosts
) -> None:
    put(node, b"a")
    peer.call(1, commands.Basic.Get(queue="q"))
    host = node.broker.vhost("/").queues["q"].host
    node.turn.run(peer.session.lost)
    # In the order of the link: first the request, then the commands of the channel's end.
    remote.answer()
    node.turn.run(host.submit, ("detach", (peer.session.number, 1, None, False), True))
    assert (host.ready_count, host.unacked_count) == (1, 0)


def test_counts_come_from_the_other_node(node: Cluster, peer: Peer, remote: LateHosts) -> None:
    put(node, b"a", b"b", b"c")
    for method, answer in (
        (declare(passive=True), commands.Queue.DeclareOk),
        (commands.Queue.Purge(queue="q"), commands.Queue.PurgeOk),
    ):
        assert peer.call(1, method) == []
        remote.answer()
        node.sync()
        (found,) = [found for _, found in peer.answers()]
        assert isinstance(found, answer)
        assert found.message_count == 3
    put(node, b"d")
    assert peer.call(1, commands.Queue.Delete(queue="q")) == []
    remote.answer()
    node.sync()
    ((_, deleted),) = peer.answers()
    assert isinstance(deleted, commands.Queue.DeleteOk)
    assert deleted.message_count == 1


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (commands.Queue.Delete(queue="q", if_empty=True), "queue 'q' in vhost '/' not empty"),
        (commands.Queue.Delete(queue="q", if_unused=True), "queue 'q' in vhost '/' in use"),
    ],
)
def test_conditions_are_asked_of_the_other_node(
    node: Cluster, peer: Peer, remote: LateHosts, method: base.Frame, text: str
) -> None:
    other = node.peer()
    other.call(1, commands.Channel.Open(), commands.Basic.Qos(prefetch_count=1))
    other.call(1, commands.Basic.Consume(queue="q"))
    remote.answer()
    put(node, b"a", b"b")
    peer.call(1, method)
    remote.answer()
    node.sync()
    close = close_of(peer.answers())
    assert (close.reply_code, close.reply_text) == (406, f"PRECONDITION_FAILED - {text}")


def test_cancel_is_answered_behind_what_was_on_its_way(node: Cluster, peer: Peer, remote: LateHosts) -> None:
    peer.call(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
    remote.answer()
    node.sync()
    peer.answers()
    assert peer.call(1, commands.Basic.Cancel("c")) == []
    remote.answer()
    node.sync()
    assert kinds(peer.answers()) == [commands.Basic.CancelOk]


def test_commit_waits_for_all_queues(node: Cluster, peer: Peer, remote: LateHosts) -> None:
    peer.call(1, declare("r"))
    remote.answer()
    node.sync()
    peer.call(1, commands.Tx.Select())
    peer.answers()
    content = bytes.fromhex("020001 0000000e 003c 0000 0000000000000000 0000 ce".replace(" ", ""))
    for name in ("q", "r"):
        peer.send(frames.method_frame(1, commands.Basic.Publish(exchange="", routing_key=name)), content)
    assert peer.call(1, commands.Tx.Commit()) == []
    assert len(remote.waiting) == 2
    remote.waiting.pop(0)()
    node.sync()
    assert peer.answers() == []
    remote.answer()
    node.sync()
    assert kinds(peer.answers()) == [commands.Tx.CommitOk]


def test_a_home_that_cannot_be_reached_is_an_error_of_the_channel(
    node: Cluster, peer: Peer, remote: LateHosts
) -> None:
    host: Any = node.broker.vhost("/").queues["q"].host
    host.catch_up = host.barrier = lambda done: done(Refused("node n2 cannot be reached"))
    host.attach = lambda consumer, done: done("node n2 cannot be reached")
    for method in (declare(passive=True), commands.Basic.Consume(queue="q")):
        close = close_of(peer.call(1, method))
        assert (close.reply_code, close.reply_text) == (506, "RESOURCE_ERROR - node n2 cannot be reached")
        peer.call(1, commands.Channel.CloseOk(), commands.Channel.Open())
    assert node.broker.vhost("/").queues["q"].subscriptions == {}


@pytest.mark.parametrize("arguments", [{}, {"x-partitions": 2}])
def test_super_streams_wait_until_all_nodes_know_them(
    node: Cluster, peer: Peer, arguments: dict[str, Any]
) -> None:
    node.log.has_super_streams = False
    answers = peer.call(
        1,
        commands.Exchange.Declare(
            exchange="s", exchange_type="x-super-stream", durable=True, arguments=arguments
        ),
    )
    (close,) = [answer for _, answer in answers]
    assert isinstance(close, commands.Connection.Close) and close.reply_code == 540
    assert (
        "is a super stream, which needs a cluster whose nodes all run this version of mqd" in close.reply_text
    )
    node.apply()
    assert node.broker.vhost("/").router.get("s") is None
