"""Open transactions of a node take little memory.

That they hold up nobody is tested by the work of a turn: see tests/amqp_server/connection/test_tx_timeout.py.
"""

from __future__ import annotations

from pathlib import Path

from tests.reliability import open_transactions

COUNT = 2_000


def test_open_transactions_take_little_memory(tmp_path: Path) -> None:
    before, after = open_transactions.measure(tmp_path, COUNT)
    assert (after.rss_bytes - before.rss_bytes) / COUNT < 8_000
