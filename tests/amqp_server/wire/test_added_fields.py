"""Fields that the broker adds to the headers of messages, against the same done property by property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_server.wire import added_fields, content, tables
from amqp_server.wire.added_fields import with_fields

from .published import Message, message, messages

ACQUIRED, FAILED = b"x-acquired-count", b"x-delivery-count"
counts = st.dictionaries(
    st.sampled_from([ACQUIRED, FAILED]),
    st.integers(1, 1 << 40).map(lambda count: b"l" + count.to_bytes(8, "big")),
    min_size=1,
)


def one_by_one(item: bytes, fields: dict[bytes, bytes]) -> tuple[bytes, bytes]:
    """Return header payload and body as they should be."""
    header, body = content.split(item)
    properties = content.Properties.parse(header)
    properties.raw["headers"] = tables.replaced(properties.raw.get("headers", b""), {**fields})
    return properties.encode(len(body)), body


def check(items: list[bytes], fields: dict[bytes, bytes]) -> None:
    changed = with_fields(items, fields)
    assert [content.split(item) for item in changed] == [one_by_one(item, fields) for item in items]
    for before, after in zip(items, changed, strict=True):
        # The channel, and the body frames, are those that the message came with.
        assert after[1:3] == before[1:3]
        assert after[content.body_at(after) :] == before[content.body_at(before) :]


@given(st.lists(messages(bodies=st.binary(max_size=300)), min_size=1, max_size=5), st.data(), counts)
def test_headers_are_as_if_changed_one_by_one(
    sent: list[Message], data: st.DataObject, fields: dict[bytes, bytes]
) -> None:
    items = [b"".join(each.frames(data.draw(st.integers(1, 65_535)))[1:]) for each in sent]
    check([items[at] for at in data.draw(st.lists(st.integers(0, len(items) - 1), max_size=9))], fields)


@given(counts, counts, st.booleans())
def test_fields_of_the_publisher_give_way(
    old: dict[bytes, bytes], fields: dict[bytes, bytes], other: bool
) -> None:
    table = tables.replaced(tables.encode({"other": "x"}) if other else b"", {**old})
    check([b"".join(message(headers=table).frames(1)[1:])] * 2, fields)


def test_a_large_body_is_kept() -> None:
    check([b"".join(message(body=b"b" * 20_000).frames(1)[1:])], {FAILED: b"l" + bytes(8)})


@pytest.mark.pure
def test_messages_with_one_header_are_changed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    alike, other = (b"".join(message(message_id=each).frames(1)[1:]) for each in (b"\x011", b"\x012"))
    changed: list[bytes] = []
    one = added_fields._changed

    def counted(frame: bytes, fields: dict[bytes, bytes], encoded: bytes) -> bytes:
        changed.append(frame)
        return one(frame, fields, encoded)

    monkeypatch.setattr(added_fields, "_changed", counted)
    items = [alike, alike, other] * 100
    check(items, {FAILED: b"l" + bytes(8)})
    assert changed == [item[: content.body_at(item)] for item in (alike, other)]
