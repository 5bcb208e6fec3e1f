"""Tests of the judge of streams: it sees each way of breaking a promise, and reports nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.logs import KEYS, LOG_RULES, Log, Topics, key_of

FIRST = 1 << 32
STOP = 20


def log(*, compacted: bool = False, trimmed: bool = False) -> Log:
    made = Log("s", compacted=compacted, trimmed=trimmed)
    made.published.update(range(FIRST, FIRST + STOP))
    return made


def read(log: Log, *offsets: int, reader: str = "n1") -> None:
    """Message and offset have the same number."""
    expected = -1
    for offset in offsets:
        log.deliver(reader, offset, FIRST + offset, expected)
        expected = offset + 1


def broken(log: Log, first: int = 0, confirmed: int = STOP) -> dict[str, int]:
    log.close(range(FIRST, FIRST + confirmed), first, STOP)
    return {rule: log.counts[rule] for rule in LOG_RULES if log.counts[rule]}


def test_all_is_well() -> None:
    led = log()
    read(led, *range(STOP))
    read(led, *range(5, STOP), reader="n2")
    assert broken(led) == {}
    assert led.missing(set(range(STOP)), STOP) == []
    assert led.missing({*range(STOP)} - {3}, STOP) == [3]


def test_retention_takes_what_is_below_the_first_offset() -> None:
    led = log(trimmed=True)
    read(led, 0, 1, *range(8, STOP))
    assert broken(led, first=8) == {}
    led = log(trimmed=True)
    read(led, 0, 1, *range(8, STOP))
    assert broken(led, first=6) == {"skipped": 1, "lost": 2}


def test_both_together() -> None:
    led = log(compacted=True, trimmed=True)
    read(led, 3, 9, *range(STOP - KEYS, STOP))
    assert broken(led, first=10) == {}
    assert led.missing({9, *range(STOP - KEYS, STOP)}, STOP) == []
    assert led.missing({9, *range(STOP - KEYS + 1, STOP)}, STOP) == [STOP - KEYS]
    assert led.missing(set(range(STOP - 2, STOP)), STOP) == []
    led = log(compacted=True, trimmed=True)
    read(led, 3, 9, *range(STOP - KEYS, STOP - 1))
    assert broken(led, first=10) == {"lost": 2}


def test_compaction_leaves_the_latest_of_each_key() -> None:
    led = log(compacted=True)
    read(led, 3, 9, *range(STOP - KEYS, STOP))
    assert broken(led) == {}
    assert led.missing(set(range(STOP - KEYS, STOP)), STOP) == []
    led = log(compacted=True)
    read(led, 3, 9, *range(STOP - KEYS, STOP - 1))
    # The last two messages of a key are missing: compaction may take a message only if there is a later one.
    assert broken(led) == {"lost": 2}
    led = log(compacted=True)
    read(led, *range(STOP))
    read(led, 0, *range(STOP - KEYS + 1, STOP), reader="n2")
    assert broken(led) == {"skipped": 1}
    assert led.missing(set(range(STOP - KEYS + 1, STOP)), STOP) == [STOP - KEYS]


def _lost(led: Log) -> None:
    read(led, *range(STOP - 1))


def _strange(led: Log) -> None:
    read(led, *range(STOP + 1))


def _other_message(led: Log) -> None:
    read(led, *range(STOP - 1))
    led.deliver("n2", 3, FIRST + STOP - 1, 3)
    led.deliver("n2", STOP - 1, FIRST + STOP - 1, STOP - 1)


def _twice(led: Log) -> None:
    read(led, *range(STOP))
    led.deliver("n2", STOP, FIRST + 3, STOP)


def _back(led: Log) -> None:
    read(led, *range(STOP))
    led.deliver("n1", 4, FIRST + 4, 5)


def _skipped(led: Log) -> None:
    read(led, *range(STOP))
    read(led, 3, 5, reader="n2")


def _order(led: Log) -> None:
    for offset in range(STOP):
        led.deliver("n1", offset, FIRST + (offset ^ 1 if offset < 2 else offset), offset)


@pytest.mark.parametrize(
    ("breach", "rules"),
    [
        (_lost, {"lost": 1}),
        (_strange, {"strange": 1}),
        (_other_message, {"changed": 2}),
        (_twice, {"changed": 1, "order": 1}),
        (_back, {"back": 1}),
        (_skipped, {"skipped": 1}),
        (_order, {"order": 1}),
    ],
)
def test_breaches_are_seen(breach: Callable[[Log], None], rules: dict[str, int]) -> None:
    led = log()
    breach(led)
    assert broken(led) == rules
    assert led.told.keys() == rules.keys()


def test_a_key_has_one_partition() -> None:
    topics = Topics("t")
    parts = topics.topics[1]
    messages = [message for message in range(FIRST + 1, FIRST + 200) if topics.topic_of(message) is parts]
    topics.publish(messages)
    topics.confirm(messages)
    two = [message for message in messages if key_of(message) == key_of(messages[0])][:2]
    parts.logs[0].deliver("n1", 0, two[0], 0)
    parts.logs[1].deliver("n1", 0, two[1], 0)
    topics.spans = {log.name: (0, 1) for log in topics.logs}
    topics.close()
    assert topics.log_counts["changed"] == 1 and topics.log_counts["lost"] == len(messages) - 2
    assert any("is in t-parts-0, too" in line for line in topics.faults())
