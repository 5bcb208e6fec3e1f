"""Finds the property message-id in the frames of messages, for the record of messages."""

from __future__ import annotations

from typing import Final

#: Frame header, class, weight and body size come before the flags.
_FLAGS_AT: Final = 7 + 12
_BEHIND_FLAGS: Final = _FLAGS_AT + 2
#: In the second byte of the flags.
_MESSAGE_ID: Final = 0x80
#: Flags of the properties before the message-id, with their sizes; 0: a short string, -1: a table.
_BEFORE: Final = (
    (1 << 15, 0),
    (1 << 14, 0),
    (1 << 13, -1),
    (1 << 12, 1),
    (1 << 11, 1),
    (1 << 10, 0),
    (1 << 9, 0),
    (1 << 8, 0),
)


def message_ids_of(items: list[bytes]) -> list[bytes]:
    """Return the message-id of each of these messages, empty for none; an empty list if none has one.

    Messages of one publisher differ in the id and in what is behind it: then it is at the same place in all.
    """
    first = items[0]
    at = _id_at(first)
    if first[_FLAGS_AT + 1] & _MESSAGE_ID:
        # Compared all at once: no part is longer than expected, so the whole is equal only if each part is.
        start = at + 1
        stop = start + first[at]
        beginning = first[_FLAGS_AT:start]
        if b"".join([item[_FLAGS_AT:start] for item in items]) == beginning * len(items):
            return [item[start:stop] for item in items] if stop > start else []
    return _ids_one_by_one(items)


def _ids_one_by_one(items: list[bytes]) -> list[bytes]:
    beginning, at, ids = b"", _BEHIND_FLAGS, []
    for item in items:
        if item[_FLAGS_AT:at] != beginning:
            at = _id_at(item)
            beginning = item[_FLAGS_AT:at]
        ids.append(item[at + 1 : at + 1 + item[at]] if beginning[1] & _MESSAGE_ID else b"")
    return ids if any(ids) else []


def _id_at(item: bytes) -> int:
    """Return where the message-id of a message begins in its frames; without one, the end of the flags."""
    flags = item[_FLAGS_AT] << 8 | item[_FLAGS_AT + 1]
    at = _BEHIND_FLAGS
    if flags & _MESSAGE_ID:
        for bit, size in _BEFORE:
            if flags & bit:
                at += 4 + int.from_bytes(item[at : at + 4], "big") if size < 0 else size or 1 + item[at]
    return at
