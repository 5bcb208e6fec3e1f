"""The manifest of a stream that lives on one node, in the node's journal: a note for each range, so that a
range is stored by one small write, and together with its stream.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from amqp_server.streams.layout.named_offsets import NAMES_STOP
from persistence.streams.remote.manifest import Manifest, Range

logger = logging.getLogger("mqd.streams")

#: Position of the note with the identity. Notes of ranges follow it, each at its first offset.
IDENTITY: Final = NAMES_STOP
RANGES: Final = IDENTITY + 1

_begun_decoder = msgspec.msgpack.Decoder(tuple[str, str])
_range_decoder = msgspec.msgpack.Decoder(Range)


def encode_identity(manifest: Manifest) -> bytes:
    return msgspec.msgpack.encode((manifest.identity, manifest.remote))


def encode_range(range: Range) -> bytes:
    return msgspec.msgpack.encode(range)


def manifest_of(annotations: Mapping[int, bytes]) -> Manifest | None:
    """Return the manifest in the notes of a stream."""
    begun = annotations.get(IDENTITY)
    if begun is None:
        return None
    ranges: list[Range] = []
    for position, data in sorted(annotations.items()):
        if position >= RANGES:
            try:
                ranges.append(_range_decoder.decode(data))
            except msgspec.MsgspecError as error:
                logger.error("a range of messages in a remote cannot be read and is lost: %s", error)
    identity, remote = _begun_decoder.decode(begun)
    return Manifest(identity, remote, tuple(ranges))


__all__ = ["IDENTITY", "RANGES", "encode_identity", "encode_range", "manifest_of"]
