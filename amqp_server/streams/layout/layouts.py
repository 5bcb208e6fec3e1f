"""How the properties of a message are encoded in a stream: they get one more header, the message's offset."""

from __future__ import annotations

from typing import Final

from amqp_server.wire import content, tables
from amqp_server.wire.content import Properties
from persistence.streams.batch import FILTER_BYTES_MAX

#: Maximum number of cached layouts of properties, and the longest properties that are cached.
LAYOUTS_MAX: Final = 1024
LAYOUT_BYTES_MAX: Final = 1024
OFFSET: Final = b"x-stream-offset"
#: What stands before the value of this header in a table; a publisher's own is taken out.
OFFSET_FIELD: Final = bytes((len(OFFSET),)) + OFFSET + b"l"
#: Header with which a group names the stream of a message. The names of all headers that mean anything to a
#: stream begin like this.
STREAM: Final = b"x-stream"
_STREAM_NAME: Final = bytes((len(STREAM),)) + STREAM
FILTER: Final = b"x-stream-filter-value"
#: Content encodings of bodies that need no further compression.
COMPRESSIONS: Final = frozenset(
    [
        "gzip",
        "x-gzip",
        "deflate",
        "zip",
        "zlib",
        "br",
        "brotli",
        "compress",
        "x-compress",
        "zstd",
        "lz4",
        "snappy",
        "bzip2",
        "bz2",
        "xz",
        "lzma",
        "lzo",
    ]
)
_HEADERS_FLAG: Final = 0x2000
#: In the first octet of the property flags.
_HAS_CONTENT_TYPE: Final = 0x80
_HAS_CONTENT_ENCODING: Final = 0x40
HAS_HEADERS: Final = 0x20
#: Where the property flags are in a content header's frame.
FLAGS_AT: Final = 19


class Layout:
    """How the properties of a message are encoded around its offset."""

    __slots__ = ("after", "before", "dense", "names_stream", "opening", "value")

    def __init__(
        self,
        before: bytes,
        opening: int,
        after: bytes,
        value: bytes | None,
        dense: bool,
        *,
        names_stream: bool,
    ) -> None:
        #: The bytes from the property flags to the offset, and how many of them come before the first header.
        self.before = before
        self.opening = opening
        self.after = after
        #: True if the headers seem to have the one with which a group names the stream.
        self.names_stream = names_stream
        #: The message's filter value.
        self.value = value
        #: True if the publisher has compressed the body.
        self.dense = dense


class Opening:
    """The beginning of a message's properties, up to its headers."""

    __slots__ = ("dense", "encoded")

    def __init__(self, encoded: bytes, dense: bool) -> None:
        #: Its bytes in an item: there, every message has headers.
        self.encoded = encoded
        #: See Layout.
        self.dense = dense


class Fields:
    """The headers of a message of which some seem to mean something to a stream."""

    __slots__ = ("encoded", "names_stream", "value")

    def __init__(self, encoded: bytes, value: bytes | None, *, names_stream: bool) -> None:
        #: Without a header x-stream-offset of the publisher.
        self.encoded = encoded
        #: See Layout.
        self.value = value
        self.names_stream = names_stream


class Layouts:
    """Layouts by the bytes of flags and properties, and openings: most messages share a few."""

    __slots__ = ("_fields", "_known", "_openings")

    def __init__(self) -> None:
        self._known: dict[bytes, Layout] = {}
        self._openings: dict[bytes, Opening] = {}
        self._fields: dict[bytes, Fields] = {}

    def fields(self, encoded: bytes) -> Fields:
        """Return what these headers, without the length of the table, mean to a stream."""
        found = self._fields.get(encoded)
        if found is None:
            found = _fields(encoded)
            if len(encoded) <= LAYOUT_BYTES_MAX:
                if len(self._fields) >= LAYOUTS_MAX:
                    self._fields.clear()
                self._fields[encoded] = found
        return found

    def opening(self, front: bytes, begin: int) -> Opening:
        """Return the opening for the frame of a content header whose headers begin there."""
        key = front[FLAGS_AT : begin - 4 if front[FLAGS_AT] & HAS_HEADERS else begin]
        found = self._openings.get(key)
        if found is None:
            if len(self._openings) >= LAYOUTS_MAX:
                self._openings.clear()
            found = self._openings[key] = _opening(key)
        return found

    def of(self, front: bytes) -> Layout:
        """Return the layout for the frame of a content header."""
        key = front[FLAGS_AT:-1]
        layout = self._known.get(key)
        if layout is None:
            layout = _layout(self, front)
            if len(key) <= LAYOUT_BYTES_MAX:
                if len(self._known) >= LAYOUTS_MAX:
                    self._known.clear()
                self._known[key] = layout
        return layout


def fields_in(front: bytes) -> tuple[int, int]:
    """Return where the fields of the headers begin and end in a content header's frame; without headers,
    where their table would be.
    """
    flags, at = front[FLAGS_AT], FLAGS_AT + 2
    if flags & _HAS_CONTENT_TYPE:
        at += 1 + front[at]
    if flags & _HAS_CONTENT_ENCODING:
        at += 1 + front[at]
    if flags & HAS_HEADERS:
        return at + 4, at + 4 + int.from_bytes(front[at : at + 4], "big")
    return at, at


def _opening(encoded: bytes) -> Opening:
    flags, at, dense = encoded[0], 2, False
    if flags & _HAS_CONTENT_TYPE:
        at += 1 + encoded[at]
    if flags & _HAS_CONTENT_ENCODING:
        dense = _is_dense(encoded[at + 1 :])
    return Opening(bytes((flags | HAS_HEADERS,)) + encoded[1:], dense)


def _layout(layouts: Layouts, front: bytes) -> Layout:
    """Return the layout for the frame of a content header."""
    begin, end = fields_in(front)
    fields = front[begin:end]
    if STREAM in fields:
        return _layout_with_names(front[7:-1])
    opening = layouts.opening(front, begin)
    size = len(fields) + len(OFFSET_FIELD) + 8
    before = b"".join((opening.encoded, size.to_bytes(4, "big"), fields, OFFSET_FIELD))
    return Layout(before, len(opening.encoded) + 4, front[end:-1], None, opening.dense, names_stream=False)


def _layout_with_names(header: bytes) -> Layout:
    """Return the layout for the payload of a content header whose headers may mean something to a stream."""
    properties = Properties.parse(header)
    table = tables.replaced(properties.raw.get("headers", b""), {OFFSET: None})
    flags = int.from_bytes(header[12:14], "big") | _HEADERS_FLAG
    before = [flags.to_bytes(2, "big")]
    after: list[bytes] = []
    part = before
    fields = table[4:] + OFFSET_FIELD
    for name in content.PROPERTIES:
        if name == "headers":
            part.append((len(fields) + 8).to_bytes(4, "big") + fields)
            part = after
        elif name in properties.raw:
            part.append(properties.raw[name])
    joined = b"".join(before)
    return Layout(
        joined,
        len(joined) - len(fields),
        b"".join(after),
        _filter_value(table),
        _is_dense(properties.raw.get("content_encoding", b"\0")[1:]),
        names_stream=_STREAM_NAME in fields,
    )


def _fields(encoded: bytes) -> Fields:
    table = len(encoded).to_bytes(4, "big") + encoded
    if OFFSET in encoded:
        table = tables.replaced(table, {OFFSET: None})
    names_stream = _STREAM_NAME in table[4:] + OFFSET_FIELD
    return Fields(table[4:], _filter_value(table), names_stream=names_stream)


def _is_dense(encoding: bytes) -> bool:
    """Return whether the content encoding is a compression. Many clients put a character set there."""
    # Spring writes gzip:UTF-8, others write a list as in HTTP.
    words = encoding.decode(errors="replace").lower().replace(",", " ").replace(":", " ").split()
    return any(word in COMPRESSIONS for word in words)


def _filter_value(table: bytes) -> bytes | None:
    if FILTER not in table:
        return None
    value = tables.values_in(table, (FILTER,)).get(FILTER)
    encoded = value.encode() if isinstance(value, str) else value
    if isinstance(encoded, bytes) and len(encoded) <= FILTER_BYTES_MAX:
        return encoded
    return None
