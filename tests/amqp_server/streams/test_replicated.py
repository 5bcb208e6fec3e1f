"""The replica of a stream: offsets follow from the order of the log, and nothing is taken twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from amqp_server.streams.encode import Encoded, Encoder, Layouts
from amqp_server.streams.replicated import (
    CodecError,
    Replica,
    decode_entry,
    encode_batch,
    encode_entry,
)
from persistence.streams import batch as batches
from quorum_queue.machine.run import Run
from tests.amqp_server.streams.test_messages import MESSAGES, framed, head_of, run_of

OWN = ("a", 7)


def runs_of(messages: Any) -> list[Run]:
    runs = []
    for key, properties, name, size, count in messages:
        named = dict(properties)
        if name is not None:
            named["headers"] = {**named.get("headers", {}), "x-stream-filter-value": name}
        contents = [framed(named, bytes([number + 32]) * size, 1, 4096) for number in range(count)]
        runs.append(run_of(contents, [head_of(key)] * count, 1))
    return runs


def encoded(messages: Any, base: int = 0, *, time_ms: int = 0, stamped: bool = True) -> list[Encoded]:
    encoder = Encoder(Layouts(), base, time_ms, stamped=stamped)
    for run in runs_of(messages):
        encoder.add(run)
    return encoder.finish()


def entry(now_ms: int, *found: bytes) -> tuple[int, Any]:
    return decode_entry(encode_entry(now_ms, list(found)))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(MESSAGES)
def test_a_member_makes_the_bytes_that_one_node_would(messages: Any) -> None:
    for base in (0, 3, 250, (1 << 32) - 5, 1 << 40):
        replica = Replica()
        replica.next_offset = base
        applied = replica.apply(1, *entry(5, encode_batch(*OWN, 1, encoded(messages))), OWN)
        alone = encoded(messages, base, time_ms=5, stamped=False)
        assert [each.parts for each in applied.batches] == [each.parts for each in alone]
        for each, other in zip(applied.batches, alone, strict=True):
            data = b"".join(each.parts)
            found = batches.decode(batches.decode_head(data), data)
            assert (found.base, found.count, found.values) == (
                other.batch.base,
                other.batch.count,
                other.batch.values,
            )
            assert (each.batch.shapes, bytes(each.batch.items)) == (other.batch.shapes, other.batch.items)
            assert (list(each.batch.filters), each.batch.size) == (
                list(other.batch.filters),
                other.batch.size,
            )
        assert replica.next_offset == base + sum(each.batch.count for each in alone)
        assert applied.numbers == [1]


def one(node: str, incarnation: int, number: int, count: int = 1) -> bytes:
    messages: Any = [("k", {}, None, 5, count)]
    return encode_batch(node, incarnation, number, encoded(messages))


def test_a_batch_is_taken_once_and_in_order() -> None:
    replica = Replica()
    replica.apply(1, *entry(1, one("a", 7, 1), one("b", 3, 1, 2)), OWN)
    assert replica.next_offset == 3
    # Again, too early, of an earlier start, and of a later one that does not begin with its first.
    for batch in (one("a", 7, 1), one("a", 7, 3), one("b", 2, 1), one("b", 4, 2)):
        replica.apply(replica.applied + 1, *entry(1, batch), OWN)
        assert replica.next_offset == 3
    applied = replica.apply(9, *entry(1, one("a", 7, 2), one("a", 7, 2), one("b", 4, 1)), OWN)
    assert (replica.next_offset, applied.numbers) == (5, [2])


def test_what_was_in_an_entry_that_is_given_up_is_missed() -> None:
    replica = Replica()
    replica.apply(1, *entry(1, one("a", 7, 1)), OWN)
    replica.passed_over(2)
    applied = replica.apply(3, *entry(1, one("a", 7, 4)), OWN)
    assert (applied.missed, applied.numbers, replica.next_offset) == (range(2, 4), [4], 2)
    assert not replica.apply(4, *entry(1, one("a", 7, 6)), OWN).numbers


def test_retention_never_goes_back_nor_beyond_the_end() -> None:
    replica = Replica()
    replica.apply(1, *entry(1, one("a", 7, 1, 10)), OWN)
    for number, first, expected in ((2, 4, 4), (3, 2, 4), (4, 99, 10)):
        applied = replica.apply(number, *entry(1, encode_batch("a", 7, number, [], first)), OWN)
        assert (replica.first_offset, applied.trimmed) == (expected, first != 2)


def test_times_only_rise_and_a_state_comes_back() -> None:
    replica = Replica()
    for index, now_ms in enumerate((10, 5, 20), 1):
        applied = replica.apply(index, *entry(now_ms, one("a", 7, index)), OWN)
        assert applied.batches[0].batch.time_ms == (10, 10, 20)[index - 1]
    again = Replica.restore(replica.snapshot())
    assert (again.digest(), again.snapshot()) == (replica.digest(), replica.snapshot())
    assert (again.next_offset, again.batches, again.last_ms) == (3, {"a": (7, 3)}, 20)


def test_what_is_not_known_is_refused() -> None:
    data = encode_entry(1, [one("a", 7, 1)])
    for wrong in (b"\x02" + data[1:], data[:-1], data + b"\x00", b""):
        with pytest.raises(CodecError):
            decode_entry(wrong)
    with pytest.raises(CodecError):
        Replica.restore(b"\x90")
