"""How headers become the names that a queue remembers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from amqp_server.channel.deduplication import _parsed, enqueue_named, name_of, names_of
from amqp_server.wire import content, tables
from quorum_queue.machine.dedup import SEQUENCE_MAX, Sequence, id_of, sequence_of
from quorum_queue.machine.run import Run
from quorum_queue.machine.settings import Settings


def message(headers: dict[str, object] | None = None, body: bytes = b"body", **raw: bytes) -> bytes:
    if headers is not None:
        raw["headers"] = tables.encode(headers)
    return content.build(content.Properties(raw).encode(len(body)), body, 1, 131_072)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (None, None),
        ({}, None),
        ({"other": "x-deduplication-id"}, None),
        ({"x-deduplication-id": "a"}, id_of(b"a")),
        ({"x-deduplication-id": ""}, id_of(b"")),
        ({"x-deduplication-id": "å" * 300}, id_of("å".encode() * 300)),
        ({"x-deduplication-id": 5}, None),
        ({"x-deduplication-id": None}, None),
        ({"x-producer": "p"}, None),
        ({"x-sequence": 5}, None),
        ({"x-producer": "p", "x-sequence": 5}, sequence_of(b"p", 5)),
        ({"x-producer": "p", "x-sequence": -(1 << 40)}, sequence_of(b"p", -(1 << 40))),
        ({"x-producer": "p", "x-sequence": "5"}, None),
        ({"x-producer": "p", "x-sequence": True}, None),
        ({"x-producer": 1, "x-sequence": 5}, None),
        ({"x-producer": "p", "x-sequence": 5, "x-deduplication-id": "a"}, id_of(b"a")),
        ({"x-producer": "p", "x-sequence": 5, "x-deduplication-id": 7}, sequence_of(b"p", 5)),
    ],
)
def test_a_name_comes_from_the_id_or_from_producer_and_sequence(
    headers: dict[str, object] | None, expected: bytes | None
) -> None:
    assert name_of(message(headers)) == expected


@pytest.mark.parametrize(
    "headers",
    [
        {"x-producer": "p", "x-sequence": 0},
        {"other": 1, "x-producer": "p", "x-sequence": 0},
        {"x-producer": "p", "x-sequence": 0, "other": 1},
        {"x-sequence": 0, "x-producer": "p"},
        {"x-producer": "p", "x-deduplication-id": "a", "x-sequence": 0},
        {"x-producer": "p", "x-sequence": 7, "nested": {"x-sequence": 0}},
        {"x-producer": "p", "nested": {"x-sequence": 0}},
        {"x-producer": 5, "x-sequence": 0},
        {"x-producer": "p", "other": "\nx-sequencel12345678"},
    ],
)
@pytest.mark.parametrize("raw", [{}, {"content_type": b"\x04text", "delivery_mode": b"\x02"}])
def test_names_that_are_remembered_are_those_that_are_parsed(
    headers: dict[str, Any], raw: dict[str, bytes]
) -> None:
    """Put numbers into the frames of one message, at any place."""
    mark = b"x-sequencel"
    first = message(headers | {k: 1 << 40 for k, v in headers.items() if v == 0}, **raw)
    places = [at for at in range(len(first)) if first[at - len(mark) : at] == mark]
    for number in (1 << 40, 1, 2, -1, 1 << 62, -(1 << 63), (1 << 63) - 1, 5):
        for at in places:
            item = first[:at] + number.to_bytes(8, "big", signed=True) + first[at + 8 :]
            size = int.from_bytes(item[3:7], "big")
            assert name_of(item) == _parsed(item[7 : 7 + size])


def numbered(producer: str, numbers: list[int], **more: object) -> list[bytes]:
    return [
        message({**more, "x-producer": producer, "x-sequence": number}, body=b"%d" % number)
        for number in numbers
    ]


#: Numbers from here on take eight bytes.
B = 1 << 40


@pytest.mark.parametrize(
    ("items", "is_one"),
    [
        (numbered("p", [B]), True),
        (numbered("p", [-B, -B + 1, -B + 2]), True),
        (numbered("å" * 100, [B, B + 1], other="x"), True),
        (numbered("p", [SEQUENCE_MAX - 1, SEQUENCE_MAX]), True),
        (numbered("p", [B, B + 1, B + 3]), False),
        (numbered("p", [B + 1, B]), False),
        (numbered("p", [B, B]), False),
        (numbered("p", [B]) + numbered("q", [B + 1]), False),
        (numbered("p", [B]) + numbered("p", [B + 1], other=1), False),
        ([*numbered("p", [B]), message(body=b"\x0ax-sequencel" + (B + 1).to_bytes(8, "big"))], False),
        ([message(), *numbered("p", [B])], False),
        ([message({"x-sequence": number, "x-producer": "p"}) for number in (B, B + 1)], False),
        ([message({"x-deduplication-id": "a", "x-sequence": number}) for number in (B, B + 1)], False),
    ],
)
def test_messages_in_a_row_are_one_sequence(items: list[bytes], is_one: bool) -> None:
    names = names_of(items)
    assert isinstance(names, Sequence) is is_one
    listed = names.each() if isinstance(names, Sequence) else names
    assert listed == [name_of(item) for item in items]


def test_a_body_is_not_looked_at() -> None:
    assert name_of(message(body=b"x-deduplication-id x-sequence")) is None
    assert name_of(message(body=b"")) is None
    assert name_of(message({"x-deduplication-id": "a"}, body=b"x" * 300_000)) == id_of(b"a")


@pytest.mark.parametrize("counts_bytes", [False, True])
def test_messages_keep_their_names_and_numbers(counts_bytes: bool) -> None:
    host: Any = SimpleNamespace(
        counts_bytes=counts_bytes,
        takes_kinds=True,
        pending=[],
        settings=Settings(deduplication_window_ms=1),
        records=False,
    )
    items = [
        message({"x-deduplication-id": name} if name else None, body=b"x" * size)
        for name, size in (("a", 1), ("b", 9), ("", 3), ("", 4), ("longer", 2))
    ]
    enqueue_named(host, Run(range(5), list(items), b"head"), "origin", 10)
    found: list[tuple[int, bytes, bytes | None]] = []
    for verb, run, origin, first, *names in host.pending:
        assert origin == "origin"
        assert (verb == "enqueue_once") is bool(names)
        listed = names[0] if names else [None] * len(run.contents)
        found += zip(range(first, first + len(run.contents)), run.contents, listed, strict=True)
    expected = [id_of(b"a"), id_of(b"b"), None, None, id_of(b"longer")]
    assert found == list(zip(range(10, 15), items, expected, strict=True))
    if counts_bytes:
        assert [verb for verb, *_ in host.pending] == ["enqueue_once", "enqueue", "enqueue_once"]
        sizes = [run.counted_bytes for _, run, *_ in host.pending]
        assert sizes == [10, 7, 2]


def test_a_batch_without_names_is_a_plain_one() -> None:
    host: Any = SimpleNamespace(
        counts_bytes=False,
        takes_kinds=True,
        pending=[],
        settings=Settings(deduplication_window_ms=1),
        records=False,
    )
    enqueue_named(host, Run(range(1), [message()], b"head"), None, 0)
    assert [command[0] for command in host.pending] == ["enqueue"]
