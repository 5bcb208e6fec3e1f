"""Directed cases, over both stores."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import persistence.transaction
from persistence.environment import Environment
from persistence.journal import Journal
from persistence.record import Record
from tests.stores.memory import MemoryEnvironment


@pytest.fixture(params=["lmdb", "memory"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    store: Any = Environment.open(tmp_path) if request.param == "lmdb" else MemoryEnvironment()
    yield store
    store.close()


def settled(journal: Journal) -> dict[int, list[range]]:
    (queue,) = journal.recover()
    return {record.first_seq: record.settled for record in queue.records}


def test_settles_of_several_commits_add_up(environment: Any) -> None:
    journal = Journal(environment)
    journal.append(1, 10, 6, b"x")
    journal.append(1, 16, 4, b"y")
    environment.flush()
    journal.settle(1, range(11, 12))
    environment.flush()
    assert settled(journal) == {10: [range(11, 12)], 16: []}
    journal.settle(1, range(13, 17))
    environment.flush()
    assert settled(journal) == {10: [range(11, 12), range(13, 16)], 16: [range(16, 17)]}
    journal.settle(1, range(10, 13, 2))
    environment.flush()
    assert settled(journal) == {16: [range(16, 17)]}
    journal.settle(1, range(19, 16, -1))
    environment.flush()
    assert list(journal.recover()) == []


def test_a_batch_partly_settled_before_it_is_written(environment: Any) -> None:
    journal = Journal(environment)
    journal.append(1, 0, 5, b"x")
    journal.settle(1, range(1, 3))
    environment.flush()
    assert settled(journal) == {0: [range(1, 3)]}


def test_annotations_go_with_their_messages(environment: Any) -> None:
    journal = Journal(environment)
    journal.append(1, 0, 5, b"x")
    for seq in range(4):
        journal.annotate(1, seq, b"old")
        journal.annotate(1, seq, b"%d" % seq)
    journal.settle(1, range(1))
    environment.flush()
    (queue,) = journal.recover()
    assert queue.annotations == {1: b"1", 2: b"2", 3: b"3"}
    journal.annotate(1, 3, b"again")
    journal.settle(1, range(1, 3))
    environment.flush()
    (queue,) = journal.recover()
    assert queue.annotations == {3: b"again"}


@pytest.mark.pure
def test_scattered_acks_mask_each_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Environment.open(tmp_path)
    journal = Journal(environment)
    for first in range(0, 900, 300):
        journal.append(1, first, 300, b"x")
    environment.flush()
    masked: list[int] = []
    put = persistence.transaction.LmdbTransaction._put_mask

    def counted(transaction: Any, queue_id: int, first_seq: int, count: int, bits: int) -> None:
        masked.append(first_seq)
        put(transaction, queue_id, first_seq, count, bits)

    monkeypatch.setattr(persistence.transaction.LmdbTransaction, "_put_mask", counted)
    journal.settle_scattered(1, [*range(200, 300), *range(400, 900, 3)])
    environment.flush()
    assert masked == [0, 300, 600]
    found = settled(journal)
    assert found[0] == [range(200, 300)]
    assert found[600] == [range(seq, seq + 1) for seq in range(601, 900, 3)]
    journal.settle_scattered(
        1, [seq for seq in range(900) if seq < 200 or 300 <= seq < 400 or (seq > 400 and seq % 3 != 1)]
    )
    environment.flush()
    assert list(journal.recover()) == []
    environment.close()


def test_a_note_about_many_messages_is_one_entry(tmp_path: Path) -> None:
    environment = Environment.open(tmp_path)
    journal = Journal(environment)
    journal.append(1, 0, 2_000, b"x")
    journal.annotate_all(1, range(1_000), b"once")
    journal.annotate_all(1, range(1_000, 2_000), b"once")
    environment.flush()
    assert entries(environment) == 1
    # What is left of it stays, whatever becomes of some of its messages.
    journal.annotate_all(1, range(500, 1_500), b"twice")
    journal.annotate(1, 700, b"thrice")
    environment.flush()
    assert entries(environment) == 5
    journal.settle(1, range(400, 700))
    journal.settle(1, range(1_900, 2_000))
    environment.flush()
    (queue,) = journal.recover()
    once, twice = [*range(400), *range(1_500, 1_900)], range(701, 1_500)
    assert queue.annotations == dict.fromkeys(once, b"once") | {700: b"thrice"} | dict.fromkeys(
        twice, b"twice"
    )
    assert entries(environment) == 4
    journal.settle(1, range(2_000))
    environment.flush()
    assert entries(environment) == 0
    environment.close()


def entries(environment: Environment) -> int:
    return int(environment.snapshot().stat(environment.tables.annotations)["entries"])


@pytest.mark.parametrize("first_seq", [0, 18, 100])
def test_a_dropped_number_is_used_again_while_it_is_erased(
    environment: Any, monkeypatch: pytest.MonkeyPatch, first_seq: int
) -> None:
    monkeypatch.setattr(persistence.transaction, "ERASE_KEYS_MAX", 2)
    journal = Journal(environment)
    for seq in range(20):
        journal.append(1, seq, 1, b"old")
    journal.state(1, b"old")
    environment.flush()
    journal.drop(1)
    assert journal.read(1, 0, 20) == []
    journal.append(1, first_seq, 1, b"new")
    assert journal.read(1, 0, 200) == [Record(first_seq, 1, b"new")]
    # One transaction, as the commit task makes it; a flush would go on until all is erased.
    layer = environment.pending.take_for_store(oldest=True)
    transaction = environment.transaction(layer)
    for _ in transaction.apply():
        pass
    transaction.commit()
    transaction.finish()
    environment.pending.remove(layer)
    assert journal.read(1, 0, 200) == [Record(first_seq, 1, b"new")]
    (queue,) = journal.recover()
    assert queue.state is None
    assert [(record.first_seq, bytes(record.payload)) for record in queue.records] == [(first_seq, b"new")]


def test_bad_batches_are_refused(environment: Any) -> None:
    journal = Journal(environment)
    for first_seq, count in ((0, 0), (-1, 1), ((1 << 64) - 1, 1)):
        with pytest.raises(ValueError, match="a batch of"):
            journal.append(1, first_seq, count, b"x")
