"""Counters of a node with workers are those of one node: they rise, whatever becomes of a worker."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

from tests.reliability.node import Node

from .test_node import DURABLE, channels, get, one_at_each, pids, until, worker_of, workers


def counters(node: Node) -> dict[str, int]:
    told = get(node, "overview")
    rows = told["message_stats"] | told["churn_rates"]
    return {name: value for name, value in rows.items() if not name.endswith("_details")}


def fell(before: dict[str, int], now: dict[str, int]) -> dict[str, tuple[int, int]]:
    return {name: (old, now.get(name, 0)) for name, old in before.items() if now.get(name, 0) < old}


def is_back(
    node: Node,
    name: str,
    ran: dict[str, int],
    before: dict[str, int],
    falls: list[dict[str, tuple[int, int]]],
) -> bool:
    if less := fell(before, counters(node)):
        falls.append(less)
    return pids(node, 2)[name] != ran[name]


def test_counters_do_not_fall_when_a_worker_is_killed(tmp_path: Path) -> None:
    with workers(tmp_path, 2) as node:
        for name in ("n1/1", "n1"):
            with one_at_each(node, 2) as opened:
                for home, channel in opened.items():
                    channel.queue_declare(f"of {home}", durable=True)
                    for _ in range(10):
                        channel.basic_publish("", f"of {home}", b"x", DURABLE)
                # The answer, not a sample that may come later, is what must not be taken back.
                before, ran = counters(node), pids(node, 2)
                assert before["publish"] >= 20
                os.kill(ran[name], signal.SIGKILL)
                falls: list[dict[str, tuple[int, int]]] = []
                until("it is back", partial(is_back, node, name, ran, before, falls))
                assert not falls
        with channels(node, 1) as (channel,):
            published = counters(node)["publish"]
            channel.basic_publish("", "of n1", b"x", DURABLE)
            now = counters(node)
            assert now["publish"] == published + 1
            # Clients of a worker that was killed are gone.
            assert now["connection_created"] - now["connection_closed"] == len(get(node, "connections"))


def test_a_connection_that_moves_counts_its_confirms_once(tmp_path: Path) -> None:
    with workers(tmp_path, 2) as node, one_at_each(node, 2) as opened:
        opened["n1/1"].queue_declare("there", durable=True)
        moving = opened["n1"]
        before = counters(node)
        # It stays as long as nobody can tell where it belongs.
        for _ in range(5):
            moving.basic_publish("", "nowhere", b"x")
        moving.basic_publish("", "there", b"x", DURABLE)
        assert worker_of(node, moving) == "n1/1"
        now = counters(node)
        assert (now["publish"], now["confirm"]) == tuple(
            before.get(name, 0) + 6 for name in ("publish", "confirm")
        )
