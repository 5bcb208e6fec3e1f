"""A layer as bytes: the content of a record of the write-ahead log."""

from typing import Any, Final

import msgspec

from persistence.commits.layer import Layer, QueueChanges, SpanNote
from persistence.record import Payload
from persistence.replica_logs.changes import GroupChanges

VERSION: Final = 1
#: Of records with notes about several messages in a row, which an earlier program refuses.
SPANS_VERSION: Final = 2
#: A layer with more parts goes directly to LMDB: a record would not pay.
PARTS_MAX: Final = 512
#: More settled intervals than these are joined, if they touch, before they are counted.
MERGED_BEHIND: Final = 64

# queue, dropped, appends, starts, stops, annotations, state; an append: first number, count, head, body
_Queue = tuple[
    int, bool, list[tuple[int, int, bytes, bytes]], list[int], list[int], dict[int, bytes], bytes | None
]
# the same and span notes
_SpannedQueue = tuple[
    int,
    bool,
    list[tuple[int, int, bytes, bytes]],
    list[int],
    list[int],
    dict[int, bytes],
    bytes | None,
    list[SpanNote],
]
# group, dropped, cut, entries, kept, starts, stops, hard, snapshot
_Group = tuple[
    int,
    bool,
    int | None,
    list[tuple[int, int, int, bytes]],
    bool,
    list[int],
    list[int],
    tuple[int, str] | None,
    tuple[int, int, bytes] | None,
]
# stored key, key, value
_Entry = tuple[bytes, bytes, bytes | None]

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(tuple[int, list[_Queue], list[_Group], list[_Entry]]).decode
_decode_spanned: Final = msgspec.msgpack.Decoder(
    tuple[int, list[_SpannedQueue], list[_Group], list[_Entry]]
).decode
#: A record is an array of four, of which the version is the first.
_SPANNED: Final = bytes((0x94, SPANS_VERSION))


class UnknownVersion(Exception):
    """A later program has written this."""


def is_small(layer: Layer, bytes_max: int) -> bool:
    """Return whether a record can hold the layer."""
    if layer.bytes > bytes_max or len(layer.queues) + len(layer.groups) + len(layer.metadata) > PARTS_MAX:
        return False
    parts = 0
    for changes in layer.queues.values():
        if len(changes.starts) > MERGED_BEHIND:
            changes.merge_settled()
        parts += len(changes.appends) + len(changes.starts)
        parts += len(changes.annotations) + len(changes.span_notes)
    for group in layer.groups.values():
        parts += len(group.entries) + len(group.starts)
    return parts <= PARTS_MAX


def encode(layer: Layer) -> bytes:
    spanned = any(changes.span_notes for changes in layer.queues.values())
    queues = [
        (*_queue(queue_id, changes), changes.span_notes) if spanned else _queue(queue_id, changes)
        for queue_id, changes in layer.queues.items()
    ]
    groups = [_group(number, changes) for number, changes in layer.groups.items()]
    entries = [
        (stored, key.encode("utf-8", "surrogatepass"), value)
        for stored, (key, value) in layer.metadata.items()
    ]
    return _encode((SPANS_VERSION if spanned else VERSION, queues, groups, entries))


def decode(data: bytes) -> Layer:
    """Raises UnknownVersion, and msgspec's errors."""
    try:
        version, queues, groups, entries = _decode_spanned(data) if data[:2] == _SPANNED else _decode(data)
    except msgspec.ValidationError as error:
        raise UnknownVersion(str(error)) from error
    if version not in (VERSION, SPANS_VERSION):
        raise UnknownVersion(f"version {version}")
    layer = Layer()
    for queue_id, dropped, appends, starts, stops, annotations, state, *more in queues:
        changes = layer.changes(queue_id)
        changes.dropped = dropped
        for first, count, head, body in appends:
            changes.append((first, count, [head, body], 1))
        changes.starts, changes.stops = starts, stops
        changes.annotations = annotations
        changes.span_notes = more[0] if more else []
        changes.state = state
    for number, dropped, cut, kept_entries, kept, starts, stops, hard, snapshot in groups:
        group = layer.group(number)
        group.dropped = dropped
        group.cut = cut
        group.entries = {entry[0]: entry for entry in kept_entries}
        group.kept = kept
        group.starts, group.stops = starts, stops
        group.hard = hard
        group.snapshot = snapshot
    for stored, key, value in entries:
        layer.metadata[stored] = key.decode("utf-8", "surrogatepass"), value
    return layer


def _queue(queue_id: int, changes: QueueChanges) -> Any:
    appends = [
        (first, count, *_halves(payload, head_parts)) for first, count, payload, head_parts in changes.appends
    ]
    return (
        queue_id,
        changes.dropped,
        appends,
        changes.starts,
        changes.stops,
        changes.annotations,
        changes.state,
    )


def _halves(payload: Payload, head_parts: int) -> tuple[bytes, bytes]:
    if isinstance(payload, bytes):
        return (payload, b"") if head_parts else (b"", payload)
    return b"".join(payload[:head_parts]), b"".join(payload[head_parts:])


def _group(number: int, changes: GroupChanges) -> Any:
    snapshot = changes.snapshot
    if snapshot is not None and not isinstance(snapshot[2], bytes):
        snapshot = snapshot[0], snapshot[1], b"".join(snapshot[2])
    return (
        number,
        changes.dropped,
        changes.cut,
        list(changes.entries.values()),
        changes.kept,
        changes.starts,
        changes.stops,
        changes.hard,
        snapshot,
    )
