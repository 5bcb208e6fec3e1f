"""Entries of a consumer group's log as bytes.

    entry   u8 version | u64 now_ms | batches of nodes, each with its length before it
    batch of one node, in msgpack: node, incarnation, number, and its commands

Commands name consumers by a place in the list of keys of their batch. These are of the batch's own node:

    ("attach", key, prefetch, next id)     ("detach", key, gone)     ("limit", key, prefetch)
    ("get", key, next id)                  ("sent", key, id)
    ("settle" | "return" | "discard" | "unsent", key, low, high)
    ("purge", token, [(stream, first, stop)])
    ("move", token, [(stream, offset)])    ("move_unused", token, …): not if the group has members
    ("seal", token, condition, [(stream, first, stop)])    see quorum_queue.machine.seal
    ("passed", stream, low, stop)          the leader's, too
    ("pend", transaction, settle | return | discard, key, low, high)    see quorum_queue.consumer_groups.parts
    ("prepare", token, transaction, count, queues)      ("resolve", transaction, committed)

And these are the leader's, with whole keys:

    ("streams", [(stream, name)], [stream])    streams that have come, and that have gone
    ("begin", stream, offset)                  ("buried", first, count)
    ("hand", stream, key, low, stop)           ("nothing", key)
    ("node_down", node, incarnation)           ("stuck", before_ms)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import msgspec

#: Version of entries.
VERSION = 1
_ENTRY = struct.Struct(">BQ")
_LENGTH = struct.Struct(">I")

Key = tuple[Any, ...]
Command = tuple[Any, ...]

#: Commands whose second field is a consumer of the batch's node.
KEYED = frozenset({"attach", "detach", "limit", "get", "sent", "settle", "return", "discard", "unsent"})


class CodecError(Exception):
    """The bytes are not an entry or a snapshot that this version knows."""


class NodeBatch(msgspec.Struct, array_like=True, frozen=True):
    """The commands of one node from one of its turns."""

    node: str
    #: The start of the node.
    incarnation: int
    #: Consecutive from 1 within an incarnation.
    number: int
    keys: list[tuple[str | int | bool | None, ...]]
    commands: list[tuple[Any, ...]]


_batch_decoder = msgspec.msgpack.Decoder(NodeBatch)


def encode_batch(node: str, incarnation: int, number: int, commands: Iterable[Command]) -> bytes:
    """Encode a node's batch for the leader. Keys are those on this node."""
    keys: dict[Key, int] = {}
    encoded: list[Command] = []
    for command in commands:
        if command[0] in KEYED:
            place = keys.setdefault(command[1], len(keys))
            command = (command[0], place, *command[2:])
        elif command[0] == "pend":
            _, transaction, (verb, key, low, high) = command
            command = ("pend", transaction, verb, keys.setdefault(key, len(keys)), low, high)
        encoded.append(command)
    return msgspec.msgpack.encode(NodeBatch(node, incarnation, number, list(keys), encoded))


def encode_entry(now_ms: int, found: list[bytes]) -> bytes:
    """Put the batches of nodes into one entry."""
    parts = [_ENTRY.pack(VERSION, now_ms)]
    for each in found:
        parts += (_LENGTH.pack(len(each)), each)
    return b"".join(parts)


def decode_entry(data: bytes | memoryview) -> tuple[int, list[NodeBatch]]:
    """Return time and batches; all commands have whole keys. Raises CodecError."""
    try:
        version, now_ms = _ENTRY.unpack_from(data)
        if version != VERSION:
            raise CodecError(f"an entry has version {version}, this mqd reads version {VERSION}")
        found: list[NodeBatch] = []
        at = _ENTRY.size
        view = memoryview(data)
        while at < len(data):
            (size,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            found.append(_with_keys(_batch_decoder.decode(view[at : at + size])))
            at += size
        return now_ms, found
    except (struct.error, msgspec.MsgspecError, LookupError, TypeError) as error:
        raise CodecError(f"no entry of a consumer group: {error}") from error


def _with_keys(batch: NodeBatch) -> NodeBatch:
    owner = batch.node, batch.incarnation
    commands: list[Command] = []
    for command in batch.commands:
        verb = command[0]
        if verb in KEYED:
            command = (verb, (*owner, *batch.keys[command[1]]), *command[2:])
        elif verb == "hand":
            command = (verb, command[1], tuple(command[2]), *command[3:])
        elif verb == "nothing":
            command = (verb, tuple(command[1]))
        elif verb == "pend":
            key = (*owner, *batch.keys[command[3]])
            command = (verb, tuple(command[1]), command[2], key, *command[4:])
        elif verb == "prepare":
            command = (verb, command[1], tuple(command[2]), *command[3:])
        elif verb == "resolve":
            command = (verb, tuple(command[1]), *command[2:])
        commands.append(command)
    return NodeBatch(batch.node, batch.incarnation, batch.number, [], commands)


__all__ = [
    "VERSION",
    "CodecError",
    "Command",
    "Key",
    "NodeBatch",
    "decode_entry",
    "encode_batch",
    "encode_entry",
]
