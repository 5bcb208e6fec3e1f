"""Offsets of partitions: options, checkpoints, limits and cuts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sink.option_values import BadOption
from spark_sink.options import query_options, read_options, sink_options, source_options
from spark_sink.source.offsets import BadCheckpoint
from spark_sink.streams.offsets import (
    Offsets,
    Partition,
    Range,
    began_at,
    cut,
    from_json,
    limited,
    resolved,
    to_json,
)

partitions = st.dictionaries(
    st.builds(Partition, st.sampled_from(["orders", "events"]), st.integers(0, 20)),
    st.tuples(st.integers(0, 10**12), st.integers(0, 10**9)),
    min_size=1,
)


def of(*offsets: int, stream: str = "orders") -> Offsets:
    return {Partition(stream, number): offset for number, offset in enumerate(offsets)}


def ends(given: dict[Partition, tuple[int, int]]) -> tuple[Offsets, Offsets]:
    start = {partition: low for partition, (low, _) in given.items()}
    return start, {partition: low + count for partition, (low, count) in given.items()}


@given(partitions, st.integers(1, 10**10))
def test_a_limit_is_kept_used_up_and_shared_out(found: dict[Partition, tuple[int, int]], most: int) -> None:
    start, end = ends(found)
    limit = limited(start, end, most)
    assert all(start[each] <= limit[each] <= end[each] for each in start)
    total = sum(end.values()) - sum(start.values())
    assert sum(limit.values()) - sum(start.values()) == min(most, total)
    assert limited(start, end, None) == end


@given(partitions, st.none() | st.integers(1, 50), st.none() | st.integers(1, 10**9))
def test_ranges_are_all_of_it_once(
    found: dict[Partition, tuple[int, int]], least: int | None, longest: int | None
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
    ranges = [Range(Partition("orders", 0), 5, 9), Range(Partition("orders", 1), 0, 1_000)]
    assert cut(of(5, 0, 7), of(9, 1_000, 7), None) == ranges


def test_a_checkpoint_names_its_streams_as_that_of_the_kafka_source() -> None:
    offsets = {Partition("b", 1): 5, Partition("b", 0): 7, Partition("a", 10): 1}
    assert json.dumps(to_json(offsets)) == '{"a": {"10": 1}, "b": {"0": 7, "1": 5}}'
    assert from_json(to_json(offsets)) == offsets
    assert from_json({}) == {}
    began = {Partition("b", 0): 2}
    assert to_json(offsets, began) == to_json(offsets) | {"": {"b": {"0": 2}}}
    assert from_json(to_json(offsets, began)) == offsets
    assert (began_at(to_json(offsets, began)), began_at(to_json(offsets))) == (began, None)
    for other in ({"queue": "orders", "count": 3}, {"a": {"x": 1}}, {"a": {"1": "x"}}, {"a": [1]}):
        with pytest.raises(BadCheckpoint, match="written by another source"):
            from_json(other)


def test_what_starting_offsets_mean() -> None:
    first, following = of(10, 0), of(20, 5)
    assert resolved("startingOffsets", "earliest", first, following) == first
    assert resolved("startingOffsets", "latest", first, following) == following
    assert resolved("startingOffsets", {"": {0: -1, 1: -2}}, first, following) == of(20, 0)
    assert resolved("startingOffsets", {"orders": {0: 12, 1: 5}}, first, following) == of(12, 5)
    for offsets, text in (
        ({0: 12}, "does not name partition 1 of stream 'orders': the partitions are 0 to 1"),
        ({0: 12, 1: 1, 7: 1}, "names partition 7 of stream 'orders'"),
        ({0: 21, 1: 1}, "offset 21 of partition 0 of stream 'orders' is beyond its end, 20"),
    ):
        with pytest.raises(BadOption, match=text):
            resolved("startingOffsets", {"": offsets}, first, following)


def test_offsets_of_several_streams_name_each_partition_of_each() -> None:
    first, following = of(10, 0) | of(3, stream="events"), of(20, 5) | of(9, stream="events")
    given_offsets = {"orders": {0: 12, 1: -1}, "events": {0: -2}}
    assert resolved("startingOffsets", given_offsets, first, following) == of(12, 5) | of(3, stream="events")
    for offsets, text in (
        (
            {"orders": {0: 12, 1: 1}},
            "does not name partition 0 of stream 'events': the partitions are 0, and",
        ),
        ({"orders": {0: 12, 1: 1}, "event": {0: 1}}, "names stream 'event', .*; did you mean 'events'"),
        ({"": {0: 12, 1: 1}}, "names stream ''"),
    ):
        with pytest.raises(BadOption, match=text):
            resolved("startingOffsets", offsets, first, following)


@pytest.mark.parametrize(
    ("value", "offsets"),
    [
        (" Earliest", "earliest"),
        ("latest", "latest"),
        ('{"0": 17, "1": -2}', {"": {0: 17, 1: -2}}),
        ('{"orders": {"0": 17}}', {"orders": {0: 17}}),
    ],
)
def test_starting_offsets_as_the_kafka_source_takes_them(value: str, offsets: object) -> None:
    assert source_options({"stream": "orders", "startingOffsets": value}).starting_offsets == offsets


@pytest.mark.parametrize(
    ("value", "times"),
    [
        ('{"0": 17, "1": "1970-01-01T00:00:02+00:00"}', {"": {0: 17, 1: 2_000}}),
        ('{"orders": {"0": "17"}}', {"orders": {0: 17}}),
    ],
)
def test_times_of_partitions(value: str, times: object) -> None:
    for name, field in (
        ("startingOffsetsByTimestamp", "starting_offsets_by_timestamp"),
        ("endingOffsetsByTimestamp", "ending_offsets_by_timestamp"),
    ):
        assert getattr(source_options({"stream": "orders", name: value}), field) == times
        for wrong in (
            "17",
            "latest",
            "{}",
            '{"0": -1}',
            '{"0": true}',
            '{"0": {"0": 1}, "1": 1}',
            '{"a": {}}',
        ):
            with pytest.raises(BadOption, match=f"'{name}' must be JSON such as"):
                source_options({"stream": "orders", name: wrong})
        with pytest.raises(BadOption, match=f"'{name}' must be ms since 1970 or a time"):
            source_options({"stream": "orders", name: '{"0": "noon"}'})


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("15m", 900_000),
        ("2 min", 120_000),
        ("1h", 3_600_000),
        ("1D", 86_400_000),
        ("7", 7),
    ],
)
def test_how_long_messages_wait_for_others(value: str, ms: int) -> None:
    def delay(value: str) -> int:
        given_options = {"stream": "s", "minOffsetsPerTrigger": "5", "maxTriggerDelay": value}
        return source_options(given_options).max_trigger_delay

    assert delay(value) == ms
    assert source_options({"stream": "s"}).max_trigger_delay == 900_000
    for wrong in ("", "m", "1w", "-1s", "1.5s", "0s", "9999d"):
        with pytest.raises(BadOption, match="'maxTriggerDelay' must be"):
            delay(wrong)


def test_which_streams_are_read() -> None:
    assert source_options({"stream": "a,b"}).streams == ("a,b",)
    assert source_options({"streams": " a, b"}).streams == ("a", "b")
    assigned = source_options({"assign": '{"a": [1, 0, 1], "b": [4]}'})
    assert (assigned.streams, assigned.assign) == (("a", "b"), {"a": (0, 1), "b": (4,)})
    given_options = {"streamsPattern": "or.*", "managementUrl": "http://a:15672/, https://b"}
    chosen = source_options(given_options)
    assert (chosen.streams, chosen.streams_pattern) == ((), "or.*")
    assert chosen.management_url == ("http://a:15672", "https://b")
    for of_streams in (assigned, chosen):
        assert of_streams.of_streams
    assert not source_options({"queue": "q"}).of_streams


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
    for value in ("yesterday", "1960-01-01", "1700000000000000000"):
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
        ({"stream": "s", "streams": "s"}, "'stream' and 'streams' are two sources"),
        ({"queue": "q", "assign": '{"s": [0]}'}, "'queue' and 'assign' are two sources"),
        ({"streams": ""}, "'streams' must be names with commas"),
        ({"streams": "a,,b"}, "'streams' must be names with commas"),
        ({"streams": "a,b,a"}, "'streams' names 'a' twice"),
        ({"streamsPattern": "a("}, "'streamsPattern' is no regular expression"),
        ({"streamsPattern": "a.*"}, "'streamsPattern' does something only with option 'managementUrl'"),
        ({"stream": "s", "managementUrl": "http://h"}, "only with option 'streamsPattern'"),
        ({"streamsPattern": "a", "managementUrl": "h:15672"}, "'managementUrl' must be a URL such as"),
        ({"streamsPattern": "a", "managementUrl": "http://u:p@h"}, "'managementUrl' must hold no user"),
        ({"assign": '{"s": 0}'}, "'assign' must be JSON such as"),
        ({"assign": '{"s": [true]}'}, "'assign' must be JSON such as"),
        ({"assign": '{"s": []}'}, "'assign' must be JSON such as"),
        ({"streams": "a,b", "startingOffsets": '{"0": 5}'}, "'startingOffsets' has to name the streams"),
        (
            {"streams": "aa,bb", "startingOffsets": '{"aa": {"0": 5}, "b": {"0": 1}}'},
            "'startingOffsets' names stream 'b', which is not read; did you mean 'bb'",
        ),
        (
            {"stream": "orders", "endingOffsetsByTimestamp": '{"order": {"0": 5}}'},
            "'endingOffsetsByTimestamp' names stream 'order', .*did you mean 'orders'",
        ),
        (
            {"stream": "s", "startingTimestamp": "1", "startingOffsetsByTimestamp": '{"0": 5}'},
            "'startingTimestamp' and 'startingOffsetsByTimestamp' say the same",
        ),
        (
            {"stream": "s", "endingTimestamp": "1", "endingOffsets": "latest"},
            "'endingOffsets' and 'endingTimestamp' say the same",
        ),
        (
            {"stream": "s", "startingTimestamp": "2", "endingTimestamp": "1"},
            "'endingTimestamp' is before 'startingTimestamp'",
        ),
        (
            {"stream": "s", "startingOffsetsByTimestampStrategy": "latest"},
            "does something only with option 'startingTimestamp' or 'startingOffsetsByTimestamp'",
        ),
        (
            {"stream": "s", "startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "earliest"},
            "must be error or latest",
        ),
        ({"stream": "s", "maxTriggerDelay": "1s"}, "only with option 'minOffsetsPerTrigger'"),
        (
            {"stream": "s", "minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"},
            "'minOffsetsPerTrigger' is 6, and 'maxOffsetsPerTrigger' only 5",
        ),
        (
            {"queue": "q", "maxRecordsPerPartition": "5"},
            "'maxRecordsPerPartition' cannot be used for a queue",
        ),
    ],
)
def test_options_of_a_source_that_contradict_each_other(given_options: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        source_options(given_options)


def test_options_that_only_a_batch_or_only_a_query_has() -> None:
    with pytest.raises(BadOption, match="'endingOffsets' is for spark.read"):
        query_options({"stream": "s", "endingOffsets": "latest"})
    for name, value in (("endingTimestamp", "5"), ("endingOffsetsByTimestamp", '{"0": 5}')):
        with pytest.raises(BadOption, match=f"'{name}' is for spark.read: a query has no end"):
            query_options({"stream": "s", name: value})
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger"):
        with pytest.raises(BadOption, match=f"'{name}' is for spark.readStream"):
            read_options({"stream": "s", name: "5"})
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
