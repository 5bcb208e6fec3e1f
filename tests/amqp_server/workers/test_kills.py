"""Workers are killed under load: what was confirmed is there, whoever served the client then."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.reliability.bodies import body, number
from tests.reliability.client import Address, ChannelClosed, Client, Confirm, Gone
from tests.reliability.load import Worker
from tests.reliability.node import Node, wait_until
from tests.reliability.test_kill import BUDGET, World

from .test_node import get

WORKERS = 3
QUEUES = 6
STORM_S = 5.0
#: What a client is told whose queue is on a worker that is down.
DOWN = "down or inaccessible"


def processes(node: Node) -> list[int]:
    """Return the workers that run."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                parent = (each / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                # It has ended meanwhile.
                continue
            if int(parent) == node.pid:
                found.append(int(each.name))
    return found


def kill_one(node: Node, chosen: random.Random) -> None:
    victim = chosen.choice(processes(node))
    os.kill(victim, signal.SIGKILL)
    wait_until("another one runs", lambda: len({*processes(node)} - {victim}) == WORKERS)


def ended(worker: Worker) -> None:
    try:
        worker.join()
    except ChannelClosed as closed:
        assert DOWN in str(closed)


@pytest.mark.parametrize("how", ["parent", "workers"])
def test_killed_under_load(tmp_path: Path, how: str) -> None:
    """The messages of one client go to queues of all workers, some of them in transactions."""
    with Node(tmp_path, *BUDGET, "--workers", str(WORKERS)) as node:
        world = World(node, seed=3)
        world.declare()
        for drain in (False, True):
            workers = world.load(1.5)
            if how == "parent":
                node.kill()
                node.start()
            else:
                for pid in processes(node):
                    os.kill(pid, signal.SIGKILL)
                    time.sleep(world.random.random() * 0.05)
            for worker in workers:
                ended(worker)
            wait_until("all serve again", lambda: serves(node, world.ledgers))
            # A part of a transaction is not seen before its queue knows the decision.
            wait_until("all is decided", lambda: not get(node, "transactions"))
            world.check(drain=drain)


def serves(node: Node, queues: object) -> bool:
    try:
        client = Client(node.port)
        for name in {*queues}:  # type: ignore[misc]
            client.count(name)
        client.close()
    except (Gone, ChannelClosed, OSError):
        return False
    return True


class Visitor(threading.Thread):
    """Connects, publishes a few messages to one queue, which hands the connection over, and comes again."""

    def __init__(self, node: Node, numbers: Callable[[], int], seed: int) -> None:
        super().__init__(daemon=True)
        self._node = node
        self._next = numbers
        self._random = random.Random(seed)
        self.over = threading.Event()
        self.confirmed: dict[str, list[int]] = {}
        self.published: dict[str, list[int]] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.is_set():
                self._visit()
        except BaseException as error:  # noqa: BLE001 - it is raised where the test waits
            self.error = error

    def _visit(self) -> None:
        queue = f"q{self._random.randrange(QUEUES)}"
        seqs = [self._next() for _ in range(self._random.choice((1, 5)))]
        self.published.setdefault(queue, []).extend(seqs)
        try:
            client = Client(self._node.port)
            client.confirms()
            data = b"".join(Address("", queue).message(body(seq, 100)) for seq in seqs)
            # In two pieces: the first one may end within a message.
            cut = self._random.randrange(len(data) + 1)
            client.send(data[:cut])
            client.send(data[cut:])
            answered: set[int] = set()
            while len(answered) < len(seqs):
                for event in client.receive():
                    assert isinstance(event, Confirm), event
                    if event.nack:
                        # Its queue is on the worker that is down.
                        return
                    answered |= {*range(1 if event.multiple else event.tag, event.tag + 1)}
            client.close()
        except (Gone, OSError):
            return
        self.confirmed.setdefault(queue, []).extend(seqs)


def test_connections_go_over_while_workers_are_killed(tmp_path: Path) -> None:
    with Node(tmp_path, "--workers", str(WORKERS)) as node:
        openers = [Client(node.port) for _ in range(QUEUES)]
        for index, client in enumerate(openers):
            client.declare(f"q{index}")
            client.close()
        numbers, chosen = count(1), random.Random(5)
        visitors = [Visitor(node, numbers.__next__, seed) for seed in range(4)]
        for visitor in visitors:
            visitor.start()
        ends = time.monotonic() + STORM_S
        while time.monotonic() < ends:
            time.sleep(0.2 + chosen.random() * 0.5)
            kill_one(node, chosen)
        for visitor in visitors:
            visitor.over.set()
        for visitor in visitors:
            visitor.join(60)
            assert not visitor.is_alive()
            if visitor.error is not None:
                raise visitor.error
        queues = [f"q{index}" for index in range(QUEUES)]
        wait_until("all serve again", lambda: serves(node, queues))
        total = 0
        for queue in queues:
            client = Client(node.port)
            waiting = client.count(queue)
            client.consume(queue, 0)
            got = [number(each.body) for each in client.deliveries(waiting)]
            client.close()
            confirmed = {seq for visitor in visitors for seq in visitor.confirmed.get(queue, ())}
            published = {seq for visitor in visitors for seq in visitor.published.get(queue, ())}
            assert len({*got}) == len(got), queue
            assert confirmed <= {*got} <= published, queue
            total += len(confirmed)
        assert total > 50
