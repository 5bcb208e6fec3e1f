"""Many rows in one message: an Arrow IPC stream, compressed by Zstandard.

The rows have the columns that a sink accepts, so that a source returns the rows that were written. Content
type and encoding tell every program what the body is; the schema's metadata says that it has rows of this
connector, and is not another program's message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import MapType, StringType, StructType

from spark_sink.rows import BadColumn
from spark_sink.source.properties import BadMessage

CONTENT_TYPE, CONTENT_ENCODING = "application/vnd.apache.arrow.stream", "zstd"
#: In the metadata of the schema.
ROWS = {b"spark_sink": b"rows"}
#: Rows of so many bytes make a message, even if more rows were allowed.
MESSAGE_BYTES = 4 << 20
#: Bytes that a task holds for messages that are not full.
HELD_BYTES_MAX = 64 << 20
#: Level of Zstandard: higher levels cost more time than they save for the broker and the disk.
LEVEL = 1
#: Seed of the hash by which a super stream chooses the partition of a key; clients of RabbitMQ's streams use
#: it, too.
HASH_SEED = 104_729
KEYS_KNOWN_MAX = 100_000
#: Maximum number of bytes that are unpacked from one message.
UNPACKED_BYTES_MAX = 1 << 30
#: Maximum size of a column that is kept for the next batch.
REPEATS_MAX = 100_000
#: The first bytes of Zstandard's frames.
_ZSTD_MAGIC, _ZSTD_HEADER_BYTES_MAX = b"\x28\xb5\x2f\xfd", 18
#: Content type and encoding are the first properties, directly after the flags.
_FLAGS_BYTES = 2
BOTH_FLAGS = 0xC0
MARK = b"".join(bytes([len(text)]) + text.encode() for text in (CONTENT_TYPE, CONTENT_ENCODING))

Array = Any
RecordBatch = Any


@dataclass(frozen=True, slots=True)
class Messages:
    """Bodies, routes, properties, offsets and times of consecutive messages."""

    values: Sequence[bytes]
    routes: Sequence[bytes]
    properties: Sequence[bytes]
    offsets: Sequence[int]
    #: When the broker took them, ms since 1970; empty for queues.
    times: Sequence[int | None] = ()

    def __len__(self) -> int:
        return len(self.values)

    def part(self, low: int, high: int) -> Messages:
        return Messages(
            self.values[low:high],
            self.routes[low:high],
            self.properties[low:high],
            self.offsets[low:high],
            self.times[low:high],
        )


def is_packed(properties: bytes) -> bool:
    return properties[0] & BOTH_FLAGS == BOTH_FLAGS and properties.startswith(MARK, _FLAGS_BYTES)


def unpacked(messages: Messages) -> Iterator[tuple[Messages, RecordBatch | None]]:
    """Yield ordinary messages together, and each packed message with its rows. Raises BadMessage."""
    marked = set(filter(is_packed, set(messages.properties)))
    packed = [index for index, each in enumerate(messages.properties) if each in marked] if marked else []
    done = 0
    for index in packed:
        batches = packed_rows(messages.values[index])
        if batches is None:
            continue
        if index > done:
            yield messages.part(done, index), None
        done = index + 1
        for batch in batches:
            yield messages.part(index, done), batch
    if done < len(messages):
        yield messages if not done else messages.part(done, len(messages)), None


def packed_rows(body: bytes) -> list[RecordBatch] | None:
    """Return the rows in a body; None if this connector did not pack it. Raises BadMessage."""
    try:
        reader = pa.ipc.open_stream(_decompressed(body))
        metadata = reader.schema.metadata or {}
        if any(metadata.get(name) != value for name, value in ROWS.items()):
            return None
        return list(reader)
    except (pa.ArrowException, OSError) as error:
        raise BadMessage(f"the rows of a packed message cannot be read: {error}: {body[:50]!r}") from error


def _decompressed(body: bytes) -> Any:
    """Raises BadMessage, pa.ArrowException, OSError."""
    size = content_bytes(body)
    if size is not None and size <= UNPACKED_BYTES_MAX:
        # In one piece, at five times the speed of a stream.
        with suppress(OSError):
            return pa.Codec(CONTENT_ENCODING).decompress(body, size)
    # Other programs may omit the size, or write several frames.
    data = pa.CompressedInputStream(pa.BufferReader(body), CONTENT_ENCODING).read(UNPACKED_BYTES_MAX + 1)
    if len(data) > UNPACKED_BYTES_MAX:
        raise BadMessage(f"a packed message has more than {UNPACKED_BYTES_MAX} bytes of rows")
    return data


def content_bytes(body: bytes) -> int | None:
    """Return the size of the content from the header of a Zstandard frame (RFC 8878, 3.1.1.1); None if it is
    absent.
    """
    if len(body) < _ZSTD_HEADER_BYTES_MAX or not body.startswith(_ZSTD_MAGIC):
        return None
    descriptor = body[len(_ZSTD_MAGIC)]
    code, single = descriptor >> 6, descriptor >> 5 & 1
    if not code and not single:
        return None
    at = len(_ZSTD_MAGIC) + 1 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    size = int.from_bytes(body[at : at + (1, 2, 4, 8)[code]], "little")
    return size + 256 if code == 1 else size


def repeated(values: Array, count: int) -> Array:
    """An array of one value, so many times."""
    if not values.null_count and not pa.types.is_nested(values.type):
        return pa.repeat(values[0], count)
    return values.take(pa.repeat(pa.scalar(0, pa.int32()), count))


class Repeats:
    """Columns with one value, reused for the next batches: most values are the same as before."""

    def __init__(self) -> None:
        #: For each column: the value, and an array with repetitions of it.
        self._latest: dict[str, tuple[Any, Array]] = {}

    def column(self, name: str, value: Array, count: int) -> Array:
        """`value` is an array of one."""
        latest = self._latest.get(name)
        if latest is not None and len(latest[1]) >= count and latest[0].equals(value):
            return latest[1].slice(0, count)
        found = pa.nulls(count, value.type) if value.null_count else repeated(value, count)
        if count <= REPEATS_MAX:
            self._latest[name] = value, found
        return found


def check_columns(schema: StructType) -> None:
    """Refuse columns that rows of one message cannot have. Raises BadColumn."""
    if "exchange" in schema.fieldNames():
        raise BadColumn(
            "column 'exchange' cannot be used with packing: all rows of one message have the same exchange"
        )
    if "stream" in schema.fieldNames():
        raise BadColumn(
            "column 'stream' cannot be used with packing: all rows of one message go to the same stream. Write each "
            "stream by itself, with option 'stream'"
        )
    if "headers" in schema.fieldNames():
        kind = schema["headers"].dataType
        if (
            not isinstance(kind, MapType)
            or not isinstance(kind.keyType, StringType)
            or not isinstance(kind.valueType, StringType)
        ):
            raise BadColumn(
                f"column 'headers' is {kind.simpleString()}; with packing it must be map<string,string>: cast it"
            )


def partition_of(key: bytes, count: int) -> int:
    """Return the partition of a key, as a super stream has it."""
    import mmh3  # of the extra `spark`; only needed here

    return int(mmh3.hash(key, HASH_SEED, signed=False)) % count


class Packer:
    """Rows of a task, gathered until they make a message. The same rows make the same messages each time."""

    def __init__(self, rows_max: int, partitions: Sequence[str] = (), spare: int = 0) -> None:
        """`partitions` are those of a super stream, if the rows go to one; rows without a key go to partition
        number `spare`.
        """
        self._rows_max = rows_max
        self._partitions = partitions
        self._spare = spare
        self._known: dict[str | None, int] = {}
        #: By destination: None if the options alone determine it.
        self._held: dict[str | None, _Rows] = {}

    def packed(self, batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        """Yield batches whose rows are whole messages."""
        for batch in batches:
            messages: list[tuple[str | None, bytes]] = []
            for address, rows in self._addressed(batch):
                held = self._held.setdefault(address, _Rows())
                while rows.num_rows:
                    part = rows.slice(0, self._rows_max - held.count)
                    rows = rows.slice(part.num_rows)
                    held.add(part)
                    if held.count == self._rows_max or held.size >= MESSAGE_BYTES:
                        messages.append((address, held.packed()))
            if sum(held.size for held in self._held.values()) > HELD_BYTES_MAX:
                messages += self._rest()
            if messages:
                yield _message_batch(messages)
        if messages := self._rest():
            yield _message_batch(messages)

    def _rest(self) -> list[tuple[str | None, bytes]]:
        rest = [(address, held.packed()) for address, held in self._held.items() if held.count]
        self._held.clear()
        return rest

    def _addressed(self, batch: RecordBatch) -> Iterator[tuple[str | None, RecordBatch]]:
        given = None
        if "partition" in batch.schema.names:
            given = batch.column("partition").cast(pa.int32())
            batch = batch.drop_columns(["partition"])
        if "routing_key" in batch.schema.names:
            keys = batch.column("routing_key").dictionary_encode()
            # Convert keys to partition numbers: once for each distinct key, not for each row.
            numbers = pa.array([self._number(key) for key in keys.dictionary.to_pylist()], pa.int32())
            if not self._partitions:
                found, names = keys.indices, keys.dictionary.to_pylist()
            else:
                found, names = numbers.take(keys.indices), list(self._partitions)
            if given is not None:
                found = pc.coalesce(given, found)
        elif given is not None:
            found, names = given, list(self._partitions)
        else:
            yield (self._partitions[self._spare % len(self._partitions)] if self._partitions else None), batch
            return
        if found.null_count:
            spare = self._spare % len(names) if self._partitions else len(names)
            names.append(None)
            found = found.fill_null(spare)
        present = sorted(pc.unique(found).to_pylist())
        for number in present:
            yield names[number], batch if len(present) == 1 else batch.filter(pc.equal(found, number))

    def _number(self, key: str) -> int:
        if not self._partitions:
            return 0
        if len(self._known) > KEYS_KNOWN_MAX:
            self._known.clear()
        if key not in self._known:
            self._known[key] = partition_of(key.encode(), len(self._partitions))
        return self._known[key]


class _Rows:
    """Rows for one message."""

    def __init__(self) -> None:
        self._parts: list[RecordBatch] = []
        self.count = 0
        self.size = 0

    def add(self, part: RecordBatch) -> None:
        self._parts.append(part)
        self.count += part.num_rows
        self.size += part.nbytes

    def packed(self) -> bytes:
        table = pa.Table.from_batches(self._parts).combine_chunks().replace_schema_metadata(ROWS)
        self.__init__()  # type: ignore[misc]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        body: bytes = pa.Codec(CONTENT_ENCODING, compression_level=LEVEL).compress(
            sink.getvalue(), asbytes=True
        )
        return body


def _message_batch(messages: Sequence[tuple[str | None, bytes]]) -> RecordBatch:
    count = len(messages)
    columns = {
        "value": pa.array([body for _, body in messages], pa.binary()),
        "content_type": pa.repeat(pa.scalar(CONTENT_TYPE), count),
        "content_encoding": pa.repeat(pa.scalar(CONTENT_ENCODING), count),
    }
    if any(address is not None for address, _ in messages):
        columns["routing_key"] = pa.array([address for address, _ in messages], pa.string())
    return pa.record_batch(columns)
