"""What a row of /api/queues costs, in calls of mqd's own functions: a list may have 100,000 rows.

As in benchmarks.ways, calls count that enter (or resume) a function of the broker. The cost of a row is what
100 queues more cost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest
from pamqp import commands

from amqp_server.management.request.time_slices import Slices
from amqp_server.management.statistics.sampler import Sampler

from .conftest import ManagedNode, published
from .test_everywhere import Two

pytestmark = [pytest.mark.trio, pytest.mark.pure]
ROOT = Path(__file__).parents[3]
PACKAGES = tuple(f"{ROOT / name}/" for name in ("amqp_server", "exchanges", "persistence", "quorum_queue"))
#: Parts of a function, not calls.
INNER = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
PAGE = "queues?page=1&page_size=500&sort=messages"


class Calls:
    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, at: FrameType, event: str, _: Any) -> None:
        code = at.f_code
        if event == "call" and code.co_filename.startswith(PACKAGES) and code.co_name not in INNER:
            self.count += 1


async def calls_of_a_row(client: httpx.AsyncClient, path: str, declare: Callable[[int], None]) -> float:
    counts = []
    for start, stop in ((0, 10), (10, 110)):
        for number in range(start, stop):
            declare(number)
        with Calls() as calls:
            answer = await client.get(path)
        told = answer.json()
        assert len(told["items"] if isinstance(told, dict) else told) == stop
        counts.append(calls.count)
    return (counts[1] - counts[0]) / 100


# Before columns had a table: 46, 52, 56, 53 and 16.
@pytest.mark.parametrize(
    ("path", "state", "most"),
    [
        ("queues", "unused", 15),
        # The age of the message takes three calls.
        ("queues", "with a message", 19),
        ("queues", "sampled", 21),
        (PAGE, "unused", 21),
        ("queues?columns=name,messages", "unused", 10),
    ],
)
async def test_a_row_of_one_node(
    node: ManagedNode,
    connect_with: Callable[..., httpx.AsyncClient],
    sampler: Sampler,
    path: str,
    state: str,
    most: int,
) -> None:
    peer = node.peer()
    peer.session.opened()
    peer.call(1, commands.Channel.Open())
    # Long slices: else a slow machine rests more often.
    client = connect_with(slices=Slices(1_000))

    def declare(number: int) -> None:
        peer.call(1, commands.Queue.Declare(queue=f"q{number}", durable=True))
        if state != "unused":
            peer.send(published(1, "", f"q{number}", b"x"))
        if state == "sampled":
            sampler.histories.record(node.broker.vhost("/").queues[f"q{number}"], [1] * 15)

    await sampler.sample()
    assert await calls_of_a_row(client, path, declare) <= most


# On all nodes together. Before: 90, 120 and 94.
@pytest.mark.parametrize(("path", "most"), [("queues", 22), (PAGE, 36), ("queues?columns=name,messages", 24)])
async def test_a_row_of_three_nodes(tmp_path: Path, path: str, most: int) -> None:
    names = ("n1", "n2", "n3")
    three = Two(tmp_path, up=names, down=())
    app = three.apis["n1"].app(requests_max=8)
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 12345))
    login = httpx.BasicAuth("admin", "admin")
    async with httpx.AsyncClient(transport=transport, base_url="http://b/api/", auth=login) as client:
        assert (
            await calls_of_a_row(client, path, lambda number: three.declare(f"q{number}", names[number % 3]))
            <= most
        )
