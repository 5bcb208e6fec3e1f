"""The stored state of a group's partition: its position, and the messages that were handed out and are not
settled.
"""

from __future__ import annotations

from collections.abc import Iterable

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


def encode(stream_id: int, cursor: int, pending: Iterable[Span]) -> bytes:
    return msgspec.msgpack.encode(
        PartitionPlace(VERSION, stream_id, cursor, [(low, stop, attempts) for low, stop, attempts in pending])
    )


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
