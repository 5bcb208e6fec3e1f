"""Offsets of partitions: options, checkpoints, limits and cuts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sink.options import BadOption, query_options, read_options, sink_options, source_options
from spark_sink.source.offsets import BadCheckpoint
from spark_sink.streams.offsets import Offsets, Range, cut, from_json, limited, resolved, to_json

partitions = st.dictionaries(
    st.integers(0, 20), st.tuples(st.integers(0, 10**12), st.integers(0, 10**9)), min_size=1
)


def ends(given: dict[int, tuple[int, int]]) -> tuple[Offsets, Offsets]:
    start = {partition: low for partition, (low, _) in given.items()}
    return start, {partition: low + count for partition, (low, count) in given.items()}


@given(partitions, st.integers(1, 10**10))
def test_a_limit_is_kept_used_up_and_shared_out(found: dict[int, tuple[int, int]], most: int) -> None:
    start, end = ends(found)
    limit = limited(start, end, most)
    assert all(start[each] <= limit[each] <= end[each] for each in start)
    total = sum(end.values()) - sum(start.values())
    assert sum(limit.values()) - sum(start.values()) == min(most, total)
    assert limited(start, end, None) == end


@given(partitions, st.none() | st.integers(1, 50), st.none() | st.integers(1, 10**9))
def test_ranges_are_all_of_it_once(
    found: dict[int, tuple[int, int]], least: int | None, longest: int | None
) -> None:
    start, end = ends({each: (low, count % 10_000) for each, (low, count) in found.items()})
    longest = None if longest is None else max(longest % 10_000, 100)
    ranges = cut(start, end, least, longest)
    for partition in start:
        own = [each for each in ranges if each.partition == partition]
        edges = [start[partition], *(each.end for each in own)]
        assert [each.start for each in own] == edges[:-1] and edges[-1] == end[partition]
    assert all(each.start < each.end for each in ranges)
    total = sum(end.values()) - sum(start.values())
    assert len(ranges) >= min(least or 0, total)
    assert longest is None or all(len(each) <= longest for each in ranges)


def test_a_partition_is_a_task() -> None:
    assert cut({0: 5, 1: 0, 2: 7}, {0: 9, 1: 1_000, 2: 7}, None) == [Range(0, 5, 9), Range(1, 0, 1_000)]


def test_a_checkpoint_names_its_stream() -> None:
    offset = to_json("orders", {1: 5, 0: 7})
    assert json.dumps(offset) == '{"stream": "orders", "offsets": {"0": 7, "1": 5}}'
    assert from_json(offset, "orders") == {0: 7, 1: 5}
    with pytest.raises(BadCheckpoint, match="belongs to stream 'orders', and option 'stream' says 'other'"):
        from_json(offset, "other")
    with pytest.raises(BadCheckpoint, match="written by another source"):
        from_json({"queue": "orders", "count": 3}, "orders")


def test_what_starting_offsets_mean() -> None:
    first, following = {0: 10, 1: 0}, {0: 20, 1: 5}
    assert resolved("startingOffsets", "earliest", first, following) == first
    assert resolved("startingOffsets", "latest", first, following) == following
    assert resolved("startingOffsets", {0: -1, 1: -2}, first, following) == {0: 20, 1: 0}
    assert resolved("startingOffsets", {0: 12, 1: 5}, first, following) == {0: 12, 1: 5}
    for offsets, text in (
        ({0: 12}, "does not name partition 1: the partitions are 0 to 1"),
        ({0: 12, 1: 1, 7: 1}, "names partition 7"),
        ({0: 21, 1: 1}, "offset 21 of partition 0 is beyond its end, 20"),
    ):
        with pytest.raises(BadOption, match=text):
            resolved("startingOffsets", offsets, first, following)


@pytest.mark.parametrize(
    ("value", "offsets"),
    [
        (" Earliest", "earliest"),
        ("latest", "latest"),
        ('{"0": 17, "1": -2}', {0: 17, 1: -2}),
        ('{"orders": {"0": 17}}', {0: 17}),
    ],
)
def test_starting_offsets_as_the_kafka_source_takes_them(value: str, offsets: object) -> None:
    assert source_options({"stream": "orders", "startingOffsets": value}).starting_offsets == offsets


@pytest.mark.parametrize(
    "value",
    ["first", "{}", "[1]", '{"a": 1}', '{"0": -3}', '{"0": "x"}', '{"0": 1.5}', '{"0": true}', "7", "{"],
)
def test_starting_offsets_that_are_none(value: str) -> None:
    with pytest.raises(BadOption, match="'startingOffsets' must be earliest, latest or JSON"):
        source_options({"stream": "orders", "startingOffsets": value})


def test_a_starting_timestamp() -> None:
    def moment(value: str) -> int | None:
        return source_options({"stream": "s", "startingTimestamp": value}).starting_timestamp

    assert moment("1700000000123") == 1_700_000_000_123
    assert (
        moment("2023-11-14T22:13:20.123+00:00")
        == moment("2023-11-14T23:13:20.123+01:00")
        == 1_700_000_000_123
    )
    assert moment("2023-11-14 22:13:20") == 1_700_000_000_000
    for value in ("yesterday", "1960-01-01"):
        with pytest.raises(BadOption, match="'startingTimestamp'"):
            moment(value)


@pytest.mark.parametrize(
    ("given_options", "text"),
    [
        ({}, "'queue' is missing.*option 'stream'"),
        ({"queue": "q", "stream": "s"}, "'queue' and 'stream' are two sources"),
        ({"queue": "q", "startingOffsets": "latest"}, "'startingOffsets' cannot be used for a queue"),
        ({"queue": "q", "minPartitions": "3"}, "'minPartitions' cannot be used for a queue"),
        (
            {"stream": "s", "maxMessagesPerTrigger": "3"},
            "'maxMessagesPerTrigger' cannot be used for a stream",
        ),
        ({"stream": "s", "ack": "onRead"}, "'ack' cannot be used for a stream"),
        (
            {"stream": "s", "startingOffsets": "latest", "startingTimestamp": "5"},
            "'startingOffsets' and 'startingTimestamp' say the same",
        ),
        ({"stream": "s", "endingOffsets": "earliest"}, "'endingOffsets' cannot be earliest"),
        ({"stream": "s", "endingOffsets": '{"0": -2}'}, "'endingOffsets' cannot be earliest"),
    ],
)
def test_options_of_a_source_that_contradict_each_other(given_options: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        source_options(given_options)


def test_options_that_only_a_batch_or_only_a_query_has() -> None:
    with pytest.raises(BadOption, match="'endingOffsets' is for spark.read"):
        query_options({"stream": "s", "endingOffsets": "latest"})
    with pytest.raises(BadOption, match="'maxOffsetsPerTrigger' is for spark.readStream"):
        read_options({"stream": "s", "maxOffsetsPerTrigger": "5"})
    with pytest.raises(BadOption, match="'maxMessagesPerTrigger' is for spark.readStream"):
        read_options({"queue": "q", "maxmessagespertrigger": "5"})
    for name, value in (("ack", "onRead"), ("maxMessages", "5")):
        with pytest.raises(BadOption, match=f"'{name}' is for spark.read: a query acks"):
            query_options({"queue": "q", name: value})
        assert read_options({"queue": "q", name: value})
    for value in ("latest", '{"0": -1}'):
        with pytest.raises(BadOption, match="'startingOffsets' cannot be latest in a batch read"):
            read_options({"stream": "s", "startingOffsets": value})
        assert query_options({"stream": "s", "startingOffsets": value}).starting_offsets


@pytest.mark.parametrize(
    ("given_options", "text"),
    [
        ({"stream": "s", "exchange": "x"}, "'stream' and 'exchange' both say where"),
        ({"stream": "s", "routingKey": "k"}, "'stream' and 'routingKey' both say where"),
        ({"stream": ""}, "'stream' is empty"),
        ({"routingKey": "q", "packRows": "5"}, "'packRows' does something only with packing=arrow"),
        ({"routingKey": "q", "packing": "avro"}, "'packing' must be none or arrow"),
        (
            {"routingKey": "q", "deduplication": "broker"},
            "'deduplication' does something only with delivery=",
        ),
        (
            {"routingKey": "q", "delivery": "ledger", "deduplication": "ledger"},
            "'deduplication' does something only with delivery=exactly-once",
        ),
        ({"routingKey": "q", "ledgerExpiresMs": "60000"}, "'ledgerExpiresMs' does something only with"),
    ],
)
def test_options_of_a_sink_that_contradict_each_other(given_options: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        sink_options(given_options)
