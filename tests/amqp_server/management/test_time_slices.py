"""Long requests in slices: when one ends, and what is done in one step."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from amqp_server.management.changes.internal_session import AT_ONCE
from amqp_server.management.request import time_slices
from amqp_server.management.request.time_slices import LOOK_S, Slices

from .conftest import ManagedNode

pytestmark = pytest.mark.trio

SLICE_S = 0.002


class Clock:
    """Stands for the module time."""

    def __init__(self) -> None:
        self.now = 1.0

    def perf_counter(self) -> float:
        return self.now


async def _steps(clock: Clock, slices: Slices, count: int, step_s: float) -> list[int]:
    """Return after how many steps other tasks had their turns."""
    others: list[int] = []
    done = 0

    async def other() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            others.append(done)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(count):
            await slices.rest()
            clock.now += step_s
            done += 1
        nursery.cancel_scope.cancel()
    return sorted(set(others) - {0, done})


async def test_a_slice_takes_its_time_if_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time_slices, "time", clock)
    ends = await _steps(clock, Slices(1000 * SLICE_S), 40, SLICE_S / 16)
    first, second = ends
    assert 16 <= first <= 17 and 16 <= second - first <= 17


async def test_a_slice_ends_when_a_client_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = Clock(), list[float]()
    monkeypatch.setattr(time_slices, "time", clock)

    def waits() -> bool:
        looks.append(clock.now)
        # From a moment on, one waits for ever.
        return clock.now >= 1.0 + SLICE_S / 2

    ends = await _steps(clock, Slices(1000 * SLICE_S, waits), 32, SLICE_S / 32)
    first = ends[0]
    assert 16 <= first <= 16 + 2 * LOOK_S / (SLICE_S / 32)
    # From then on it ends at each look, and there is no look for each step.
    assert all(after - before <= 5 for before, after in zip(ends, ends[1:], strict=False))
    assert len(looks) <= 32 * (SLICE_S / 32) / LOOK_S + 1


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("move", {"destination": "back"}),
        ("move", {"destination": "back", "contains": "a"}),
        ("purge", {"contains": "a"}),
        ("redrive", {}),
    ],
)
async def test_few_messages_are_taken_in_one_step(
    connect_with: Any, node: ManagedNode, path: str, asked: dict[str, Any]
) -> None:
    """Others have their turns in between, however many messages a request takes."""
    left: list[tuple[int, int]] = []

    class Watched(Slices):
        async def rest(self) -> None:
            left.append((node.ready("dead"), node.ready("back")))
            await super().rest()

    client = connect_with(slices=Watched(1_000))
    for queue in ("dead", "back"):
        assert (await client.put(f"queues/%2F/{queue}", json={})).status_code == 201
    headers = {"x-first-death-queue": "back"}
    body = {
        "routing_key": "dead",
        "payload": "a",
        "payload_encoding": "string",
        "properties": {"headers": headers},
    }
    for _ in range(5 * AT_ONCE):
        assert (await client.post("exchanges/%2F/amq.default/publish", json=body)).json() == {"routed": True}
    left.clear()
    assert (await client.post(f"queues/%2F/dead/{path}", json=asked)).status_code == 200
    left.append((node.ready("dead"), node.ready("back")))
    assert left[0] == (5 * AT_ONCE, 0)
    assert left[-1] == (0, 0 if path == "purge" else 5 * AT_ONCE)
    for (taken, given), (taken_then, given_then) in zip(left, left[1:], strict=False):
        assert taken - taken_then <= AT_ONCE and given_then - given <= AT_ONCE


async def test_a_long_page_of_messages_is_one_json_object(connect_with: Any, node: ManagedNode) -> None:
    client = connect_with()
    assert (await client.put("queues/%2F/long", json={})).status_code == 201
    for number in range(120):
        body = {"routing_key": "long", "payload": f'"{number}"', "payload_encoding": "string"}
        answer = await client.post("exchanges/%2F/amq.default/publish", json=body | {"properties": {}})
        assert answer.json() == {"routed": True}
    for count in (1, 50, 51, 100, 120, 1_000):
        told = (await client.get(f"queues/%2F/long/peek?count={count}")).json()
        assert [each["payload"] for each in told["messages"]] == [
            f'"{number}"' for number in range(min(count, 120))
        ]
        assert told["looked_at"] == min(count, 120) and told.keys() == {"messages", "looked_at", "next"}
