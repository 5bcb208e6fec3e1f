"""The columns that Arrow cuts out of messages equal those from a look at each message."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sink.rows import source_schema
from spark_sink.sink.packing import CONTENT_ENCODING, CONTENT_TYPE
from spark_sink.source import columns, cuts
from spark_sink.source.columns import Decoder
from spark_sink.source.deliveries import Run, Splitter
from tests.spark_sink.test_reader_deliveries import messages
from tests.spark_sink.wire import Message, delivery

#: So large that pamqp writes it with eight bytes, as brokers do.
FIRST = 1 << 40
COUNT = 2 * cuts.LEAST


TIME = 1_700_000_000_000
#: pamqp sorts headers: this one comes first, and then gets its name.
FIRST_NAME = "\0" * len("x-stream-timestamp")


def run_of(sent: list[Message], *, of_stream: bool, timed: bool = False, frame_max: int = 131_072) -> Run:
    splitter = Splitter()
    for number, message in enumerate(sent):
        more: dict[str, Any] = {}
        if of_stream:
            # Brokers put the offset last, and the time first.
            headers = dict(message.properties.get("headers", {}))
            time = {FIRST_NAME: TIME + number // 3} if timed else {}
            more["headers"] = {**time, **headers, "x-stream-offset": FIRST + 3 * number}
        data = delivery(message, number + 1, number % 5 == 0, frame_max=frame_max, **more)
        data = data.replace(FIRST_NAME.encode(), b"x-stream-timestamp")
        assert splitter.take(data, 0, len(data)) == len(data)
    return Run.joined(splitter.runs)


def rows(run: Run, *, of_stream: bool, timed: bool = False) -> list[dict[str, Any]]:
    decoder = Decoder(source_schema(of_stream=of_stream), "q")
    batches = decoder.log_batches(run, "s", 4, timed) if of_stream else decoder.batches(run, 17)
    return [row for batch in batches for row in batch.to_pylist()]


def one_by_one(run: Run, *, of_stream: bool, timed: bool = False) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "cuts", lambda run, of_stream, timed=False: None)
        return rows(run, of_stream=of_stream, timed=timed)


@given(st.lists(messages, min_size=1, max_size=8), st.booleans())
def test_any_messages_give_the_same_rows(sent: list[Message], of_stream: bool) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cuts, "LEAST", 1)
        run = run_of(sent, of_stream=of_stream)
        assert rows(run, of_stream=of_stream) == one_by_one(run, of_stream=of_stream)
        # Some messages with the same properties, and bodies of several lengths.
        alike = [Message(each.body, each.exchange, each.routing_key, sent[0].properties) for each in sent]
        run = run_of(alike, of_stream=of_stream)
        found = cuts.cuts(run, of_stream=of_stream)
        assert found is not None and len(found.properties.raws) == 1
        made = rows(run, of_stream=of_stream)
        assert made == one_by_one(run, of_stream=of_stream)
        assert [row["value"] for row in made] == [each.body for each in sent]


@given(st.lists(messages, min_size=1, max_size=8), st.booleans())
def test_times_are_columns_and_change_nothing_else(sent: list[Message], same: bool) -> None:
    if same:
        sent = [Message(each.body, each.exchange, each.routing_key, sent[0].properties) for each in sent]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cuts, "LEAST", 1)
        run, plain = run_of(sent, of_stream=True, timed=True), run_of(sent, of_stream=True)
        if same:
            assert cuts.cuts(run, of_stream=True, timed=True) is not None
        made = rows(run, of_stream=True, timed=True)
        assert made == one_by_one(run, of_stream=True, timed=True)
        times = [datetime.fromtimestamp((TIME + n // 3) / 1_000, UTC) for n in range(len(sent))]
        assert [row.pop("broker_timestamp") for row in made] == times
        # Brokers that were asked and do not know it.
        for timed in (True, False):
            others = rows(plain, of_stream=True, timed=timed)
            assert [row.pop("broker_timestamp") for row in others] == [None] * len(sent)
            assert made == others


@pytest.mark.parametrize("of_stream", [True, False])
def test_ids_routes_and_offsets(of_stream: bool) -> None:
    sent = [
        Message(b"%d" % number, "x", f"k{number % 7}", {"message_id": f"id-{number}", "headers": {"a": "b"}})
        for number in range(COUNT)
    ]
    run = run_of(sent, of_stream=of_stream)
    assert cuts.cuts(run, of_stream=of_stream) is not None
    made = rows(run, of_stream=of_stream)
    assert made == one_by_one(run, of_stream=of_stream)
    assert [row["message_id"] for row in made] == [f"id-{number}" for number in range(COUNT)]
    assert [row["routing_key"] for row in made] == [f"k{number % 7}" for number in range(COUNT)]
    assert [row["redelivered"] for row in made] == [number % 5 == 0 for number in range(COUNT)]
    offsets = [FIRST + 3 * number if of_stream else 17 + number for number in range(COUNT)]
    assert [row["offset"] for row in made] == offsets
    # A range of offsets begins and ends within a run.
    middle = run.split(7)[1].split(COUNT - 10)[0]
    assert [row["value"] for row in rows(middle, of_stream=of_stream)] == [
        b"%d" % number for number in range(7, COUNT - 3)
    ]


def plain(number: int) -> Message:
    return Message(b"%d" % number, "x", "k", {"content_type": "a"})


@pytest.mark.parametrize(
    "other",
    [
        Message(bytes(5_000), "x", "k", {"content_type": "a"}),
        Message(b"1", "x", "k", {"content_type": CONTENT_TYPE, "content_encoding": CONTENT_ENCODING}),
    ],
    ids=["a body in two frames", "a packed one"],
)
def test_some_go_the_other_way(other: Message) -> None:
    sent = [plain(number) for number in range(COUNT)]
    assert cuts.cuts(run_of(sent, of_stream=False, frame_max=4_096), of_stream=False) is not None
    run = run_of([*sent, other], of_stream=False, frame_max=4_096)
    assert cuts.cuts(run, of_stream=False) is None
    assert cuts.cuts(run_of(sent[: cuts.LEAST - 1], of_stream=True), of_stream=True) is None
    assert cuts.cuts(Run(b"", [], []), of_stream=True) is None


@pytest.mark.parametrize("of_stream", [True, False])
def test_places_that_are_out_of_order_are_not_given_to_arrow(of_stream: bool) -> None:
    run = run_of([plain(number) for number in range(COUNT)], of_stream=of_stream)
    last = run.starts[-1]
    for starts, heads in (
        (run.starts, [*run.heads[:-1], len(run.data) + 5]),
        (run.starts, [*run.heads[:-2], run.heads[-1], run.heads[-2]]),
        ([*run.starts[:-1], last + 60], run.heads),
        (run.starts, [-2, *run.heads[1:]]),
    ):
        assert cuts.cuts(Run(run.data, starts, heads), of_stream=of_stream) is None
