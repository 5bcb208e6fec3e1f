"""Finds the group of messages: a header of theirs, which the queue names."""

from __future__ import annotations

from typing import Final

from amqp_server.wire import tables
from quorum_queue.machine.run import Run

#: Longest id of a group, in bytes.
ID_BYTES_MAX: Final = 255
#: Frame header, class, weight and body size come before the flags.
_FLAGS_AT: Final = 7 + 12
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _MORE_FLAGS = 1 << 15, 1 << 14, 1 << 13, 1
_TEXT: Final = ord("S")
#: Maximum number of beginnings of content headers that are cached, for all queues together, and the size of
#: the longest one.
KNOWN_MAX: Final = 4096
KNOWN_BYTES_MAX: Final = 512

# Messages of one publisher mostly are the same bytes up to the id. Where an id was found behind these bytes
# once, it is there always: the table's size is among them. The values only make a set of it.
_known: dict[bytes, None] = {}


class BadGroup(Exception):
    """The header is no text, or too long."""


def groups_of(items: list[bytes], header: str) -> tuple[list[bytes], str]:
    """Return the group of each of these messages, empty for none, up to the first message whose header is no
    group's id; and what is wrong with that one, empty if there is none.
    """
    found: list[bytes] = []
    name = header.encode(errors="surrogateescape")
    mark = bytes((len(name),)) + name + b"S"
    try:
        for item in items:
            found.append(_group_of(item, name, mark))
    except BadGroup as error:
        return found, str(error)
    return found, ""


def _group_of(item: bytes, header: bytes, mark: bytes) -> bytes:
    end = 7 + int.from_bytes(item[3:7], "big")
    at = item.find(mark, _FLAGS_AT, end)
    if at >= 0:
        at += len(mark)
        beginning = item[_FLAGS_AT:at]
        if beginning in _known or _begins(item, header, at, beginning):
            return _text(item, at)
    elif item.find(header, _FLAGS_AT, end) < 0:
        return b""
    place = _place(item, header)
    if not place:
        return b""
    if item[place] != _TEXT:
        raise BadGroup("it must be a text")
    return _text(item, place + 1)


def _text(item: bytes, at: int) -> bytes:
    """Return the text whose size is at this place."""
    size = int.from_bytes(item[at : at + 4], "big")
    if size > ID_BYTES_MAX:
        raise BadGroup(f"it has {size} bytes, and a group's id has at most {ID_BYTES_MAX}")
    return item[at + 4 : at + 4 + size]


def _begins(item: bytes, header: bytes, at: int, beginning: bytes) -> bool:
    """Return whether the header's text really is at this place, which may also be part of a value."""
    if _place(item, header) + 1 != at:
        return False
    if len(beginning) <= KNOWN_BYTES_MAX:
        if len(_known) >= KNOWN_MAX:
            _known.clear()
        _known[beginning] = None
    return True


def _place(item: bytes, header: bytes) -> int:
    """Return where the type of the first header of this name is in a message's frames, 0 for nowhere."""
    flags = int.from_bytes(item[_FLAGS_AT : _FLAGS_AT + 2], "big")
    at = _FLAGS_AT + 2
    if not flags & _HEADERS or flags & _MORE_FLAGS:
        return 0
    for short_text in (_CONTENT_TYPE, _CONTENT_ENCODING):
        if flags & short_text:
            at += 1 + item[at]
    size = int.from_bytes(item[at : at + 4], "big")
    for name, value_at, _ in tables.checked_entries(item[at : at + 4 + size]):
        if name == header:
            return at + value_at
    return 0


def name_groups(run: Run, header: str, known: list[bytes] | None = None) -> None:
    """Put the groups of messages, which are in memory, into their heads; see
    quorum_queue.machine.order.message_groups. What is no group's id is none. `known`: the groups.
    """
    assert run.contents is not None
    groups = known
    if groups is None:
        groups, bad = groups_of(run.contents, header)
        while bad:
            groups.append(b"")
            more, bad = groups_of(run.contents[len(groups) :], header)
            groups += more
    if run.heads is not None:
        run.heads = [head + group for head, group in zip(run.heads, groups, strict=True)]
    elif groups.count(groups[0]) == len(groups):
        run.head += groups[0]
    else:
        # Equal heads are one object.
        heads = {group: run.head + group for group in groups}
        run.heads = [heads[group] for group in groups]


__all__ = ["groups_of", "name_groups"]
