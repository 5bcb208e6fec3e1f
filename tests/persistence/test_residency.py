import sys
from pathlib import Path

import pytest

from persistence.environment import Environment
from persistence.journal import Journal
from persistence.residency import drop_mapped_pages, resident_shared_bytes

MEGABYTE = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux only")


def test_pages_are_given_back_and_come_again(tmp_path: Path) -> None:
    environment = Environment.open(tmp_path, map_bytes=1 << 32, resident_bytes_max=1 << 40)
    journal = Journal(environment)
    payload = b"r" * MEGABYTE
    for seq in range(64):
        journal.append(1, seq, 1, payload)
    environment.flush()
    before = resident_shared_bytes()
    assert len(journal.read(1, 0, 63)) == 64
    grown = resident_shared_bytes() - before
    assert grown > 50 * MEGABYTE
    drop_mapped_pages(tmp_path / "main" / "data.mdb")
    assert resident_shared_bytes() - before < 5 * MEGABYTE
    assert all(record.payload == payload for record in journal.read(1, 0, 63))
    # In the middle of a write transaction, too, nothing is lost.
    journal.append(1, 64, 1, payload)
    layer = environment.pending.take()
    transaction = environment.transaction(layer)
    for _ in transaction.apply():
        drop_mapped_pages(tmp_path / "main" / "data.mdb")
    transaction.commit()
    transaction.finish()
    environment.pending.remove(layer)
    assert [record.payload for record in journal.read(1, 63, 64)] == [payload, payload]
    environment.close()


def test_tend_acts_above_the_bound_only(tmp_path: Path) -> None:
    environment = Environment.open(tmp_path, map_bytes=1 << 32, resident_bytes_max=1 << 40)
    journal = Journal(environment)
    for seq in range(32):
        journal.append(1, seq, 1, b"r" * MEGABYTE)
    environment.flush()
    before = resident_shared_bytes()
    assert len(journal.read(1, 0, 31)) == 32
    environment.tend()
    assert resident_shared_bytes() - before > 25 * MEGABYTE
    environment._resident_bytes_max = 0
    environment.tend()
    assert resident_shared_bytes() - before < 5 * MEGABYTE
    environment.close()
