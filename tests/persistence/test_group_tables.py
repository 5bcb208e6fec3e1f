"""Raft groups on disk: damage, sizes, erasing in portions, and the reads of a start."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from persistence.commits.stepped import SteppedCommit
from persistence.environment import Environment
from persistence.errors import CorruptSnapshot, EntryLost
from persistence.pages.page_release import LINUX, drop_mapped_pages, resident_shared_bytes
from persistence.record import CHUNK_BYTES, POSITION
from persistence.replica_logs.logs import Groups
from persistence.replica_logs.record import (
    CHUNK_KEY,
    ENTRY_BYTES_MAX,
    StoredEntry,
    pack_entry_head,
    pack_snapshot,
)
from persistence.replica_logs.writer import ERASE_KEYS_MAX
from tests.stores.memory import MemoryEnvironment

NEEDLE = b"\xa5needle\x5a"


def open_environment(path: Path) -> Environment:
    return Environment.open(path / "data", map_bytes=1 << 32)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    environment = open_environment(tmp_path)
    yield environment
    environment.close()


def entries(first: int, count: int, term: int = 1, data: bytes = b"x") -> list[StoredEntry]:
    return [StoredEntry(index, term, 0, data) for index in range(first, first + count)]


def flip_in_file(path: Path, wanted: bytes, at: int) -> None:
    """Flip a bit, `at` bytes after each place where these bytes are in the data file."""
    file = path / "data" / "main" / "data.mdb"
    raw = bytearray(file.read_bytes())
    found = raw.find(wanted)
    assert found >= 0
    while found >= 0:
        raw[found + at] ^= 0x10
        found = raw.find(wanted, found + len(wanted))
    file.write_bytes(raw)


@pytest.mark.parametrize("size", [40, 5000, CHUNK_BYTES, 2 * CHUNK_BYTES])
def test_a_flipped_bit_is_never_served_and_can_be_repaired(tmp_path: Path, size: int) -> None:
    environment = open_environment(tmp_path)
    groups = Groups(environment)
    body = NEEDLE + bytes(size)
    groups.append(1, [*entries(1, 2), StoredEntry(3, 2, 1, body), *entries(4, 1, 2)])
    environment.flush()
    environment.close()
    flip_in_file(tmp_path, NEEDLE, 3)
    environment = open_environment(tmp_path)
    groups = Groups(environment)
    (group,) = groups.recover()
    # A start does not read pages that hold only a body.
    small = size < 1000
    assert group.lost == ([3] if small else [])
    assert (group.terms, group.last_index) == ([(1, 1), (4 if small else 3, 2)], 4)
    with pytest.raises(EntryLost, match="entry 3 of Raft group 1 .*does not match") as caught:
        groups.read(1, 1, 4, 1 << 30)
    assert (caught.value.group, caught.value.index) == (1, 3)
    assert groups.read(1, 1, 2, 100) == entries(1, 2)
    assert groups.read_one(1, 4) == entries(4, 1, 2)[0]
    groups.keep(1, [StoredEntry(3, 2, 1, body)])
    for _ in range(2):
        assert groups.read_one(1, 3) == (3, 2, 1, body)
        assert groups.last_index(1) == 4
        environment.flush()
    (group,) = groups.recover()
    assert (group.lost, group.stored) == ([], [range(1, 5)])
    environment.close()


@pytest.mark.parametrize("where", ["middle", "first", "last", "only"])
@pytest.mark.parametrize("byte", [15, 16, 17, 28, 29, 33])
def test_a_damaged_head_is_a_lost_entry(tmp_path: Path, where: str, byte: int) -> None:
    """The bytes belong to the index, the version, the checksum, the term, the kind and the size."""
    index = {"middle": 12, "first": 11, "last": 14, "only": 11}[where]
    last = 11 if where == "only" else 14
    environment = open_environment(tmp_path)
    groups = Groups(environment)
    groups.append(7, entries(1, 10, term=3))
    groups.snapshot(7, 10, 3, b"state")
    groups.append(7, entries(11, last - 10, term=3))
    groups.drop_entries(7, [range(1, 5), range(6, 10)])
    environment.flush()
    environment.close()
    key = POSITION.pack(7, index)
    head, _ = pack_entry_head(key, entries(index, 1, term=3)[0])
    flip_in_file(tmp_path, key + head, byte)
    environment = open_environment(tmp_path)
    groups = Groups(environment)
    (group,) = groups.recover()
    assert (group.lost, group.first_index, group.last_index) == ([index], 11, last)
    assert group.terms == [(11, 3)]
    assert groups.last_index(7) == last
    with pytest.raises(EntryLost):
        groups.read_one(7, index)
    # A truncation removes the damaged entry, too.
    groups.append(7, entries(11, 2, term=4))
    environment.flush()
    (group,) = groups.recover()
    assert (group.lost, group.stored, group.last_index) == ([], [range(5, 6), range(10, 13)], 12)
    environment.close()


def test_a_damaged_vote_and_a_damaged_snapshot_are_told(tmp_path: Path) -> None:
    environment = open_environment(tmp_path)
    groups = Groups(environment)
    for number in (1, 2, 3):
        groups.append(number, entries(1, 3))
        groups.hard(number, 5, f"voted-{number}")
        groups.snapshot(number, 2, 1, NEEDLE * number)
    environment.flush()
    environment.close()
    flip_in_file(tmp_path, b"voted-1", 2)
    flip_in_file(tmp_path, NEEDLE * 2, 2)
    environment = open_environment(tmp_path)
    groups = Groups(environment)
    found = {group.group: group for group in groups.recover()}
    assert [found[number].hard_lost for number in (1, 2, 3)] == [True, False, False]
    assert (found[2].term, found[2].vote, found[2].snapshot) == (5, "voted-2", (2, 1))
    assert groups.read_state(1) == (2, 1, NEEDLE)
    with pytest.raises(CorruptSnapshot, match="group 2"):
        groups.read_state(2)
    environment.close()
    key, head, _ = pack_snapshot(1, 2, 1, NEEDLE)
    flip_in_file(tmp_path, key + head, 15)
    environment = open_environment(tmp_path)
    groups = Groups(environment)
    found = {group.group: group for group in groups.recover()}
    assert found[1].snapshot_lost and found[1].snapshot is None
    with pytest.raises(CorruptSnapshot, match="damaged head"):
        groups.read_state(1)
    groups.drop(1)
    environment.flush()
    assert [group.group for group in groups.recover()] == [2, 3]
    assert environment.snapshot().stat(environment.tables.snapshot_chunks)["entries"] == 2
    environment.close()


def test_a_lost_chunk_and_a_gap_are_found(environment: Environment) -> None:
    groups = Groups(environment)
    groups.append(1, [*entries(1, 3), StoredEntry(4, 1, 0, bytes(3 * CHUNK_BYTES)), *entries(5, 2)])
    environment.flush()
    txn = environment.begin_write()
    assert txn.delete(CHUNK_KEY.pack(1, 4, 1, 1), db=environment.tables.entry_chunks)
    assert txn.delete(POSITION.pack(1, 2), db=environment.tables.entries)
    txn.commit()
    environment.end_write()
    (group,) = groups.recover()
    assert (group.lost, group.last_index) == ([2], 6)
    with pytest.raises(EntryLost, match="lacks its chunk 1"):
        groups.read_one(1, 4)
    with pytest.raises(EntryLost, match="entry 2 of Raft group 1 is missing"):
        groups.read(1, 1, 3, 100)


def test_an_unknown_group_in_damaged_keys_is_left_alone(environment: Environment) -> None:
    groups = Groups(environment)
    groups.append(1, entries(1, 1))
    environment.flush()
    txn = environment.begin_write()
    head, _ = pack_entry_head(POSITION.pack(1, 1), entries(1, 1)[0])
    txn.put(POSITION.pack(2, 1), head, db=environment.tables.entries)
    txn.commit()
    environment.end_write()
    assert [group.group for group in groups.recover()] == [1]


@pytest.mark.parametrize(
    "size", [0, 1, 1000, 3000, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 5, ENTRY_BYTES_MAX]
)
def test_sizes(environment: Environment, size: int) -> None:
    groups = Groups(environment)
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    groups.append(1, [StoredEntry(1, 1, 255, body)])
    groups.snapshot(1, 1, 1, [body[:10], body[10:]])
    for _ in range(2):
        assert groups.read_one(1, 1) == (1, 1, 255, body)
        assert groups.read_state(1) == (1, 1, body)
        environment.flush()
    (group,) = groups.recover()
    assert (group.stored, group.snapshot, group.lost) == ([range(1, 2)], (1, 1), [])
    groups.snapshot(1, 1, 1, b"smaller")
    environment.flush()
    assert groups.read_state(1) == (1, 1, b"smaller")


def test_what_makes_no_sense_is_refused(environment: Environment) -> None:
    groups = Groups(environment)
    groups.append(1, entries(1, 5))
    groups.snapshot(1, 3, 1, b"")
    refused: list[Callable[[], None]] = [
        lambda: groups.append(1, entries(7, 1)),
        lambda: groups.append(1, entries(3, 1)),
        lambda: groups.append(1, [*entries(6, 1), *entries(8, 1)]),
        lambda: groups.append(1, entries(6, 1, data=bytes(ENTRY_BYTES_MAX + 1))),
        lambda: groups.truncate(1, 3),
        lambda: groups.keep(1, entries(6, 1)),
        lambda: groups.snapshot(1, 2, 1, b""),
        lambda: groups.drop_entries(1, [range(2, 5)]),
    ]
    for call in refused:
        with pytest.raises(ValueError):
            call()
    environment.flush()
    (group,) = groups.recover()
    assert (group.stored, group.snapshot, group.last_index) == ([range(1, 6)], (3, 1), 5)


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("how", ["drop_entries", "drop"])
def test_a_large_erasure_is_durable_at_once_and_carried_on(tmp_path: Path, how: str, reopen: bool) -> None:
    environment = open_environment(tmp_path)
    groups, disk = Groups(environment), SteppedCommit(environment)
    many = 3 * ERASE_KEYS_MAX
    groups.append(1, entries(1, many + 2))
    groups.snapshot(1, many, 1, b"state")
    groups.hard(1, 4, "n1")
    groups.append(2, entries(1, 1))
    environment.flush()
    if how == "drop_entries":
        groups.drop_entries(1, [range(1, many - 4), range(many - 3, many + 1)])
    else:
        groups.drop(1)
    assert disk.begin()
    disk.end()
    left = environment.snapshot().stat(environment.tables.entries)["entries"]
    assert many - ERASE_KEYS_MAX <= left <= many
    assert environment.has_erasures()
    if reopen:
        environment.close()
        environment = open_environment(tmp_path)
        groups = Groups(environment)
    expected = {2: [range(1, 2)]}
    if how == "drop_entries":
        expected[1] = [range(many - 4, many - 3), range(many + 1, many + 3)]
    assert {group.group: group.stored for group in groups.recover()} == expected
    with pytest.raises(EntryLost):
        groups.read_one(1, many // 2)
    if how == "drop":
        # The number is used again before all old entries are deleted.
        assert groups.last_index(1) == 0
        groups.append(1, entries(1, 2, term=9))
        expected[1] = [range(1, 3)]
    environment.flush()
    assert not environment.has_erasures()
    assert {group.group: group.stored for group in groups.recover()} == expected
    left = environment.snapshot().stat(environment.tables.entries)["entries"]
    assert left == sum(len(span) for spans in expected.values() for span in spans)
    environment.close()


def test_an_entry_is_kept_where_old_ones_are_still_being_erased(environment: Environment) -> None:
    groups, disk = Groups(environment), SteppedCommit(environment)
    many = 2 * ERASE_KEYS_MAX
    groups.append(1, entries(1, many))
    groups.snapshot(1, many, 1, b"state")
    environment.flush()
    groups.drop_entries(1, [range(1, many + 1)])
    assert disk.begin()
    disk.end()
    assert environment.has_erasures()
    (kept,) = entries(many - 1, 1, data=b"kept")
    groups.keep(1, [kept])
    environment.flush()
    assert groups.read_one(1, many - 1) == kept
    (group,) = groups.recover()
    assert group.stored == [range(many - 1, many)]


def test_of_two_erasures_from_one_index_on_the_longer_one_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.replica_logs.writer.ERASE_KEYS_MAX", 2)
    environment = open_environment(tmp_path)
    groups, disk = Groups(environment), SteppedCommit(environment)
    for number in (1, 2):
        groups.append(number, entries(1, 30))
        groups.snapshot(number, 30, 1, b"state")
    environment.flush()
    groups.drop_entries(1, [range(1, 20)])
    assert disk.begin()
    disk.end()
    # The other group uses up the deletions of one transaction.
    groups.drop_entries(2, [range(1, 3)])
    groups.drop_entries(1, [range(3, 5)])
    assert disk.begin()
    disk.end()
    environment.close()
    environment = open_environment(tmp_path)
    found = {group.group: group.stored for group in Groups(environment).recover()}
    assert found == {1: [range(20, 31)], 2: [range(3, 31)]}
    environment.close()


def test_what_is_replaced_leaves_no_chunks_behind(environment: Environment) -> None:
    groups = Groups(environment)
    large = bytes(3 * CHUNK_BYTES)
    groups.append(1, entries(1, 4, data=large))
    environment.flush()
    # Twice in one transaction, the second time from a later index on.
    groups.append(1, entries(2, 3, term=2))
    groups.append(1, entries(4, 1, term=3))
    environment.flush()
    assert environment.snapshot().stat(environment.tables.entry_chunks)["entries"] == 3
    groups.keep(1, entries(1, 1))
    environment.flush()
    assert [(entry.term, entry.data) for entry in groups.read(1, 1, 4, 100)] == [
        (1, b"x"),
        (2, b"x"),
        (2, b"x"),
        (3, b"x"),
    ]
    assert environment.snapshot().stat(environment.tables.entry_chunks)["entries"] == 0


@pytest.mark.skipif(not LINUX, reason="the resident set is known on Linux only")
def test_a_start_reads_no_bodies(tmp_path: Path) -> None:
    environment = Environment.open(tmp_path / "data", map_bytes=1 << 32, resident_bytes_max=1 << 40)
    groups = Groups(environment)
    megabyte = bytes(1 << 20)
    groups.append(1, entries(1, 64, data=megabyte))
    environment.flush()
    environment.close()
    environment = Environment.open(tmp_path / "data", map_bytes=1 << 32, resident_bytes_max=1 << 40)
    drop_mapped_pages(environment.directory / "main" / "data.mdb")
    before = resident_shared_bytes()
    (group,) = Groups(environment).recover()
    assert group.stored == [range(1, 65)]
    assert resident_shared_bytes() - before < 4 << 20
    assert len(Groups(environment).read(1, 1, 64, 1 << 30)) == 64
    assert resident_shared_bytes() - before > 48 << 20
    environment.close()


def test_damage_in_memory() -> None:
    store = MemoryEnvironment()
    groups = Groups(store)
    groups.append(1, entries(1, 5))
    groups.snapshot(1, 2, 1, b"state")
    store.flush()
    store.groups.flip(1, 4)
    assert store.groups.tear(1) == 5
    assert store.groups.flip_any() in [(1, index) for index in range(1, 6)]
    store.groups.flip_snapshot(1)
    store.crash()
    groups = Groups(store)
    (group,) = groups.recover()
    assert {4, 5} <= set(group.lost) and group.last_index == 5
    for index in group.lost:
        with pytest.raises(EntryLost):
            groups.read_one(1, index)
    with pytest.raises(CorruptSnapshot):
        groups.read_state(1)
    groups.keep(1, entries(1, 5))
    groups.snapshot(1, 2, 1, b"again")
    store.flush()
    assert groups.read(1, 1, 5, 100) == entries(1, 5)
    assert groups.read_state(1) == (2, 1, b"again")
    (group,) = groups.recover()
    assert group.lost == []
