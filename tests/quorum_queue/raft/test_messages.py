"""Messages and members as bytes and back; and bytes that are neither."""

from __future__ import annotations

import contextlib
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from quorum_queue.raft.errors import CodecError
from quorum_queue.raft.members import Members
from quorum_queue.raft.messages import (
    APPEND,
    COMMIT,
    COPIED_BYTES_MAX,
    MEMBERS,
    Entry,
    Message,
    decode_message,
    encode_message,
)

names = st.text(min_size=1, max_size=12).filter(lambda name: len(name.encode()) <= 255)
numbers = st.integers(0, (1 << 62) - 1)


@st.composite
def members(draw: st.DrawFn) -> Members:
    everyone = draw(st.lists(names, min_size=1, max_size=6, unique=True))
    voters = draw(st.integers(1, len(everyone)))
    return Members(tuple(everyone[:voters]), tuple(everyone[voters:]))


@st.composite
def messages(draw: st.DrawFn) -> Message:
    index = draw(st.integers(0, 1 << 61))
    entries: list[Entry] = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.integers(0, 2))
        data = draw(members()).encode() if kind == MEMBERS else draw(st.binary(max_size=30))
        entries.append(Entry(index + 1 + len(entries), draw(numbers), kind, data))
    return Message(
        draw(st.integers(APPEND, COMMIT)), draw(names), draw(names), draw(numbers), index, draw(numbers), draw(numbers),
        tuple(entries), draw(st.booleans()), draw(numbers), draw(numbers), draw(numbers), draw(st.none() | members()),
        draw(st.integers(0, (1 << 64) - 1)), draw(st.booleans()),
    )  # fmt: skip


def encoded(message: Message) -> bytes:
    return b"".join(encode_message(7, message))


def test_the_bytes_on_a_link_stay_what_they_are() -> None:
    """Older nodes of a cluster read these bytes."""
    entries = (Entry(6, 3, 0, b"one"), Entry(7, 4, 2, b""))
    message = Message(
        APPEND, "n1", "n\xfc2", 4, 5, 3, 2, entries, True, 8, 9, 1, Members(("a",), ("b",)), 10, True
    )
    assert encoded(message).hex() == (
        "01011f000000000000000700000000000000040000000000000005000000000000000300000000000000020204000000"
        "000000000800000000000000090000000000000001000000000000000a6e316ec3bc3200070101010161016200000002"
        "00000000000000030000000003000000000000000402000000006f6e65"
    )
    plain = Message(COMMIT, "n1", "n2", 4, 5, 3, 2)
    assert encoded(plain).hex() == (
        "010b000000000000000007000000000000000400000000000000050000000000000003000000000000000202026e316e32"
    )


@given(messages(), st.integers(0, (1 << 64) - 1))
def test_what_is_sent_arrives(message: Message, group: int) -> None:
    data = b"".join(encode_message(group, message))
    assert decode_message(data) == decode_message(memoryview(data)) == (group, message)


def test_what_is_not_copied_as_a_whole_arrives_the_same() -> None:
    entries = tuple(Entry(9 + at, 3, 0, bytes([at]) * COPIED_BYTES_MAX) for at in range(3))
    message = Message(APPEND, "n1", "n2", 3, 8, 3, 7, entries, hint_term=7)
    data = encoded(message)
    assert decode_message(data) == decode_message(memoryview(data)) == (7, message)
    assert decode_message(memoryview(b"\1" + data), 1) == (7, message)
    for cut in (1, COPIED_BYTES_MAX, len(data) - 1):
        with pytest.raises(CodecError):
            decode_message(data[:cut])


def test_messages_are_equal_if_all_their_fields_are() -> None:
    fields = Message(COMMIT, "n1", "n2", 4).fields()
    assert Message(**fields) == Message(COMMIT, "n1", "n2", 4)
    others: dict[type, Any] = {
        str: "n9", int: 99, bool: True, tuple: (Entry(1, 1, 0, b""),), type(None): Members(("a",), ())
    }  # fmt: skip
    for name, value in fields.items():
        changed = Message(**fields | {name: others[type(value)]})
        assert changed != Message(**fields) and name in repr(changed)


@given(messages())
def test_every_truncation_is_refused(message: Message) -> None:
    data = encoded(message)
    for cut in range(len(data)):
        with pytest.raises(CodecError):
            decode_message(data[:cut])


@given(messages(), st.binary(min_size=1, max_size=5))
def test_trailing_bytes_are_refused(message: Message, more: bytes) -> None:
    with pytest.raises(CodecError):
        decode_message(encoded(message) + more)


@given(messages(), st.data())
def test_broken_bytes_raise_nothing_else(message: Message, data: st.DataObject) -> None:
    broken = bytearray(encoded(message))
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CodecError):
        group, decoded = decode_message(bytes(broken))
        assert b"".join(encode_message(group, decoded)) == broken or decoded != message


@given(st.binary(max_size=200))
def test_any_bytes_raise_nothing_else(data: bytes) -> None:
    with contextlib.suppress(CodecError):
        decode_message(data)
    with contextlib.suppress(CodecError):
        Members.decode(data)


def test_a_count_of_entries_beyond_the_message_is_refused_before_anything_is_made_of_it() -> None:
    data = bytearray(encoded(Message(APPEND, "a", "b", 1, entries=(Entry(1, 1, 0, b"x"),))))
    at = len(data) - 1 - 13 - 4
    data[at : at + 4] = b"\xff\xff\xff\xff"
    with pytest.raises(CodecError, match="ends inside its entries"):
        decode_message(bytes(data))


def test_entry_data_is_not_copied_for_sending() -> None:
    body = bytes(100)
    parts = encode_message(7, Message(APPEND, "a", "b", 1, entries=(Entry(1, 1, 0, body),)))
    assert parts[1] is body


@given(members())
def test_members_are_the_same_after_encoding(one: Members) -> None:
    data = one.encode()
    assert Members.decode(data) == one
    for cut in range(len(data)):
        with pytest.raises(CodecError):
            Members.decode(data[:cut])
    with pytest.raises(CodecError):
        Members.decode(data + b"x")


@pytest.mark.parametrize(
    "wrong",
    [Members(()), Members(("a", "a")), Members(("a",), ("a",)), Members(("",)), Members(("a" * 256,))],
)
def test_members_that_cannot_be(wrong: Members) -> None:
    assert wrong.problem()


def test_members_on_the_wire_that_cannot_be() -> None:
    for wrong in (Members(("a", "a")), Members((), ("a",)), Members(("",))):
        with pytest.raises(CodecError):
            Members.decode(wrong.encode())
        message = Message(APPEND, "a", "b", 1, entries=(Entry(1, 1, MEMBERS, wrong.encode()),))
        with pytest.raises(CodecError):
            decode_message(encoded(message))
