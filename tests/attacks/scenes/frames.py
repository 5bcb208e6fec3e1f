"""Frames that an attacker sends."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from pamqp import base, commands, frame, header

from tests.reliability.client import FRAME_MAX, Client

_HEAD = struct.Struct(">BHI")


def method(what: base.Frame | header.ContentHeader, channel: int = 1) -> bytes:
    return frame.marshal(what, channel)


def message(
    exchange: str, routing_key: str, body: bytes, *, channel: int = 1, whole: bool = True, **properties: Any
) -> bytes:
    """basic.publish with its content. Unless it is `whole`, the last frame of the body is left out."""
    content = header.ContentHeader(0, len(body), commands.Basic.Properties(**properties))
    step = FRAME_MAX - 8
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    frames = [_HEAD.pack(3, channel, len(piece)) + piece + b"\xce" for piece in pieces]
    publish = commands.Basic.Publish(exchange=exchange, routing_key=routing_key)
    return b"".join([method(publish, channel), method(content, channel), *(frames if whole else frames[:-1])])


def flood(client: Client, methods: Iterable[base.Frame], batch: int = 500, channel: int = 1) -> None:
    """Send methods that have answers, and read the answers after each batch of them."""
    pending: list[bytes] = []
    for one in methods:
        pending.append(method(one, channel))
        if len(pending) == batch:
            _exchange(client, pending)
    _exchange(client, pending)


def _exchange(client: Client, pending: list[bytes]) -> None:
    client.send(b"".join(pending))
    due = len(pending)
    pending.clear()
    while due > 0:
        due -= sum(1 for _ in client.receive())
