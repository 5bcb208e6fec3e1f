"""The reasons to refuse a data directory that a node can find without a cluster."""

from __future__ import annotations

import msgspec
import pytest

from amqp_server.cluster.errors import ClusterError
from amqp_server.cluster.membership.membership import (
    SALTS,
    STARTS_APART,
    Directory,
    Founded,
    Seen,
    check_alone,
)


class Notes:
    """Metadata in memory."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], bytes] = {}

    def put(self, table: str, key: str, value: bytes) -> None:
        self.rows[table, key] = value

    def delete(self, table: str, key: str) -> None:
        del self.rows[table, key]

    def items(self, table: str) -> list[tuple[str, bytes]]:
        return [(key, value) for (of, key), value in self.rows.items() if of == table]


FOUNDED = Founded({"n1": "d1", "n2": "d2"}, name="n1")


def test_incarnations_rise_whatever_the_clock_says() -> None:
    notes = Notes()
    assert Directory(notes, "d1", 1).begin(1_000, salt=0) == 1_000
    assert Directory(notes, "d1", 1).begin(1_000, salt=0) == 1_000 + STARTS_APART
    assert Directory(notes, "d1", 1).begin(5, salt=0) == 1_000 + 2 * STARTS_APART
    assert Directory(notes, "d1", 1).begin(9_000, salt=0) == 9_000
    # A restored copy does not reuse a number that the directory had later and has forgotten.
    copy = notes.rows.copy()
    numbers: list[int] = []
    for salt in (3, SALTS + 7, 11):
        notes.rows = copy.copy()
        numbers.append(Directory(notes, "d1", 1).begin(5, salt))
    assert numbers == [9_003 + STARTS_APART, 9_007 + STARTS_APART, 9_011 + STARTS_APART]


def test_whose_directory_it_is() -> None:
    notes = Notes()
    Directory(notes, "d1", 1).check("data", "n1")
    check_alone(notes, "data")
    Directory(notes, "d1", 1).note_founded(FOUNDED)
    directory = Directory(notes, "d1", 1)
    assert directory.founded == FOUNDED
    directory.check("data", "n1")
    with pytest.raises(ClusterError, match="belongs to node 'n1' of a cluster, not to 'n2'"):
        directory.check("data", "n2")
    with pytest.raises(ClusterError, match="belongs to node 'n1' of a cluster: start it with --peers"):
        check_alone(notes, "data")
    directory.note_out("it had to go")
    with pytest.raises(ClusterError, match="data: it had to go"):
        Directory(notes, "d1", 1).check("data", "n1")


BEFORE, NOW = 1_000, 2_000


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        # Nobody has seen anything.
        (Seen(), False),
        # The last start, this one, or an earlier one, as expected.
        (Seen(incarnation=BEFORE), False),
        (Seen(incarnation=NOW), False),
        (Seen(incarnation=900), False),
        # A start that this directory does not remember.
        (Seen(incarnation=1_500), True),
        # The disk had come as far as this one, not as far, or farther.
        (Seen(BEFORE, "d1", BEFORE, 50), False),
        (Seen(BEFORE, "d1", BEFORE, 49), False),
        (Seen(BEFORE, "d1", BEFORE, 51), True),
        # That was another disk, or a position reported since this start.
        (Seen(BEFORE, "d0", BEFORE, 51), False),
        (Seen(NOW, "d1", NOW, 51), False),
    ],
)
def test_a_directory_that_is_older_than_what_others_saw_is_recognised(seen: Seen, expected: bool) -> None:
    notes = Notes()
    Directory(notes, "d1", 1).begin(BEFORE, salt=0)
    assert Directory(notes, "d1", 50).turned_back("n1", FOUNDED, seen, NOW) is expected


def test_an_empty_directory_is_not_turned_back() -> None:
    """It remembers nothing and says so, which is a different case."""
    assert not Directory(Notes(), "d9", 3).turned_back("n1", FOUNDED, Seen(900, "d1", 900, 51), NOW)


def test_a_new_disk_is_not_turned_back_before_it_has_had_a_word() -> None:
    """The clock was behind, so that the first start came too early, and was stopped; only then the disk had a
    word in the log.
    """
    notes, seen = Notes(), Seen(incarnation=1_500)
    Directory(notes, "d9", 1).begin(BEFORE, salt=0)
    Directory(notes, "d9", 1).note_founded(msgspec.structs.replace(FOUNDED, lost=True))
    directory = Directory(notes, "d9", 2)
    assert not directory.turned_back("n1", FOUNDED, seen, NOW)
    directory.note_began()
    assert directory.turned_back("n1", FOUNDED, seen, NOW)
    assert Directory(notes, "d9", 3).turned_back("n1", FOUNDED, seen, NOW)


def test_the_next_start_comes_after_one_that_the_cluster_knows() -> None:
    notes = Notes()
    directory = Directory(notes, "d9", 1)
    assert directory.begin(2_000, salt=0) == 2_000
    directory.note_later_start(50_000)
    assert Directory(notes, "d9", 1).begin(2_001, salt=0) == 50_000 + STARTS_APART
