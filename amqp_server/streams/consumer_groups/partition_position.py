"""The stored state of a group's partition: its position, and the messages that were handed out and are not
settled.
"""

from __future__ import annotations

import msgspec

from quorum_queue.consumer_groups.partition import Span

VERSION = 1


class PlaceError(ValueError):
    """The bytes are not in the format of this version of mqd."""


class PartitionPlace(msgspec.Struct, array_like=True):
    version: int
    stream_id: int
    cursor: int
    #: From, to, and how often these messages came back.
    pending: list[tuple[int, int, int]]


_decoder = msgspec.msgpack.Decoder(PartitionPlace)


_encode = msgspec.msgpack.Encoder().encode


def encode(stream_id: int, cursor: int, pending: list[Span]) -> bytes:
    # As in PartitionPlace. There may be thousands of spans, which are not copied.
    return _encode((VERSION, stream_id, cursor, pending))


def decode(data: bytes) -> PartitionPlace:
    """Decode a stored place. Raises PlaceError."""
    try:
        place = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise PlaceError(str(error)) from error
    if place.version != VERSION:
        raise PlaceError(f"it has version {place.version}, this mqd reads version {VERSION}")
    return place


__all__ = ["VERSION", "PartitionPlace", "PlaceError", "decode", "encode"]
