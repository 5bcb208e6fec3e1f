"""Transactions of clients over queues, streams and groups of all nodes, with kills, stalls and cut links: the
judge of histories finds nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.mqd import MqdCluster
from tests.reliability import bank
from tests.reliability.node import Node


def test_no_transaction_is_seen_in_part() -> None:
    with MqdCluster(("n1", "n2", "n3"), "--node-down-ms", "500") as cluster:
        count = bank.run(cluster, seconds=8, every=3)
    assert count["committed"] > 10 and count["sums"] > 0, count
    assert count["killed"] + count["frozen"] + count["cut off"] > 0, count


def test_no_transaction_of_one_node_is_seen_in_part(tmp_path: Path) -> None:
    """All queues, streams and groups are in one log, which is cut off by kill -9 again and again."""
    with Node(tmp_path) as node:
        count = bank.run(bank.Alone(node), seconds=5, every=0.8)
    assert count["committed"] > 10 and count["sums"] > 0 and count["killed"] > 0, count


@pytest.mark.long
def test_a_minute_of_kills_of_one_node(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        count = bank.run(bank.Alone(node), seconds=60, every=0.7, clerks=6)
    assert count["committed"] > 100 and count["sums"] > 10 and count["killed"] > 5, count


@pytest.mark.long
def test_minutes_of_trouble() -> None:
    with MqdCluster() as cluster:
        count = bank.run(cluster, seconds=180, every=4, clerks=6)
    assert count["committed"] > 100 and count["sums"] > 10, count
    assert min(count["killed"], count["frozen"], count["cut off"]) > 2, count
