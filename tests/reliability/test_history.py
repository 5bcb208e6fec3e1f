"""The judge of histories finds each anomaly that is planted in one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.reliability.history import History, Reading, Transaction


def moves(number: int, taken: str, committed: bool | None) -> Transaction:
    """Takes a coin out of an account, and puts it into another one and two lines into each book."""
    name = f"t{number}"
    lines = [f"{name}/from", f"{name}/to"]
    return Transaction(
        name,
        [taken],
        {
            "current": [f"{name}/coin"],
            "book 1": [f"1 {line}" for line in lines],
            "book 2": [f"2 {line}" for line in lines],
        },
        float(number),
        committed,
    )


def read(*transactions: Transaction) -> list[Reading]:
    readings = []
    for book in ("book 1", "book 2"):
        lines = [(line, float(each.sent_at or 0) + 0.5) for each in transactions for line in each.put[book]]
        readings.append(Reading(book, [(offset, *line) for offset, line in enumerate(lines)]))
    return readings


def history() -> History:
    """One coin goes through two accounts, another one stays. Of five transactions one is rolled back, and of
    one its client does not know that it was committed, of one that it was not.
    """
    one, two = moves(1, "a", True), moves(2, "t1/coin", None)
    back, never, three = moves(3, "t2/coin", False), moves(4, "t2/coin", None), moves(5, "t2/coin", True)
    sums = Transaction("s", ["1 t1/from", "1 t1/to"], {"sums": ["s"]}, 6.0, True)
    books = read(one, two, three)
    left = {"savings": ["b"], "current": ["t5/coin"]}
    left["group of book 1"] = [line for each in (two, three) for line in each.put["book 1"]]
    return History(
        ["a", "b"],
        [one, two, back, never, three, sums],
        [Reading("book 1", books[0].seen[1:4])],
        left,
        {book.stream: book for book in books} | {"sums": Reading("sums", [(0, "s", 7.0)])},
        {"book 1"},
    )


def test_a_history_in_which_all_is_well() -> None:
    assert history().judge() == []
    assert [each.name for each in history().happened()] == ["t1", "t2", "t5", "s"]


def lost_update(found: History) -> None:
    """Two transactions take the same coin."""
    again = moves(7, "t2/coin", True)
    found.transactions.append(again)
    found.left["current"].append("t7/coin")
    for reading, book in zip(read(again), ("book 1", "book 2"), strict=True):
        end = len(found.streams[book].seen)
        found.streams[book].seen += [(end + offset, line, at) for offset, line, at in reading.seen]
    found.left["group of book 1"] += again.put["book 1"]


def aborted_read(found: History) -> None:
    found.readings.append(Reading("book 1", [(6, "1 t3/from", 4.0), (7, "1 t3/to", 4.0)]))


def half_in_queues(found: History) -> None:
    """The books have it, the account has not."""
    found.left["current"].remove("t5/coin")


def half_in_streams(found: History) -> None:
    del found.streams["book 2"].seen[4:]


def half_of_an_unknown_one(found: History) -> None:
    found.left["current"].append("t4/coin")


def acks_that_did_not_count(found: History) -> None:
    """What it put is there, and what it took as well."""
    found.left["savings"].append("a")


def doubled_append(found: History) -> None:
    found.streams["book 2"].seen += [(6, "2 t1/from", 2.0), (7, "2 t1/to", 2.0)]


def doubled_in_a_queue(found: History) -> None:
    found.left["savings"].append("b")


def nothing_of_a_commit(found: History) -> None:
    found.transactions.append(Transaction("t9", [], {"sums": ["gone"]}, 9.0, True))


def lost_message(found: History) -> None:
    found.left["savings"].remove("b")


def not_counted(found: History) -> None:
    """An input of the group was acked by nobody, and does not come again."""
    found.left["group of book 1"].remove("1 t2/to")


def counted_twice(found: History) -> None:
    found.transactions.append(Transaction("s2", ["1 t1/from"], {"sums": ["s2"]}, 8.0, True))
    found.streams["sums"].seen.append((1, "s2", 9.0))


def seen_early(found: History) -> None:
    found.readings[0].seen[2] = (3, "1 t2/to", 1.9)


def gap(found: History) -> None:
    del found.readings[0].seen[1]


def other_at_the_same_offset(found: History) -> None:
    found.readings.append(Reading("book 1", [(0, "1 t1/to", 9.0), (1, "1 t1/from", 9.0)]))


def part_in_two_pieces(found: History) -> None:
    """Somebody else's line is between the two of a transfer."""
    seen = found.streams["book 2"].seen
    (_, one, at), (_, two, later) = seen[1:3]
    seen[1:3] = [(1, two, later), (2, one, at)]


ANOMALIES: dict[Callable[[History], None], str] = {
    lost_update: "t2/coin was taken by ['t5', 't7']",
    aborted_read: "t3 was rolled back, and somebody saw",
    half_in_queues: "of t5 somebody saw",
    half_in_streams: "of t5 somebody saw",
    half_of_an_unknown_one: "of t4 somebody saw",
    acks_that_did_not_count: "a was taken, and is there again",
    doubled_append: "2 t1/from is in book 2 twice",
    doubled_in_a_queue: "b is there 2 times",
    nothing_of_a_commit: "t9 was committed, and nobody saw ['gone']",
    lost_message: "b is lost",
    not_counted: "1 t2/to is lost",
    counted_twice: "1 t1/from was taken by ['s', 's2']",
    seen_early: "1 t2/to was in book 1 before the commit of t2",
    gap: "a reader of book 1 saw the offsets [1, 3]",
    other_at_the_same_offset: "book 1 had 1 t1/to at 0",
    part_in_two_pieces: "the messages of t1 in book 2 are at [0, 2]",
}


@pytest.mark.parametrize("plant", ANOMALIES, ids=lambda plant: plant.__name__)
def test_an_anomaly_is_found(plant: Callable[[History], None]) -> None:
    found = history()
    plant(found)
    assert any(ANOMALIES[plant] in wrong for wrong in found.judge()), found.judge()
