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
from typing import Final, NamedTuple

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


class Message(NamedTuple):
    kind: int
    sender: str
    to: str
    term: int
    index: int = 0  # type: ignore[assignment]
    log_term: int = 0
    commit: int = 0
    entries: tuple[Entry, ...] = ()
    reject: bool = False
    hint: int = 0
    hint_term: int = 0
    #: See VOTE. Unused in all other messages: it was the round of a read.
    context: int = 0
    members: Members | None = None
    #: In answers: the sender has lost its disk, and this is the number of its new one. In appends the leader
    #: repeats it, with the index (`hint`) from which on that member counts as remembering again.
    amnesiac: int = 0
    #: In answers: no client of the sender waits for commits, so the leader may tell it late.
    patient: bool = False


def encode_message(group: int, message: Message) -> list[bytes]:
    """Return the parts whose concatenation is the encoding; entry data is not copied."""
    sender, to = message.sender.encode(), message.to.encode()
    flags = (_REJECT if message.reject else 0) | (_PATIENT if message.patient else 0)
    parts = [b"", sender, to]
    if message.hint or message.hint_term or message.context or message.amnesiac:
        flags |= _HAS_MORE
        parts.insert(1, _MORE.pack(message.hint, message.hint_term, message.context, message.amnesiac))
    if message.members is not None:
        flags |= _HAS_MEMBERS
        members = message.members.encode()
        parts += (_U16.pack(len(members)), members)
    entries = message.entries
    if entries:
        assert entries[0].index == message.index + 1
        flags |= _HAS_ENTRIES
        parts.append(_U32.pack(len(entries)))
        parts += [_ENTRY.pack(entry.term, entry.kind, len(entry.data)) for entry in entries]
    parts[0] = _HEAD.pack(
        _VERSION, message.kind, flags, group, message.term, message.index, message.log_term, message.commit,
        len(sender), len(to),
    )  # fmt: skip
    return [b"".join(parts), *[entry.data for entry in entries]]


def decode_message(data: memoryview | bytes) -> tuple[int, Message]:
    """Return the group and the message. Raises CodecError for bytes that `encode_message` cannot have made."""
    try:
        return _decode(memoryview(data))
    except (struct.error, UnicodeDecodeError) as error:
        raise CodecError(f"a message of {len(data)} bytes is broken: {error}") from error


def _decode(data: memoryview) -> tuple[int, Message]:
    version, kind, flags, group, term, index, log_term, commit, sender_bytes, to_bytes = _HEAD.unpack_from(
        data
    )
    if version != _VERSION or not APPEND <= kind <= COMMIT or flags > _FLAGS:
        raise CodecError(f"a message has version {version}, kind {kind} and flags {flags}")
    offset = _HEAD.size
    hint = hint_term = context = amnesiac = 0
    if flags & _HAS_MORE:
        hint, hint_term, context, amnesiac = _MORE.unpack_from(data, offset)
        offset += _MORE.size
    if max(term, index, log_term, commit, hint, hint_term) >= _NUMBER_MAX:
        raise CodecError("a message has a number out of bounds")
    # Share the strings: there are few nodes, and thousands of groups keep their names.
    sender = intern(_slice(data, offset, sender_bytes).decode())
    offset += sender_bytes
    to = intern(_slice(data, offset, to_bytes).decode())
    offset += to_bytes
    if not sender or not to:
        raise CodecError("a message has no sender or no receiver")
    members = None
    if flags & _HAS_MEMBERS:
        (size,) = _U16.unpack_from(data, offset)
        members = Members.decode(_slice(data, offset + 2, size))
        offset += 2 + size
    entries: tuple[Entry, ...] = ()
    if flags & _HAS_ENTRIES:
        entries, offset = _decode_entries(data, offset, index)
    if offset != len(data):
        raise CodecError(f"a message of {offset} bytes comes with {len(data) - offset} more")
    return group, Message(
        kind, sender, to, term, index, log_term, commit, entries, bool(flags & _REJECT), hint, hint_term, context,
        members, amnesiac, bool(flags & _PATIENT),
    )  # fmt: skip


def _decode_entries(data: memoryview, offset: int, index: int) -> tuple[tuple[Entry, ...], int]:
    (count,) = _U32.unpack_from(data, offset)
    offset += _U32.size
    body = offset + count * _ENTRY.size
    if not count or body > len(data):
        raise CodecError("a message ends inside its entries")
    entries: list[Entry] = []
    for term, kind, size in _ENTRY.iter_unpack(data[offset:body]):
        index += 1
        content = _slice(data, body, size)
        body += size
        if kind > EMPTY or term >= _NUMBER_MAX:
            raise CodecError(f"entry {index} has kind {kind} and term {term}")
        if kind == MEMBERS:
            Members.decode(content)
        entries.append(Entry(index, term, kind, content))
    return tuple(entries), body


def _slice(data: memoryview, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise CodecError("a message ends too early")
    return bytes(data[offset : offset + size])
