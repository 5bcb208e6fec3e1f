"""A batch of rows as basic.publish, content header and body frames: one bytes object for each message.

Works column by column, because Arrow stores columns: each property becomes a list of encoded values, and one
loop over the rows puts them together. Everything is checked here, so that a bad row is found before any row
of its batch is sent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from spark_sink import arrow
from spark_sink.client.frames import BODY, END, FRAME_END, FRAME_MAX, HEAD, HEADER, METHOD, OVERHEAD
from spark_sink.option_values import SHORTSTR_BYTES_MAX
from spark_sink.options import SinkOptions
from spark_sink.rows import PROPERTIES
from spark_sink.sink import header_table

BASIC, PUBLISH = 60, 40
MANDATORY = 1
_PUBLISH = struct.Struct(">HHH")
#: type, channel, size, class, weight, body size, flags
_HEADER = struct.Struct(">BHIHHQH")
_HEADER_FIXED = 14
#: the header frame's end, then the body frame's head
_BODY = struct.Struct(">BBHI")
#: Number of routing keys that are cached with their whole publish frame.
MEMO_MAX = 10_000

LENGTH = [bytes([n]) for n in range(SHORTSTR_BYTES_MAX + 1)]
DELIVERY_MODES = (1, 2)
PRIORITY_MAX = 255


class BadRow(ValueError):
    """The text names the column and the row, and says what would be right."""

    def __init__(self, text: str, column: str = "", row: int = 0) -> None:
        super().__init__(text)
        self.column, self.row = column, row

    def __reduce__(self) -> tuple[type[BadRow], tuple[str, str, int]]:
        return type(self), (str(self), self.column, self.row)


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity by which a consumer, or the broker, recognises a row that comes twice."""

    #: message_id is this and the row's number; None: no ids of ours.
    message_id: bytes | None
    #: x-producer, and the number that is added to the row's number for x-sequence; None: no such headers.
    producer: bytes | None = None
    sequence: int = 0
    #: Rows that the queues have refused while they took later ones: they are identified by x-deduplication-id
    #: instead, because later sequence numbers have been taken.
    refused: Set[int] = field(default_factory=frozenset)


Encoded = list[bytes]


class Encoder:
    def __init__(
        self, options: SinkOptions, identity: Identity, where: str, frame_max: int = FRAME_MAX
    ) -> None:
        self._options = options
        self._identity = identity
        self._where = where
        self._frame_max = frame_max
        self._publishes: dict[tuple[bytes, bytes], bytes] = {}
        self._row = 0
        self._properties: dict[str, Callable[[Any], Encoded]] = {
            "delivery_mode": self._delivery_modes,
            "priority": self._priorities,
            "expiration": self._expirations,
            "timestamp": self._timestamps,
        }

    def encode(self, batch: Any, first_row: int) -> list[bytes]:
        """Raises BadRow."""
        self._row = first_row
        columns = {name: batch.column(name) for name in batch.schema.names}
        bodies = self._bodies(columns["value"])
        count = len(bodies)
        publishes = self._publish_frames(columns, count)
        flags, properties = self._all_properties(columns, count)
        messages = [
            publish
            + _HEADER.pack(HEADER, 1, _HEADER_FIXED + len(props), BASIC, 0, len(body), bits)
            + props
            + _BODY.pack(FRAME_END, BODY, 1, len(body))
            + body
            + END
            for publish, bits, props, body in zip(publishes, flags, properties, bodies, strict=False)
        ]
        self._reframe(messages, bodies)
        return messages

    def _bad(self, column: str, position: int, text: str) -> BadRow:
        row = self._row + position
        return BadRow(f"column '{column}' in row {row} of {self._where} {text}", column, row)

    def _bodies(self, column: Any) -> Encoded:
        if missing := arrow.nulls(column):
            raise self._bad("value", missing[0], "is null: every message needs a body, if only an empty one")
        most = self._options.max_message_bytes
        if (longer := arrow.first_longer(column, most)) is not None:
            raise self._bad(
                "value",
                longer,
                f"is longer than {most} bytes: see the option maxMessageBytes, and the broker's limit",
            )
        return arrow.texts(column)

    def _reframe(self, messages: list[bytes], bodies: Encoded) -> None:
        """An empty body has no frame, a large one has several."""
        most = self._frame_max - OVERHEAD
        for position, body in enumerate(bodies):
            if 0 < len(body) <= most:
                continue
            rest = len(body) + OVERHEAD
            pieces = [messages[position][:-rest]]
            for start in range(0, len(body), most):
                piece = body[start : start + most]
                pieces += HEAD.pack(BODY, 1, len(piece)), piece, END
            messages[position] = b"".join(pieces)

    def _short_texts(self, column: Any, name: str) -> Encoded:
        if (longer := arrow.first_longer(column, SHORTSTR_BYTES_MAX)) is not None:
            raise self._bad(
                name, longer, f"is longer than {SHORTSTR_BYTES_MAX} bytes, the most that AMQP takes there"
            )
        return arrow.texts(column)

    # Where messages go.

    def _publish_frames(self, columns: dict[str, Any], count: int) -> Iterator[bytes]:
        exchange = columns.get("exchange")
        routing_key = columns.get("routing_key")
        if exchange is None and routing_key is None:
            return repeat(self._publish(self._options.exchange.encode(), self._default_key()), count)
        exchanges = self._addresses(exchange, "exchange", self._options.exchange.encode(), count)
        keys = self._addresses(routing_key, "routing_key", self._default_key(), count)
        if self._options.routing_key is None:
            self._check_addressed(routing_key, exchanges)
        memo = self._publishes
        if len(memo) > MEMO_MAX:
            memo.clear()
        for address in zip(exchanges, keys, strict=False):
            if address not in memo:
                memo[address] = self._publish(*address)
        return map(memo.__getitem__, zip(exchanges, keys, strict=False))

    def _default_key(self) -> bytes:
        return (self._options.routing_key or "").encode()

    def _addresses(self, column: Any, name: str, default: bytes, count: int) -> Encoded:
        """A null means the value of the option."""
        if column is None:
            return [default] * count
        values = self._short_texts(column, name)
        for position in arrow.nulls(column):
            values[position] = default
        return values

    def _check_addressed(self, routing_key: Any, exchanges: Encoded) -> None:
        missing = range(len(exchanges)) if routing_key is None else arrow.nulls(routing_key)
        for position in missing:
            if not exchanges[position]:
                raise self._bad(
                    "routing_key",
                    position,
                    "is missing, and the default exchange needs the queue's name: "
                    "set option 'routingKey' for rows without one",
                )

    def _publish(self, exchange: bytes, routing_key: bytes) -> bytes:
        bits = LENGTH[MANDATORY if self._options.mandatory else 0]
        payload = (
            _PUBLISH.pack(BASIC, PUBLISH, 0)
            + LENGTH[len(exchange)]
            + exchange
            + LENGTH[len(routing_key)]
            + routing_key
            + bits
        )
        return HEAD.pack(METHOD, 1, len(payload)) + payload + END

    # The properties of messages.

    def _all_properties(self, columns: dict[str, Any], count: int) -> tuple[Iterator[int], Iterator[bytes]]:
        """Return the flags and the property list of each row."""
        always = 0
        sometimes: list[list[int]] = []
        encoded: list[Sequence[bytes] | Iterator[bytes]] = []
        for each in PROPERTIES:
            column = columns.get(each.column)
            values, missing = self._property(each.column, column, count)
            if values is None:
                continue
            encoded.append(values)
            if missing:
                bits = [1 << each.bit] * count
                for position in missing:
                    bits[position] = 0
                sometimes.append(bits)
            else:
                always |= 1 << each.bit
        flags = (
            map(sum, zip(repeat(always, count), *sometimes, strict=False))
            if sometimes
            else repeat(always, count)
        )
        if len(encoded) == 1:
            return flags, iter(encoded[0])
        return flags, map(b"".join, zip(*encoded, strict=False)) if encoded else repeat(b"", count)

    def _property(
        self, name: str, column: Any, count: int
    ) -> tuple[Sequence[bytes] | Iterator[bytes] | None, Sequence[int]]:
        """Return a property's encoded values, and the rows that have none."""
        if name == "headers":
            return self._headers(column, count)
        missing = arrow.nulls(column) if column is not None else range(count)
        default = self._default(name, count, missing)
        if column is None:
            return (default, ()) if default is not None else (None, ())
        special = self._properties.get(name)
        values = special(column) if special else [LENGTH[len(v)] + v for v in self._short_texts(column, name)]
        for position in missing:
            values[position] = default[position] if default is not None else b""
        return values, () if default is not None else missing

    def _default(self, name: str, count: int, missing: Sequence[int]) -> Encoded | None:
        """The default for rows without a value."""
        if name == "delivery_mode":
            return [LENGTH[self._options.delivery_mode]] * count
        prefix = self._identity.message_id
        if name == "message_id" and prefix is not None:
            if not missing:
                return []
            return list(_numbered(prefix, self._rows(count)))
        return None

    def _rows(self, count: int) -> range:
        return range(self._row, self._row + count)

    def _headers(self, column: Any, count: int) -> tuple[Sequence[bytes] | None, Sequence[int]]:
        producer = self._identity.producer
        if column is None and producer is None:
            return None, ()
        if column is None and producer is not None and not self._identity.refused:
            return self._sequences(producer, count), ()
        tables = self._header_tables(column) if column is not None else [b""] * count
        missing = arrow.nulls(column) if column is not None else []
        if producer is not None:
            tables = [
                table + ours for table, ours in zip(tables, self._deduplication(producer, count), strict=True)
            ]
            missing = []
        absent = set(missing)
        most = self._frame_max - OVERHEAD - _HEADER_FIXED - header_table.RESERVED_BYTES
        values = []
        for position, table in enumerate(tables):
            if len(table) > most:
                raise self._bad("headers", position, f"takes {len(table)} bytes; all headers must fit {most}")
            values.append(b"" if position in absent else header_table.SIZE.pack(len(table)) + table)
        return values, missing

    def _header_tables(self, column: Any) -> Encoded:
        try:
            return header_table.encode(column)
        except header_table.BadEntry as error:
            raise self._bad("headers", error.position, str(error)) from None

    def _sequences(self, producer: bytes, count: int) -> Encoded:
        """Complete header tables with only the headers for deduplication: they differ in their last eight
        bytes.
        """
        before = header_table.text("x-producer", producer) + header_table.LONG_NAMED["x-sequence"]
        before = header_table.SIZE.pack(len(before) + header_table.LONG.size) + before
        low = self._identity.sequence + self._row
        return list(map(before.__add__, map(header_table.LONG.pack, range(low, low + count))))

    def _deduplication(self, producer: bytes, count: int) -> Encoded:
        identity = self._identity
        low = identity.sequence
        tables = [table[header_table.SIZE.size :] for table in self._sequences(producer, count)]
        if identity.refused:
            for position, row in enumerate(self._rows(count)):
                if row in identity.refused:
                    tables[position] = header_table.text(
                        "x-deduplication-id", b"%b/%d" % (producer, low + row)
                    )
        return tables

    def _delivery_modes(self, column: Any) -> Encoded:
        missing = set(arrow.nulls(column))
        values = arrow.whole_numbers(column)
        for position, value in enumerate(values):
            if value not in DELIVERY_MODES and position not in missing:
                raise self._bad(
                    "delivery_mode", position, f"is {value}; there are 1 (transient) and 2 (persistent)"
                )
        return [LENGTH[value] for value in values]

    def _priorities(self, column: Any) -> Encoded:
        values = arrow.whole_numbers(column)
        for position, value in enumerate(values):
            if not 0 <= value <= PRIORITY_MAX:
                raise self._bad("priority", position, f"is {value}; it must be between 0 and {PRIORITY_MAX}")
        return [LENGTH[value] for value in values]

    def _expirations(self, column: Any) -> Encoded:
        missing = set(arrow.nulls(column))
        values = arrow.texts(column.cast("string"))
        for position, value in enumerate(values):
            if not (value.isdigit() and len(value) <= 10) and position not in missing:
                raise self._bad(
                    "expiration", position, f"is {value.decode()!r}; it must be whole milliseconds"
                )
        return [LENGTH[len(value)] + value for value in values]

    def _timestamps(self, column: Any) -> Encoded:
        values = arrow.seconds(column)
        for position, value in enumerate(values):
            if value < 0:
                raise self._bad(
                    "timestamp", position, "is before 1970: AMQP counts seconds from then, without a sign"
                )
        return [header_table.LONG.pack(value) for value in values]


def _numbered(prefix: bytes, numbers: range) -> Iterator[bytes]:
    """Short strings of the prefix and a number. Numbers with equally many digits give the same length."""
    while numbers:
        digits = len(str(numbers[0]))
        same = numbers[: max(0, 10**digits - numbers[0])]
        before = LENGTH[len(prefix) + digits] + prefix
        yield from map(before.__add__, map(b"%d".__mod__, same))
        numbers = numbers[len(same) :]
