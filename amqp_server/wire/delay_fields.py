"""The headers that let a message wait, and how they are found in its frames."""

from __future__ import annotations

from typing import Final

from amqp_server.wire import tables

DELAY: Final = "x-delay"
DELIVER_AT: Final = "x-deliver-at"
#: What both names begin with. The same bytes may also be part of another name, or of a value.
_MARK: Final = DELAY[:5].encode()
_NAMES: Final = {DELAY.encode(): DELAY, DELIVER_AT.encode(): DELIVER_AT}
#: Frame header, class, weight and body size come before the flags.
_FLAGS_AT: Final = 7 + 12
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _MORE_FLAGS = 1 << 15, 1 << 14, 1 << 13, 1
#: Maximum number of beginnings of content headers that are cached, for all connections together, and the size
#: of the longest one.
KNOWN_MAX: Final = 4096
KNOWN_BYTES_MAX: Final = 512

# Messages of one publisher mostly are the same bytes up to the time. Where a field was found behind these
# bytes once, it is there always: the table's size is among them. The values are the fields' names.
_known: dict[bytes, str] = {}


class BothGiven(Exception):
    """A message has both headers."""


def delay_of(item: bytes) -> tuple[str, object] | None:
    """Return name and value of the header in a message's frames that lets it wait, None if it has none.
    Raises BothGiven.
    """
    end = 7 + int.from_bytes(item[3:7], "big")
    at = item.find(_MARK, _FLAGS_AT, end)
    if at < 0:
        return None
    # The length of the name is in front of it.
    type_at = at + item[at - 1]
    beginning = item[_FLAGS_AT : type_at + 1]
    name = _known.get(beginning)
    if name is None or item.find(_MARK, type_at, end) >= 0:
        return _looked_for(item, type_at, beginning)
    return name, tables.value_at(item, type_at)


def _looked_for(item: bytes, type_at: int, beginning: bytes) -> tuple[str, object] | None:
    """Walk the headers; remember the beginning of the frames if the field is where it was expected."""
    flags = int.from_bytes(item[_FLAGS_AT : _FLAGS_AT + 2], "big")
    at = _FLAGS_AT + 2
    if not flags & _HEADERS or flags & _MORE_FLAGS:
        return None
    for short_text in (_CONTENT_TYPE, _CONTENT_ENCODING):
        if flags & short_text:
            at += 1 + item[at]
    size = int.from_bytes(item[at : at + 4], "big")
    found: dict[str, object] = {}
    for field, value_at, _ in tables.checked_entries(item[at : at + 4 + size]):
        name = _NAMES.get(field)
        if name is None:
            continue
        # Of several with one name, the last one counts.
        found[name] = tables.value_at(item, at + value_at)
        if at + value_at == type_at and len(beginning) <= KNOWN_BYTES_MAX:
            if len(_known) >= KNOWN_MAX:
                _known.clear()
            _known[beginning] = name
    if len(found) > 1:
        raise BothGiven
    return next(iter(found.items()), None)


__all__ = ["DELAY", "DELIVER_AT", "BothGiven", "delay_of"]
