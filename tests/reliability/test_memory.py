"""A queue with many times more data than the memory budget works in both directions, and memory stays bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability.flow import limited, through

MIB = 1 << 20
BUDGET = 40 * MIB
TOTAL = 300 * MIB
UNSYNCED = 16 * MIB
OPTIONS = ("--memory-budget-bytes", str(BUDGET), "--unsynced-high-bytes", str(UNSYNCED))
#: An idle node has about 60 MiB, mapped pages of the store may take 64 and a quarter more, a transaction that is
#: being written is in memory twice, and what is on its way to clients is not counted.
RESIDENT_MAX = BUDGET + 2 * UNSYNCED + 60 * MIB + 80 * MIB + 44 * MIB


@pytest.mark.parametrize("persistent", [True, False], ids=["durable", "transient"])
def test_300_mb_under_a_40_mb_budget(tmp_path: Path, persistent: bool) -> None:
    """Memory is bounded, every byte comes back once and in order, and the disk is used again."""
    with limited(tmp_path, *OPTIONS) as (node, watch):
        first = through(node, "first", TOTAL, persistent=persistent, watch=watch, backlog_share=0.7)
        disk = node.disk_bytes()
        second = through(node, "second", TOTAL, persistent=persistent, watch=watch, backlog_share=0.7)
        print(first.text, second.text, sep="\n")
        assert watch.peak.samples > 10
        assert watch.peak.resident < RESIDENT_MAX, f"{watch.peak.resident >> 20} MiB resident"
        assert node.disk_bytes() < disk * 1.3, "the space of what was consumed is not used again"
