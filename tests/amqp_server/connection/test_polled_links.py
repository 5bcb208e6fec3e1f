"""Links and reports of threads are served in the turn of the clients, ahead of them."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from time import monotonic

import pytest
from pamqp import commands

from conformance_tests.patience import PATIENCE_S
from quorum_queue.links.framing import HEAD, FrameReader
from quorum_queue.links.handshake import Hello
from quorum_queue.links.plain_wire import PlainWire
from quorum_queue.links.ports import LinkOptions
from quorum_queue.links.session import LinkSession
from quorum_queue.links.steady_clock import SteadyClock

from .test_poller import PolledNode, publish

READ_BYTES = 1 << 16


class Link:
    """A session of the node, and the other end of its socket."""

    def __init__(self, node: PolledNode, told: list[str], send_buffer_bytes: int = 0) -> None:
        self.sock, inner = socket.socketpair()
        for each in (self.sock, inner):
            each.setblocking(False)
        if send_buffer_bytes:
            inner.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        self.inner = inner
        self.told = told
        self.ended = 0
        options = LinkOptions()
        self.session = LinkSession(
            PlainWire(inner),
            Hello("n2", 1, "disk of n2"),
            1,
            options,
            FrameReader(memoryview(bytearray(READ_BYTES)), options.frame_bytes_max),
            SteadyClock(0.0, 1.0),
            monotonic,
            node.poller,
            self.received,
            self.end,
        )
        self.session.begin()

    def received(self, peer: str, frames: list[memoryview]) -> None:
        self.told += [f"{peer}: {bytes(frame).decode()}" for frame in frames]
        if b"raise" in frames:
            raise ValueError("the node has a defect")

    def end(self) -> None:
        self.ended += 1

    def send(self, *frames: bytes) -> None:
        self.sock.sendall(b"".join(HEAD.pack(len(frame)) + frame for frame in frames))

    def close(self) -> None:
        self.sock.close()
        self.inner.close()


@pytest.fixture
def node() -> Iterator[PolledNode]:
    node = PolledNode()
    yield node
    node.poller.end_all(node.transports)
    node.poller.close()
    for each in node.clients:
        each.sock.close()


@pytest.fixture
def link(node: PolledNode) -> Iterator[Link]:
    link = Link(node, [])
    yield link
    link.close()


def test_one_look_is_one_turn_the_disk_first_then_links_then_clients(node: PolledNode, link: Link) -> None:
    client = node.client()
    client.call(commands.Queue.Declare(queue="q", durable=True), commands.Confirm.Select())
    host = node.broker.vhost("/").queues["q"].host
    before = node.commits.count
    client.send(publish("q", delivery_mode=b"\2"))
    link.send(b"answer")
    node.poller.report(lambda: link.told.append(f"synced, {host.ready_count} in the queue"))
    assert not node.poller.serve()
    assert link.told == ["synced, 0 in the queue", "n2: answer"]
    assert host.ready_count == 1 and node.commits.count == before + 1
    assert [type(answer) for answer in client.answers()] == [commands.Basic.Ack]


def test_a_report_of_a_thread_wakes_who_waits_for_the_set(node: PolledNode) -> None:
    done: list[int] = []
    with select.epoll() as outer:
        outer.register(node.poller.fileno(), select.EPOLLIN)
        assert not outer.poll(0)
        thread = threading.Thread(target=lambda: node.poller.report(lambda: done.append(1)))
        thread.start()
        assert outer.poll(PATIENCE_S)
        thread.join()
        node.poller.serve()
        assert done == [1]
        assert not outer.poll(0)


def test_what_is_reported_when_the_poller_has_closed_goes_another_way() -> None:
    node = PolledNode()
    done: list[str] = []
    late: list[object] = []
    node.poller.report(lambda: done.append("before"))
    node.poller.close(late.append)
    assert done == ["before"]
    node.poller.report(lambda: done.append("after"))
    (call,) = late
    assert callable(call)
    call()
    assert done == ["before", "after"]


def test_a_full_link_goes_on_when_it_has_room(node: PolledNode) -> None:
    link = Link(node, [], send_buffer_bytes=4_096)
    frames = [b"%d" % number * 1_000 for number in range(200)]
    for frame in frames:
        assert link.session.send([frame])
    link.session.flush()
    assert link.session.pending_bytes
    came = b""
    for _ in range(10_000):
        try:
            came += link.sock.recv(1 << 20)
        except BlockingIOError:
            if not link.session.pending_bytes:
                break
        node.poller.serve()
    assert came == b"".join(HEAD.pack(len(frame)) + frame for frame in frames)
    # The poller no longer watches the link for room, but it reads it.
    assert not node.poller.serve()
    link.send(b"still read")
    node.poller.serve()
    assert link.told == ["n2: still read"]
    link.close()


@pytest.mark.parametrize("how", ["peer", "frame", "node"])
def test_a_session_that_ends_is_forgotten_by_the_poller(node: PolledNode, link: Link, how: str) -> None:
    if how == "peer":
        link.sock.close()
    elif how == "frame":
        link.sock.sendall(b"\xff" * 4)
    else:
        link.session.close("dropped by this node")
    node.poller.serve()
    assert link.ended == 1 and link.session.closed
    assert (
        link.session.reason
        == {
            "peer": "closed by the peer",
            "frame": f"it sent something that is not a frame: a frame of {0xFFFFFFFF} bytes; the limit is {LinkOptions().frame_bytes_max}",
            "node": "dropped by this node",
        }[how]
    )
    assert not node.poller._link_by_fd
    with select.epoll() as outer:
        outer.register(node.poller.fileno(), select.EPOLLIN)
        assert not outer.poll(0)


def test_what_the_node_raises_is_not_the_peers_fault(node: PolledNode, link: Link) -> None:
    link.send(b"raise")
    with pytest.raises(ValueError, match="defect"):
        node.poller.serve()
    assert not link.session.closed


def test_a_busy_link_and_clients_take_turns(node: PolledNode) -> None:
    """Each read of the link makes the turn overdue, and there is always one more."""
    link = Link(node, [])
    clients = [node.client(f"c{number}") for number in range(4)]
    clients[0].call(commands.Queue.Declare(queue="q"))
    received = link.received

    def takes_long(peer: str, frames: list[memoryview]) -> None:
        received(peer, frames)
        node.looks += 1_000
        link.send(b"more")

    link.session._received = takes_long
    link.send(b"more")
    for each in clients:
        each.send(publish("q"))
    host = node.broker.vhost("/").queues["q"].host
    for _ in range(len(clients) + 1):
        node.round()
    assert host.ready_count == len(clients)
    assert len(link.told) > 1
    link.close()
