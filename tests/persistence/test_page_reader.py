"""Pages that are not in memory: they are found without LMDB, and a thread reads them."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from persistence.commits.commit import Commit
from persistence.environment import Environment
from persistence.errors import StoreCorrupt
from persistence.journal import Journal
from persistence.pages.page_reader import PageReader
from persistence.pages.page_release import drop_mapped_pages
from persistence.pages.pages import DAMAGES, KeyRange, Read, value_spans
from persistence.record import BODY_KEY, CHUNKS_MAX
from persistence.replica_logs.logs import Groups
from persistence.replica_logs.record import StoredEntry

QUEUES = 3


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    opened = Environment.open(tmp_path, map_bytes=1 << 32)
    yield opened
    opened.close()


def reading(environment: Environment) -> Read:
    data = (environment.directory / "main" / "data.mdb").read_bytes()
    return lambda offset, size: data[offset : offset + size]


def bodies(queue_id: int, first: int, last: int) -> KeyRange:
    return KeyRange("bodies", BODY_KEY.pack(queue_id, first, 0), BODY_KEY.pack(queue_id, last, CHUNKS_MAX))


def marked(queue_id: int, seq: int, size: int) -> bytes:
    """A payload that shares no part with any other."""
    return Random(queue_id * 1_000_003 + seq).randbytes(size)


def test_the_places_of_values_are_those_that_lmdb_reads(environment: Environment) -> None:
    journal, random = Journal(environment), Random(1)
    sizes: dict[tuple[int, int], int] = {}
    for seq in range(400):
        for queue_id in range(1, QUEUES + 1):
            size = random.choice((5, 300, 1500, 3000, 20_000))
            sizes[queue_id, seq] = size
            journal.append(queue_id, seq, 1, [b"h", marked(queue_id, seq, size)], 1)
        if seq % 50 == 0:
            journal.settle(random.randint(1, QUEUES), range(seq // 2, seq // 2 + 5))
            environment.flush()
    environment.flush()
    read = reading(environment)
    for _ in range(60):
        queue_id, first = random.randint(1, QUEUES), random.randrange(400)
        last = min(399, first + random.randrange(40))
        seen: list[bytes] = []

        def noted(offset: int, size: int, seen: list[bytes] = seen) -> bytes:
            seen.append(read(offset, size))
            return seen[-1]

        spans = value_spans(noted, [bodies(queue_id, first, last)])
        touched = b"".join([*seen, *[read(*span) for span in spans]])
        there = {record.first_seq for record in journal.read(queue_id, first, last)}
        assert there
        for seq in there:
            payload = marked(queue_id, seq, sizes[queue_id, seq])
            # A payload in the head of a record has no body, which would lie in another table.
            assert sizes[queue_id, seq] <= 511 or payload in touched, (queue_id, seq)
        wanted = sum(sizes[queue_id, seq] for seq in there)
        assert sum(span.size for span in spans) <= wanted + 30_000 + 4096 * len(there)


def test_nothing_is_found_where_nothing_is(environment: Environment) -> None:
    assert value_spans(reading(environment), [bodies(1, 0, 100)]) == []
    with pytest.raises(ValueError, match="no such table"):
        value_spans(reading(environment), [KeyRange("unheard", b"", b"\xff")])


def test_a_file_that_changes_underneath_does_no_harm(environment: Environment) -> None:
    journal, random = Journal(environment), Random(2)
    for seq in range(400):
        journal.append(1, seq, 1, [b"h", marked(1, seq, 1500 + 10 * seq)], 1)
    environment.flush()
    whole = (environment.directory / "main" / "data.mdb").read_bytes()
    outcomes: dict[bool, int] = {True: 0, False: 0}
    for _ in range(100):
        data = bytearray(whole)
        for _ in range(20):
            at = 4096 * random.randrange(len(data) // 4096)
            data[at : at + 4096] = random.randbytes(4096)

        def read(offset: int, size: int, data: bytearray = data) -> bytes:
            return bytes(data[offset : offset + size])

        try:
            value_spans(read, [bodies(1, 0, 400)])
            outcomes[True] += 1
        except DAMAGES:
            outcomes[False] += 1
    assert outcomes[True]
    assert outcomes[False]


async def test_cold_pages_are_read_in_the_thread_and_are_in_memory_then(
    environment: Environment, nursery: trio.Nursery
) -> None:
    if sys.platform != "linux":
        pytest.skip("who can't look has everything read")
    journal, groups = Journal(environment), Groups(environment)
    journal.append(1, 0, 1, [b"h", marked(1, 0, 3_000_000)], 1)
    groups.append(5, [StoredEntry(1, 1, 0, marked(5, 1, 2_000_000))])
    environment.flush()
    turns: list[str] = []

    def in_turn(call: Callable[[], None]) -> None:
        turns.append("turn")
        call()

    nursery.start_soon(environment.reader.run, in_turn)
    await trio.testing.wait_all_tasks_blocked()
    warm: list[Callable[[Callable[[], None]], bool]] = [
        lambda done: journal.warm(1, [(0, 0)], done),
        lambda done: groups.warm(5, [(1, 1)], done),
    ]
    assert [ask(turns.clear) for ask in warm] == [True, True]
    for ask in warm:
        _drop_page_cache(environment)
        done = trio.Event()
        if ask(done.set):
            pytest.skip("the page cache of this file system can't be dropped")
        with trio.fail_after(30):
            await done.wait()
        assert turns == ["turn"]
        assert ask(turns.clear)
        turns.clear()
    assert journal.read(1, 0, 0)[0].payload[1:] == marked(1, 0, 3_000_000)


async def test_nobody_is_called_after_the_end(environment: Environment, slow: None) -> None:
    called: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(environment.reader.run, lambda call: call())
        await trio.testing.wait_all_tasks_blocked()
        assert not Journal(environment).warm(1, [(0, 0)], lambda: called.append("early"))
        nursery.cancel_scope.cancel()
    for _ in range(20):
        await trio.sleep(0.005)
    assert called == []
    # The reader has stopped, so nobody could be told.
    assert Journal(environment).warm(1, [(0, 0)], lambda: called.append("late"))


async def test_what_a_turn_raises_ends_the_task(environment: Environment, slow: None) -> None:
    def in_turn(call: Callable[[], None]) -> None:
        raise StoreCorrupt(environment.directory, "as was asked for", lasts=True)

    with pytest.RaisesGroup(StoreCorrupt):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(environment.reader.run, in_turn)
            await trio.testing.wait_all_tasks_blocked()
            assert not Journal(environment).warm(1, [(0, 0)], lambda: None)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all pages count as not in memory."""
    monkeypatch.setattr(PageReader, "_at_hand", lambda self, ranges: False)


def _drop_page_cache(environment: Environment) -> None:
    data_file = environment.directory / "main" / "data.mdb"
    drop_mapped_pages(data_file)
    file = os.open(data_file, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


RECORDS = 4_000


def drop_all(journal: Journal, groups: Groups) -> None:
    journal.drop(1)
    groups.drop(5)


def settle_all(journal: Journal, groups: Groups) -> None:
    journal.settle(1, range(RECORDS))
    groups.snapshot(5, RECORDS, 1, b"state")


@pytest.mark.parametrize("remove", [drop_all, settle_all])
async def test_a_commit_has_a_thread_wait_for_the_pages_of_what_it_deletes(
    environment: Environment, nursery: trio.Nursery, remove: Callable[[Journal, Groups], None]
) -> None:
    if sys.platform != "linux":
        pytest.skip("who can't look has everything read")
    journal, groups, commit = Journal(environment), Groups(environment), Commit(environment)
    for seq in range(RECORDS):
        journal.append(1, seq, 1, [b"h" * 60, marked(1, seq, 2_500)], 1)
    groups.append(5, [StoredEntry(seq, 1, 0, marked(5, seq, 2_500)) for seq in range(1, RECORDS + 1)])
    environment.flush()
    nursery.start_soon(commit.run)
    await commit.barrier()
    _drop_page_cache(environment)
    if (
        environment.reader.ahead(KeyRange("records", b"", b"\xff"), lambda last: bodies(1, 0, RECORDS)).job
        is None
    ):
        pytest.skip("the page cache of this file system can't be dropped")
    waited = _waits_for_the_disk()
    remove(journal, groups)
    durable = trio.Event()
    commit.request(durable.set, to_store=True)
    with trio.fail_after(60):
        await durable.wait()
        while environment.has_erasures():
            await commit.barrier()
    # A commit reads these pages in any case: the list of free pages, and the last pages of its tables.
    assert _waits_for_the_disk() - waited < 40
    assert journal.read(1, 0, RECORDS) == []
    commit.stop()


def _waits_for_the_disk() -> int:
    """Return the waits of this thread so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
