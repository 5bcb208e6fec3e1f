"""The ways of a message do not grow: counts of calls and files, which no load on the machine changes.

A change that makes one of them longer says why, and raises the bound here and the table in
docs/architecture.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import ways

#: The most calls of functions of the broker, and the most files, for one message. On three nodes the figures
#: depend on what is under way at the same time: `python -m benchmarks.ways` shows them.
BOUNDS = {
    "one node: transient publish, deliver": (130, 34),
    "one node: publish, confirm": (205, 41),
    "one node: publish, confirm, deliver, ack": (390, 49),
}


@pytest.mark.pure
@pytest.mark.trio
async def test_a_message_takes_no_more_calls_and_files(tmp_path: Path) -> None:
    found = {row.what: row.way async for row in ways.one_node(tmp_path, (1,))}
    assert found.keys() == BOUNDS.keys()
    longer = {
        what: (way.calls, way.files)
        for what, way in found.items()
        if way.calls > BOUNDS[what][0] or way.files > BOUNDS[what][1]
    }
    assert not longer
