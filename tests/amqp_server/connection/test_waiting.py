"""The node waits for the poller's own set: sockets cost no step of Trio's loop, and tasks wait for none of
them.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic

import pytest
import trio
import trio.lowlevel

from amqp_server.connection.sockets import poll_task
from amqp_server.connection.sockets.poller import Poller
from conformance_tests.patience import PATIENCE_S

from .test_polled_links import Link
from .test_poller import PolledNode

FRAMES = 50


class Waits(trio.abc.Instrument):
    """Counts how often Trio has waited, or looked, for what its tasks wait for."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


@pytest.fixture
def node() -> Iterator[PolledNode]:
    node = PolledNode()
    yield node
    for each in node.clients:
        each.sock.close()


def run(poller: Poller, task: Callable[[], Awaitable[None]], waits: Waits | None = None) -> None:
    """Run a task next to the poller's."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll_task.serve_directly, poller)
            with trio.fail_after(PATIENCE_S):
                await task()
            nursery.cancel_scope.cancel()

    trio.run(main, instruments=[] if waits is None else [waits])


def with_patience(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(PATIENCE_S):
            await main()

    trio.run(bounded)


def in_turns(link: Link, came: threading.Event) -> None:
    """Send frames, each after the one before has arrived."""
    for number in range(FRAMES):
        link.send(b"%d" % number)
        assert came.wait(PATIENCE_S)
        came.clear()


def test_what_comes_on_sockets_costs_no_step_of_trio(node: PolledNode) -> None:
    link, came, waits, waited = Link(node, []), threading.Event(), Waits(), []
    received = link.session._received

    def noted(peer: str, frames: list[memoryview]) -> None:
        received(peer, frames)
        waited.append(waits.count)
        came.set()

    link.session._received = noted

    async def task() -> None:
        await trio.to_thread.run_sync(in_turns, link, came)

    run(node.poller, task, waits)
    assert link.told == [f"n2: {number}" for number in range(FRAMES)]
    # The start of the thread is all that Trio has seen until it ended.
    assert waited[-1] - waited[0] < 5
    link.close()


def test_a_task_that_a_turn_wakes_has_its_step_at_once(node: PolledNode) -> None:
    woken = trio.Event()

    async def task() -> None:
        await trio.sleep(0.01)
        threading.Thread(target=lambda: node.poller.report(woken.set)).start()
        await woken.wait()

    run(node.poller, task)


def test_what_trio_waits_for_ends_the_wait(node: PolledNode) -> None:
    ours, other = socket.socketpair()
    ours.setblocking(False)

    async def task() -> None:
        token = trio.lowlevel.current_trio_token()
        threading.Thread(target=lambda: token.run_sync_soon(other.send, b"x")).start()
        await trio.lowlevel.wait_readable(ours)
        assert ours.recv(10) == b"x"

    run(node.poller, task)
    ours.close()
    other.close()


def test_deadlines_are_kept_while_nothing_comes_and_while_sockets_never_rest(node: PolledNode) -> None:
    link = Link(node, [])
    received = link.session._received
    ends = threading.Event()

    def more(peer: str, frames: list[memoryview]) -> None:
        received(peer, frames)
        if not ends.is_set():
            link.send(b"more")

    link.session._received = more

    async def task() -> None:
        began = monotonic()
        await trio.sleep(0.02)
        assert monotonic() - began >= 0.02
        link.send(b"more")
        began = monotonic()
        await trio.sleep(0.02)
        assert monotonic() - began >= 0.02
        ends.set()

    run(node.poller, task)
    assert len(link.told) > 1
    link.close()


def test_what_trio_waits_for_has_its_turn_while_sockets_never_rest(node: PolledNode) -> None:
    link, ends = Link(node, []), threading.Event()
    received = link.session._received
    ours, other = trio.socket.socketpair()

    def more(peer: str, frames: list[memoryview]) -> None:
        received(peer, frames)
        if not ends.is_set():
            link.send(b"more")

    link.session._received = more

    async def echo() -> None:
        for _ in range(FRAMES):
            await other.send(await other.recv(1))

    async def task() -> None:
        link.send(b"more")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(echo)
            for number in range(FRAMES):
                await ours.send(bytes([number]))
                assert await ours.recv(1) == bytes([number])
        ends.set()
        ours.close()
        other.close()

    run(node.poller, task)
    # Neither has a turn more often than now and then: the flood has had some of them, and at most two for
    # each wake.
    assert 1 < len(link.told) <= 5 * FRAMES
    link.close()


def test_tasks_that_began_before_have_their_steps(node: PolledNode) -> None:
    """In whatever order Trio takes them: it chooses at random."""

    async def task() -> None:
        for _ in range(3):
            await trio.lowlevel.checkpoint()

    for _ in range(20):
        run(PolledNode().poller, task)


def test_a_signal_ends_the_wait(node: PolledNode) -> None:
    async def task() -> None:
        with trio.open_signal_receiver(signal.SIGUSR1) as signals:
            timer = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            assert await anext(signals) == signal.SIGUSR1
            timer.join()

    run(node.poller, task)


def test_a_turn_may_cancel_the_task_that_waits_with_all_others(node: PolledNode) -> None:
    """A turn that finds that the node must stop does this."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll_task.serve_directly, node.poller)
            nursery.start_soon(trio.sleep_forever)
            threading.Thread(target=lambda: node.poller.report(nursery.cancel_scope.cancel)).start()

    with_patience(main)


def test_what_is_reported_after_the_end_is_called_on_the_loop_or_never(node: PolledNode) -> None:
    called: list[int] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll_task.serve_directly, node.poller)
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        node.poller.report(lambda: called.append(1))
        await trio.sleep(0.001)

    with_patience(main)
    assert called == [1]
    node.poller.report(lambda: called.append(2))
    assert called == [1]


def test_sockets_are_served_though_tasks_never_rest(node: PolledNode) -> None:
    link, came = Link(node, []), threading.Event()
    received = link.session._received

    def noted(peer: str, frames: list[memoryview]) -> None:
        received(peer, frames)
        came.set()

    link.session._received = noted

    async def task() -> None:
        thread = threading.Thread(target=in_turns, args=(link, came))
        thread.start()
        while thread.is_alive():
            await trio.lowlevel.checkpoint()

    run(node.poller, task)
    assert len(link.told) == FRAMES
    link.close()


def test_where_trio_has_no_such_set_the_node_waits_as_a_task_does(
    node: PolledNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_task, "_trio_fd", lambda: None)
    link, waits = Link(node, []), Waits()

    async def task() -> None:
        link.send(b"frame")
        while not link.told:
            await trio.sleep(0.001)

    run(node.poller, task, waits)
    assert link.told == ["n2: frame"] and waits.count > 1
    link.close()
