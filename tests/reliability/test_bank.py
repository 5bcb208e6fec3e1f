"""Transactions of clients over queues and streams of all nodes, with kills: no coin is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.amqp_server.cluster.ring import Ring
from tests.reliability import bank


def test_no_coin_is_lost_or_doubled(tmp_path: Path) -> None:
    with Ring(tmp_path, "--node-down-ms", "500") as ring:
        count = bank.run(ring, seconds=8, every=3)
    assert count["committed"] > 10 and count["killed"] + count["frozen"] > 0, count


@pytest.mark.long
def test_minutes_of_trouble(tmp_path: Path) -> None:
    with Ring(tmp_path) as ring:
        count = bank.run(ring, seconds=180, every=4, clerks=6)
    assert count["committed"] > 100 and count["killed"] > 5 and count["frozen"] > 2, count
