"""RabbitMQ's descriptions of unwelcome frames, which clients log and tests match."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp_server.channel.assembly import Assembly


def expected(assembly: Assembly) -> str:
    """RabbitMQ's text for an unexpected frame."""
    if assembly.header is None:
        return "expected content header for class 60, got non content header frame instead"
    return "expected content body, got non content body frame instead"


def _binary(data: bytes) -> str:
    """Return bytes as Erlang prints them: as text if all of them are printable."""
    if data and all(32 <= octet < 127 for octet in data):
        return '<<"' + data.decode() + '">>'
    return "<<" + ",".join(map(str, data)) + ">>"


def octets(data: bytes, pos: int, size: int, reason: str) -> str:
    """RabbitMQ's description of a bad frame: its type and its payload's beginning."""
    payload = data[pos + 7 : pos + 7 + size]
    if len(payload) > 16:
        return first_octets(data, pos, reason)
    text = f"type {data[pos]}, all octets = {_binary(payload)}"
    return f"{text}: {reason}" if reason else text


def first_octets(data: bytes, pos: int, reason: str) -> str:
    text = f"type {data[pos]}, first 16 octets = {_binary(data[pos + 7 : pos + 23])}"
    return f"{text}: {reason}" if reason else text
