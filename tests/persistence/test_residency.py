import os
import sys
from collections.abc import Iterator
from mmap import MADV_RANDOM, PROT_READ, mmap
from pathlib import Path

import pytest

from persistence.environment import Environment
from persistence.journal import Journal
from persistence.pages.page_release import drop_mapped_pages, resident_shared_bytes
from persistence.record import CHUNK_BYTES

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
    # Nothing is lost in the middle of a write transaction either.
    journal.append(1, 64, 1, payload)
    layer = environment.pending.take_for_store(oldest=True)
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


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Environment]:
    """64 records, each a message of 1 MB, none of it resident, and if possible none in the page cache."""
    environment = Environment.open(tmp_path, map_bytes=1 << 32, resident_bytes_max=1 << 40)
    journal = Journal(environment)
    for seq in range(64):
        journal.append(1, seq, 1, [b"head", b"r" * MEGABYTE], head_parts=1)
    environment.flush()
    forget_pages(tmp_path / "main" / "data.mdb")
    yield environment
    environment.close()


def test_a_start_reads_no_bodies(large: Environment) -> None:
    before = resident_shared_bytes()
    heads = [bytes(record.head) for queue in Journal(large).recover() for record in queue.records]
    assert heads == [b"head"] * 64
    assert resident_shared_bytes() - before < 2 * MEGABYTE


def forget_pages(path: Path) -> None:
    """Drop pages from the resident set and from the page cache: around a page that it reads, the kernel also
    maps the cached ones.
    """
    drop_mapped_pages(path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def mapped_by_touching(path: Path, step: int) -> int:
    """Return how many bytes of a file become resident by reading one byte in each step of it."""
    with path.open("rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as mapped:
        mapped.madvise(MADV_RANDOM)
        before = resident_shared_bytes()
        for at in range(0, len(mapped), step):
            mapped[at]
        return resident_shared_bytes() - before


@pytest.mark.parametrize("how", ["settle", "settle one by one", "drop"])
def test_settling_reads_no_bodies(large: Environment, how: str) -> None:
    """LMDB reads the first page of each value that it deletes, and no other pages may become resident."""
    journal = Journal(large)
    data = large.directory / "main" / "data.mdb"
    first_pages = mapped_by_touching(data, CHUNK_BYTES)
    forget_pages(data)
    before = resident_shared_bytes()
    if how == "drop":
        journal.drop(1)
        large.flush()
    for seqs in [range(64)] if how == "settle" else [range(seq, seq + 1) for seq in range(64)]:
        journal.settle(1, seqs)
        large.flush()
    assert list(journal.recover()) == []
    for table in (large.tables.records, large.tables.bodies):
        assert large.snapshot().stat(table)["entries"] == 0
    assert resident_shared_bytes() - before < first_pages + 2 * MEGABYTE


def test_a_bounded_set_at_the_usual_bound(tmp_path: Path) -> None:
    """Thousands of small records are read, and the bound holds meanwhile."""
    bound = 4 * MEGABYTE
    environment = Environment.open(tmp_path, map_bytes=1 << 32, resident_bytes_max=bound)
    journal = Journal(environment)
    for seq in range(40_000):
        journal.append(1, seq, 1, b"h" * 400)
    environment.flush()
    drop_mapped_pages(tmp_path / "main" / "data.mdb")
    before = resident_shared_bytes()
    most = count = 0
    for queue in journal.recover():
        for _ in queue.records:
            count += 1
            if count % 100 == 0:
                most = max(most, resident_shared_bytes() - before)
    assert count == 40_000
    # The bound is checked after each quarter of it, and the kernel maps some pages around each page.
    assert most < 2 * bound
    environment.close()
