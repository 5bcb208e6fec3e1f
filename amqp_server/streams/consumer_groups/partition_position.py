"""The stored state of a group's partition: its position, and the messages that were handed out and are not
settled.
"""

from __future__ import annotations

import msgspec

from quorum_queue.consumer_groups.partition import Partition, Span

VERSION = 1


class PlaceError(ValueError):
    """The bytes are not in the format of this version of mqd."""


class PartitionPlace(msgspec.Struct, array_like=True):
    version: int
    stream_id: int
    cursor: int
    #: From, to, and how often these messages came back; in any order.
    pending: list[tuple[int, int, int]]


_decoder = msgspec.msgpack.Decoder(PartitionPlace)


_encode = msgspec.msgpack.Encoder().encode
#: Lengths of an array from which on its header has more bytes: 3 and 5 instead of 1.
_ARRAY_16, _ARRAY_32 = 16, 1 << 16


def encode(partition: Partition) -> bytes:
    """Encode the present position of a partition, as a PartitionPlace."""
    position = (VERSION, partition.stream_id, partition.cursor, ())
    blocks = partition.encoded_pending(encode_spans)
    # The last byte is the header of the empty array.
    return b"".join([_encode(position)[:-1], _header(partition.span_count), *blocks])


def encode_spans(spans: list[Span]) -> bytes:
    """Encode spans without the header of their array: a part of a longer one."""
    return _encode(spans)[len(_header(len(spans))) :]


def _header(length: int) -> bytes:
    """Return how an array of this length begins."""
    if length < _ARRAY_16:
        return bytes((0x90 | length,))
    if length < _ARRAY_32:
        return b"\xdc" + length.to_bytes(2, "big")
    return b"\xdd" + length.to_bytes(4, "big")


def decode(data: bytes) -> PartitionPlace:
    """Decode a stored place. Raises PlaceError."""
    try:
        place = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise PlaceError(str(error)) from error
    if place.version != VERSION:
        raise PlaceError(f"it has version {place.version}, this mqd reads version {VERSION}")
    return place


__all__ = ["VERSION", "PartitionPlace", "PlaceError", "decode", "encode", "encode_spans"]
