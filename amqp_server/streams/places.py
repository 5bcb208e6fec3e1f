"""What is stored of a group's partition: how far it is, and what was handed out and is not done."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quorum_queue.consumer_groups.partition import Span

VERSION = 1


class PlaceError(ValueError):
    """Bytes are not what this version of mqd stores."""


class Place(msgspec.Struct, array_like=True):
    version: int
    stream_id: int
    cursor: int
    #: From, to, how often it came back.
    pending: list[tuple[int, int, int]]


_decoder = msgspec.msgpack.Decoder(Place)


def encode(stream_id: int, cursor: int, pending: Iterable[Span]) -> bytes:
    return msgspec.msgpack.encode(
        Place(VERSION, stream_id, cursor, [(low, stop, attempts) for low, stop, attempts in pending])
    )


def decode(data: bytes) -> Place:
    """Raises PlaceError."""
    try:
        place = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise PlaceError(str(error)) from error
    if place.version != VERSION:
        raise PlaceError(f"it has version {place.version}, this mqd reads version {VERSION}")
    return place


__all__ = ["VERSION", "Place", "PlaceError", "decode", "encode"]
