"""Entries and messages, and their bytes on a link.

    u8 version | u8 kind | u8 flags | u64 group, term, index, log_term, commit | u8 bytes of sender | u8 of
    receiver [u64 hint, hint_term, context, amnesiac] | sender | receiver [u16 bytes of members | members]
    [u32 entries | (u64 term | u8 kind | u32 bytes) each | data of all entries]

Parts in brackets are there if their flag is set. Entries follow `index` one by one, so their indexes are not
sent.
"""

from __future__ import annotations

import struct
from sys import intern
from typing import Any, Final, NamedTuple

from quorum_queue.raft.errors import CodecError
from quorum_queue.raft.members import Members

# Kinds of entries.
NORMAL: Final = 0
MEMBERS: Final = 1
EMPTY: Final = 2
#: Data of an EMPTY entry that replaces one that no member can read any more.
PASSED_OVER: Final = b"lost"

# Kinds of messages.
#: Entries after (index, log_term); always answered, once they are durable at the receiver.
#: `hint_term`: what the leader has committed, also beyond what this log has.
APPEND: Final = 1
#: Answer to APPEND, COMMIT and SNAPSHOT. `index`: durable and as the leader has it; `commit`: the sender's.
#: With `reject`, `index` is the one that did not fit, (hint, hint_term) the next to try.
APPEND_ANSWER: Final = 2
#: Asks for support of a candidacy in `term`, with a log that ends at (index, log_term).
PRE_VOTE: Final = 3
PRE_VOTE_ANSWER: Final = 4
#: The request for a real vote. `context` is 1 if the leader itself asked for the election.
VOTE: Final = 5
VOTE_ANSWER: Final = 6
#: A snapshot at (index, log_term) with these members is on its way.
SNAPSHOT: Final = 7
SNAPSHOT_ANSWER: Final = 8
#: The leader asks the receiver to campaign at once.
TIMEOUT_NOW: Final = 9
#: The sender no longer leads.
RESIGN: Final = 10
#: The leader's commit has risen, for a log that has (index, log_term). Answered only if it has not.
COMMIT: Final = 11

_KINDS: Final = range(APPEND, COMMIT + 1)
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BBBQQQQQBB")
_MORE: Final = struct.Struct(">QQQQ")
_ENTRY: Final = struct.Struct(">QBI")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_HEAD_BYTES: Final = 45
_MORE_BYTES: Final = 32
_ENTRY_BYTES: Final = 13
#: A message up to this size is copied as a whole before it is read: slices of bytes cost much less than views
#: of views.
COPIED_BYTES_MAX: Final = 4096
#: Names of nodes that are kept.
NAMES_MAX: Final = 256
_REJECT: Final = 1
_HAS_MORE: Final = 2
_HAS_MEMBERS: Final = 4
_HAS_ENTRIES: Final = 8
_PATIENT: Final = 16
_FLAGS: Final = 31
#: Indexes and terms stay below this, so that sums of them still fit in 64 bits.
_NUMBER_MAX: Final = 1 << 62


class Entry(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    term: int
    kind: int
    data: bytes


_FIELDS: Final = (
    "kind", "sender", "to", "term", "index", "log_term", "commit", "entries", "reject", "hint", "hint_term", "context",
    "members", "amnesiac", "patient",
)  # fmt: skip


class Message:
    """A class instead of a named tuple: compiled code creates and reads its objects several times as fast."""

    __slots__ = (
        "amnesiac",
        "commit",
        "context",
        "entries",
        "hint",
        "hint_term",
        "index",
        "kind",
        "log_term",
        "members",
        "patient",
        "reject",
        "sender",
        "term",
        "to",
    )

    def __init__(
        self,
        kind: int,
        sender: str,
        to: str,
        term: int,
        index: int = 0,
        log_term: int = 0,
        commit: int = 0,
        entries: tuple[Entry, ...] = (),
        reject: bool = False,
        hint: int = 0,
        hint_term: int = 0,
        context: int = 0,
        members: Members | None = None,
        amnesiac: int = 0,
        patient: bool = False,
    ) -> None:
        self.kind = kind
        self.sender = sender
        self.to = to
        self.term = term
        self.index = index
        self.log_term = log_term
        self.commit = commit
        self.entries = entries
        self.reject = reject
        self.hint = hint
        self.hint_term = hint_term
        #: See VOTE. Unused in all other messages: it was the round of a read.
        self.context = context
        self.members = members
        #: In answers: the sender has lost its disk, and this is the number of its new one. In appends the
        #: leader repeats it, with the index (`hint`) from which on that member counts as remembering again.
        self.amnesiac = amnesiac
        #: In answers: no client of the sender waits for commits, so the leader may tell it late.
        self.patient = patient

    def fields(self) -> dict[str, Any]:
        """All of them, by name: for comparisons and traces."""
        return {name: getattr(self, name) for name in _FIELDS}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash((self.kind, self.sender, self.to, self.term, self.index))

    def __repr__(self) -> str:
        return f"Message({', '.join(f'{name}={value!r}' for name, value in self.fields().items() if value)})"


def encode_message(group: int, message: Message, before: bytes = b"") -> list[bytes]:
    """Return the parts whose concatenation is `before` and the encoding; entry data is not copied."""
    sender, to = message.sender.encode(), message.to.encode()
    flags = (_REJECT if message.reject else 0) | (_PATIENT if message.patient else 0)
    more = members = heads = b""
    if message.hint or message.hint_term or message.context or message.amnesiac:
        flags |= _HAS_MORE
        more = _MORE.pack(message.hint, message.hint_term, message.context, message.amnesiac)
    if message.members is not None:
        flags |= _HAS_MEMBERS
        encoded = message.members.encode()
        members = _U16.pack(len(encoded)) + encoded
    entries = message.entries
    if entries:
        assert entries[0].index == message.index + 1
        flags |= _HAS_ENTRIES
        heads = _U32.pack(len(entries)) + b"".join(
            [_ENTRY.pack(entry[1], entry[2], len(entry[3])) for entry in entries]
        )
    head = _HEAD.pack(
        _VERSION, message.kind, flags, group, message.term, message.index, message.log_term, message.commit,
        len(sender), len(to),
    )  # fmt: skip
    return [b"".join((before, head, more, sender, to, members, heads)), *[entry[3] for entry in entries]]


def decode_message(frame: memoryview | bytes, at: int = 0) -> tuple[int, Message]:
    """Return the group and the message, which begins there and ends with the frame. Raises CodecError on
    anything that `encode_message` does not make.
    """
    try:
        return _decode(bytes(frame) if len(frame) <= COPIED_BYTES_MAX else memoryview(frame), at)
    except (struct.error, UnicodeDecodeError) as error:
        raise CodecError(f"a message of {len(frame) - at} bytes is broken: {error}") from error


def _decode(data: bytes | memoryview, at: int) -> tuple[int, Message]:
    head: tuple[int, int, int, int, int, int, int, int, int, int] = _HEAD.unpack_from(data, at)
    version, kind, flags, group, term, index, log_term, commit, sender_bytes, to_bytes = head
    if version != _VERSION or not APPEND <= kind <= COMMIT or flags > _FLAGS:
        raise CodecError(f"a message has version {version}, kind {kind} and flags {flags}")
    offset = at + _HEAD_BYTES
    hint = hint_term = context = amnesiac = 0
    if flags & _HAS_MORE:
        more: tuple[int, int, int, int] = _MORE.unpack_from(data, offset)
        hint, hint_term, context, amnesiac = more
        offset += _MORE_BYTES
    if (
        term >= _NUMBER_MAX
        or index >= _NUMBER_MAX
        or log_term >= _NUMBER_MAX
        or commit >= _NUMBER_MAX
        or hint >= _NUMBER_MAX
        or hint_term >= _NUMBER_MAX
    ):
        raise CodecError("a message has a number out of bounds")
    sender = _name(_slice(data, offset, sender_bytes))
    offset += sender_bytes
    to = _name(_slice(data, offset, to_bytes))
    offset += to_bytes
    members = None
    if flags & _HAS_MEMBERS:
        (size,) = _U16.unpack_from(data, offset)
        members = Members.decode(_slice(data, offset + 2, size))
        offset += 2 + size
    entries: tuple[Entry, ...] = ()
    if flags & _HAS_ENTRIES:
        entries, offset = _decode_entries(data, offset, index)
    if offset != len(data):
        raise CodecError(f"a message of {offset - at} bytes comes with {len(data) - offset} more")
    return group, Message(
        kind, sender, to, term, index, log_term, commit, entries, bool(flags & _REJECT), hint, hint_term, context,
        members, amnesiac, bool(flags & _PATIENT),
    )  # fmt: skip


def _decode_entries(data: bytes | memoryview, offset: int, index: int) -> tuple[tuple[Entry, ...], int]:
    (count,) = _U32.unpack_from(data, offset)
    offset += 4
    body = end = offset + count * _ENTRY_BYTES
    if not count or body > len(data):
        raise CodecError("a message ends inside its entries")
    entries: list[Entry] = []
    while offset < body:
        head: tuple[int, int, int] = _ENTRY.unpack_from(data, offset)
        term, kind, size = head
        offset += _ENTRY_BYTES
        index += 1
        content = _slice(data, end, size)
        end += size
        if kind > EMPTY or term >= _NUMBER_MAX:
            raise CodecError(f"entry {index} has kind {kind} and term {term}")
        if kind == MEMBERS:
            Members.decode(content)
        entries.append(Entry(index, term, kind, content))
    return tuple(entries), end


_names: Final[dict[bytes, str]] = {}


def _name(encoded: bytes) -> str:
    """Return the name of a node. There are few, and thousands of groups keep them."""
    name = _names.get(encoded)
    if name is None:
        name = intern(encoded.decode())
        if not name:
            raise CodecError("a message has no sender or no receiver")
        if len(_names) < NAMES_MAX:
            _names[encoded] = name
    return name


def _slice(data: bytes | memoryview, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise CodecError("a message ends too early")
    if isinstance(data, bytes):
        return data[offset : offset + size]
    return bytes(data[offset : offset + size])
