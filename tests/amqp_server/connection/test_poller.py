"""All sockets that are ready are served together, and no client's work delays another one's by more than a
part.

Over pairs of sockets, without a task: the tests make the rounds themselves. Time goes on with each look at
the clock, so a turn is over after a fixed number of looks.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from pamqp import base, commands

from amqp_server.channel import unacked
from amqp_server.config import Config
from amqp_server.connection.sockets import poller
from amqp_server.connection.sockets.client_wire import ClientWire
from amqp_server.connection.sockets.listener import NO_OTHERS
from amqp_server.connection.sockets.poller import ENDED_MIN, LITTLE_BYTES, Poller
from amqp_server.connection.sockets.transport import Affinity, Backpressure, Transport
from amqp_server.connection.sockets.unauthenticated import HalfOpens
from amqp_server.connection.state import State
from amqp_server.turn import NoPeers, Turn
from conformance_tests.patience import PATIENCE_S
from quorum_queue.local_host import LocalHost
from tests.clocks import ManualClock
from tests.stores.memory import MemoryEnvironment

from ..wire.published import message, method
from .node import CAPABILITIES, Commits, Delivery, MemoryNode, decoded, make_broker

#: Looks at the clock within one turn.
LOOKS = 40
#: Looks that a slow queue takes.
SLOW_LOOKS = 8


class CountedCommits(Commits):
    """Each turn with something to write makes one commit."""

    def __init__(self, environment: MemoryEnvironment) -> None:
        super().__init__(environment)
        self.environment = environment
        self.count = 0

    def turn_ends(self) -> None:
        if self.unsynced:
            self.count += 1
            # Make it durable at once, so that the next turn's changes make a commit of their own.
            self.environment.flush()


class Disk:
    ahead = False

    async def wait(self) -> None:
        raise NotImplementedError


class SocketWire(ClientWire):
    """May have bytes left that its socket does not show, as TLS does."""

    left = b""
    #: Bytes that come with the next ones of the socket.
    behind = b""

    @property
    def more(self) -> bool:
        return bool(self.left)

    def receive(self, buffers: list[memoryview]) -> int | None:
        if not self.left:
            count = super().receive(buffers)
            if count:
                self.left, self.behind = self.behind, b""
            return count
        part, self.left = self.left[: len(buffers[0])], self.left[len(buffers[0]) :]
        buffers[0][: len(part)] = part
        return len(part)


class Client:
    def __init__(self, node: PolledNode, name: str, send_buffer_bytes: int = 0) -> None:
        self.sock, inner = socket.socketpair()
        for each in (self.sock, inner):
            each.setblocking(False)
        if send_buffer_bytes:
            inner.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        self.wire = SocketWire(inner)
        place = node.half_opens.admit(name, 0.0)
        assert place is not None
        self.transport = transport = Transport(node, self.wire, "127.0.0.1", name, place)
        session = transport.session
        session.client.username = session.client.access = "guest"
        session.client.capabilities = dict(CAPABILITIES)
        session.vhost = node.broker.vhost("/")
        session.tuned(131_072, 16, 0)
        session.state = State.RUNNING
        node.transports[transport] = None
        transport.start()
        self.node = node
        self.output = b""
        self.send(method(1, commands.Channel.Open()))
        node.settle()
        self.answers()

    def send(self, *data: bytes) -> None:
        whole = b"".join(data)
        assert self.sock.send(whole) == len(whole)

    def call(self, *methods: base.Frame) -> list[Any]:
        self.send(method(1, *methods))
        self.node.settle()
        return self.answers()

    def read(self) -> bool:
        """Read what has arrived; False at the end of the stream."""
        while True:
            try:
                data = self.sock.recv(1 << 20)
            except BlockingIOError:
                return True
            except ConnectionResetError:
                return False
            if not data:
                return False
            self.output += data

    def answers(self) -> list[Any]:
        self.read()
        data, self.output = self.output, b""
        return [each for _, each in decoded(data)]


class PolledNode(MemoryNode):
    """See connection.transport.Edge. The driver's turns come when the test says so."""

    affinity: Affinity | None = None

    def __init__(self, **options: Any) -> None:
        self.environment = environment = MemoryEnvironment()
        self.clock = ManualClock(5_000_000, 1_700_000_000_000)
        self.commits = CountedCommits(environment)
        self.looks = 0
        self.config = Config(**options)
        turn = Turn(self.commits, NoPeers(), lambda: None, now=self._now, lasts_s=LOOKS)
        self.broker = make_broker(self.config, environment, self.clock, self.commits, turn=turn)
        self.turn = turn
        self.broker.add_vhost("/")
        self.broker.access.permissions.set("guest", "/", ".*", ".*", ".*")
        self.peers = []
        self.poller = Poller(turn, LOOKS, self.config.receive_bytes)
        self.half_opens = HalfOpens(self.config, NO_OTHERS)
        self.backpressure: Backpressure = Disk()
        self.share_bytes = 0
        self.transports: dict[Transport, None] = {}
        self.clients: list[Client] = []

    def _now(self) -> float:
        self.looks += 1
        return self.looks

    def log_in(self, transport: Transport) -> None:
        raise NotImplementedError

    def wait_for_disk(self, transport: Transport) -> None: ...

    def ended(self, transport: Transport) -> None:
        del self.transports[transport]

    def client(self, name: str = "client", **options: Any) -> Client:
        self.clients.append(Client(self, name, **options))
        return self.clients[-1]

    def round(self) -> bool:
        """Do once what the driver does, and the task that waits for the sockets."""
        left = self.poller.serve()
        if self.turn.behind:
            self.poller.serve_light()
            self.turn.run(self.turn.catch_up)
        return left or self.turn.behind

    def settle(self, most: int = 10_000) -> None:
        """Make rounds until nothing is ready."""
        for _ in range(most):
            before = self.looks
            if not self.round() and self.looks == before:
                return
        raise AssertionError("it never ends")


@pytest.fixture
def node() -> Iterator[PolledNode]:
    node = PolledNode()
    yield node
    node.poller.end_all(node.transports)
    node.poller.close()
    for each in node.clients:
        each.sock.close()


def publish(key: str, body: bytes = b"m", **properties: Any) -> bytes:
    return message("", key, body, **properties).encode(1)


def test_messages_of_many_clients_make_one_commit(node: PolledNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the queue runs once."""
    clients = [node.client(f"c{number}") for number in range(30)]
    clients[0].call(commands.Queue.Declare(queue="q", durable=True))
    for each in clients:
        each.call(commands.Confirm.Select())
    # The turn may take any time: there is no clock for many small messages.
    node.turn._lasts_s = 10_000
    runs: list[LocalHost] = []
    apply_pending = LocalHost.apply_pending

    def counted(host: LocalHost) -> None:
        runs.append(host)
        apply_pending(host)

    monkeypatch.setattr(LocalHost, "apply_pending", counted)
    before = node.commits.count
    for each in clients:
        each.send(publish("q", delivery_mode=b"\2"))
    assert not node.poller.serve()
    assert node.commits.count == before + 1
    assert len(runs) == 1
    assert node.broker.vhost("/").queues["q"].host.ready_count == 30
    for each in clients:
        assert [type(answer) for answer in each.answers()] == [commands.Basic.Ack]


def test_a_look_tells_whether_a_client_waits_and_leaves_it_to_the_next_round(node: PolledNode) -> None:
    client = node.client()
    client.call(commands.Queue.Declare(queue="q"))
    node.settle()
    assert not node.poller.waited_for()
    client.send(publish("q"))
    assert node.poller.waited_for() and node.poller.waited_for()
    queue = node.broker.vhost("/").queues["q"].host
    assert queue.ready_count == 0
    node.settle()
    assert queue.ready_count == 1 and not node.poller.waited_for()


def test_a_full_socket_does_not_hold_others(node: PolledNode) -> None:
    slow, quick = node.client("slow", send_buffer_bytes=4_096), node.client("quick")
    slow.call(commands.Queue.Declare(queue="large"))
    quick.call(commands.Queue.Declare(queue="small"))
    slow.call(commands.Basic.Consume(queue="large", no_ack=True))
    quick.call(commands.Basic.Consume(queue="small", no_ack=True))
    for _ in range(20):
        quick.send(publish("large", b"x" * 50_000))
        node.settle()
    assert slow.transport._draining
    for _ in range(10):
        quick.send(publish("small"))
        node.round()
        (delivery,) = quick.answers()
        assert isinstance(delivery, Delivery)
    while slow.transport._draining:
        slow.read()
        node.round()
    assert [len(each.body) for each in slow.answers()] == [50_000] * 20
    assert not slow.transport.outbox.size


def test_bytes_that_tls_has_left_are_served_though_the_socket_is_silent(node: PolledNode) -> None:
    client = node.client()
    client.call(commands.Queue.Declare(queue="q"))
    client.wire.behind = publish("q", b"x" * 100) * 1_000
    assert len(client.wire.behind) > 2 * LITTLE_BYTES
    client.send(publish("q"))
    node.settle()
    assert node.broker.vhost("/").queues["q"].host.ready_count == 1_001


def test_an_exception_in_one_session_ends_that_one(node: PolledNode) -> None:
    clients = [node.client(f"c{number}") for number in range(3)]
    clients[0].call(commands.Queue.Declare(queue="q"))

    def broken(data: bytes) -> None:
        raise ZeroDivisionError

    clients[1].transport.session.receive = broken  # type: ignore[method-assign]
    for each in clients:
        each.send(publish("q"))
    node.round()
    assert node.broker.vhost("/").queues["q"].host.ready_count == 2
    (close,) = clients[1].answers()
    assert close.reply_code == 541
    assert clients[0].call(commands.Basic.Get(queue="q", no_ack=True))
    assert clients[2].call(commands.Basic.Get(queue="q", no_ack=True))


@pytest.mark.parametrize("firehoses", [1, 12])
@pytest.mark.parametrize("flood", ["methods", "few", "messages", "wide"])
def test_firehoses_delay_a_small_client_by_a_part_however_many_they_are(
    node: PolledNode, firehoses: int, flood: str
) -> None:
    small = node.client("small")
    small.call(commands.Queue.Declare(queue="small"))
    small.call(commands.Basic.Consume(queue="small", no_ack=True))
    for number in range(60):
        small.call(commands.Queue.Declare(queue=f"q{number}"))
        small.call(commands.Queue.Bind(queue=f"q{number}", exchange="amq.fanout"))
    data = {
        "methods": method(1, commands.Queue.Declare(queue="q1", passive=True)) * 500,
        # Nearly a whole turn, and no more methods before the answers have come.
        "few": method(1, commands.Queue.Declare(queue="q1", passive=True)) * (LOOKS - 10),
        "messages": publish("q1", b"x" * 1_000) * 100,
        "wide": message("amq.fanout", "").encode(1) * 50,
    }[flood]
    heavy = [node.client(f"heavy{number}") for number in range(firehoses)]

    asked: list[bool] = []

    def fill() -> None:
        for each in heavy:
            each.read()
            if flood == "few" and asked and not each.answers():
                continue
            with contextlib.suppress(BlockingIOError):
                each.sock.send(data)
        asked.append(True)

    for _ in range(20):
        fill()
        node.round()
    delays = []
    for _ in range(10):
        fill()
        small.send(publish("small"))
        before = node.looks
        while True:
            node.round()
            fill()
            if [each for each in small.answers() if isinstance(each, Delivery)]:
                break
        delays.append(node.looks - before)
    # A round is one turn of the light clients, one of the heavy ones, and one of leftover work; each may end
    # some looks late.
    assert max(delays) < 4 * LOOKS


def test_one_queue_of_a_client_does_not_come_behind_all_of_another(
    node: PolledNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    many, small = node.client("many"), node.client("small")
    small.call(commands.Queue.Declare(queue="small"))
    small.call(commands.Basic.Consume(queue="small", no_ack=True))
    for number in range(20):
        many.call(commands.Queue.Declare(queue=f"q{number}"))
    apply_pending = LocalHost.apply_pending

    def slow(host: LocalHost) -> None:
        if host.queue.name != "small":
            node.looks += 3 * LOOKS
        apply_pending(host)

    monkeypatch.setattr(LocalHost, "apply_pending", slow)
    many.send(*[publish(f"q{number}") for number in range(20)])
    small.send(publish("small"))
    node.poller.serve()
    assert len([each for each in small.answers() if isinstance(each, Delivery)]) == 1
    assert many.transport.heavy
    node.settle()
    assert all(node.broker.vhost("/").queues[f"q{number}"].host.ready_count == 1 for number in range(20))


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize(("takes", "most"), [(0, LOOKS // 2 // SLOW_LOOKS + 1), (2 * LOOKS, 1)])
def test_the_end_of_a_commit_and_what_it_causes_share_half_a_turn(
    node: PolledNode, monkeypatch: pytest.MonkeyPatch, asks: bool, takes: int, most: int
) -> None:
    """And a client still gets its answer at the end of the turn."""
    small = node.client("small")
    names = [f"q{number}" for number in range(20)]
    for name in ("small", *names):
        small.call(commands.Queue.Declare(queue=name))
    small.call(commands.Basic.Consume(queue="small", no_ack=True))
    queues = node.broker.vhost("/").queues
    applied: list[str] = []
    apply_pending = LocalHost.apply_pending

    def slow(host: LocalHost) -> None:
        if host.queue.name != "small":
            node.looks += SLOW_LOOKS
            applied.append(host.queue.name)
        apply_pending(host)

    def ended() -> None:
        node.looks += takes
        for name in names:
            node.turn.schedule(queues[name].host)

    monkeypatch.setattr(LocalHost, "apply_pending", slow)
    # A method whose answer has a count applies the pending commands of its own queue, and of no other one.
    question = method(1, commands.Queue.Declare(queue="small", passive=True)) if asks else b""
    small.send(publish("small"), question)
    node.poller.report(ended)
    node.poller.serve_light()
    assert len([each for each in small.answers() if isinstance(each, Delivery)]) == 1
    assert len(applied) <= most
    node.settle()
    assert sorted(applied) == sorted(names)


def test_the_end_of_a_commit_is_overdue_after_half_a_turn(node: PolledNode) -> None:
    looked: list[int] = []

    def ended() -> None:
        while not node.turn.overdue():
            looked.append(node.looks)

    node.poller.report(ended)
    node.poller.serve_light()
    assert 0 < len(looked) <= LOOKS // 2


def test_clients_behind_a_large_ack_do_not_wait_for_its_parts(
    node: PolledNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    many, small = node.client("many"), node.client("small")
    many.call(commands.Queue.Declare(queue="many"))
    small.call(commands.Queue.Declare(queue="small"))
    many.call(commands.Basic.Consume(queue="many"))
    small.call(commands.Basic.Consume(queue="small", no_ack=True))
    many.send(publish("many") * 20)
    node.settle()
    many.answers()
    monkeypatch.setattr(unacked, "WHOLE_MAX", 10)
    applied: list[str] = []
    apply_pending = LocalHost.apply_pending

    def noted(host: LocalHost) -> None:
        applied.append(host.queue.name)
        apply_pending(host)

    monkeypatch.setattr(LocalHost, "apply_pending", noted)
    many.send(method(1, commands.Basic.Nack(0, True, False)))
    small.send(publish("small"))
    node.poller.serve_light()
    assert applied == ["small"]
    node.settle()
    assert node.broker.vhost("/").queues["many"].host.unacked_count == 0


def test_what_a_turn_has_no_time_for_comes_first_in_the_next(node: PolledNode) -> None:
    clients = [node.client(f"c{number}") for number in range(60)]
    clients[0].call(commands.Queue.Declare(queue="q"))
    clients[0].call(commands.Basic.Consume(queue="q", no_ack=True))
    for number, each in enumerate(clients):
        each.send(publish("q", b"%d" % number))
    assert node.poller.serve()
    first = [int(each.body) for each in clients[0].answers()]
    assert 0 < len(first) < 60
    # The clients that were served send more; the others go before them.
    for number in first:
        clients[number].send(publish("q", b"%d" % number))
    node.poller.serve()
    second = [int(each.body) for each in clients[0].answers()]
    assert not set(first) & set(second)
    node.settle()
    assert len(first) + len(second) + len(clients[0].answers()) == 60 + len(first)


def test_one_that_is_not_read_goes_on_when_it_may(node: PolledNode) -> None:
    client = node.client()
    client.call(commands.Queue.Declare(queue="q"))
    client.transport.session.unfinished = True
    client.send(publish("q"))
    node.settle()
    assert client.transport.watched == 0
    assert node.broker.vhost("/").queues["q"].host.ready_count == 0
    client.transport.session.unfinished = False
    client.transport.resumed()
    node.settle()
    assert node.broker.vhost("/").queues["q"].host.ready_count == 1


def test_what_another_task_has_found_wakes_the_one_that_waits(node: PolledNode) -> None:
    """A heavy client has bytes left in its TLS, and its socket is silent."""
    client = node.client()
    client.call(commands.Queue.Declare(queue="q"))
    client.wire.behind = publish("q", b"x" * 100) * 1_000
    client.send(publish("q"))
    node.poller.serve_light()
    # The task waits for the poller's set.
    with select.epoll() as outer:
        outer.register(node.poller.fileno(), select.EPOLLIN)
        assert outer.poll(0)
    node.settle()
    assert node.broker.vhost("/").queues["q"].host.ready_count == 1_001


def _reset(client: Client) -> None:
    client.sock.close()


def _closes(client: Client) -> None:
    client.send(method(0, commands.Connection.Close(200, "", 0, 0)))


def _drops(client: Client) -> None:
    client.transport.close()


@pytest.mark.parametrize("end", [_reset, _closes, _drops])
def test_a_connection_that_ends_leaves_nothing(node: PolledNode, end: Callable[[Client], None]) -> None:
    client, other = node.client("one"), node.client("other")
    client.call(commands.Queue.Declare(queue="q", exclusive=True))
    end(client)
    node.settle()
    if end is _closes:
        (answer,) = client.answers()
        assert isinstance(answer, commands.Connection.CloseOk)
        # The client is to close the socket; the node discards further input.
        client.send(publish("q"))
        node.settle()
        assert client.transport in node.transports
        client.sock.close()
        node.settle()
    assert list(node.transports) == [other.transport]
    assert "q" not in node.broker.vhost("/").queues
    assert len(node.poller._by_fd) == 1


class PutOff:
    """Commits that are put off: see persistence.commits.commit."""

    def __init__(self) -> None:
        self.may_wait, self.put_off = False, True
        #: Called when the poller asks how long to look.
        self.asked: list[Callable[[], float]] = []
        self.begun: list[bool] = []

    def put_off_s(self) -> float:
        return self.asked.pop(0)() if self.asked else 0.0

    def begin_put_off(self) -> None:
        self.begun.append(self.may_wait)


def test_clients_are_served_while_a_commit_is_put_off(node: PolledNode) -> None:
    """The node serves what arrives meanwhile before the commit begins."""
    commits = PutOff()
    node.poller._commits = commits
    client = node.client()
    client.call(commands.Queue.Declare(queue="q"))
    seen: list[int] = []

    def queued() -> int:
        return node.broker.vhost("/").queues["q"].host.ready_count

    def published() -> float:
        seen.append(queued())
        client.send(publish("q"))
        return PATIENCE_S

    commits.begun.clear()

    def enough() -> float:
        seen.append(queued())
        return 0.0

    commits.asked = [published, published, enough]
    assert not node.poller.serve()
    assert seen == [0, 1, 2]
    assert commits.begun == [True]
    assert not commits.may_wait


def test_nobody_waits_longer_than_a_commit_is_put_off(node: PolledNode) -> None:
    commits = PutOff()
    node.poller._commits = commits
    commits.asked = [lambda: 0.0001, lambda: PATIENCE_S]
    assert not node.poller.serve()
    assert len(commits.asked) == 1
    assert commits.begun == [True]


def test_a_heavy_client_does_not_wait_while_a_commit_is_put_off(node: PolledNode) -> None:
    """Its socket is ready all the time: a task that looked at the set would loop without rest."""
    commits = PutOff()
    node.poller._commits = commits
    client = node.client()
    client.call(commands.Queue.Declare(queue="q"))
    client.transport.heavy = True

    def published() -> float:
        client.send(publish("q"))
        return PATIENCE_S

    commits.asked = [published, lambda: PATIENCE_S]
    commits.begun.clear()
    node.poller.serve()
    assert len(commits.asked) == 1
    assert commits.begun == [True]
    assert node.broker.vhost("/").queues["q"].host.ready_count == 1


def test_no_commit_is_put_off_where_select_takes_no_such_file(
    node: PolledNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "SELECT_FILES", 3)
    commits = PutOff()
    other = Poller(node.turn, LOOKS, LITTLE_BYTES, commits)
    other.serve()
    assert not commits.begun
    other.close()


def test_connections_that_end_at_once_are_given_up_some_in_each_turn(node: PolledNode) -> None:
    clients = [node.client(f"c{number}") for number in range(10 * ENDED_MIN)]
    other = node.client("other")
    other.call(commands.Queue.Declare(queue="q"))
    other.call(commands.Basic.Consume(queue="q", no_ack=True))
    for each in clients:
        each.transport.close()
    left = [len(node.transports)]
    while len(node.transports) > 1:
        other.send(publish("q"))
        assert node.poller.serve() or len(node.transports) == 1
        (delivery,) = other.answers()
        assert isinstance(delivery, Delivery)
        left.append(len(node.transports))
    ended = [before - after for before, after in pairwise(left)]
    assert max(ended) <= ENDED_MIN + LOOKS < len(clients) and len(ended) > 1
