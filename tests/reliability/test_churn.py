"""Clients and queues that come and go leave nothing behind; `make soak` is the long form."""

from __future__ import annotations

from pathlib import Path

from tests.reliability.churn import BODY, MESSAGES, SLACK_BYTES, churn
from tests.reliability.node import Node

ROUNDS = 120


def test_what_came_and_went_has_left_nothing(tmp_path: Path) -> None:
    # Enough that a leak would show.
    assert ROUNDS * MESSAGES * len(BODY) > 10 * SLACK_BYTES
    with Node(tmp_path, "--disk-free-min-bytes", "0") as node:
        churn(node, ROUNDS)
